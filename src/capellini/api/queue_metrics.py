"""How long queues are and what happened in them, for Prometheus: looked up when somebody asks, at a bounded cost.

    capellini_queue_messages{queue,state}      ready, in_flight, delayed, dead
    capellini_queue_oldest_age_seconds{queue}
    capellini_queue_..._total{queue}           puts, deliveries, acks, …: of all nodes, since the generation began
    capellini_queue_producers{queue}           different ones, about
    capellini_group_messages{queue,group,state}      how far a group of a log queue is behind: ready, in_flight, delayed
    capellini_group_oldest_age_seconds{queue,group}
    capellini_queues_shown                     how many queues these figures are of

    scrape ─▶ looked less than FRESH_S ago? ─▶ yes: the same again
                                            └▶ no: so many queues at most, so many at a time; a scrape waits WAIT_S for
                                               it, else it tells what is known, and the look goes on

All nodes tell the same of a queue: take the maximum over nodes, not the sum.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from capellini.model.errors import CapelliniError
from capellini.model.log import GroupLag
from capellini.model.service import QueueInfo, Service, Statistics

MOST_QUEUES: Final = 100  # by name; each costs a few reads of the store
MOST_GROUPS: Final = 200  # of all these queues, by name: each costs as much as a queue
FRESH_S: Final = 5.0  # however many ask
KEPT_S: Final = 60.0  # figures that are older than this are no figures any more
WAIT_S: Final = 2.0  # of a scrape: it has figures of its own to tell, whatever the store does
AT_ONCE: Final = 4
STATES: Final = ("ready", "in_flight", "delayed", "dead")
GROUP_STATES: Final = ("ready", "in_flight", "delayed")
TOTALS: Final = ("puts", "bytes_put", "deliveries", "redeliveries", "acks", "nacks", "dead_letters", "expired")
log: Final = logging.getLogger("capellini.api")


class QueueMetrics:
    """A Prometheus collector of what `look` saw last. `now_s`: a time that only rises."""

    def __init__(self, service: Service, now_s: Callable[[], float]) -> None:
        self._service = service
        self._now_s = now_s
        self._seen: dict[str, Statistics] = {}
        self._lags: dict[tuple[str, str], GroupLag] = {}
        self._seen_s = -KEPT_S
        self._looking: asyncio.Task[None] | None = None

    async def look(self) -> None:
        """Figures that are fresh, if they can be had in time."""
        if self._now_s() - self._seen_s < FRESH_S:
            return
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
            self._looking.add_done_callback(self._looked)
        await asyncio.wait({self._looking}, timeout=WAIT_S)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("the figures of queues could not be had: %s", error)

    async def _look(self) -> None:
        turns = asyncio.Semaphore(AT_ONCE)
        seen: dict[str, Statistics] = {}
        lags: dict[tuple[str, str], GroupLag] = {}

        async def one(name: str) -> None:
            async with turns:
                try:
                    seen[name] = await self._service.statistics(name)
                except CapelliniError as error:  # deleted meanwhile, or the store does not answer for it now
                    log.debug("no figures of queue %s: %s", name, error)

        async def lag(queue: str, group: str) -> None:
            async with turns:
                try:
                    if self._service.log is not None:
                        _, lags[queue, group] = await self._service.log.show_group(queue, group)
                except CapelliniError as error:
                    log.debug("no figures of group %s of queue %s: %s", group, queue, error)

        queues = await self._service.queues(limit=MOST_QUEUES)
        await asyncio.gather(*(one(queue.name) for queue in queues))
        await asyncio.gather(*(lag(queue, group) for queue, group in await self._groups(queues)))
        self._seen, self._lags = dict(sorted(seen.items())), dict(sorted(lags.items()))
        self._seen_s = self._now_s()

    async def _groups(self, queues: list[QueueInfo]) -> list[tuple[str, str]]:
        """Of log queues."""
        found: list[tuple[str, str]] = []
        for queue in queues:
            if queue.kind == "log" and self._service.log is not None and len(found) < MOST_GROUPS:
                try:
                    found += [(queue.name, group.name) for group in await self._service.log.groups(queue.name)]
                except CapelliniError as error:
                    log.debug("no groups of queue %s: %s", queue.name, error)
        return sorted(found)[:MOST_GROUPS]

    def collect(self) -> Iterable[Metric]:
        seen = self._seen if self._now_s() - self._seen_s < KEPT_S else {}
        yield GaugeMetricFamily("capellini_queues_shown", "Queues that figures are shown of.", value=len(seen))
        messages = GaugeMetricFamily("capellini_queue_messages", "Messages in a queue.", labels=["queue", "state"])
        oldest = GaugeMetricFamily("capellini_queue_oldest_age_seconds", "Age of the oldest message.", labels=["queue"])
        producers = GaugeMetricFamily("capellini_queue_producers", "Different producers, about.", labels=["queue"])
        for name, found in seen.items():
            for state in STATES:
                messages.add_metric([name, state], getattr(found, state))
            oldest.add_metric([name], found.oldest_age_s or 0.0)
            producers.add_metric([name], found.producers)
        yield from (messages, oldest, producers)
        for total in TOTALS:
            says = f"{total.replace('_', ' ').capitalize()} since the queue was made or purged, on all nodes."
            family = CounterMetricFamily(f"capellini_queue_{total}", says, labels=["queue"])
            for name, found in seen.items():
                family.add_metric([name], getattr(found, total))
            yield family
        yield from self._of_groups()

    def _of_groups(self) -> Iterable[Metric]:
        lags = self._lags if self._now_s() - self._seen_s < KEPT_S else {}
        messages = GaugeMetricFamily(
            "capellini_group_messages", "How far a group of a log queue is behind.", labels=["queue", "group", "state"]
        )
        oldest = GaugeMetricFamily(
            "capellini_group_oldest_age_seconds", "Age of what the group has not finished.", labels=["queue", "group"]
        )
        for (queue, group), lag in lags.items():
            for state in GROUP_STATES:
                messages.add_metric([queue, group, state], getattr(lag, state))
            oldest.add_metric([queue, group], lag.oldest_age_s or 0.0)
        yield from (messages, oldest)
