"""What rude, broken and slow clients of streams get, and that a node stays small whatever they do."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket as sockets
import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.unit.bare_streams import GET, PUT, Logged, closed, framed, logged_place, tell, told
from tests.unit.raw_http import PATIENCE_S, SMALL, until
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode

from capellini.api import streams, websocket
from capellini.api.limits import Limits
from capellini.model.chunks import pack
from capellini.model.streams import (
    MAX_ASKED_BYTES,
    MAX_CREDIT,
    MAX_CREDIT_BYTES,
    MAX_FRAME_BYTES,
    MAX_RANGES,
    MAX_SETTLES,
)

ITEM = ["x", "r", 1, 1, 5, 2, b"c"]  # the head of an item: a delivery of two messages from 5 on


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was told why is cut off at the next tick."""
    monkeypatch.setattr(websocket, "LINGER_S", 0.0)


@pytest.fixture
async def logged() -> AsyncIterator[Logged]:
    async with logged_place(SMALL) as place:
        yield place


# ---- the handshake


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/v1/queues/nothing/streams/put", 404, "nothing"),
        ("/v1/queues/q/streams/put", 400, "log queues"),
        ("/v1/queues/events/groups/nobody/streams/get", 404, "group nobody"),
        ("/v1/queues/events/groups/a%20b/streams/get", 400, "group"),
        (f"{GET}?visibility_s=-1", 400, "visibility_s"),
        (f"{GET}?speed=1", 400, "speed"),
        (f"{PUT}?stay=perhaps", 400, "stay"),
    ],
)
async def test_what_cannot_be_streamed_is_refused_before_the_handshake(
    logged: Logged, path: str, status: int, says: str
) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await logged.open(path)
    assert caught.value.response.status_code == status
    assert says in msgspec.json.decode(caught.value.response.body or b"")["says"]


async def test_a_stream_asked_for_without_a_websocket_says_how(logged: Logged) -> None:
    answer = await logged.place.ask("GET", PUT)
    assert (answer.status, answer.headers["upgrade"]) == (426, "websocket")
    for headers in ({"Sec_WebSocket_Version": "8"}, {"Sec_WebSocket_Version": "13", "Sec_WebSocket_Key": "short"}):
        answer = await logged.place.ask("GET", PUT, Upgrade="websocket", Connection="upgrade", **headers)
        assert answer.status == 400


async def test_a_page_of_another_site_opens_no_stream(logged: Logged) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await logged.open(PUT, origin="https://elsewhere.example")
    assert caught.value.response.status_code == 403


# ---- frames


def _settle(verb: str, ranges: list[list[int]], *value_ms: int) -> bytes:
    return msgspec.msgpack.encode(["settle", 1, [[*ITEM, verb, ranges, *value_ms]]])


@pytest.mark.parametrize(
    ("path", "data", "code", "says"),
    [
        (PUT, b"", 1008, "no frame"),
        (PUT, b"\xc1", 1008, "no frame"),
        (PUT, msgspec.msgpack.encode(["put", 1]), 1008, "no frame"),
        (PUT, msgspec.msgpack.encode(["put", -1, b"x"]), 1008, "no frame"),
        (PUT, msgspec.msgpack.encode(["put", 1, b"x", 4]), 1008, "no frame"),
        (PUT, msgspec.msgpack.encode({"put": 1}), 1008, "no frame"),
        (PUT, msgspec.msgpack.encode(["credit", 1]), 1008, "no frame"),
        (PUT, "text", 1003, "binary"),
        (GET, msgspec.msgpack.encode(["credit", -1]), 1008, "above zero"),
        (GET, msgspec.msgpack.encode(["credit", 0]), 1008, "credit of nothing"),
        (GET, msgspec.msgpack.encode(["credit", 0, 0]), 1008, "credit of nothing"),
        (GET, msgspec.msgpack.encode(["credit", MAX_CREDIT + 1]), 1008, "credits end"),
        (GET, msgspec.msgpack.encode(["credit", 1, -1]), 1008, "above zero"),
        (GET, msgspec.msgpack.encode(["credit", 1, MAX_CREDIT_BYTES + 1]), 1008, "credits end"),
        (GET, msgspec.msgpack.encode(["credit", 1, 1, 1]), 1008, "no frame"),
        (GET, msgspec.msgpack.encode(["credit", 1.5]), 1008, "no frame"),
        (GET, msgspec.msgpack.encode(["deliver", []]), 1008, "no frame"),
        (GET, msgspec.msgpack.encode(["stop", 1]), 1008, "no frame"),
        (GET, b"\x91" * 100_000, 1008, "no frame"),
        (GET, _settle("ack", [[4, 1]]), 1008, "delivery"),
        (GET, _settle("ack", [[5, 3]]), 1008, "delivery"),
        (GET, _settle("ack", [[5, 0]]), 1008, "delivery"),
        (GET, _settle("ack", [[-1, 1]]), 1008, "delivery"),
        (GET, _settle("ack", [[5, 1]] * (MAX_RANGES + 1)), 1008, "ranges"),
        (GET, _settle("eat", [[5, 1]]), 1008, "eat"),
        (GET, _settle("nack", [[5, 1]], -3), 1008, "zero"),
        (GET, _settle("nack", [[5, 1]], 31_536_000_001), 1008, "at most"),
        (GET, _settle("nack", [[5, 1]], (1 << 63) - 1), 1008, "at most"),
        (GET, _settle("extend", [[5, 1]]), 1008, "for how long"),
        (GET, _settle("extend", [[5, 1]], 43_200_001), 1008, "at most"),
        (GET, msgspec.msgpack.encode(["settle", 1, [[*ITEM, "ack", []]] * (MAX_SETTLES + 1)]), 1008, "no frame"),
    ],
    ids=itertools.count(),
)
async def test_what_is_no_frame_closes_the_stream_with_a_reason(
    logged: Logged, path: str, data: bytes | str, code: int, says: str
) -> None:
    socket = await logged.open(path)
    await socket.send(data)
    found, reason = await closed(socket)
    assert found == code
    assert says in reason
    assert (logged.log.blocks, logged.log.settled) == ([], [])


async def test_a_bad_chunk_is_refused_by_itself(logged: Logged) -> None:
    socket = await logged.open(PUT)
    good = pack([b"good"])
    for number, chunk in enumerate((b"", good[:-1], good + b"x", b"\0" * 60, pack([b"x" * 262_145]), good)):
        await tell(socket, "put", number, chunk)
    answers = sorted([await told(socket) for _ in range(6)], key=lambda frame: frame[1])
    assert [(frame[0], frame[2]) for frame in answers[:5]] == [("refused", "invalid")] * 4 + [("refused", "too_large")]
    assert answers[5] == ["confirmed", 5, "x", 0, 1, False]
    assert logged.log.bodies() == [b"good"]
    await socket.close()


@pytest.mark.parametrize(("path", "most"), [(PUT, MAX_FRAME_BYTES), (GET, MAX_ASKED_BYTES)])
async def test_an_oversized_frame_is_refused_by_its_header(logged: Logged, path: str, most: int) -> None:
    wire = await logged.wire(path)
    wire.send(bytes([0x82, 0xFF]) + (most + 1).to_bytes(8, "big") + b"mask")
    assert b"\x03\xf1" in await wire.ended()  # closed with 1009


async def test_frames_of_one_message_are_oversized_together(logged: Logged) -> None:
    wire = await logged.wire(GET)
    part = b"x" * (MAX_ASKED_BYTES // 2 + 1)
    wire.send(Frame(Opcode.BINARY, part, fin=False).serialize(mask=True))
    wire.send(Frame(Opcode.CONT, part, fin=False).serialize(mask=True))
    assert b"\x03\xf1" in await wire.ended()


async def test_a_compressed_bomb_is_refused_by_its_first_byte(logged: Logged) -> None:
    wire = await logged.wire(PUT, b"sec-websocket-extensions: permessage-deflate\r\n")  # which is not agreed to
    bomb = zlib.compress(bytes(50_000_000))
    plain = Frame(Opcode.BINARY, bomb).serialize(mask=True)
    wire.send(bytes([plain[0] | 0x40]) + plain[1:])  # the bit that says it is compressed
    assert b"\x03\xea" in await wire.ended()  # closed with 1002
    assert logged.log.blocks == []


async def test_a_client_that_would_compress_speaks_plainly(logged: Logged) -> None:
    async with connect(f"ws://127.0.0.1:{logged.place.port}{PUT}", compression="deflate") as socket:
        assert socket.protocol.extensions == []
        await tell(socket, "put", 1, pack([b"x" * 1000]))
        assert (await told(socket))[0] == "confirmed"


BROKEN = {
    "not masked": Frame(Opcode.BINARY, b"plain").serialize(mask=False),
    "no such opcode": b"\x83\x80mask",
    "goes on with nothing": b"\x80\x80mask",
    "a ping in pieces": b"\x09\x80mask",
    "a ping that is too long": b"\x89\xfe\x00\x7emask" + bytes(126),
    "a close with half a code": b"\x88\x81maskx",
}


@pytest.mark.parametrize("what", BROKEN)
async def test_what_is_no_websocket_frame_is_a_protocol_error(logged: Logged, what: str) -> None:
    wire = await logged.wire(PUT)
    wire.send(BROKEN[what])
    assert b"\x03\xea" in await wire.ended()  # closed with 1002
    wire.writer.close()
    await until(lambda: not logged.place.server._context.streams)


async def test_a_message_may_come_in_several_frames_but_not_in_frames_of_nothing_for_ever(logged: Logged) -> None:
    wire = await logged.wire(PUT)
    data = msgspec.msgpack.encode(["put", 1, pack([b"in parts"])])
    wire.send(Frame(Opcode.BINARY, data[:10], fin=False).serialize(mask=True))
    for _ in range(10_000):
        wire.send(Frame(Opcode.CONT, b"", fin=False).serialize(mask=True))
    wire.send(Frame(Opcode.CONT, data[10:20], fin=False).serialize(mask=True))
    stream = await logged.stream()
    await until(lambda: len(stream._pieces) == 20)  # nothing else is kept of them
    wire.send(Frame(Opcode.CONT, data[20:]).serialize(mask=True))
    await until(lambda: logged.log.bodies() == [b"in parts"])
    assert stream._pieces == b""


async def test_random_bytes_end_the_stream_and_nothing_else(logged: Logged) -> None:
    chance = random.Random(3)
    for _ in range(40):
        wire = await logged.wire(chance.choice((PUT, GET)))
        wire.send(chance.randbytes(chance.randrange(1, 2000)))
        wire.writer.write_eof()
        await wire.ended()
    await until(lambda: not logged.place.server._context.streams)
    assert (await logged.place.ask("GET", "/health")).status == 200
    assert (logged.log.blocks, logged.log.settled, logged.place.server.gate.bytes) == ([], [], 0)


# ---- what belongs to others


async def test_acks_of_what_was_never_delivered_settle_nothing(logged: Logged) -> None:
    socket = await logged.open(GET)
    await tell(socket, "settle", 7, [["foreign", "readers/1", 1, 99, 0, 10, b"forged", "ack", [[0, 10]]]])
    assert await told(socket) == ["settled", 7, [[[], "", ""]]]
    assert logged.log.acked == {}
    await socket.close()


async def test_a_group_or_queue_that_is_deleted_ends_its_stream_with_its_name(logged: Logged) -> None:
    socket = await logged.open(GET)
    await tell(socket, "credit", 1)
    await until(lambda: logged.log.pulls == 1)
    await logged.log.delete_group("events", "readers")
    logged.log.came.set()
    code, reason = await closed(socket)
    assert (code, reason.partition(":")[0]) == (1008, "not_found")


# ---- too much, and too slow


async def test_an_ack_that_the_node_cannot_take_now_says_so_for_each_item() -> None:
    async with logged_place(Limits(max_requests=0)) as logged:
        socket = await logged.open(GET)
        await tell(socket, "settle", 1, [[*ITEM, "ack", [[5, 1]]], [*ITEM, "ack", [[6, 1]]]])
        name, number, results = await told(socket)
        assert (name, number, [result[:2] for result in results]) == ("settled", 1, [[[], "overloaded"]] * 2)
        assert logged.log.settled == []
        await socket.close()


async def test_frames_that_are_not_whole_count_as_bytes_that_the_node_holds() -> None:
    async with logged_place(Limits(max_bytes=3_000_000)) as logged:
        gate = logged.place.server.gate
        first, second = await logged.wire(PUT), await logged.wire(PUT)
        part = bytes([0x82, 0xFF]) + (4_000_000).to_bytes(8, "big") + b"mask" + bytes(2_000_000)
        first.send(part)
        await until(lambda: gate.bytes == 2_000_000)
        second.send(part)
        assert b"\x03\xf5" in await second.ended()  # closed with 1013: try again later
        assert gate.bytes == 2_000_000
        first.writer.transport.abort()
        await until(lambda: gate.bytes == 0)


async def test_a_message_that_does_not_become_whole_is_not_waited_for(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "WHOLE_S", 0.0)
    wire = await logged.wire(PUT)
    wire.send(framed("put", 1, pack([b"whole"])) + b"\x82\xfe\x10\x00mask" + b"and so on")
    ended = await wire.ended()
    assert b"confirmed" in ended
    assert b"not whole" in ended


async def test_a_producer_is_not_read_while_too_much_of_it_is_not_confirmed(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "UNCONFIRMED_BYTES", 100_000)
    logged.log.hold = asyncio.Event()  # nothing is confirmed
    wire = await logged.wire(PUT)
    for _ in range(400):  # 20 MB
        wire.send(framed("put", 1, pack([b"x" * 50_000])))
    stream = await logged.stream()
    await until(lambda: stream._reading_paused)
    assert len(logged.log.blocks) < 20  # the others are in the sockets, or still with the producer
    logged.log.hold.set()
    await until(lambda: len(logged.log.blocks) == 400)


def _narrow(stream: streams.Stream) -> None:
    """What the node sends does not disappear in the kernel."""
    stream._transport.get_extra_info("socket").setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, 4_096)


async def _fill(logged: Logged, wire: Any, stream: streams.Stream) -> int:
    """Sends small chunks, never reads, until the node does not read them any more; how many it had taken."""
    chunk, number = pack([b"x"]), 0
    async with asyncio.timeout(PATIENCE_S):
        while not stream.is_slow:
            wire.send(b"".join(framed("put", number + n, chunk) for n in range(500)))
            number += 500
            await asyncio.sleep(0.001)
    return len(logged.log.blocks)


@pytest.mark.slow
async def test_a_producer_that_never_reads_its_confirmations_is_not_read_and_then_cut_off() -> None:
    async with logged_place(Limits(write_timeout_s=1.0)) as logged:
        wire = await logged.wire(PUT)
        wire.writer.transport.get_extra_info("socket").setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4_096)
        wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
        stream = await logged.stream()
        _narrow(stream)
        taken = await _fill(logged, wire, stream)
        assert stream._reading_paused
        for _ in range(100):
            wire.send(framed("put", 0, pack([b"x" * 100_000])))  # 10 MB more
        await logged.place.ask("GET", "/health")
        assert len(logged.log.blocks) <= taken + streams.UNCONFIRMED_CHUNKS
        assert stream._transport.get_write_buffer_size() < 1_000_000
        await until(lambda: stream.ended.done())
        assert logged.place.server.gate.bytes == logged.place.server.gate.in_flight == 0


async def test_a_slow_consumer_is_pulled_for_no_further(logged: Logged) -> None:
    for _ in range(200):
        await logged.log.append("events", pack([b"x" * 100_000]))  # 20 MB
    wire = await logged.wire(GET)
    wire.send(framed("credit", 100_000))
    stream = await logged.stream()
    await until(lambda: stream.is_slow)
    pulls = logged.log.pulls
    assert pulls < 150
    assert stream._transport.get_write_buffer_size() < 1_000_000
    await logged.place.ask("GET", "/health")
    assert logged.log.pulls <= pulls + 1
    async with asyncio.timeout(PATIENCE_S):
        received = 0
        while received < 200 * 100_000:
            received += len(await wire.reader.read(1 << 20))
    assert logged.log.positions["readers"] == 200


async def test_many_consumers_share_what_a_node_has_on_its_way(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PULLED_BYTES", 3 * 200_000)
    opened = [await logged.open(GET) for _ in range(3)]
    for socket in opened:
        await tell(socket, "credit", 10)
    await until(lambda: logged.log.pulls == 3)
    assert logged.log.asked_bytes[-1] == 200_000
    for socket in opened:
        await socket.close()


async def test_who_does_not_end_the_connection_after_a_close_is_cut_off(logged: Logged) -> None:
    wire = await logged.wire(PUT)
    stream = await logged.stream()
    wire.send(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))
    await until(lambda: stream.ended.done())


async def test_who_says_nothing_is_asked_and_then_cut_off(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_AFTER_S", 0.1)
    monkeypatch.setattr(websocket, "SILENT_MOST_S", 0.6)
    wire, answers = await logged.wire(PUT), await logged.open(PUT)
    ended = await wire.ended()
    assert ended.startswith(b"\x89\x00")  # a ping
    assert b"nothing was heard" in ended
    await tell(answers, "put", 1, pack([b"x"]))  # the library answers pings by itself
    assert (await told(answers))[0] == "confirmed"
    await answers.close()


async def test_a_fault_of_the_node_ends_the_stream_and_is_logged(
    logged: Logged, caplog: pytest.LogCaptureFixture
) -> None:
    logged.log.fails = [RuntimeError("a bug")]  # type: ignore[list-item]
    socket = await logged.open(PUT)
    await tell(socket, "put", 1, pack([b"x"]))
    assert (await closed(socket))[0] == 1011
    assert "a bug" in caplog.text
    getting = await logged.open(GET)
    logged.log.pull_fails = [RuntimeError("another bug")]  # type: ignore[list-item]
    await tell(getting, "credit", 1)
    assert (await closed(getting))[0] == 1011
    assert "another bug" in caplog.text
    assert logged.place.server.gate.bytes == 0
