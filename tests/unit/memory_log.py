"""Log queues in a list, just large enough to show what streams do with them. They keep no promises."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from tests.unit.memory_service import MemoryService

from capellini.model import chunks
from capellini.model.errors import CapelliniError, Invalid, NotFound, WrongKind
from capellini.model.log import (
    EARLIEST,
    Appended,
    ExtentView,
    GroupInfo,
    GroupLag,
    GroupOptions,
    LogParcel,
    LogService,
    Routes,
    Settle,
    Settled,
)

NOW_MS = 1_700_000_000_000


class MemoryLog(LogService):
    """One queue, `events`, with groups that are made before."""

    def __init__(self, service: MemoryService) -> None:
        self._service = service
        self.blocks: list[tuple[int, chunks.Head, bytes]] = []  # first number, head, chunk
        self.end = 0
        self.last: dict[bytes, int] = {}  # sequence by producer
        self.positions: dict[str, int] = {}
        self.back: dict[str, list[tuple[int, int]]] = {}  # given back
        self.acked: dict[str, set[int]] = {}
        self.deliveries = 0
        self.came = asyncio.Event()
        self.hold: asyncio.Event | None = None  # appends wait for it
        self.fails: list[CapelliniError | None] = []  # what the next appends raise
        self.fails_after: list[CapelliniError | None] = []  # ... after they were done
        self.settle_fails: list[CapelliniError] = []  # what the next settles raise
        self.settle_fails_after: list[CapelliniError] = []  # ... after they were done
        self.settled: list[Settle] = []
        self.pulls = 0
        self.asked_bytes: list[int] = []  # of each pull
        self.pull_fails: list[CapelliniError] = []  # what the next pulls raise
        self.pulled: asyncio.Event | None = None  # what was taken waits for it
        self.here = "127.0.0.1:1"
        self.writers: tuple[str, ...] = ()

    def _check(self, queue: str, group: str | None = None) -> None:
        if queue != "events":
            if queue in self._service.held:
                raise WrongKind(f"queue {queue} is of another kind")
            raise NotFound(f"there is no queue {queue}")
        if group is not None and group not in self.positions:
            raise NotFound(f"there is no group {group} of {queue}: create it first")

    async def append(self, queue: str, chunk: bytes) -> Appended:
        self._check(queue)
        head = chunks.check(chunk, 262_144)
        last = self.last.get(head.producer, 0)
        if self.fails and (error := self.fails.pop(0)) is not None:
            raise error
        if head.producer != chunks.NO_PRODUCER:
            if head.sequence <= last:
                return Appended("", -1, head.count, True)
            if head.sequence > last + 1:
                raise Invalid(f"sequence {head.sequence} came, {last + 1} is next")
            self.last[head.producer] = head.sequence
        first, self.end = self.end, self.end + head.count
        self.blocks.append((first, head, chunk))
        if self.hold is not None:
            await self.hold.wait()
        self.came.set()
        if self.fails_after and (error := self.fails_after.pop(0)) is not None:
            raise error
        return Appended("x", first, head.count)

    def bodies(self) -> list[bytes]:
        return [body for _, head, chunk in self.blocks for body in chunks.bodies_of(chunk, head)]

    async def pull(
        self, queue: str, group: str, count: int, most_bytes: int, wait_s: float, visibility_s: float | None = None
    ) -> list[LogParcel]:
        self._check(queue, group)
        self.pulls += 1
        self.asked_bytes.append(most_bytes)
        if self.pull_fails:
            raise self.pull_fails.pop(0)
        if not self.back.get(group) and self.positions[group] >= self.end:
            self.came.clear()
            try:
                await asyncio.wait_for(self.came.wait(), wait_s)
            except TimeoutError:
                return []
            self._check(queue, group)
        again = bool(self.back.get(group))
        at, stop = self.back[group].pop(0) if again else (self.positions[group], self.end)
        for first, head, chunk in self.blocks:
            if first <= at < first + head.count:
                taken = min(count, first + head.count - at, stop - at)
                if not again:
                    self.positions[group] = at + taken
                elif at + taken < stop:
                    self.back[group].insert(0, (at + taken, stop))
                self.deliveries += 1
                part = chunks.part(chunk, head, at - first, taken)
                if self.pulled is not None:
                    with contextlib.suppress(asyncio.CancelledError):  # it has been taken: whoever left gives it back
                        await self.pulled.wait()
                times, until_ms = 2 if again else 1, NOW_MS + 30_000
                return [
                    LogParcel("x", f"{group}/1", 1, self.deliveries, at, taken, times, NOW_MS, until_ms, b"c", part)
                ]
        return []

    async def settle(self, queue: str, group: str, items: Sequence[Settle]) -> list[Settled]:
        self._check(queue, group)
        if self.settle_fails:
            raise self.settle_fails.pop(0)
        done: list[Settled] = []
        self.settled += items
        for item in items:
            if item.code != b"c":
                done.append(Settled([]))
                continue
            if item.verb == "ack":
                acked = self.acked.setdefault(group, set())
                asked = [number for first, count in item.ranges for number in range(first, first + count)]
                fresh = [number for number in asked if number not in acked]
                acked.update(fresh)
                done.append(Settled(item.ranges if fresh == asked else [(number, 1) for number in fresh]))
            elif item.verb in ("nack", "release"):
                self.back.setdefault(group, []).extend((first, first + count) for first, count in item.ranges)
                self.came.set()
                done.append(Settled(item.ranges))
            else:
                done.append(Settled(item.ranges))
        if self.settle_fails_after:
            raise self.settle_fails_after.pop(0)
        return done

    async def create_group(
        self, queue: str, group: str, start: str | float = EARLIEST, options: Mapping[str, Any] | None = None
    ) -> GroupInfo:
        self.positions.setdefault(group, 0)
        return self._info(group)

    def _info(self, group: str) -> GroupInfo:
        return GroupInfo("events", group, 1, 0.0, GroupOptions(), 0.0, f"events.{group}.dead")

    async def groups(self, queue: str) -> list[GroupInfo]:
        self._check(queue)
        return [self._info(group) for group in self.positions]

    async def show_group(self, queue: str, group: str) -> tuple[GroupInfo, GroupLag]:
        self._check(queue, group)
        return self._info(group), GroupLag(self.end - self.positions[group], 0, 0, None, True)

    async def change_group(self, queue: str, group: str, options: Mapping[str, Any]) -> GroupInfo:
        self._check(queue, group)
        return self._info(group)

    async def seek_group(self, queue: str, group: str, to: str | float) -> GroupInfo:
        self._check(queue, group)
        self.positions[group] = 0 if to == EARLIEST else self.end
        return self._info(group)

    async def delete_group(self, queue: str, group: str) -> None:
        self._check(queue, group)
        del self.positions[group]

    async def merge_dead(self, queue: str, group: str, count: int | None = None) -> int:
        self._check(queue, group)
        return 0

    async def purge_dead(self, queue: str, group: str) -> None:
        self._check(queue, group)

    async def extents(self, queue: str) -> list[ExtentView]:
        self._check(queue)
        return []

    async def routes(self, queue: str, group: str | None = None) -> Routes:
        self._check(queue, group)
        return Routes(self.writers, self.writers, self.here)


async def with_log(service: MemoryService) -> MemoryLog:
    """The same service, with a log queue `events` and its group `readers`."""
    await service.create("events", "log")
    log = MemoryLog(service)
    log.positions["readers"] = 0
    service.log = log
    return log


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]
