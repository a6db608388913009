"""Figures for Prometheus. Requests add to plain numbers; the text is made only when somebody asks for it.

    capellini_requests_total{route,status}      capellini_request_seconds{route} (gets include their wait)
    capellini_requests_in_flight  capellini_gets_waiting  capellini_request_bytes  capellini_connections
    capellini_streams{side}                     of log queues: put (producers), get (consumers)
    capellini_messages_total{operation}         put, get, ack, nack, extend
    capellini_store_..._total                   what the store was asked for
    capellini_refused_total{reason}             by the gate;  capellini_limit{limit}: where the gate closes
    capellini_ready  capellini_draining  capellini_clock_skew_seconds

Beside it: counters.py (what counters cost), queue_metrics.py (how long queues are, how far groups are behind),
timed_metrics.py (shards held), log_metrics.py (extents written and read).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from capellini import __version__
from capellini.api.gate import Gate
from capellini.api.router import Route
from capellini.model.service import Problem
from capellini.store.interface import Counts

BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
OPERATIONS: Final = ("put", "get", "ack", "nack", "extend")
NO_ROUTE: Final = "none"  # the label of requests that found no route: paths would be labels without end


class _Times:
    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0


class Metrics:
    """A Prometheus collector; registers itself."""

    def __init__(
        self,
        gate: Gate,
        registry: CollectorRegistry | None = None,
        store_counts: Callable[[], Counts] | None = None,
        connections: Callable[[], int] = lambda: 0,
        streams: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`streams`: how many are open, by their side."""
        self._gate = gate
        self._store_counts = store_counts
        self._connections = connections
        self._streams = streams
        self._requests: dict[tuple[str, int], int] = {}
        self._times: dict[str, _Times] = {}
        self._labels: dict[int, str] = {}
        self.messages: dict[str, int] = dict.fromkeys(OPERATIONS, 0)
        self.looks: list[Callable[[], Awaitable[None]]] = []
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
        self.registry = registry
        registry.register(self)

    # ---- adding

    def request(self, route: Route | None, status: int, seconds: float) -> None:
        label = NO_ROUTE if route is None else self._labels.get(id(route)) or self._label(route)
        key = (label, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        times = self._times.get(label)
        if times is None:
            times = self._times[label] = _Times()
        times.counts[bisect_left(BUCKETS_S, seconds)] += 1
        times.sum_s += seconds

    def _label(self, route: Route) -> str:
        found = self._labels.get(id(route))
        if found is None:
            found = self._labels[id(route)] = route.label
        return found

    def add(self, operation: str, count: int) -> None:
        self.messages[operation] += count

    def count(self, operation: str, results: Sequence[object]) -> None:
        """Adds those that are not problems."""
        self.messages[operation] += sum(1 for each in results if type(each) is not Problem)

    # ---- telling

    async def fresh(self) -> tuple[bytes, bytes]:
        """The text, after those who have to ask others for their figures have done so."""
        for look in self.looks:
            await look()
        return self.text()

    def text(self) -> tuple[bytes, bytes]:
        return generate_latest(self.registry), CONTENT_TYPE

    def collect(self) -> Iterable[Metric]:
        yield from self._of_requests()
        yield from self._of_gate()
        messages = CounterMetricFamily("capellini_messages", "Messages by what was done.", labels=["operation"])
        for operation, total in self.messages.items():
            messages.add_metric([operation], total)
        yield messages
        if self._store_counts is not None:
            for name, value in msgspec.structs.asdict(self._store_counts()).items():
                yield CounterMetricFamily(f"capellini_store_{name}", f"Store: {name.replace('_', ' ')}.", value=value)
        build = GaugeMetricFamily("capellini_build_info", "Which version this is.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build

    def _of_requests(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("capellini_requests", "Requests answered.", labels=["route", "status"])
        for (label, status), total in self._requests.items():
            requests.add_metric([label, str(status)], total)
        yield requests
        seconds = HistogramMetricFamily("capellini_request_seconds", "From head to answer.", labels=["route"])
        for label, times in self._times.items():
            running, buckets = 0, []
            for edge, count in zip((*BUCKETS_S, float("inf")), times.counts, strict=True):
                running += count
                buckets.append(("+Inf" if edge == float("inf") else repr(edge), running))
            seconds.add_metric([label], buckets, times.sum_s)
        yield seconds

    def _of_gate(self) -> Iterable[Metric]:
        gate = self._gate
        for name, says, value in (
            ("requests_in_flight", "Requests begun and not answered, gets not counted.", gate.in_flight),
            ("gets_waiting", "Gets begun and not answered.", gate.waiting),
            ("request_bytes", "Bytes of request bodies held.", gate.bytes),
            ("connections", "Open connections.", self._connections()),
            ("ready", "1 when the node takes all work.", int(gate.condition.ready)),
            ("draining", "1 when the node takes no new work.", int(gate.condition.draining)),
            ("clock_skew_seconds", "How far the store's clock is ahead.", gate.condition.skew_s),
        ):
            yield GaugeMetricFamily(f"capellini_{name}", says, value=value)
        streams = GaugeMetricFamily("capellini_streams", "Open streams of log queues.", labels=["side"])
        for side, count in self._streams().items():
            streams.add_metric([side], count)
        yield streams
        refused = CounterMetricFamily("capellini_refused", "Requests refused by the gate.", labels=["reason"])
        for reason, total in gate.refused.items():
            refused.add_metric([reason], total)
        yield refused
        limit = GaugeMetricFamily("capellini_limit", "Where the gate closes.", labels=["limit"])
        for name in ("max_requests", "max_waiting", "max_bytes", "max_connections", "max_body"):
            limit.add_metric([name], getattr(gate.limits, name))
        yield limit
