"""Answers that are lost on their way, for real: a proxy in between swallows them and cuts the connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

import capellini


class Proxy:
    """Passes bytes on; the next `lose` answers are swallowed, each with its connection."""

    def __init__(self, behind: str) -> None:
        parts = urlsplit(behind)
        self._host, self._port = parts.hostname, parts.port
        self.lose = 0
        self.lost = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node_reader, node_writer = await asyncio.open_connection(self._host, self._port)
        requests = asyncio.create_task(self._pass(reader, node_writer))
        try:
            while answer := await node_reader.read(65_536):
                if self.lose:
                    self.lose -= 1
                    self.lost += 1
                    return
                writer.write(answer)
                await writer.drain()
        finally:
            requests.cancel()
            writer.close()
            node_writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while request := await reader.read(65_536):
                writer.write(request)
                await writer.drain()


@contextlib.asynccontextmanager
async def lossy(node_address: str, **options: bool) -> AsyncIterator[tuple[Proxy, capellini.AsyncClient[bytes]]]:
    proxy = Proxy(node_address)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    retry = options.get("retry_unknown_puts", False)
    async with capellini.connect_async(f"http://127.0.0.1:{port}", retry_unknown_puts=retry) as client:
        yield proxy, client
    server.close()


async def test_an_ack_whose_answer_was_lost_is_unknown_and_never_stale(node_address: str) -> None:
    async with lossy(node_address) as (proxy, client):
        await client.create_queue("acks")
        await client.put("acks", b"x")
        (message,) = await client.get("acks", wait_s=5)
        proxy.lose = 1
        with pytest.raises(capellini.Unknown, match="may have been acked"):
            await message.ack()
        assert await client.peek("acks") == []  # it had been acked
        with pytest.raises(capellini.Stale):
            await message.ack()  # a new call, whose first answer comes: now it is known
        assert proxy.lost == 1


async def test_the_same_holds_for_receipts_and_nacks(node_address: str) -> None:
    async with lossy(node_address) as (proxy, client):
        await client.create_queue("receipts")
        await client.put_many("receipts", [b"x", b"y"])
        one, two = await client.get("receipts", 2, wait_s=5)
        proxy.lose = 1
        with pytest.raises(capellini.Unknown, match="may have been done"):
            await client.ack("receipts", one.receipt)
        proxy.lose = 1
        with pytest.raises(capellini.Unknown, match="may have been done"):
            await two.nack(0)
        assert [(each.id, each.state) for each in await client.peek("receipts")] == [(two.id, "ready")]


async def test_a_put_without_a_key_whose_answer_was_lost_is_unknown(node_address: str) -> None:
    async with lossy(node_address) as (proxy, client):
        await client.create_queue("puts")
        proxy.lose = 1
        with pytest.raises(capellini.Unknown):
            await client.put("puts", b"x")
        assert [each.body for each in await client.peek("puts")] == [b"x"]  # it had been put, and once


async def test_a_put_with_a_key_is_repeated_and_added_once(node_address: str) -> None:
    async with lossy(node_address) as (proxy, client):
        await client.create_queue("keyed")
        proxy.lose = 2
        id = await client.put("keyed", b"x", key="k")
        assert [(each.id, each.body) for each in await client.peek("keyed")] == [(id, b"x")]
        assert proxy.lost == 2


async def test_who_asks_for_it_gets_puts_repeated_and_perhaps_twice(node_address: str) -> None:
    async with lossy(node_address, retry_unknown_puts=True) as (proxy, client):
        await client.create_queue("twice")
        proxy.lose = 1
        await client.put("twice", b"x")
        assert [each.body for each in await client.peek("twice")] == [b"x", b"x"]


async def test_gets_are_repeated_and_what_was_lost_comes_again(node_address: str) -> None:
    async with lossy(node_address) as (proxy, client):
        await client.create_queue("gets", visibility_s=1)
        await client.put("gets", b"x")
        proxy.lose = 1
        (message,) = await client.get("gets", wait_s=20)
        assert (message.body, message.deliveries) == (b"x", 2)
        await message.ack()
