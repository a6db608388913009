"""A log queue in Cassandra, read by Spark beside the bare driver: the same rows, two processes each.

    bare     two processes, each every second extent: acsylla, page by page, nothing decoded
    ours     local[2], the data source with the column body, counted

Both read the blocks of the same extents from the same local cluster, in turns.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import acsylla
import msgspec

from capellini.bench.figures import Figure, judge, unmeasured
from capellini.local import processes
from capellini.local.cluster import LocalCluster
from capellini.local.errors import ClusterError
from capellini.model.chunks import pack
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.pipeline.session import Plan, session
from capellini.pipeline.source.data import register
from capellini.pipeline.source.extents import listed
from capellini.pipeline.source.reach import reached

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "pipeline.cassandra_source_vs_bare"
KEYSPACE: Final = "bench_pipeline"
QUEUE: Final = "measured"
BODY: Final = b"x" * 100
CHUNK: Final = 4_000  # messages
UNDER_WAY: Final = 8
EXTENT_BYTES: Final = 4_194_304  # small, so that there are several to be read side by side
PROCESSES: Final = 2
PAGE: Final = 16  # blocks


class Scale(msgspec.Struct, frozen=True):
    turns: int
    messages: int


FULL: Final = Scale(turns=5, messages=3_968_000)
QUICK: Final = Scale(turns=3, messages=384_000)


def measure(scale: Scale, wanted: list[str]) -> list[Figure]:
    cluster = LocalCluster(f"bench-pipeline-{os.getpid()}")
    try:
        cluster.up(1, jvm="full", owner=processes.identify(os.getpid()))
        return [_measured(cluster.contact_points(), scale) for _ in wanted]
    except ClusterError as error:
        return [unmeasured(name, f"no cluster could be started: {error}") for name in wanted]
    finally:
        cluster.down()


def _measured(host: str, scale: Scale) -> Figure:
    at = f"cassandra://{host}/{KEYSPACE}"
    generation, extents = asyncio.run(_filled(at, scale))
    spark = session(Plan("local[2]", short=False))
    register(spark)
    bare: list[float] = []
    ours: list[float] = []
    try:
        with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
            for turn in range(scale.turns + 1):
                began_s = time.perf_counter()
                shares = [(host, generation, extents[number::PROCESSES]) for number in range(PROCESSES)]
                read = sum(pool.map(_bare, shares))
                bare_s = time.perf_counter() - began_s
                assert read == scale.messages, f"the bare driver read {read}"
                ours_s = _ours(spark, at, scale)
                if turn:  # the first one warms both up
                    bare.append(scale.messages / bare_s)
                    ours.append(scale.messages / ours_s)
    finally:
        spark.stop()
    detail = {"bare_per_s": round(median(bare)), "ours_per_s": round(median(ours)), "extents": len(extents)}
    return judge(NAME, median(ours) / median(bare), dict(detail))


async def _filled(at: str, scale: Scale) -> tuple[int, list[str]]:
    """Generation and extents of a queue with all messages in it."""
    node = await Node.open(Settings(store=at, node="bench"))
    try:
        await node.service.create(QUEUE, "log", {"extent_bytes": EXTENT_BYTES})
        log = node.service.log
        assert log is not None
        chunk = pack([BODY] * CHUNK)
        for _ in range(0, scale.messages, CHUNK * UNDER_WAY):
            await asyncio.gather(*(log.append(QUEUE, chunk) for _ in range(UNDER_WAY)))
    finally:
        await node.close()  # and so everything is sealed
    async with reached(at) as reach:
        record = await reach.record(QUEUE)
        return record.generation, [known.name for known in await listed(reach, record) if known.top]


def _bare(share: tuple[str, int, list[str]]) -> int:
    return asyncio.run(_bare_read(*share))


async def _bare_read(host: str, generation: int, extents: list[str]) -> int:
    cluster: Any = acsylla.create_cluster(host.split(","), log_level="critical")
    connected: Any = await cluster.create_session(keyspace=KEYSPACE)
    try:
        cql = "SELECT count, chunks FROM log_blocks WHERE queue = ? AND generation = ? AND extent = ?"
        prepared = await connected.create_prepared(cql)
        reads = [_bare_extent(connected, prepared, generation, name) for name in extents]
        return sum(await asyncio.gather(*reads))
    finally:
        await connected.close()


async def _bare_extent(connected: Any, prepared: Any, generation: int, extent: str) -> int:
    statement = prepared.bind(page_size=PAGE, consistency=acsylla.Consistency.QUORUM)
    statement.bind_list([QUEUE, generation, extent])
    found = 0
    while True:
        result = await connected.execute(statement)
        rows = [row.as_list() for row in result]  # at once: the driver's rows are views on where it stands
        found += sum(int(count) for count, chunks in rows if chunks is not None)
        if not result.has_more_pages():
            return found
        statement.set_page_state(result.page_state())


def _ours(spark: SparkSession, at: str, scale: Scale) -> float:
    began_s = time.perf_counter()
    options = {"at": at, "queue": QUEUE, "columns": "body"}
    found = spark.read.format("capellini").options(**options).load().selectExpr("count(body)").first()
    assert found is not None and found[0] == scale.messages, f"Spark read {found}"
    return time.perf_counter() - began_s


if __name__ == "__main__":
    for figure in measure(QUICK if sys.argv[1] == "quick" else FULL, sys.argv[2:]):
        print(msgspec.json.encode(figure).decode())
