"""`sum`: whole numbers added up, exact at any size."""

from __future__ import annotations

from typing import Final

from capellini.counters.states.interface import Damaged, Stamp, State, whole_number

MOST_BYTES: Final = 64  # of an encoded sum: more than all updates of the universe come to


class Sum(State):
    kind = "sum"
    takes = "a whole number of 64 bits, signed"

    def __init__(self, total: int = 0) -> None:
        self.total = total

    @classmethod
    def check(cls, update: object, stamp: Stamp) -> int:
        return whole_number(update, cls.kind)

    def apply(self, checked: int) -> None:
        self.total += checked

    def merge(self, other: Sum) -> None:
        self.total += other.total

    def value(self) -> int:
        return self.total

    def encode(self) -> bytes:
        return self.total.to_bytes(self.total.bit_length() // 8 + 1, "big", signed=True)

    @classmethod
    def decode(cls, data: bytes, version: int) -> Sum:
        if version != 1 or not 1 <= len(data) <= MOST_BYTES:
            raise Damaged(f"a sum of {len(data)} bytes, version {version}")
        return cls(int.from_bytes(data, "big", signed=True))
