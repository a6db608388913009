"""`sum`: whole numbers added up, exact at any size."""

from __future__ import annotations

from capellini.counters.states.interface import Damaged, Stamp, State, check_version, whole_number


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
        return b"%d" % self.total

    @classmethod
    def decode(cls, data: bytes, version: int) -> Sum:
        check_version(version, cls.version)
        if not data.removeprefix(b"-").isdigit():
            raise Damaged("a sum is not a number")
        return cls(int(data))
