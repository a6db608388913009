"""What runs with faults have in common: three nodes of ours on a local cluster, and how long a pause must be."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.flow import Server

from capellini.local.cluster import LocalCluster
from capellini.queues.lease import LEASE_S, patience_s

BEYOND_LEASE_S: Final = patience_s(LEASE_S) + 2.0  # of a paused node: the others end its lease meanwhile


def nodes_on(cluster: LocalCluster, keyspace: str, logs: Path) -> list[Server]:
    """Not started yet."""
    store = f"cassandra://{cluster.contact_points()}/{keyspace}?replication=3"
    return [Server(f"n{number}", store, logs, supervised=True) for number in (1, 2, 3)]
