"""Clearing away what has served, a piece at a time. What may go: store/sweeping.py.

common column family ──▶ spaces apart, by number ──▶ from the start again
"""

from __future__ import annotations

from typing import Any

import msgspec
from rocksdict import WriteBatch

from capellini.store.layout import HEAD, STATIC, Plan, marks_made_us
from capellini.store.rocks.database import Database
from capellini.store.sweeping import GRACE_US, swept


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
