"""What the HTTP server does with good, bad, slow and rude clients, over real sockets."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest


from capellini.api.limits import Limits
from capellini.api.server import Server
from capellini.model.errors import CapelliniError, Conflict, Full, Paused, Stale, Unavailable, Unknown
from capellini.model.service import ParcelAck
from capellini.node.condition import Condition
from tests.unit.memory_service import CODE, MemoryService

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


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async for each in open_place(SMALL):
        yield each


async def open_place(limits: Limits) -> AsyncIterator[Place]:
    service = MemoryService()
    await service.create("q")
    server = Server(service, limits=limits)
    _, port = await server.listen("127.0.0.1", 0)
    place = Place(service, server, port)
    yield place
    for wire in place.wires:
        wire.writer.close()
    await server.close(1.0)


# ---- messages, in each form


async def test_a_message_goes_in_and_out_as_json(place: Place) -> None:
    wire = await place.wire()
    put = await wire.ask("POST", "/v1/queues/q/messages", {"messages": [{"body": "héllo", "attributes": {"a": "b"}}]})
    assert (put.status, put.json) == (200, {"results": [{"id": "1", "duplicate": False}]})
    got = (await wire.ask("POST", "/v1/queues/q/messages/get", {"count": 5})).json["messages"]
    assert [(each["body"], each["attributes"], each["deliveries"]) for each in got] == [("héllo", {"a": "b"}, 1)]
    acked = await wire.ask("POST", "/v1/queues/q/messages/ack", {"receipts": [got[0]["receipt"], got[0]["receipt"]]})
    assert acked.json["results"][0] == {"visible_at": None}
    assert acked.json["results"][1]["error"] == "stale"


async def test_bytes_that_are_no_text_travel_as_base64(place: Place) -> None:
    body = bytes(range(256))
    item = {"body_base64": base64.b64encode(body).decode()}
    await place.ask("POST", "/v1/queues/q/messages", {"messages": [item]})
    got = (await place.ask("POST", "/v1/queues/q/messages/get")).json["messages"][0]
    assert "body" not in got
    assert base64.b64decode(got["body_base64"]) == body


async def test_messagepack_carries_bytes_both_ways(place: Place) -> None:
    packed = "application/msgpack"
    content = msgspec.msgpack.encode({"messages": [{"body": b"\xff\x00", "delay_s": 0}]})
    put = await place.ask("POST", "/v1/queues/q/messages", content, Content_Type=packed)
    assert (put.headers["content-type"], msgspec.msgpack.decode(put.body)["results"][0]["id"]) == (packed, "1")
    got = await place.ask("POST", "/v1/queues/q/messages/get", None, Accept=packed)
    assert msgspec.msgpack.decode(got.body)["messages"][0]["body"] == b"\xff\x00"


async def test_a_bare_body_is_one_message(place: Place) -> None:
    headers = {"Content_Type": "application/octet-stream", "Capellini_Attribute_Colour": "blau"}
    put = await place.ask("POST", "/v1/queues/q/messages?delay_s=1.5&key=k", b"\x00raw", **headers)
    assert put.json["results"][0]["id"] == "1"
    _, message = place.service.held["q"].ready[0]
    assert (message.body, message.attributes, message.delay_s, message.key) == (b"\x00raw", {"colour": "blau"}, 1.5, "k")
    headers |= {"Capellini_Delay_S": "-1"}
    assert (await place.ask("POST", "/v1/queues/q/messages", b"x", **headers)).status == 400


async def test_a_bare_body_that_is_too_large_for_the_queue_is_an_error_of_the_call(place: Place) -> None:
    await place.service.change("q", {"body_limit": 3})
    put = await place.ask("POST", "/v1/queues/q/messages", b"four", Content_Type="application/octet-stream")
    assert (put.status, put.json["error"]) == (413, "too_large")


async def test_the_fast_lane_passes_blocks_through(place: Place) -> None:
    packed = {"Content_Type": "application/msgpack"}
    block = msgspec.msgpack.encode([[b"one"], [b"two", {"a": "b"}, 0]])
    runs = await place.ask("POST", "/v1/queues/q/blocks/put", block, **packed)
    assert msgspec.msgpack.decode(runs.body) == [[1, 2]]
    taken = await place.ask("POST", "/v1/queues/q/blocks/get", msgspec.msgpack.encode([10, 0.0, None]), **packed)
    parcel = msgspec.msgpack.decode(taken.body)[0]
    assert parcel[1:5] == [1, 2, 1, CODE]
    assert [entry[0] for entry in parcel[7]] == [b"one", b"two"]
    acks = msgspec.msgpack.encode([ParcelAck(1, 1, 2, 1, CODE, [(0, 2)])])
    acked = await place.ask("POST", "/v1/queues/q/blocks/ack", acks, **packed)
    assert msgspec.msgpack.decode(acked.body) == [[[0, 2]]]
    assert (await place.ask("POST", "/v1/queues/q/blocks/put", {"no": 1})).status == 415


# ---- bad input


async def test_good_items_of_a_batch_work_beside_bad_ones(place: Place) -> None:
    items = [{"body": "a"}, {"body": "b", "colour": 1}, {"body": "c", "delay_s": -1}, {}, 7, {"body": "d"}]
    results = (await place.ask("POST", "/v1/queues/q/messages", {"messages": items})).json["results"]
    assert ["id" in each for each in results] == [True, False, False, False, False, True]
    assert "colour" in results[1]["says"]
    assert "delay_s" in results[2]["says"]
    assert "body" in results[3]["says"]
    assert len(place.service.held["q"].ready) == 2


async def test_text_that_is_not_utf8_spoils_its_own_message_only(place: Place) -> None:
    body = b'{"messages":[{"body":"\xff"},{"body":"good"}]}'
    answer = await place.ask("POST", "/v1/queues/q/messages", body, Content_Type="application/json")
    assert ["id" in each for each in answer.json["results"]] == [False, True]


async def test_good_acks_nacks_and_extends_work_beside_bad_ones(place: Place) -> None:
    await place.ask("POST", "/v1/queues/q/messages", {"messages": [{"body": str(each)} for each in range(3)]})
    got = (await place.ask("POST", "/v1/queues/q/messages/get", {"count": 3})).json["messages"]
    one, two, three = (each["receipt"] for each in got)
    acked = await place.ask("POST", "/v1/queues/q/messages/ack", {"receipts": [5, one]})
    assert ["error" in each for each in acked.json["results"]] == [True, False]
    nacked = await place.ask("POST", "/v1/queues/q/messages/nack", {"items": [{"receipt": two}, {"receipt": two, "x": 1}]})
    assert ["error" in each for each in nacked.json["results"]] == [False, True]
    extends = {"items": [{"receipt": three}, {"receipt": three, "visibility_s": 5}]}
    extended = await place.ask("POST", "/v1/queues/q/messages/extend", extends)
    assert ["error" in each for each in extended.json["results"]] == [True, False]


@pytest.mark.parametrize(
    ("method", "path", "body", "names"),
    [
        ("POST", "/v1/queues/q/messages", {"messages": [], "more": 1}, "more"),
        ("POST", "/v1/queues/q/messages", {}, "messages"),
        ("POST", "/v1/queues/q/messages/get", {"count": 0}, "count"),
        ("POST", "/v1/queues/q/messages/get", {"wait_s": 61}, "wait_s"),
        ("POST", "/v1/queues/q/messages/get", {"count": "5"}, "count"),
        ("POST", "/v1/queues/q/messages/ack", {"receipt": []}, "receipt"),
        ("PUT", "/v1/queues/q", {"options": {"colour": 1}}, "colour"),
        ("PUT", "/v1/queues/q", {"options": {"visibility_s": -1}}, "visibility_s"),
        ("PUT", "/v1/queues/a%20b", None, "queue name"),
        ("GET", "/v1/queues?limit=0", None, "limit"),
        ("GET", "/v1/queues?limit=x", None, "limit"),
        ("GET", "/v1/queues?colour=x", None, "colour"),
        ("GET", "/v1/queues?limit=1&limit=2", None, "twice"),
        ("GET", "/v1/queues/q/messages?count=1001", None, "count"),
        ("POST", "/v1/queues/q/debug/pointers", {"repair": -1}, "repair"),
        ("GET", "/v1/queues/q/debug/messages/x", None, "id"),
    ],
)
async def test_a_wrong_request_is_refused_naming_what_is_wrong(
    place: Place, method: str, path: str, body: Any, names: str
) -> None:
    answer = await place.ask(method, path, body)
    assert (answer.status, answer.json["error"]) == (400, "invalid")
    assert names in answer.json["says"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 5_000, b"\xff\xfe", b'{"messages":1e999}'])
async def test_what_is_no_json_is_refused(place: Place, body: bytes) -> None:
    answer = await place.ask("POST", "/v1/queues/q/messages", body, Content_Type="application/json")
    assert (answer.status, answer.json["error"]) == (400, "invalid")


async def test_too_many_items_are_refused(place: Place) -> None:
    answer = await place.ask("POST", "/v1/queues/q/messages/ack", {"receipts": ["x"] * 1_001})
    assert answer.status in (400, 413)
    assert "1000" in answer.json["says"]


async def test_an_unknown_content_type_is_refused(place: Place) -> None:
    answer = await place.ask("POST", "/v1/queues/q/messages", b"x", Content_Type="text/plain")
    assert (answer.status, answer.json["error"]) == (415, "media_type")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Conflict("c"), 409), (Stale("s"), 409), (Paused("p"), 409), (Unavailable("u"), 503), (Unknown("k"), 503),
        (Full("f"), 503), (CapelliniError("e"), 500),
    ],
)  # fmt: skip
async def test_errors_of_the_service_become_statuses(place: Place, error: CapelliniError, status: int) -> None:
    place.service.fails = error
    answer = await place.ask("GET", "/v1/queues/q")
    assert (answer.status, answer.json) == (status, {"error": error.name, "says": error.says})
    assert ("retry-after" in answer.headers) == (error.retry_after_s is not None)


async def test_a_bug_in_the_node_is_an_error_500_and_the_connection_lives_on(place: Place) -> None:
    place.service.fails = ZeroDivisionError("a secret")
    wire = await place.wire()
    answer = await wire.ask("GET", "/v1/queues/q")
    assert (answer.status, "secret" in answer.json["says"]) == (500, False)
    place.service.fails = None
    assert (await wire.ask("GET", "/v1/queues/q")).status == 200


# ---- routes


async def test_routes_that_are_not_there(place: Place) -> None:
    assert (await place.ask("GET", "/v1/nothing")).status == 404
    wrong = await place.ask("DELETE", "/v1/queues")
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    options = await place.ask("OPTIONS", "/v1/queues/q")
    assert (options.status, options.headers["allow"]) == (204, "DELETE, GET, HEAD, OPTIONS, PATCH, PUT")


async def test_head_gives_the_head_of_a_get(place: Place) -> None:
    wire = await place.wire()
    head = await wire.ask("HEAD", "/v1/queues/q")
    get = await wire.ask("GET", "/v1/queues/q")
    assert (head.status, head.headers["content-length"]) == (200, str(len(get.body)))


async def test_queues_are_made_listed_changed_paused_and_deleted(place: Place) -> None:
    assert (await place.ask("PUT", "/v1/queues/r", {"kind": "work", "options": {"visibility_s": 5}})).status == 200
    assert [each["name"] for each in (await place.ask("GET", "/v1/queues?prefix=r")).json["queues"]] == ["r"]
    changed = await place.ask("PATCH", "/v1/queues/r", {"options": {"visibility_s": 6}})
    assert changed.json["options"]["visibility_s"] == 6
    assert (await place.ask("POST", "/v1/queues/r/pause", {"gets": False})).json["puts_paused"] is True
    resumed = (await place.ask("POST", "/v1/queues/r/resume")).json
    assert (resumed["puts_paused"], resumed["gets_paused"]) == (False, False)
    assert (await place.ask("GET", "/v1/queues/r/statistics")).json["ready"] == 0
    assert (await place.ask("DELETE", "/v1/queues/r")).status == 204
    assert (await place.ask("GET", "/v1/queues/r")).json["error"] == "not_found"


async def test_metrics_count_what_was_done(place: Place) -> None:
    await place.ask("POST", "/v1/queues/q/messages", {"messages": [{"body": "a"}, {"body": "b"}, {}]})
    text = (await place.ask("GET", "/metrics")).body.decode()
    assert 'capellini_messages_total{operation="put"} 2.0' in text
    assert 'capellini_requests_total{route="POST /v1/queues/{name}/messages",status="200"} 1.0' in text
    assert 'capellini_limit{limit="max_body"} 100000.0' in text


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
    async for place in open_place(msgspec.structs.replace(SMALL, idle_timeout_s=0.1)):
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
    async for place in open_place(msgspec.structs.replace(SMALL, max_connections=1)):
        first = await place.wire()
        assert (await first.ask("GET", "/health")).status == 200
        second = await place.wire()
        assert (await second.read()).status == 429
        assert (await first.ask("GET", "/health")).status == 200


async def test_a_unix_socket_is_served_and_a_dead_one_replaced(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "s"
    await place.server.listen_unix(path)
    assert path.stat().st_mode & 0o077 == 0
    wire = Wire(*await asyncio.open_unix_connection(str(path)))
    place.wires.append(wire)
    assert (await wire.ask("GET", "/health")).status == 200


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
    assert "error" not in (await wire.ask("POST", "/v1/queues/q/messages/ack", {"receipts": [receipt]})).json["results"][0]
    assert (await wire.ask("POST", "/v1/drain", {"draining": False})).json["draining"] is False
    assert (await wire.ask("GET", "/v1/queues/q")).status == 200


async def test_a_full_disk_refuses_puts_and_lets_acks_through(place: Place) -> None:
    place.server.see(Condition(full="the disk is full: make room"))
    refused = await place.ask("POST", "/v1/queues/q/messages", {"messages": [{"body": "x"}]})
    assert (refused.status, refused.json["error"]) == (503, "full")
    assert (await place.ask("POST", "/v1/queues/q/messages/ack", {"receipts": []})).status == 200


async def test_the_end_finishes_what_was_begun_and_wakes_long_polls() -> None:
    async for place in open_place(SMALL):
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


async def test_the_end_cuts_off_what_takes_too_long() -> None:
    async for place in open_place(SMALL):
        place.service.hold = asyncio.Event()
        wire = await place.wire()
        wire.send(request("POST", "/v1/queues/q/messages", {"messages": [{"body": "x"}]}))
        await until(lambda: place.server.gate.in_flight == 1)
        await place.server.close(0.05)
        assert place.server.gate.in_flight == 0
