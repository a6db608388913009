"""Cancels and moves that meet each other, second copies, lost answers and takeovers: told by hand."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.simulation.timed_stage import KeptBack, Stage, told

from capellini.model.errors import Unavailable
from capellini.model.message import Entry, NewMessage
from capellini.model.service import Done, NackItem, Problem
from capellini.model.timed import MoveItem, Scheduled
from capellini.proof.timed_nodes import TimedNode
from capellini.queues.timed import holder, judging, keyed
from capellini.queues.timed.keyed import CLAIMED, key_cell
from capellini.queues.timed.positions import id_text, parse_id, part_of, position_of, ticks_of
from capellini.queues.timed.putting import all_of
from capellini.queues.timed.queue import TimedQueue
from capellini.queues.timed.rows import TimedRow, write_rows
from capellini.queues.work.place import Gone
from capellini.store.interface import Batch, Slice
from capellini.store.schema import TIMED_MOVED, TIMED_ROWS
from capellini.store.simulation.world import EPOCH_S


def at_ms(seconds: float) -> int:
    return int((EPOCH_S + seconds) * 1000)


def is_marker(batch: Batch) -> bool:
    return batch.table is TIMED_ROWS and any("moved_to" in values for _, values in batch.rows)


def is_moved_row(batch: Batch) -> bool:
    return batch.table is TIMED_ROWS and any("moved_from" in values for _, values in batch.rows)


async def move(stage: Stage, node: TimedNode, id: str, seconds: float) -> Done | Problem:
    queue = await stage.queue(node)
    (result,) = await stage.do(node, queue.move([MoveItem(id, at_ms(seconds))]))
    assert isinstance(result, Done | Problem)
    return result


async def moved_unknown(stage: Stage, node: TimedNode, id: str, seconds: float, kept: KeptBack) -> None:
    result = await move(stage, node, id, seconds)
    kept.no_more()
    assert isinstance(result, Problem) and result.error == "unknown"


async def cancelled(stage: Stage, node: TimedNode, id: str) -> str:
    """Empty: it is."""
    queue = await stage.queue(node)
    (result,) = await stage.do(node, queue.cancel([id]))
    return result.error if isinstance(result, Problem) else ""


async def all_until(stage: Stage, node: TimedNode, seconds: float) -> list[tuple[str, float]]:
    """What comes, acked at once, and when."""
    found: list[tuple[str, float]] = []
    while (left_s := seconds - stage.world.loop.time()) > 0:
        deliveries = await stage.get(node, min(left_s, 20.0))
        if deliveries:
            found += [(one.id, stage.world.loop.time()) for one in deliveries]
            await stage.do(node, node.broker.ack("q", [one.receipt for one in deliveries]))
    return found


async def once_until(stage: Stage, node: TimedNode, seconds: float) -> tuple[str, float]:
    found = await all_until(stage, node, seconds)
    assert len(found) == 1, found
    return found[0]


def test_a_cancel_is_final_though_the_row_of_an_earlier_move_lands_later() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        id = await stage.put(node, delay_s=100.0)
        kept = KeptBack(node, is_moved_row)
        await moved_unknown(stage, node, id, 50.0, kept)
        assert await cancelled(stage, node, id) == ""
        await kept.land(node)
        assert await all_until(stage, node, 130.0) == []

    told(story)


def test_a_cancel_is_final_though_the_marker_of_an_earlier_move_lands_later() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        id = await stage.put(node, delay_s=60.0)
        kept = KeptBack(node, is_marker)
        await moved_unknown(stage, node, id, 90.0, kept)
        assert await cancelled(stage, node, id) == ""
        await kept.land(node)
        assert await all_until(stage, node, 130.0) == []

    told(story)


def test_a_move_begun_to_earlier_and_then_moved_again_leaves_one_message() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        id = await stage.put(node, delay_s=100.0)
        kept = KeptBack(node, is_marker)  # the row at 50 is there, its origin is not marked
        await moved_unknown(stage, node, id, 50.0, kept)
        assert isinstance(await move(stage, node, id, 70.0), Done)
        same, when_s = await once_until(stage, node, 160.0)
        assert same == id and 70.0 <= when_s < 72.0

    told(story)


def test_a_stray_row_of_a_move_that_was_made_anew_is_void() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        id = await stage.put(node, delay_s=100.0)
        kept = KeptBack(node, is_moved_row)
        await moved_unknown(stage, node, id, 50.0, kept)
        assert isinstance(await move(stage, node, id, 120.0), Done)
        await kept.land(node)
        same, when_s = await once_until(stage, node, 160.0)
        assert same == id and 120.0 <= when_s < 122.0

    told(story)


def test_a_marker_where_nobody_reads_any_more_is_dropped_with_its_part() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        place = (await stage.queue(node)).place
        id = await stage.put(node, delay_s=600.0)
        kept = KeptBack(node, is_moved_row)
        await moved_unknown(stage, node, id, 100.0, kept)
        await asyncio.sleep(200.0)
        assert await cancelled(stage, node, id) == "" and stage.guard("row of a move made void") == 1
        await asyncio.sleep(10.0)
        parts = [key for table, key in stage.world.partitions if table == TIMED_ROWS.name and key[0] == "q"]
        rows = {key[2]: (await stage.do(node, place.store.read(Slice(TIMED_ROWS, key)))).rows for key in parts}
        assert [part for part, found in rows.items() if found] == [part_of(ticks_of(parse_id(id)), "minute")]

    told(story, granularity="minute")


@pytest.mark.parametrize("then", ["cancel", "move", "nothing"])
def test_a_row_of_a_move_that_landed_behind_the_reader_is_not_where_the_message_is(then: str) -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        id = await stage.put(node, delay_s=600.0)
        kept = KeptBack(node, is_moved_row)
        await moved_unknown(stage, node, id, 100.0, kept)
        await asyncio.sleep(200.0)
        await kept.land(node)
        if then == "cancel":
            assert await cancelled(stage, node, id) == ""
            assert await all_until(stage, node, 700.0) == []
            return
        if then == "move":
            assert isinstance(await move(stage, node, id, 400.0), Done)
        same, when_s = await once_until(stage, node, 700.0)
        assert same == id and abs(when_s - (400.0 if then == "move" else 600.0)) < 2.0

    told(story)


def test_a_stray_marker_of_a_move_that_was_made_anew_leads_nowhere() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        id = await stage.put(node, delay_s=60.0)
        kept = KeptBack(node, is_marker)
        await moved_unknown(stage, node, id, 80.0, kept)
        assert isinstance(await move(stage, node, id, 120.0), Done)
        await kept.land(node)
        same, when_s = await once_until(stage, node, 160.0)
        assert same == id and 120.0 <= when_s < 122.0

    told(story)


def test_moves_of_one_message_at_the_same_time_leave_one_message() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        id = await stage.put(node, delay_s=60.0)
        items = [MoveItem(id, at_ms(seconds)) for seconds in (50.0, 120.0, 90.0)]
        assert all(isinstance(one, Done) for one in await stage.do(node, queue.move(items)))
        same, when_s = await once_until(stage, node, 160.0)
        assert same == id and 90.0 <= when_s < 92.0

    told(story)


def test_moves_that_failed_one_after_the_other_lose_nothing() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        id = await stage.put(node, delay_s=60.0)
        first = KeptBack(node, is_marker)
        await moved_unknown(stage, node, id, 90.0, first)
        second = KeptBack(node, lambda batch: batch.table is TIMED_MOVED)
        await moved_unknown(stage, node, id, 80.0, second)
        await first.land(node)
        same, _ = await once_until(stage, node, 160.0)
        assert same == id

    told(story)


def test_a_move_from_the_desk_that_is_noted_is_not_told_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease ends when the new row is written: the next holder finishes the move."""

    async def story(stage: Stage) -> None:
        node = stage.living[0]
        id = await stage.put(node, delay_s=2.0)
        await asyncio.sleep(1.5)  # it is on the desk

        async def lost(*_: Any) -> None:
            raise Unavailable("the lease is lost")

        with monkeypatch.context() as patch:
            patch.setattr(holder.Holder, "finish", lost)
            result = await move(stage, node, id, 20.0)
        assert isinstance(result, Problem) and result.error == "unknown"

    told(story)


def test_a_move_whose_row_was_not_written_can_be_cancelled_by_the_next_holder() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        id = await stage.put(first, delay_s=60.0)
        kept = KeptBack(first, is_moved_row)
        first.client.spawn(move(stage, first, id, 90.0))
        await stage.until(lambda: bool(kept.batches))
        stage.nodes.crash(cast(Any, first))
        second = await stage.held()
        assert await cancelled(stage, second, id) == ""
        assert await all_until(stage, second, 130.0) == []

    told(story, nodes=2)


def test_a_message_that_was_moved_after_a_move_that_failed_is_found_by_its_id() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        ids = [await stage.put(node, delay_s=100.0) for _ in range(8)]  # by chance, the stray place would win or not
        for id in ids:
            await moved_unknown(stage, node, id, 70.0, KeptBack(node, is_moved_row))
        for id in ids:
            assert isinstance(await move(stage, node, id, 90.0), Done)
        assert [await cancelled(stage, node, id) for id in ids] == [""] * 8
        assert await all_until(stage, node, 140.0) == []

    told(story)


def test_a_move_from_the_desk_that_the_next_holder_finishes_is_found_by_its_id() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        id = await stage.put(first)
        (delivery,) = await stage.get(first)
        await stage.do(first, first.broker.nack("q", [NackItem(delivery.receipt, 30.0)]))
        kept = KeptBack(first, lambda batch: batch.table is TIMED_MOVED)
        first.client.spawn(move(stage, first, id, 200.0))
        await stage.until(lambda: bool(kept.batches))
        stage.nodes.crash(cast(Any, first))
        second = await stage.held()
        await stage.until(lambda: stage.guard("move resumed") == 1)
        await asyncio.sleep(2.0)
        assert await cancelled(stage, second, id) == ""
        assert await all_until(stage, second, 230.0) == []

    told(story, nodes=2)


def test_a_takeover_that_is_tried_again_finishes_each_move_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        ids = [await stage.put(first, b"%d" % at) for at in range(2)]
        deliveries = [*await stage.get(first)]
        while len(deliveries) < 2:
            deliveries += await stage.get(first)
        await stage.do(first, first.broker.nack("q", [NackItem(one.receipt, 30.0) for one in deliveries]))
        kept = KeptBack(first, lambda batch: batch.table is TIMED_MOVED)
        for id in ids:
            first.client.spawn(move(stage, first, id, 200.0))
        await stage.until(lambda: len(kept.batches) == 2)
        read, reads = holder.read_row, 0

        async def once_away(*args: Any) -> TimedRow | None:
            nonlocal reads
            reads += 1
            if reads == 2:
                raise Unavailable("the store is away")
            return await read(*args)

        with monkeypatch.context() as patch:
            patch.setattr(holder, "read_row", once_away)
            stage.nodes.crash(cast(Any, first))
            second = await stage.held()
            await stage.until(lambda: stage.guard("move resumed") == 2)
            await asyncio.sleep(3.0)
        assert reads > 2 and not stage.guard(holder.FAILED)
        assert [await cancelled(stage, second, id) for id in ids] == ["", ""]

    told(story, nodes=2)


async def _row_nobody_read(stage: Stage, queue: TimedQueue, node: TimedNode) -> tuple[str, TimedRow]:
    """The first row of a put, which landed after its holder had read that far."""
    holder = queue.serving.held()[0]
    place, now_ms = queue.place, queue.place.now_ms()
    position = position_of(holder.published - 10, 0, place.random)
    row = TimedRow(position, position, 0, now_ms, now_ms, Entry(b"m"))
    await stage.until(lambda: holder.published <= holder._confirmed and holder.read.time >= position.time)
    await stage.do(node, write_rows(place, [row]))
    return id_text(position), row


def test_a_message_of_which_only_the_second_copy_is_ahead_can_be_cancelled() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        queue = await stage.queue(first)
        await asyncio.sleep(5.0)
        id, row = await _row_nobody_read(stage, queue, first)
        holder = queue.serving.held()[0]
        with holder.barred(position_of(holder.published + 1, 0, queue.place.random)):
            assert await stage.do(first, queue.putting.through([row])) == [None]
            assert stage.guard("put below the horizon written again") == 1
            assert await cancelled(stage, first, id) == ""
        assert await all_until(stage, first, stage.world.loop.time() + 10.0) == []
        stage.nodes.crash(cast(Any, first))
        second = await stage.held()
        assert await all_until(stage, second, stage.world.loop.time() + 10.0) == []

    told(story, nodes=2)


def test_a_message_that_is_moved_before_its_put_is_through_comes_once() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        now_ms = queue.place.now_ms()
        message = Scheduled(Entry(b"m"), now_ms + 20_000)
        (row,) = queue.putting.placed([message])
        await stage.do(node, write_rows(queue.place, [row]))  # its putter has not looked at the horizon yet
        id = id_text(row.id)
        assert [one.id for one in await stage.do(node, queue.peek(5))] == [id]
        assert isinstance(await move(stage, node, id, 60.0), Done)
        await stage.until(lambda: queue.serving.held()[0].read.time > row.position.time)
        assert await stage.do(node, queue.putting.through([row])) == [None]
        same, when_s = await once_until(stage, node, 100.0)
        assert same == id and 60.0 <= when_s < 62.0

    told(story)


def test_a_part_with_an_unfinished_message_is_kept_though_a_later_one_was_resumed_first() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        (await stage.queue(first)).place.snapshot_bytes = 1 << 20
        buried = asyncio.Event()

        async def never(target: str, key: str, entry: Entry) -> None:
            buried.set()
            await asyncio.sleep(10_000.0)

        for node in stage.living:
            node.keeper._put_moved = never
        left_s = 60.0 - (EPOCH_S + stage.world.loop.time()) % 60.0  # of this minute, the time part
        before = await stage.put(first, b"before", delay_s=left_s + 50.0)  # the last snapshot is of then
        early = await stage.put(first, b"early", delay_s=left_s + 58.0)
        late = await stage.put(first, b"late", delay_s=left_s + 62.0)
        found: list[str] = []
        while found != [before, early, late, late]:
            for one in await stage.get(first, 60.0):
                found.append(one.id)
                if one.id == before:
                    await stage.do(first, first.broker.ack("q", [one.receipt]))
                if one.id == late:
                    await stage.do(first, first.broker.nack("q", [NackItem(one.receipt, 0.0)]))
        await stage.until(buried.is_set)
        stage.nodes.crash(cast(Any, first))
        second = await stage.held()  # the late one is on its way to the dead letters, and waits there
        await asyncio.sleep(200.0)
        stage.nodes.crash(cast(Any, second))
        third = await stage.held()
        assert [one.id for one in await stage.get(third)] == [early]

    told(story, nodes=3, granularity="minute", dead_letters="dead", delivery_limit=2)


def test_acks_outlive_a_shard_that_could_not_be_given_up() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        await stage.put(node)
        (delivery,) = await stage.get(node)
        assert await stage.do(node, node.broker.ack("q", [delivery.receipt])) == [Done()]
        queue = await stage.queue(node)
        give_up, refused = node.keeper.assignments.give_up, 0

        async def away(item: str) -> bool:
            nonlocal refused
            if not refused:
                refused += 1
                raise Unavailable("the store is away")
            return await give_up(item)

        cast(Any, node.keeper.assignments).give_up = away
        queue.serving.held()[0].stop()  # as when it fails
        await stage.until(lambda: refused == 1)
        await stage.until(lambda: stage.holder() is None)
        await stage.held()
        assert await all_until(stage, node, stage.world.loop.time() + 20.0) == []

    told(story)


def test_a_row_that_its_key_did_not_name_stays_void_when_the_key_is_forgotten() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        queue = await stage.queue(first)
        queue.place.snapshot_bytes = 1 << 20  # few acks: no snapshot for their sake
        await stage.put(first, key="k")
        (delivery,) = await stage.get(first)
        assert await stage.do(first, queue.ack([delivery.receipt])) == [Done()]
        (row,) = queue.putting.placed([Scheduled(Entry(b"m"), 0, "key:k")])
        await stage.do(first, queue.putting.through([row]))  # an earlier try of that put, which landed late
        await stage.until(lambda: stage.guard("void row of a key passed over") == 1)
        await asyncio.sleep(70.0)
        stage.nodes.crash(cast(Any, first))
        second = await stage.held()
        assert await all_until(stage, second, stage.world.loop.time() + 10.0) == []

    told(story, nodes=2, window_s=60, granularity="day")


def test_a_row_whose_key_its_holder_pins_is_made_durable_before() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        (row,) = queue.putting.placed([Scheduled(Entry(b"m"), queue.place.now_ms() + 10_000, "key:k")])
        claimed = (CLAIMED, id_text(row.id))
        await stage.do(node, key_cell(queue.place, "key:k", 600).change(lambda now: (claimed, claimed)))
        await stage.do(node, write_rows(queue.place, [row]))  # as if only some replicas had it: its putter is gone
        written: list[Batch] = []
        KeptBack(node, lambda batch: written.append(batch) is not None)
        assert [one.id for one in await stage.get(node, 20.0)] == [id_text(row.id)]
        assert [key for batch in written if batch.table is TIMED_ROWS for key, _ in batch.rows] == [(row.position,)]

    told(story)


def test_a_message_moved_to_earlier_outlives_a_page_that_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page holds both its rows, and one behind them that could not be judged at first."""
    asked: list[str] = []
    accepted = judging.accepted

    async def not_at_first(place: Any, key: str, row: TimedRow) -> bool:
        asked.append(key)
        if len(asked) == 1:
            raise Unavailable("the store is away")
        return await accepted(place, key, row)

    async def story(stage: Stage) -> None:
        node = stage.living[0]
        monkeypatch.setattr(judging, "accepted", not_at_first)
        id = await stage.put(node, delay_s=30.0)
        behind = await stage.put(node, delay_s=30.1, key="k")
        assert isinstance(await move(stage, node, id, stage.world.loop.time() + 29.9), Done)
        found = await all_until(stage, node, 60.0)
        assert len(asked) == 2
        assert sorted(one for one, _ in found) == sorted([id, behind])

    told(story)


STORIES = {
    "changes_of_one_message_at_once": test_moves_of_one_message_at_the_same_time_leave_one_message,
    "lowest_message_is_the_one_that_came_first": (
        test_a_part_with_an_unfinished_message_is_kept_though_a_later_one_was_resumed_first
    ),
    "shard_worked_again_under_its_epoch": test_acks_outlive_a_shard_that_could_not_be_given_up,
    "what_a_move_left_is_not_settled": test_a_cancel_is_final_though_the_row_of_an_earlier_move_lands_later,
    "moved_row_remembered_before_its_page_is_judged": (
        test_a_message_moved_to_earlier_outlives_a_page_that_is_read_twice
    ),
}


def test_a_put_that_is_written_but_not_pinned_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> Any:
        raise Unavailable("the store is away")

    async def story(stage: Stage) -> None:
        node = stage.living[0]
        with monkeypatch.context() as patched:
            patched.setattr(keyed, "_pin", away)
            (answer,) = await stage.do(node, node.broker.put("q", [NewMessage(b"m", key="k")]))
        assert isinstance(answer, Problem) and answer.error == "unknown"
        assert len(await stage.get(node)) == 1

    told(story)


async def test_what_one_group_wrote_into_a_generation_that_is_over_was_sent() -> None:
    async def fine() -> None: ...

    async def over(sent: bool) -> None:
        gone = Gone("deleted")
        gone.sent = sent
        raise gone

    for work, sent in (
        ([fine(), over(False)], True),
        ([over(False), over(True)], True),
        ([over(False), over(False)], False),
    ):
        with pytest.raises(Gone) as raised:
            await all_of(work)
        assert raised.value.sent is sent
