"""`set` only grows; `add_remove_set` also shrinks.

An update never reads, so a removal cannot name the additions it has seen. Instead each element keeps the time of its
last addition and of its last removal, by the writers' clocks: it is in the set if the addition is later. At one time
the removal wins.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from capellini.counters.states.interface import Damaged, Stamp, State, element, shown, text_bytes, unpacked
from capellini.model.errors import Invalid

Element = str | int
ADD: Final = "add"
REMOVE: Final = "remove"


ELEMENT_BYTES: Final = 110  # of memory, beside its text: an object, and its place in a table that is half empty
TIMES_BYTES: Final = 130  # the same with two times


def _size(one: Element) -> int:
    return 10 + (text_bytes(one) if isinstance(one, str) else 0)


def _order(one: Element) -> tuple[bool, Any]:
    return isinstance(one, str), one


class GrowSet(State):
    kind = "set"
    takes = "an element: a text or a whole number"
    idempotent = True

    def __init__(self, elements: set[Element] | None = None) -> None:
        self.elements: set[Element] = elements or set()
        self._weight = sum(map(_size, self.elements))

    @classmethod
    def check(cls, update: object, stamp: Stamp) -> Element:
        return element(update, cls.kind)

    def apply(self, checked: Element) -> None:
        if checked not in self.elements:
            self.elements.add(checked)
            self._weight += _size(checked)

    def merge(self, other: GrowSet) -> None:
        for one in other.elements:
            self.apply(one)

    def value(self) -> list[Element]:
        return sorted(self.elements, key=_order)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self.value())  # sorted: equal sets are equal bytes

    @classmethod
    def decode(cls, data: bytes, version: int) -> GrowSet:
        found = unpacked(data, list[str | int], version, cls.version)
        elements = set(found)
        if len(elements) != len(found):
            raise Damaged("an element stands in a set twice")
        return cls(elements)

    def weight(self) -> int:
        return self._weight

    def memory(self) -> int:
        return self._weight + ELEMENT_BYTES * len(self.elements)


class AddRemoveSet(State):
    kind = "add_remove_set"
    takes = 'an object {"add": ELEMENT} or {"remove": ELEMENT}; elements are texts or whole numbers'
    idempotent = True

    def __init__(self, times: dict[Element, tuple[int, int]] | None = None) -> None:
        self.times: dict[Element, tuple[int, int]] = times or {}  # last addition, last removal, in µs; 0: none
        self._weight = sum(20 + _size(one) for one in self.times)

    @classmethod
    def check(cls, update: object, stamp: Stamp) -> tuple[Element, int, int]:
        if not isinstance(update, dict) or len(update) != 1 or not update.keys() <= {ADD, REMOVE}:
            raise Invalid(f"an update of {cls.kind} is {cls.takes}, not {shown(update)}")
        ((what, one),) = update.items()
        added, removed = (stamp.at_us, 0) if what == ADD else (0, stamp.at_us)
        return element(one, cls.kind), added, removed

    def apply(self, checked: tuple[Element, int, int]) -> None:
        one, added, removed = checked
        before = self.times.get(one)
        if before is None:
            self.times[one] = added, removed
            self._weight += 20 + _size(one)
        else:
            self.times[one] = max(before[0], added), max(before[1], removed)

    def merge(self, other: AddRemoveSet) -> None:
        for one, (added, removed) in other.times.items():
            self.apply((one, added, removed))

    def value(self) -> list[Element]:
        return sorted((one for one, (added, removed) in self.times.items() if added > removed), key=_order)

    def encode(self) -> bytes:
        rows = [(one, *self.times[one]) for one in sorted(self.times, key=_order)]
        return msgspec.msgpack.encode(rows)

    @classmethod
    def decode(cls, data: bytes, version: int) -> AddRemoveSet:
        rows = unpacked(data, list[tuple[str | int, int, int]], version, cls.version)
        return cls({one: (added, removed) for one, added, removed in rows})

    def weight(self) -> int:
        return self._weight

    def memory(self) -> int:
        return self._weight + TIMES_BYTES * len(self.times)
