"""The doctor and the settings of a node, on a real cluster."""

from __future__ import annotations

import pytest

from capellini.model.errors import CannotOpen
from capellini.node.checks import Finding
from capellini.node.doctor import examine
from capellini.node.node import Node
from capellini.node.settings import Settings

pytestmark = pytest.mark.cassandra


def settings(hosts: str, keyspace: str, **more: str) -> Settings:
    return Settings(contact_points=hosts, keyspace=keyspace, listen="127.0.0.1:0", **more)


async def examined(hosts: str, keyspace: str) -> dict[str, Finding]:
    """With patience: on a busy machine an answer may take longer than the usual five seconds."""
    return {each.name: each for each in await examine(f"cassandra://{hosts}/{keyspace}?timeout_s=30")}


async def test_a_cluster_is_examined_before_a_node_was_there(cassandra_address: str, fresh_keyspace: str) -> None:
    found = await examined(cassandra_address, fresh_keyspace)
    assert all(found[name].state == "ok" for name in ("reachable", "nodes", "versions", "clocks")), found
    assert found["replication"].state == found["schema"].state == "warn", found
    assert found["commitlog_sync"].state == "ok"
    assert not found["schema"].says.startswith("could not be asked"), found


async def test_a_cluster_is_examined_after_a_node_was_there(cassandra_address: str, shared_keyspace: str) -> None:
    node = await Node.open(settings(cassandra_address, shared_keyspace))
    try:
        assert node.condition.ready
    finally:
        await node.close()
    found = await examined(cassandra_address, shared_keyspace)
    assert found["replication"].state == found["schema"].state == "ok", found
    assert found["paxos_variant"].says


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
