"""Work queues: what a message costs on Cassandra, whether that grows, and how fast the embedded node is beside others.

    work.cassandra.*    rounds and requests per message            (work_cassandra.py)
    work.simulated.*    eight nodes on one queue against one       (work_nodes.py)
    work.cost_*         cost in old and full queues                (work_cost.py)
    work.rocks.*        beside PostgreSQL, Redis and beanstalkd    (work_peers.py)

Only the parts that the wanted figures need are run.
"""

from __future__ import annotations

import asyncio
import importlib
from statistics import median
from typing import Final

from capellini.bench import work_nodes
from capellini.bench.figures import Detail, Figure, judge, names

NODES: Final = 8
VIRTUAL_S: Final = 20.0
QUICK_VIRTUAL_S: Final = 8.0
SEEDS: Final = (1, 2, 3)
QUICK_SEEDS: Final = (1,)

# Imported when needed: each brings along drivers that the others do not need.
PARTS: Final = {
    "work.cassandra.": "capellini.bench.work_cassandra",
    "work.simulated.": "capellini.bench.work",
    "work.cost_": "capellini.bench.work_cost",
    "work.rocks.": "capellini.bench.work_peers",
}


async def run(quick: bool, only: str | None) -> list[Figure]:
    """All figures of work queues that `only` picks, in the order they are listed."""
    wanted = names("work", only)
    measured: dict[str, Figure] = {}
    for prefix, module in PARTS.items():
        if mine := [name for name in wanted if name.startswith(prefix)]:
            part = simulated if prefix == "work.simulated." else importlib.import_module(module).run
            measured |= {figure.figure: figure for figure in await part(quick, mine)}
    return [measured[name] for name in wanted]


async def simulated(quick: bool, _wanted: list[str]) -> list[Figure]:
    virtual_s, seeds = (QUICK_VIRTUAL_S, QUICK_SEEDS) if quick else (VIRTUAL_S, SEEDS)
    # In a thread: a virtual loop does not run inside a real one.
    runs = [await asyncio.to_thread(work_nodes.speedup, NODES, virtual_s, seed) for seed in seeds]
    speedups = [found for found, _ in runs]
    detail: Detail = {"speedups": [round(found, 2) for found in speedups], "virtual_s": virtual_s, "nodes": NODES}
    for name, work in runs[0][1].items():
        detail[f"{name}_acked_per_virtual_s"] = round(work.acked / virtual_s)
        detail[f"{name}_rounds_per_message"] = round(work.rounds / max(1, work.acked), 4)
    return [judge("work.simulated.eight_nodes_speedup", median(speedups), detail)]
