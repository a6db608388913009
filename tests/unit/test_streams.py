"""Streams over real sockets, driven by a WebSocket library that knows nothing of us: what is meant to be."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from tests.unit.bare_streams import GET, PUT, Logged, closed, framed, logged_place, tell, told
from tests.unit.raw_http import SMALL, until
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode

from capellini.api import streams, websocket
from capellini.model.chunks import pack
from capellini.model.errors import Overloaded, Unavailable


@pytest.fixture
async def logged() -> AsyncIterator[Logged]:
    async with logged_place(SMALL) as place:
        yield place


async def test_chunks_are_confirmed_in_order_with_their_places(logged: Logged) -> None:
    socket = await logged.open(PUT)
    producer = os.urandom(16)
    for number in range(1, 6):
        await tell(socket, "put", number, pack([b"a", b"bc"], None, producer, number))
    assert [await told(socket) for _ in range(5)] == [
        ["confirmed", number, "x", 2 * number - 2, 2, False] for number in range(1, 6)
    ]
    await tell(socket, "put", 9, pack([b"a", b"bc"], None, producer, 5))
    assert await told(socket) == ["confirmed", 9, "", -1, 2, True]
    assert logged.log.bodies() == [b"a", b"bc"] * 5
    await socket.close()


async def test_a_consumer_gets_what_it_gave_credits_for_and_acks_by_ranges(logged: Logged) -> None:
    await logged.log.append("events", pack([b"%d" % n for n in range(10)]))
    socket = await logged.open(GET)
    await tell(socket, "credit", 4)
    name, parcel = await told(socket)
    extent, reader, epoch, delivery, first, count, deliveries, put_ms, visible_ms, code, chunks = parcel
    assert (name, extent, first, count, deliveries) == ("deliver", "x", 0, 4, 1)
    assert visible_ms > put_ms and chunks
    await tell(socket, "settle", 1, [[extent, reader, epoch, delivery, first, count, code, "ack", [[0, 2], [3, 1]]]])
    assert await told(socket) == ["settled", 1, [[[[0, 2], [3, 1]], "", ""]]]
    assert logged.log.acked["readers"] == {0, 1, 3}
    await tell(socket, "credit", 100)
    assert (await told(socket))[1][4:6] == [4, 6]
    await tell(socket, "stop")
    assert await told(socket) == ["stopped"]
    await socket.close()


async def test_a_consumer_that_counts_bytes_gets_about_as_many(logged: Logged) -> None:
    for _ in range(10):
        await logged.log.append("events", pack([b"x" * 1000]))
    socket = await logged.open(GET)
    await tell(socket, "credit", 100, 2_500)
    assert [(await told(socket))[1][4] for _ in range(3)] == [0, 1, 2]  # the third one is above: it was begun
    await tell(socket, "stop")
    assert await told(socket) == ["stopped"]
    assert logged.log.positions["readers"] == 3
    await socket.close()


async def test_a_waiting_consumer_hears_of_new_messages(logged: Logged) -> None:
    getting, putting = await logged.open(GET), await logged.open(PUT)
    await tell(getting, "credit", 10)
    await tell(putting, "put", 1, pack([b"new"]))
    assert (await told(getting))[1][4:6] == [0, 1]
    await getting.close()
    await putting.close()


async def test_too_much_is_refused_with_a_word_on_when_to_come_again(logged: Logged) -> None:
    logged.log.fails = [Overloaded("too much")]
    socket = await logged.open(PUT)
    await tell(socket, "put", 3, pack([b"x"]))
    assert await told(socket) == ["refused", 3, "overloaded", "too much", 0.5]
    await socket.close()


async def test_a_consumer_waits_while_nothing_can_be_pulled(logged: Logged) -> None:
    await logged.log.append("events", pack([b"x"]))
    logged.log.pull_fails = [Unavailable("not now"), Overloaded("not now")]
    socket = await logged.open(GET)
    await tell(socket, "credit", 10)
    assert (await told(socket))[1][4:6] == [0, 1]
    assert logged.log.pull_fails == []
    await socket.close()


async def test_a_ping_is_answered(logged: Logged) -> None:
    socket = await logged.open(PUT)
    await asyncio.wait_for(await socket.ping(b"there?"), 10)
    await socket.close()


# ---- leaving


async def test_a_draining_node_tells_streams_to_reconnect_and_names_others(logged: Logged) -> None:
    logged.log.here, logged.log.writers = "127.0.0.1:1", ("127.0.0.1:1", "127.0.0.1:2")
    putting, getting = await logged.open(PUT), await logged.open(GET)
    logged.log.hold = asyncio.Event()
    await tell(putting, "put", 1, pack([b"under way"]))
    await until(lambda: logged.log.end == 1)
    assert (await logged.place.ask("POST", "/v1/drain")).status == 200
    for socket in (putting, getting):
        assert await told(socket) == ["reconnect", "this node is draining", ["127.0.0.1:2"]]
    await tell(putting, "put", 2, pack([b"late"]))
    assert (await told(putting))[:3] == ["refused", 2, "unavailable"]
    logged.log.hold.set()
    assert (await told(putting))[:2] == ["confirmed", 1]
    with pytest.raises(InvalidStatus):
        await logged.open(PUT)


async def test_who_stays_at_a_node_that_leaves_is_closed(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LEAVE_S", 0.0)
    socket = await logged.open(GET)
    (await logged.stream()).signal("go")
    assert (await told(socket))[:2] == ["reconnect", "go"]
    assert await closed(socket) == (1001, streams.LEFT)


@pytest.mark.parametrize("path", [PUT, GET])
async def test_a_client_is_sent_to_the_nodes_that_work_its_queue_unless_it_wants_to_stay(
    logged: Logged, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(streams, "WAY_LOOK_S", 0.0)
    logged.log.here, logged.log.writers = "127.0.0.1:1", ("127.0.0.1:2",)
    staying, going = await logged.open(f"{path}?stay=true"), await logged.open(path)
    assert await told(going) == ["reconnect", "other nodes work this queue", ["127.0.0.1:2"]]
    await staying.close()
    assert (staying.close_code, staying.close_reason) == (1000, "")


async def test_a_closing_server_ends_its_streams(logged: Logged) -> None:
    socket = await logged.open(GET)
    await logged.place.server.close(1.0)
    assert await closed(socket) == (1001, streams.LEFT)


async def test_a_closing_server_waits_for_chunks_that_are_under_way(logged: Logged) -> None:
    socket = await logged.open(PUT)
    logged.log.hold = asyncio.Event()
    await tell(socket, "put", 1, pack([b"under way"]))
    await until(lambda: logged.log.end == 1)
    closing = asyncio.create_task(logged.place.server.close(10.0))
    assert (await told(socket))[0] == "reconnect"
    assert not closing.done()
    logged.log.hold.set()
    assert (await told(socket))[:2] == ["confirmed", 1]
    assert await closed(socket) == (1001, streams.LEFT)
    await closing


async def test_what_was_pulled_for_a_consumer_that_left_is_given_back(logged: Logged) -> None:
    socket = await logged.open(GET)
    await tell(socket, "credit", 10)
    await until(lambda: logged.log.pulls == 1)
    stream = await logged.stream()
    logged.log.pulled = asyncio.Event()  # what is pulled now is on its way for a while
    await logged.log.append("events", pack([b"later"]))
    await until(lambda: logged.log.positions["readers"] == 1)
    await socket.close()
    await until(lambda: stream.gone.done())
    logged.log.pulled.set()
    await stream.ended
    assert logged.log.back["readers"] == [(0, 1)]


async def test_what_comes_after_a_consumer_said_that_it_closes_is_for_others(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "LINGER_S", 60.0)  # it does not end the connection yet
    wire = await logged.wire(GET)
    wire.send(framed("credit", 10))
    await until(lambda: logged.log.pulls == 1)
    stream = await logged.stream()
    wire.send(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))
    await until(lambda: not stream.open)
    await logged.log.append("events", pack([b"later"]))
    socket = await logged.open(GET)
    await tell(socket, "credit", 10)
    name, parcel = await told(socket)
    assert (name, parcel[4:7]) == ("deliver", [0, 1, 1])
    await socket.close()
    wire.writer.transport.abort()


async def test_a_stream_that_ends_without_a_word_is_forgotten(logged: Logged) -> None:
    wire = await logged.wire(PUT)
    await logged.stream()
    wire.writer.transport.abort()
    await until(lambda: not logged.place.server._context.streams)
    assert not any(isinstance(each, streams.Stream) for each in logged.place.server._application.connections)
