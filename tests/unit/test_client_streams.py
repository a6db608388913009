"""The client's streams: what it does when a node refuses, forgets, or leaves. Over real sockets, and in the process."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future

import pytest
from tests.unit.memory_log import MemoryLog, with_log
from tests.unit.memory_service import MemoryService
from tests.unit.raw_http import Place, open_place, until
from websockets.frames import CloseCode

import capellini
from capellini.api.limits import Limits
from capellini.client import credits, reaching, streaming
from capellini.client.aio import AsyncClient
from capellini.client.async_streams import AsyncBatch, AsyncProducer
from capellini.client.chunking import CHUNK_MESSAGES
from capellini.client.messages import AsyncMessage
from capellini.client.patient import Patience, PatientService
from capellini.client.streams import PutOpening, _reach
from capellini.client.transport import Transport
from capellini.model.chunks import pack
from capellini.model.clock import RealClock
from capellini.model.errors import (
    CapelliniError,
    Full,
    Invalid,
    NotFound,
    Paused,
    Stale,
    TooLarge,
    Unavailable,
    Unknown,
    WrongKind,
)
from capellini.model.log import Appended, Settle, Settled
from capellini.model.service import Done, Problem

DEADLINE_S = 60


class Served:
    def __init__(self, client: AsyncClient[bytes], log: MemoryLog, place: Place | None) -> None:
        self.client, self.log, self.place = client, log, place


def patient(service: MemoryService, total_s: float = 30.0) -> PatientService:
    return PatientService(service, Patience(total_s=total_s), RealClock(), random.Random(1))


@pytest.fixture(params=["socket", "direct"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    if request.param == "direct":
        service = MemoryService()
        log = await with_log(service)
        async with asyncio.timeout(DEADLINE_S):
            yield Served(AsyncClient(patient(service)), log, None)
        return
    async with open_place(Limits()) as place:
        log = await with_log(place.service)
        async with asyncio.timeout(DEADLINE_S), capellini.connect_async(f"http://127.0.0.1:{place.port}") as client:
            yield Served(client, log, place)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# ---- putting


async def test_puts_of_one_turn_travel_together_and_come_in_order(served: Served) -> None:
    async with served.client.stream_put("events") as producer:
        ids = await asyncio.gather(*[producer.put(body) for body in numbers(500)])
    assert ids == [f"x:{number}" for number in range(500)]
    assert served.log.bodies() == numbers(500)
    assert len(served.log.blocks) < 10


async def test_many_bodies_are_cut_by_bytes_and_by_count(served: Served) -> None:
    large, small = [b"x" * 100_000 for _ in range(50)], numbers(2 * CHUNK_MESSAGES + 1)
    async with served.client.stream_put("events") as producer:
        places = await producer.put_many(large, attributes={"a": "b"})
        assert [place.count for place in places] == [2] * 25
        assert [place.first for place in places] == list(range(0, 50, 2))
        assert [place.count for place in await producer.put_many(small)] == [CHUNK_MESSAGES, CHUNK_MESSAGES, 1]
    assert served.log.bodies() == large + small


async def test_a_list_that_its_caller_goes_on_using_is_put_as_it_was(served: Served) -> None:
    bodies = numbers(10)
    async with served.client.stream_put("events") as producer:
        (sent,) = await producer.send_many(bodies)
        bodies.clear()
        assert (await sent).count == 10
    assert served.log.bodies() == numbers(10)


async def test_a_chunk_that_is_refused_for_now_comes_again_in_order(served: Served) -> None:
    served.log.fails = [None, Unavailable("not now", retry_after_s=0.0), None, None]
    async with served.client.stream_put("events") as producer:
        futures = await _one_by_one(producer, 40)
        await asyncio.gather(*futures)
    assert served.log.bodies() == numbers(40)


async def _one_by_one(producer: AsyncProducer[bytes], count: int) -> list[asyncio.Future[Appended]]:
    """Each in a chunk of its own, all on their way at once."""
    futures = []
    for body in numbers(count):
        futures.append(await producer.send(body))
        await asyncio.sleep(0)
    return futures


async def test_a_chunk_whose_answer_was_lost_is_recognised_when_it_comes_again(served: Served) -> None:
    served.log.fails_after = [None, Unknown("lost", retry_after_s=0.0)]
    async with served.client.stream_put("events") as producer:
        await asyncio.gather(*await _one_by_one(producer, 5))
    assert served.log.bodies() == numbers(5)


async def test_a_body_that_is_too_large_spoils_only_its_own_put(served: Served) -> None:
    async with served.client.stream_put("events") as producer:
        puts = [producer.put(body) for body in (b"a", b"x" * 262_145, b"b", b"c")]
        found = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(one) for one in found] == [str, TooLarge, str, str]
        await producer.put(b"d")
        with pytest.raises(TooLarge):
            await producer.put(b"x" * 5_000_000)
    assert served.log.bodies() == [b"a", b"b", b"c", b"d"]


async def test_bad_ones_among_many_are_found_and_the_others_keep_their_order(served: Served) -> None:
    bodies = [b"x" * 262_145 if number in (0, 7, 8, 199) else b"%d" % number for number in range(200)]
    async with served.client.stream_put("events") as producer:
        found = await asyncio.gather(*[producer.put(body) for body in bodies], return_exceptions=True)
    assert [number for number, one in enumerate(found) if isinstance(one, TooLarge)] == [0, 7, 8, 199]
    assert served.log.bodies() == [body for body in bodies if len(body) < 100]


async def test_what_is_wrong_is_said_before_anything_is_sent(served: Served) -> None:
    async with served.client.stream_put("events") as producer:
        with pytest.raises(Invalid, match="nothing to put"):
            await producer.put_many([])
        with pytest.raises(Invalid, match="bytes, not str"):
            await producer.put("text")  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="attributes"):
            await producer.put(b"x", attributes={"a": "b" * 20_000})
        with pytest.raises(Invalid, match="text to text"):
            await producer.put(b"x", attributes={"a": 1})  # type: ignore[dict-item]
    assert served.log.blocks == []


async def test_a_producer_goes_on_after_its_sequences_were_forgotten(served: Served) -> None:
    async with served.client.stream_put("events") as producer:
        await asyncio.gather(*await _one_by_one(producer, 5))
        served.log.last.clear()  # as after a purge
        await asyncio.gather(*await _one_by_one(producer, 5))
    assert served.log.bodies() == numbers(5) * 2


async def test_a_chunk_that_may_be_there_and_is_then_refused_is_unknown(served: Served) -> None:
    served.log.fails = [Unknown("lost", retry_after_s=0.0), Invalid("no"), Invalid("no")]
    async with served.client.stream_put("events") as producer:
        with pytest.raises(Unknown, match="may have been done"):
            await producer.put(b"a")
        await producer.put(b"b")
    assert served.log.bodies() == [b"b"]


@pytest.mark.parametrize("error", [NotFound("it was deleted"), WrongKind("it is a work queue now")])
async def test_when_the_queue_is_gone_all_hear_of_it_at_once(served: Served, error: CapelliniError) -> None:
    async with served.client.stream_put("events") as producer:
        await producer.put(b"a")
        served.log.fails = [error] * 20
        found = await asyncio.gather(*[producer.put(b"%d" % n) for n in range(2000)], return_exceptions=True)
        assert {type(one) for one in found} == {type(error)}


async def test_when_patience_ends_callers_hear_why_and_the_stream_goes_on(served: Served) -> None:
    served.client._service.patience = Patience(total_s=0.2)
    served.log.fails = [Full("no room", retry_after_s=0.05)] * 100
    async with served.client.stream_put("events") as producer:
        with pytest.raises(Full):
            await producer.put(b"a")
        served.log.fails = [Unknown("lost", retry_after_s=0.0)] + [Paused("not now", retry_after_s=0.05)] * 100
        with pytest.raises(Unknown, match="not now"):
            await producer.put(b"b")
        served.log.fails = []
        await producer.put(b"c")
    assert served.log.bodies() == [b"c"]


async def test_who_does_not_wait_any_more_harms_nobody(served: Served) -> None:
    served.log.hold = asyncio.Event()
    async with served.client.stream_put("events") as producer:
        first, second = asyncio.create_task(producer.put(b"a")), asyncio.create_task(producer.put(b"b"))
        await until(lambda: served.log.end == 2)
        first.cancel()
        served.log.hold.set()
        assert await second == "x:1"
    assert first.cancelled()


async def test_what_is_under_way_when_the_end_is_not_waited_for_may_be_done(served: Served) -> None:
    served.log.hold = asyncio.Event()
    producer = served.client.stream_put("events")
    await producer.__aenter__()
    sent = await producer.send(b"a")
    await until(lambda: served.log.end == 1)
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    closing.cancel()
    await until(sent.done)
    assert isinstance(sent.exception(), Unknown) and served.log.bodies() == [b"a"]
    served.log.hold.set()
    await asyncio.wait([closing])


async def test_a_stream_is_opened_before_it_is_used_and_not_after_it_is_closed(served: Served) -> None:
    producer, consumer = served.client.stream_put("events"), served.client.stream("events", group="readers")
    for _ in range(2):
        with pytest.raises(Unavailable):
            await producer.put(b"x")
        with pytest.raises(Unavailable):
            await consumer.batch()
        async with producer, consumer:
            pass


async def test_a_queue_or_group_that_does_not_exist_is_said_at_once(served: Served) -> None:
    with pytest.raises(NotFound):
        await served.client.stream_put("nothing").__aenter__()
    with pytest.raises(NotFound):
        await served.client.stream("events", group="nobody").__aenter__()
    await served.client.create_queue("jobs")
    with pytest.raises(WrongKind):
        await served.client.stream_put("jobs").__aenter__()


# ---- getting


async def test_messages_come_with_attributes_and_are_acked_in_ranges(served: Served) -> None:
    async with served.client.stream_put("events") as producer:
        await producer.put_many(numbers(300))
        await producer.put(b"last", attributes={"color": "red"})
    seen: list[bytes] = []
    async with served.client.stream("events", group="readers", ahead=100) as consumer:
        async for message in consumer:
            seen.append(message.body)
            await message.ack()
            if message.attributes:
                assert (message.attributes, message.id, message.deliveries) == ({"color": "red"}, "x:300", 1)
                break
    assert seen == [*numbers(300), b"last"]
    assert served.log.acked["readers"] == set(range(301))


async def _batch(served: Served, count: int) -> tuple[AsyncBatch[AsyncMessage[bytes]], ...]:
    """So many messages in one parcel, in the hands of a consumer that stays open."""
    async with served.client.stream_put("events") as producer:
        await producer.put_many([b"x"] * count)
    consumer = await served.client.stream("events", group="readers").__aenter__()
    return (await consumer.batch(),)


async def test_a_batch_is_acked_as_one_range(served: Served) -> None:
    (batch,) = await _batch(served, 10)
    assert (len(batch), batch.bodies) == (10, [b"x"] * 10)
    await batch.extend(60)
    await batch.ack()
    assert served.log.settled[-1].ranges == [(0, 10)]
    assert served.log.acked["readers"] == set(range(10))
    with pytest.raises(Stale, match="10 of 10"):
        await batch.ack()
    await batch._holder.close()


async def test_stale_ones_are_told_from_the_others(served: Served) -> None:
    (batch,) = await _batch(served, 10)
    consumer = batch._holder
    assert await consumer.ack_many(batch[2:4]) == [Done()] * 2
    results = await consumer.ack_many([batch[1], batch[2], batch[8]])
    assert [result.error if isinstance(result, Problem) else "" for result in results] == ["", "stale", ""]
    with pytest.raises(Stale):
        await batch[3].ack()
    with pytest.raises(Stale, match="4 of 10"):
        await batch.ack()
    await consumer.close()


async def test_a_nacked_message_comes_again(served: Served) -> None:
    (batch,) = await _batch(served, 10)
    await batch[5].nack(delay_s=0)
    (again,) = await batch._holder.batch()
    assert (again.id, again.deliveries) == ("x:5", 2)
    with pytest.raises(Invalid, match="delay_s"):
        await batch.nack(-1)
    with pytest.raises(Invalid, match="visibility_s"):
        await batch.extend(0)
    await batch._holder.close()


async def test_a_batch_is_empty_when_nothing_came_in_time(served: Served) -> None:
    async with served.client.stream("events", group="readers") as consumer:
        batch = await consumer.batch(wait_s=0.02)
        assert (len(batch), list(batch), batch.bodies) == (0, [], [])
        await batch.ack()


async def test_what_was_not_handed_out_goes_back_when_the_consumer_ends(served: Served) -> None:
    async with served.client.stream_put("events") as producer:
        await producer.put_many(numbers(100))
    async with served.client.stream("events", group="readers", ahead=10) as consumer:
        first = await consumer.batch()
        assert len(first) == 10
        await until(lambda: served.log.positions["readers"] == 20)
    assert served.log.back["readers"] == [(10, 20)]


async def test_a_settle_whose_answer_was_lost_and_that_is_stale_then_is_unknown(served: Served) -> None:
    (batch,) = await _batch(served, 10)
    served.log.settle_fails_after = [Unknown("lost", retry_after_s=0.0)]
    with pytest.raises(Unknown):
        await batch.ack()
    assert served.log.acked["readers"] == set(range(10))
    served.log.settle_fails = [Unavailable("not now", retry_after_s=0.0)]
    await batch.extend(10)  # surely not done at first: done then
    await batch._holder.close()


async def test_acks_of_many_frames_are_known_for_each(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """One frame was settled and the next was not: who was acked is not told otherwise."""
    monkeypatch.setattr(streaming, "FRAME_RANGES", 1)
    (batch,) = await _batch(served, 4)
    served.client._service.patience = Patience(total_s=0.0)
    async with served.client.stream_put("events") as producer:
        await producer.put(b"more")
    more = await batch._holder.batch()
    assert len(batch.origins) == len(more.origins) == 1
    settle = served.log.settle

    async def once(queue: str, group: str, items: Sequence[Settle]) -> list[Settled]:
        found = await settle(queue, group, items)
        served.log.settle_fails = [Unavailable("not now")] * 2
        return found

    monkeypatch.setattr(served.log, "settle", once)
    first, second = await batch._holder.ack_many([batch[0], more[0]])
    assert (first, second) == (Done(), Problem("unavailable", "not now"))
    await batch._holder.close()


async def test_a_consumer_whose_end_is_cut_short_leaves_no_lane_open(served: Served) -> None:
    (batch,) = await _batch(served, 1)
    receiving = batch._holder.receiving
    served.client._service.patience = Patience(total_s=60.0)
    served.log.settle_fails = [Unavailable("not now", retry_after_s=30.0)] * 9
    ack = asyncio.create_task(batch.ack())
    await until(lambda: len(served.log.settle_fails) < 9)
    closing = asyncio.create_task(batch._holder.close())
    await until(lambda: receiving._closed)
    await asyncio.sleep(0.01)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled() and receiving._keeping.done() and receiving._lane.over.done()
    ack.cancel()


async def test_an_ack_after_the_end_of_a_stream_is_refused_at_once(served: Served) -> None:
    (batch,) = await _batch(served, 1)
    await batch._holder.close()
    if served.place is None:
        await batch.ack()  # in this process there is nothing that ends
        return
    with pytest.raises(Unavailable, match="stream is closed"):
        async with asyncio.timeout(10):
            await batch.ack()


async def test_a_message_of_elsewhere_is_not_acked_by_a_stream(served: Served) -> None:
    await served.client.create_queue("jobs")
    await served.client.put("jobs", b"x")
    (message,) = await served.client.get("jobs")
    (batch,) = await _batch(served, 1)
    with pytest.raises(Invalid, match="not of a stream"):
        await batch._holder.ack_many([message])
    with pytest.raises(Invalid, match="own methods"):
        _ = batch[0].receipt
    await batch._holder.close()


async def test_a_group_that_is_deleted_ends_its_consumers(served: Served) -> None:
    async with served.client.stream("events", group="readers") as consumer:
        waiting = asyncio.create_task(consumer.batch())
        await until(lambda: served.log.pulls == 1)
        await served.log.delete_group("events", "readers")
        served.log.came.set()
        with pytest.raises(NotFound, match="no group readers"):
            await waiting


async def test_large_messages_do_not_pile_up_in_a_client_that_is_slow(served: Served) -> None:
    for _ in range(60):
        await served.log.append("events", pack([b"x" * 262_144] * 4))  # 60 MB
    async with served.client.stream("events", group="readers") as consumer:
        assert len(await consumer.batch()) > 0
        assert len(await consumer.batch()) > 0  # it is known now how fast this program is
        held = consumer.receiving._credits
        await until(lambda: held._granted_bytes <= 0)
        assert credits.BYTES // 2 < held._waiting_bytes < credits.BYTES + 2 * 262_144 * 4
        assert served.log.positions["readers"] < 240


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
