"""A log queue confirmed by all replicas, on five Cassandra nodes with three copies each: one node is killed under load.
Its extents are sealed, the next ones lie on nodes that live, at level all again, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.flow import DEADLINE_S, Flow, Server, told, until
from tests.log_flow import LogFlow

from capellini.local import processes
from capellini.local.cluster import LocalCluster
from capellini.model.log import ExtentView

pytestmark = [pytest.mark.cassandra, pytest.mark.slow, pytest.mark.long]
NODES = 5
KILLED = 2


def lies_on(view: ExtentView, address: str) -> bool:
    """A replica that is down is shown with a remark."""
    return any(replica.partition(" ")[0] == address for replica in view.replicas)


@pytest.fixture
def five_nodes() -> Iterator[LocalCluster]:
    cluster = LocalCluster(f"five-{os.getpid()}")
    try:
        cluster.up(nodes=NODES, owner=processes.identify(os.getpid()), timeout_s=DEADLINE_S)
        yield cluster
    finally:
        cluster.down()


async def test_extents_of_a_dead_replica_are_sealed_and_the_next_ones_lie_on_live_ones_at_level_all(
    five_nodes: LocalCluster, fresh_keyspace: str, tmp_path: Path
) -> None:
    dead = next(node.address for node in five_nodes.status() if node.number == KILLED)
    alive = ",".join(node.address for node in five_nodes.status() if node.number != KILLED)
    store = f"cassandra://{alive}/{fresh_keyspace}?replication=3"
    servers = [Server(f"n{number}", store, tmp_path, supervised=True) for number in (1, 2)]
    flow = LogFlow(servers, 7, 3_000, {"level": "all", "extent_bytes": 65_536}, pause_s=0.05)
    after: set[str] = set()

    def on_live_ones() -> bool:
        """Extents that were opened since, take messages, and are confirmed by all."""
        fresh = [view for view in flow.seen.values() if view.extent in after and view.state == "open" and view.end]
        return any(view.level == "all" and view.replicas and not lies_on(view, dead) for view in fresh)

    async def faults(_: Flow) -> None:
        await flow.answers(60)
        await until(
            lambda: any(lies_on(view, dead) and view.state == "open" for view in flow.seen.values()),
            "an extent lies on the node that is to die",
        )
        before = set(flow.seen)
        await asyncio.to_thread(five_nodes.kill, KILLED)
        deadline_s = asyncio.get_running_loop().time() + DEADLINE_S
        while not on_live_ones():
            assert asyncio.get_running_loop().time() < deadline_s, "no extent at level all on live nodes"
            await asyncio.sleep(0.1)
            after.update(set(flow.seen) - before)
        await flow.answers(60)
        await asyncio.to_thread(five_nodes.start, KILLED)
        await flow.answers(60)

    violations = await flow.run(faults)
    assert not violations, told(flow, violations)
    assert flow.put >= 3_000
    sealed = [view for view in flow.seen.values() if lies_on(view, dead) and view.extent not in after]
    assert sealed and all(view.state == "sealed" for view in sealed)
