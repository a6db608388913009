"""`queue`: all statistics of one generation of a queue in one state, so that a node's second of work is one write.

    activity of a node since its last flush ─▶ sums        exact
                                            ├▶ producers   HyperLogLog of their ids
                                            └▶ latencies   two KLL sketches, of samples

Nodes make the updates, from what they did; nobody else can: what comes over the wire is never an `Activity`. The sums
are stored by name, so that a later version may add some and merge with what was written before.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from capellini.counters.states.distinct import Hll
from capellini.counters.states.interface import Damaged, Stamp, State, shown, unpacked
from capellini.counters.states.spread import Quantiles
from capellini.model.errors import Invalid

SUMS: Final = ("puts", "bytes_put", "deliveries", "redeliveries", "acks", "nacks", "dead_letters", "expired")
PRODUCERS: Final = "producers"
LATENCIES: Final = ("delivered_after_s", "acked_after_s")


class Activity(msgspec.Struct, frozen=True):
    """What happened in a queue: how often, by which producers, and samples of how long it took."""

    sums: dict[str, int]
    producers: tuple[str, ...] = ()
    delivered_after_s: tuple[float, ...] = ()
    acked_after_s: tuple[float, ...] = ()


class QueueTotals(State):
    kind = "queue"
    takes = "what a node did in a queue: nodes make it, nobody else"
    exact = False

    def __init__(
        self, sums: dict[str, int] | None = None, producers: Hll | None = None, latencies: list[Quantiles] | None = None
    ) -> None:
        self.sums = sums or {}
        self.producers = producers or Hll()
        self.latencies = latencies or [Quantiles() for _ in LATENCIES]

    @classmethod
    def check(cls, update: object, stamp: Stamp) -> Activity:
        if not isinstance(update, Activity):
            raise Invalid(f"an update of {cls.kind} is {cls.takes}; {shown(update)} is none")
        return update

    def apply(self, checked: Activity) -> None:
        self._add(checked.sums)
        for producer in checked.producers:
            self.producers.apply(producer)
        for name, sketch in zip(LATENCIES, self.latencies, strict=True):
            for seconds in getattr(checked, name):
                sketch.apply(seconds)

    def merge(self, other: QueueTotals) -> None:
        self._add(other.sums)
        self.producers.merge(other.producers)
        for mine, theirs in zip(self.latencies, other.latencies, strict=True):
            mine.merge(theirs)

    def _add(self, sums: dict[str, int]) -> None:
        for name, count in sums.items():
            self.sums[name] = self.sums.get(name, 0) + count

    def value(self) -> dict[str, Any]:
        sums = {name: self.sums.get(name, 0) for name in SUMS}
        latencies = {name: sketch.value() for name, sketch in zip(LATENCIES, self.latencies, strict=True)}
        return {**sums, PRODUCERS: self.producers.value(), **latencies}

    def encode(self) -> bytes:
        sketches = [sketch.encode() for sketch in self.latencies]
        return msgspec.msgpack.encode((dict(sorted(self.sums.items())), self.producers.encode(), sketches))

    @classmethod
    def decode(cls, data: bytes, version: int) -> QueueTotals:
        sums, producers, sketches = unpacked(data, tuple[dict[str, int], bytes, list[bytes]], version, cls.version)
        if len(sketches) != len(LATENCIES):
            raise Damaged(f"{len(sketches)} sketches of latencies, not {len(LATENCIES)}")
        latencies = [Quantiles.decode(each, Quantiles.version) for each in sketches]
        return cls(sums, Hll.decode(producers, Hll.version), latencies)

    def sketch(self) -> bytes | None:
        return None  # it is several

    def weight(self) -> int:
        return 512 + self.producers.weight() + sum(sketch.weight() for sketch in self.latencies)
