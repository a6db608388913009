"""Timed queues: what seeds reach seldom, told by hand in a simulated world."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, cast

import pytest
from tests.simulation.planting import Plant, planted
from tests.simulation.test_timed_changes import STORIES as CHANGES
from tests.simulation.test_timed_handover import STORIES as HANDOVER
from tests.simulation.test_timed_requests import STORIES as REQUESTS
from tests.simulation.timed_plants import BY_HAND, plants
from tests.simulation.timed_stage import KeptBack, Stage, told

from capellini.model.errors import Unavailable, Unknown
from capellini.model.message import Entry
from capellini.model.service import Done, NackItem, Problem
from capellini.model.timed import MoveItem, Scheduled
from capellini.queues.assignments import Assignments
from capellini.queues.timed import changing, committing, records
from capellini.queues.timed.halting import read_halted
from capellini.queues.timed.horizon import read_horizon, read_shard, write_horizon
from capellini.queues.timed.keeper import TimedKeeper
from capellini.queues.timed.positions import TICKS_PER_S, parse_id, shard_in
from capellini.queues.work.place import Gone
from capellini.store.interface import Cas, Slice
from capellini.store.schema import TIMED_PARTS, TIMED_RECORDS, TIMED_ROWS, TIMED_SHARDS
from capellini.store.simulation.world import EPOCH_S


def test_a_put_due_soon_wakes_a_holder_that_reads_far_ahead() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        await asyncio.sleep(60.0)
        began_s = stage.world.loop.time()
        await stage.put(node, delay_s=0.3)
        (delivery,) = await stage.get(node)
        late_s = stage.world.loop.time() - began_s - 0.3 - 0.5  # max_skew_s: never early on anybody's clock
        assert delivery.body == b"m" and 0 <= late_s < 0.1

    told(story)


def test_an_idle_shard_costs_less_than_a_read_a_second() -> None:
    async def story(stage: Stage) -> None:
        counts = stage.living[0].client.store.counts
        await asyncio.sleep(60.0)
        trace = stage.world.trace = []
        await asyncio.sleep(100.0)
        reads = [line for line in trace if "read" in line and TIMED_ROWS.name in line]
        assert counts.reads and 10 <= len(reads) <= 100  # two shards, "q" and "dead"

    told(story)


def test_a_holder_that_was_paused_beyond_its_lease_confirms_nothing() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        await stage.put(first)
        (delivery,) = await stage.get(first)
        acking = first.client.spawn(first.broker.ack("q", [delivery.receipt]))
        first.client.pause(20.0)
        second = await stage.held(but=first)
        (again,) = await stage.get(second)
        assert again.id == delivery.id
        (result,) = await acking
        assert isinstance(result, Problem) and result.error in ("unknown", "unavailable", "stale")
        assert await stage.do(second, second.broker.ack("q", [again.receipt])) == [Done()]
        assert stage.guard("emergency stop") >= 1

    told(story, nodes=2)


def test_a_move_to_later_is_finished_by_whoever_reads_its_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        id = await stage.put(first, delay_s=20.0)

        async def lost(*args: Any, **more: Any) -> None:
            stage.nodes.crash(cast(Any, first))
            raise Unknown("the node is gone")

        queue = await stage.queue(first)
        with monkeypatch.context() as patch:
            patch.setattr(changing, "write_rows", lost)
            first.client.spawn(queue.move([MoveItem(id, int((EPOCH_S + 40.0) * 1000))]))
            await stage.until(lambda: first not in stage.living)
        second = await stage.held()
        assert [one.id for one in await stage.get(second, 60.0)] == [id]
        assert stage.world.loop.time() >= 40.0
        assert stage.guard("row of a move written by the reader") == 1

    told(story, nodes=2)


def test_a_moved_message_is_cancelled_by_its_id() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        id = await stage.put(node, delay_s=100.0)
        for seconds in (300.0, 50.0):
            due_ms = int((EPOCH_S + stage.world.loop.time() + seconds) * 1000)
            assert await stage.do(node, queue.move([MoveItem(id, due_ms)])) == [Done(due_ms / 1000)]
        assert [one.id for one in await stage.do(node, queue.peek(10))] == [id]
        assert await stage.do(node, queue.cancel([id])) == [Done()]
        assert await stage.do(node, queue.peek(10)) == []
        (again,) = await stage.do(node, queue.cancel([id]))
        assert isinstance(again, Problem) and again.error == "not_found"
        assert await stage.get(node, 60.0) == []

    told(story)


def test_a_dead_letter_whose_queue_does_not_take_it_yet_is_tried_again() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        put_moved, tries = node.keeper._put_moved, 0

        async def at_last(target: str, key: str, entry: Entry) -> None:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise Unavailable("not now")
            await put_moved(target, key, entry)

        node.keeper._put_moved = at_last
        await stage.put(node)
        (delivery,) = await stage.get(node)
        await stage.do(node, node.broker.nack("q", [NackItem(delivery.receipt, 0.0)]))
        (letter,) = await stage.get(node, 10.0, "dead")
        assert letter.body == b"m" and stage.guard("dead letter not taken yet") == 2

    told(story, dead_letters="dead", delivery_limit=1)


def test_an_ack_that_became_durable_after_the_lease_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        write = committing.write_record
        await stage.put(node)
        (delivery,) = await stage.get(node)

        async def too_late(*args: Any) -> None:
            await write(*args)
            node.lease._valid_until_s = 0.0

        with monkeypatch.context() as patch:
            patch.setattr(committing, "write_record", too_late)
            (result,) = await stage.do(node, node.broker.ack("q", [delivery.receipt]))
        assert isinstance(result, Problem) and result.error == "unknown"
        assert stage.guard("durable only after the lease") == 1

    told(story)


def test_a_node_that_cannot_give_a_shard_up_stops_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()

        async def away(self: Assignments, item: str) -> bool:
            raise Unavailable("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(Assignments, "give_up", away)
            await stage.nodes.drain(cast(Any, first))
        assert stage.guard("shard not given up") >= 1
        await stage.held()

    told(story, nodes=2)


def test_a_put_into_a_generation_that_was_cleared_is_told_so() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        await stage.do(node, node.broker.purge("q"))
        await stage.do(node, node.keeper.clear("q", 1))
        with pytest.raises(Gone):
            await stage.do(node, queue.put([Scheduled(Entry(b"late"), 0)]))
        assert stage.guard("put met an endless horizon") == 1
        for of in (TIMED_ROWS, TIMED_PARTS):
            for key in [key for table, key in stage.world.partitions if table == of.name]:
                assert not (await stage.do(node, node.client.store.read(Slice(of, key)))).rows

    told(story)


def test_a_put_whose_shard_was_read_far_beyond_it_is_unknown() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        horizon = await stage.do(node, read_horizon(queue.place, 0))
        await stage.do(node, write_horizon(queue.place, 0, 99, horizon + 60 * TICKS_PER_S))
        queue.place.horizons.clear()
        (answer,) = await stage.do(node, queue.put([Scheduled(Entry(b"m"), 0)]))
        assert isinstance(answer, Problem) and answer.error == "unknown"
        assert stage.guard("put too late for another copy") == 1

    told(story)


def test_messages_of_retired_shards_are_delivered() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        await stage.do(node, node.broker.change("q", {"shards": 8}))
        ids = {await stage.put(node, b"%d" % at, delay_s=3.0) for at in range(20)}
        assert len({shard_in(parse_id(id)) for id in ids}) > 3
        await stage.do(node, node.broker.change("q", {"shards": 1}))
        found: set[str] = set()
        while len(found) < 20:
            deliveries = await stage.get(node)
            assert deliveries
            found |= {one.id for one in deliveries}
        assert found == ids
        views = await stage.do(node, node.broker.shards("q"))
        assert sum(view.retired for view in views) == len(views) - 1 > 3

    told(story)


def test_an_operator_stops_and_starts_a_shard() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        await stage.put(node)
        view = await stage.do(node, node.broker.halt("q", 0, True))
        assert view.state == "stopped"
        assert await stage.get(node, 3.0) == []
        view = await stage.do(node, node.broker.halt("q", 0, False))
        assert view.state == "started"
        assert len(await stage.get(node, 3.0)) == 1

    told(story)


def test_a_stop_by_way_of_a_clock_that_is_ahead_does_not_outdate_the_start_after_it() -> None:
    async def story(stage: Stage) -> None:
        holder = await stage.held()
        await stage.put(holder)
        (ahead,) = [node for node in stage.living if node is not holder]
        ahead.client.clock.offset_s = 30.0
        await stage.do(ahead, ahead.broker.halt("q", 0, True))
        view = await stage.do(holder, holder.broker.halt("q", 0, False))
        assert view.state == "started"
        assert len(await stage.get(holder)) == 1

    told(story, nodes=2)


def test_a_stop_that_lands_after_a_start_that_found_nothing_stopped_changes_nothing() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        store: Any = node.client.store
        sends, kept = store.compare_and_set, []

        async def keep(cas: Cas) -> Any:
            if cas.table is not TIMED_SHARDS:
                return await sends(cas)
            kept.append(cas)
            raise Unavailable("kept back")

        store.compare_and_set = keep
        with pytest.raises(Unavailable):
            await stage.do(node, node.broker.halt("q", 0, True))
        store.compare_and_set = sends
        assert (await stage.do(node, node.broker.halt("q", 0, False))).state == "started"
        assert kept
        for cas in kept:
            assert not (await stage.do(node, sends(cas))).applied
        assert not await read_halted((await stage.queue(node)).place, 0)

    told(story)


def test_cancels_and_dues_that_cannot_be_are_refused_with_a_word() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        id = await stage.put(node)
        (delivery,) = await stage.get(node)
        far_ms = int((EPOCH_S + 40 * 365 * 86_400) * 1000)
        never = f"{int(id, 16) ^ 1:032x}"
        answers = [
            *await stage.do(node, queue.cancel([id, never, "nonsense"])),
            *await stage.do(node, queue.move([MoveItem(never, 5), MoveItem(id, far_ms)])),
            *await stage.do(node, queue.put([Scheduled(Entry(b"far"), far_ms)])),
        ]
        assert [one.error for one in answers] == ["conflict", "not_found", "invalid", "not_found", "invalid", "invalid"]
        assert await stage.do(node, queue.ack([delivery.receipt])) == [Done()]

    told(story)


def test_ten_nodes_that_start_together_take_each_shard_once() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        await stage.do(node, node.broker.change("q", {"shards": 20}))

        def spread() -> bool:
            held = [sum(len(holders) for holders in one.keeper._holders.values()) for one in stage.living]
            return sum(held) == 21 and max(held) - min(held) <= 1

        await stage.until(spread, 120.0)
        attempts = sum(one.keeper.assignments.attempts for one in stage.living)
        assert attempts <= 21 * 3  # takes that moved for evenness included

    told(story, nodes=10)


def test_a_part_with_an_unfinished_message_is_kept() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        id = await stage.put(first)
        assert len(await stage.get(first)) == 1
        await asyncio.sleep(150.0)  # the part's minute is over, and more
        stage.nodes.crash(cast(Any, first))
        second = await stage.held()
        assert [one.id for one in await stage.get(second)] == [id]

    told(story, nodes=2, granularity="minute")


def test_a_moved_message_keeps_count_of_its_deliveries() -> None:
    async def story(stage: Stage) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        id = await stage.put(node)
        (delivery,) = await stage.get(node)
        await stage.do(node, queue.nack([NackItem(delivery.receipt, 3.0)]))
        assert await stage.do(node, queue.move([MoveItem(id, 0)])) == [Done(0.0)]
        (again,) = await stage.get(node)
        assert (again.id, again.deliveries) == (id, 2)

    told(story)


def test_a_shard_that_was_retired_before_anybody_worked_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()

        async def not_now(self: TimedKeeper) -> None:
            raise Unavailable("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(TimedKeeper, "turn", not_now)
            await stage.do(first, first.broker.change("q", {"shards": 8}))
            id = await stage.put(first)
            while not shard_in(parse_id(id)):
                id = await stage.put(first)
            await stage.do(first, first.broker.change("q", {"shards": 1}))
            stage.nodes.crash(cast(Any, first))
        second = await stage.held()
        found: set[str] = set()
        while one := await stage.get(second):
            found |= {each.id for each in one}
        assert id in found

    told(story, nodes=2)


def test_a_snapshot_that_could_not_be_written_is_put_off() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.held()
        kept = KeptBack(first, lambda batch: batch.table is TIMED_RECORDS and batch.rows[0][0] == (0,))
        await stage.put(first)
        (delivery,) = await stage.get(first)
        await stage.until(lambda: stage.guard("snapshot put off") >= 1)
        assert await stage.do(first, first.broker.ack("q", [delivery.receipt])) == [Done()]
        kept.no_more()
        stage.nodes.crash(cast(Any, first))
        assert await stage.get(await stage.held()) == []

    told(story, nodes=2)


def test_a_snapshot_that_was_put_off_is_made_up_for_and_leaves_nothing() -> None:
    """Though nothing more is read: what was found void must not be judged again when its key is forgotten."""

    async def story(stage: Stage) -> None:
        node = await stage.held()
        place = (await stage.queue(node)).place
        kept = KeptBack(node, lambda batch: batch.table is TIMED_RECORDS and batch.rows[0][0] == (0,))
        await stage.put(node)
        await stage.get(node)
        await stage.until(lambda: stage.guard("snapshot put off") >= 1)
        kept.no_more()
        await kept.land(node)  # nobody reads that run
        await asyncio.sleep(30.0)
        (row,) = await stage.do(node, read_shard(place, 0))
        assert row.run is not None and row.run > 2
        runs = {key[4] for table, key in stage.world.partitions if table == TIMED_RECORDS.name and key[0] == "q"}
        bounds = {run: Slice(TIMED_RECORDS, (*place.partition, 0, row.epoch, run)) for run in runs}
        left = [run for run in runs if (await stage.do(node, place.store.read(bounds[run]))).rows]
        assert left == [row.run]

    told(story)


def test_who_looks_on_while_a_run_is_replaced_reads_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        node = await stage.held()
        place = (await stage.queue(node)).place
        before = await stage.do(node, read_shard(place, 0, 10))
        await stage.put(node)
        (delivery,) = await stage.get(node)
        assert await stage.do(node, node.broker.ack("q", [delivery.receipt])) == [Done()]
        await stage.until(lambda: node.keeper._holders["q", 1][0].committing._run != before[0].run)
        await asyncio.sleep(1.0)
        looks = [before]

        async def outdated(*args: Any) -> Any:
            return looks.pop() if looks else await read_shard(*args)

        monkeypatch.setattr(records, "read_shard", outdated)
        known, _ = await stage.do(node, records.read_known(place, 0, 1 << 60))
        assert (parse_id(delivery.id), 0) in known.recent and not looks

    told(story)


STORIES = (
    CHANGES
    | HANDOVER
    | REQUESTS
    | {
        "deliveries_begin_anew_after_a_move": test_a_moved_message_keeps_count_of_its_deliveries,
        "part_dropped_with_unfinished_messages": test_a_part_with_an_unfinished_message_is_kept,
        "row_of_a_move_not_made_sure_of": test_a_move_to_later_is_finished_by_whoever_reads_its_marker,
        "shard_not_put_on_the_list": test_a_shard_that_was_retired_before_anybody_worked_it_is_found,
    }
)


@pytest.mark.parametrize("plant", [plants.named(name) for name in sorted(BY_HAND)], ids=lambda plant: plant.name)
def test_a_planted_bug_that_seeds_find_seldom_breaks_its_story(plant: Plant) -> None:
    story = STORIES[plant.name]
    needs = inspect.signature(story).parameters
    with planted(plant), pytest.MonkeyPatch.context() as patch, pytest.raises(AssertionError):
        story(patch) if needs else story()  # type: ignore[operator]
