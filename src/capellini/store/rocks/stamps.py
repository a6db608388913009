"""Timestamps of the embedded store: each is above all that it gave before, whatever the clock does.

The highest timestamp ever written is known for each table, so most writes are known to be newer than everything there
is, and need not look at what they replace. By table, since some are written with timestamps ahead of the clock: a
horizon's is the time that it reaches to. All numbers are kept in the folder, at most a second behind; after opening
that second is added, so that they are never too low.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Final

import msgspec

from capellini.model.clock import Clock

KEPT_EVERY_US: Final = 1_000_000  # how far the numbers in the folder may lag behind
_FORMAT_1: Final = struct.Struct(">qq")  # the last one given; the highest written, of all tables


class _Kept(msgspec.Struct, array_like=True):
    last_us: int
    newest_us: dict[int, int]  # by table
    others_us: int = 0  # of tables that are not among them: what format 1 knew of all


class Stamps:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_us = 0
        self._newest_us: defaultdict[int, int] = defaultdict(int)  # by table: of all written, by whoever chose it
        self._kept = _Kept(0, {})
        self._behind = False  # what is kept is too far behind for some table

    def load(self, kept: bytes | None) -> None:
        """Go on above what the folder says."""
        found = _Kept(0, {})
        if kept is not None and len(kept) == _FORMAT_1.size and not kept[0]:
            last_us, newest_us = _FORMAT_1.unpack(kept)
            found = _Kept(last_us, {}, newest_us + KEPT_EVERY_US)
        elif kept is not None:
            found = msgspec.msgpack.decode(kept, type=_Kept)
        self._last_us = max(self.now_us(), found.last_us + KEPT_EVERY_US)
        self._newest_us = defaultdict(lambda: found.others_us)
        self._newest_us.update({table: newest_us + KEPT_EVERY_US for table, newest_us in found.newest_us.items()})
        self._kept, self._behind = _Kept(0, {}, found.others_us), True

    def now_us(self) -> int:
        return int(self._clock.now_s() * 1_000_000)

    def tick(self, now_us: int) -> int:
        """A timestamp above all that were given before."""
        self._last_us = now_us if now_us > self._last_us else self._last_us + 1
        return self._last_us

    def newest(self, table: int, timestamp_us: int) -> bool:
        """It is above everything that was written into this table."""
        return timestamp_us > self._newest_us[table]

    def above(self, table: int) -> int:
        """A timestamp above everything that was written into this table, whoever chose it."""
        return max(self.tick(self.now_us()), self._newest_us[table] + 1)

    def wrote(self, table: int, timestamp_us: int) -> None:
        if timestamp_us > self._newest_us[table]:
            self._newest_us[table] = timestamp_us
            if timestamp_us >= self._kept.newest_us.get(table, 0) + KEPT_EVERY_US:
                self._behind = True

    def to_keep(self) -> bytes | None:
        """What the next batch should write into the folder; None while that is recent enough."""
        if not self._behind and self._last_us < self._kept.last_us + KEPT_EVERY_US:
            return None
        self._kept, self._behind = _Kept(self._last_us, dict(self._newest_us), self._kept.others_us), False
        return msgspec.msgpack.encode(self._kept)
