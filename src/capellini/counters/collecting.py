"""Garbage collection: expired shards become part of the tally.

    1. read the tally                                      all reads at level all
    2. read the shards from its `through` up to now − grace, page by page, merging each and forgetting it
    3. read the tally again: changed? start over
    4. write the new tally                                 timestamp and `through`: just above the highest expiry seen
    5. one batch, same timestamp: the same tally, and everything before `through` is cleared

Why this is safe while any number of others do the same, crash, or repeat batches years later. What is collected is
final (docs/counters.md has the argument), so whoever collects up to a given expiry gets the same tally. A tally that
has more has a higher timestamp: a late or repeated batch of an older one changes nothing, and clears nothing that is
not in every later tally. Step 3: pages are no snapshot; if another collector clears while we read, pages miss what it
took, and then its tally is there. Step 4 before step 5: readers see no shard vanish before a quorum has the tally that
holds it. If we stop between 4 and 5, shards lie about that count nowhere, and the next batch clears them.

A shard that cannot be read stops collecting in front of it; what is behind it waits, and reads name it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from capellini.counters.reading import read_tally
from capellini.counters.shards import (
    STATE,
    TALLY_AT,
    TALLY_KEY,
    DamagedShard,
    Tally,
    failing,
    merge_shard,
    pack,
    shard_of,
    tally_state,
)
from capellini.counters.states.interface import State
from capellini.counters.times import Times
from capellini.model.clock import Clock
from capellini.model.counters import Collected
from capellini.model.errors import StoreError, Unknown
from capellini.store.interface import MAX_VALUE_BYTES, Batch, Key, Level, Slice, Store
from capellini.store.schema import COUNTERS

PAGE_ROWS: Final = 500  # shards in memory at a time
MOST_STARTS: Final = 5  # then others are collecting it: good enough
MOST_TALLY_BYTES: Final = MAX_VALUE_BYTES // 2  # a larger one is not made: its shards stay


class Gathered(msgspec.Struct):
    state: State
    highest_us: int = 0
    shards: int = 0


# ---- decisions


def cutoff_us(now_us: int, times: Times) -> int:
    """Shards that expired before this are final."""
    return now_us - times.grace_us


def through_of(highest_us: int) -> int:
    """Just above the highest expiry seen: what the new tally covers, and the timestamp of all that says so."""
    return highest_us + 1


def batch_of(name: str, cell: bytes, through_us: int) -> Batch:
    """Repeating it, now or in years, is harmless."""
    return Batch(COUNTERS, (name,), ((TALLY_KEY, {STATE: cell}),), clear_before=(through_us,), timestamp_us=through_us)


def announcement_of(batch: Batch) -> Batch:
    """The tally alone."""
    return msgspec.structs.replace(batch, clear_before=None)


def unchanged(before: Tally, after: Tally) -> bool:
    return before == after


# ---- the shell


async def due(store: Store, name: str, from_us: int, times: Times, now_us: int) -> bool:
    """Whether there is anything to collect: a cheap look."""
    end_us = cutoff_us(now_us, times)
    if from_us >= end_us:
        return False
    page = await store.read(Slice(COUNTERS, (name,), start=(from_us,), end=(end_us,), limit=1, level=Level.ONE))
    return bool(page.rows)


async def collect(
    store: Store, clock: Clock, name: str, state: type[State], times: Times, guards: Counter[str]
) -> Collected:
    """Raises nothing that the store says: a collection that cannot be had now is deferred, and says why."""
    tally, starts = Tally(), 0
    try:
        skew_s = await store.skew_s()
        if abs(skew_s) > times.max_skew_s:
            guards["collection_deferred_clock"] += 1
            return Collected(name, 0, 0.0, 0, f"the store's clock is {skew_s:+.0f} s off: set the clocks right")
        end_us = cutoff_us(int(clock.now_s() * 1e6), times)
        while starts < MOST_STARTS:
            starts += 1
            tally = await read_tally(store, name, Level.ALL)
            gathered, damaged = await _gather_readable(store, name, state, tally, end_us)
            again = await read_tally(store, name, Level.ALL)
            if not unchanged(tally, again):
                guards["tally_changed"] += 1
                continue
            if not gathered.shards:
                await _clear_leftovers(store, name, tally, guards)
                return Collected(name, 0, tally.through_us / 1e6, starts, damaged)
            return await _take(store, name, gathered, starts, damaged, guards)
        return Collected(name, 0, tally.through_us / 1e6, starts, "others are collecting it")
    except StoreError as error:
        guards["collection_deferred_unknown" if isinstance(error, Unknown) else "collection_deferred"] += 1
        return Collected(name, 0, tally.through_us / 1e6, starts, error.says)


async def _gather_readable(
    store: Store, name: str, state: type[State], tally: Tally, end_us: int
) -> tuple[Gathered, str]:
    """All final shards up to the first that cannot be read; then also what is wrong with that one."""
    try:
        return await _gather(store, name, state, tally, end_us), ""
    except DamagedShard as error:
        if not error.expires_us:  # the tally itself
            raise
        return await _gather(store, name, state, tally, error.expires_us), error.says


async def _gather(store: Store, name: str, state: type[State], tally: Tally, end_us: int) -> Gathered:
    gathered = Gathered(tally_state(tally, state, name))
    after: Key | None = None
    while tally.through_us < end_us:
        start = (tally.through_us,) if after is None else None
        page = await store.read(
            Slice(COUNTERS, (name,), start=start, after=after, end=(end_us,), limit=PAGE_ROWS, level=Level.ALL)
        )
        for row in page.rows:
            shard = shard_of(row)
            merge_shard(gathered.state, shard, state, name)
            gathered.highest_us = shard.expires_us
            gathered.shards += 1
        if not page.more:
            break
        after = page.rows[-1].key
    return gathered


async def _take(
    store: Store, name: str, gathered: Gathered, starts: int, damaged: str, guards: Counter[str]
) -> Collected:
    through_us = through_of(gathered.highest_us)
    assert through_us < TALLY_AT
    with failing(type(gathered.state), name):
        cell = pack(gathered.state, through_us)
    if len(cell) > MOST_TALLY_BYTES:
        return Collected(name, 0, 0.0, starts, f"its tally would take {len(cell)} bytes")
    batch = batch_of(name, cell, through_us)
    await store.write(announcement_of(batch))
    await store.write(batch)
    guards["collected"] += 1
    return Collected(name, gathered.shards, through_us / 1e6, starts, damaged)


async def _clear_leftovers(store: Store, name: str, tally: Tally, guards: Counter[str]) -> None:
    """What a collector that stopped half-way, or a very late write, left below `through`."""
    if not tally.packed:
        return
    page = await store.read(Slice(COUNTERS, (name,), end=(tally.through_us,), limit=1))
    if page.rows:
        guards["leftovers_cleared"] += 1
        await store.write(batch_of(name, tally.packed, tally.through_us))
