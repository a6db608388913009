"""A log queue on three nodes of ours and three of Cassandra; nodes of both are killed and paused while messages flow.
Nothing that was confirmed is lost, acks stay acked, and a chain keeps its order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.flow import Flow, told, until
from tests.log_flow import LogFlow
from tests.trouble import BEYOND_LEASE_S, nodes_on

from capellini.local.cluster import LocalCluster

pytestmark = [pytest.mark.cassandra, pytest.mark.slow]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["cp", "ap"])
async def test_a_killed_and_a_paused_node_and_a_dead_replica_lose_nothing(
    mode: str, broken_cluster: LocalCluster, fresh_keyspace: str, tmp_path: Path
) -> None:
    servers = nodes_on(broken_cluster, f"{fresh_keyspace}_{mode}"[-48:], tmp_path)
    options: dict[str, float | str] = {"mode": mode, "ordered": "total" if mode == "cp" else "", "level": "all"}
    flow = LogFlow(servers, 1, 1_000, options, pause_s=0.15)

    async def faults(_: Flow) -> None:
        await flow.answers(30)
        await until(lambda: any(flow.writes(server.name) for server in servers), "somebody writes")
        killed = next(server for server in servers if flow.writes(server.name))
        paused = next(server for server in servers if server is not killed)
        await asyncio.to_thread(broken_cluster.kill, 3)
        await flow.answers(30)
        killed.strike()
        paused.pause()
        began = asyncio.get_running_loop().time()
        await flow.answers(10)
        killed.start()
        coming_back = asyncio.create_task(asyncio.to_thread(broken_cluster.start, 3))
        await killed.up()
        await asyncio.sleep(max(0.0, BEYOND_LEASE_S - (asyncio.get_running_loop().time() - began)))
        paused.resume()
        await coming_back
        await flow.answers(60)

    violations = await flow.run(faults)
    assert not violations, told(flow, violations)
    assert flow.put >= 1_000
    assert any(view.state == "sealed" for view in flow.seen.values()), "no extent was sealed"
