"""What messages of a log queue ask one Cassandra node for, and how many bytes it takes through us beside bare acsylla.

    put.requests, put.rounds    chunks at a steady rate, from the creation of the queue until all is confirmed
    get_ack.requests            one group reads along and acks; all that the node asks for meanwhile, less the puts
    put_bytes_vs_bare           as fast as it goes, beside acsylla's batches of the same bodies as rows, in turns

A node of ours runs in this process with a store, thus counts, of its own: leases, looks at the list of extents and
empty blocks count too. The rounds are checked against Cassandra's own writes to its Paxos table (`work_cassandra`).
"""

from __future__ import annotations

import asyncio
import os
import time
from statistics import median
from typing import Any, Final

import acsylla
import msgspec

from capellini.bench.figures import Detail, Figure, judge, unmeasured
from capellini.local import processes
from capellini.local.cluster import LocalCluster
from capellini.local.errors import ClusterError
from capellini.model import chunks
from capellini.model.errors import CapelliniError
from capellini.model.log import LogService, Settle
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.store.interface import Counts

KEYSPACE: Final = "bench_log"
BARE: Final = f"{KEYSPACE}.bench_bare"
BODY: Final = b"x" * 100
CHUNK: Final = 100  # messages, as of a batch of 100
PER_S: Final = 10_000.0
SECONDS: Final = 60.0
QUICK_SECONDS: Final = 10.0
UNDER_WAY: Final = 16  # chunks or batches at once, on either side
ROWS: Final = 100  # of a bare batch
GROUP: Final = "readers"
TURNS: Final = 7
QUICK_TURNS: Final = 3
BYTES: Final = 20_000_000  # of bodies, in a turn of each side
QUICK_BYTES: Final = 5_000_000
VISIBILITY_S: Final = 600.0
PULL: Final = 5_000  # messages at most
PULL_BYTES: Final = 1_000_000


async def run(quick: bool, wanted: list[str]) -> list[Figure]:
    cluster = LocalCluster(f"bench-log-{os.getpid()}")
    try:
        await asyncio.to_thread(cluster.up, 1, jvm="full", owner=processes.identify(os.getpid()))
        return await measure(cluster.contact_points(), quick, wanted)
    except ClusterError as error:
        return [unmeasured(name, f"no cluster could be started: {error}") for name in wanted]
    finally:
        await asyncio.to_thread(cluster.down)


async def measure(host: str, quick: bool, wanted: list[str]) -> list[Figure]:
    """On a Cassandra that runs."""
    node = await Node.open(Settings(store=f"cassandra://{host}/{KEYSPACE}", node="bench"))
    measured: dict[str, Figure] = {}
    try:
        counted = [name for name in wanted if not name.endswith("_vs_bare")]
        try:
            if counted:
                measured |= {figure.figure: figure for figure in await _counted(node, quick, counted)}
            if len(counted) < len(wanted):
                figure = await _beside(node, host, quick)
                measured[figure.figure] = figure
        except CapelliniError as error:
            measured |= {name: unmeasured(name, error.says) for name in wanted if name not in measured}
    finally:
        await node.close()
    return [measured[name] for name in wanted]


def _log(node: Node) -> LogService:
    assert node.service.log is not None
    return node.service.log


def _counts(node: Node) -> Counts:
    return msgspec.structs.replace(node.store.counts)


async def _counted(node: Node, quick: bool, wanted: list[str]) -> list[Figure]:
    seconds = QUICK_SECONDS if quick else SECONDS
    await _steady(node, "warm", seconds / 4, reading=True)
    put, took_s = await _steady(node, "puts", seconds, reading=False)
    both, _ = await _steady(node, "lives", seconds, reading=True)
    messages = int(PER_S * seconds)
    detail: Detail = {"messages": messages, "per_s": round(messages / took_s), "chunk": CHUNK}
    shown: dict[str, Detail] = {
        "put": {**detail, "requests": put.requests, "rounds": put.rounds, "writes": put.writes, "reads": put.reads},
        "get_ack": {**detail, "requests_with_puts": both.requests, "requests_of_puts": put.requests},
    }
    values = {
        "log.cassandra.put.rounds": put.rounds / messages,
        "log.cassandra.put.requests": put.requests / messages,
        "log.cassandra.get_ack.requests": max(0, both.requests - put.requests) / messages,
    }
    return [judge(name, values[name], shown[name.split(".")[2]]) for name in wanted]


async def _steady(node: Node, queue: str, seconds: float, reading: bool) -> tuple[Counts, float]:
    """What the node asked for while so many seconds' messages were put, and read if told; and how long that took."""
    before, began_s = _counts(node), time.perf_counter()
    await node.service.create(queue, "log")
    messages = int(PER_S * seconds)
    tasks = [_put(_log(node), queue, messages)]
    if reading:
        await _log(node).create_group(queue, GROUP, options={"visibility_s": VISIBILITY_S})
        tasks.append(_read(_log(node), queue, messages))
    await asyncio.gather(*tasks)
    took_s = time.perf_counter() - began_s
    after = node.store.counts
    spent = Counts(
        requests=after.requests - before.requests,
        rounds=after.rounds - before.rounds,
        writes=after.writes - before.writes,
        reads=after.reads - before.reads,
    )
    await node.service.delete(queue)
    return spent, took_s


async def _put(log: LogService, queue: str, messages: int) -> None:
    """Chunks at the steady rate, whatever the answers."""
    chunk, began_s = chunks.pack([BODY] * CHUNK), time.perf_counter()
    under_way: set[asyncio.Task[Any]] = set()
    for number in range(0, messages, CHUNK):
        await asyncio.sleep(max(0.0, began_s + number / PER_S - time.perf_counter()))
        task = asyncio.create_task(log.append(queue, chunk))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)


async def _read(log: LogService, queue: str, messages: int) -> None:
    """As a stream does: the next pull does not wait for the acks of the last."""
    got = 0
    settling: set[asyncio.Task[Any]] = set()
    while got < messages:
        for parcel in await log.pull(queue, GROUP, PULL, PULL_BYTES, 5.0):
            got += parcel.count
            item = Settle(
                parcel.extent, parcel.reader, parcel.epoch, parcel.delivery, parcel.first, parcel.count, parcel.code,
                "ack", [(parcel.first, parcel.count)],
            )  # fmt: skip
            task = asyncio.create_task(log.settle(queue, GROUP, [item]))
            settling.add(task)
            task.add_done_callback(settling.discard)
    await asyncio.gather(*settling)


async def _beside(node: Node, host: str, quick: bool) -> Figure:
    turns, size = (QUICK_TURNS, QUICK_BYTES) if quick else (TURNS, BYTES)
    session: Any = await acsylla.create_cluster([host], log_level="critical").create_session()
    try:
        await session.query(
            f"CREATE TABLE IF NOT EXISTS {BARE} (name text, number bigint, body blob, PRIMARY KEY (name, number))"
        )
        prepared = await session.create_prepared(f"INSERT INTO {BARE} (name, number, body) VALUES (?, ?, ?)")
        await node.service.create("fast", "log")
        ours: list[float] = []
        bare: list[float] = []
        for turn in range(turns + 1):
            began_s = time.perf_counter()
            await _bare(session, prepared, turn, size)
            between_s = time.perf_counter()
            await _fast(_log(node), size)
            ended_s = time.perf_counter()
            if turn:  # the first one warms both up
                bare.append(between_s - began_s)
                ours.append(ended_s - between_s)
    finally:
        await session.close()
    detail: Detail = {
        "ratios": [round(b / o, 2) for b, o in zip(bare, ours, strict=True)],
        "mb_per_s": round(size / median(ours) / 1e6, 1),
        "bare_mb_per_s": round(size / median(bare) / 1e6, 1),
        "messages_per_s": round(size / len(BODY) / median(ours)),
        "bare": f"unlogged batches of {ROWS} rows of one partition, {UNDER_WAY} under way",
    }
    return judge("log.cassandra.put_bytes_vs_bare", median(b / o for b, o in zip(bare, ours, strict=True)), detail)


async def _fast(log: LogService, size: int) -> None:
    chunk = chunks.pack([BODY] * CHUNK)
    left = size // (CHUNK * len(BODY))

    async def task() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await log.append("fast", chunk)

    await asyncio.gather(*(task() for _ in range(UNDER_WAY)))


async def _bare(session: Any, prepared: Any, turn: int, size: int) -> None:
    batches = size // (ROWS * len(BODY))

    async def task(number: int) -> None:
        for at in range(number, batches, UNDER_WAY):
            batch = acsylla.create_batch_unlogged()
            batch.set_consistency(acsylla.Consistency.QUORUM)
            for row in range(at * ROWS, (at + 1) * ROWS):
                statement = prepared.bind()
                statement.bind_list([f"{turn}/{number}", row, BODY])
                batch.add_statement(statement)
            await session.execute_batch(batch)

    await asyncio.gather(*(task(number) for number in range(UNDER_WAY)))
