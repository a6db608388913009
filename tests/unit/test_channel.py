"""Channels over real sockets: many calls on one connection, each answered by itself, and what rude clients get."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable

import msgspec
import pytest
from tests.unit.raw_http import PATIENCE_S, SMALL, Place, Wire, open_place, until

from capellini.api.channel import READS_AT_ONCE
from capellini.api.limits import Limits
from capellini.client.channel import Channel
from capellini.client.reaching import Lost, Unreachable
from capellini.client.reaching import Place as NodePlace
from capellini.client.transport import Transport
from capellini.model.errors import TooLarge
from capellini.model.frames import LARGE_BYTES, LEAVING, Answer, Call, Splitter, answer_of, call_of, frame_of, send
from capellini.model.message import Peeked
from capellini.model.service import Parcel

UPGRADE = b"GET /v1/channel HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: capellini-channel\r\n\r\n"
PUT = "POST /v1/queues/q/blocks/put"
TAKE = "POST /v1/queues/q/blocks/get"
BLOCK = msgspec.msgpack.encode([[b"one"], [b"two"]])


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with open_place(SMALL) as found:
        yield found


class Ends:
    """A client that speaks frames by hand."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._splitter = Splitter(1 << 30)
        self._frames: list[memoryview] = []

    @classmethod
    async def open(cls, place: Place) -> Ends:
        wire = await place.wire()
        wire.send(UPGRADE)
        head = await wire.read(head_only=True)
        assert (head.status, head.headers["upgrade"]) == (101, "capellini-channel")
        return cls(wire)

    def call(self, id: int, call: str, body: bytes = b"") -> None:
        self.wire.send(frame_of(Call(id, call, body)))

    async def answer(self) -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            while not self._frames:
                data = await self.wire.reader.read(65_536)
                assert data, "the channel ended"
                self._frames += self._splitter.feed(data)
        return answer_of(self._frames.pop(0))


# ---- frames


class Sent(asyncio.WriteTransport):
    """What was written, and in how many pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.pieces.append(data)

    def writelines(self, list_of_data: Iterable[object]) -> None:
        for each in list_of_data:
            self.write(each)


@pytest.mark.parametrize("size", [0, 1, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 1_600_000])
@pytest.mark.parametrize("content", [Call(1, PUT), Call(2**40, "POST /v1/" + "q" * 300), Answer(7, 200),
                                     Answer(2**31, 503, b"", 1.5, "application/problem+json")])  # fmt: skip
def test_a_large_body_is_sent_as_it_lies_in_the_same_frame(content: Call | Answer, size: int) -> None:
    content = msgspec.structs.replace(content, body=bytes(range(256)) * (size // 256) + bytes(size % 256))
    sent = Sent()
    send(content, sent)
    assert b"".join(sent.pieces) == frame_of(content)
    assert any(piece is content.body for piece in sent.pieces) == (size >= LARGE_BYTES)


def test_frames_are_put_together_however_they_are_cut() -> None:
    chance = random.Random(7)
    calls = [Call(id, PUT, chance.randbytes(chance.choice((0, 1, 5, 3_000)))) for id in range(1, 60)]
    data = b"".join(map(frame_of, calls))
    for most in (1, 2, 7, 1_000, len(data)):
        splitter, found, at = Splitter(10_000), [], 0
        while at < len(data):
            size = chance.randint(1, most)
            found += [call_of(frame) for frame in splitter.feed(data[at : at + size])]
            at += size
        assert found == calls
        assert not splitter.partial


def test_a_frame_that_is_too_long_is_refused_by_its_length() -> None:
    splitter = Splitter(10)
    with pytest.raises(TooLarge, match="at most 10 bytes, not 11"):
        splitter.feed((11).to_bytes(4, "big"))


# ---- the node's end


async def test_calls_are_answered_in_any_order_on_one_connection(place: Place) -> None:
    ends = await Ends.open(place)
    ends.call(1, TAKE, msgspec.msgpack.encode([10, 30.0, None]))  # waits
    ends.call(2, "GET /v1/queues/q")
    ends.call(3, "GET /v1/queues/none")
    answers = {answer.id: answer for answer in (await ends.answer(), await ends.answer())}
    assert msgspec.msgpack.decode(answers[2].body)["name"] == "q"
    assert (answers[3].status, msgspec.msgpack.decode(answers[3].body)["error"]) == (404, "not_found")
    ends.call(4, PUT, BLOCK)
    answers = {answer.id: answer for answer in (await ends.answer(), await ends.answer())}
    assert msgspec.msgpack.decode(answers[4].body) == [[1, 2]]
    (parcel,) = msgspec.msgpack.decode(answers[1].body, type=list[Parcel])
    assert (parcel.first, parcel.count) == (1, 2)
    assert place.server.registry.get_sample_value("capellini_connections") == 1


async def test_a_call_and_its_upgrade_may_come_in_one_piece(place: Place) -> None:
    wire = await place.wire()
    wire.send(UPGRADE + frame_of(Call(9, "GET /health")))
    assert (await wire.read(head_only=True)).status == 101
    assert (await Ends(wire).answer()).status == 200


async def test_answers_say_their_media_type_when_it_is_not_messagepack(place: Place) -> None:
    ends = await Ends.open(place)
    ends.call(1, "GET /metrics")
    answer = await ends.answer()
    assert answer.media.startswith("text/plain")
    assert b"capellini_connections" in answer.body


async def test_a_wait_that_is_given_up_takes_nothing(place: Place) -> None:
    ends = await Ends.open(place)
    wait = msgspec.msgpack.encode([10, 30.0, None])
    ends.call(1, TAKE, wait)
    ends.call(1, "")  # in the same piece: before it took its first step
    ends.call(2, TAKE, wait)
    await until(lambda: place.server.gate.waiting == 1)
    ends.call(2, "")
    await until(lambda: place.server.gate.waiting == 0)
    ends.call(3, PUT, BLOCK)
    assert (await ends.answer()).id == 3
    assert len(place.service.held["q"].ready) == 2


async def test_a_client_that_goes_away_waits_no_more_but_its_put_is_done(place: Place) -> None:
    ends = await Ends.open(place)
    place.service.hold = asyncio.Event()
    ends.call(1, TAKE, msgspec.msgpack.encode([1, 30.0, None]))
    ends.call(2, PUT, BLOCK)
    await until(lambda: place.server.gate.waiting == 1 and place.server.gate.in_flight == 1)
    ends.wire.writer.close()
    await until(lambda: place.server.gate.waiting == 0)
    place.service.hold.set()
    await until(lambda: place.server.gate.in_flight == 0)
    assert len(place.service.held["q"].ready) == 2


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"\x00\x00\x00\x01\xc1", "no call"),
        (frame_of(Call(0, "GET /health")), "no id for a new call"),
        (b"\x7f\xff\xff\xff", "at most"),
        (b"\x00\x00\x00\x05\x93\x01\xa1\xff\xc0", "no call"),  # text that is not UTF-8
        (frame_of(Call(2, "GET /v1/queues/" + "q" * 5_000)), "at most 4096 characters"),
    ],
)
async def test_what_is_no_call_ends_the_channel_after_what_was_begun(place: Place, frame: bytes, says: str) -> None:
    ends = await Ends.open(place)
    place.service.hold = asyncio.Event()
    ends.call(1, PUT, BLOCK)
    await until(lambda: place.server.gate.in_flight == 1)
    ends.wire.send(frame)
    told = await ends.answer()
    assert told.id == 0
    assert says in msgspec.msgpack.decode(told.body)["says"]
    place.service.hold.set()
    assert (await ends.answer()).id == 1
    assert await ends.wire.ended() == b""


async def test_an_id_in_use_is_refused(place: Place) -> None:
    ends = await Ends.open(place)
    for _ in range(2):
        ends.call(1, TAKE, msgspec.msgpack.encode([1, 30.0, None]))
    assert (await ends.answer()).id == 0


async def test_a_channel_is_no_way_around_the_gate_or_for_other_sites(place: Place) -> None:
    wire = await place.wire()
    wire.send(UPGRADE.replace(b"host: localhost", b"host: evil.example"))
    assert (await wire.read()).status == 403
    wire = await place.wire()
    wire.send(UPGRADE.replace(b"connection: upgrade\r\n", b""))
    assert (await wire.read()).status == 426


async def test_half_a_frame_is_not_waited_for_without_end() -> None:
    async with open_place(Limits(request_timeout_s=0.2)) as place:
        ends = await Ends.open(place)
        ends.wire.send(b"\x00\x00")
        assert "not complete" in msgspec.msgpack.decode((await ends.answer()).body)["says"]
        assert await ends.wire.ended() == b""


async def test_a_frame_that_dribbles_in_is_not_waited_for_without_end() -> None:
    async with open_place(Limits(request_timeout_s=2.0)) as place:
        ends = await Ends.open(place)
        channel = next(iter(place.server._application.connections))
        ends.wire.send(b"\x00\x00")
        await until(lambda: place.server.gate.bytes == 2)
        place.server._application.now_s += 1.5  # a ticker that no time passes for
        ends.wire.send(b"\x00")
        await until(lambda: place.server.gate.bytes == 3)
        channel.tick(place.server._application.now_s + 1.0)
        assert "not complete" in msgspec.msgpack.decode((await ends.answer()).body)["says"]
        assert place.server.gate.bytes == 0


async def test_frames_that_are_not_whole_count_as_bytes_that_the_node_holds() -> None:
    async with open_place(Limits(max_bytes=40_000)) as place:
        first, second = await Ends.open(place), await Ends.open(place)
        for ends in (first, second):
            ends.wire.send(b"\x00\x01\x00\x00" + b"x" * 30_000)
            await until(lambda: place.server.gate.bytes > 0)
        told = await second.answer()
        assert (told.id, told.status) == (0, 429)
        assert await second.wire.ended() == b""
        first.wire.writer.close()
        await until(lambda: place.server.gate.bytes == 0)


async def test_a_channel_that_is_not_read_is_not_blamed_for_half_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capellini.api.channel.CALLS_MOST", 1)
    async with open_place(Limits()) as place:
        ends = await Ends.open(place)
        channel = next(iter(place.server._application.connections))
        ends.wire.send(frame_of(Call(1, TAKE, msgspec.msgpack.encode([1, 30.0, None]))) + b"\x00\x00")
        await until(lambda: place.server.gate.waiting == 1)
        for minutes in range(1, 4):
            channel.tick(place.server._application.now_s + 60.0 * minutes)
        await place.service.put_block("q", BLOCK)
        assert (await ends.answer()).id == 1


async def test_reads_of_a_client_that_does_not_take_its_answers_wait(place: Place) -> None:
    begun = 0

    async def peek(*_: object) -> list[Peeked]:
        nonlocal begun
        begun += 1
        return [Peeked("1", "ready", b"x" * 1_000_000, {}, 0.0, 0)]

    place.service.peek = peek  # type: ignore[method-assign]
    ends = await Ends.open(place)
    for id in range(1, 101):
        ends.call(id, "GET /v1/queues/q/messages")
    channel = next(iter(place.server._application.connections))
    await until(lambda: channel._unread)  # type: ignore[attr-defined]
    for _ in range(50):
        await asyncio.sleep(0)
    assert begun <= 3 * READS_AT_ONCE
    seen = {(await ends.answer()).id for _ in range(100)}  # who takes them gets all
    assert seen == set(range(1, 101))


async def test_a_node_that_closes_says_so_and_finishes_what_was_begun(place: Place) -> None:
    ends = await Ends.open(place)
    place.service.hold = asyncio.Event()
    ends.call(1, PUT, BLOCK)
    await until(lambda: place.server.gate.in_flight == 1)
    closing = asyncio.create_task(place.server.close(5.0))
    assert await ends.answer() == Answer(0, 0)
    place.service.hold.set()
    assert (await ends.answer()).id == 1
    ends.call(2, PUT, BLOCK)
    late = await ends.answer()
    assert (late.id, late.status) == (2, 503)
    ends.wire.writer.close()
    async with asyncio.timeout(PATIENCE_S):
        await closing


# ---- the client's end


def transport_to(place: Place, **options: float) -> Transport:
    return Transport(NodePlace.of_url(place.server.addresses[0]), channel=True, **options)  # type: ignore[arg-type]


async def test_a_client_needs_one_connection(place: Place) -> None:
    transport = transport_to(place)
    waits = [
        asyncio.create_task(
            transport.request("POST", "/v1/queues/q/blocks/get", msgspec.msgpack.encode([1, 30.0]), wait_s=30.0)
        )
        for _ in range(100)
    ]
    await until(lambda: place.server.gate.waiting == 100)
    for _ in range(100):
        assert (await transport.request("POST", "/v1/queues/q/blocks/put", BLOCK)).status == 200
    assert {response.status for response in await asyncio.gather(*waits)} == {200}
    assert place.server.registry.get_sample_value("capellini_connections") == 1
    await transport.close()


async def test_a_caller_that_leaves_gives_its_wait_up(place: Place) -> None:
    transport = transport_to(place)
    wait = asyncio.create_task(
        transport.request("POST", "/v1/queues/q/blocks/get", msgspec.msgpack.encode([1, 30.0]), wait_s=30.0)
    )
    await until(lambda: place.server.gate.waiting == 1)
    wait.cancel()
    await until(lambda: place.server.gate.waiting == 0)
    assert (await transport.request("GET", "/health")).status == 200
    await transport.close()


async def test_a_late_answer_is_lost_and_the_next_call_has_a_new_channel(place: Place) -> None:
    transport = transport_to(place, request_timeout_s=0.1)
    place.service.hold = asyncio.Event()
    with pytest.raises(Lost, match=r"no answer within 0.1 s: it may have been done"):
        await transport.request("POST", "/v1/queues/q/blocks/put", BLOCK)
    place.service.hold.set()
    assert (await transport.request("GET", "/health")).status == 200
    await transport.close()


async def test_a_node_that_is_gone_is_unreachable(place: Place) -> None:
    transport = transport_to(place)
    assert (await transport.request("GET", "/health")).status == 200
    await place.server.close(5.0)
    with pytest.raises(Unreachable):
        await transport.request("GET", "/health")
    await transport.close()


async def test_the_end_of_the_connection_loses_what_was_under_way(place: Place) -> None:
    transport = transport_to(place)
    place.service.hold = asyncio.Event()
    put = asyncio.create_task(transport.request("POST", "/v1/queues/q/blocks/put", BLOCK))
    await until(lambda: place.server.gate.in_flight == 1)
    await transport.close()
    with pytest.raises(Lost, match="may have been done"):
        await put
    place.service.hold.set()


async def test_a_server_without_channels_is_asked_by_http() -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            asked.append(head.split(b" HTTP")[0])
            status = b"404 Not Found" if b"/v1/channel" in head else b"200 OK"
            writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        transport = Transport(NodePlace("127.0.0.1", server.sockets[0].getsockname()[1]), channel=True)
        for _ in range(2):
            assert (await transport.request("GET", "/x")).status == 200
        await transport.close()
    assert asked == [b"GET /v1/channel", b"GET /x", b"GET /x"]


@pytest.mark.parametrize("then", [frame_of(LEAVING), b""])
async def test_a_node_that_leaves_as_it_takes_a_channel_was_asked_nothing(then: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + then)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        place = NodePlace("127.0.0.1", server.sockets[0].getsockname()[1])
        transport = Transport(place, channel=True, request_timeout_s=2.0)
        opened = transport._open

        async def slowly() -> Channel | None:
            channel = await opened()
            assert channel is not None
            await until(lambda: not channel.fit(20.0))  # the end comes before who waits for it goes on
            return channel

        transport._open = slowly  # type: ignore[method-assign]
        with pytest.raises(Unreachable):
            await transport.request("POST", "/v1/queues/q/blocks/put", BLOCK)
        await transport.close()
