"""Logs: by level, as text or JSON, and never what messages hold."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.event_files import read_events
from tests.unit.memory_service import MemoryService

from capellini.api.server import Server
from capellini.model.message import NewMessage
from capellini.model.service import ExtendItem, NackItem
from capellini.node.following import following, told
from capellini.node.logs import set_up
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.queues.events import Happened, Kind


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


async def test_debug_says_where_messages_went_and_never_what_they_hold(tmp_path: Path) -> None:
    out = io.StringIO()
    set_up("debug", "text", out)
    node = await Node.open(
        Settings(store=f"rocks:{tmp_path}/data", listen="127.0.0.1:0", events=f"file:{tmp_path}/events")
    )
    service = node.service
    await service.create("letters")
    await service.create("q", options={"delivery_limit": 2, "dead_letters": "letters"})
    await service.put("q", [NewMessage(b"secret", {"a": "hidden"})] * 10)
    got = await service.get("q", 10)
    await service.ack("q", [each.receipt for each in got[:8]])
    await service.nack("q", [NackItem(each.receipt, 0.0) for each in got[8:]])
    again = await service.get("q", 1)
    await service.extend("q", [ExtendItem(again[0].receipt, 9.0)])
    await service.nack("q", [NackItem(again[0].receipt, 0.0)])
    assert await service.get("q", 1, wait_s=10.0)
    await node.close()  # what was begun is finished
    said = [line.partition("capellini.messages: ")[2] for line in out.getvalue().splitlines()]
    lines = [line for line in said if line]
    assert lines[:-3] == [
        "put q/1: ids 0-9, bucket 0",
        "delivered q/1: ids 0-9, bucket 0, delivery 1",
        "acked q/1: ids 0-7, bucket 0, delivery 1",
        "nacked q/1: ids 8-9, bucket 0, delivery 1",
        "delivered q/1: ids 8, bucket 0, delivery 2",
        "extended q/1: ids 8, bucket 0, delivery 2",
        "nacked q/1: ids 8, bucket 0, delivery 2",
    ]
    assert set(lines[-3:]) == {
        "put letters/1: ids 0, bucket 0",
        "dead q/1: ids 8, bucket 0 -> letters",
        "delivered q/1: ids 9, bucket 0, delivery 2",
    }
    assert "secret" not in out.getvalue()
    assert "hidden" not in out.getvalue()
    assert len(list(read_events(tmp_path / "events"))) == len(lines) + 1  # and `closed`


def test_without_debug_nothing_follows_messages() -> None:
    set_up("info", "text", io.StringIO())
    assert following() is None


def test_a_line_names_so_many_ids_and_no_more() -> None:
    event = Happened("n", "i", 1, 0.0, Kind.ACKED, "q", 2, tuple((id, 1) for id in range(0, 100, 2)))
    assert told(event, 10) == (
        "acked q/2: ids 0 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30 32 34 36 38 and 30 more, bucket 0 1 2 3 4 5 6 7 8 9"
    )
    timed = Happened("n", "i", 1, 0.0, Kind.REPAIRED, "later", 1, detail="its key names another", ids=("a", "b"))
    assert told(timed) == "repaired later/1: ids a b (its key names another)"
