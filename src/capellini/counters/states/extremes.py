"""`min` and `max`: the least and the most of all numbers seen. None before the first."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import msgspec

from capellini.counters.states.interface import Stamp, State, number, unpacked

Number = int | float


def _rank(one: Number) -> tuple[Number, bool]:
    """1 and 1.0 are equal, and yet not the same: which one is kept must not depend on who came first."""
    return one, type(one) is float


class Extreme(State):
    takes = "a number"
    idempotent = True

    def __init__(self, found: Number | None = None) -> None:
        self.found = found

    @classmethod
    def check(cls, update: object, stamp: Stamp) -> Number:
        return number(update, cls.kind) + 0  # makes 0.0 of -0.0

    @staticmethod
    @abstractmethod
    def better(one: Number, other: Number) -> Number:
        """The one to keep."""

    def apply(self, checked: Number) -> None:
        self.found = checked if self.found is None else self.better(self.found, checked)

    def merge(self, other: Self) -> None:
        if other.found is not None:
            self.apply(other.found)

    def value(self) -> Number | None:
        return self.found

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self.found)

    @classmethod
    def decode(cls, data: bytes, version: int) -> Self:
        return cls(unpacked(data, int | float | None, version, cls.version))


class Min(Extreme):
    kind = "min"

    @staticmethod
    def better(one: Number, other: Number) -> Number:
        return min(one, other, key=_rank)


class Max(Extreme):
    kind = "max"

    @staticmethod
    def better(one: Number, other: Number) -> Number:
        return max(one, other, key=_rank)
