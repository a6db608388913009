"""The doctor and the settings of a node, on a real cluster."""

from __future__ import annotations

import pytest

from capellini.model.errors import CannotOpen
from capellini.node.doctor import examine
from capellini.node.node import Node
from capellini.node.settings import Settings

pytestmark = pytest.mark.cassandra


def settings(hosts: str, keyspace: str, **more: str) -> Settings:
    return Settings(contact_points=hosts, keyspace=keyspace, listen="127.0.0.1:0", **more)


async def test_a_cluster_is_examined_before_and_after_a_node_was_there(
    cassandra_address: str, fresh_keyspace: str
) -> None:
    address = f"cassandra://{cassandra_address}/{fresh_keyspace}"
    before = {each.name: each for each in await examine(address)}
    assert all(before[name].state == "ok" for name in ("reachable", "nodes", "versions", "clocks"))
    assert before["replication"].state == before["schema"].state == "warn"
    assert before["commitlog_sync"].state == "ok"
    node = await Node.open(settings(cassandra_address, fresh_keyspace))
    try:
        assert node.condition.ready
    finally:
        await node.close()
    after = {each.name: each for each in await examine(address)}
    assert after["replication"].state == after["schema"].state == "ok"
    assert after["paxos_variant"].says


async def test_a_cluster_of_another_name_is_refused(cassandra_address: str, fresh_keyspace: str) -> None:
    with pytest.raises(CannotOpen, match="not 'Other'"):
        await Node.open(settings(cassandra_address, fresh_keyspace, cluster_name="Other"))


async def test_a_cluster_that_nobody_answers_for_is_one_bad_finding(free_port: int) -> None:
    found = await examine(f"cassandra://127.0.0.1:{free_port}/some_keyspace")
    assert [(each.name, each.state) for each in found] == [("reachable", "bad")]


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
