"""A work queue as a table: what is unfinished in it, bucket by bucket. Dead letters are a work queue, too.

    pointers, monoton ──▶ the buckets that are not gone ──▶ tasks of some buckets ──▶ blocks and states

It is no snapshot: a task sees each bucket as it is when it comes by. A message that is taken and acked meanwhile is
shown or not; one that nobody touches is shown once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from capellini.pipeline.source.asking import Asked
from capellini.pipeline.source.columns import chosen
from capellini.pipeline.source.reach import Reach, Record
from capellini.pipeline.source.tasks import Made, batches_of, planned
from capellini.queues.work import pointers, runs
from capellini.queues.work.block import Block
from capellini.queues.work.offering import block_in
from capellini.store.interface import Key, Slice
from capellini.store.schema import BUCKETS, MONOTON, POINTERS

PAGE_ROWS: Final = 64  # blocks
ENDED: Final = (runs.FINISHED, runs.VOID)
STATES: Final = {**runs.NAMES, runs.FRESH: "ready", runs.PINNED: "ready"}


class Buckets(InputPartition):
    def __init__(self, record: Record, buckets: tuple[int, ...]) -> None:
        super().__init__(None)
        self.record, self.buckets = record, buckets


async def unfinished(reach: Reach, record: Record) -> list[int]:
    """The buckets that are not gone, in order."""
    partition: Key = (record.name, record.generation)
    listed = (await reach.rows.read(Slice(POINTERS, partition, limit=1))).rows
    data = listed[0].values.get("record") if listed else None
    found = pointers.decode(data if isinstance(data, bytes) else None)
    given = (await reach.rows.read(Slice(MONOTON, partition, limit=1))).rows
    next_id = given[0].values.get("next") if given else 0
    assert isinstance(next_id, int)
    last = (next_id - 1) // record.options.bucket_size
    gone = {bucket for bucket, entry in found.listed.items() if entry.kind == pointers.DROPPED}
    fresh = [bucket for bucket in range(found.reader, last + 1) if bucket not in gone]
    return sorted({*(bucket for bucket in found.listed if bucket not in gone), *fresh})


class WorkReader(DataSourceReader):
    def __init__(self, asked: Asked, record: Record) -> None:
        self._asked, self._record = asked, record
        self._columns = chosen("work", asked.columns)

    def partitions(self) -> list[InputPartition]:
        buckets = asyncio.run(planned(self._asked, lambda reach: unfinished(reach, self._record)))
        each = max(1, self._asked.task_rows // self._record.options.bucket_size)
        return [Buckets(self._record, tuple(buckets[at : at + each])) for at in range(0, len(buckets), each)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, Buckets):
            yield from batches_of(self._asked, "work", self._columns, lambda reach: _messages(reach, partition))


async def _messages(reach: Reach, task: Buckets) -> AsyncGenerator[list[Made]]:
    record, size = task.record, task.record.options.bucket_size
    for bucket in task.buckets:
        partition: Key = (record.name, record.generation, bucket)
        after: Key | None = None
        while True:
            page = await reach.rows.read(Slice(BUCKETS, partition, after=after, limit=PAGE_ROWS))
            state = page.static.get("state")
            known = runs.decode(state) if isinstance(state, bytes) else ()
            for row in page.rows:
                yield list(_of_block(record, block_in(row), known, bucket * size))
            if not page.more:
                break
            after = page.rows[-1].key


def _of_block(record: Record, block: Block, known: runs.Runs, base: int) -> Iterator[Made]:
    entries = block.read()
    for piece in runs.pieces(known, block.first - base, block.end - base):
        if piece.kind in ENDED:
            continue
        for slot in range(piece.start, piece.end):
            entry = entries[slot + base - block.first]
            visible_ms = piece.at_ms or block.put_at_ms + entry.delay_ms
            yield {
                "queue": record.name,
                "generation": record.generation,
                "id": str(base + slot),
                "put_at": block.put_at_ms,
                "body": entry.body,
                "attributes": entry.attributes,
                "state": STATES[piece.kind],
                "deliveries": piece.version,
                "visible_at": visible_ms,
                "origin": entry.origin,
            }
