"""What a latency was measured in: told beside it, since it means little without.

bare_fsync_p50_ms, _p99_ms     an fsync of a few new bytes in the same folder, right before and right after
bare_sleep_p99_ms              how late a sleeping task of an idle loop is woken, right before and right after
node_cpu, node_waited_cpu      of each second, how long the node ran, and how long it could have and had no CPU
own_waited_cpu                 the same of this process, which makes the load
stolen_cpu                     of each second, what the machine below gave to others
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from bisect import bisect_left
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, Self

from capellini.bench.figures import Detail
from capellini.bench.usage import bare_sync_ms, cpu_s, stolen_s, waited_s

SLEEPS: Final = 500
SLEEP_S: Final = 0.001
ARRIVALS: Final = 10  # moments of each fsync at which a message may come


class Surroundings:
    """`async with`: around what is measured. `detail` is whole at its end."""

    def __init__(self, folder: Path, pid: int) -> None:
        self._folder, self._pid = folder, pid
        self._syncs_ms: list[float] = []
        self._sleeps_ms: list[float] = []
        self._before: list[float] = []
        self.detail: Detail = {}

    async def __aenter__(self) -> Self:
        await self._look()
        # This process is part of the measured way, and has imported far more than a client: without this the collector
        # stops it for 15 to 60 ms in each run to look through modules.
        gc.collect()
        gc.freeze()
        self._before = self._used()
        return self

    async def __aexit__(self, *error: object) -> None:
        wall_s, *used_s = [now - then for now, then in zip(self._used(), self._before, strict=True)]
        gc.unfreeze()
        await self._look()
        self.detail = {
            "bare_fsync_p50_ms": round(quantile(self._syncs_ms, 0.5), 2),
            "bare_fsync_p99_ms": round(quantile(self._syncs_ms, 0.99), 2),
            "disk_alone_p99_ms": round(disk_alone(self._syncs_ms, 0.99), 2),
            "bare_sleep_p99_ms": round(quantile(self._sleeps_ms, 0.99), 2),
        }
        names = ("node_cpu", "node_waited_cpu", "own_waited_cpu", "stolen_cpu")
        self.detail |= {name: round(each_s / wall_s, 3) for name, each_s in zip(names, used_s, strict=True)}

    def _used(self) -> list[float]:
        pid = self._pid
        return [time.perf_counter(), cpu_s(pid), waited_s(pid), waited_s(os.getpid()) - waited_s(pid), stolen_s()]

    async def _look(self) -> None:
        self._syncs_ms += await asyncio.to_thread(bare_sync_ms, self._folder)
        for _ in range(SLEEPS):
            began_s = time.perf_counter()
            await asyncio.sleep(SLEEP_S)
            self._sleeps_ms.append((time.perf_counter() - began_s - SLEEP_S) * 1000)


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def disk_alone(syncs: list[float], part: float) -> float:
    """Of messages that come evenly: during a long fsync more of them do."""
    waits = sorted(
        (under_way * left / ARRIVALS + own, under_way)
        for under_way, own in pairwise(syncs)
        for left in range(1, ARRIVALS + 1)
    )
    weights = list(accumulate(weight for _, weight in waits))
    return waits[min(bisect_left(weights, part * weights[-1]), len(waits) - 1)][0]
