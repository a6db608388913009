"""Making the tables on nodes that do not agree yet: waited for, repeated within bounds, and said clearly at the end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from acsylla import errors as driver

from capellini.model.address import CassandraAddress
from capellini.model.errors import CannotOpen, StoreError, Unavailable, Unknown
from capellini.store import cassandra_schema, cql
from capellini.store.cassandra_session import Bound, NoRights, Rows, Session
from capellini.store.interface import Level, Value
from capellini.store.schema import SCHEMA_VERSION, TABLES

DISAGREED = Unknown("Operation failed - received 1 responses and 1 failures: INCOMPATIBLE_SCHEMA from /127.0.0.2")
ADDRESS = CassandraAddress(("127.0.0.1",), "k")


class HurriedClock:
    """Sleeping takes no time, and is added up."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def now_s(self) -> float:
        return self.slept_s

    def elapsed_s(self) -> float:
        return self.slept_s

    async def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


class Cluster(Session):
    """What the schema's steps ask of a session, answered from memory; `failures` come first, one per call."""

    def __init__(self, clock: HurriedClock, address: CassandraAddress = ADDRESS) -> None:
        super().__init__(address, clock, None, "dc", {"dc": ["127.0.0.1", "127.0.0.2", "127.0.0.3"]})
        self.clock = clock
        self.keyspace = False
        self.changed_us = 0  # as a keyspace's row says: with each change of a table it is another
        self.ids: dict[str, str] = {}  # of each table, in the order in which they were made
        self.version: int | None = None
        self.change_failures: list[StoreError] = []
        self.cas_failures: list[StoreError] = []
        self.disagree_until_s = 0.0
        self.strays = 1  # nodes with another schema each, until then
        self.changes = 0
        self.turns = itertools.count()  # hosts take turns in answering

    async def read(self, text: str, parameters: Sequence[Value], level: Level, limit: int | None = None) -> Rows:
        if "system_schema.keyspaces" in text:
            return [["k"]] if self.keyspace else []
        if "system_schema.columns" in text:
            table = next(each for each in (cql.VERSIONS, *TABLES) if each.name == parameters[1])
            kinds = (("partition_key", table.partition), ("clustering", table.clustering), ("static", table.statics),
                     ("regular", table.columns))  # fmt: skip
            found = [[column.name, kind, column.type.value] for kind, columns in kinds for column in columns]
            return found if table.name in self.tables else []
        if "system.local" in text or "system.peers" in text:
            return self.told_by(next(self.turns), text)
        return [] if self.version is None else [[self.version]]

    def told_by(self, turn: int, text: str) -> Rows:
        """Its own schema, or its peers', which are all others."""
        strays = self.strays if self.clock.slept_s < self.disagree_until_s else 0
        versions = [["one"]] * (3 - strays) + [[f"other {number}"] for number in range(strays)]
        own = turn % 3
        return [versions[own]] if "system.local" in text else versions[:own] + versions[own + 1 :]

    async def asked(self, texts: Sequence[str]) -> list[Rows]:
        """One host's answers about all nodes' schemas, or about the keyspace and the version table."""
        if "schema_version FROM system.local" in texts[0]:
            turn = next(self.turns)
            return [self.told_by(turn, text) for text in texts]
        assert "writetime" in texts[0] and cql.VERSIONS.name in texts[1]
        id = self.ids.get(cql.VERSIONS.name)
        return [[[self.changed_us]] if self.keyspace else [], [] if id is None else [[id]]]

    @property
    def tables(self) -> set[str]:
        return set(self.ids)

    async def prepare(self, text: str) -> Any:
        return text

    async def compare_and_set(self, statements: Sequence[Bound], level: Level) -> list[dict[str, Value]]:
        if self.cas_failures:
            raise self.cas_failures.pop(0)
        if cql.VERSIONS.name in str(statements[0][0]):
            self.version = SCHEMA_VERSION
        return []

    async def change_schema(self, text: str, what: str) -> None:
        assert self.clock.slept_s >= self.disagree_until_s or not self.keyspace, "changed while the nodes disagree"
        self.changes += 1
        if self.change_failures:
            raise self.change_failures.pop(0)
        self.changed_us += 1
        if text.startswith("CREATE KEYSPACE"):
            self.keyspace = True
            return
        (table,) = [table.name for table in (cql.VERSIONS, *TABLES) if cql.place("k", table) + " (" in text]
        self.ids.setdefault(table, text.partition(" WITH id = ")[2].partition("\n")[0])


async def test_a_change_that_meets_nodes_without_agreement_is_repeated() -> None:
    clock = HurriedClock()
    cluster = Cluster(clock)
    cluster.change_failures = [DISAGREED, Unavailable("keyspace k does not exist")]
    cluster.cas_failures = [DISAGREED]
    await cassandra_schema.ensure(cluster, TABLES, True, clock)
    assert cluster.tables == {table.name for table in (cql.VERSIONS, *TABLES)}
    assert cluster.version == SCHEMA_VERSION
    assert clock.slept_s >= 3 * min(cassandra_schema.PAUSES_S)


async def test_tables_have_the_ids_that_they_would_have_had_however_far_somebody_got_before() -> None:
    whole = Cluster(HurriedClock())
    await cassandra_schema.ensure(whole, TABLES, True, whole.clock)
    assert next(iter(whole.ids)) == cql.VERSIONS.name and len({*whole.ids.values()}) == len(TABLES) + 1
    for done in range(len(TABLES) + 2):  # each change tells another time of the keyspace
        begun = Cluster(HurriedClock())
        begun.keyspace, begun.changed_us = True, 1 + done
        begun.ids = dict([*whole.ids.items()][:done])
        await cassandra_schema.ensure(begun, TABLES, True, begun.clock)
        assert begun.ids == whole.ids


async def test_nothing_is_changed_before_the_nodes_agree() -> None:
    clock = HurriedClock()
    cluster = Cluster(clock)
    cluster.disagree_until_s, cluster.strays = 4.0, 2
    cluster.keyspace = True
    await cassandra_schema.ensure(cluster, TABLES, True, clock)
    assert clock.slept_s >= 4.0


@pytest.mark.parametrize("first", range(3))
async def test_nodes_agree_when_one_says_so_of_itself_and_of_its_peers(first: int) -> None:
    """Of its own and of another's peers the other is missing, be it the only one that differs."""
    clock = HurriedClock()
    cluster = Cluster(clock)
    cluster.turns = itertools.count(first)
    cluster.disagree_until_s, cluster.keyspace = 2.0, True
    await cassandra_schema.ensure(cluster, TABLES, True, clock)
    assert clock.slept_s >= 2.0


async def test_a_node_that_is_down_is_not_waited_for_for_ever() -> None:
    clock = HurriedClock()
    cluster = Cluster(clock)
    cluster.disagree_until_s = 1e9  # its last version stays in the list
    await cassandra_schema._agreement(cluster, clock)
    assert cassandra_schema.ALL_AGREE_S < clock.slept_s < cassandra_schema.AGREEMENT_S


async def test_nodes_that_never_agree_are_named_in_the_end() -> None:
    clock = HurriedClock()
    cluster = Cluster(clock)
    cluster.disagree_until_s, cluster.strays = 1e9, 2
    with pytest.raises(CannotOpen, match="disagree on the schema: see `nodetool describecluster`"):
        await cassandra_schema.ensure(cluster, TABLES, True, clock)
    assert clock.slept_s < 2 * cassandra_schema.AGREEMENT_S
    assert cluster.changes == 0


async def test_repeating_ends_with_what_the_last_attempt_met() -> None:
    clock = HurriedClock()
    cluster = Cluster(clock)
    cluster.keyspace = True
    cluster.ids = {table.name: str(UUID(int=at)) for at, table in enumerate((cql.VERSIONS, *TABLES))}
    cluster.cas_failures = [DISAGREED] * 100
    with pytest.raises(CannotOpen, match=r"does not work: .*INCOMPATIBLE_SCHEMA.*try again when its nodes agree"):
        await cassandra_schema.ensure(cluster, TABLES, True, clock)
    assert len(cluster.cas_failures) == 100 - len(cassandra_schema.PAUSES_S) - 1


async def test_missing_rights_are_said_at_once() -> None:
    clock = HurriedClock()
    cluster = Cluster(clock, CassandraAddress(("127.0.0.1",), "k", username="guest", password="x"))
    cluster.cas_failures = [NoRights("no MODIFY")]
    with pytest.raises(CannotOpen, match="'guest': grant SELECT and MODIFY on the keyspace"):
        await cassandra_schema.ensure(cluster, TABLES, True, clock)
    assert clock.slept_s == 0.0


class Refusing:
    """The driver's session, as far as a change needs it."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    async def execute(self, statement: object) -> None:
        if self.failures:
            raise self.failures.pop(0)


def session_over(driver_session: Refusing) -> Session:
    hosts = ["127.0.0.1", "127.0.0.2"]
    return Session(ADDRESS, HurriedClock(), driver_session, "dc", {"dc": hosts})


@pytest.mark.parametrize(
    ("failure", "means", "left"),
    [
        (driver.CassErrorServerWriteFailure("1 failures: INCOMPATIBLE_SCHEMA from /127.0.0.2"), Unknown, 1),
        (driver.CassErrorLibRequestTimedOut("timed out"), Unknown, 1),
        (driver.CassErrorServerInvalidQuery("Keyspace 'k' does not exist"), Unavailable, 1),
        (driver.CassErrorServerConfigError("no such replication"), CannotOpen, 1),
        (driver.CassErrorServerUnauthorized("no CREATE permission"), CannotOpen, 1),
        (driver.CassErrorLibNoHostsAvailable("down"), Unavailable, 0),  # never sent: the next host is asked
    ],
)
async def test_a_failed_change_says_whether_it_may_pass(failure: Exception, means: type[Exception], left: int) -> None:
    inner = Refusing(failure, failure)
    with pytest.raises(means, match="create tables"):
        await session_over(inner).change_schema("CREATE TABLE x", "create tables")
    assert len(inner.failures) == left


async def test_a_change_goes_by_way_of_the_first_host_that_is_up() -> None:
    inner = Refusing(driver.CassErrorLibNoHostsAvailable("down"))
    await session_over(inner).change_schema("CREATE TABLE x", "create tables")
    assert inner.failures == []


@pytest.mark.parametrize(("nodes", "copies"), [(1, "1"), (2, "2"), (3, "3"), (7, "3")])
def test_a_keyspace_has_three_replicas_where_there_are_so_many_nodes(nodes: int, copies: str) -> None:
    assert cassandra_schema.usual_replication(nodes) == copies
