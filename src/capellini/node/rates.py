"""How often something happened in the last minute, by ten slots of six seconds: constant memory, no timers."""

from __future__ import annotations

from typing import Final

SLOTS: Final = 10
SLOT_S: Final = 6.0
RATED: Final = ("puts", "gets", "acks")
MOST_QUEUES: Final = 5_000  # as many as a node keeps open: names may come and go for years


class Rate:
    def __init__(self) -> None:
        self._counts = [0] * SLOTS
        self._slot = 0
        self._began_s: float | None = None

    def add(self, count: int, now_s: float) -> None:
        if self._began_s is None or int(now_s / SLOT_S) != self._slot:
            self._move(now_s)
        self._counts[self._slot % SLOTS] += count

    def per_s(self, now_s: float) -> float:
        self._move(now_s)
        began_s = self._began_s if self._began_s is not None else now_s
        return sum(self._counts) / max(1.0, min(SLOTS * SLOT_S, now_s - began_s))

    def _move(self, now_s: float) -> None:
        if self._began_s is None:
            self._began_s = now_s
            self._slot = int(now_s / SLOT_S)
        slot = int(now_s / SLOT_S)
        for passed in range(self._slot + 1, min(slot, self._slot + SLOTS) + 1):
            self._counts[passed % SLOTS] = 0
        self._slot = max(self._slot, slot)


class Rates:
    """Of each queue, in this node alone."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, Rate]] = {}

    def add(self, queue: str, what: str, count: int, now_s: float) -> None:
        rates = self._queues.get(queue)
        if rates is None:
            if len(self._queues) >= MOST_QUEUES:
                del self._queues[next(iter(self._queues))]  # the oldest: if it is still used, it begins anew
            rates = self._queues[queue] = {each: Rate() for each in RATED}
        rates[what].add(count, now_s)

    def per_s(self, queue: str, what: str, now_s: float) -> float:
        rates = self._queues.get(queue)
        return rates[what].per_s(now_s) if rates else 0.0
