"""Timed queues: how late messages are, what puts and deliveries cost, and whether a large backlog matters.

    timed.rocks.*        a node in a process of its own on a folder, asked over the network    (timed_rocks.py)
    timed.*_with_5M_*    beside an empty queue, in turns                                       (timed_backlog.py)
    timed.cassandra.*    one Cassandra node; what the store was asked for is counted           (timed_cassandra.py)
    timed.idle_*         on that Cassandra: what a queue with nothing due asks for

Only the parts that the wanted figures need are run.
"""

from __future__ import annotations

import importlib
from typing import Final

from capellini.bench.figures import Figure, names

# Imported when needed: each brings along drivers that the others do not need.
PARTS: Final = {
    "capellini.bench.timed_rocks": ("timed.rocks.",),
    "capellini.bench.timed_backlog": ("timed.late_with_", "timed.put_with_"),
    "capellini.bench.timed_cassandra": ("timed.cassandra.", "timed.idle_reads_"),
}


async def run(quick: bool, only: str | None) -> list[Figure]:
    """All figures of timed queues that `only` picks, in the order they are listed."""
    wanted = names("timed", only)
    measured: dict[str, Figure] = {}
    for module, prefixes in PARTS.items():
        if mine := [name for name in wanted if name.startswith(prefixes)]:
            part = importlib.import_module(module).run
            measured |= {figure.figure: figure for figure in await part(quick, mine)}
    return [measured[name] for name in wanted]
