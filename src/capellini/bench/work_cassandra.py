"""What a message costs on Cassandra: Paxos rounds and requests, counted from the creation of its queue until nothing of
that queue is left.

    create ─▶ put, get, ack all ─▶ every full bucket dropped ─▶ delete ─▶ the rest cleared      all that is counted,
                                                                                                 with leases and repair

Counting needs one Cassandra node only: rounds and requests are the same with three. Nodes of ours run in this process,
each with a store, thus counts, of its own, and each workload in a keyspace of its own. The stores' counts are checked
against Cassandra's: its writes to `system.paxos`, of which a round takes as many as a trial shows, and the requests it
counts per connection. The larger count of rounds is the figure.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import acsylla
import msgspec

from capellini.bench import work_lives
from capellini.bench.figures import Detail, Figure, judge, unmeasured
from capellini.local import processes
from capellini.local.cluster import LocalCluster
from capellini.local.errors import ClusterError
from capellini.model.address import CassandraAddress
from capellini.model.errors import CapelliniError
from capellini.model.options import WorkOptions
from capellini.model.service import Service
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.queues.ending import REALM
from capellini.queues.work import pointers as pointing
from capellini.store.cassandra import CassandraStore
from capellini.store.interface import ABSENT, Cas, Change, Slice, Store
from capellini.store.schema import KEYS, LEFT, POINTERS, TABLES

log: Final = logging.getLogger("capellini.bench")

QUEUE: Final = "lives"
POLL_S: Final = 0.5
DROPPED_WITHIN_S: Final = 30.0  # what repair has not dropped by then is dropped when the queue is cleared
CLEARED_WITHIN_S: Final = 120.0  # maintenance takes its turns; a loaded machine takes several times as long
TRIAL: Final = 40  # compare-and-sets that tell how many writes to system.paxos a round is
PAXOS_WRITES: Final = (
    "SELECT count FROM system_views.local_write_latency WHERE keyspace_name = 'system' AND table_name = 'paxos'"
)
TOMBSTONES: Final = "SELECT keyspace_name, table_name, count, p50th, p99th, max FROM system_views.tombstones_per_read"
REQUESTS: Final = "SELECT request_count FROM system_views.clients"


class Workload(msgspec.Struct, frozen=True):
    name: str
    nodes: int
    messages: int
    quick_messages: int
    drive: Callable[[Sequence[Service], int], Awaitable[None]]
    says: str


WORKLOADS: Final = (
    Workload(
        "b100", 1, 20_000, 5_000, lambda nodes, count: work_lives.blocks(nodes[0], QUEUE, count, 100),
        "one worker: put 100, get 100, ack 100",
    ),
    Workload(
        "c64", 1, 20_000, 3_000, lambda nodes, count: work_lives.singles(nodes[0], QUEUE, count, 64),
        "64 workers, each put 1, get 1, ack 1",
    ),
    Workload(
        "serial", 1, 20_000, 400, lambda nodes, count: work_lives.singles(nodes[0], QUEUE, count, 1),
        "one worker: put 1, get 1, ack 1",
    ),
    Workload(
        "four_nodes_b100", 4, 20_000, 8_000, lambda nodes, count: work_lives.apart(nodes, QUEUE, count, 100),
        "on each of four nodes one producer and one consumer, batches of 100",
    ),
)  # fmt: skip


class NotDone(Exception):
    """A workload did not come to its end in time."""


class Life(msgspec.Struct):
    """What one workload took, or why that is not known."""

    workload: Workload
    messages: int
    rounds: int = 0
    requests: int = 0
    retries: int = 0
    drive_s: float = 0.0
    whole_s: float = 0.0
    tombstones: dict[str, dict[str, float]] = {}
    rounds_share: float = 1.0  # rounds by Cassandra's count / by ours, of all workloads that ran at the time
    requests_share: float = 1.0
    together: int = 1  # workloads that ran at the time
    dropped_by: str = "repair"
    failed: str = ""


async def run(quick: bool, wanted: list[str]) -> list[Figure]:
    cluster = LocalCluster(f"bench-work-{os.getpid()}")
    try:
        await asyncio.to_thread(cluster.up, 1, jvm="full", owner=processes.identify(os.getpid()))
        return await measure(cluster.contact_points(), quick, wanted)
    except ClusterError as error:
        return [unmeasured(name, f"no cluster could be started: {error}") for name in wanted]
    finally:
        await asyncio.to_thread(cluster.down)


async def measure(host: str, quick: bool, wanted: list[str]) -> list[Figure]:
    """On a Cassandra that runs. In the quick version all workloads run at once, else one after the other."""
    chosen = [each for each in WORKLOADS if any(_needs(name, each.name) for name in wanted)]
    # The driver calls each connection to a server that is not ScyllaDB an error.
    session: Any = await acsylla.create_cluster([host], log_level="critical").create_session()
    try:
        lives: dict[str, Life] = {}
        for group in [chosen] if quick else [[each] for each in chosen]:
            for life in await _group(host, session, group, quick):
                lives[life.workload.name] = life
    finally:
        await session.close()
    return [_figure(name, lives) for name in wanted]


def _needs(figure: str, workload: str) -> bool:
    part = figure.split(".")[2]
    return part == workload or (part == "tombstones_per_read" and workload in ("b100", "c64"))


def _figure(name: str, lives: dict[str, Life]) -> Figure:
    if name == "work.cassandra.tombstones_per_read":
        return _tombstones(name, lives)
    _, _, workload, what = name.split(".")
    life = lives[workload]
    if life.failed:
        return unmeasured(name, life.failed)
    ours = life.rounds if what == "rounds" else life.requests
    share = life.rounds_share if what == "rounds" else life.requests_share
    detail: Detail = {
        "messages": life.messages,
        what: ours,
        f"{what}_by_cassandra_vs_ours": round(share, 3),
        "retries": life.retries,
        "dropped_by": life.dropped_by,
        "drive_s": round(life.drive_s, 1),
        "whole_s": round(life.whole_s, 1),
        "work": life.workload.says,
    }
    if life.messages < life.workload.messages:
        detail["quick"] = f"{life.messages} instead of {life.workload.messages} messages"
    if life.together > 1:
        detail["by_cassandra"] = f"over the {life.together} workloads that ran at once"
    # Requests are what the stores sent; Cassandra's count has the driver's own heartbeats and pings in it as well.
    return judge(name, ours / life.messages * (max(1.0, share) if what == "rounds" else 1.0), detail)


def _tombstones(name: str, lives: dict[str, Life]) -> Figure:
    """The worst table's 99th percentile. Cassandra's histogram has no zero: 1 means none or one."""
    detail: Detail = {"says": "p99 of the worst table; Cassandra counts 0 as 1"}
    worst = 0.0
    for life in lives.values():
        for table, found in life.tombstones.items():
            worst = max(worst, found["p99"])
            if found["max"] > 1:
                detail[f"{life.workload.name}.{table}"] = found
    detail["messages"] = sum(life.messages for life in lives.values())
    detail["reads"] = int(sum(found["reads"] for life in lives.values() for found in life.tombstones.values()))
    return judge(name, worst, detail)


# ---- counting


async def _group(host: str, session: Any, group: Sequence[Workload], quick: bool) -> list[Life]:
    made = [await _Nodes.open(host, each) for each in group]
    try:
        per_round = await _paxos_writes_per_round(made, session)
        paxos, asked = await _number(session, PAXOS_WRITES), await _sum(session, REQUESTS)
        before = [each.counted() for each in made]
        lives = await asyncio.gather(*(each.live(quick) for each in made))
        after = [each.counted() for each in made]
        asked = await _sum(session, REQUESTS) - asked - 1  # the question itself
        rounds_by_cassandra = (await _number(session, PAXOS_WRITES) - paxos) / per_round
        rounds = sum(late.rounds - early.rounds for late, early in zip(after, before, strict=True))
        requests = sum(late.requests - early.requests for late, early in zip(after, before, strict=True))
        for life, one in zip(lives, made, strict=True):
            life.rounds_share, life.requests_share = rounds_by_cassandra / rounds, asked / requests
            life.together = len(group)
            life.tombstones = await _tombstones_of(session, one.keyspace)
        return list(lives)
    finally:
        for each in made:
            await each.close()


class _Counted(msgspec.Struct):
    rounds: int
    requests: int


class _Nodes:
    """Nodes of ours on a keyspace of their own, and an observer whose questions are not counted as theirs."""

    def __init__(self, workload: Workload, keyspace: str, nodes: list[Node], observer: Store) -> None:
        self.workload = workload
        self.keyspace = keyspace
        self.nodes = nodes
        self.observer = observer

    @classmethod
    async def open(cls, host: str, workload: Workload) -> _Nodes:
        keyspace = f"bench_{workload.name}"
        observer = await CassandraStore.open(CassandraAddress((host,), keyspace))
        nodes: list[Node] = []
        try:
            await observer.prepare(TABLES)
            for number in range(workload.nodes):
                settings = Settings(store=f"cassandra://{host}/{keyspace}", node=f"bench-{number}")
                nodes.append(await Node.open(settings))
        except BaseException:
            for node in nodes:
                await node.close()
            await observer.close()
            raise
        return cls(workload, keyspace, nodes, observer)

    def counted(self) -> _Counted:
        """By all stores here, the observer's included: to compare with Cassandra's count."""
        counts = [node.store.counts for node in self.nodes] + [self.observer.counts]
        return _Counted(sum(one.rounds for one in counts), sum(one.requests for one in counts))

    async def live(self, quick: bool) -> Life:
        life = Life(self.workload, self.workload.quick_messages if quick else self.workload.messages)
        try:
            await self._live(life)
        except (NotDone, CapelliniError) as error:  # the other workloads' figures are good all the same
            life.failed = str(error)
        return life

    async def _live(self, life: Life) -> None:
        brokers = [node.service for node in self.nodes]
        before = [msgspec.structs.replace(node.store.counts) for node in self.nodes]
        began_s = time.perf_counter()
        await brokers[0].create(QUEUE)
        await self.workload.drive(brokers, life.messages)
        life.drive_s = time.perf_counter() - began_s
        log.info("%s: %d messages put, got and acked in %.1f s", self.keyspace, life.messages, life.drive_s)
        try:
            dropped = partial(self._all_dropped, life.messages)
            await self._until(dropped, "the full buckets are dropped", DROPPED_WITHIN_S)
        except NotDone:  # then clearing drops them, and counts as well
            life.dropped_by = "clearing"
        await brokers[0].delete(QUEUE)
        await self._until(self._all_cleared, "the deleted queue is cleared", CLEARED_WITHIN_S)
        life.whole_s = time.perf_counter() - began_s
        for node, early in zip(self.nodes, before, strict=True):
            counts = node.store.counts
            life.rounds += counts.rounds - early.rounds
            life.requests += counts.requests - early.requests
            life.retries += counts.retries - early.retries

    async def _until(self, done: Callable[[], Awaitable[bool]], what: str, within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while not await done():
            if time.monotonic() > deadline_s:
                raise NotDone(f"{self.workload.name}: after {within_s:g} s it is not so that {what}")
            await asyncio.sleep(POLL_S)

    async def _all_dropped(self, messages: int) -> bool:
        """Every full bucket is. A consumer that waits looks on meanwhile, as there always is one; that is counted."""
        await self.nodes[0].service.take(QUEUE, 1)
        page = await self.observer.read(Slice(POINTERS, (QUEUE, 1), limit=1))
        record = page.rows[0].values.get("record") if page.rows else None
        pointers = pointing.decode(record if isinstance(record, bytes) else None)
        full = messages // WorkOptions().bucket_size  # at least: ids that were voided come on top
        listed = {bucket for bucket, entry in pointers.listed.items() if entry.kind == pointing.DROPPED}
        left = {bucket for bucket in pointers.listed if bucket < full} | set(range(pointers.reader, full))
        return left <= listed

    async def _all_cleared(self) -> bool:
        page = await self.observer.read(Slice(LEFT, REALM))
        return any(row.key[0] == QUEUE and row.values.get("state") == "cleared" for row in page.rows)

    async def close(self) -> None:
        for node in self.nodes:
            await node.close()
        await self.observer.close()


async def _paxos_writes_per_round(made: Sequence[_Nodes], session: Any) -> float:
    """From compare-and-sets on new rows, which nobody disputes. Leases beat meanwhile: their rounds count as well."""
    store, partition = made[0].observer, f"trial-{time.time_ns()}"
    writes, rounds = await _number(session, PAXOS_WRITES), sum(each.counted().rounds for each in made)
    for number in range(TRIAL):
        change = Change((), ABSENT, {"id": number, "state": "trial", "token": str(number)})
        outcome = await store.compare_and_set(Cas(KEYS, (partition, 0, str(number)), (change,)))
        if not outcome.applied:
            raise RuntimeError("a compare-and-set on a new row was refused")
    rounds = sum(each.counted().rounds for each in made) - rounds
    return (await _number(session, PAXOS_WRITES) - writes) / rounds


async def _tombstones_of(session: Any, keyspace: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in await session.query(TOMBSTONES):
        space, table, count, p50, p99, most = row.as_list()
        if space == keyspace and count:
            found[table] = {"reads": count, "p50": p50, "p99": p99, "max": most}
    return found


async def _number(session: Any, text: str) -> int:
    return int(next(iter(await session.query(text))).as_list()[0])


async def _sum(session: Any, text: str) -> int:
    return sum(int(row.as_list()[0]) for row in await session.query(text))
