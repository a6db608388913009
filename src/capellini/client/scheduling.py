"""What timed queues and schedules offer, through a client: the same calls on each kind of address.

AsyncClient ──▶ patience ──▶ a node (RemoteTimed), or the timed queues of this process
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar
from urllib.parse import quote

import msgspec

from capellini.client.answers import queue_path, read, results_of, with_query
from capellini.client.reaching import Response
from capellini.client.relay import Relay
from capellini.model.errors import Unavailable
from capellini.model.scheduling import NewSchedule, ScheduleInfo, TimedService
from capellini.model.service import Done, Problem, Service
from capellini.model.timed import DueMessage, MoveItem, ShardView

R = TypeVar("R")


class Asks(Protocol):
    """As RemoteService asks a node."""

    async def _ask(self, method: str, path: str, content: object = None) -> Response: ...


class _Due(msgspec.Struct, frozen=True):
    messages: list[DueMessage]


class _Shards(msgspec.Struct, frozen=True):
    shards: list[ShardView]


class _Schedules(msgspec.Struct, frozen=True):
    schedules: list[ScheduleInfo]


class RemoteTimed(TimedService):
    """A node's, over HTTP."""

    def __init__(self, node: Asks) -> None:
        self._node = node

    async def cancel(self, name: str, ids: Sequence[str]) -> list[Done | Problem]:
        return results_of(await self._node._ask("POST", queue_path(name, "messages/cancel"), {"ids": list(ids)}), Done)

    async def move(self, name: str, items: Sequence[MoveItem]) -> list[Done | Problem]:
        content = {"items": [{"id": item.id, "due": item.due_ms / 1000} for item in items]}
        return results_of(await self._node._ask("POST", queue_path(name, "messages/move"), content), Done)

    async def due_between(
        self, name: str, from_ms: int, to_ms: int, count: int = 100, after: str = ""
    ) -> list[DueMessage]:
        times = {"from": repr(from_ms / 1000), "to": repr(to_ms / 1000)}
        path = with_query(queue_path(name, "due"), count=count, after=after, **times)
        return read(await self._node._ask("GET", path), _Due).messages

    async def shards(self, name: str) -> list[ShardView]:
        return read(await self._node._ask("GET", queue_path(name, "shards")), _Shards).shards

    async def stop_shard(self, name: str, shard: int) -> ShardView:
        return read(await self._node._ask("POST", queue_path(name, f"shards/{shard}/stop")), ShardView)

    async def start_shard(self, name: str, shard: int) -> ShardView:
        return read(await self._node._ask("POST", queue_path(name, f"shards/{shard}/start")), ShardView)

    async def schedule(self, schedule: NewSchedule) -> ScheduleInfo:
        content = msgspec.structs.asdict(schedule)
        path = _schedule_path(content.pop("name"))
        return read(await self._node._ask("PUT", path, content), ScheduleInfo)

    async def schedules(self, prefix: str = "") -> list[ScheduleInfo]:
        return read(await self._node._ask("GET", with_query("/v1/schedules", prefix=prefix)), _Schedules).schedules

    async def unschedule(self, name: str) -> None:
        await self._node._ask("DELETE", _schedule_path(name))


def _schedule_path(name: str) -> str:
    return f"/v1/schedules/{quote(name, safe='')}"


class RelayedTimed(TimedService):
    """What is behind a relay, whatever that is at the time of the call."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def _call(self, operation: str, do: Callable[[TimedService], Awaitable[R]]) -> R:
        return await self._relay.call(operation, lambda behind: do(timed_of(behind)))

    async def cancel(self, name: str, ids: Sequence[str]) -> list[Done | Problem]:
        return await self._call("cancel", lambda timed: timed.cancel(name, ids))

    async def move(self, name: str, items: Sequence[MoveItem]) -> list[Done | Problem]:
        return await self._call("move", lambda timed: timed.move(name, items))

    async def due_between(
        self, name: str, from_ms: int, to_ms: int, count: int = 100, after: str = ""
    ) -> list[DueMessage]:
        return await self._call("due_between", lambda timed: timed.due_between(name, from_ms, to_ms, count, after))

    async def shards(self, name: str) -> list[ShardView]:
        return await self._call("shards", lambda timed: timed.shards(name))

    async def stop_shard(self, name: str, shard: int) -> ShardView:
        return await self._call("stop_shard", lambda timed: timed.stop_shard(name, shard))

    async def start_shard(self, name: str, shard: int) -> ShardView:
        return await self._call("start_shard", lambda timed: timed.start_shard(name, shard))

    async def schedule(self, schedule: NewSchedule) -> ScheduleInfo:
        return await self._call("schedule", lambda timed: timed.schedule(schedule))

    async def schedules(self, prefix: str = "") -> list[ScheduleInfo]:
        return await self._call("schedules", lambda timed: timed.schedules(prefix))

    async def unschedule(self, name: str) -> None:
        await self._call("unschedule", lambda timed: timed.unschedule(name))


def timed_of(service: Service) -> TimedService:
    if isinstance(service, Relay):
        return RelayedTimed(service)
    if service.timed is None:
        raise Unavailable("there are no timed queues at this address")
    return service.timed
