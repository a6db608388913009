"""Clearing away what has served. `Sweeper`, a piece at a time; what may go: store/sweeping.py.

    common column family ──▶ spaces apart, by number ──▶ from the start again

`Garbage`: what was dropped lies on the disk until RocksDB compacts just there, which it does for what is written later,
if anything is. A queue that was emptied would keep its files, and a disk that was full of it would stay full.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import msgspec
from rocksdict import WriteBatch

from capellini.model.clock import Clock
from capellini.store.folder import Room
from capellini.store.interface import Key
from capellini.store.layout import BEYOND, HEAD, STATIC, Plan, marks_made_us
from capellini.store.rocks.database import Database
from capellini.store.sweeping import GRACE_US, swept

log = logging.getLogger("capellini.store")

LITTLE_BYTES: Final = 256 * 1024 * 1024  # of files: fewer are left to RocksDB, unless the disk fills up
EVERY_S: Final = 60.0  # each time what is in memory is flushed, and files at the ends of what was dropped written anew
CLOSING_S: Final = 3.0  # on a full disk RocksDB may wait for room, and for ever
MOST_RANGES: Final = 1_000


class Swept(msgspec.Struct, frozen=True):
    """What one call of `sweep` did. `finished`: it came to the end, and the next call starts over."""

    seen: int
    removed: int
    finished: bool


class Sweeper:
    """Remembers where it stopped."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cursor: tuple[int, bytes] = (0, b"")  # which space (0: the common one), and the next key there

    @property
    def finished(self) -> bool:
        return self._cursor == (0, b"")

    def step(self, plans: dict[str, Plan], limit: int, now_us: int) -> tuple[int, WriteBatch]:
        """How many records were looked at, and the batch that removes what has served."""
        number, place = self._cursor
        by_start = {plan.start: plan for plan in plans.values()}
        spaces = {space.number: (space, prefix) for prefix, space in self._database.apart.items()}
        made = WriteBatch(raw_mode=True)
        seen = 0
        if number and number not in spaces:  # dropped meanwhile
            self._cursor = self._following(number, spaces)
            return 0, made
        rows, handle = (spaces[number][0].rows, spaces[number][0].handle) if number else (self._database.rows, None)
        for key, record in rows.items(from_key=place):
            if seen == limit:
                self._cursor = (number, key)
                break
            seen += 1
            plan = by_start.get(spaces[number][1][:2] if number else key[:2])
            if plan is not None:
                self._one(plan, key, record, now_us, made, handle, number)
        else:
            self._cursor = self._following(number, spaces)
        return seen, made

    def _following(self, number: int, spaces: dict[int, Any]) -> tuple[int, bytes]:
        return min((other for other in spaces if other > number), default=0), b""

    def _one(
        self, plan: Plan, key: bytes, record: bytes, now_us: int, made: WriteBatch, handle: Any, number: int
    ) -> None:
        codec, conditional = plan.rows, plan.conditional_rows
        if number == 0:
            _, end = plan.partitions.split(key, 2)
            if key[end:] == HEAD:
                used = key[:end] in self._database.apart or key[:end] in self._database.shared
                if marks_made_us(record) + GRACE_US <= now_us and not used:
                    made.delete(key)
                return
            if key[end:] == STATIC:
                codec, conditional = plan.statics, plan.conditional_statics
        new = swept(codec, conditional, record, now_us)
        if new is None:
            made.delete(key, handle)
        elif new is not record:
            made.put(key, new, handle)


class Garbage:
    """Knows what was dropped since it was last cleared away: of the partitions that differ in their last column, such
    as the buckets of a queue, one stretch from the first to the last."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._stretches: dict[tuple[int, Key], tuple[bytes, bytes]] = {}
        self._clearing: asyncio.Future[None] | None = None
        self._again_s = 0.0

    def add(self, plan: Plan, partition: Key, prefix: bytes) -> None:
        family = (plan.number, partition[:-1])
        if family not in self._stretches and len(self._stretches) >= MOST_RANGES:
            del self._stretches[next(iter(self._stretches))]
        low, high = self._stretches.get(family, (prefix, prefix))
        self._stretches[family] = (min(low, prefix), max(high, prefix))

    def clear(self, room: Room) -> None:
        """In the background, if it is worth while, or room is short."""
        if not self._stretches or (self._clearing is not None and not self._clearing.done()):
            return
        now_s = self._clock.elapsed_s()
        little = room.ample and self._database.files_bytes() < LITTLE_BYTES
        if not room.short and (little or now_s < self._again_s):
            return
        self._again_s = now_s + EVERY_S
        stretches, self._stretches = list(self._stretches.values()), {}
        self._clearing = asyncio.get_running_loop().run_in_executor(None, self._compact, stretches)

    async def ended(self) -> None:
        if self._clearing is not None:
            await asyncio.wait({self._clearing})

    async def end(self) -> bool:
        """Nothing goes on any more: the database is to be closed. False: it was told to give up what it compacted."""
        if self._clearing is None:
            return True
        done, _ = await asyncio.wait({self._clearing}, timeout=CLOSING_S)
        if not done:
            self._database.hurry()
            await self.ended()
        return bool(done)

    def _compact(self, stretches: list[tuple[bytes, bytes]]) -> None:
        try:
            for low, high in stretches:
                self._database.compact(low, high + BEYOND)
        except Exception as error:  # rocksdict raises plain Exception for everything; writers hear of it themselves
            log.warning("%s: what was dropped does not give its room back yet: %s", self._database.folder, error)
