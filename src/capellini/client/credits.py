"""How many messages a consumer lets come: credits. Pure.

    target: what the program takes in about a second, at most `ahead`       taken 500 in 0.1 s ──▶ 5,000
    granted (on their way) + waiting (here, not taken) = target             and never more than so many bytes

Messages that wait in a client are hidden from others, and their time runs: a slow program is to have few of them, a
fast one must never wait. So the target follows the program, from a few messages on. Time that it spends waiting for
messages does not count: an idle program is not a slow one.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 32  # messages, before it is known how fast they are taken
STOCK_S: Final = 1.0  # of the program's work, on their way or waiting
BYTES: Final = 16 * 1024 * 1024  # on their way or waiting
SPARE: Final = 0.75  # of the target: while so much is on its way, nothing is said


class Credits:
    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._target = min(FIRST, ahead)
        self._granted = self._granted_bytes = 0  # not delivered yet
        self._waiting = self._waiting_bytes = 0

    def begin(self) -> None:
        """A new lane: what was granted to the last one does not come."""
        self._granted = self._granted_bytes = 0

    def came(self, count: int, size: int) -> None:
        self._granted -= count
        self._granted_bytes -= size
        self._waiting += count
        self._waiting_bytes += size

    def taken(self) -> None:
        """All that waited."""
        self._waiting = self._waiting_bytes = 0

    def worked(self, count: int, busy_s: float) -> None:
        """So many messages took the program so long."""
        per_s = count / max(busy_s, 1e-6)
        self._target = max(1, min(self._ahead, int(per_s * STOCK_S)))

    def owed(self) -> tuple[int, int] | None:
        """Messages and bytes to grant now; None: there is enough on its way."""
        messages = max(0, self._target - self._granted - self._waiting)
        size = max(0, BYTES - self._granted_bytes - self._waiting_bytes)
        low = messages and self._granted <= SPARE * self._target
        low_bytes = size and self._granted_bytes <= SPARE * BYTES
        if not low and not low_bytes:
            return None
        self._granted += messages
        self._granted_bytes += size
        return messages, size
