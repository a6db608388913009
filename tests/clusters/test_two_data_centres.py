"""A queue across two data centres, and the link between them cut: the side with a majority of the replicas goes on, the
other refuses, and nothing is lost or done twice.

    dc1: replicas 1 and 3, our nodes n1 and n2   ──✂──   dc2: replica 2, our node n3
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.flow import DEADLINE_S, Flow, Server, told

from capellini import Problem, connect_async
from capellini.local import processes
from capellini.local.cluster import LocalCluster
from capellini.proof.history import Sent

pytestmark = [pytest.mark.cassandra, pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def two_centres() -> Iterator[LocalCluster]:
    cluster = LocalCluster(f"dcs-{os.getpid()}")
    try:
        cluster.up(nodes=3, dcs=2, netns=True, owner=processes.identify(os.getpid()), timeout_s=DEADLINE_S)
        yield cluster
    finally:
        cluster.down()


def node_in(cluster: LocalCluster, dc: str, name: str, keyspace: str, logs: Path) -> Server:
    hosts = ",".join(node.address for node in cluster.status() if node.dc == dc)
    store = f"cassandra://{hosts}/{keyspace}?replication=dc1:2,dc2:1&dc={dc}"
    return Server(name, store, logs, supervised=True)


async def test_the_majority_goes_on_and_the_minority_refuses(
    two_centres: LocalCluster, fresh_keyspace: str, tmp_path: Path
) -> None:
    places = (("dc1", "n1"), ("dc1", "n2"), ("dc2", "n3"))
    servers = [node_in(two_centres, dc, name, fresh_keyspace, tmp_path) for dc, name in places]
    flow = Flow(servers, 4, 1_000, visibility_s=6.0, pause_s=0.2)
    refused: list[str] = []

    async def faults(flow: Flow) -> None:
        await flow.answers(50)
        for other in (1, 3):
            await asyncio.to_thread(two_centres.cut, 2, other)
        await flow.answers(100)
        async with connect_async(servers[2].url, patience_s=0.0) as minority:
            sent = Sent(b"in the minority")
            work = minority.put_many(flow.queue, [sent.body])
            call, results = await flow.call("probe", servers[2], "put", work, sent=(sent,))
            call.puts = results or []
            refused.extend(result.error for result in call.puts if isinstance(result, Problem))
        await asyncio.to_thread(two_centres.heal)
        await asyncio.to_thread(two_centres.wait_healthy, DEADLINE_S)
        await flow.answers(50)

    violations = await flow.run(faults)
    assert not violations, told(flow, violations)
    assert flow.put >= 1_000
    assert refused in (["unavailable"], ["unknown"])
