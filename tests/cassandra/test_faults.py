"""Queues of all three kinds on three nodes of ours and three of Cassandra, messages flowing through each; nodes of both
are killed and paused. Nothing that was confirmed is lost, nothing comes early, stale receipts are refused, a chain
keeps its order, and how long takeovers took is told. At full size each kind has a run of its own: test_*_faults.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.flow import Flow, Server, serving, told, until
from tests.log_flow import LogFlow
from tests.timed_flow import TimedFlow
from tests.trouble import BEYOND_LEASE_S, nodes_on

from capellini.local.cluster import LocalCluster

pytestmark = [pytest.mark.cassandra, pytest.mark.slow]
CASSANDRA_PAUSE_S = 4.0  # beyond a request's time-out
BATCH = 40  # so many that what is to be put is put while there is trouble, and not in the calm after it

Tell = Callable[[str, object], None]


class Trouble:
    """One of theirs is killed; of ours one is killed, and another paused beyond its lease; then one of theirs is
    paused. Two replicas of three are a quorum, so the next of theirs waits until all are well again."""

    def __init__(
        self, cluster: LocalCluster, servers: list[Server], work: Flow, timed: TimedFlow, log: LogFlow
    ) -> None:
        self.cluster, self.servers = cluster, servers
        self.work, self.timed, self.log = work, timed, log
        self.told: dict[str, float] = {}

    async def run(self) -> None:
        await self._answers(20)
        await asyncio.to_thread(self.cluster.kill, 3)
        await self._answers(20)
        await until(lambda: any(self.log.writes(server.name) for server in self.servers), "somebody writes")
        killed = next(server for server in self.servers if self.log.writes(server.name))
        paused = next(server for server in self.servers if server is not killed)
        gone: set[str] = set()
        await asyncio.gather(
            self._killed(killed, gone), self._paused(paused, gone), asyncio.to_thread(self.cluster.start, 3)
        )
        await asyncio.to_thread(self.cluster.pause, 2)
        await asyncio.sleep(CASSANDRA_PAUSE_S)
        await asyncio.to_thread(self.cluster.resume, 2)
        await self._answers(30)

    async def _killed(self, server: Server, gone: set[str]) -> None:
        self.told["takeover_after_a_kill_s"] = await self.timed.taken_from(server, server.strike, gone)
        gone.discard(server.name)  # from now on it may work what the paused one held
        server.start()
        await server.up()

    async def _paused(self, server: Server, gone: set[str]) -> None:
        began_s = time.monotonic()
        self.told["takeover_after_a_pause_s"] = await self.timed.taken_from(server, server.pause, gone)
        await asyncio.sleep(max(0.0, BEYOND_LEASE_S - (time.monotonic() - began_s)))
        gone.discard(server.name)  # from now on it may work what the killed one held
        server.resume()

    async def _answers(self, count: int) -> None:
        """All three are at work."""
        await asyncio.gather(*(flow.answers(count) for flow in (self.work, self.timed, self.log)))


async def test_killed_and_paused_nodes_lose_nothing_of_any_kind(
    broken_cluster: LocalCluster, shared_keyspace: str, tmp_path: Path, record_property: Tell
) -> None:
    servers = nodes_on(broken_cluster, shared_keyspace, tmp_path)
    work = Flow(servers, 1, 2_000, visibility_s=6.0, pause_s=0.1, batch=BATCH, queue="troubled-jobs")
    timed = TimedFlow(servers, 1, 1_000, due_within_s=5.0, pause_s=0.15, queue="troubled-later")
    chain: dict[str, float | str] = {"mode": "cp", "ordered": "total", "level": "all"}
    log = LogFlow(servers, 1, 1_000, chain, pause_s=0.2, queue="troubled-feed")
    trouble = Trouble(broken_cluster, servers, work, timed, log)
    async with serving(servers), asyncio.TaskGroup() as group:
        over = group.create_task(trouble.run())

        async def faults(_: Flow) -> None:
            await asyncio.shield(over)

        for flow in (work, timed, log):
            group.create_task(flow.through(faults))
    for flow in (work, timed, log):
        violations = flow.judged()
        calls = f"{flow.put} messages put, {flow.answered} calls answered, {flow.stale} stale receipts refused"
        print(f"{flow.kind}: {calls}, {len(violations)} violations")
        assert not violations, told(flow, violations)
    for name, took_s in trouble.told.items():
        record_property(name, round(took_s, 2))
    assert work.put >= 2_000 and work.stale, "the run was to show more than that"
    assert timed.put >= 1_000 and timed.history.taken_over_s, "the run was to show more than that"
    assert log.put >= 1_000 and any(view.state == "sealed" for view in log.seen.values()), "no extent was sealed"
