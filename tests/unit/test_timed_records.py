"""What a holder's records take, while acks come in any order."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from capellini.queues.timed.committing import Committing
from capellini.queues.timed.place import SNAPSHOT_BYTES
from capellini.queues.timed.positions import UNIX_TICKS, before, position_of
from capellini.queues.timed.records import Snapshot, packed
from capellini.store.interface import Batch, Key, Table

ACKS = 100_000
AT_ONCE = 100
UNFINISHED = 10_000
TICKS_BETWEEN = 100_000  # a hundred messages due in a second


class CountedStore:
    """Only what is stored of records is kept: how many bytes, by run."""

    alone = True

    def __init__(self) -> None:
        self.runs: dict[Key, int] = {}
        self.most = self.written = 0

    async def write(self, batch: Batch) -> None:
        size = sum(len(value) for _, values in batch.rows for value in values.values() if isinstance(value, bytes))
        self.runs[batch.partition] = self.runs.get(batch.partition, 0) + size
        self.most = max(self.most, sum(self.runs.values()))
        self.written += size

    async def drop(self, table: Table, partition: Key) -> None:
        del self.runs[partition]


async def _acked(store: CountedStore, chance: random.Random) -> None:
    positions = [position_of(UNIX_TICKS + at * TICKS_BETWEEN, 0, chance) for at in range(ACKS + UNFINISHED)]
    open_now, coming = positions[:UNFINISHED], iter(positions[UNFINISHED:])
    recent: deque[UUID] = deque(maxlen=3_000)  # of the last 30 s
    clock = SimpleNamespace(elapsed_s=time.monotonic, sleep=asyncio.sleep)
    place = SimpleNamespace(
        store=store, clock=clock, guards=Counter(), snapshot_bytes=SNAPSHOT_BYTES, partition=("q", 1)
    )

    def snapshot() -> Snapshot:
        return Snapshot(before(0), "", packed(open_now), [], [], [], packed(recent), [], 0)

    lease: Any = SimpleNamespace(valid=lambda: True)
    committing = Committing(cast(Any, place), 0, 1, lease, snapshot, lambda lately: False)
    await committing.begin()
    work = asyncio.ensure_future(committing.work())
    for _ in range(ACKS // AT_ONCE):
        part = committing.part()
        for _ in range(AT_ONCE):
            at = chance.randrange(len(open_now))
            position, open_now[at] = open_now[at], next(coming)
            part.finish(position, (position, 0))
            recent.append(position)
        await committing.commit(part)
    work.cancel()


def test_acks_in_any_order_take_little_room_and_are_written_once_or_twice() -> None:
    store = CountedStore()
    asyncio.run(_acked(store, random.Random(1)))
    assert store.most < 500_000
    assert store.written < ACKS * 9 * 2.5  # a position takes nine bytes
