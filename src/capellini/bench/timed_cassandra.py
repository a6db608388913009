"""Timed queues on one Cassandra node: lateness, and what puts, deliveries and idleness ask the store for.

    put_b100.requests, .rounds    batches of 100 with dues in one time part, per message
    get_ack.requests              deliveries and acks at 100 messages/s per shard, per message; all that the node asks
                                  for meanwhile counts: horizons, leases, assignments
    late_p99_ms                   2,000 messages due per second, through the network client
    idle_reads_per_shard_s        reads per shard and second of a queue with nothing due, less what the node reads
                                  without that queue

Lateness is that of `capellini serve` in a process of its own; for the others a node of ours runs in this process with a
store, thus counts, of its own. max_skew_s is what clocks of one machine need: with the default of 0.5 s each message
is that much later, since another node's clock may be ahead.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from capellini.bench.figures import Detail, Figure, judge, unmeasured
from capellini.bench.peers.capellini_node import Capellini
from capellini.bench.timed_late import BODY, NotMeasured, by_client, in_process, lateness, worked
from capellini.client.connecting import connect_async
from capellini.local import processes
from capellini.local.cluster import LocalCluster
from capellini.local.errors import ClusterError
from capellini.model.errors import CapelliniError
from capellini.model.message import NewMessage
from capellini.model.service import Problem
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.store.interface import Counts

KEYSPACE: Final = "bench_timed"
PUT_MESSAGES: Final = 20_000
QUICK_PUT_MESSAGES: Final = 5_000
SHARDS: Final = 4
PER_SHARD_S: Final = 100.0  # messages due
GET_SECONDS: Final = 50.0
QUICK_GET_SECONDS: Final = 8.0
LATE_PER_S: Final = 2_000.0
LATE_SECONDS: Final = 20.0
QUICK_LATE_SECONDS: Final = 6.0
WARM_S: Final = 3.0  # a Cassandra that has just started is slow for a while
IDLE_SHARDS: Final = 8
IDLE_SECONDS: Final = 30.0
QUICK_IDLE_SECONDS: Final = 6.0
MAX_SKEW_S: Final = 0.1  # all clocks are one machine's; on Cassandra a message waits this much beyond its due
SETTLE_S: Final = 6.0  # a new queue is idle after its holders have rested once


async def run(quick: bool, wanted: list[str]) -> list[Figure]:
    cluster = LocalCluster(f"bench-timed-{os.getpid()}")
    try:
        await asyncio.to_thread(cluster.up, 1, jvm="full", owner=processes.identify(os.getpid()))
        return await measure(cluster.contact_points(), quick, wanted)
    except ClusterError as error:
        return [unmeasured(name, f"no cluster could be started: {error}") for name in wanted]
    finally:
        await asyncio.to_thread(cluster.down)


async def measure(host: str, quick: bool, wanted: list[str]) -> list[Figure]:
    """On a Cassandra that runs."""
    parts: dict[str, Callable[[Node, bool, list[str]], Awaitable[list[Figure]]]] = {
        "timed.idle_reads": _idle,  # first: before there are other queues
        "timed.cassandra.get_ack": _gets,  # before the puts, whose queue stays and would be counted
        "timed.cassandra.put_b100": _puts,
    }
    measured: dict[str, Figure] = {}
    if mine := [name for name in wanted if name.startswith("timed.cassandra.late")]:
        try:
            measured |= {figure.figure: figure for figure in await _late(host, quick, mine)}
        except CapelliniError as error:
            measured |= {name: unmeasured(name, error.says) for name in mine}
    node = await Node.open(Settings(store=f"cassandra://{host}/{KEYSPACE}", node="bench", max_skew_s=MAX_SKEW_S))
    try:
        for prefix, part in parts.items():
            if mine := [name for name in wanted if name.startswith(prefix)]:
                try:
                    found = await part(node, quick, mine)
                except CapelliniError as error:
                    found = [unmeasured(name, error.says) for name in mine]
                measured |= {figure.figure: figure for figure in found}
    finally:
        await node.close()
    return [measured[name] for name in wanted]


async def _queue(node: Node, name: str, shards: int) -> None:
    await node.service.create(name, "timed", {"shards": shards, "visibility_s": 600})
    assert node.service.timed is not None
    await worked(node.service.timed, name)


def _counted(node: Node) -> Counts:
    return msgspec.structs.replace(node.store.counts)


async def _puts(node: Node, quick: bool, wanted: list[str]) -> list[Figure]:
    messages, chance = QUICK_PUT_MESSAGES if quick else PUT_MESSAGES, random.Random(1)
    await _queue(node, "puts", SHARDS)
    before, began_s = _counted(node), time.perf_counter()
    for _ in range(0, messages, 100):
        start_s = time.time() + 86_400 + chance.randrange(1_000) * 3_600
        start_s -= start_s % 3_600
        batch = [NewMessage(BODY, due=start_s + chance.uniform(0, 3_599)) for _ in range(100)]
        for result in await node.service.put("puts", batch):
            if isinstance(result, Problem):
                raise NotMeasured(result.says)
    took_s, after = time.perf_counter() - began_s, node.store.counts
    requests, rounds = after.requests - before.requests, after.rounds - before.rounds
    detail: Detail = {"messages": messages, "requests": requests, "rounds": rounds}
    detail["puts_per_s"] = round(messages / took_s)
    values = {"requests": requests / messages, "rounds": rounds / messages}
    return [judge(name, values[name.rpartition(".")[2]], detail) for name in wanted]


async def _gets(node: Node, quick: bool, wanted: list[str]) -> list[Figure]:
    """All are put before they are due, so that only delivering and acking is counted."""
    seconds = QUICK_GET_SECONDS if quick else GET_SECONDS
    await _queue(node, "gets", SHARDS)
    way, total = in_process(node.service, "gets"), int(PER_SHARD_S * SHARDS * seconds)
    fill_s = 5.0 + total / 2_000
    first_s = time.time() + fill_s
    batches = [range(start, min(total, start + 100)) for start in range(0, total, 100)]
    for numbers in batches:
        dues = [first_s + number / (PER_SHARD_S * SHARDS) for number in numbers]
        for result in await way.put([NewMessage(BODY, due=due_s) for due_s in dues]):
            if isinstance(result, Problem):
                raise NotMeasured(result.says)
    if time.time() > first_s:
        raise NotMeasured(f"{total} messages could not be put within {fill_s:.0f} s")
    await asyncio.sleep(max(0.0, first_s - time.time() - 0.5))
    before, got, began_s = _counted(node), 0, time.perf_counter()
    while got < total:
        found = await way.get(500, 5.0)
        if not found and time.time() > first_s + seconds + 60:
            raise NotMeasured(f"{got} of {total} messages came")
        if found:
            await way.ack([receipt for _, receipt in found])
            got += len(found)
    after = node.store.counts
    requests = after.requests - before.requests
    detail: Detail = {
        "messages": total, "requests": requests, "reads": after.reads - before.reads,
        "writes": after.writes - before.writes, "rounds": after.rounds - before.rounds, "shards": SHARDS,
        "due_per_s_and_shard": PER_SHARD_S, "took_s": round(time.perf_counter() - began_s, 1),
    }  # fmt: skip
    return [judge(name, requests / total, detail) for name in wanted]


async def _late(host: str, quick: bool, wanted: list[str]) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
        server = _Served(Path(folder), f"cassandra://{host}/{KEYSPACE}_late")
        await asyncio.to_thread(server.start)
        try:
            async with connect_async(server.address) as client:
                await client.create_queue("late", "timed", shards=SHARDS, visibility_s=600)
                way, seconds = by_client(client, "late"), QUICK_LATE_SECONDS if quick else LATE_SECONDS
                await lateness(way, LATE_PER_S / 2, WARM_S)
                found = await lateness(way, LATE_PER_S, seconds)
        finally:
            await asyncio.to_thread(server.stop)
    detail: Detail = {**found.detail(), "max_skew_ms": MAX_SKEW_S * 1000, "says": "max_skew_s is part of it"}
    return [judge(name, found.quantile(0.99), detail) for name in wanted]


class _Served(Capellini):
    """`capellini serve` on Cassandra, in a process of its own."""

    def __init__(self, folder: Path, store: str) -> None:
        super().__init__(folder)
        self.store = store
        self.more = ("--max-skew-s", str(MAX_SKEW_S))


async def _idle(node: Node, quick: bool, wanted: list[str]) -> list[Figure]:
    seconds = QUICK_IDLE_SECONDS if quick else IDLE_SECONDS
    without = await _reads(node, seconds)
    await _queue(node, "idle", IDLE_SHARDS)
    await asyncio.sleep(SETTLE_S)
    found = await _reads(node, seconds)
    await node.service.delete("idle")  # idle shards cost something: the next figure is not about them
    detail: Detail = {
        "shards": IDLE_SHARDS, "seconds": seconds, "reads_per_s": round(found, 2),
        "without_the_queue": round(without, 2),
    }  # fmt: skip
    return [judge(name, max(0.0, found - without) / IDLE_SHARDS, detail) for name in wanted]


async def _reads(node: Node, seconds: float) -> float:
    """Per second."""
    before = node.store.counts.reads
    await asyncio.sleep(seconds)
    return (node.store.counts.reads - before) / seconds
