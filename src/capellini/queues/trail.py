"""Trails: tokens that still tell whose change was applied after others have built on it.

A row's `token` names its last changes, newest first: "c3,c2,c1". A change expects the whole trail as it knows it and
puts its own new name in front. When an answer was lost, the same compare-and-set is repeated (`settle`), and a
refusal is read so:

    my name is in the trail                      an earlier attempt was applied, and others may have built on it: mine
    the trail shows what I expected, followed
    by another name                              that one took my place: no attempt of mine was or will be applied
    neither                                      too much happened since: unknown, and said to be

A single name would not do: applied, answer lost, changed again by another node, refused with a strange name: was it
mine?
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

import msgspec

from capellini.model.clock import Clock
from capellini.model.errors import Unknown
from capellini.store.interface import Cas, Key, Outcome, Store, Value, settle

TOKEN: Final = "token"
NAMES: Final = 8  # that a row remembers: so often may others change it while one lost answer is resolved
NAME_BITS: Final = 48  # a name must differ from the few others of its trail only
QUICK: Final = 5  # attempts without a pause
PAUSE_S: Final = 0.01  # before the next attempt, then doubled; all with full jitter
MOST_PAUSE_S: Final = 0.5


def new_name(random: random.Random) -> str:
    """A name for one change, unique among the changes of its row."""
    return f"{random.getrandbits(NAME_BITS):0{NAME_BITS // 4}x}"


def names_of(trail: str | None) -> list[str]:
    return trail.split(",") if trail else []


def follow(trail: str | None, name: str) -> str:
    """The trail after the change `name`."""
    if not trail:
        return name
    return f"{name},{trail}" if trail.count(",") < NAMES - 1 else f"{name},{trail.rpartition(',')[0]}"


def was_mine(before: str | None, name: str, now: str | None) -> bool | None:
    """Was the change `name` on the trail `before` applied, if a refusal shows the trail `now`? None: cannot be
    known."""
    names = names_of(now)
    if name in names:
        return True
    if not names or now == before:  # the row is gone, or another condition refused: neither proves anything
        return None
    if before is None:  # a short trail goes back to the row's first change; a full one may have lost it
        return False if len(names) < NAMES else None
    return False if names_of(before)[0] in names else None


def backoff_s(attempt: int, random: random.Random) -> float:
    """How long to wait before attempt number `attempt`, from 0. The first refusals are only news: whoever backs off
    while the others go on never gets a turn. Only a crowd that lasts is given way to."""
    if attempt <= QUICK:
        return 0.0
    return random.uniform(0, min(PAUSE_S * 2.0 ** (attempt - QUICK - 1), MOST_PAUSE_S))


def text_of(values: Mapping[str, Value], column: str) -> str | None:
    value = values.get(column)
    return value if isinstance(value, str) else None


class Settled(msgspec.Struct, frozen=True):
    lost: bool  # an answer was lost on the way: the trail decided
    applied: bool
    rows: dict[Key | None, dict[str, Value]]  # as the refusal showed them, also if an earlier attempt was applied


async def settle_named(store: Store, clock: Clock, cas: Cas, key: Key | None, before: str | None, name: str) -> Settled:
    """`settle` for a compare-and-set that expects the trail `before` on row `key` and writes `follow(before, name)`.
    Raises Unknown when it cannot be known whether it was applied, Unavailable when surely it was not."""
    refusal: Outcome | None = None  # one that came after a lost answer
    verdict: bool | None = True

    def shows(outcome: Outcome) -> bool:  # asked only after a lost answer
        nonlocal refusal, verdict
        refusal, verdict = outcome, was_mine(before, name, text_of(outcome.rows.get(key, {}), TOKEN))
        return bool(verdict)

    outcome = await settle(store, cas, shows, clock.sleep)
    if verdict is None:
        raise Unknown("an answer was lost, and too much has changed since to say whether it was done")
    return Settled(refusal is not None, outcome.applied, (refusal or outcome).rows)
