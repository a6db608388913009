"""Timestamps of the embedded store: each is above all that it gave before, whatever the clock does.

The highest timestamp ever written is known (`newest_us`), so most writes are known to be newer than everything there
is, and need not look at what they replace. Both numbers are kept in the folder, at most a second behind; after opening
that second is added, so that they are never too low.
"""

from __future__ import annotations

import struct
from typing import Final

from capellini.model.clock import Clock

KEPT_EVERY_US: Final = 1_000_000  # how far the numbers in the folder may lag behind
_KEPT: Final = struct.Struct(">qq")


class Stamps:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_us = 0
        self._kept_us = (0, 0)
        self.newest_us = 0  # the highest timestamp of all that was written, by whoever chose it

    def load(self, kept: bytes | None) -> None:
        """Go on above what the folder says."""
        now_us = self.now_us()
        last_us, newest_us = _KEPT.unpack(kept or bytes(_KEPT.size))
        self._last_us = max(now_us, last_us + KEPT_EVERY_US)
        self.newest_us = newest_us + KEPT_EVERY_US
        self._kept_us = (0, 0)

    def now_us(self) -> int:
        return int(self._clock.now_s() * 1_000_000)

    def tick(self, now_us: int) -> int:
        """A timestamp above all that were given before."""
        self._last_us = now_us if now_us > self._last_us else self._last_us + 1
        return self._last_us

    def to_keep(self) -> bytes | None:
        """What the next batch should write into the folder; None while that is recent enough."""
        last_us, newest_us = self._kept_us
        if self._last_us < last_us + KEPT_EVERY_US and self.newest_us < newest_us + KEPT_EVERY_US:
            return None
        self._kept_us = (self._last_us, self.newest_us)
        return _KEPT.pack(*self._kept_us)
