"""A timed queue as a table: what is scheduled or waiting in it, by shard and time part.

    shards ──▶ what each one's holder has finished (its records) ──▶ parts ──▶ rows that are not finished

Below where a shard was read to, what its records call open is there still; above, all is, unless it was cancelled or
moved. A message that was put too late has a second copy further on: the first stands for both while it is ahead of the
reading, and the copy after. It is no snapshot: a task sees each part as it is when it comes by.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final, cast
from uuid import UUID

import msgspec
from pyspark.sql.datasource import DataSourceReader, InputPartition

from capellini.pipeline.source.asking import Asked
from capellini.pipeline.source.columns import chosen
from capellini.pipeline.source.reach import Reach, Record, Rows, queue_path
from capellini.pipeline.source.tasks import Made, batches_of, planned
from capellini.queues.timed.keeper import SCOPE, item_of, place_of
from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.records import Known, read_known
from capellini.queues.timed.rows import TimedRow, list_parts, order_key, row_in
from capellini.store.interface import Key, Slice
from capellini.store.schema import ASSIGNMENTS, TIMED_ROWS

PAGE_ROWS: Final = 500
PARTS_PER_TASK: Final = 24
ANY_EPOCH: Final = 1 << 62


class _Place(msgspec.Struct, frozen=True):
    """As much of a queue's place as reading its records needs."""

    store: Rows
    name: str
    generation: int

    @property
    def partition(self) -> Key:
        return (self.name, self.generation)


def _place(reach: Reach, record: Record) -> TimedPlace:
    return cast(TimedPlace, _Place(reach.rows, record.name, record.generation))


class Parts(InputPartition):
    def __init__(self, record: Record, shard: int, parts: tuple[str, ...]) -> None:
        super().__init__(None)
        self.record, self.shard, self.parts = record, shard, parts


async def tasks(reach: Reach, record: Record) -> list[Parts]:
    place = _place(reach, record)
    found: list[Parts] = []
    for shard in sorted({*range(int(getattr(record.options, "shards", 1))), *await _worked(reach, record)}):
        parts = await list_parts(place, shard)
        found += [
            Parts(record, shard, tuple(parts[at : at + PARTS_PER_TASK])) for at in range(0, len(parts), PARTS_PER_TASK)
        ]
    return found


async def _worked(reach: Reach, record: Record) -> list[int]:
    """Shards that somebody works or is to work: of a queue that has fewer now, more than its options say."""
    if reach.node:
        said = await reach.asked(queue_path(record.name, "/shards"))
        return [int(view["shard"]) for view in said["shards"]]
    first = item_of((record.name, record.generation), 0).removesuffix("0")
    found: list[int] = []
    start = first
    while True:
        bounds = Slice(ASSIGNMENTS, (SCOPE,), start=(start,), end=(f"{first}:",), columns=("epoch",))  # : is behind 9
        page = await reach.rows.read(bounds)
        found += [place_of(str(row.key[0]))[1] for row in page.rows]
        if not page.more:
            return found
        start = str(page.rows[-1].key[0]) + "\0"


class TimedReader(DataSourceReader):
    def __init__(self, asked: Asked, record: Record) -> None:
        self._asked, self._record = asked, record
        self._columns = chosen("timed", asked.columns)

    def partitions(self) -> list[InputPartition]:
        return list(asyncio.run(planned(self._asked, lambda reach: tasks(reach, self._record))))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, Parts):
            yield from batches_of(self._asked, "timed", self._columns, lambda reach: _messages(reach, partition))


async def _messages(reach: Reach, task: Parts) -> AsyncGenerator[list[Made]]:
    record = task.record
    known, _ = await read_known(_place(reach, record), task.shard, ANY_EPOCH)
    shown: set[tuple[UUID, int]] = set()
    for part in task.parts:
        partition: Key = (record.name, record.generation, part, task.shard)
        after: Key | None = None
        while True:
            page = await reach.rows.read(Slice(TIMED_ROWS, partition, after=after, limit=PAGE_ROWS))
            rows = [row for row in map(row_in, page.rows) if row is not None and unfinished(row, known)]
            yield [_made(record, row, known) for row in rows if row.name not in shown]
            shown.update(row.name for row in rows)
            if not page.more:
                break
            after = page.rows[-1].key


def unfinished(row: TimedRow, known: Known) -> bool:
    """Is it to be delivered still, by this row?"""
    read = order_key(known.read)
    if order_key(row.position) <= read:
        return row.position in known.open
    if row.cancelled or row.moved_to is not None or row.position in known.done or row.name in known.recent:
        return False
    copy = row.id != row.position and row.moved_from is None
    return not (copy and order_key(row.id) > read)


def _made(record: Record, row: TimedRow, known: Known) -> Made:
    return {
        "queue": record.name,
        "generation": record.generation,
        "id": row.id.hex,
        "due_at": row.due_ms,
        "put_at": row.put_ms,
        "body": row.entry.body,
        "attributes": row.entry.attributes,
        "deliveries": row.deliveries + known.counts.get(row.name, 0),
    }
