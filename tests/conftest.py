"""What all tests share: one real Cassandra cluster, started when the first test asks for it.

Three nodes on loopback, ended with the test run; what a killed run left is taken down first. To save the start, keep a
cluster of your own and name it: `capellini cluster up --name mine`, then `CAPELLINI_TEST_CLUSTER=mine make test`.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator

import pytest

from capellini.local import processes
from capellini.local.cluster import LocalCluster, remove_leftovers

KEYSPACE_NAME_LENGTH = 48  # Cassandra's limit


@pytest.fixture(scope="session")
def cassandra_cluster() -> Iterator[LocalCluster]:
    """The shared cluster. A test that breaks it uses `broken_cluster`, which mends it."""
    if named := os.environ.get("CAPELLINI_TEST_CLUSTER"):
        kept = LocalCluster(named)
        kept.wait_healthy()
        yield kept
        return
    remove_leftovers()
    cluster = LocalCluster(f"tests-{os.getpid()}")
    try:
        cluster.up(nodes=3, owner=processes.identify(os.getpid()))
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def broken_cluster(cassandra_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The shared cluster for one test of faults: whatever it does to the nodes is undone after it."""
    yield cassandra_cluster
    for node in cassandra_cluster.status():
        if node.state == "paused":
            cassandra_cluster.resume(node.number, wait=False)
        if node.state == "down":
            cassandra_cluster.start(node.number, wait=False)
    cassandra_cluster.wait_healthy()


@pytest.fixture(scope="session")
def cassandra_address(cassandra_cluster: LocalCluster) -> str:
    """The shared cluster's contact points, with commas."""
    return cassandra_cluster.contact_points()


@pytest.fixture(scope="module")
def fresh_keyspace(request: pytest.FixtureRequest) -> str:
    """A keyspace name no other module and no other run uses; making it is up to the test."""
    module = re.sub(r"\W+", "_", request.module.__name__.rpartition(".")[2].lower())
    unique = secrets.token_hex(4)
    return f"t_{module}"[: KEYSPACE_NAME_LENGTH - len(unique) - 1] + f"_{unique}"
