"""Which servers answer: the question, what counts as an answer, and how long it is believed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from capellini.model.address import CassandraAddress
from capellini.model.clock import RealClock
from capellini.store.cassandra_health import DOWN_S, OPTIONS, UP_S, Health

SUPPORTED = bytes((0x84, 0, 0, 0, 6, 0, 0, 0, 0))
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Stepped(RealClock):
    """Time passes when it is told to."""

    passed_s = 0.0

    def elapsed_s(self) -> float:
        return 1_000.0 + self.passed_s


@asynccontextmanager
async def served(host: str, port: int, serve: Serve) -> AsyncIterator[int]:
    server = await asyncio.start_server(serve, host, port)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def test_a_server_is_up_that_answers_and_is_believed_for_a_moment() -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readexactly(len(OPTIONS)))
        writer.write(SUPPORTED)
        await writer.drain()
        writer.close()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # as a stopped process: the kernel takes the connection, nobody answers
        writer.close()

    clock = Stepped()
    async with served("127.0.0.1", 0, answer) as port:
        health = Health(CassandraAddress(("127.0.0.1",), "k", port=port), clock)
        async with served("127.0.0.2", port, hang):
            found = await asyncio.gather(*(health.answering(["127.0.0.1", "127.0.0.2", "127.0.0.3"]) for _ in range(3)))
            assert found == [{"127.0.0.1"}] * 3  # nobody listens at the third
        assert asked == [OPTIONS]
        clock.passed_s += UP_S + 0.1
        async with served("127.0.0.2", port, answer):
            assert await health.answering(["127.0.0.1", "127.0.0.2"]) == {"127.0.0.1"}  # still believed to be down
            assert len(asked) == 2
            clock.passed_s += DOWN_S
            assert await health.answering(["127.0.0.1", "127.0.0.2"]) == {"127.0.0.1", "127.0.0.2"}
