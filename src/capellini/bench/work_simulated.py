"""Eight nodes on one queue against one, in a simulated world."""

from __future__ import annotations

import asyncio
from statistics import median
from typing import Final

from capellini.bench import work_nodes
from capellini.bench.figures import Detail, Figure, judge

NODES: Final = 8
VIRTUAL_S: Final = 20.0
QUICK_VIRTUAL_S: Final = 8.0
SEEDS: Final = (1, 2, 3)
QUICK_SEEDS: Final = (1,)


async def run(quick: bool, _wanted: list[str]) -> list[Figure]:
    virtual_s, seeds = (QUICK_VIRTUAL_S, QUICK_SEEDS) if quick else (VIRTUAL_S, SEEDS)
    # In a thread: a virtual loop does not run inside a real one.
    runs = [await asyncio.to_thread(work_nodes.speedup, NODES, virtual_s, seed) for seed in seeds]
    speedups = [found for found, _ in runs]
    detail: Detail = {"speedups": [round(found, 2) for found in speedups], "virtual_s": virtual_s, "nodes": NODES}
    for name, work in runs[0][1].items():
        detail[f"{name}_acked_per_virtual_s"] = round(work.acked / virtual_s)
        detail[f"{name}_rounds_per_message"] = round(work.rounds / max(1, work.acked), 4)
    return [judge("work.simulated.eight_nodes_speedup", median(speedups), detail)]
