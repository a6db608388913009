"""Timed queues: how late messages are, what puts and deliveries cost, and whether a large backlog matters.

    timed.rocks.*        a node in a process of its own on a folder, asked over the network    (timed_rocks.py)
    timed.*_with_5M_*    beside an empty queue, in turns                                       (timed_backlog.py)
    timed.cassandra.*    one Cassandra node; what the store was asked for is counted           (timed_cassandra.py)
    timed.idle_*         on that Cassandra: what a queue with nothing due asks for

Only the parts that the wanted figures need are run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from capellini.bench.figures import Figure
from capellini.bench.parts import in_turn

PARTS: Final = {
    "capellini.bench.timed_rocks": ("timed.rocks.",),
    "capellini.bench.timed_backlog": ("timed.late_with_", "timed.put_with_"),
    "capellini.bench.timed_cassandra": ("timed.cassandra.", "timed.idle_reads_"),
}


def run(quick: bool, only: str | None) -> AsyncIterator[Figure]:
    """All figures of timed queues that `only` picks."""
    return in_turn("timed", PARTS, quick, only)
