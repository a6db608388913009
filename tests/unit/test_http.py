"""What the HTTP server does with good, bad, slow and rude clients, over real sockets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.unit.raw_http import HEAD, PATIENCE_S, SMALL, Place, Wire, open_place, request, until

from capellini.api.http import HEADERS_MOST
from capellini.api.limits import Limits
from capellini.node.condition import Condition
from capellini.store import forks


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with open_place(SMALL) as found:
        yield found


# ---- the protocol


async def test_pipelined_requests_are_answered_in_order(place: Place) -> None:
    wire = await place.wire()
    names = [f"n{number}" for number in range(100)]
    wire.send(b"".join(request("PUT", f"/v1/queues/{name}") for name in names))
    assert [(await wire.read()).json["name"] for _ in names] == names


async def test_a_request_may_come_byte_by_byte(place: Place) -> None:
    wire = await place.wire()
    for byte in request("PUT", "/v1/queues/slow", {"options": {}}):
        wire.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await wire.read()).json["name"] == "slow"


async def test_a_chunked_body_is_read(place: Place) -> None:
    wire = await place.wire()
    wire.send(b"POST /v1/queues/q/messages HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    wire.send(b'10\r\n{"messages":[{"b\r\n')
    wire.send(b'b\r\nody":"x"}]}\r\n0\r\n\r\n')
    answer = await wire.read()
    assert (answer.status, len(place.service.held["q"].ready)) == (200, 1)


async def test_a_client_that_asks_first_is_told_to_continue(place: Place) -> None:
    wire = await place.wire()
    body = b'{"messages":[{"body":"x"}]}'
    wire.send(b"POST /v1/queues/q/messages HTTP/1.1\r\n" + HEAD + b"Expect: 100-continue\r\n")
    wire.send(b"Content-Length: %d\r\n\r\n" % len(body))
    assert (await wire.read()).status == 100
    wire.send(body)
    assert (await wire.read()).status == 200


async def test_a_client_that_asks_first_is_refused_before_it_sends(place: Place) -> None:
    wire = await place.wire()
    wire.send(b"POST /v1/nothing HTTP/1.1\r\n" + HEAD + b"Expect: 100-continue\r\nContent-Length: 50000\r\n\r\n")
    assert (await wire.read()).status == 404
    assert await wire.ended() == b""


async def test_a_body_over_the_limit_is_refused_before_it_is_read(place: Place) -> None:
    wire = await place.wire()
    wire.send(b"POST /v1/queues/q/messages HTTP/1.1\r\n" + HEAD + b"Content-Length: 100001\r\n\r\nabc")
    answer = await wire.read()
    assert (answer.status, answer.json["error"], answer.headers["connection"]) == (413, "too_large", "close")
    assert await wire.ended() == b""


async def test_a_chunked_body_over_the_limit_is_refused_while_it_arrives(place: Place) -> None:
    wire = await place.wire()
    wire.send(b"POST /v1/queues/q/messages HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(11):
        wire.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")  # never ends
    assert (await wire.read()).status == 413
    assert await wire.ended() == b""
    assert place.server.gate.bytes == 0


async def test_too_large_a_head_is_refused(place: Place) -> None:
    for head in (b"X-Long: " + b"y" * 5_000 + b"\r\n\r\n", b"X-Long: " + b"y" * 5_000):
        wire = await place.wire()
        wire.send(b"GET /health HTTP/1.1\r\n" + HEAD + head)
        assert (await wire.read()).status == 431
        assert await wire.ended() == b""


async def test_too_many_header_lines_are_refused_and_not_joined() -> None:
    async with open_place(Limits()) as place:
        wire = await place.wire()
        wire.send(b"GET /health HTTP/1.1\r\n" + HEAD + b"X-Many: 1\r\n" * (HEADERS_MOST - 1) + b"\r\n")
        assert (await wire.read()).status == 200
        wire.send(b"GET /health HTTP/1.1\r\n" + HEAD + b"X-Many: 1\r\n" * HEADERS_MOST + b"\r\n")
        answer = await wire.read()
        assert (answer.status, answer.json["error"]) == (431, "too_large")
        assert await wire.ended() == b""


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"NONSENSE\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",  # no host
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_what_is_no_http_gets_a_clear_answer_and_the_connection_ends(place: Place, data: bytes) -> None:
    wire = await place.wire()
    wire.send(data)
    answer = await wire.read()
    assert answer.status in (400, 505)
    assert answer.json["error"] == "invalid"
    assert await wire.ended() == b""


async def test_trailers_say_nothing_and_are_bounded(place: Place) -> None:
    chunked = (
        b"POST /v1/queues/q/messages/get HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    )
    wire = await place.wire()
    wire.send(chunked + b"Content-Type: text/html\r\nHost: evil\r\n\r\n")
    assert (await wire.read()).json == {"messages": []}
    wire = await place.wire()
    wire.send(chunked)
    for _ in range(8):
        wire.send(b"X: " + b"y" * 1_000 + b"\r\n")
        await asyncio.sleep(0)
    assert (await wire.read()).status == 431
    assert await wire.ended() == b""


async def test_a_chunked_body_may_come_in_many_small_pieces(place: Place) -> None:
    wire = await place.wire()
    wire.send(b"POST /v1/queues/q/messages/get HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(700):  # sizes take more than a head may
        wire.send(b"1\r\n \r\n")
        await asyncio.sleep(0)
    wire.send(b"2\r\n{}\r\n0\r\n\r\n")
    assert (await wire.read()).status == 200


@pytest.mark.parametrize(
    ("version", "header", "status", "says"),
    [
        ("1.1", "Transfer-Encoding: gzip, chunked", 501, "chunked"),
        ("1.0", "Transfer-Encoding: chunked", 400, "Content-Length"),
        ("1.1", "Content-Encoding: gzip\r\nContent-Length: 2", 415, "without Content-Encoding"),
    ],
)
async def test_a_body_in_another_coding_is_refused(
    place: Place, version: str, header: str, status: int, says: str
) -> None:
    wire = await place.wire()
    wire.send(f"POST /v1/queues/q/messages HTTP/{version}\r\nHost: localhost\r\n{header}\r\n\r\n{{}}".encode())
    answer = await wire.read()
    assert answer.status == status
    assert says in answer.json["says"]
    assert not place.service.held["q"].ready


async def test_http_1_0_is_not_told_to_continue(place: Place) -> None:
    wire = await place.wire()
    wire.send(b"POST /v1/queues/q/messages/get HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}")
    assert (await wire.read()).status == 200


async def test_requests_before_a_bad_one_are_still_answered(place: Place) -> None:
    wire = await place.wire()
    wire.send(request("GET", "/health") + b"\x00\x00\x00\r\n\r\n")
    assert [(await wire.read()).status for _ in range(2)] == [200, 400]


async def test_a_dribbling_request_gets_408(place: Place) -> None:
    for data in (b"GET /hea", request("POST", "/v1/queues/q/messages", b"half", Content_Type="x")[:-2]):
        wire = await place.wire()
        wire.send(data)
        assert (await wire.read()).status == 408
        assert await wire.ended() == b""
    assert (place.server.gate.in_flight, place.server.gate.bytes) == (0, 0)


async def test_an_idle_connection_is_closed() -> None:
    async with open_place(msgspec.structs.replace(SMALL, idle_timeout_s=0.1)) as place:
        wire = await place.wire()
        assert (await wire.ask("GET", "/health")).status == 200
        assert await wire.ended() == b""


async def test_http_1_0_and_connection_close(place: Place) -> None:
    wire = await place.wire()
    wire.send(b"GET /health HTTP/1.0\r\n\r\n")
    assert (await wire.read()).headers["connection"] == "close"
    assert await wire.ended() == b""
    wire = await place.wire()
    wire.send(b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert (await wire.read()).headers["connection"] == "keep-alive"
    assert (await wire.ask("GET", "/health", None, Connection="close")).headers["connection"] == "close"
    assert await wire.ended() == b""


async def test_an_upgrade_is_answered_as_plain_http(place: Place) -> None:
    wire = await place.wire()
    answer = await wire.ask("GET", "/health", None, Upgrade="h2c", Connection="Upgrade")
    assert answer.status == 200
    assert await wire.ended() == b""


async def test_a_client_that_closes_its_sending_side_still_gets_its_answers(place: Place) -> None:
    wire = await place.wire()
    place.service.hold = asyncio.Event()
    wire.send(request("POST", "/v1/queues/q/messages", {"messages": [{"body": "x"}]}) + request("GET", "/v1/queues/q"))
    wire.writer.write_eof()
    await until(lambda: place.server.gate.in_flight == 2)
    place.service.hold.set()
    assert [(await wire.read()).status for _ in range(2)] == [200, 200]
    assert await wire.ended() == b""


async def test_too_many_connections_are_refused() -> None:
    async with open_place(msgspec.structs.replace(SMALL, max_connections=1)) as place:
        first = await place.wire()
        assert (await first.ask("GET", "/health")).status == 200
        second = await place.wire()
        refused = await second.read()
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert (await first.ask("GET", "/health")).status == 200


async def test_a_client_that_does_not_read_its_answers_is_cut_off() -> None:
    async with open_place(msgspec.structs.replace(SMALL, write_timeout_s=0.1)) as place:
        wire = await place.wire()
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        wire.send(request("GET", "/v1/openapi.json") * 1_000)
        await until(lambda: not place.server._application.connections)


async def test_a_client_that_does_not_close_after_a_refusal_is_cut_off() -> None:
    async with open_place(msgspec.structs.replace(SMALL, linger_s=0.1, max_connections=0)) as place:
        wire = await place.wire()
        assert (await wire.read()).status == 429
        await until(lambda: not place.server._application.connections)


async def test_a_unix_socket_is_served_and_a_dead_one_replaced(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    monkeypatch.delattr(os, "umask")  # it is the whole process's, and other threads make files
    await place.server.listen_unix(path)
    assert path.stat().st_mode & 0o077 == 0
    wire = Wire(*await asyncio.open_unix_connection(str(path)))
    place.wires.append(wire)
    assert (await wire.ask("GET", "/health")).status == 200


async def test_a_forked_child_keeps_no_connection_open(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever asked an owner that ends would wait for its children to end, too."""
    path = tmp_path / "s"
    monkeypatch.setattr(forks, "_kept", set())
    monkeypatch.setattr(forks, "_asked", set())
    await place.server.listen_unix(path)
    wire = Wire(*await asyncio.open_unix_connection(str(path)))
    place.wires.append(wire)
    assert (await wire.ask("GET", "/health")).status == 200
    (listening,), (connected,) = forks._kept, place.server._connected()
    monkeypatch.setattr(forks, "_kept", set())
    forks._in_child()  # as it would be there
    assert os.readlink(f"/proc/self/fd/{connected}") == os.devnull
    assert os.readlink(f"/proc/self/fd/{listening}") != os.devnull
    assert await wire.ended() == b""


# ---- other sites


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}],
)
async def test_a_page_of_another_site_is_refused(place: Place, headers: dict[str, str]) -> None:
    answer = await place.ask("PUT", "/v1/queues/q", None, **headers)
    assert (answer.status, answer.json["error"]) == (403, "forbidden")


async def test_our_own_page_is_let_in_and_another_name_for_us_is_not(place: Place) -> None:
    assert (await place.ask("GET", "/v1/queues", None, Origin="http://localhost")).status == 200
    wire = await place.wire()
    wire.send(b"GET /v1/queues HTTP/1.1\r\nHost: evil.example:7411\r\n\r\n")
    assert (await wire.read()).status == 403


# ---- long polls, draining, the end


async def waiting_get(place: Place) -> Wire:
    wire = await place.wire()
    before = place.server.gate.waiting
    wire.send(request("POST", "/v1/queues/q/messages/get", {"wait_s": 50}))
    await until(lambda: place.server.gate.waiting == before + 1 and bool(place.server._context.waiting))
    return wire


async def test_a_get_waits_for_a_message(place: Place) -> None:
    wire = await waiting_get(place)
    await place.ask("POST", "/v1/queues/q/messages", {"messages": [{"body": "x"}]})
    assert (await wire.read()).json["messages"][0]["body"] == "x"


async def test_a_client_that_goes_away_ends_its_get(place: Place) -> None:
    wire = await waiting_get(place)
    wire.writer.close()
    await until(lambda: place.service.cancelled == 1)
    await until(lambda: place.server.gate.waiting == 0)


async def test_a_client_that_goes_away_does_not_end_its_put(place: Place) -> None:
    place.service.hold = asyncio.Event()
    wire = await place.wire()
    wire.send(request("POST", "/v1/queues/q/messages", {"messages": [{"body": "x"}]}))
    await until(lambda: place.server.gate.in_flight == 1)
    wire.writer.transport.abort()
    place.service.hold.set()
    await until(lambda: place.server.gate.in_flight == 0)
    assert len(place.service.held["q"].ready) == 1


async def test_draining_answers_long_polls_and_refuses_all_but_acks(place: Place) -> None:
    await place.ask("POST", "/v1/queues/q/messages", {"messages": [{"body": "x"}]})
    receipt = (await place.ask("POST", "/v1/queues/q/messages/get")).json["messages"][0]["receipt"]
    wire = await waiting_get(place)
    drained = await place.ask("POST", "/v1/drain")
    assert drained.json["draining"] is True
    answer = await wire.read()
    assert (answer.status, answer.json) == (200, {"messages": []})
    refused = await wire.ask("POST", "/v1/queues/q/messages", {"messages": []})
    assert (refused.status, refused.json["error"], refused.headers["retry-after"]) == (503, "unavailable", "1")
    assert (await wire.ask("GET", "/ready")).status == 503
    assert (
        "error" not in (await wire.ask("POST", "/v1/queues/q/messages/ack", {"receipts": [receipt]})).json["results"][0]
    )
    assert (await wire.ask("POST", "/v1/drain", {"draining": False})).json["draining"] is False
    assert (await wire.ask("GET", "/v1/queues/q")).status == 200


async def test_a_full_disk_refuses_puts_and_lets_acks_through(place: Place) -> None:
    place.server.see(Condition(full="the disk is full: make room"))
    refused = await place.ask("POST", "/v1/queues/q/messages", {"messages": [{"body": "x"}]})
    assert (refused.status, refused.json["error"]) == (503, "full")
    assert (await place.ask("POST", "/v1/queues/q/messages/ack", {"receipts": []})).status == 200


async def test_the_end_finishes_what_was_begun_and_wakes_long_polls() -> None:
    async with open_place(SMALL) as place:
        place.service.hold = asyncio.Event()
        putting, idle, poll = await place.wire(), await place.wire(), await waiting_get(place)
        assert (await idle.ask("GET", "/health")).status == 200
        putting.send(request("POST", "/v1/queues/q/messages", {"messages": [{"body": "x"}]}))
        await until(lambda: place.server.gate.in_flight == 1)
        closing = asyncio.create_task(place.server.close(PATIENCE_S))
        assert (await poll.read()).json == {"messages": []}
        assert await idle.ended() == b""
        assert not closing.done()
        place.service.hold.set()
        answer = await putting.read()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        await closing
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", place.port)


async def test_the_end_wakes_long_polls_behind_another_one_too() -> None:
    async with open_place(SMALL) as place:
        wire = await place.wire()
        wire.send(request("POST", "/v1/queues/q/messages/get", {"wait_s": 60}) * 3)
        await until(lambda: place.server.gate.waiting == 3)
        async with asyncio.timeout(PATIENCE_S):
            await place.server.close(60.0)
        assert [(await wire.read()).json for _ in range(3)] == [{"messages": []}] * 3


async def test_the_end_cuts_off_what_takes_too_long() -> None:
    async with open_place(SMALL) as place:
        place.service.hold = asyncio.Event()
        wire = await place.wire()
        wire.send(request("POST", "/v1/queues/q/messages", {"messages": [{"body": "x"}]}))
        await until(lambda: place.server.gate.in_flight == 1)
        await place.server.close(0.05)
        assert place.server.gate.in_flight == 0
