"""What all tests share: one real Cassandra cluster, started when the first test asks for it.

Three nodes on loopback, ended with the last test that may ask for them; what a killed run left is taken down first. To
save the start, keep a cluster of your own and name it: `capellini cluster up --name mine`, then
`CAPELLINI_TEST_CLUSTER=mine make test`.

`make test` runs the tests in two processes. What is shared is started once because its tests stay together:

    one process      all tests with the word `cassandra` in their ids; those with `spark` stay together, too
    the other        everything else, a file at a time; so also tests/clusters, where each has a cluster of its own

So no test may count on another of a different file, nor on being alone on the machine.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from capellini.local import processes
from capellini.local.cluster import LocalCluster, remove_leftovers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

hypothesis.settings.register_profile("ours", deadline=None)  # nothing fails because a machine is slow
hypothesis.settings.load_profile("ours")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what goes on in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or what the tests start could not be interrupted

SHARED = ("cassandra", "spark")  # what is started once; both are also markers
OWN_CLUSTERS = "tests/clusters/"
KEYSPACE_NAME_LENGTH = 48  # Cassandra's limit
OUR_CLUSTER = pytest.StashKey[LocalCluster]()


def together_with(nodeid: str) -> str:
    """What a test stays together with: the word of something shared that its id has, else the tests of its file."""
    return next((word for word in SHARED if word in nodeid), nodeid.partition("::")[0])


class Together(LoadScopeScheduling):
    """Hands out groups of tests, the largest first. It knows tests by their ids alone: markers stay in the processes
    that collected them."""

    def _split_scope(self, nodeid: str) -> str:
        return together_with(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    return Together(config, log)


class Telling:
    """Says what failed at once, and not only at the end: a run that is ended from outside has no end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n{report.nodeid} failed in {report.when}:\n{report.longreprtext}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that people see
        config.pluginmanager.register(Telling(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test without the word in its id would start a second cluster in another process."""
    for item in items:
        for word in SHARED:
            marked = item.get_closest_marker(word) and not item.nodeid.startswith(OWN_CLUSTERS)
            if marked and together_with(item.nodeid) not in SHARED[: SHARED.index(word) + 1]:
                raise pytest.UsageError(f"{item.nodeid} is marked {word}: have the word in its name or its file's")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """The shared cluster goes when its last test is over, not at the end of the run: three idle nodes are not idle.
    Only where its tests are run one after the other, by `Together`; else more may come."""
    yield
    over = together_with(item.nodeid) == "cassandra" != together_with(nextitem.nodeid if nextitem else "")
    cluster = item.config.stash.get(OUR_CLUSTER, None)
    if over and cluster and hasattr(item.config, "workerinput"):
        cluster.down()


@pytest.fixture(scope="session")
def cassandra_cluster(pytestconfig: pytest.Config) -> Iterator[LocalCluster]:
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
        pytestconfig.stash[OUR_CLUSTER] = cluster
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


@pytest.fixture(scope="session")
def shared_keyspace() -> str:
    """One for all tests that need nothing but queues with names of their own: making all tables takes three nodes some
    twenty seconds of processor time."""
    return f"t_shared_{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def fresh_keyspace(request: pytest.FixtureRequest) -> str:
    """A keyspace name no other module and no other run uses; making it is up to the test."""
    module = re.sub(r"\W+", "_", request.module.__name__.rpartition(".")[2].lower())
    unique = secrets.token_hex(4)
    return f"t_{module}"[: KEYSPACE_NAME_LENGTH - len(unique) - 1] + f"_{unique}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small Spark session for all tests: starting it takes longer than most of them."""
    from tests.spark.nodes import SMALL

    from capellini.pipeline.session import Plan, session

    settings = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")), **SMALL}
    plan = Plan("local[1]", memory_mb=1_024, shuffle_partitions=1, delta=True, settings=settings)
    started = session(plan, "capellini-tests")
    yield started
    started.stop()
