"""Timed queues for Prometheus: of the shards that this node holds. Looked up when somebody asks; nothing is read from
the store for it.

    capellini_timed_lateness_seconds{quantile}      of this node's last first deliveries: from due to handing out
    capellini_timed_shard_lag_seconds{queue,shard}  how far its reading is behind the clock
    capellini_timed_shard_messages{queue,shard,state}
    capellini_timed_shard_in_flight_bytes{queue,shard}  of bodies in flight; a shard with too many hands out nothing
    capellini_timed_shards_held                     by this node
    capellini_timed_takeovers_total                 shards that this node began to hold
    capellini_timed_emergency_stops_total           shards stopped because the lease was lost
    capellini_timed_ticks_total                     of schedules, put by this node

On many nodes: the sum of shards held is their number; lateness is each node's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from capellini.model.errors import CapelliniError
from capellini.model.timed import ShardView

QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)
STATES: Final = ("ready", "waiting", "in_flight")
MOST_SHARDS: Final = 1_000  # shown: labels without end help nobody


class TimedFigures(msgspec.Struct, frozen=True):
    """What a node has done for timed queues."""

    late_ms: Sequence[int] = ()  # of the last first deliveries
    takeovers: int = 0
    emergency_stops: int = 0
    ticks: int = 0


class TimedMetrics:
    """A Prometheus collector of what `look` saw last."""

    def __init__(self, figures: Callable[[], TimedFigures], views: Callable[[], Awaitable[list[ShardView]]]) -> None:
        self._figures = figures
        self._views = views
        self._seen: list[ShardView] = []

    async def look(self) -> None:
        try:
            self._seen = (await self._views())[:MOST_SHARDS]
        except CapelliniError:  # they are being given up
            self._seen = []

    def collect(self) -> Iterable[Metric]:
        figures = self._figures()
        late = GaugeMetricFamily(
            "capellini_timed_lateness_seconds", "From due to first delivery, of the last ones.", labels=["quantile"]
        )
        ordered = sorted(figures.late_ms)
        for share in QUANTILES if ordered else ():
            late.add_metric([f"{share:g}"], ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000)
        lag = GaugeMetricFamily(
            "capellini_timed_shard_lag_seconds", "How far the reading is behind the clock.", labels=["queue", "shard"]
        )
        messages = GaugeMetricFamily(
            "capellini_timed_shard_messages", "Messages in the holder's memory.", labels=["queue", "shard", "state"]
        )
        flying = GaugeMetricFamily(
            "capellini_timed_shard_in_flight_bytes", "Of bodies in flight, in memory.", labels=["queue", "shard"]
        )
        for view in self._seen:
            flying.add_metric([view.queue, str(view.shard)], view.in_flight_bytes)
            lag.add_metric([view.queue, str(view.shard)], view.lag_s or 0.0)
            for state in STATES:
                messages.add_metric([view.queue, str(view.shard), state], getattr(view, state))
        yield from (late, lag, messages, flying)
        yield GaugeMetricFamily("capellini_timed_shards_held", "Shards that this node holds.", value=len(self._seen))
        for name, says, value in (
            ("takeovers", "Shards that this node began to hold.", figures.takeovers),
            ("emergency_stops", "Shards stopped because the lease was lost.", figures.emergency_stops),
            ("ticks", "Ticks of schedules put by this node.", figures.ticks),
        ):
            yield CounterMetricFamily(f"capellini_timed_{name}", says, value=value)
