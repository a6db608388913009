"""Logs: by level, as text or JSON, and never what messages hold."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
from tests.unit.memory_service import MemoryService

from capellini.api.server import Server
from capellini.node.logs import set_up


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("capellini")
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def test_text_has_level_place_and_sentence() -> None:
    out = io.StringIO()
    set_up("info", "text", out)
    logging.getLogger("capellini.node").info("ready, %d", 1)
    logging.getLogger("capellini.node").debug("not this")
    logging.getLogger("somebody.else").info("nor this")
    assert out.getvalue().endswith("INFO    capellini.node: ready, 1\n")
    assert out.getvalue().count("\n") == 1


def test_json_is_one_object_per_line_with_the_error_in_it() -> None:
    out = io.StringIO()
    set_up("debug", "json", out)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("capellini.api").exception("it failed")
    lines = out.getvalue().splitlines()
    assert len(lines) == 1
    found = json.loads(lines[0])
    assert (found["level"], found["logger"], found["says"]) == ("error", "capellini.api", "it failed")
    assert "ValueError: two\nlines" in found["error"]
    assert found["at"].endswith("+00:00")


async def test_debug_has_a_line_per_operation_without_the_body() -> None:
    out = io.StringIO()
    set_up("debug", "json", out)
    service = MemoryService()
    await service.create("q")
    server = Server(service)
    _, port = await server.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"messages":[{"body":"secret","attributes":{"a":"hidden"}}]}'
    writer.write(
        b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await server.close()
    said = [json.loads(line)["says"] for line in out.getvalue().splitlines()]
    assert any(line.startswith("POST /v1/queues/q/messages 200 in ") for line in said)
    assert "secret" not in out.getvalue()
    assert "hidden" not in out.getvalue()
