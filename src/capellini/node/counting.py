"""A node's counters, the statistics of queues that are kept in them, and the sweep that collects what is due.

Any node may sweep any counter, at any time, together with others: that is safe, and only costs reads. So each node
sweeps a part at a time, at moments of its own.
"""

from __future__ import annotations

import logging
import secrets
from typing import Final

from capellini.counters.service import Counters
from capellini.counters.states.queue import QueueTotals
from capellini.counters.times import Times
from capellini.model.clock import Chance
from capellini.model.counters import QUEUES, Named, queue_counter
from capellini.model.errors import CapelliniError
from capellini.node.background import Background
from capellini.node.broker import Broker
from capellini.node.statistics import QueueStatistics

SWEEP_S: Final = 60.0  # between two sweeps, each of a few hundred counters; what is due has waited for a day anyway
log: Final = logging.getLogger("capellini.counters")


class CounterKeeper:
    """Gives a broker its counters, and has it count what it does."""

    def __init__(self, broker: Broker, random: Chance, times: Times | None = None) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._random = random
        self.counters = Counters(broker.store, broker.clock, random, times, queues=self._queues)
        self.statistics = QueueStatistics(self.counters, broker.clock, random, f"node-{secrets.token_hex(8)}")
        self._sweeping = Background(self._sweeps)
        broker.counters = self.counters
        broker.count_with(self.statistics)

    def start(self) -> None:
        """Flush statistics from now on."""
        self.statistics.start()

    def start_sweeping(self) -> None:
        """For those who live long enough."""
        self._sweeping.start()

    async def _sweeps(self) -> None:
        while True:
            await self._clock.sleep(self._random.uniform(SWEEP_S / 2, SWEEP_S * 1.5))
            try:
                await self.counters.sweep()
            except CapelliniError as error:
                log.info("sweeping counters goes on later: %s", error)

    async def _queues(self, prefix: str, after: str, limit: int) -> list[Named]:
        """The statistics of queues that live, by name of the queue. Sorted so, a name goes before those that begin
        with it."""
        begins, last = prefix.removeprefix(QUEUES), after.removeprefix(QUEUES)
        name = begins.partition(":")[0]
        records = await self._broker.catalog.queues(name, last.rpartition(":")[0], limit)
        named = [queue_counter(record.name, record.generation) for record in records]
        return [Named(each, QueueTotals.kind) for each in named if each.startswith(QUEUES + begins)]

    async def stop(self) -> None:
        """Confirm what was taken, if the store lets us."""
        await self._sweeping.stop()
        await self.statistics.stop()
        try:
            await self.counters.close()
        except CapelliniError as error:
            log.error("%s", error)
