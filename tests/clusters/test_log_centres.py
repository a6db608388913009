"""Log queues across two data centres that are cut from each other: an ap queue goes on on both sides, a cp queue only
on the one with the majority; after healing all is delivered, the cp queue's in order.

    dc1: replicas 1 and 3, our nodes n1 and n2   ──✂──   dc2: replica 2, our node n3
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.flow import DEADLINE_S, Flow, Server, told
from tests.log_flow import LogFlow

from capellini import CapelliniError, connect_async
from capellini.local import network, processes
from capellini.local.cluster import LocalCluster
from capellini.local.errors import ClusterError
from capellini.queues.log.names import writer_of

pytestmark = [pytest.mark.cassandra, pytest.mark.slow, pytest.mark.long]
PLACES = (("dc1", "n1"), ("dc1", "n2"), ("dc2", "n3"))


@pytest.fixture
def two_centres() -> Iterator[LocalCluster]:
    try:
        network.check_rights()
    except ClusterError as missing:
        pytest.skip(str(missing))
    cluster = LocalCluster(f"log-dcs-{os.getpid()}")
    try:
        cluster.up(nodes=3, dcs=2, netns=True, owner=processes.identify(os.getpid()), timeout_s=DEADLINE_S)
        yield cluster
    finally:
        cluster.down()


def nodes_in(cluster: LocalCluster, keyspace: str, logs: Path) -> list[Server]:
    servers = []
    for dc, name in PLACES:
        hosts = ",".join(node.address for node in cluster.status() if node.dc == dc)
        store = f"cassandra://{hosts}/{keyspace}?replication=dc1:2,dc2:1&dc={dc}"
        servers.append(Server(name, store, logs, supervised=True))
    return servers


async def writers_at(flow: LogFlow, server: Server, count: int, within_s: float) -> list[str]:
    """Who wrote the probes that server confirms within that time; a node has to notice the cut first."""
    done: list[str] = []
    number, end_s = 0, asyncio.get_running_loop().time() + within_s
    async with connect_async(server.url, patience_s=0.0, request_timeout_s=10.0) as client:
        while len(done) < count and asyncio.get_running_loop().time() < end_s:
            number += 1
            try:
                id = await client.put(flow.queue, f"probe.{server.name}.{number}".encode())
                done.append(writer_of(id.partition(":")[0])[0])
            except CapelliniError:
                await asyncio.sleep(0.5)
    return done


@pytest.mark.parametrize("mode", ["ap", "cp"])
async def test_a_cut_between_data_centres(
    mode: str, two_centres: LocalCluster, fresh_keyspace: str, tmp_path: Path
) -> None:
    servers = nodes_in(two_centres, f"{fresh_keyspace}_{mode}"[-48:], tmp_path)
    options: dict[str, float | str] = {"mode": mode, "ordered": "total" if mode == "cp" else ""}
    flow = LogFlow(servers, 4, 1_000, options, pause_s=0.2)
    if mode == "ap":
        flow.homes = [servers[:2], servers[2:]]  # keys hold within a data centre
    found: dict[str, list[str]] = {}

    async def faults(_: Flow) -> None:
        await flow.answers(50)
        for other in (1, 3):
            await asyncio.to_thread(two_centres.cut, 2, other)
        majority, minority = await asyncio.gather(
            writers_at(flow, servers[0], 5, DEADLINE_S), writers_at(flow, servers[2], 5, 60.0)
        )
        found.update(majority=majority, minority=minority)
        await asyncio.to_thread(two_centres.heal)
        await asyncio.to_thread(two_centres.wait_healthy, DEADLINE_S)
        await flow.answers(50)

    violations = [one for one in await flow.run(faults) if not one.message.startswith("probe.")]
    assert not violations, told(flow, violations)
    assert len(found["majority"]) == 5 and set(found["majority"]) <= {"n1", "n2"}
    if mode == "ap":
        assert found["minority"] == ["n3"] * 5
    else:  # replicas are cut from each other, our nodes are not: n3 may send puts on to who has the majority
        assert set(found["minority"]) <= {"n1", "n2"}
