"""`hll` and `theta`: how many different elements there were, from a few kilobytes, as Apache DataSketches.

Both are in the binary form that Spark's `hll_*` and `theta_*` functions read, with their default size (lgK 12: some
1.6 % off, at most, for two of three counts). Theta sketches can also be intersected.

A merged sketch is the same whatever the order, up to how it is stored (a list, a table, which estimator is used): two
orders may differ in their bytes, and by less than the error bound in their estimate.
"""

from __future__ import annotations

from typing import Any, Final

import datasketches

from capellini.counters.states.interface import Damaged, Stamp, State, element
from capellini.counters.states.sketches import opened

LG_K: Final = 12  # Spark's default; sketches are merged without loss only with the same


def _estimate(sketch: Any) -> dict[str, float]:
    """Two standard deviations either way."""
    return {
        "estimate": sketch.get_estimate(),
        "lower": sketch.get_lower_bound(2),
        "upper": sketch.get_upper_bound(2),
    }


class Distinct(State):
    """Takes elements, and the same one again changes nothing."""

    takes = "an element: a text or a whole number"
    idempotent = True
    exact = False

    @classmethod
    def check(cls, update: object, stamp: Stamp) -> str | int:
        return element(update, cls.kind)


class Hll(Distinct):
    kind = "hll"

    def __init__(self, sketch: Any = None) -> None:
        self._sketch = sketch or datasketches.hll_sketch(LG_K, datasketches.HLL_8)

    def apply(self, checked: str | int) -> None:
        self._sketch.update(checked)

    def merge(self, other: Hll) -> None:
        union = datasketches.hll_union(LG_K)
        union.update(self._sketch)
        union.update(other._sketch)
        self._sketch = union.get_result(datasketches.HLL_8)

    def value(self) -> dict[str, float]:
        return _estimate(self._sketch)

    def encode(self) -> bytes:
        return bytes(self._sketch.serialize_updatable())

    @classmethod
    def decode(cls, data: bytes, version: int) -> Hll:
        sketch = opened(datasketches.hll_sketch, data, version, cls.version)
        if sketch.lg_config_k != LG_K:
            raise Damaged(f"a sketch with lgK {sketch.lg_config_k}, not {LG_K}")
        return cls(sketch)

    def weight(self) -> int:
        return int(self._sketch.get_updatable_serialization_bytes())


class Theta(Distinct):
    kind = "theta"

    def __init__(self, merged: Any = None) -> None:
        self._merged = merged  # what was decoded or merged: such sketches take no updates
        self._updates: Any = None

    def apply(self, checked: str | int) -> None:
        if self._updates is None:
            self._updates = datasketches.update_theta_sketch(LG_K)
        self._updates.update(checked)

    def _compact(self) -> Any:
        if self._updates is None and self._merged is not None:
            return self._merged
        if self._merged is None:
            return (self._updates or datasketches.update_theta_sketch(LG_K)).compact()
        union = datasketches.theta_union(LG_K)
        union.update(self._merged)
        union.update(self._updates)
        return union.get_result()

    def merge(self, other: Theta) -> None:
        union = datasketches.theta_union(LG_K)
        union.update(self._compact())
        union.update(other._compact())
        self._merged, self._updates = union.get_result(), None

    def intersect(self, other: Theta) -> Theta:
        """What both have seen."""
        meet = datasketches.theta_intersection()
        meet.update(self._compact())
        meet.update(other._compact())
        return Theta(meet.get_result())

    def value(self) -> dict[str, float]:
        return _estimate(self._compact())

    def encode(self) -> bytes:
        return bytes(self._compact().serialize())

    @classmethod
    def decode(cls, data: bytes, version: int) -> Theta:
        return cls(opened(datasketches.compact_theta_sketch, data, version, cls.version))

    def weight(self) -> int:
        retained = 0 if self._updates is None else self._updates.num_retained
        return 64 + 16 * int(retained + (0 if self._merged is None else self._merged.num_retained))
