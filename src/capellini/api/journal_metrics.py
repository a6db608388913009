"""The journal for Prometheus: what this node has told, and what it could not.

capellini_journal_events_total     life-cycle events appended to the journal by this node
capellini_journal_bytes_total      what they take
capellini_journal_dropped_total    events that found no room while the store was away: gaps in this node's numbers
capellini_journal_waiting_bytes    told, and not appended yet
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from capellini.node.journal import JournalFigures


class JournalMetrics:
    """A Prometheus collector."""

    def __init__(self, figures: Callable[[], JournalFigures]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        figures = self._figures()
        for name, says, value in (
            ("events", "Life-cycle events appended to the journal.", figures.events),
            ("bytes", "Bytes that these take.", figures.bytes),
            ("dropped", "Events that found no room: gaps in this node's numbers.", figures.dropped),
        ):
            yield CounterMetricFamily(f"capellini_journal_{name}", says, value=value)
        says = "Bytes told, and not appended yet."
        yield GaugeMetricFamily("capellini_journal_waiting_bytes", says, value=figures.waiting_bytes)
