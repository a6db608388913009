"""The journal as people see it: a node that was killed, the one after it, and what is told of both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.flow import CAPELLINI, Server, until

from capellini import AsyncClient, connect_async
from capellini.model.options import JOURNAL

pytestmark = pytest.mark.slow


async def journal(address: str, *arguments: str) -> tuple[str, str]:
    """What `capellini debug journal` says, and what it hints at."""
    command = [CAPELLINI, "debug", "journal", *arguments, "--at", address]
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
    out, hints = await process.communicate()
    assert process.returncode == 0, hints
    return out.decode(), hints.decode()


async def lived(client: AsyncClient[bytes]) -> None:
    await client.put("q", b"x")
    for message in await client.get("q", 1, wait_s=20):
        await message.ack()


async def until_told(client: AsyncClient[bytes]) -> None:
    async with asyncio.timeout(60):
        while not await client.list_queues("capellini.") or not await client.peek(JOURNAL, 1):
            await asyncio.sleep(0.1)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server("n1", f"rocks:{tmp_path / 'data'}", tmp_path)
    yield made
    await made.kill()


async def test_a_killed_node_leaves_no_closing_record_and_a_stopped_one_does(server: Server, tmp_path: Path) -> None:
    server.start()
    await server.up()
    async with connect_async(server.url) as client:
        await client.create_queue("q")
        await lived(client)
        await until_told(client)
    await server.kill()
    server.start()
    await server.up()
    async with connect_async(server.url) as client:
        await until_told(client)  # what it left open is sealed: how far it came is known then
        await lived(client)
    server.leave()
    await until(lambda: not server.running, "it has stopped")
    at = f"rocks:{tmp_path / 'data'}"
    out, hints = await journal(at, "q", "--json")
    events: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    incarnations = list(dict.fromkeys(each["incarnation"] for each in events))
    assert len(incarnations) == 2
    assert [each["kind"] for each in events if each["incarnation"] == incarnations[1]] == ["put", "delivered", "acked"]
    assert f"incarnation {incarnations[0]}: no closing record" in hints
    assert incarnations[1] not in hints
    last = events[-1]["runs"][0][0]
    out, _ = await journal(at, "q", "--id", str(last))
    assert [line.split(" n1 ")[1] for line in out.splitlines()] == [
        f"put q/1: ids {last}", f"delivered q/1: ids {last}, delivery 1", f"acked q/1: ids {last}, delivery 1",
    ]  # fmt: skip
    out, _ = await journal(at, "q", "--last", "1")
    assert len(out.splitlines()) == 1
