"""A node's counters, and the sweep that collects what is due in them.

Any node may sweep any counter, at any time, together with others: that is safe, and only costs reads. So each node
sweeps a part at a time, at moments of its own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from capellini.counters.service import Counters
from capellini.counters.times import Times
from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError
from capellini.store.interface import Store

SWEEP_S: Final = 60.0  # between two sweeps, each of a few hundred counters; what is due has waited for a day anyway
log: Final = logging.getLogger("capellini.counters")


class CounterKeeper:
    def __init__(self, store: Store, clock: Clock, random: Chance, times: Times | None = None) -> None:
        self.counters = Counters(store, clock, random, times)
        self._clock = clock
        self._random = random
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._turns())

    async def _turns(self) -> None:
        while True:
            await self._clock.sleep(self._random.uniform(SWEEP_S / 2, SWEEP_S * 1.5))
            try:
                await self.counters.sweep()
            except CapelliniError as error:
                log.info("sweeping counters goes on later: %s", error)

    async def stop(self) -> None:
        """Confirm what was taken, if the store lets us."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        try:
            await self.counters.close()
        except CapelliniError as error:
            log.error("%s", error)
