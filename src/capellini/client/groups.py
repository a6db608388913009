"""What log queues offer beyond the calls of every queue, through a client: groups, extents, routes, chunks.

    client.groups ──▶ patience ──▶ a node (RemoteLog), or the log queues of this process

Streams are in `streaming` and `producing`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from capellini.client.answers import decoded, queue_path, read, with_query
from capellini.client.parts import Moved
from capellini.client.reaching import Response
from capellini.client.relay import Relay
from capellini.model.chunks import NO_PRODUCER, head_of
from capellini.model.errors import Unavailable
from capellini.model.log import (
    EARLIEST,
    Appended,
    ExtentView,
    GroupInfo,
    GroupLag,
    LogParcel,
    LogService,
    Routes,
    Settle,
    Settled,
    check_group,
)
from capellini.model.service import Service

R = TypeVar("R")
_APPENDED: Final = msgspec.msgpack.Decoder(Appended)
_PARCELS: Final = msgspec.msgpack.Decoder(list[LogParcel])
_SETTLED: Final = msgspec.msgpack.Decoder(list[Settled])


class Asks(Protocol):
    """As RemoteService asks a node."""

    async def _ask(
        self, method: str, path: str, content: object = None, *, raw: bytes | None = None, wait_s: float = 0.0
    ) -> Response: ...


class _Groups(msgspec.Struct, frozen=True):
    groups: list[GroupInfo]


class _Shown(msgspec.Struct, frozen=True):
    group: GroupInfo
    lag: GroupLag


class _Extents(msgspec.Struct, frozen=True):
    extents: list[ExtentView]


class _Moved(msgspec.Struct, frozen=True):
    moved: int


def group_path(queue: str, group: str, rest: str = "") -> str:
    path = queue_path(queue, f"groups/{check_group(group)}")
    return f"{path}/{rest}" if rest else path


class RemoteLog(LogService):
    """A node's, over HTTP."""

    def __init__(self, node: Asks) -> None:
        self._node = node

    async def create_group(
        self, queue: str, group: str, start: str | float = EARLIEST, options: Mapping[str, Any] | None = None
    ) -> GroupInfo:
        content = {"start": start, "options": dict(options or {})}
        return read(await self._node._ask("PUT", group_path(queue, group), content), GroupInfo)

    async def groups(self, queue: str) -> list[GroupInfo]:
        return read(await self._node._ask("GET", queue_path(queue, "groups")), _Groups).groups

    async def show_group(self, queue: str, group: str) -> tuple[GroupInfo, GroupLag]:
        found = read(await self._node._ask("GET", group_path(queue, group)), _Shown)
        return found.group, found.lag

    async def change_group(self, queue: str, group: str, options: Mapping[str, Any]) -> GroupInfo:
        content = {"options": dict(options)}
        return read(await self._node._ask("PATCH", group_path(queue, group), content), GroupInfo)

    async def seek_group(self, queue: str, group: str, to: str | float) -> GroupInfo:
        return read(await self._node._ask("POST", group_path(queue, group, "seek"), {"to": to}), GroupInfo)

    async def delete_group(self, queue: str, group: str) -> None:
        await self._node._ask("DELETE", group_path(queue, group))

    async def merge_dead(self, queue: str, group: str, count: int | None = None) -> int:
        path = group_path(queue, group, "dead/merge")
        return read(await self._node._ask("POST", path, {"count": count}), _Moved).moved

    async def purge_dead(self, queue: str, group: str) -> None:
        await self._node._ask("POST", group_path(queue, group, "dead/purge"))

    async def extents(self, queue: str) -> list[ExtentView]:
        return read(await self._node._ask("GET", queue_path(queue, "debug/extents")), _Extents).extents

    async def routes(self, queue: str, group: str | None = None) -> Routes:
        return read(await self._node._ask("GET", with_query(queue_path(queue, "routes"), group=group or "")), Routes)

    async def append(self, queue: str, chunk: bytes) -> Appended:
        return decoded(_APPENDED, await self._node._ask("POST", queue_path(queue, "chunks/put"), raw=chunk))

    async def pull(
        self, queue: str, group: str, count: int, most_bytes: int, wait_s: float, visibility_s: float | None = None
    ) -> list[LogParcel]:
        content, path = (count, most_bytes, wait_s, visibility_s), group_path(queue, group, "chunks/get")
        return decoded(_PARCELS, await self._node._ask("POST", path, content, wait_s=wait_s))

    async def settle(self, queue: str, group: str, items: Sequence[Settle]) -> list[Settled]:
        path = group_path(queue, group, "chunks/settle")
        return decoded(_SETTLED, await self._node._ask("POST", path, list(items)))


class RelayedLog(LogService):
    """What is behind a relay, whatever that is at the time of the call."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def _call(self, operation: str, do: Callable[[LogService], Awaitable[R]]) -> R:
        return await self._relay.call(operation, lambda behind: do(log_of(behind)))

    async def create_group(
        self, queue: str, group: str, start: str | float = EARLIEST, options: Mapping[str, Any] | None = None
    ) -> GroupInfo:
        return await self._call("create_group", lambda log: log.create_group(queue, group, start, options))

    async def groups(self, queue: str) -> list[GroupInfo]:
        return await self._call("groups", lambda log: log.groups(queue))

    async def show_group(self, queue: str, group: str) -> tuple[GroupInfo, GroupLag]:
        return await self._call("show_group", lambda log: log.show_group(queue, group))

    async def change_group(self, queue: str, group: str, options: Mapping[str, Any]) -> GroupInfo:
        return await self._call("change_group", lambda log: log.change_group(queue, group, options))

    async def seek_group(self, queue: str, group: str, to: str | float) -> GroupInfo:
        return await self._call("seek_group", lambda log: log.seek_group(queue, group, to))

    async def delete_group(self, queue: str, group: str) -> None:
        await self._call("delete_group", lambda log: log.delete_group(queue, group))

    async def merge_dead(self, queue: str, group: str, count: int | None = None) -> int:
        return await self._call("merge_dead", lambda log: log.merge_dead(queue, group, count))

    async def purge_dead(self, queue: str, group: str) -> None:
        await self._call("purge_dead", lambda log: log.purge_dead(queue, group))

    async def extents(self, queue: str) -> list[ExtentView]:
        return await self._call("extents", lambda log: log.extents(queue))

    async def routes(self, queue: str, group: str | None = None) -> Routes:
        return await self._call("routes", lambda log: log.routes(queue, group))

    async def append(self, queue: str, chunk: bytes) -> Appended:
        named = head_of(chunk).producer != NO_PRODUCER  # then a second one is recognised
        return await self._call("append_named" if named else "append", lambda log: log.append(queue, chunk))

    async def pull(
        self, queue: str, group: str, count: int, most_bytes: int, wait_s: float, visibility_s: float | None = None
    ) -> list[LogParcel]:
        return await self._call("pull", lambda log: log.pull(queue, group, count, most_bytes, wait_s, visibility_s))

    async def settle(self, queue: str, group: str, items: Sequence[Settle]) -> list[Settled]:
        return await self._call("settle", lambda log: log.settle(queue, group, items))


def has_log(service: Service) -> bool:
    """Are there log queues? Of what is behind a relay that is seen when it is called."""
    return isinstance(service, Relay) or service.log is not None


def log_of(service: Service) -> LogService:
    if isinstance(service, Relay):
        return RelayedLog(service)
    if service.log is None:
        raise Unavailable("there are no log queues at this address")
    return service.log


class Groups:
    """Consumer groups of log queues, as a client's `groups`."""

    def __init__(self, log: LogService) -> None:
        self._log = log

    async def create(self, queue: str, group: str, /, *, start: str | float = EARLIEST, **options: Any) -> GroupInfo:
        """Same again is fine; Conflict if it exists with other options. `start`: earliest, latest, or seconds since
        1970: messages put before are not for it."""
        return await self._log.create_group(queue, group, start, options)

    async def list(self, queue: str) -> list[GroupInfo]:
        return await self._log.groups(queue)

    async def show(self, queue: str, group: str) -> tuple[GroupInfo, GroupLag]:
        """What it is, and how far it is behind."""
        return await self._log.show_group(queue, group)

    async def change(self, queue: str, group: str, /, **options: Any) -> GroupInfo:
        return await self._log.change_group(queue, group, options)

    async def seek(self, queue: str, group: str, to: str | float) -> GroupInfo:
        """From there on once more, or on; what was delivered before can no longer be acked. Before what is kept: from
        the oldest, and `says` tells so."""
        return await self._log.seek_group(queue, group, to)

    async def delete(self, queue: str, group: str) -> None:
        await self._log.delete_group(queue, group)

    async def merge_dead(
        self, queue: str, group: str, count: int | None = None, *, progress: Callable[[int], object] | None = None
    ) -> int:
        """Dead letters of the group come to it again, and to no other; how many. `progress` is called with how many
        more."""
        return await Moved(progress).up_to(count, lambda asked: self._log.merge_dead(queue, group, asked))

    async def purge_dead(self, queue: str, group: str) -> None:
        await self._log.purge_dead(queue, group)


class WaitingGroups:
    """The same for programs without asyncio: each call waits for its answer."""

    def __init__(self, groups: Groups, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._groups = groups
        self._run = run

    def create(self, queue: str, group: str, /, *, start: str | float = EARLIEST, **options: Any) -> GroupInfo:
        """See `Groups.create`."""
        found: GroupInfo = self._run(self._groups.create(queue, group, start=start, **options))
        return found

    def list(self, queue: str) -> list[GroupInfo]:
        found: list[GroupInfo] = self._run(self._groups.list(queue))
        return found

    def show(self, queue: str, group: str) -> tuple[GroupInfo, GroupLag]:
        found: tuple[GroupInfo, GroupLag] = self._run(self._groups.show(queue, group))
        return found

    def change(self, queue: str, group: str, /, **options: Any) -> GroupInfo:
        found: GroupInfo = self._run(self._groups.change(queue, group, **options))
        return found

    def seek(self, queue: str, group: str, to: str | float) -> GroupInfo:
        found: GroupInfo = self._run(self._groups.seek(queue, group, to))
        return found

    def delete(self, queue: str, group: str) -> None:
        self._run(self._groups.delete(queue, group))

    def merge_dead(
        self, queue: str, group: str, count: int | None = None, *, progress: Callable[[int], object] | None = None
    ) -> int:
        moved: int = self._run(self._groups.merge_dead(queue, group, count, progress=progress))
        return moved

    def purge_dead(self, queue: str, group: str) -> None:
        self._run(self._groups.purge_dead(queue, group))
