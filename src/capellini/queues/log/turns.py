"""Turns: chunks of one producer that come at the same time are taken in the order in which they came.

    enter ─▶ (the queue is looked up, a lease waited for, …) ─▶ come: all that entered before have left ─▶ taken: leave

A stream hands its chunks over one after the other, and what each waits for on its way may end in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable


class Turn:
    def __init__(self, turns: Turns, key: Hashable, before: asyncio.Future[None] | None) -> None:
        self._turns, self._key, self._before = turns, key, before
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turns.last[key] = self._left

    async def come(self) -> None:
        if self._before is not None and not self._before.done():
            await asyncio.wait({self._before})

    def leave(self) -> None:
        """Again is fine."""
        if not self._left.done():
            self._left.set_result(None)
        if self._turns.last.get(self._key) is self._left:
            del self._turns.last[self._key]


class Turns:
    def __init__(self) -> None:
        self.last: dict[Hashable, asyncio.Future[None]] = {}

    def enter(self, key: Hashable) -> Turn:
        """To be called before anything is awaited."""
        return Turn(self, key, self.last.get(key))
