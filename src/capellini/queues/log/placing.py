"""Placing: where a new extent lies, and at which level its blocks are confirmed.

On a store with replicas a partition's key decides which of them hold it. The key of an extent's blocks has its name,
and a name has a salt: names that differ in it alone are tried until all replicas of one are up, so that the next block
does not fail at once.

    asked for      a name whose replicas are all up         none
    quorum         that name                                the name with most of them up: a quorum may still do
    all            that name, at level all                  the name with most of them up, at a quorum: and says so

An extent at a quorum whose queue asks for all is replaced when such a name can be had again (`should_move`).

Doubt. A replica that answers this node may be cut off from the others. When a block fails although all replicas seem
to be up, nobody knows which one it was: all of them are passed over for a while, as if they were down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from capellini.queues.log import names
from capellini.queues.log.extents import Extent
from capellini.queues.log.place import LogPlace
from capellini.queues.log.rows import partition_of
from capellini.store.interface import Replica
from capellini.store.schema import LOG_BLOCKS

TRIES: Final = 64  # names; of 5 servers with 3 copies and one server down 4 in 10 do, of 100 servers nearly all
DOUBT_S: Final = 10.0  # by then the servers have told each other who is down, and refuse at once
KEPT: Final = 8  # failed extents that are remembered
QUORUM: Final = "quorum"
ALL: Final = "all"


def unfit(replicas: Iterable[Replica], doubted: set[str], home: str) -> int:
    """How many replicas that count are down or doubted. `home`: only those of that data centre count."""
    return sum(not one.up or one.name in doubted for one in replicas if not home or one.dc == home)


def level_of(asked: str, bad: int, blind: bool) -> str:
    """The level of an extent, `bad` of whose replicas are unfit. `blind`: a block failed lately at a place that the
    store tells nothing about."""
    return QUORUM if asked == ALL and (bad or blind) else asked


async def replicas_of(place: LogPlace, extent: str) -> tuple[Replica, ...]:
    """Where an extent lies, and who of them is up; empty where there are no replicas, or it is not known."""
    return await place.store.replicas(LOG_BLOCKS, partition_of(place, extent))


async def shown(place: LogPlace, extent: str) -> tuple[str, ...]:
    """The same for people: addresses, and who is down."""
    return tuple(one.name if one.up else f"{one.name} (down)" for one in await replicas_of(place, extent))


def doubt(place: LogPlace, extent: Extent) -> None:
    """A block of it failed."""
    if extent.level == ALL:
        place.failed[extent.name] = place.clock.elapsed_s()
        while len(place.failed) > KEPT:
            del place.failed[next(iter(place.failed))]


async def placed(place: LogPlace, wanted: Extent) -> Extent:
    """The extent under a name, and at a level, that suits what is up now."""
    found, passed = await _best(place, wanted)
    if passed:
        place.guards["name passed over: a replica is down"] += passed
    if found.level != place.options.level:
        place.guards["opened at a quorum: not all replicas are up"] += 1
    return found


async def _best(place: LogPlace, wanted: Extent) -> tuple[Extent, int]:
    """And how many names were passed over."""
    asked = place.options.level
    doubted, blind = await _doubts(place)
    home = "" if asked == ALL else place.home
    best, least = wanted, 1 << 30
    passed = 0
    for salt in _salts(place):
        tried = msgspec.structs.replace(wanted, name=names.salted(wanted.name, salt))
        bad = unfit(await replicas_of(place, tried.name), doubted, home)
        if bad < least:
            best, least = tried, bad
        if not bad:
            break
        passed += 1
    return msgspec.structs.replace(best, level=level_of(asked, least, blind)), passed


def _salts(place: LogPlace) -> Sequence[int]:
    first = place.random.randrange(names.SALTS)
    return [(first + step) % names.SALTS for step in range(TRIES)]


async def _doubts(place: LogPlace) -> tuple[set[str], bool]:
    """Replicas one of which failed, nobody knows which; and whether one did of which nothing is known at all."""
    since_s = place.clock.elapsed_s() - DOUBT_S
    for name in [name for name, at_s in place.failed.items() if at_s < since_s]:
        del place.failed[name]
    doubted: set[str] = set()
    blind = False
    for name in list(place.failed):
        found = await replicas_of(place, name)
        blind = blind or not found
        if all(one.up for one in found):
            doubted |= {one.name for one in found}
    if doubted:
        place.guards["replicas doubted: a block failed though all seemed up"] += 1
    return doubted, blind


async def should_move(place: LogPlace, extent: Extent) -> bool:
    """Would a new extent be at the level that the queue asks for, unlike this one?"""
    asked = place.options.level
    return extent.level != asked and (await _best(place, extent))[0].level == asked
