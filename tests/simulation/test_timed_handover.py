"""Timed queues: what a holder leaves to the next one, told by hand in a simulated world."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.simulation.timed_stage import KeptBack, Stage, told

from capellini.model.errors import Unavailable, Unknown
from capellini.model.message import Entry, NewMessage
from capellini.model.service import Done, NackItem, Problem, Put
from capellini.queues.timed import committing, putting
from capellini.queues.timed.holder import Holder
from capellini.queues.timed.horizon import read_shard
from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.positions import parse_id, position_of, ticks_of_ms
from capellini.queues.timed.rows import mark_row, partition_of
from capellini.store.interface import Slice
from capellini.store.schema import TIMED_PARTS, TIMED_RECORDS, TIMED_ROWS


def test_an_ack_that_was_confirmed_outlives_its_holder() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        for body in (b"one", b"two"):
            await stage.put(first, body)
        deliveries = [*await stage.get(first)]
        while len(deliveries) < 2:
            deliveries += await stage.get(first)
        assert await stage.do(first, first.broker.ack("q", [deliveries[0].receipt])) == [Done()]
        stage.nodes.crash(cast(Any, first))
        second = await stage.held()
        (again,) = await stage.get(second)
        assert again.id == deliveries[1].id
        assert await stage.get(second) == []

    told(story, nodes=2)


def test_the_delay_of_a_nack_outlives_its_holder() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        await stage.put(first)
        (delivery,) = await stage.get(first)
        nacked_s = stage.world.loop.time()
        (done,) = await stage.do(first, first.broker.nack("q", [NackItem(delivery.receipt, 25.0)]))
        assert isinstance(done, Done)
        stage.nodes.crash(cast(Any, first))
        second = await stage.held()
        (again,) = await stage.get(second, 40.0)
        assert again.deliveries == 2 and stage.world.loop.time() >= nacked_s + 25.0

    told(story, nodes=2)


def test_a_dead_letter_on_its_way_is_carried_on_by_the_next_holder() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        hangs = asyncio.Event()

        async def never(target: str, key: str, entry: Entry) -> None:
            hangs.set()
            await asyncio.sleep(1_000.0)

        first.keeper._put_moved = never
        await stage.put(first)
        (delivery,) = await stage.get(first)
        await stage.do(first, first.broker.nack("q", [NackItem(delivery.receipt, 0.0)]))
        await stage.until(hangs.is_set)
        stage.nodes.crash(cast(Any, first))
        second = await stage.held()
        await stage.until(lambda: stage.guard("dead letter moved") == 1)
        assert stage.guard("move resumed") == 1
        (letter,) = await stage.get(second, 10.0, "dead")
        assert letter.body == b"m"
        assert await stage.get(second) == []

    told(story, nodes=2, dead_letters="dead", delivery_limit=1)


def test_a_burial_that_its_holder_could_not_write_down_is_left_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()

        async def away(*args: Any) -> None:
            raise Unavailable("the store is away")

        await stage.put(first)
        (delivery,) = await stage.get(first)
        with monkeypatch.context() as patch:
            patch.setattr(committing, "write_record", away)
            await stage.do(first, first.broker.nack("q", [NackItem(delivery.receipt, 0.0)]))
            await asyncio.sleep(6.0)
            first.keeper.emergency_stop("told to")
            await stage.until(lambda: stage.guard("background work failed") == 1)
        await stage.held()
        (again,) = await stage.get(stage.living[0], 10.0)
        assert again.id == delivery.id

    told(story, dead_letters="dead", delivery_limit=1)


def test_a_row_that_is_gone_does_not_stop_the_next_holder() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        first.keeper.snapshot_bytes = 1
        queue = await stage.queue(first)
        queue.place.snapshot_bytes = 1
        id = await stage.put(first)
        (delivery,) = await stage.get(first)
        await stage.put(first, b"other")
        (other,) = await stage.get(first)
        await stage.do(first, first.broker.ack("q", [other.receipt]))  # and a snapshot, in which the first is open
        await asyncio.sleep(1.0)
        store = first.client.store
        await stage.do(first, store.drop(TIMED_ROWS, partition_of(queue.place, parse_id(id))))
        stage.nodes.crash(cast(Any, first))
        second = await stage.held()
        assert stage.guard("unfinished row is gone") >= 1
        await stage.put(second, b"next")
        assert [one.body for one in await stage.get(second)] == [b"next"]
        assert delivery.id == id

    told(story, nodes=2, granularity="day")


def test_a_part_that_an_earlier_holder_finished_is_dropped_by_the_next() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        queue = await stage.queue(first)
        queue.place.snapshot_bytes = 1
        id = await stage.put(first)
        (delivery,) = await stage.get(first)
        assert await stage.do(first, queue.ack([delivery.receipt])) == [Done()]
        await asyncio.sleep(1.0)
        stage.nodes.crash(cast(Any, first))
        second = await stage.held()
        await asyncio.sleep(150.0)
        page = await stage.do(
            second, second.client.store.read(Slice(TIMED_ROWS, partition_of(queue.place, parse_id(id))))
        )
        assert page.rows == []

    told(story, nodes=2, granularity="minute")


@pytest.mark.parametrize("at_the_holder", [True, False])
def test_what_comes_into_a_part_that_was_read_before_is_dropped(at_the_holder: bool) -> None:
    async def story(stage: Stage) -> None:
        holder = await stage.held()
        putter = holder if at_the_holder else next(node for node in stage.living if node is not holder)
        place = (await stage.queue(putter)).place
        kept = KeptBack(putter, lambda batch: batch.table in (TIMED_ROWS, TIMED_PARTS))
        (answer,) = await stage.do(putter, putter.broker.put("q", [NewMessage(b"m", key="k")]))
        assert isinstance(answer, Problem) and answer.error == "unknown"
        await asyncio.sleep(150.0)
        kept.no_more()
        place.listed.clear()
        assert await stage.put(putter, key="k")
        assert stage.guard("row of an id without its key marked") == 1
        await asyncio.sleep(5.0)
        assert [one.body for one in await stage.get(holder)] == [b"m"]
        parts = {key[2] for table, key in stage.world.partitions if table == TIMED_ROWS.name and key[0] == "q"}
        assert len(parts) > 1
        for part in sorted(map(str, parts))[:-1]:
            bounds = Slice(TIMED_ROWS, (*place.partition, part, 0))
            assert (await stage.do(holder, place.store.read(bounds))).rows == []

    told(story, nodes=2, granularity="minute")


def test_a_part_is_kept_while_the_cancel_of_a_message_in_it_is_not_durable() -> None:
    """Refused for want of records, it must be delivered by the next holder."""

    async def story(stage: Stage) -> None:
        node = await stage.held()
        place = (await stage.queue(node)).place
        id = parse_id(await stage.put(node, delay_s=5.0))
        (held,) = [holders[0] for (name, _), holders in node.keeper._holders.items() if name == "q"]
        held.judging.ahead.add(id)  # as a cancel does that came between the horizon and the reading
        held.judging.tentative.add(id)
        await asyncio.sleep(200.0)
        bounds = Slice(TIMED_ROWS, partition_of(place, id))
        assert len((await stage.do(node, place.store.read(bounds))).rows) == 1
        held.judging.finished_ahead(id, (id, 0))
        await asyncio.sleep(30.0)
        assert (await stage.do(node, place.store.read(bounds))).rows == []

    told(story, granularity="minute")


def test_the_records_of_an_earlier_holder_are_dropped_by_the_next() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        queue = await stage.queue(first)
        await stage.put(first)
        (delivery,) = await stage.get(first)
        assert await stage.do(first, queue.ack([delivery.receipt])) == [Done()]
        stage.nodes.crash(cast(Any, first))
        second = await stage.held()
        await asyncio.sleep(1.0)
        kept = []
        for row in await stage.do(second, read_shard(queue.place, 0, 10)):
            of = (*queue.place.partition, 0, row.epoch, row.run)
            kept.append(len((await stage.do(second, second.client.store.read(Slice(TIMED_RECORDS, of)))).rows))
        assert len(kept) == 2 and kept[0] and not kept[1]  # the latest first

    told(story, nodes=2)


STORIES = {
    "dead_letter_not_marked_as_moving": test_a_dead_letter_on_its_way_is_carried_on_by_the_next_holder,
    "delay_of_a_nack_not_durable": test_the_delay_of_a_nack_outlives_its_holder,
    "parts_of_earlier_holders_not_dropped": test_a_part_that_an_earlier_holder_finished_is_dropped_by_the_next,
}


def test_a_shard_that_is_stopped_while_a_holder_begins_hands_out_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = asyncio.Event()

    async def slow(self: Holder) -> None:
        await goes_on.wait()

    async def story(stage: Stage) -> None:
        first = await stage.held()
        await stage.put(first)
        (other,) = [node for node in stage.living if node is not first]
        monkeypatch.setattr(Holder, "_resume", slow)  # what it knows of the operator's word it has read before
        stage.nodes.crash(cast(Any, first))
        await stage.until(lambda: any(name == "q" and held for (name, _), held in other.keeper._holders.items()))
        await asyncio.sleep(2.0)
        await stage.do(other, other.broker.halt("q", 0, True))
        goes_on.set()
        await stage.held()
        assert await stage.get(other) == []
        assert (await stage.do(other, other.broker.halt("q", 0, False))).state == "started"
        assert len(await stage.get(other)) == 1

    told(story, nodes=2)


def test_a_part_is_on_the_list_before_anything_is_written_into_it() -> None:
    async def story(stage: Stage) -> None:
        node = await stage.held()
        place = (await stage.queue(node)).place
        kept = KeptBack(node, lambda batch: batch.table is TIMED_PARTS)
        far_s = place.now_ms() / 1000 + 86_400.0
        put = node.client.spawn(node.broker.put("q", [NewMessage(b"m", delay_s=86_400.0)]))
        await stage.until(lambda: bool(kept.batches))
        await asyncio.sleep(1.0)
        position = position_of(ticks_of_ms(int(far_s * 1000)), 0, place.random)
        rows = Slice(TIMED_ROWS, partition_of(place, position), limit=5)
        assert not (await stage.do(node, place.store.read(rows))).rows  # if the node died now, they would stay
        void = node.client.spawn(mark_row(place, position, int(far_s * 1000), 1, cancelled=True))
        await asyncio.sleep(1.0)
        assert not (await stage.do(node, place.store.read(rows))).rows
        kept.no_more()
        (answer,) = await put
        assert isinstance(answer, Put) and len((await stage.do(node, place.store.read(rows))).rows) == 1
        with pytest.raises(Unknown):
            await void

    told(story)


def test_a_shard_is_on_the_list_before_anything_is_written_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        node = await stage.held()
        asked: list[str] = []

        async def lost(item: str) -> None:
            asked.append(item)
            raise Unknown("nobody knows")

        with monkeypatch.context() as patch:
            patch.setattr(node.keeper, "_register", lost)
            await stage.do(node, node.broker.create("other", "timed", {"shards": 1}))
            put = node.client.spawn(node.broker.put("other", [NewMessage(b"m")]))
            await stage.until(lambda: len(asked) > 1)
            assert not [key for table, key in stage.world.partitions if table == TIMED_ROWS.name and key[0] == "other"]
        assert isinstance((await put)[0], Put)
        (delivery,) = await stage.get(node, queue="other")
        assert delivery.body == b"m"

    told(story)


@pytest.mark.parametrize("purged", [False, True])
def test_a_put_whose_generation_ends_after_somebody_got_it_is_unknown_unless_it_is_put_again(
    monkeypatch: pytest.MonkeyPatch, purged: bool
) -> None:
    async def story(stage: Stage) -> None:
        node = await stage.held()
        over, read = asyncio.Event(), putting.read_horizon

        async def late(place: TimedPlace, shard: int) -> int | None:
            await over.wait()
            return await read(place, shard)

        monkeypatch.setattr(putting, "read_horizon", late)
        put = node.client.spawn(node.broker.put("q", [NewMessage(b"m"), NewMessage(b"too large" * 1_000_000)]))
        (delivery,) = await stage.get(node)
        assert delivery.body == b"m"
        await stage.do(node, node.broker.purge("q") if purged else node.broker.delete("q"))
        await stage.until(lambda: stage.guard("shard of an ended generation cleared") > 0)

        async def refused(*_: object) -> None:
            raise Unavailable("nothing can be written now")

        monkeypatch.setattr(putting, "write_rows", refused)
        over.set()
        if purged:
            results = await put
            assert [isinstance(result, Problem) and result.error for result in results] == ["unknown", "too_large"]
        else:
            with pytest.raises(Unknown, match="before the queue was deleted"):
                await put

    told(story)
