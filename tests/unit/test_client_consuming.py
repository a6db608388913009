"""The parts of the consume loop that need no node: how long a failed message waits, how a node is waited for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Sequence
from contextlib import aclosing
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.memory_service import MemoryService

from capellini.client.aio import AsyncClient
from capellini.client.consuming import NACK_MOST_S, Consumer, Failed, Plan, nack_delay_s, steady
from capellini.client.lanes import ranges_of
from capellini.client.messages import AsyncMessage
from capellini.client.patient import Patience, PatientService
from capellini.model.clock import RealClock
from capellini.model.errors import CapelliniError, NotFound, Paused, Unavailable, Unknown
from capellini.model.service import Done, ExtendItem, Problem


class Clock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.pauses: list[float] = []

    def now_s(self) -> float:
        return self.time_s

    def elapsed_s(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time_s += seconds


class Script:
    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    async def __call__(self) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, CapelliniError):
            raise answer
        return answer


@given(st.integers(0, 10_000), st.integers())
def test_a_failed_message_waits_longer_each_time_up_to_a_minute(deliveries: int, seed: int) -> None:
    longest = min(NACK_MOST_S, 0.5 * 2.0 ** min(max(deliveries, 1) - 1, 30))
    assert longest / 2 <= nack_delay_s(deliveries, random.Random(seed)) <= longest


async def test_a_missing_node_is_waited_for_however_long() -> None:
    clock = Clock()
    away = [Unavailable("x"), Unknown("x"), Paused("x")] * 100
    assert await steady(Script(*away, ["message"]), clock, random.Random(1))() == ["message"]
    assert len(clock.pauses) == 300 and max(clock.pauses) <= 5.0 and min(clock.pauses) > 0


async def test_what_waiting_cannot_mend_is_raised() -> None:
    clock = Clock()
    with pytest.raises(NotFound):
        await steady(Script(Unavailable("x"), NotFound("x")), clock, random.Random(1))()
    assert len(clock.pauses) == 1


async def test_a_long_poll_that_ends_at_once_with_nothing_is_not_repeated_at_once() -> None:
    clock = Clock()
    assert await steady(Script([]), clock, random.Random(1), wait_s=20.0)() == []
    assert len(clock.pauses) == 1
    assert await steady(Script(["message"]), clock, random.Random(1), wait_s=20.0)() == ["message"]
    assert len(clock.pauses) == 1


@given(st.lists(st.integers(0, 50), min_size=1))
def test_acks_are_merged_into_ranges(indexes: list[int]) -> None:
    ranges = ranges_of(indexes)
    covered = [index for offset, count in ranges for index in range(offset, offset + count)]
    assert covered == sorted(set(indexes))
    assert all(one[0] + one[1] < two[0] for one, two in itertools.pairwise(ranges))


def test_a_whole_parcel_is_one_range() -> None:
    assert ranges_of(list(range(1_000))) == [(0, 1_000)]
    assert ranges_of([7]) == [(7, 1)]


async def test_a_client_that_is_closed_is_waited_for_by_nobody() -> None:
    service = MemoryService()
    patient = PatientService(service, Patience(), RealClock(), random.Random(1))
    client = AsyncClient[bytes](patient)
    await client.create_queue("jobs")
    await client.close()
    service.fails = Unavailable("this client is closed")
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable, match="closed"):
            await client.consume("jobs", asyncio.sleep)
        with pytest.raises(Unavailable, match="closed"):
            await anext(client.messages("jobs"))


async def test_a_handler_whose_own_work_was_cancelled_has_failed() -> None:
    service = MemoryService()
    client = AsyncClient[bytes](PatientService(service, Patience(), RealClock(), random.Random(1)))
    await client.create_queue("jobs")
    await client.put("jobs", b"x")

    async def handle(message: object) -> None:
        raise asyncio.CancelledError

    assert await client.consume("jobs", handle, count=1) == 0
    (item,) = service.nacked
    assert item.delay_s is not None and item.delay_s > 0


async def test_what_a_loop_over_messages_fetched_and_did_not_hand_out_goes_back() -> None:
    service = MemoryService()
    client = AsyncClient[bytes](PatientService(service, Patience(), RealClock(), random.Random(1)))
    await client.create_queue("jobs")
    await client.put_many("jobs", [b"x"] * 5)
    async with aclosing(client.messages("jobs", count=5)) as messages:
        await (await anext(messages)).ack()
    await client.close()
    assert len(service.nacked) == 4


@pytest.mark.parametrize("how", ["broken off", "still held"])
async def test_what_a_loop_that_nobody_closed_had_fetched_goes_back_with_the_client(how: str) -> None:
    service = MemoryService()
    async with AsyncClient[bytes](PatientService(service, Patience(), RealClock(), random.Random(1))) as client:
        await client.create_queue("jobs")
        await client.put_many("jobs", [b"x"] * 5)
        messages = client.messages("jobs", count=5)
        async for _ in messages:
            break
        if how == "broken off":
            del messages  # asyncio hears of it, and ends it a turn later
    assert len(service.nacked) == 4


async def test_what_a_loop_that_nobody_closed_had_fetched_goes_back_once() -> None:
    service = MemoryService()
    client = AsyncClient[bytes](PatientService(service, Patience(), RealClock(), random.Random(1)))
    await client.create_queue("jobs")
    await client.put_many("jobs", [b"x"] * 5)
    messages = client.messages("jobs", count=5)
    await anext(messages)
    await client.close()
    await messages.aclose()
    assert len(service.nacked) == 4


@pytest.mark.parametrize("how", ["cancelled", "stopped", "gave up late"])
async def test_what_is_taken_as_the_loop_ends_goes_back(how: str) -> None:
    service = MemoryService()
    client = AsyncClient[bytes](PatientService(service, Patience(), RealClock(), random.Random(1)))
    await client.create_queue("jobs")
    await client.put("jobs", b"x")
    stop, taken, arrives = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def take(count: int, wait_s: float, visibility_s: float) -> list[AsyncMessage[bytes]]:
        found = await client.get("jobs", count)
        taken.set()
        if how == "cancelled":
            running.cancel()  # as the answer comes
            return found
        with contextlib.suppress(*([asyncio.CancelledError] if how == "gave up late" else [])):
            await arrives.wait()
        return found

    async def handle(message: object) -> None:
        raise AssertionError("nobody is to work on it")

    consumer = Consumer(client, take, handle, Plan("jobs"), RealClock(), random.Random(1))
    running = asyncio.create_task(consumer.run(stop))
    await taken.wait()
    stop.set()
    if how == "stopped":
        for _ in range(10):
            await asyncio.sleep(0)  # the loop has heard of it
        arrives.set()
    await asyncio.wait([running])
    for _ in range(10):
        await asyncio.sleep(0)
    await client.close()
    assert len(service.nacked) == 1


async def test_a_loop_is_idle_from_the_end_of_its_last_handler_on() -> None:
    class Still(Clock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.Event().wait()  # of the heartbeat, which has nothing to do here

    clock = Still()
    service = MemoryService()
    client = AsyncClient[bytes](PatientService(service, Patience(), RealClock(), random.Random(1)))
    await client.create_queue("jobs")
    await client.put("jobs", b"x")
    waits: list[float] = []

    async def take(count: int, wait_s: float, visibility_s: float) -> list[AsyncMessage[bytes]]:
        waits.append(wait_s)
        found = await client.get("jobs", count)
        clock.time_s += 0.0 if found else wait_s
        return found

    async def handle(message: object) -> None:
        clock.time_s += 100.0
        if len(waits) == 1:
            raise Failed("it comes again soon")

    consumer = Consumer(client, take, handle, Plan("jobs", idle_s=5.0), clock, random.Random(1))
    await consumer.run(asyncio.Event())
    assert waits == [5.0, 5.0]


async def test_a_heartbeat_that_is_slow_does_not_hold_up_the_next() -> None:
    clock = Clock()

    class Slow:
        beats: ClassVar[list[float]] = []

        async def extend_many(self, queue: str, messages: list[object], visibility_s: float) -> list[Done]:
            if len(self.beats) == 3:
                raise asyncio.CancelledError
            self.beats.append(clock.time_s)
            clock.time_s += 9.0  # of 10 until the next is due
            return [Done()] * len(messages)

    consumer = Consumer(Slow(), None, None, Plan("jobs"), clock, random.Random(1))  # type: ignore[arg-type]
    consumer._running[asyncio.create_task(asyncio.sleep(0))] = object()  # type: ignore[assignment]
    with pytest.raises(asyncio.CancelledError):
        await consumer._beat(30.0)
    assert Slow.beats == [10.0, 20.0, 30.0]


async def beaten(*answers: object) -> None:
    """The heart of a consumer that works on three messages hears these answers, and ends."""

    class Extends:
        async def extend_many(self, queue: str, messages: list[object], visibility_s: float) -> list[Done | Problem]:
            answer = answers[beats[0]] if beats[0] < len(answers) else asyncio.CancelledError()
            beats[0] += 1
            if isinstance(answer, BaseException):
                raise answer
            return answer

    beats = [0]
    consumer = Consumer(Extends(), None, None, Plan("jobs"), Clock(), random.Random(1))  # type: ignore[arg-type]
    tasks = [asyncio.create_task(asyncio.sleep(0)) for _ in range(3)]
    consumer._running.update((task, f"m{number}") for number, task in enumerate(tasks))  # type: ignore[misc]
    with pytest.raises(asyncio.CancelledError):
        await consumer._beat(30.0)


async def test_a_heartbeat_that_fails_says_why_for_each_message(caplog: pytest.LogCaptureFixture) -> None:
    full, away = Problem("full", "the disk is full"), Problem("unavailable", "no node")
    await beaten(
        TimeoutError(), Unavailable("the node is away"), [full, away, full], [Done(), Problem("stale", "x"), full]
    )
    assert [record.getMessage() for record in caplog.records] == [
        "heartbeat of 3 messages: no answer in time",
        "heartbeat of 3 messages: the node is away",
        "heartbeat of 2 messages: the disk is full",
        "heartbeat of 1 messages: no node",
        "'m1' is no longer ours; its handler goes on, others may get it too",
        "heartbeat of 1 messages: the disk is full",
    ]


async def test_a_heart_that_dies_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryService):
        async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
            raise ValueError("a bug")

    client = AsyncClient[bytes](PatientService(Broken(), Patience(), RealClock(), random.Random(1)))
    await client.create_queue("jobs")
    await client.put("jobs", b"x")

    async def handle(message: object) -> None:
        async with asyncio.timeout(10):
            while not caplog.records:
                await asyncio.sleep(0.005)

    assert await client.consume("jobs", handle, count=1, visibility_s=0.1) == 1
    (record,) = caplog.records
    assert record.getMessage().startswith("heartbeats have ended") and record.exc_info is not None
