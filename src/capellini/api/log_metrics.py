"""Log queues for Prometheus: what this node writes and reads of them. Nothing is read from the store for it.

    capellini_log_extents{queue}            that are kept;  capellini_log_bytes{queue}: their size. All nodes tell about
                                            the same: take the maximum, not the sum
    capellini_log_extents_open{queue}       that this node writes;  capellini_log_extents_read{queue}: that it reads,
                                            one for each group. On many nodes: the sum
    capellini_log_extents_wanted{queue}     that should be open in this data centre, as planned by load; 0: as needed
    capellini_log_extents_most{queue}       the limit of that
    capellini_log_puts_per_second{queue}    messages that the extents open here take
    capellini_log_seals_total{queue}        extents that this node sealed: its own, and those of writers that are over
    capellini_log_takeovers_total{queue}    readings of an extent that this node began
    capellini_log_emergency_stops_total     queues stopped here because the lease was lost
    capellini_log_extents_dropped_total     past their retention, by this node
    capellini_log_puts_refused_total        chunks refused because a queue held its `max_bytes`

How far groups are behind is beside it, in queue_metrics.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from capellini.queues.log.keeper import LogKeeper
from capellini.queues.log.queue import LogQueue

MOST_QUEUES: Final = 100  # shown, by name: labels without end help nobody
FULL: Final = "put refused: the queue is full"  # the guard that counts it


class LogQueueFigures(msgspec.Struct, frozen=True):
    """One queue, as this node knows it."""

    queue: str
    extents: int
    bytes: int
    extents_open: int
    extents_read: int
    extents_wanted: int
    extents_most: int
    puts_per_second: float
    seals: int
    takeovers: int


class LogFigures(msgspec.Struct, frozen=True):
    queues: tuple[LogQueueFigures, ...] = ()
    emergency_stops: int = 0
    extents_dropped: int = 0
    puts_refused: int = 0


GAUGES: Final = (
    ("extents", "Extents that are kept."),
    ("bytes", "Bytes that the queue holds."),
    ("extents_open", "Extents that this node writes."),
    ("extents_read", "Extents that this node reads, one for each group."),
    ("extents_wanted", "Extents that should be open in this data centre; 0: as needed."),
    ("extents_most", "Extents that may be open in this data centre."),
    ("puts_per_second", "Messages that the extents open at this node take."),
)
COUNTERS: Final = (
    ("seals", "Extents that this node sealed: its own, and those of writers that are over."),
    ("takeovers", "Readings of an extent that this node began."),
)
OF_NODE: Final = (
    ("emergency_stops", "Queues stopped because the lease was lost."),
    ("extents_dropped", "Extents past their retention that this node dropped."),
    ("puts_refused", "Chunks refused because a queue held its max_bytes."),
)


def figures_of(keeper: LogKeeper) -> LogFigures:
    """Of two generations of a queue, while one replaces the other, the newer counts."""
    newest: dict[str, LogQueue] = {}
    for queue in sorted(keeper.queues(), key=lambda each: each.place.generation):
        newest[queue.place.name] = queue
    shown = tuple(_figures(newest[name]) for name in sorted(newest)[:MOST_QUEUES])
    return LogFigures(shown, keeper.emergency_stops, keeper.dropped, keeper.guards[FULL])


def _figures(queue: LogQueue) -> LogQueueFigures:
    writers, readers = queue.writers, queue.readers
    return LogQueueFigures(
        queue=queue.place.name,
        extents=len(queue.extents.known()),
        bytes=writers.held_bytes,
        extents_open=len(writers.accepting()),
        extents_read=len(readers.owners),
        extents_wanted=sum(queue.scaling.plan.wanted.values()),
        extents_most=queue.place.options.extents_most,
        puts_per_second=sum(load.per_s for load in queue.scaling.loads()),
        seals=queue.extents.seals,
        takeovers=readers.takeovers,
    )


class LogMetrics:
    """A Prometheus collector."""

    def __init__(self, figures: Callable[[], LogFigures]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        figures = self._figures()
        for name, says in GAUGES:
            gauge = GaugeMetricFamily(f"capellini_log_{name}", says, labels=["queue"])
            for of in figures.queues:
                gauge.add_metric([of.queue], getattr(of, name))
            yield gauge
        for name, says in COUNTERS:
            counter = CounterMetricFamily(f"capellini_log_{name}", says, labels=["queue"])
            for of in figures.queues:
                counter.add_metric([of.queue], getattr(of, name))
            yield counter
        for name, says in OF_NODE:
            yield CounterMetricFamily(f"capellini_log_{name}", says, value=getattr(figures, name))
