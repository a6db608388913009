"""Which state each counter has: fixed at its first use by compare-and-set, then remembered.

counter_names  (shelf) ▸ name    kind, token        shelves by hash, so that first uses of many counters meet less

Statistics of queues are known by how their names begin, and need no row: a new queue costs no compare-and-set here.
Many first uses in one call share compare-and-sets, some hundred names of a shelf in each, all shelves side by side.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from capellini.counters.states.queue import QueueTotals
from capellini.model.clock import Chance, Clock
from capellini.model.counters import QUEUES, Named, check_name
from capellini.model.errors import CapelliniError, Conflict, Invalid, Unavailable, Unknown
from capellini.store.interface import ABSENT, Cas, Change, Level, Outcome, Slice, Store, settle
from capellini.store.schema import COUNTER_NAMES

SHELVES: Final = 8
TOKEN_BITS: Final = 64
MOST_KNOWN: Final = 200_000  # names remembered, some 30 MB: there may be a counter for each user there ever was
FIXED_AT_ONCE: Final = 100  # in one compare-and-set

V = TypeVar("V")


def shelf_of(name: str) -> int:
    return zlib.crc32(name.encode()) % SHELVES


def of_queue(name: str) -> bool:
    """Is it the name of a queue's statistics?"""
    return name.startswith(QUEUES)


def keep(kept: dict[str, V], name: str, value: V) -> None:
    """The oldest goes for it: it is asked for again when it is needed."""
    if name not in kept and len(kept) >= MOST_KNOWN:
        del kept[next(iter(kept))]
    kept[name] = value


class Names:
    def __init__(self, store: Store, clock: Clock, random: Chance) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self.known: dict[str, str] = {}

    async def fix(self, name: str, kind: str) -> None:
        """From now on this counter has this state. Raises Conflict when it has another one."""
        if of_queue(name):
            if kind != QueueTotals.kind:
                raise Invalid(f"{name} takes no updates: names that begin with {QUEUES} are those of statistics")
            return
        known = self.known.get(name)
        if known is None:
            known = (await self._fixed(shelf_of(name), {check_name(name): kind}))[name]
        if known != kind:
            raise Conflict(f"counter {name} is a {known}, and takes no updates of a {kind}")

    async def fix_new(self, wanted: Mapping[str, str]) -> dict[str, CapelliniError]:
        """Those not known here, kind by name: what kept them from being fixed. Whether a kind is the wanted one, `fix`
        says."""
        shelves: defaultdict[int, list[str]] = defaultdict(list)
        for name in wanted:
            if name not in self.known and not of_queue(name):
                shelves[shelf_of(name)].append(name)
        failed: dict[str, CapelliniError] = {}

        async def fix_shelf(shelf: int, names: Sequence[str]) -> None:
            for at in range(0, len(names), FIXED_AT_ONCE):
                some = {name: wanted[name] for name in names[at : at + FIXED_AT_ONCE]}
                try:
                    await self._fixed(shelf, some)
                except CapelliniError as error:  # a store that is away is not asked for each hundred anew
                    failed.update(dict.fromkeys(names[at:], error))
                    return

        await asyncio.gather(*(fix_shelf(shelf, names) for shelf, names in shelves.items()))
        return failed

    async def _fixed(self, shelf: int, wanted: Mapping[str, str]) -> dict[str, str]:
        """What they are now. Those that are there already are left out of the next attempt: it is all or none."""
        found: dict[str, str] = {}
        while missing := [name for name in wanted if name not in found]:
            token = f"{self._random.getrandbits(TOKEN_BITS):016x}"
            changes = tuple(Change((name,), ABSENT, {"kind": wanted[name], "token": token}) for name in missing)
            outcome = await self._settled(Cas(COUNTER_NAMES, (shelf,), changes), token)
            there = {name: str(outcome.rows[(name,)]["kind"]) for name in missing if (name,) in outcome.rows}
            if not outcome.applied and not there:
                raise Unavailable("the store refused names of counters, and did not say why: updates do not count")
            for name, kind in there.items() if not outcome.applied else [(name, wanted[name]) for name in missing]:
                found[name] = sys.intern(kind)
                keep(self.known, name, found[name])
        return found

    async def _settled(self, cas: Cas, token: str) -> Outcome:
        def mine(outcome: Outcome) -> bool:
            return any(row.get("token") == token for row in outcome.rows.values())

        try:
            return await settle(self._store, cas, mine, self._clock.sleep)
        except Unknown as error:  # the names may be fixed, which does no harm; the updates were not even made
            says = f"the state of a counter could not be fixed, and its updates do not count: {error.says}"
            raise Unavailable(says) from error

    async def kind_of(self, name: str) -> str | None:
        """None: there is no such counter."""
        if of_queue(name):
            return QueueTotals.kind
        known = self.known.get(name)
        if known is None:
            slice = Slice(COUNTER_NAMES, (shelf_of(check_name(name)),), start=(name,), limit=1, level=Level.SERIAL)
            for row in (await self._store.read(slice)).rows:
                if row.key == (name,):
                    known = sys.intern(str(row.values["kind"]))
                    keep(self.known, name, known)
        return known

    async def listed(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[Named]:
        """By name."""
        shelves = [await self._shelf(shelf, prefix, after, limit) for shelf in range(SHELVES)]
        return list(heapq.merge(*shelves, key=lambda one: one.name))[:limit]

    async def _shelf(self, shelf: int, prefix: str, after: str, limit: int) -> list[Named]:
        start = max(prefix, after)
        found: list[Named] = []
        slice = Slice(COUNTER_NAMES, (shelf,), start=(start,) if start else None, limit=limit + 1)
        for row in (await self._store.read(slice)).rows:
            name = str(row.key[0])
            if not name.startswith(prefix):
                break
            if name > after or not after:
                found.append(Named(name, str(row.values["kind"])))
        return found
