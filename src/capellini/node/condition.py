"""What condition a node is in: may it take work, and if not, why. One small value that readiness, gate and metrics
read.

    draining   told to stop: takes no new work, finishes what was begun
    down       the store does not answer
    full       the store's disk is full: nothing new, but acks still go through
    skewed     the clocks of store and node are too far apart for due times to be kept
    doubled    another process runs under this node's name: without a lease it repairs nothing, and works no shard or
               extent; what it is asked for, it does
    cut        this data centre answers, but there is no majority of all: log queues of mode ap go on, all else is
               refused by itself; the node is ready, and says so
"""

from __future__ import annotations

from typing import Final

import msgspec


class Condition(msgspec.Struct, frozen=True):
    draining: bool = False
    down: str | None = None
    full: str | None = None
    skewed: str | None = None
    skew_s: float = 0.0
    cut: str | None = None
    doubled: str | None = None

    @property
    def reasons(self) -> list[str]:
        """Why the node does not do all it could, in sentences; empty when it does."""
        found = [says for says in (self.down, self.full, self.skewed, self.doubled, self.cut) if says]
        return ["the node is draining", *found] if self.draining else found

    @property
    def faults(self) -> tuple[bool, ...]:
        """Which there are. Their sentences have numbers in them, which are others at each look."""
        return tuple(map(bool, (self.draining, self.down, self.full, self.skewed, self.doubled, self.cut)))

    @property
    def ready(self) -> bool:
        return not (self.draining or self.down or self.full or self.skewed or self.doubled)


GOOD: Final = Condition()
