"""One lane, by which delayed messages enter the log: each step of it may fail, and what it took enters once."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import pytest
from tests.unit.delayed_world import delayed_world

from capellini.model import chunks
from capellini.model.errors import Conflict, StoreError, Unavailable, Unknown
from capellini.model.log import Appended
from capellini.model.message import Delivery
from capellini.model.service import Done, Problem
from capellini.queues.log.lanes import NOWHERE, Lane, Overtaken, batches, producer_of, read_lanes
from capellini.queues.log.place import LogPlace
from capellini.queues.log.queue import STALE
from capellini.queues.log.sequences import bind, read_bound
from capellini.queues.timed.positions import id_text, position_of, ticks_of_ms
from capellini.store.simulation.loop import run


class Waiting:
    """The timed queue and the log of a lane, in memory: hands out what is not acked, and takes each chunk once."""

    def __init__(self, place: LogPlace, count: int) -> None:
        self.place = place
        now_ms, shard = place.now_ms(), 0
        ids = [id_text(position_of(ticks_of_ms(now_ms + at), shard, random.Random(at))) for at in range(count)]
        self.open = {id: f"body {at}".encode() for at, id in enumerate(ids)}
        self.entered: list[bytes] = []
        self.chunks: dict[bytes, int] = {}  # producer: its last sequence
        self.forgotten: set[bytes] = set()
        self.fail = ""  # the step that fails next: append (not done), answer (done, and lost), ack (not done)

    def lane(self) -> Lane:
        return Lane(self.place, 0, self.append, self.ack, self.cancel)

    def take(self) -> list[Delivery]:
        return [Delivery(id, id, body, {}, 0.0, 1, 0.0) for id, body in self.open.items()]

    async def carry(self, lane: Lane) -> None:
        await lane.know()
        assert lane.known is not None
        await lane.carry(self.take(), lane.known)

    async def append(self, chunk: bytes) -> Appended:
        head = chunks.head_of(chunk)
        if self.fail == "append":
            self.fail = ""
            raise Unavailable("the log is away")
        if head.producer in self.forgotten:
            raise Conflict("this producer was silent for too long")
        if head.sequence == self.chunks.get(head.producer, 0) + 1:
            self.chunks[head.producer] = head.sequence
            self.entered += chunks.bodies_of(chunk, head)
        if self.fail == "answer":
            self.fail = ""
            raise Unknown("the answer was lost")
        return Appended("extent", 0, head.count)

    async def ack(self, receipts: Sequence[str]) -> list[Done | Problem]:
        if self.fail == "ack":
            self.fail = ""
            return [Problem("unavailable", "the holder is away")] * len(receipts)
        return [Done() if self.open.pop(one, None) is not None else STALE for one in receipts]

    async def cancel(self, ids: Sequence[str]) -> list[Done | Problem]:
        gone = Problem("not_found", "there is no such message")
        return [Done() if self.open.pop(one, None) is not None else gone for one in ids]


def _with_lane(count: int, work: Callable[[Waiting], Coroutine[Any, Any, None]]) -> None:
    async def all_of_it() -> None:
        _, nodes = await delayed_world()
        place = (await nodes["a"].queue()).place
        waiting = Waiting(place, count)
        await work(waiting)
        assert sorted(waiting.entered) == sorted(f"body {at}".encode() for at in range(count))
        assert waiting.open == {}

    run(all_of_it(), 1)


@pytest.mark.parametrize("step", ["append", "answer", "ack"])
def test_whoever_comes_after_a_crash_goes_on_where_it_was(step: str) -> None:
    async def work(waiting: Waiting) -> None:
        waiting.fail = step
        if step == "ack":
            await waiting.carry(waiting.lane())
        else:
            with pytest.raises(StoreError):
                await waiting.carry(waiting.lane())
        assert len(waiting.open) == 7
        await waiting.carry(waiting.lane())  # another node's: it knows the row alone

    _with_lane(7, work)


@pytest.mark.parametrize("step", ["append", "answer", "ack"])
def test_the_same_lane_goes_on_after_a_failure(step: str) -> None:
    async def work(waiting: Waiting) -> None:
        lane = waiting.lane()
        waiting.fail = step
        with suppress(StoreError):
            await waiting.carry(lane)
        await waiting.carry(lane)
        await lane.rest()
        assert lane.rests

    _with_lane(7, work)


def test_what_was_taken_before_another_moved_it_is_not_moved_again() -> None:
    async def work(waiting: Waiting) -> None:
        slow, other = waiting.lane(), waiting.lane()
        await slow.know()
        taken, known = waiting.take(), slow.known
        await waiting.carry(other)
        await other.rest()  # it has forgotten all ids
        assert known is not None
        with pytest.raises(Overtaken):
            await slow.carry(taken, known)
        await slow.know()  # what was taken before it knew the row must not be moved either
        with pytest.raises(Overtaken):
            await slow.carry(taken, known)

    _with_lane(7, work)


def test_a_chunk_goes_under_a_new_producer_when_the_log_forgot_the_old_one() -> None:
    async def work(waiting: Waiting) -> None:
        old = producer_of(0, 0)
        waiting.forgotten.add(old)
        seen = await read_bound(waiting.place, old)
        await waiting.carry(waiting.lane())
        assert waiting.chunks == {producer_of(0, 1): 1}
        assert (await read_bound(waiting.place, old)).extent == NOWHERE
        assert not await bind(waiting.place, old, seen, "elsewhere", 0)  # who was about to is refused

    _with_lane(7, work)


@pytest.mark.parametrize("knew_the_row_before", [False, True])
def test_a_lane_that_is_settled_has_nothing_in_hand_and_keeps_what_is_not_acked(knew_the_row_before: bool) -> None:
    """By whoever is about to drop an extent: perhaps a node that knows the row as it was long ago."""

    async def work(waiting: Waiting) -> None:
        other = waiting.lane()
        if knew_the_row_before:
            await other.know()
        waiting.fail = "answer"
        with pytest.raises(Unknown):
            await waiting.carry(waiting.lane())
        (row,) = (await read_lanes(waiting.place)).values()
        await other.settle(row)
        (row,) = (await read_lanes(waiting.place)).values()
        assert (row.chunk, len(row.ids)) == (b"", 7)
        await waiting.carry(waiting.lane())

    _with_lane(7, work)


def test_batches_are_bounded_in_messages_and_bytes() -> None:
    def message(size: int) -> Delivery:
        return Delivery("", "", b"x" * size, {}, 0.0, 1, 0.0)

    assert [len(batch) for batch in batches([message(10)] * 2_500)] == [1_000, 1_000, 500]
    assert [len(batch) for batch in batches([message(100_000)] * 5)] == [2, 2, 1]
    assert [len(batch) for batch in batches([message(4_000_000)] * 2)] == [1, 1]
