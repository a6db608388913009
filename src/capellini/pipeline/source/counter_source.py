"""Counters as a table: a row for each shard, and one for the tally. Their states are bytes; sketches among them are
read by Spark's own functions.

    shelves of names ──▶ tasks of one shelf each ──▶ the shards of each counter

Whoever sums them up must leave out shards that expire before the tally's `through_us`: they are in it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from capellini.counters.names import SHELVES
from capellini.counters.shards import TALLY_AT, unpack
from capellini.pipeline.source.asking import Asked
from capellini.pipeline.source.columns import chosen
from capellini.pipeline.source.reach import Reach
from capellini.pipeline.source.tasks import Made, batches_of
from capellini.store.interface import Key, Slice
from capellini.store.schema import COUNTER_NAMES, COUNTERS

PAGE: Final = 1_000


class Shelf(InputPartition):
    def __init__(self, number: int) -> None:
        super().__init__(None)
        self.number = number


class CounterReader(DataSourceReader):
    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._columns = chosen("counters", asked.columns)

    def partitions(self) -> list[InputPartition]:
        return [Shelf(number) for number in range(SHELVES)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, Shelf):
            yield from batches_of(self._asked, "counters", self._columns, lambda reach: _shelf(reach, partition.number))


async def _shelf(reach: Reach, shelf: int) -> AsyncGenerator[list[Made]]:
    after: Key | None = None
    while True:
        page = await reach.rows.read(Slice(COUNTER_NAMES, (shelf,), after=after, limit=PAGE))
        for row in page.rows:
            async for part in _counter(reach, str(row.key[0])):
                yield part
        if not page.more:
            return
        after = page.rows[-1].key


async def _counter(reach: Reach, name: str) -> AsyncGenerator[list[Made]]:
    after: Key | None = None
    while True:
        page = await reach.rows.read(Slice(COUNTERS, (name,), after=after, limit=PAGE))
        yield [_made(name, row.key, row.values["state"]) for row in page.rows if "state" in row.values]
        if not page.more:
            return
        after = page.rows[-1].key


def _made(name: str, key: Key, cell: Any) -> Made:
    expires_us, mutator = key
    assert isinstance(expires_us, int)
    packed = unpack(cell)
    tally = expires_us == TALLY_AT
    return {
        "name": name,
        "kind": packed.kind,
        "version": packed.version,
        "expires_us": None if tally else expires_us,
        "through_us": packed.through_us if tally else None,
        "mutator": str(mutator),
        "state": packed.data,
    }
