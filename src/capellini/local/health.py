"""How a node is: its process, whether it answers, and whether it reaches all others."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from capellini.local import config, cql, processes
from capellini.local.state import ClusterState, NodeState

ASK_TIMEOUT_S = 3.0
SCHEMA_TIMEOUT_S = 30.0  # a change of the schema waits for every node to take it up
CHECK_KEYSPACE = "capellini_local"  # replicated on every node, empty


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
        answers=condition == "running" and works(lambda: check_alone(node.config.address)),
    )


def works(check: Callable[[], None]) -> bool:
    """Whether a check passes now."""
    try:
        check()
    except (OSError, cql.CqlError):
        return False
    return True


def check_alone(address: str) -> None:
    """The node answers a question it needs nobody for."""
    cql.ask(address, config.CQL_PORT, "SELECT key FROM system.local", cql.ONE, ASK_TIMEOUT_S)


def check_whole(address: str, now: ClusterState) -> None:
    """The node answers a question it needs every node for."""
    centres: dict[str, int] = {}
    for node in now.nodes:
        centres[node.config.dc] = centres.get(node.config.dc, 0) + 1
    replication = ", ".join(f"'{dc}': {count}" for dc, count in centres.items())
    if address == now.nodes[0].config.address:
        # By one node only: the same table made by two at once would be two tables.
        for statement in (
            f"CREATE KEYSPACE IF NOT EXISTS {CHECK_KEYSPACE} WITH replication = "
            f"{{'class': 'NetworkTopologyStrategy', {replication}}}",
            f"CREATE TABLE IF NOT EXISTS {CHECK_KEYSPACE}.nothing (id int PRIMARY KEY)",
        ):
            cql.ask(address, config.CQL_PORT, statement, cql.ONE, SCHEMA_TIMEOUT_S)
    question = f"SELECT id FROM {CHECK_KEYSPACE}.nothing WHERE id = 1"
    cql.ask(address, config.CQL_PORT, question, cql.ALL, ASK_TIMEOUT_S)
