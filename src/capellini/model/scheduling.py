"""What timed queues offer beside the calls of every queue, and recurring schedules.

Beside `model.service.Service`, as `CounterService` is: a service that has timed queues names one in `timed`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from capellini.model.service import Done, Problem
from capellini.model.timed import DueMessage, MoveItem, ShardView

MAX_CRON_CHARS: Final = 200
MAX_ZONE_CHARS: Final = 100
MAX_SCHEDULE_BODY: Final = 65_536  # it lies in one row with its schedule, and is read with it
Missed = Literal["skip", "catch_up"]


class NewSchedule(msgspec.Struct, frozen=True):
    """Messages that come again and again: `body` into `queue` at each tick of `cron`, as a clock in `zone` shows it.

    `missed`: what becomes of ticks that nobody put in time, because no node ran or the queue took none: skip them, or
    catch up with all of them.
    """

    name: str
    queue: str
    cron: str
    zone: str = "UTC"
    body: bytes = b""
    attributes: dict[str, str] = {}
    missed: Missed = "skip"


class ScheduleInfo(msgspec.Struct, frozen=True):
    name: str
    queue: str
    cron: str
    zone: str
    body: bytes
    attributes: dict[str, str]
    missed: Missed
    created_at: float
    through_at: float  # all ticks up to here are put, or were skipped
    next_at: list[float]  # the next ticks
    skipped: int = 0  # ticks so far
    problem: str = ""  # why its ticks cannot be put now


class TimedService(ABC):
    """Raises as `Service` does; WrongKind for a queue that is not timed."""

    @abstractmethod
    async def cancel(self, name: str, ids: Sequence[str]) -> list[Done | Problem]:
        """Final once Done. Problems: not_found (unknown, acked, cancelled before), conflict (delivered now)."""

    @abstractmethod
    async def move(self, name: str, items: Sequence[MoveItem]) -> list[Done | Problem]:
        """Another due under the same id. Problems as for cancel."""

    @abstractmethod
    async def due_between(
        self, name: str, from_ms: int, to_ms: int, count: int = 100, after: str = ""
    ) -> list[DueMessage]:
        """By due; `after`: the id of the last one seen."""

    @abstractmethod
    async def shards(self, name: str) -> list[ShardView]: ...

    @abstractmethod
    async def stop_shard(self, name: str, shard: int) -> ShardView:
        """It hands out nothing until it is started, whoever holds it."""

    @abstractmethod
    async def start_shard(self, name: str, shard: int) -> ShardView: ...

    @abstractmethod
    async def schedule(self, schedule: NewSchedule) -> ScheduleInfo:
        """Same again is fine; another one of that name is a Conflict."""

    @abstractmethod
    async def schedules(self, prefix: str = "") -> list[ScheduleInfo]:
        """By name."""

    @abstractmethod
    async def unschedule(self, name: str) -> None:
        """No tick fires after this returned, but for those whose message was due before."""
