"""The store beside what it stands on: how much of the bare library's speed is left.

    store.rocks.*       this store and bare rocksdict, the same rows, in turns       (store_rocks.py)
    store.cassandra.*   this store and bare acsylla, on a node started for it        (store_cassandra.py)
    store.simulated.*   virtual seconds that pass in a second, with busy clients

Ratios are taken per round, both sides one right after the other, and the median round counts: what else the machine
does then hits both alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from statistics import median
from typing import Final

from capellini.bench import store_cassandra, store_rocks
from capellini.bench.figures import Figure, judge, names
from capellini.bench.parts import Part, measured
from capellini.store.simulation.busy import measure

TRIAL_S: Final = 10.0  # virtual seconds that tell how many more are affordable
RUN_S: Final = 20.0  # real seconds of one run
QUICK_RUN_S: Final = 4.0
REPEATS: Final = 3  # of the simulation; the median counts


async def run(quick: bool, only: str | None) -> AsyncIterator[Figure]:
    """All figures of the store that `only` picks."""
    wanted = names("store", only)
    parts: dict[str, Part] = {
        "store.rocks.": store_rocks.run,
        "store.cassandra.": store_cassandra.run,
        "store.simulated.": simulated,
    }
    for prefix, part in parts.items():
        mine = [name for name in wanted if name.startswith(prefix)]
        # Each on its own, so that one that fails takes no other along; those on Cassandra share a cluster.
        for group in [mine] if part is store_cassandra.run else [[name] for name in mine]:
            if group:
                for figure in await measured(part, quick, group):
                    yield figure


async def simulated(quick: bool, _wanted: list[str]) -> list[Figure]:
    # In a thread: a virtual loop does not run inside a real one.
    trial = await asyncio.to_thread(measure, TRIAL_S)
    virtual_s = max(TRIAL_S, round(trial.speed * (QUICK_RUN_S if quick else RUN_S)))
    runs = [await asyncio.to_thread(measure, virtual_s, seed) for seed in range(1, REPEATS + 1)]
    speeds = [each.speed for each in runs]
    detail: dict[str, object] = {
        "virtual_s": virtual_s,
        "operations_per_virtual_s": round(runs[0].operations / virtual_s),
        "operations_per_s": round(median(each.operations / each.real_s for each in runs)),
        "speeds": [round(speed) for speed in speeds],
        "speeds_by_the_wall_clock": [round(each.virtual_s / each.wall_s) for each in runs],
    }
    return [judge("store.simulated.virtual_s_per_s", median(speeds), detail)]
