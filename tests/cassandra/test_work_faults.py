"""Three nodes on three Cassandra nodes, messages flowing; of either kind one is killed, paused or cut off at a time."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.flow import DEADLINE_S, Flow, Server, told
from tests.trouble import BEYOND_LEASE_S, nodes_on

from capellini.local import processes
from capellini.local.cluster import LocalCluster

pytestmark = [pytest.mark.cassandra, pytest.mark.slow]
BATCH: Final = 40  # so many that what is to be put is put while there is trouble, and not in the calm after it
CASSANDRA_PAUSE_S: Final = (1.0, 6.0)  # around a request's time-out, and around the time until the others miss it


async def trouble_of_ours(flow: Flow, chance: random.Random) -> None:
    """One is killed, one is paused beyond its lease."""
    acts = ["kill", "pause"]
    chance.shuffle(acts)
    for act in acts:
        server = chance.choice(flow.servers)
        await flow.answers(chance.randint(10, 100))
        if act == "kill":
            await server.kill()
            await flow.answers(chance.randint(1, 30))
            server.start()
            await server.up()
        else:
            server.pause()
            await asyncio.sleep(BEYOND_LEASE_S)
            server.resume()


async def trouble_of_theirs(flow: Flow, chance: random.Random, cluster: LocalCluster) -> None:
    """One is killed, one is paused; the next only when all are well again: two replicas of three are a quorum."""
    acts = ["kill", "pause"]
    chance.shuffle(acts)
    for act in acts:
        number = chance.randint(1, 3)
        await flow.answers(chance.randint(10, 100))
        if act == "kill":
            await asyncio.to_thread(cluster.kill, number)
            await flow.answers(chance.randint(1, 30))
            await asyncio.to_thread(cluster.start, number, timeout_s=DEADLINE_S)
        else:
            await asyncio.to_thread(cluster.pause, number)
            await asyncio.sleep(chance.uniform(*CASSANDRA_PAUSE_S))
            await asyncio.to_thread(cluster.resume, number, timeout_s=DEADLINE_S)


async def troubled(cluster: LocalCluster, servers: list[Server], seed: int, least: int) -> None:
    """One trouble after the other until so many messages were put."""
    flow = Flow(servers, seed, least, visibility_s=6.0, pause_s=0.05, batch=BATCH)
    ours, theirs = random.Random(f"ours/{seed}"), random.Random(f"theirs/{seed}")

    async def faults(flow: Flow) -> None:
        while flow.put < least:
            await asyncio.gather(trouble_of_ours(flow, ours), trouble_of_theirs(flow, theirs, cluster))

    violations = await flow.run(faults)
    calls = f"{flow.put} messages put, {flow.answered} calls answered, {flow.stale} stale receipts refused"
    print(f"{calls}, {len(violations)} violations (seed {seed})")
    assert not violations, told(flow, violations)
    assert flow.put >= least and flow.stale, "the run was to show more than that"


@pytest.mark.long
async def test_fifty_thousand_messages_and_trouble_without_end_lose_nothing(
    broken_cluster: LocalCluster, fresh_keyspace: str, tmp_path: Path
) -> None:
    servers = nodes_on(broken_cluster, f"{fresh_keyspace}_l"[:48], tmp_path)
    await troubled(broken_cluster, servers, 2, 50_000)


@pytest.fixture
def cut_cluster() -> Iterator[LocalCluster]:
    """A cluster of its own, with links that can be cut."""
    cluster = LocalCluster(f"cut-{os.getpid()}")
    try:
        cluster.up(nodes=3, netns=True, owner=processes.identify(os.getpid()), timeout_s=DEADLINE_S)
        yield cluster
    finally:
        cluster.down()


@pytest.mark.long
async def test_a_cut_link_loses_nothing(cut_cluster: LocalCluster, fresh_keyspace: str, tmp_path: Path) -> None:
    """Two of three replicas do not reach each other, and both reach the third."""
    flow = Flow(nodes_on(cut_cluster, fresh_keyspace, tmp_path), 3, 1_000, visibility_s=6.0, pause_s=0.2)

    async def faults(flow: Flow) -> None:
        await flow.answers(50)
        await asyncio.to_thread(cut_cluster.cut, 1, 2)
        await flow.answers(200)
        await asyncio.to_thread(cut_cluster.heal)
        await asyncio.to_thread(cut_cluster.wait_healthy, DEADLINE_S)
        await flow.answers(50)

    violations = await flow.run(faults)
    assert not violations, told(flow, violations)
    assert flow.put >= 1_000
