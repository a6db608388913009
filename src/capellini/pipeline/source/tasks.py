"""What readers of single rows share: planning through one connection, and rows made into batches.

Where messages are stored one by one (work and timed queues, counters) a task makes an object of each; log queues do
without (log_reading.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa

from capellini.pipeline.source.asking import Asked
from capellini.pipeline.source.columns import arrow_schema
from capellini.pipeline.source.reach import HOMES, Reach, reached
from capellini.pipeline.source.ways import way_to
from capellini.pipeline.source.worker import settle

T = TypeVar("T")
Made = dict[str, Any]  # a row: times are milliseconds since 1970
BATCH_ROWS: Final = 10_000


async def planned(asked: Asked, plan: Callable[[Reach], Awaitable[T]]) -> T:
    async with reached(asked.at, asked.reads_per_s, look=HOMES) as reach:
        return await plan(reach)


def batches_of(
    asked: Asked, kind: str, columns: Sequence[str], read: Callable[[Reach], AsyncGenerator[list[Made]]]
) -> Iterator[pa.RecordBatch]:
    """What `read` brings, in batches of about BATCH_ROWS."""
    settle()
    schema = arrow_schema(kind, columns)
    with way_to(asked.at, asked.reads_per_s) as way:
        rows: list[Made] = []
        parts = read(way.reach)
        try:
            while (part := way.begin(_next(parts)).result()) is not None:
                rows += part
                if len(rows) >= BATCH_ROWS:
                    yield batch(rows, schema)
                    rows = []
            if rows:
                yield batch(rows, schema)
        finally:
            way.begin(parts.aclose()).result()


async def _next(parts: AsyncIterator[list[Made]]) -> list[Made] | None:
    return await anext(parts, None)


def batch(rows: Sequence[Made], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_column(rows, field) for field in schema], schema=schema)


def _column(rows: Sequence[Made], field: pa.Field) -> pa.Array:
    values = [row[field.name] for row in rows]
    if pa.types.is_timestamp(field.type):
        return pa.array([None if each is None else each * 1000 for each in values], pa.int64()).view(field.type)
    if pa.types.is_map(field.type):
        return pa.array([list(each.items()) if each else None for each in values], field.type)
    return pa.array(values, field.type)
