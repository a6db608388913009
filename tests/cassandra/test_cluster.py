"""The local cluster for real: faults on the shared one, which is whole again after each test."""

from __future__ import annotations

import acsylla
import pytest
from tests.meshes import wait_until

from capellini.local import cql, health, state
from capellini.local.cluster import LocalCluster
from capellini.local.errors import ClusterError

pytestmark = [pytest.mark.cassandra, pytest.mark.slow]


def test_every_node_runs_and_answers(cassandra_cluster: LocalCluster) -> None:
    assert [(node.state, node.answers) for node in cassandra_cluster.status()] == [("running", True)] * 3
    wait_until(cassandra_cluster, [True] * 3)


async def test_the_driver_writes_and_reads_at_level_all(cassandra_address: str, fresh_keyspace: str) -> None:
    session = await acsylla.create_cluster(cassandra_address.split(",")).create_session()
    try:
        await session.query(
            f"CREATE KEYSPACE {fresh_keyspace} WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': 3}}"
        )
        await session.query(f"CREATE TABLE {fresh_keyspace}.t (id int PRIMARY KEY, body text)")
        write = acsylla.create_statement(f"INSERT INTO {fresh_keyspace}.t (id, body) VALUES (1, 'hello')")
        write.set_consistency(acsylla.Consistency.ALL)
        await session.execute(write)
        read = acsylla.create_statement(f"SELECT body FROM {fresh_keyspace}.t WHERE id = 1")
        read.set_consistency(acsylla.Consistency.ALL)
        row = (await session.execute(read)).first()
        assert row is not None and row.column_value("body") == "hello"
    finally:
        await session.query(f"DROP KEYSPACE IF EXISTS {fresh_keyspace}")
        await session.close()


def test_what_a_node_was_not_told_it_is_told_again(cassandra_cluster: LocalCluster) -> None:
    """Here by hand; a cluster that starts does it when a node does not know the table that is asked for."""
    now = state.load(cassandra_cluster.folder)
    assert now is not None
    first, last = now.nodes[0].config, now.nodes[-1].config
    health.ask(first, f"DROP KEYSPACE {health.CHECK_KEYSPACE}", cql.ONE, health.SCHEMA_TIMEOUT_S)
    with pytest.raises(cql.CqlError):
        health.check_whole(last, now)
    health.tell_again(now)
    cassandra_cluster.wait_healthy()
    health.check_whole(last, now)


def test_a_paused_node_is_missed_and_comes_back(broken_cluster: LocalCluster) -> None:
    broken_cluster.pause(2)
    paused = broken_cluster.status()[1]
    assert (paused.state, paused.answers) == ("paused", False)
    wait_until(broken_cluster, [False] * 3)
    broken_cluster.resume(2)
    wait_until(broken_cluster, [True] * 3)


def test_a_killed_node_starts_again_with_its_data(broken_cluster: LocalCluster) -> None:
    pid = broken_cluster.status()[2].pid
    broken_cluster.kill(3)
    killed = broken_cluster.status()[2]
    assert (killed.state, killed.pid, killed.answers) == ("down", None, False)
    with pytest.raises(ClusterError, match="node 3 is down"):
        broken_cluster.pause(3)
    broken_cluster.start(3)
    assert broken_cluster.status()[2].pid not in (None, pid)
    wait_until(broken_cluster, [True] * 3)
