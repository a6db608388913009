"""Requests that meet odd circumstances: ids that never were, lists full of what is cancelled, holders that hang, keys
that are forgotten. Told by hand."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest
from tests.simulation.timed_stage import Stage, told

from capellini.model.errors import Unavailable
from capellini.model.message import Entry, NewMessage
from capellini.model.service import Done, Put
from capellini.model.timed import MoveItem, Scheduled
from capellini.proof.timed_nodes import SimulatedPeers, TimedNode
from capellini.queues.timed import holder, rows, serving
from capellini.queues.timed.keyed import CLAIMED, key_cell
from capellini.queues.timed.positions import id_text, parse_id, position_of, shard_in, ticks_of_ms
from capellini.queues.timed.queue import TimedQueue
from capellini.store.interface import Page, Slice
from capellini.store.schema import TIMED_PARTS
from capellini.store.simulation.world import EPOCH_S

MOST_LATE_S = 2.0


def ms_in(stage: Stage, seconds: float) -> int:
    return int((EPOCH_S + stage.world.loop.time() + seconds) * 1000)


def test_an_id_of_a_shard_that_never_was_adds_no_shard() -> None:
    async def story(stage: Stage) -> None:
        first, second = stage.living
        for node in (first, second):
            queue = await stage.queue(node)
            for shard in (1, 7, 65_535):
                id = id_text(position_of(ticks_of_ms(ms_in(stage, 60.0)), shard, random.Random(1)))
                (answer,) = await stage.do(node, queue.cancel([id]))
                assert answer.error == "not_found"
        await asyncio.sleep(30.0)
        assert [view.shard for view in await stage.do(first, first.broker.shards("q"))] == [0]
        assert [view.shard for view in await stage.do(second, second.broker.shards("q"))] == [0]

    told(story, nodes=2)


async def scheduled(stage: Stage, node: TimedNode, count: int) -> list[str]:
    """Their ids, due a second apart from an hour ahead on."""
    messages = [NewMessage(b"%d" % at, delay_s=3_600.0 + at) for at in range(count)]
    answers = await stage.do(node, node.broker.put("q", messages))
    return [answer.id for answer in answers]


def test_a_list_goes_on_behind_what_is_cancelled() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        ids = await scheduled(stage, node, 300)
        await stage.do(node, queue.cancel(ids[:250]))
        found = await stage.do(node, queue.due_between(0, ms_in(stage, 86_400.0), 10))
        assert [one.id for one in found] == ids[250:260]
        last_ms = int(found[-1].due_at * 1000)
        found = await stage.do(node, queue.due_between(last_ms, ms_in(stage, 86_400.0), 100, ids[259]))
        assert [one.id for one in found] == ids[260:]

    told(story)


def test_a_list_that_would_be_cut_short_by_what_is_cancelled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        ids = await scheduled(stage, node, 300)
        await stage.do(node, queue.cancel(ids[:290]))
        with monkeypatch.context() as patch:
            patch.setattr(serving, "LISTED_ROWS", 200)
            with pytest.raises(Exception, match="begin the list later"):
                await stage.do(node, queue.due_between(0, ms_in(stage, 86_400.0), 5))
        assert len(await stage.do(node, queue.due_between(0, ms_in(stage, 86_400.0), 100))) == 10

    told(story)


def test_a_peek_goes_on_behind_what_was_due_before_its_put_or_was_moved() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        dues_ms = [ms_in(stage, seconds) for seconds in (-7_200.0, -3_600.0, 0.0, 3_600.0, 7_200.0, 10_800.0)]
        messages = [Scheduled(Entry(b"%d" % at), due_ms) for at, due_ms in enumerate(dues_ms)]
        ids = [answer.id for answer in await stage.do(node, queue.put(messages))]
        await stage.do(node, queue.move([MoveItem(ids[3], ms_in(stage, 9_000.0))]))
        await asyncio.sleep(3.0)
        seen: list[bytes] = []
        after = ""
        while found := await stage.do(node, queue.peek(1, after)):
            seen.append(found[0].body)
            after = found[0].id
            assert len(seen) <= len(ids)
        assert seen == [b"0", b"1", b"2", b"4", b"3", b"5"]

    told(story)


async def listed_in_pages(stage: Stage, node: TimedNode, count: int) -> list[bytes]:
    queue = await stage.queue(node)
    bodies: list[bytes] = []
    from_ms, after = 0, ""
    while found := await stage.do(node, queue.due_between(from_ms, ms_in(stage, 86_400.0), count, after)):
        bodies += [one.body for one in found]
        from_ms, after = round(found[-1].due_at * 1000), found[-1].id
        assert len(bodies) <= 1_000
    return bodies


def test_what_is_due_at_the_same_moment_is_listed_in_pages() -> None:
    """Put together, one by one, and moved there; asked at a node that holds some of it, and with others around it."""

    async def story(stage: Stage) -> None:
        first, second = await spread(stage)
        queue, due_ms = await stage.queue(first), ms_in(stage, 3_600.0)

        async def put(*messages: tuple[bytes, int]) -> list[str]:
            items = [Scheduled(Entry(body), due_ms) for body, due_ms in messages]
            return [answer.id for answer in await stage.do(first, queue.put(items))]

        await put(*[(b"batch %d" % at, due_ms) for at in range(40)])
        for at in range(40):
            await put((b"one %d" % at, due_ms))
        moved = await put(*[(b"moved %d" % at, due_ms + 60_000 + at) for at in range(40)])
        assert await stage.do(first, queue.move([MoveItem(id, due_ms) for id in moved])) == [Done(due_ms / 1000)] * 40
        await put((b"before", due_ms - 1), (b"after", due_ms + 1))
        for count in (7, 1):
            found = await listed_in_pages(stage, second, count)
            assert (found[0], found[-1], len(found), len(set(found))) == (b"before", b"after", 122, 122)

    told(story, nodes=2)


def test_a_list_has_no_more_bodies_than_it_shows() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        await stage.do(node, node.broker.put("q", [NewMessage(b"%d" % at) for at in range(50)]))
        await asyncio.sleep(3.0)
        listed = (await stage.queue(node)).serving.listed(0, 0, ms_in(stage, 86_400.0), 5)
        assert [one.body for one in (await stage.do(node, listed)).messages] == [b"%d" % at for at in range(5)]

    told(story)


def test_a_short_list_reads_no_further_into_the_list_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PARTS_PAGE", 4)

    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        hourly = [Scheduled(Entry(b"%d" % at), ms_in(stage, 86_400.0 + 3_600.0 * at)) for at in range(60)]
        await stage.do(node, queue.put(hourly))
        store: Any = node.client.store
        read, pages = store.read, 0

        async def counted(bounds: Slice) -> Page:
            nonlocal pages
            pages += bounds.table is TIMED_PARTS
            return cast(Page, await read(bounds))

        store.read = counted
        found = await stage.do(node, queue.due_between(0, serving.FAR_MS, 6))
        assert [one.body for one in found] == [b"%d" % at for at in range(6)] and pages == 2

    told(story)


class Hanging:
    """Questions of one kind to a node are answered only after a while."""

    def __init__(self, patch: pytest.MonkeyPatch, node: str, operation: str, seconds: float) -> None:
        call = SimulatedPeers.call

        async def late(self: Any, to: str, queue: str, asked: str, payload: bytes) -> bytes:
            answer = await call(self, to, queue, asked, payload)
            if (to, asked) == (node, operation):
                await self._client.clock.sleep(seconds)
            return answer

        patch.setattr(SimulatedPeers, "call", late)


async def spread(stage: Stage) -> tuple[TimedNode, TimedNode]:
    """Two nodes with shards of "q" each, and their queues opened."""
    first, second = stage.living
    await stage.do(first, first.broker.change("q", {"shards": 4}))
    await stage.until(lambda: {stage.holder(shard) for shard in range(4)} == {first, second}, 120.0)
    for node in (first, second):
        await stage.queue(node)
        await stage.get(node, 0.0)
    await asyncio.sleep(5.0)
    return first, second


async def put_into(stage: Stage, node: TimedNode, held_by: TimedNode) -> str:
    """Till one lies in a shard that this node holds; the others are acked."""
    while True:
        id = await stage.put(node)
        if stage.holder(shard_in(parse_id(id))) is held_by:
            return id
        for one in await stage.get(node):
            await stage.do(node, node.broker.ack("q", [one.receipt]))


async def ready_at_the_second(stage: Stage) -> tuple[TimedNode, TimedNode, str]:
    """Two nodes with shards, and a message that the second one can hand out."""
    first, second = await spread(stage)
    id = await put_into(stage, second, second)
    await asyncio.sleep(3.0)
    return first, second, id


def test_what_is_ready_here_does_not_wait_for_a_holder_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        first, second = await spread(stage)
        Hanging(monkeypatch, second.name, "take", 4.5)
        waits = asyncio.ensure_future(stage.get(first, 20.0))
        await asyncio.sleep(1.3)
        id = await put_into(stage, second, first)
        put_s = stage.world.loop.time()
        assert [one.id for one in await waits] == [id]
        assert stage.world.loop.time() - put_s < MOST_LATE_S
        assert stage.guard("holder hangs") >= 1

    told(story, nodes=2)


def test_what_a_late_answer_brings_goes_to_whoever_asks_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        first, second, id = await ready_at_the_second(stage)
        Hanging(monkeypatch, second.name, "take", 3.0)
        (delivery,) = await stage.get(first, 20.0)
        assert (delivery.id, delivery.deliveries) == (id, 1)
        assert await stage.do(first, first.broker.ack("q", [delivery.receipt])) != []

    told(story, nodes=2)


def test_what_a_late_answer_brings_is_given_back_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        first, second, id = await ready_at_the_second(stage)
        with monkeypatch.context() as patch:
            Hanging(patch, second.name, "take", 2.0)
            assert await stage.get(first, 0.0) == []
        await asyncio.sleep(6.0)
        (delivery,) = await stage.get(second, 0.0)  # well within the visibility of thirty seconds
        assert (delivery.id, delivery.deliveries) == (id, 2)

    told(story, nodes=2)


def test_shards_of_a_holder_that_hangs_are_shown_as_soon_as_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        first, second = stage.living
        await stage.do(first, first.broker.change("q", {"shards": 8}))
        await stage.until(lambda: all(stage.holder(shard) for shard in range(8)), 120.0)
        await asyncio.sleep(5.0)
        Hanging(monkeypatch, second.name, "view", 4.0)
        begun_s = stage.world.loop.time()
        views = await stage.do(first, first.broker.shards("q"))
        assert len(views) == 8
        assert stage.world.loop.time() - begun_s < 8.0

    told(story, nodes=2)


def test_a_shard_that_is_just_being_taken_is_not_called_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]

        async def not_yet(self: Any) -> None:
            raise Unavailable("the store is away")

        monkeypatch.setattr(holder.Holder, "_take_over", not_yet)
        await stage.do(node, node.broker.change("q", {"shards": 2}))
        await stage.until(lambda: ("q", 1) in node.keeper._holders and 1 in node.keeper._holders["q", 1])
        view = (await stage.do(node, node.broker.shards("q")))[1]
        assert (view.state, view.holder, view.suspicious) == ("nobody", node.name, "")

    told(story)


def test_an_id_that_a_key_named_once_stays_void_when_the_key_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder has no room, and so reads the void row only after the key's time is over."""

    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        monkeypatch.setattr(holder, "ROOM_ROWS", 1)
        monkeypatch.setattr(holder, "PAGE_BYTES", 1)  # from the second read on, one row each
        await stage.put(node, b"first")
        (delivery,) = await stage.get(node)
        await stage.do(node, node.broker.ack("q", [delivery.receipt]))
        for at in range(6):
            await stage.put(node, b"%d" % at, delay_s=2.9)
        void = await begun(stage, node, queue, b"keyed", 3.0)
        await asyncio.sleep(4.0)
        answer = (await stage.do(node, node.broker.put("q", [NewMessage(b"keyed", key="k")])))[0]
        assert isinstance(answer, Put) and not answer.duplicate
        assert answer.id != void
        await asyncio.sleep(90.0)  # more than the key is remembered for
        found: list[bytes] = []
        while deliveries := await stage.get(node, 10.0):
            found += [one.body for one in deliveries]
            await stage.do(node, node.broker.ack("q", [one.receipt for one in deliveries]))
        assert sorted(found) == [*[b"%d" % at for at in range(6)], b"keyed"]

    told(story, window_s=60.0)


def test_a_message_that_was_moved_before_its_put_was_through_is_that_put() -> None:
    """Somebody finds it in a list, moves it, and the putter tries again."""

    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        id = await begun(stage, node, queue, b"keyed", 20.0)
        due_ms = ms_in(stage, 60.0)
        assert await stage.do(node, queue.move([MoveItem(id, due_ms)])) == [Done(due_ms / 1000)]
        await asyncio.sleep(30.0)
        answer = (await stage.do(node, node.broker.put("q", [NewMessage(b"keyed", key="k")])))[0]
        assert answer == Put(id, duplicate=True)
        assert [one.id for one in await stage.get(node, 50.0)] == [id]
        assert await stage.get(node, 20.0) == []

    told(story)


async def begun(stage: Stage, node: TimedNode, queue: TimedQueue, body: bytes, delay_s: float) -> str:
    """A put under the key "k" that went no further than its row."""

    async def work() -> str:
        message = Scheduled(Entry(body), queue.place.now_ms() + int(delay_s * 1000), "key:k")
        (row,) = queue.putting.placed([message])
        mine = (CLAIMED, id_text(row.id))
        await key_cell(queue.place, "key:k", queue.place.options.window_s).change(lambda now: (mine, mine))
        await queue.putting.through([row])
        return mine[1]

    found: str = await stage.do(node, work())
    return found


@pytest.mark.parametrize(("first_s", "then_s"), [(400.0, 0.0), (400.0, 3.0), (3.0, 4_000.0)])
def test_a_key_used_again_with_another_due_keeps_no_due_of_before(first_s: float, then_s: float) -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        await begun(stage, node, queue, b"first", first_s)
        id = await stage.put(node, b"then", key="k", delay_s=then_s)
        await asyncio.sleep(5.0)
        (shard,) = await stage.do(node, node.broker.shards("q"))
        assert shard.horizon_at is not None and shard.horizon_at * 1000 < ms_in(stage, 60.0)
        assert shard.ready + shard.waiting == (then_s < 5.0)  # nothing is read long before it is due
        await asyncio.sleep(max(0.0, then_s - 5.0))
        (found,) = await stage.get(node)
        assert (found.id, found.body) == (id, b"then")
        await stage.do(node, node.broker.ack("q", [found.receipt]))
        await asyncio.sleep(max(0.0, first_s + 60.0 - then_s))
        assert await stage.get(node) == []  # though the key is forgotten by now

    told(story, window_s=60.0)


STORIES = {
    "holder_that_hangs_is_waited_for": test_what_is_ready_here_does_not_wait_for_a_holder_that_hangs,
    "void_row_not_marked": test_an_id_that_a_key_named_once_stays_void_when_the_key_is_forgotten,
}
