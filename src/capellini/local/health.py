"""How a node is: its process, whether it answers, and whether it reaches all others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from capellini.local import config, cql, processes, tls
from capellini.local.config import NodeConfig
from capellini.local.state import ClusterState, NodeState

ASK_TIMEOUT_S = 3.0
SCHEMA_TIMEOUT_S = 30.0  # a change of the schema waits for every node to take it up
CHECK_KEYSPACE = "capellini_local"  # replicated on every node, empty
NOT_TOLD = "INCOMPATIBLE_SCHEMA"  # what Cassandra says when a replica does not know the table


class NodeStatus(msgspec.Struct, frozen=True):
    """One node as it is now."""

    number: int
    address: str
    dc: str
    state: str  # running, paused or down
    pid: int | None
    answers: bool  # it answers CQL


def process_state(node: NodeState) -> str:
    """`running`, `paused` or `down`."""
    return processes.state_of(node.process) if node.process else "down"


def node_status(node: NodeState) -> NodeStatus:
    """Look at one node."""
    condition = process_state(node)
    return NodeStatus(
        number=node.config.number,
        address=node.config.address,
        dc=node.config.dc,
        state=condition,
        pid=node.process.pid if node.process and condition != "down" else None,
        answers=condition == "running" and works(lambda: check_alone(node.config)),
    )


def works(check: Callable[[], None]) -> bool:
    """Whether a check passes now."""
    try:
        check()
    except (OSError, cql.CqlError):
        return False
    return True


def ask(node: NodeConfig, statement: str, level: int, timeout_s: float) -> None:
    """Run one statement on one node, in the way its cluster wants to be spoken to."""
    context = tls.context(Path(node.folder).parent) if node.tls else None
    user = config.FIRST_USER if node.passwords else None
    cql.ask(node.address, config.CQL_PORT, statement, level, timeout_s, context, user)


def check_alone(node: NodeConfig) -> None:
    """The node answers a question it needs nobody for."""
    ask(node, "SELECT key FROM system.local", cql.ONE, ASK_TIMEOUT_S)


def check_whole(node: NodeConfig, now: ClusterState) -> None:
    """The node answers a question it needs every node for."""
    if node.number == 1:  # by one node only: the same table made by two at once would be two tables
        _make_table(node, now)
    question = f"SELECT id FROM {CHECK_KEYSPACE}.nothing WHERE id = 1"
    ask(node, question, cql.ALL, ASK_TIMEOUT_S)


def tell_again(now: ClusterState) -> None:
    """A node that was not seen yet when the table was made is not told of it, and may not ask for minutes. A new table
    is told to all that are there now."""
    first = now.nodes[0].config
    ask(first, f"DROP KEYSPACE IF EXISTS {CHECK_KEYSPACE}", cql.ONE, SCHEMA_TIMEOUT_S)
    _make_table(first, now)


def _make_table(node: NodeConfig, now: ClusterState) -> None:
    centres: dict[str, int] = {}
    for each in now.nodes:
        centres[each.config.dc] = centres.get(each.config.dc, 0) + 1
    replication = ", ".join(f"'{dc}': {count}" for dc, count in centres.items())
    for statement in (
        f"CREATE KEYSPACE IF NOT EXISTS {CHECK_KEYSPACE} WITH replication = "
        f"{{'class': 'NetworkTopologyStrategy', {replication}}}",
        f"CREATE TABLE IF NOT EXISTS {CHECK_KEYSPACE}.nothing (id int PRIMARY KEY)",
    ):
        ask(node, statement, cql.ONE, SCHEMA_TIMEOUT_S)
