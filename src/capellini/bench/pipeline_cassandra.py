"""A log queue in Cassandra, read by Spark beside the bare driver: the same rows, two processes each.

    bare     two processes, each every second extent: acsylla, page by page, nothing decoded
    ours     local[2], the data source with the column body, counted
    nothing  local[2], a bare Arrow source that makes as many such bodies out of nothing: what Spark itself takes

Bare and ours read the blocks of the same extents from the same local cluster, in turns. Bodies are random: Cassandra
keeps equal ones in next to nothing, and reads them as fast as that. There are so many that starting a query, which
takes Spark half a second, does not count for most of it.

`cpu_us` in the details is what a message costs: Cassandra, and all processes that read.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import acsylla
import msgspec

from capellini.bench.figures import Detail, Figure, judge, unmeasured
from capellini.bench.pipeline_rates import Bare
from capellini.bench.usage import cpu_s, family
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
BODY_BYTES: Final = 100
CHUNK: Final = 4_000  # messages
UNDER_WAY: Final = 8
EXTENT_BYTES: Final = 4_194_304  # small, so that there are several to be read side by side
# Of Cassandra: a quarter of what one is usually given. In the 400 MB of the local cluster blocks of a megabyte keep its
# collector marking for as long as anything is read, so that who reads slowly is charged for the time.
HEAP_MB: Final = 2_048
PROCESSES: Final = 2
PAGE: Final = 16  # blocks
ABREAST: Final = 16  # extents of one process: all at once would wait in Cassandra for longer than it lets them


class Scale(msgspec.Struct, frozen=True):
    turns: int
    messages: int


FULL: Final = Scale(turns=5, messages=12_032_000)
QUICK: Final = Scale(turns=3, messages=384_000)


class Turn(msgspec.Struct, frozen=True):
    took_s: float
    cassandra_s: float  # of its processor time
    readers_s: float  # of that of all who read


def measure(scale: Scale, wanted: list[str]) -> list[Figure]:
    cluster = LocalCluster(f"bench-pipeline-{os.getpid()}")
    try:
        cluster.up(1, jvm="full", heap_mb=HEAP_MB, owner=processes.identify(os.getpid()))
        return [_measured(cluster, scale) for _ in wanted]
    except ClusterError as error:
        return [unmeasured(name, f"no cluster could be started: {error}") for name in wanted]
    finally:
        cluster.down()


def _measured(cluster: LocalCluster, scale: Scale) -> Figure:
    host, server = cluster.contact_points(), cluster.status()[0].pid
    assert server is not None
    at = f"cassandra://{host}/{KEYSPACE}"
    generation, extents = asyncio.run(_filled(at, scale))
    spark = session(Plan("local[2]", short=False))
    register(spark)
    spark.dataSource.register(Bare)
    taken: dict[str, list[Turn]] = {"bare": [], "ours": [], "nothing": []}
    try:
        with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
            shares = [(host, generation, extents[number::PROCESSES]) for number in range(PROCESSES)]
            ways: dict[str, Callable[[], int]] = {
                "bare": lambda: sum(pool.map(_bare, shares)),
                "ours": lambda: _counted(spark, "capellini", at=at, queue=QUEUE, columns="body"),
                "nothing": lambda: _counted(spark, "bare", rows=str(scale.messages), body_bytes=str(BODY_BYTES)),
            }
            for turn in range(scale.turns + 1):
                for name, read in ways.items():
                    took = _timed(read, server, scale.messages)
                    if turn:  # the first one warms all up
                        taken[name].append(took)
    finally:
        spark.stop()
    rates = {name: scale.messages / median(each.took_s for each in turns) for name, turns in taken.items()}
    detail: Detail = {f"{name}_per_s": round(rate) for name, rate in rates.items()}
    for name, turns in taken.items():
        detail[f"{name}_cpu_us"] = [
            round(median(each) / scale.messages * 1e6, 2)
            for each in ([turn.cassandra_s for turn in turns], [turn.readers_s for turn in turns])
        ]
    return judge(NAME, rates["ours"] / rates["bare"], {**detail, "extents": len(extents)})


def _timed(read: Callable[[], int], server: int, messages: int) -> Turn:
    """`server`: the process that is Cassandra."""
    cassandra_s, all_s, began_s = cpu_s(server), cpu_s(os.getpid()), time.perf_counter()
    found = read()
    took_s = time.perf_counter() - began_s
    assert found == messages, f"{found} were read"
    cassandra_s, all_s = cpu_s(server) - cassandra_s, cpu_s(os.getpid()) - all_s
    started_here = server in family(os.getpid())
    return Turn(took_s, cassandra_s, all_s - cassandra_s if started_here else all_s)


async def _filled(at: str, scale: Scale) -> tuple[int, list[str]]:
    """Generation and extents of a queue with all messages in it."""
    node = await Node.open(Settings(store=at, node="bench"))
    try:
        await node.service.create(QUEUE, "log", {"extent_bytes": EXTENT_BYTES})
        log = node.service.log
        assert log is not None
        chunks = [pack([os.urandom(BODY_BYTES) for _ in range(CHUNK)]) for _ in range(UNDER_WAY)]
        for _ in range(0, scale.messages, CHUNK * UNDER_WAY):
            await asyncio.gather(*(log.append(QUEUE, chunk) for chunk in chunks))
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
        turns = asyncio.Semaphore(ABREAST)
        reads = [_bare_extent(connected, prepared, generation, name, turns) for name in extents]
        return sum(await asyncio.gather(*reads))
    finally:
        await connected.close()


async def _bare_extent(connected: Any, prepared: Any, generation: int, extent: str, turns: asyncio.Semaphore) -> int:
    statement = prepared.bind(page_size=PAGE, consistency=acsylla.Consistency.QUORUM)
    statement.bind_list([QUEUE, generation, extent])
    found = 0
    async with turns:
        while True:
            result = await connected.execute(statement)
            rows = [row.as_list() for row in result]  # at once: the driver's rows are views on where it stands
            found += sum(int(count) for count, chunks in rows if chunks is not None)
            if not result.has_more_pages():
                return found
            statement.set_page_state(result.page_state())


def _counted(spark: SparkSession, source: str, **options: str) -> int:
    found = spark.read.format(source).options(**options).load().selectExpr("count(body)").first()
    assert found is not None
    return int(found[0])


if __name__ == "__main__":
    for figure in measure(QUICK if sys.argv[1] == "quick" else FULL, sys.argv[2:]):
        print(msgspec.json.encode(figure).decode())
