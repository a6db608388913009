"""`changes`: increments and decrements added up apart, so that both can be seen."""

from __future__ import annotations

from capellini.counters.states.interface import Damaged, Stamp, State, check_version, whole_number


class Changes(State):
    kind = "changes"
    takes = "a whole number of 64 bits, signed: an increment above zero, a decrement below"

    def __init__(self, up: int = 0, down: int = 0) -> None:
        self.up = up
        self.down = down

    @classmethod
    def check(cls, update: object, stamp: Stamp) -> int:
        return whole_number(update, cls.kind)

    def apply(self, checked: int) -> None:
        if checked >= 0:
            self.up += checked
        else:
            self.down -= checked

    def merge(self, other: Changes) -> None:
        self.up += other.up
        self.down += other.down

    def value(self) -> dict[str, int]:
        return {"total": self.up - self.down, "increments": self.up, "decrements": self.down}

    def encode(self) -> bytes:
        return f"{self.up} {self.down}".encode()

    @classmethod
    def decode(cls, data: bytes, version: int) -> Changes:
        check_version(version, cls.version)
        up, _, down = data.partition(b" ")
        if not (up.isdigit() and down.isdigit()):
            raise Damaged("these are not two numbers")
        return cls(int(up), int(down))
