"""Streams as a program sees them that has a WebSocket library and nothing of ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from tests.unit.memory_log import MemoryLog, with_log
from tests.unit.raw_http import PATIENCE_S, Place, Wire, open_place, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import Frame, Opcode

from capellini.api import streams
from capellini.api.limits import Limits

PUT = "/v1/queues/events/streams/put"
GET = "/v1/queues/events/groups/readers/streams/get"


class Logged:
    """A server with a log queue, and connections to it."""

    def __init__(self, place: Place, log: MemoryLog) -> None:
        self.place, self.log = place, log

    async def open(self, path: str, **options: Any) -> ClientConnection:
        return await connect(f"ws://127.0.0.1:{self.place.port}{path}", compression=None, max_size=None, **options)

    async def wire(self, path: str, more: bytes = b"") -> Wire:
        """A connection that was made a WebSocket, and whose frames are made by hand."""
        wire = await self.place.wire()
        wire.send(handshake(path, more))
        answer = await wire.read(head_only=True)
        assert (answer.status, answer.headers["upgrade"]) == (101, "websocket")
        assert "sec-websocket-extensions" not in answer.headers
        return wire

    async def stream(self) -> streams.Stream:
        """The node's end of the only one there is."""
        await until(lambda: len(self.place.server._context.streams) == 1)
        (stream,) = self.place.server._context.streams
        assert isinstance(stream, streams.Stream)
        return stream


@contextlib.asynccontextmanager
async def logged_place(limits: Limits) -> AsyncIterator[Logged]:
    async with open_place(limits) as place:
        yield Logged(place, await with_log(place.service))


def handshake(path: str, more: bytes = b"") -> bytes:
    lines = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    key = b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    return lines.encode() + key + more + b"\r\n"


def framed(*frame: Any) -> bytes:
    return Frame(Opcode.BINARY, msgspec.msgpack.encode(frame)).serialize(mask=True)


async def told(socket: ClientConnection) -> list[Any]:
    async with asyncio.timeout(PATIENCE_S):
        data = await socket.recv()
    assert isinstance(data, bytes)
    frame = msgspec.msgpack.decode(data)
    assert isinstance(frame, list)
    return frame


async def tell(socket: ClientConnection, *frame: Any) -> None:
    await socket.send(msgspec.msgpack.encode(frame))


async def closed(socket: ClientConnection) -> tuple[int, str]:
    async with asyncio.timeout(PATIENCE_S):
        await socket.wait_closed()
    return socket.close_code or 0, socket.close_reason or ""
