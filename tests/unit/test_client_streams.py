"""The client's streams: what is put and got, refused or forgotten. Over real sockets, and in the process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.unit.memory_log import MemoryLog, numbers, with_log
from tests.unit.memory_service import MemoryService
from tests.unit.raw_http import Place, open_place, until

import capellini
from capellini.api.limits import Limits
from capellini.client import credits, streaming
from capellini.client.aio import AsyncClient
from capellini.client.async_streams import AsyncBatch, AsyncProducer
from capellini.client.chunking import CHUNK_MESSAGES
from capellini.client.messages import AsyncMessage
from capellini.client.patient import Patience, PatientService
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


class Hurried(RealClock):
    """Waits are counted, and over at once."""

    def __init__(self) -> None:
        self.pauses = 0

    async def sleep(self, seconds: float) -> None:
        self.pauses += 1
        await asyncio.sleep(0)


@pytest.mark.parametrize("error", [Unavailable("the node is away"), Paused("the queue is paused")])
async def test_a_consumer_that_cannot_go_on_says_once_what_it_waits_for(
    error: CapelliniError, caplog: pytest.LogCaptureFixture
) -> None:
    service, clock = MemoryService(), Hurried()
    await with_log(service)
    client = AsyncClient[bytes](patient(service), clock=clock)
    told: list[int] = []
    async with asyncio.timeout(DEADLINE_S), client.stream("events", group="readers") as consumer:
        receiving = consumer.receiving
        for elsewhere in ([], [], ["127.0.0.1:1"]):  # a node that leaves in good order is a new row
            service.fails, waited = error, clock.pauses
            receiving._lane.is_over(elsewhere)
            await until(lambda waited=waited: clock.pauses > waited + 5)
            service.fails = None
            await until(lambda: receiving._lane is not None)
            told.append([record.getMessage() for record in caplog.records].count(f"waiting, and trying again: {error}"))
    assert told == [1, 1, 2]
