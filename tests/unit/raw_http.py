"""A client of raw sockets for the tests of HTTP, and a server for it to be rude to."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.unit.memory_service import MemoryService

from capellini.api.limits import Limits
from capellini.api.server import Server

PATIENCE_S = 20.0
HEAD = b"Host: localhost\r\n"


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.005)


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """A client that sends just what it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def read(self, head_only: bool = False) -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
            length = 0 if head_only else int(headers.get("content-length", "0"))
            return Answer(int(head[0].split()[1]), headers, await self.reader.readexactly(length))

    async def ended(self) -> bytes:
        """What else comes until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        self.send(request(method, path, body, **headers))
        return await self.read(method == "HEAD")


def request(method: str, path: str, body: Any = None, **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}"]
    if not isinstance(body, bytes) and body is not None:
        lines.append("Content-Type: application/json")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


class Place:
    def __init__(self, service: MemoryService, server: Server, port: int) -> None:
        self.service, self.server, self.port = service, server, port
        self.wires: list[Wire] = []

    async def wire(self) -> Wire:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port))
        self.wires.append(wire)
        return wire

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return await (await self.wire()).ask(method, path, body, **headers)


SMALL = Limits(
    max_body=100_000, max_head=4_096, request_timeout_s=0.3, idle_timeout_s=60.0, linger_s=5.0, max_connections=20
)


@contextlib.asynccontextmanager
async def open_place(limits: Limits) -> AsyncIterator[Place]:
    service = MemoryService()
    await service.create("q")
    server = Server(service, limits=limits)
    _, port = await server.listen("127.0.0.1", 0)
    place = Place(service, server, port)
    try:
        yield place
    finally:
        for wire in place.wires:
            wire.writer.close()
        await server.close(1.0)
