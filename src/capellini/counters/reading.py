"""Reading a counter: its tally and all shards that the tally has not, merged.

    one slice, in order:   shard, shard, shard, ... , tally
                           └── those that expire before the tally's `through` are in it already: left out

Why nothing is missed or counted twice, though collectors run meanwhile and pages are no snapshot. A collector clears
shards only after a tally that has them was confirmed at a quorum. The tally is the last row, so it is read after every
shard. A shard that was cleared before its page was read is therefore in the tally that is read; one that was not yet
cleared but is in that tally is left out by `through`. So the tally may change between pages, and there is no need to
begin again. (Reading the tally first, and again at the end, and starting over when it changed, is the other way: two
reads more, and under steady collecting it may never end.)

Slices start at the highest `through` this process has seen: below lies nothing that counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from capellini.counters.shards import TALLY_AT, Shard, Tally, merge_shard, shard_of, tally_of, tally_state
from capellini.counters.states.interface import State
from capellini.store.interface import Key, Level, Row, Slice, Store
from capellini.store.schema import COUNTERS

SLICE_ROWS: Final = 20_000  # in one read; more shards than any counter should have


class Seen(msgspec.Struct, frozen=True):
    tally: Tally
    shards: list[Shard]  # not in the tally
    ignored: int = 0  # in the tally, and still there


# ---- decisions


def counted(tally: Tally, rows: Iterable[Shard]) -> Seen:
    """What counts: each mutator's shard once, and none that the tally has."""
    shards: dict[tuple[int, str], Shard] = {}
    ignored = 0
    for shard in rows:
        if shard.expires_us < tally.through_us:
            ignored += 1
        else:
            shards[shard.expires_us, shard.mutator] = shard
    return Seen(tally, list(shards.values()), ignored)


def merged(seen: Seen, state: type[State], name: str) -> State:
    """Raises DamagedShard, naming it."""
    total = tally_state(seen.tally, state, name)
    for shard in seen.shards:
        merge_shard(total, shard, state, name)
    return total


def expired(seen: Seen, cutoff_us: int) -> int:
    return sum(shard.expires_us < cutoff_us for shard in seen.shards)


# ---- the shell


async def look(store: Store, name: str, from_us: int = 0) -> Seen:
    """One slice, unless there are more shards than it takes. Raises DamagedShard for a tally that cannot be read."""
    rows: list[Row] = []
    after: Key | None = None
    while True:
        start = (from_us,) if after is None and from_us else None
        page = await store.read(Slice(COUNTERS, (name,), start=start, after=after, limit=SLICE_ROWS))
        rows += page.rows
        if not page.more:
            break
        after = page.rows[-1].key
    tally = rows.pop() if rows and rows[-1].key[0] == TALLY_AT else None
    return counted(tally_of(tally, name), map(shard_of, rows))


async def read_tally(store: Store, name: str, level: Level) -> Tally:
    page = await store.read(Slice(COUNTERS, (name,), start=(TALLY_AT,), limit=1, level=level))
    return tally_of(page.rows[0] if page.rows else None, name)
