"""Batches by themselves: calls that wait while a request to the same queue is under way go together in the next one.

    idle ── items come ──▶ sent in this turn of the loop     a lone call waits for nobody
      └── and always one caller alone of late ──▶ sent at once, in that caller's task
    one under way ── items come ──▶ they wait ── it ends ──▶ all that wait are the next request
                                        └─ a whole batch waits ──▶ sent beside it, up to MAX_UNDER_WAY

A batch that may be shared runs in a task of its own: cancelling a caller takes its items out if they still wait, and
never ends a batch that others share. Company shows while a batch is under way: somebody waits when it ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from capellini.model.message import MAX_BATCH

MAX_BATCH_BYTES: Final = 4 * 1024 * 1024  # one request; larger only when a single item is
LONELY: Final = 8  # batches in a row of one caller each, with nobody waiting at their end
MAX_UNDER_WAY: Final = 4  # whole batches to one queue at a time: enough to keep a node busy

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")


class _Call(Generic[I, R]):
    """The items of one caller; `results` fills up as batches that carry parts of it come back."""

    __slots__ = ("future", "items", "left", "next", "results", "sizes")

    def __init__(self, items: Sequence[I], sizes: Sequence[int] | None, future: asyncio.Future[list[R]]) -> None:
        self.items = items
        self.sizes = sizes
        self.future = future
        self.next = 0  # the first item not yet in a batch
        self.left = len(items)  # results still to come
        self.results: list[R | None] = [None] * len(items)


class Batcher(Generic[I, R]):
    """`send` takes up to `most` items and gives a result for each, in order; what it raises goes to all callers of the
    batch."""

    def __init__(
        self,
        send: Callable[[list[I]], Awaitable[list[R]]],
        *,
        most: int = MAX_BATCH,
        most_bytes: int = MAX_BATCH_BYTES,
        most_under_way: int = MAX_UNDER_WAY,
    ) -> None:
        self._send = send
        self._most, self._most_bytes, self._most_under_way = most, most_bytes, most_under_way
        self._calls: deque[_Call[I, R]] = deque()
        self._waiting = 0
        self._waiting_bytes = 0
        self._planned = False
        self._alone = 0  # batches in a row of one caller
        self._lone: asyncio.Future[None] | None = None  # done when the one in its caller's task is over
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        return bool(self._calls or self._under_way or self._lone)

    async def submit(self, items: Sequence[I], sizes: Sequence[int] | None = None) -> list[R]:
        """The results of these items, in order. `sizes`: their bytes, where that matters."""
        if not items:
            return []
        loop = asyncio.get_running_loop()
        if self._alone >= LONELY and not (self._calls or self._under_way or self._lone) and self._one(items, sizes):
            return await self._send_alone(items, loop.create_future())
        future: asyncio.Future[list[R]] = loop.create_future()
        call = _Call(items, sizes, future)
        self._calls.append(call)
        self._waiting += len(items)
        self._waiting_bytes += sum(sizes) if sizes else 0
        if not self._planned:
            self._planned = True
            loop.call_soon(self._start)  # the other calls of this turn join in
        try:
            return await future
        finally:
            if call.next < len(items) and call.left:
                self._withdraw(call)

    def _one(self, items: Sequence[I], sizes: Sequence[int] | None) -> bool:
        """Do they fit into one batch?"""
        return len(items) <= self._most and (not sizes or sum(sizes) <= self._most_bytes)

    async def _send_alone(self, items: Sequence[I], over: asyncio.Future[None]) -> list[R]:
        self._lone = over
        try:
            results = await self._send(list(items))
            assert len(results) == len(items), "a batch gives one result per item"
            return results
        finally:
            self._lone = None
            over.set_result(None)
            if self._calls:
                self._alone = 0
                if not self._planned:
                    self._start()

    def _withdraw(self, call: _Call[I, R]) -> None:
        """What a caller that is gone still has waiting is not sent."""
        if call in self._calls:
            self._calls.remove(call)
            self._waiting -= len(call.items) - call.next
            self._waiting_bytes -= sum(call.sizes[call.next :]) if call.sizes else 0

    def _start(self) -> None:
        self._planned = False
        while self._calls and (
            not (self._under_way or self._lone) or (self._whole() and len(self._under_way) < self._most_under_way)
        ):
            task = asyncio.get_running_loop().create_task(self._run(self._next()))
            self._under_way.add(task)
            task.add_done_callback(self._ended)

    def _whole(self) -> bool:
        return self._waiting >= self._most or self._waiting_bytes >= self._most_bytes

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if self._calls or self._under_way:
            self._alone = 0
        if not self._planned:
            self._start()

    def _next(self) -> list[tuple[_Call[I, R], int, int]]:
        """Takes the next batch off the line: parts of calls, as (call, start, end)."""
        parts: list[tuple[_Call[I, R], int, int]] = []
        room, room_bytes = self._most, self._most_bytes
        while self._calls and room:
            call = self._calls[0]
            start = call.next
            end = min(len(call.items), start + room)
            if call.sizes:
                end, used = _fits(call.sizes, start, end, room_bytes, first=not parts)
                self._waiting_bytes -= used
                room_bytes -= used
            if end == start:
                break
            call.next = end
            parts.append((call, start, end))
            room -= end - start
            if end < len(call.items):
                break
            self._calls.popleft()
        self._waiting -= sum(end - start for _, start, end in parts)
        return parts

    async def _run(self, parts: list[tuple[_Call[I, R], int, int]]) -> None:
        call, start, end = parts[0]
        self._alone = self._alone + 1 if len(parts) == 1 else 0
        if len(parts) == 1 and end - start == len(call.items):
            items = list(call.items)
        else:
            items = [item for call, start, end in parts for item in call.items[start:end]]
        try:
            results = await self._send(items)
            assert len(results) == len(items), "a batch gives one result per item"
        except asyncio.CancelledError:
            for call, _, _ in parts:
                call.future.cancel()
            raise
        except Exception as error:
            for call, _, _ in parts:
                if not call.future.done():
                    call.future.set_exception(error)
            return
        at = 0
        for call, start, end in parts:
            call.results[start:end] = results[at : at + end - start]
            at += end - start
            call.left -= end - start
            if call.left == 0 and not call.future.done():
                call.future.set_result(call.results)  # type: ignore[arg-type]  # all are filled now

    async def close(self) -> None:
        """Waits for what is under way or waiting."""
        while self.busy:
            if self._under_way:
                await asyncio.wait(self._under_way)
            elif self._lone is not None:
                await asyncio.wait([self._lone])
            await asyncio.sleep(0)  # the ended tasks' callbacks start what waits


def _fits(sizes: Sequence[int], start: int, end: int, room_bytes: int, first: bool) -> tuple[int, int]:
    """How far from `start` the items fit, and their bytes. The first item of a batch always fits."""
    used = sum(sizes[start:end])
    if used <= room_bytes:
        return end, used
    used = 0
    for index in range(start, end):
        if used + sizes[index] > room_bytes and not (first and index == start):
            return index, used
        used += sizes[index]
    return end, used
