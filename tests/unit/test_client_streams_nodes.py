"""The nodes that the client's streams go to: they leave, break off, or are none. And all the same without asyncio."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from tests.unit.memory_log import MemoryLog, numbers, with_log
from tests.unit.raw_http import Place, open_place, until
from websockets.frames import CloseCode

import capellini
from capellini.api.limits import Limits
from capellini.client import reaching
from capellini.client.streams import PutOpening, _reach
from capellini.client.transport import Transport
from capellini.model.chunks import pack
from capellini.model.errors import Invalid, TooLarge, Unavailable, Unknown
from capellini.model.log import Appended
from capellini.model.service import Done

DEADLINE_S = 60


# ---- nodes that leave


async def test_streams_follow_to_another_node_without_losing_or_reordering() -> None:
    async with asyncio.timeout(DEADLINE_S), open_place(Limits()) as old, open_place(Limits()) as new:
        log = await with_log(old.service)
        await new.service.create("events", "log")
        new.service.log = log  # the same queue, through another node
        log.here, log.writers = f"127.0.0.1:{old.port}", (f"127.0.0.1:{old.port}",)
        async with capellini.connect_async(f"http://127.0.0.1:{old.port}") as client:
            seen: list[bytes] = []

            async def consume() -> None:
                async with client.stream("events", group="readers", ahead=50) as consumer:
                    async for message in consumer:
                        seen.append(message.body)
                        await message.ack()
                        if message.body == b"999":
                            return

            consuming = asyncio.create_task(consume())
            async with client.stream_put("events") as producer:
                for number in range(1000):
                    if number == 300:
                        log.writers = (f"127.0.0.1:{old.port}", f"127.0.0.1:{new.port}")
                        assert (await old.ask("POST", "/v1/drain")).status == 200
                    future = await producer.send(b"%d" % number)
                    if number % 10 == 0:
                        await future
            await consuming
            assert len(new.server._context.streams) <= 1  # the producer's may be closing
        assert log.bodies() == numbers(1000)
        assert seen == log.bodies()
        assert log.acked["readers"] == set(range(1000))


async def test_connections_that_break_again_and_again_lose_nothing_and_repeat_nothing() -> None:
    chance = random.Random(7)
    async with asyncio.timeout(DEADLINE_S), open_place(Limits()) as place:
        log = await with_log(place.service)
        async with (
            capellini.connect_async(f"http://127.0.0.1:{place.port}") as client,
            client.stream_put("events") as producer,
        ):
            futures: list[asyncio.Future[Appended]] = []
            for number in range(2000):
                futures.append(await producer.send(b"%d" % number))
                if chance.random() < 0.02:
                    await asyncio.sleep(0)
                if chance.random() < 0.005:
                    _break(place)
            await producer.flush()
            assert all(future.exception() is None for future in futures)
        assert log.bodies() == numbers(2000)


def _break(place: Place) -> None:
    for stream in tuple(place.server._context.streams):
        stream._transport.abort()  # type: ignore[attr-defined]


async def test_a_consumer_whose_connection_breaks_goes_on_and_acks_what_it_has() -> None:
    async with asyncio.timeout(DEADLINE_S), open_place(Limits()) as place:
        log = await with_log(place.service)
        async with (
            capellini.connect_async(f"http://127.0.0.1:{place.port}") as client,
            client.stream_put("events") as producer,
            client.stream("events", group="readers") as consumer,
        ):
            await producer.put(b"before")
            (before,) = await consumer.batch()
            _break(place)
            await producer.put(b"after")
            (after,) = await consumer.batch()
            await before.ack()
            await after.ack()
        assert log.bodies() == [b"before", b"after"]
        assert log.acked["readers"] == {0, 1}


async def test_what_a_consumer_holds_is_acked_at_a_node_that_leaves_while_there_is_no_other() -> None:
    async with asyncio.timeout(DEADLINE_S), open_place(Limits()) as place:
        log = await with_log(place.service)
        await log.append("events", pack(numbers(10)))
        async with capellini.connect_async(f"http://127.0.0.1:{place.port}") as client:
            consumer = await client.stream("events", group="readers", ahead=5).__aenter__()
            batch = await consumer.batch()
            await until(lambda: log.positions["readers"] == 10)
            assert (await place.ask("POST", "/v1/drain")).status == 200
            await until(lambda: consumer.receiving._lane is None)
            await batch.ack()
            await consumer.close()
    assert log.acked["readers"] == set(range(5))
    assert log.back["readers"] == [(5, 10)]


async def test_a_client_that_is_closed_finishes_its_streams() -> None:
    async with asyncio.timeout(DEADLINE_S), open_place(Limits()) as place:
        log = await with_log(place.service)
        client = capellini.connect_async(f"http://127.0.0.1:{place.port}")
        producer, consumer = client.stream_put("events"), client.stream("events", group="readers", ahead=1)
        await producer.__aenter__()
        await consumer.__aenter__()
        sent = await producer.send_many(numbers(10))
        await until(lambda: log.positions["readers"] == 1)
        await client.close()
        assert (sent[0].result().count, log.back["readers"]) == (10, [(0, 1)])
        await until(lambda: not place.server._context.streams)
        with pytest.raises(Unavailable):
            await producer.put(b"late")


async def test_a_producer_that_a_node_does_not_understand_hears_so() -> None:
    async with asyncio.timeout(DEADLINE_S), open_place(Limits()) as place:
        log = await with_log(place.service)
        log.hold = asyncio.Event()
        async with (
            capellini.connect_async(f"http://127.0.0.1:{place.port}") as client,
            client.stream_put("events") as producer,
        ):
            sent = await producer.send(b"a")
            await until(lambda: log.end == 1)
            for stream in place.server._context.streams:
                stream.shut(CloseCode.POLICY_VIOLATION, "invalid: whatever this is")  # type: ignore[attr-defined]
            with pytest.raises(Unknown, match="whatever this is"):
                await sent
            log.hold.set()
            await producer.put(b"b")
    assert log.bodies() == [b"a", b"b"]


async def test_the_node_that_works_the_queue_is_used_and_another_where_it_cannot_be_reached() -> None:
    async with asyncio.timeout(DEADLINE_S), open_place(Limits()) as entry, open_place(Limits()) as worker:
        log = await with_log(entry.service)
        await worker.service.create("events", "log")
        worker.service.log = log
        log.here, log.writers = f"127.0.0.1:{entry.port}", (f"127.0.0.1:{worker.port}",)
        async with capellini.connect_async(f"http://127.0.0.1:{entry.port}") as client:
            async with client.stream_put("events") as producer, client.stream("events", group="readers") as consumer:
                await producer.put(b"fast")
                assert (await consumer.batch()).bodies == [b"fast"]
                assert (len(worker.server._context.streams), len(entry.server._context.streams)) == (2, 0)
            log.writers = ("127.0.0.1:1",)  # nobody there
            async with client.stream_put("events") as producer:
                await producer.put(b"slow")
                (stream,) = entry.server._context.streams
                assert stream._stay is True  # type: ignore[attr-defined]  # it is not to be sent there again
        assert log.bodies() == [b"fast", b"slow"]


async def test_nodes_that_were_named_are_found_again_when_the_entry_is_away() -> None:
    async with asyncio.timeout(DEADLINE_S), open_place(Limits()) as worker:
        async with open_place(Limits()) as entry:
            log = await with_log(entry.service)
            await worker.service.create("events", "log")
            worker.service.log = log
            log.here, log.writers = f"127.0.0.1:{entry.port}", (f"127.0.0.1:{worker.port}",)
            client = capellini.connect_async(f"http://127.0.0.1:{entry.port}")
            producer = await client.stream_put("events").__aenter__()
            await producer.put(b"with")
        _break(worker)
        await producer.put(b"without")
        await producer.close()
        await client.close()
        assert log.bodies() == [b"with", b"without"]


async def test_a_node_that_speaks_nonsense_ends_the_stream_with_an_error() -> None:
    async with asyncio.timeout(DEADLINE_S), open_place(Limits()) as place:
        await with_log(place.service)
        async with (
            capellini.connect_async(f"http://127.0.0.1:{place.port}") as client,
            client.stream("events", group="readers") as consumer,
        ):
            for stream in place.server._context.streams:
                stream.send(b"\xc1")  # type: ignore[attr-defined]
            with pytest.raises(Invalid, match="no frame"):
                await consumer.batch()


async def test_what_answers_without_being_a_node_is_not_taken_for_one() -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        if b"websocket" in asked:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nsec-websocket-accept: nonsense\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(odd, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    opening = PutOpening("events")
    transport = Transport(reaching.Place("127.0.0.1", port))
    with pytest.raises(Unavailable, match="WebSocket"):
        await _reach(transport, transport.place, opening, stay=True)
    server.close()


# ---- without asyncio


@pytest.fixture
def threaded() -> Iterator[tuple[str, MemoryLog]]:
    """A node in another thread, as a program without asyncio finds it."""
    ready: Future[tuple[int, MemoryLog, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        ended = asyncio.Event()
        async with open_place(Limits()) as place:
            ready.set_result((place.port, await with_log(place.service), asyncio.get_running_loop(), ended))
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    port, log, loop, ended = ready.result(DEADLINE_S)
    yield f"http://127.0.0.1:{port}", log
    loop.call_soon_threadsafe(ended.set)
    thread.join()


def test_the_same_without_asyncio(threaded: tuple[str, MemoryLog]) -> None:
    address, log = threaded
    with (
        capellini.connect(address, codec="str") as client,
        client.stream_put("events") as producer,
        client.stream("events", group="readers", ahead=100) as consumer,
    ):
        assert producer.put("first") == "x:0"
        assert [place.count for place in producer.put_many([str(number) for number in range(300)])] == [300]
        sent = producer.send("one", attributes={"color": "red"})
        producer.flush()
        assert sent.result(0).first == 301
        seen: list[str] = []
        for message in consumer:
            seen.append(message.body)
            message.ack()
            if message.attributes:
                break
        assert seen == ["first", *[str(number) for number in range(300)], "one"]
        assert len(consumer.batch(wait_s=0.01)) == 0
        assert consumer.extend_many([message], 60) == [Done()]
        more = producer.send_many(["two"] * 99)
        for batch in consumer.batches():
            seen += batch.bodies
            batch.ack()
            if len(seen) == 401:
                break
        assert sum(future.result(DEADLINE_S).count for future in more) == 99
    assert log.acked["readers"] == set(range(401))


def test_a_loop_that_is_left_goes_on_later_and_the_rest_goes_back(threaded: tuple[str, MemoryLog]) -> None:
    address, log = threaded
    with capellini.connect(address) as client, client.stream_put("events") as producer:
        producer.put_many(numbers(10))
        with client.stream("events", group="readers") as consumer:
            assert [message.body for message, _ in zip(consumer, range(3), strict=False)][:3] == numbers(3)
            assert next(iter(consumer)).body in (b"3", b"4")
    ((first, end),) = log.back["readers"]
    assert first in (4, 5) and end == 10


def test_a_thread_that_hears_of_a_refusal_hears_it_from_its_future(threaded: tuple[str, MemoryLog]) -> None:
    address, _ = threaded
    with capellini.connect(address) as client, client.stream_put("events") as producer:
        large, small = producer.send(b"x" * 262_145), producer.send(b"x")
        with pytest.raises(TooLarge):
            large.result(DEADLINE_S)
        assert small.result(DEADLINE_S).first == 0
