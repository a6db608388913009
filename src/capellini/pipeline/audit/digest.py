"""The first look at the journal: one pass over all rows, from which little is left.

    rows ──▶ chunks of CHUNK_ROWS ──▶ RUNS     joined runs of ids, by queue, generation and block     (runs.py)
                                  └──▶ NUMBERS runs of event numbers, by node and incarnation

What an incarnation did not tell is then a hole between its runs of numbers: a window of time in which something may
have happened that nobody knows (`windows_of`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capellini.pipeline.audit.runs import COLUMN, OTHER, Runs, joined, split
from capellini.pipeline.audit.verdict import Window
from capellini.queues.events import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHUNK_ROWS: Final = 1_000_000  # the more, the more neighbours meet; some 100 MB
RUNS, NUMBERS = 0, 1
READS: Final = ("node", "incarnation", "number", "at", "kind", "queue", "generation", "first", "count", "version")
DIGEST: Final = (
    "stream int, a string, b string, block bigint, kind int, version int, first bigint, count bigint, "
    "from_s double, to_s double, closed boolean, `rows` bigint"
)
_SCHEMA: Final = pa.schema(
    [("stream", pa.int32()), ("a", pa.string()), ("b", pa.string()), ("block", pa.int64()), ("kind", pa.int32()),
     ("version", pa.int32()), ("first", pa.int64()), ("count", pa.int64()), ("from_s", pa.float64()),
     ("to_s", pa.float64()), ("closed", pa.bool_()), ("rows", pa.int64())]
)  # fmt: skip
WINDOWS: Final = "node string, incarnation string, first bigint, count bigint, after_s double, before_s double"


def digest_of(rows: DataFrame) -> DataFrame:
    """Rows whose numbers are not above 0 were told before (days.py): their numbers count no more."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        held: list[Any] = []
        for batch in batches:
            held.append(batch)
            if sum(each.num_rows for each in held) >= CHUNK_ROWS:
                yield from _digested(pa.Table.from_batches(held))
                held = []
        if held:
            yield from _digested(pa.Table.from_batches(held))

    return rows.select(*READS).mapInArrow(run, DIGEST)


def _digested(chunk: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from _runs(chunk)
    fresh = chunk.filter(pc.greater(chunk["number"], 0))
    if fresh.num_rows:
        yield from _numbers(fresh)


def _runs(chunk: pa.Table) -> Iterator[pa.RecordBatch]:
    named = chunk.filter(pc.is_valid(chunk["first"]))
    if not named.num_rows:
        return
    group, queues, generations = _grouped(named["queue"], named["generation"])
    codes, kinds = _coded(named["kind"])
    column = np.array([COLUMN.get(each, OTHER) for each in kinds], dtype=np.int32)[codes]
    block, runs = split(
        joined(Runs(group, column, _numpy(named["version"]), _numpy(named["first"]), _numpy(named["count"])))
    )
    size = len(block)
    yield from _table(
        {
            "stream": np.full(size, RUNS, dtype=np.int32),
            "a": pa.array(queues).take(pa.array(runs.group)),
            "b": pa.array([str(each) for each in generations]).take(pa.array(runs.group)),
            "block": block,
            "kind": runs.column,
            "version": runs.version,
            "first": runs.first,
            "count": runs.count,
        },
        size,
    )


def _numbers(chunk: pa.Table) -> Iterator[pa.RecordBatch]:
    group, nodes, incarnations = _grouped(chunk["node"], chunk["incarnation"])
    number, at = _numpy(chunk["number"]), _numpy(chunk["at"])
    closing = _numpy(pc.equal(chunk["kind"], Kind.CLOSED.value))
    order = np.lexsort((number, group))
    group, number, at, closing = group[order], number[order], at[order], closing[order]
    begins = np.ones(len(number), dtype=bool)
    begins[1:] = (group[1:] != group[:-1]) | (number[1:] > number[:-1] + 1)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(number)) - 1
    size = len(first)
    yield from _table(
        {
            "stream": np.full(size, NUMBERS, dtype=np.int32),
            "a": pa.array(nodes).take(pa.array(group[first])),
            "b": pa.array(incarnations).take(pa.array(group[first])),
            "block": np.zeros(size, dtype=np.int64),
            "first": number[first],
            "count": number[last] - number[first] + 1,
            "from_s": at[first],
            "to_s": np.maximum.reduceat(at, first),
            "closed": np.logical_or.reduceat(closing, first),
            "rows": last - first + 1,
        },
        size,
    )


def _table(columns: dict[str, Any], size: int) -> Iterator[pa.RecordBatch]:
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(size, field.type)
        for field in _SCHEMA
    ]
    yield from pa.Table.from_arrays(arrays, schema=_SCHEMA).to_batches()


def _numpy(column: pa.ChunkedArray) -> Any:
    return column.combine_chunks().to_numpy(zero_copy_only=False)


def _coded(column: pa.ChunkedArray) -> tuple[Any, list[Any]]:
    coded = column.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    return coded.indices.to_numpy(zero_copy_only=False), coded.dictionary.to_pylist()


def _grouped(one: pa.ChunkedArray, other: pa.ChunkedArray) -> tuple[Any, list[Any], list[Any]]:
    """A number for each pair there is, and the pairs by number."""
    codes, ones = _coded(one)
    more, others = _coded(other)
    pairs, group = np.unique(codes.astype(np.int64) * len(others) + more, return_inverse=True)
    return group, [ones[at // len(others)] for at in pairs], [others[at % len(others)] for at in pairs]


def numbers_of(digest: DataFrame) -> DataFrame:
    """The runs of numbers that were heard, neighbours joined: what the audit of a later day needs of this one."""

    def merged(table: pa.Table) -> pa.Table:
        first, count, from_s, to_s = (_numpy(table[name]) for name in ("first", "count", "from_s", "to_s"))
        order = np.argsort(first)
        first, count, from_s, to_s = first[order], count[order], from_s[order], to_s[order]
        reached = np.maximum.accumulate(first + count)
        begins = np.flatnonzero(np.concatenate(([True], first[1:] > reached[:-1])))
        last = np.append(begins[1:], len(first)) - 1
        size, closed = len(begins), bool(pc.any(table["closed"]).as_py())
        columns = {
            "stream": np.full(size, NUMBERS, dtype=np.int32),
            "a": [table["a"][0].as_py()] * size,
            "b": [table["b"][0].as_py()] * size,
            "block": np.zeros(size, dtype=np.int64),
            "first": first[begins],
            "count": reached[last] - first[begins],
            "from_s": from_s[begins],
            "to_s": np.maximum.reduceat(to_s, begins),
            "closed": [closed] * size,
            "rows": np.zeros(size, dtype=np.int64),
        }
        return pa.Table.from_batches(_table(columns, size), _SCHEMA)

    return digest.where(f"stream = {NUMBERS}").groupBy("a", "b").applyInArrow(merged, DIGEST)


def windows_of(digest: DataFrame) -> DataFrame:
    """What incarnations did not tell."""

    def merged(table: pa.Table) -> pa.Table:
        node, incarnation = table["a"][0].as_py(), table["b"][0].as_py()
        first, count, from_s, to_s = (_numpy(table[name]) for name in ("first", "count", "from_s", "to_s"))
        found = holes(node, incarnation, first, count, from_s, to_s, bool(pc.any(table["closed"]).as_py()))
        return pa.table(
            {
                "node": pa.array([node] * len(found), pa.string()),
                "incarnation": pa.array([incarnation] * len(found), pa.string()),
                "first": pa.array([each.first for each in found], pa.int64()),
                "count": pa.array([each.count for each in found], pa.int64()),
                "after_s": pa.array([each.after_s for each in found], pa.float64()),
                "before_s": pa.array([each.before_s for each in found], pa.float64()),
            }
        )

    return digest.where(f"stream = {NUMBERS}").groupBy("a", "b").applyInArrow(merged, WINDOWS)


def holes(node: str, incarnation: str, first: Any, count: Any, from_s: Any, to_s: Any, closed: bool) -> list[Window]:
    """Between the runs of numbers of one incarnation, and behind the last if it was not closed."""
    order = np.argsort(first)
    first, from_s, to_s = first[order], from_s[order], to_s[order]
    reached = np.maximum.accumulate(first + count[order])  # the next number that would be expected
    heard_s = np.maximum.accumulate(to_s)
    windows = []
    if first[0] > 1:
        windows.append(Window(node, incarnation, 1, int(first[0]) - 1, float("-inf"), float(from_s[0])))
    for at in np.flatnonzero(first[1:] > reached[:-1]).tolist():
        missing = int(first[at + 1] - reached[at])
        windows.append(Window(node, incarnation, int(reached[at]), missing, float(heard_s[at]), float(from_s[at + 1])))
    if not closed:
        windows.append(Window(node, incarnation, int(reached[-1]), 0, float(heard_s[-1]), float("inf")))
    return windows
