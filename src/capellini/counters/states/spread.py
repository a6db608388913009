"""`quantiles` (KLL) and `frequent` (frequent items), as Apache DataSketches in the form that Spark's functions read.

Their merges throw data away, KLL by a coin, frequent items by what fills the table first. So two orders of merging give
different sketches, each within the bound that the sketch itself states: tests compare within that bound.
"""

from __future__ import annotations

from typing import Any, Final

import datasketches

from capellini.counters.states.interface import Stamp, State, number, shown, text
from capellini.counters.states.sketches import opened
from capellini.model.errors import Invalid

KLL_K: Final = 200  # Spark's default: ranks are off by at most 1.65 % with 99 % confidence
RANKS: Final = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
FREQUENT_LG_K: Final = 12  # up to 3,072 items at a time: what is above 0.09 % of all weight is surely found
FREQUENT_SHOWN: Final = 100
NO_NULLS: Final = bytes(8)  # Spark keeps behind such a sketch how many nulls it saw; DataSketches does not look there
MOST_WEIGHT: Final = 2**32  # of one update: a sketch adds weights up in 64 bits


class Quantiles(State):
    kind = "quantiles"
    takes = "a number"
    exact = False

    def __init__(self, sketch: Any = None) -> None:
        self._sketch = sketch or datasketches.kll_doubles_sketch(KLL_K)

    @classmethod
    def check(cls, update: object, stamp: Stamp) -> float:
        return float(number(update, cls.kind))

    def apply(self, checked: float) -> None:
        self._sketch.update(checked)

    def merge(self, other: Quantiles) -> None:
        self._sketch.merge(other._sketch)

    def value(self) -> dict[str, Any]:
        if self._sketch.is_empty():
            return {"count": 0, "quantiles": {}}
        found = self._sketch.get_quantiles(list(RANKS))
        named = {f"{rank:g}": float(one) for rank, one in zip(RANKS, found, strict=True)}
        return {"count": int(self._sketch.n), "quantiles": named}

    def rank(self, value: float) -> float:
        """Which part of all values lies at or below this one."""
        return float(self._sketch.get_rank(value, True))

    def encode(self) -> bytes:
        return bytes(self._sketch.serialize())

    @classmethod
    def decode(cls, data: bytes, version: int) -> Quantiles:
        return cls(opened(datasketches.kll_doubles_sketch, data, version, cls.version))

    def weight(self) -> int:
        return 64 + 8 * int(self._sketch.num_retained)


class Frequent(State):
    kind = "frequent"
    takes = 'a text, or an object {"item": TEXT, "weight": WHOLE NUMBER}'
    exact = False

    def __init__(self, sketch: Any = None) -> None:
        self._sketch = sketch or datasketches.frequent_strings_sketch(FREQUENT_LG_K)

    @classmethod
    def check(cls, update: object, stamp: Stamp) -> tuple[str, int]:
        item, weight = update, 1
        if isinstance(update, dict) and update.keys() == {"item", "weight"}:
            item, weight = update["item"], update["weight"]
        elif type(update) is not str:
            raise Invalid(f"an update of {cls.kind} is {cls.takes}, not {shown(update)}")
        if type(weight) is not int or not 1 <= weight <= MOST_WEIGHT:
            raise Invalid(f"a weight in {cls.kind} is a whole number from 1 to {MOST_WEIGHT}, not {shown(weight)}")
        return text(item, cls.kind), weight

    def apply(self, checked: tuple[str, int]) -> None:
        self._sketch.update(*checked)

    def merge(self, other: Frequent) -> None:
        self._sketch.merge(other._sketch)

    def value(self) -> dict[str, Any]:
        found = self._sketch.get_frequent_items(datasketches.NO_FALSE_NEGATIVES)
        items = sorted(found, key=lambda one: (-one[1], one[0]))[:FREQUENT_SHOWN]
        named = [{"item": item, "estimate": most, "lower": low, "upper": high} for item, most, low, high in items]
        return {"weight": int(self._sketch.total_weight), "items": named}

    def bounds(self, item: str) -> tuple[int, int]:
        """Between what the weight of an item surely lies."""
        return int(self._sketch.get_lower_bound(item)), int(self._sketch.get_upper_bound(item))

    def encode(self) -> bytes:
        return bytes(self._sketch.serialize())

    def sketch(self) -> bytes:
        return self.encode() + NO_NULLS

    @classmethod
    def decode(cls, data: bytes, version: int) -> Frequent:
        return cls(opened(datasketches.frequent_strings_sketch, data, version, cls.version))

    def weight(self) -> int:
        return int(self._sketch.get_serialized_size_bytes())  # its items may be long

    def memory(self) -> int:
        return self.weight() + 64 * int(self._sketch.num_active_items)
