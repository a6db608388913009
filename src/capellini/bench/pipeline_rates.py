"""Reading and writing a log queue from Spark, beside a bare Arrow source that makes the same rows from nothing.

    bare ─┐
    node ─┼─▶ count and sum of lengths, local[2], in turns      ratios of the medians
    folder┘
    rows made by Spark ─▶ queue                               messages per second, until the last is confirmed

Python workers and the compiler are warmed up by a first turn that does not count.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from capellini.bench.figures import Figure, judge
from capellini.bench.peers.capellini_log import CapelliniLog
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
        return BareReader(int(self.options["rows"]))


class BareReader(DataSourceReader):
    def __init__(self, rows: int) -> None:
        self._rows = rows // PARTS

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(at) for at in range(PARTS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        data, ends = pa.py_buffer(b"x" * BODY_BYTES * BATCH), np.arange(0, BODY_BYTES * (BATCH + 1), BODY_BYTES)
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
            put_s = _puts(spark, server, scale)
            stored = next(Path(folder).rglob("CURRENT")).parent.parent
            taken = _reads(spark, server.address, f"rocks:{stored}", scale)
        finally:
            server.stop()
            spark.stop()
    rates = {name: [scale.messages * scale.turns / took_s for took_s in each] for name, each in taken.items()}
    detail = {f"{name}_per_s": round(median(each)) for name, each in rates.items()}
    bare = median(rates["bare"])
    sink = [scale.messages / took_s for took_s in put_s]
    made = {
        NODE: judge(NODE, median(rates["node"]) / bare, dict(detail)),
        FOLDER: judge(FOLDER, median(rates["folder"]) / bare, dict(detail)),
        SINK: judge(SINK, median(sink), {"all": [round(each) for each in sink], "body_bytes": BODY_BYTES}),
    }
    return [made[name] for name in wanted]


def _puts(spark: SparkSession, server: CapelliniLog, scale: Scale) -> list[float]:
    """Seconds of each turn."""

    def put(queue: str, messages: int, job: str) -> float:
        rows = spark.range(0, messages, 1, PARTS).selectExpr(f"lpad(string(id), {BODY_BYTES}, 'x') AS body")
        began_s = time.perf_counter()
        options = {"at": server.address, "queue": queue, "job": job}
        rows.write.format("capellini").options(**options).mode("append").save()
        return time.perf_counter() - began_s

    put("warm", scale.messages // 10, "warm")
    return [put(QUEUE, scale.messages, f"turn {turn}") for turn in range(scale.turns)]


def _reads(spark: SparkSession, node: str, folder: str, scale: Scale) -> dict[str, list[float]]:
    """Seconds of each turn, by source; every turn reads all that was put."""
    rows = scale.messages * scale.turns

    def ours(at: str) -> DataFrame:
        return spark.read.format("capellini").options(at=at, queue=QUEUE, columns="number,body").load()

    sources: dict[str, Callable[[], DataFrame]] = {
        "bare": lambda: spark.read.format("bare").option("rows", rows).load(),
        "node": lambda: ours(node),
        "folder": lambda: ours(folder),
    }
    taken: dict[str, list[float]] = {name: [] for name in sources}
    for turn in range(scale.turns + 1):
        for name, source in sources.items():
            began_s = time.perf_counter()
            found = source().selectExpr("count(number)", "sum(length(body))").first()
            took_s = time.perf_counter() - began_s
            assert found is not None and found[0] == rows and found[1] == rows * BODY_BYTES, f"{name} read {found}"
            if turn:  # the first one warms up
                taken[name].append(took_s)
    return taken


if __name__ == "__main__":
    for figure in measure(QUICK if sys.argv[1] == "quick" else FULL, sys.argv[2:]):
        print(msgspec.json.encode(figure).decode())
