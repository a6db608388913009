"""Reading and writing a log queue from Spark, beside a bare Arrow source that makes the same rows from nothing.

    bare ─┐
    node ─┼─▶ count and sum of lengths, local[2], in turns      ratios of the medians
    folder┘
    rows made by Spark ─▶ queue                               messages per second, until the last is confirmed

Python workers and the compiler are warmed up by a first turn that does not count. `cpu_us` in the details is what all
processes together spend on a message, node and Spark included: it says more than the clock on a machine that does other
things as well.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from capellini.bench.figures import Detail, Figure, judge
from capellini.bench.peers.capellini_log import CapelliniLog
from capellini.bench.usage import cpu_s
from capellini.pipeline.session import Plan, session
from capellini.pipeline.source.data import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NODE: Final = "pipeline.source_node_vs_bare"
FOLDER: Final = "pipeline.source_folder_vs_bare"
SINK: Final = "pipeline.sink_per_s"
BODY_BYTES: Final = 64
BATCH: Final = 10_000  # rows of a batch of the bare source
PARTS: Final = 8
QUEUE: Final = "measured"


class Scale(msgspec.Struct, frozen=True):
    turns: int
    messages: int


FULL: Final = Scale(turns=5, messages=4_000_000)
QUICK: Final = Scale(turns=3, messages=1_000_000)


class Bare(DataSource):
    """Rows of a number and a body, from memory."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return "number bigint, body binary"

    def reader(self, schema: Any) -> DataSourceReader:
        return BareReader(int(self.options["rows"]), int(self.options.get("body_bytes", str(BODY_BYTES))))


class BareReader(DataSourceReader):
    def __init__(self, rows: int, body_bytes: int) -> None:
        self._rows, self._body_bytes = rows // PARTS, body_bytes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(at) for at in range(PARTS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        size = self._body_bytes
        data, ends = pa.py_buffer(b"x" * size * BATCH), np.arange(0, size * (BATCH + 1), size)
        bodies = pa.BinaryArray.from_buffers(pa.binary(), BATCH, [None, pa.py_buffer(ends.astype(np.int32)), data])
        for at in range(0, self._rows, BATCH):
            count = min(BATCH, self._rows - at)
            numbers = pa.array(np.arange(at, at + count))
            yield pa.RecordBatch.from_arrays([numbers, bodies.slice(0, count)], names=["number", "body"])


def measure(scale: Scale, wanted: list[str]) -> list[Figure]:
    spark = session(Plan("local[2]", short=False))
    register(spark)
    spark.dataSource.register(Bare)
    with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
        server = CapelliniLog(Path(folder))
        server.start()
        try:
            server.fresh(QUEUE)
            server.fresh("warm")
            puts = _puts(spark, server, scale)
            stored = next(Path(folder).rglob("CURRENT")).parent.parent
            only_sink = wanted == [SINK]
            taken = {} if only_sink else _reads(spark, server.address, f"rocks:{stored}", scale)
        finally:
            server.stop()
            spark.stop()
    rows = scale.messages * scale.turns
    sink = [scale.messages / each.took_s for each in puts]
    told = {"all": [round(each) for each in sink], "body_bytes": BODY_BYTES, "cpu_us": _cpu_us(puts, scale.messages)}
    made = {SINK: judge(SINK, median(sink), dict(told))}
    if taken:
        rates = {name: median([rows / each.took_s for each in turns]) for name, turns in taken.items()}
        detail: Detail = {f"{name}_per_s": round(rate) for name, rate in rates.items()}
        detail |= {f"{name}_cpu_us": _cpu_us(turns, rows) for name, turns in taken.items()}
        made[NODE] = judge(NODE, rates["node"] / rates["bare"], dict(detail))
        made[FOLDER] = judge(FOLDER, rates["folder"] / rates["bare"], dict(detail))
    return [made[name] for name in wanted]


class Turn(msgspec.Struct, frozen=True):
    took_s: float
    cpu_s: float


def _cpu_us(turns: list[Turn], messages: int) -> float:
    return round(median(each.cpu_s for each in turns) / messages * 1e6, 2)


def _timed(work: Callable[[], object]) -> Turn:
    """Of this process and all it started: Spark, its Python workers and the node are among them."""
    cpu_before_s, began_s = cpu_s(os.getpid()), time.perf_counter()
    work()
    return Turn(time.perf_counter() - began_s, cpu_s(os.getpid()) - cpu_before_s)


def _puts(spark: SparkSession, server: CapelliniLog, scale: Scale) -> list[Turn]:
    def put(queue: str, messages: int, job: str) -> Turn:
        rows = spark.range(0, messages, 1, PARTS).selectExpr(f"lpad(string(id), {BODY_BYTES}, 'x') AS body")
        options = {"at": server.address, "queue": queue, "job": job}
        return _timed(rows.write.format("capellini").options(**options).mode("append").save)

    put("warm", scale.messages // 10, "warm")
    return [put(QUEUE, scale.messages, f"turn {turn}") for turn in range(scale.turns)]


def _reads(spark: SparkSession, node: str, folder: str, scale: Scale) -> dict[str, list[Turn]]:
    """By source; every turn reads all that was put."""
    rows = scale.messages * scale.turns

    def ours(at: str) -> DataFrame:
        return spark.read.format("capellini").options(at=at, queue=QUEUE, columns="number,body").load()

    sources: dict[str, Callable[[], DataFrame]] = {
        "bare": lambda: spark.read.format("bare").option("rows", rows).load(),
        "node": lambda: ours(node),
        "folder": lambda: ours(folder),
    }

    def read(name: str, source: Callable[[], DataFrame]) -> None:
        found = source().selectExpr("count(number)", "sum(length(body))").first()
        assert found is not None and found[0] == rows and found[1] == rows * BODY_BYTES, f"{name} read {found}"

    taken: dict[str, list[Turn]] = {name: [] for name in sources}
    for turn in range(scale.turns + 1):
        for name, source in sources.items():
            took = _timed(partial(read, name, source))
            if turn:  # the first one warms up
                taken[name].append(took)
    return taken


if __name__ == "__main__":
    for figure in measure(QUICK if sys.argv[1] == "quick" else FULL, sys.argv[2:]):
        print(msgspec.json.encode(figure).decode())
