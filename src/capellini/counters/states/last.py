"""`last`: the value that was written last, by the writers' clocks; of two at one time, the larger mutator id wins."""

from __future__ import annotations

from typing import Any

import msgspec

from capellini.counters.states.interface import Stamp, State, number, shown, text, text_bytes, unpacked
from capellini.model.errors import Invalid

Scalar = str | int | float | bool


class Last(State):
    kind = "last"
    takes = "a text, a number, true or false"
    idempotent = True

    def __init__(self, at_us: int = 0, mutator: str = "", written: Scalar | None = None) -> None:
        self.at_us = at_us
        self.mutator = mutator
        self.written = written

    @classmethod
    def check(cls, update: object, stamp: Stamp) -> tuple[int, str, Scalar]:
        if type(update) is bool:
            return stamp.at_us, stamp.mutator, update
        if type(update) is str:
            return stamp.at_us, stamp.mutator, text(update, cls.kind)
        if type(update) in (int, float):
            return stamp.at_us, stamp.mutator, number(update, cls.kind)
        raise Invalid(f"an update of {cls.kind} is {cls.takes}, not {shown(update)}")

    def apply(self, checked: tuple[int, str, Scalar]) -> None:
        if checked[:2] > (self.at_us, self.mutator):
            self.at_us, self.mutator, self.written = checked

    def merge(self, other: Last) -> None:
        if other.written is not None:
            self.apply((other.at_us, other.mutator, other.written))

    def value(self) -> dict[str, Any] | None:
        return None if self.written is None else {"value": self.written, "at": self.at_us / 1e6}

    def encode(self) -> bytes:
        return msgspec.msgpack.encode((self.at_us, self.mutator, self.written))

    @classmethod
    def decode(cls, data: bytes, version: int) -> Last:
        return cls(*unpacked(data, tuple[int, str, Scalar | None], version, cls.version))

    def weight(self) -> int:
        return 64 + (text_bytes(self.written) if isinstance(self.written, str) else 0)

    def memory(self) -> int:
        return 64 + self.weight()
