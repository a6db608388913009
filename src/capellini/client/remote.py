"""A node's service, over HTTP: each call is one request to the route of the same meaning, in MessagePack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from capellini.client.counting import RemoteCounters
from capellini.client.transport import MSGPACK, Response, Transport
from capellini.model.errors import CapelliniError, Invalid, TooLarge, Unavailable, Unknown, from_name
from capellini.model.message import Delivery, NewMessage, Peeked
from capellini.model.options import check_name
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

T = TypeVar("T")
JSON: Final = "application/json"
SHOWN: Final = 200  # characters of an answer that is no answer of a node


class _Results(msgspec.Struct, frozen=True):
    results: list[dict[str, Any]]


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
_OF_HTTP: Final[dict[str, type[CapelliniError]]] = {  # names that only HTTP has
    "internal": Unknown,  # a node that failed half-way may have done it
    "timeout": Unavailable,  # the request did not arrive whole
    "forbidden": Invalid,
    "media_type": Invalid,
    "no_route": Invalid,
    "method": Invalid,
}


class RemoteService(Service):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.counters = RemoteCounters(self, read)

    async def _ask(
        self, method: str, path: str, content: object = None, *, raw: bytes | None = None, wait_s: float = 0.0
    ) -> Response:
        """Raises what the node answered, if that was an error."""
        body = raw if raw is not None else None if content is None else msgspec.msgpack.encode(content)
        response = await self._transport.request(method, path, body, content_type=MSGPACK, wait_s=wait_s)
        if response.status >= 300:
            raise error_of(response, str(self._transport.place))
        return response

    async def create(self, name: str, kind: str = "work", options: Mapping[str, Any] | None = None) -> QueueInfo:
        content = {"kind": kind, "options": dict(options or {})}
        return read(await self._ask("PUT", _queue(name), content), QueueInfo)

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[QueueInfo]:
        path = _with("/v1/queues", prefix=prefix, after=after, limit=limit)
        return read(await self._ask("GET", path), _Queues).queues

    async def show(self, name: str) -> QueueInfo:
        return read(await self._ask("GET", _queue(name)), QueueInfo)

    async def change(self, name: str, options: Mapping[str, Any]) -> QueueInfo:
        return read(await self._ask("PATCH", _queue(name), {"options": dict(options)}), QueueInfo)

    async def pause(self, name: str, puts: bool | None = None, gets: bool | None = None) -> QueueInfo:
        info: QueueInfo | None = None
        for verb, value in (("pause", True), ("resume", False)):
            sides = {"puts": puts is value, "gets": gets is value}
            if any(sides.values()):
                info = read(await self._ask("POST", _queue(name, verb), sides), QueueInfo)
        return info or await self.show(name)

    async def purge(self, name: str) -> QueueInfo:
        return read(await self._ask("POST", _queue(name, "purge")), QueueInfo)

    async def delete(self, name: str) -> None:
        await self._ask("DELETE", _queue(name))

    async def statistics(self, name: str) -> Statistics:
        return read(await self._ask("GET", _queue(name, "statistics")), Statistics)

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        response = await self._ask("POST", _queue(name, "messages"), {"messages": list(messages)})
        return _results(response, Put)

    async def get(
        self, name: str, count: int = 1, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[Delivery]:
        content = {"count": count, "wait_s": wait_s, "visibility_s": visibility_s}
        response = await self._ask("POST", _queue(name, "messages/get"), content, wait_s=wait_s)
        return read(response, _Messages).messages

    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]:
        return _results(await self._ask("POST", _queue(name, "messages/ack"), {"receipts": list(receipts)}), Done)

    async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]:
        return _results(await self._ask("POST", _queue(name, "messages/nack"), {"items": list(items)}), Done)

    async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        return _results(await self._ask("POST", _queue(name, "messages/extend"), {"items": list(items)}), Done)

    async def peek(self, name: str, count: int = 10, after: str = "") -> list[Peeked]:
        path = _with(_queue(name, "messages"), count=count, after=after)
        return read(await self._ask("GET", path), _Peeked).messages

    async def dead(self, name: str, count: int = 100, after: str = "") -> list[Peeked]:
        path = _with(_queue(name, "dead"), count=count, after=after)
        return read(await self._ask("GET", path), _Peeked).messages

    async def redrive(self, name: str, count: int | None = None) -> int:
        return read(await self._ask("POST", _queue(name, "redrive"), {"count": count}), _Moved).moved

    async def buckets(self, name: str, limit: int = 100) -> list[BucketView]:
        return read(await self._ask("GET", _with(_queue(name, "debug/buckets"), limit=limit)), _Buckets).buckets

    async def pointers(self, name: str) -> PointersView:
        return read(await self._ask("GET", _queue(name, "debug/pointers")), PointersView)

    async def move_repair(self, name: str, bucket: int) -> PointersView:
        return read(await self._ask("POST", _queue(name, "debug/pointers"), {"repair": bucket}), PointersView)

    async def message(self, name: str, id: str) -> MessageView:
        return read(await self._ask("GET", _queue(name, f"debug/messages/{quote(id, safe='')}")), MessageView)

    async def put_block(self, name: str, entries: bytes) -> list[tuple[int, int]]:
        return _decoded(_RUNS, await self._ask("POST", _queue(name, "blocks/put"), raw=entries))

    async def take(
        self, name: str, count: int, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[Parcel]:
        content = (count, wait_s, visibility_s)
        return _decoded(_PARCELS, await self._ask("POST", _queue(name, "blocks/get"), content, wait_s=wait_s))

    async def ack_parcels(self, name: str, acks: Sequence[ParcelAck]) -> list[list[tuple[int, int]]]:
        return _decoded(_RANGES, await self._ask("POST", _queue(name, "blocks/ack"), list(acks)))

    async def close(self) -> None:
        await self._transport.close()


def _queue(name: str, rest: str = "") -> str:
    return f"/v1/queues/{check_name(name)}/{rest}" if rest else f"/v1/queues/{check_name(name)}"


def _with(path: str, **query: str | int) -> str:
    given = {name: value for name, value in query.items() if value != ""}
    return f"{path}?{urlencode(given)}" if given else path


def read(response: Response, kind: type[T]) -> T:
    """An answer as what it should be."""
    try:
        if response.content_type == JSON:
            return msgspec.json.decode(response.body, type=kind)
        return msgspec.msgpack.decode(response.body, type=kind)
    except msgspec.MsgspecError as error:
        raise _odd(error) from error


def _decoded(decoder: msgspec.msgpack.Decoder[T], response: Response) -> T:
    try:
        return decoder.decode(response.body)
    except msgspec.MsgspecError as error:
        raise _odd(error) from error


def _odd(error: Exception) -> Unknown:
    """It was answered with success, so it may well have been done."""
    return Unknown(f"the answer cannot be read ({error}): is this a node, and of this version?")


def _results(response: Response, kind: type[T]) -> list[T | Problem]:
    results = read(response, _Results).results
    try:
        return [
            msgspec.convert(item, Problem) if "error" in item else msgspec.convert(item, kind) for item in results
        ]
    except msgspec.MsgspecError as error:
        raise _odd(error) from error


def error_of(response: Response, place: str) -> CapelliniError:
    """The error that a response tells of."""
    try:
        decode = msgspec.json.decode if response.content_type == JSON else msgspec.msgpack.decode
        problem = decode(response.body, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        shown = response.body[:SHOWN].decode("utf-8", "replace")
        says = f"{place} answered {response.status}, and not as a node does: {shown!r}"
        return _of_status(response.status)(says, retry_after_s=response.retry_after_s)
    if problem.error in _OF_HTTP:
        return _OF_HTTP[problem.error](problem.says, retry_after_s=response.retry_after_s)
    return from_name(problem.error, problem.says, response.retry_after_s)


def _of_status(status: int) -> type[CapelliniError]:
    """What an answer means that is not a node's: of a proxy in between, or of somebody else at that address."""
    if status in (408, 429, 503):
        return Unavailable
    if status == 413:
        return TooLarge
    return Unknown if status >= 500 else Invalid  # a gateway that gave up may have passed it on
