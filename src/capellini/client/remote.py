"""A node's service, over HTTP: each call is one request to the route of the same meaning, in MessagePack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from capellini.client.answers import decoded, encoded, error_of, queue_path, read, results_of, with_query
from capellini.client.counting import RemoteCounters
from capellini.client.groups import RemoteLog
from capellini.client.reaching import MSGPACK, Response
from capellini.client.scheduling import RemoteTimed
from capellini.client.transport import Transport
from capellini.model.message import Delivery, NewMessage, Peeked
from capellini.model.service import (
    BucketView,
    Done,
    ExtendItem,
    MessageView,
    NackItem,
    Parcel,
    ParcelAck,
    PointersView,
    Problem,
    Put,
    QueueInfo,
    Service,
    Statistics,
)


class _Queues(msgspec.Struct, frozen=True):
    queues: list[QueueInfo]


class _Messages(msgspec.Struct, frozen=True):
    messages: list[Delivery]


class _Peeked(msgspec.Struct, frozen=True):
    messages: list[Peeked]


class _Buckets(msgspec.Struct, frozen=True):
    buckets: list[BucketView]


class _Moved(msgspec.Struct, frozen=True):
    moved: int


_PARCELS: Final = msgspec.msgpack.Decoder(list[Parcel])
_RUNS: Final = msgspec.msgpack.Decoder(list[tuple[int, int]])
_RANGES: Final = msgspec.msgpack.Decoder(list[list[tuple[int, int]]])


class RemoteService(Service):
    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.counters = RemoteCounters(self, read)
        self.timed = RemoteTimed(self)
        self.log = RemoteLog(self)

    async def _ask(
        self, method: str, path: str, content: object = None, *, raw: bytes | None = None, wait_s: float = 0.0
    ) -> Response:
        """Raises what the node answered, if that was an error."""
        body = raw if raw is not None else None if content is None else encoded(content)
        response = await self.transport.request(method, path, body, content_type=MSGPACK, wait_s=wait_s)
        if response.status >= 300:
            raise error_of(response, str(self.transport.place))
        return response

    async def create(self, name: str, kind: str = "work", options: Mapping[str, Any] | None = None) -> QueueInfo:
        content = {"kind": kind, "options": dict(options or {})}
        return read(await self._ask("PUT", queue_path(name), content), QueueInfo)

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[QueueInfo]:
        path = with_query("/v1/queues", prefix=prefix, after=after, limit=limit)
        return read(await self._ask("GET", path), _Queues).queues

    async def show(self, name: str) -> QueueInfo:
        return read(await self._ask("GET", queue_path(name)), QueueInfo)

    async def change(self, name: str, options: Mapping[str, Any]) -> QueueInfo:
        return read(await self._ask("PATCH", queue_path(name), {"options": dict(options)}), QueueInfo)

    async def pause(self, name: str, puts: bool | None = None, gets: bool | None = None) -> QueueInfo:
        info: QueueInfo | None = None
        for verb, value in (("pause", True), ("resume", False)):
            sides = {"puts": puts is value, "gets": gets is value}
            if any(sides.values()):
                info = read(await self._ask("POST", queue_path(name, verb), sides), QueueInfo)
        return info or await self.show(name)

    async def purge(self, name: str) -> QueueInfo:
        return read(await self._ask("POST", queue_path(name, "purge")), QueueInfo)

    async def delete(self, name: str) -> None:
        await self._ask("DELETE", queue_path(name))

    async def statistics(self, name: str) -> Statistics:
        return read(await self._ask("GET", queue_path(name, "statistics")), Statistics)

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        response = await self._ask("POST", queue_path(name, "messages"), {"messages": list(messages)})
        return results_of(response, Put)

    async def get(
        self, name: str, count: int = 1, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[Delivery]:
        content = {"count": count, "wait_s": wait_s, "visibility_s": visibility_s}
        response = await self._ask("POST", queue_path(name, "messages/get"), content, wait_s=wait_s)
        return read(response, _Messages).messages

    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]:
        return results_of(await self._ask("POST", queue_path(name, "messages/ack"), {"receipts": list(receipts)}), Done)

    async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]:
        return results_of(await self._ask("POST", queue_path(name, "messages/nack"), {"items": list(items)}), Done)

    async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        return results_of(await self._ask("POST", queue_path(name, "messages/extend"), {"items": list(items)}), Done)

    async def peek(self, name: str, count: int = 10, after: str = "") -> list[Peeked]:
        path = with_query(queue_path(name, "messages"), count=count, after=after)
        return read(await self._ask("GET", path), _Peeked).messages

    async def dead(self, name: str, count: int = 100, after: str = "") -> list[Peeked]:
        path = with_query(queue_path(name, "dead"), count=count, after=after)
        return read(await self._ask("GET", path), _Peeked).messages

    async def redrive(self, name: str, count: int | None = None, ids: Sequence[str] | None = None) -> int:
        asked = {"count": count} if ids is None else {"ids": list(ids)}
        return read(await self._ask("POST", queue_path(name, "redrive"), asked), _Moved).moved

    async def buckets(self, name: str, limit: int = 100) -> list[BucketView]:
        path = with_query(queue_path(name, "debug/buckets"), limit=limit)
        return read(await self._ask("GET", path), _Buckets).buckets

    async def pointers(self, name: str) -> PointersView:
        return read(await self._ask("GET", queue_path(name, "debug/pointers")), PointersView)

    async def move_repair(self, name: str, bucket: int) -> PointersView:
        return read(await self._ask("POST", queue_path(name, "debug/pointers"), {"repair": bucket}), PointersView)

    async def message(self, name: str, id: str) -> MessageView:
        return read(await self._ask("GET", queue_path(name, f"debug/messages/{quote(id, safe='')}")), MessageView)

    async def put_block(self, name: str, entries: bytes) -> list[tuple[int, int]]:
        return decoded(_RUNS, await self._ask("POST", queue_path(name, "blocks/put"), raw=entries))

    async def take(self, name: str, count: int, wait_s: float = 0.0, visibility_s: float | None = None) -> list[Parcel]:
        content = (count, wait_s, visibility_s)
        return decoded(_PARCELS, await self._ask("POST", queue_path(name, "blocks/get"), content, wait_s=wait_s))

    async def ack_parcels(self, name: str, acks: Sequence[ParcelAck]) -> list[list[tuple[int, int]]]:
        return decoded(_RANGES, await self._ask("POST", queue_path(name, "blocks/ack"), list(acks)))

    async def close(self) -> None:
        await self.transport.close()
