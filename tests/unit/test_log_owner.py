"""Owners of extents for groups: counts, delays, dead letters, and what a successor knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.log_world import (
    LogNode,
    bodies_in,
    closed,
    crash,
    drained,
    embedded,
    pull,
    put,
    settle,
    settle_of,
    simulated,
    until,
)

from capellini.model.errors import Unavailable
from capellini.model.log import LogParcel
from capellini.queues.log.cursors import read_cursor
from capellini.queues.log.owner import BURY_AT_ONCE, Owner
from capellini.queues.log.queue import LOOK_S, WOKEN
from capellini.store.simulation.loop import run

DEAD = "q.g.dead"


async def _grouped(nodes: dict[str, LogNode], **options: Any) -> LogNode:
    node = next(iter(nodes.values()))
    await (await node.queue()).create_group("g", "earliest", options)
    return node


async def _owner(node: LogNode) -> Owner:
    (owner,) = (await node.queue()).readers.owners.values()
    return owner


def _counts(parcels: list[LogParcel]) -> dict[bytes, int]:
    return {body: parcel.deliveries for parcel in parcels for body in bodies_in([parcel])}


def test_a_successor_knows_how_often_a_message_was_delivered() -> None:
    async def work() -> None:
        _, nodes = await simulated("ab", visibility_s=60.0)
        node = await _grouped(nodes)
        await put(node, [b"once", b"twice"])
        await settle(node, await pull(node, count=2), "nack", ranges=[(1, 1)])
        assert _counts(await pull(node)) == {b"twice": 2}
        crash(node, nodes)
        (other,) = nodes.values()
        found: dict[bytes, int] = {}
        while len(found) < 2:
            found.update(_counts(await pull(other, wait_s=20.0)))
        assert found == {b"once": 1, b"twice": 3}  # first deliveries are not counted durably

    run(work(), 1)


def test_a_message_that_takes_its_owner_with_it_ends_in_the_dead_letters() -> None:
    async def work() -> None:
        _, nodes = await simulated("abcd", visibility_s=60.0)
        node = await _grouped(nodes, delivery_limit=2)
        await put(node, [b"poison", b"good"])
        await settle(node, await pull(node, count=2), "nack")
        again = await pull(node)
        assert _counts(again) == {b"poison": 2, b"good": 2}
        await settle(node, again, ranges=[(1, 1)])
        crash(node, nodes)
        other = next(iter(nodes.values()))
        assert await pull(other, wait_s=20.0) == []
        assert await other.dead(DEAD) == [b"poison"]

    run(work(), 1)


def test_what_a_pull_had_no_room_for_does_not_count_as_delivered() -> None:
    async def work() -> None:
        _, nodes = await simulated("abcd", visibility_s=60.0)
        node = await _grouped(nodes, delivery_limit=2)
        for number in range(20):
            await put(node, [b"%02d" % number * 5_000])
        await settle(node, await pull(node, count=20), "nack")
        queue = await node.queue()
        few = await queue.pull("g", 20, 40_000, 5.0)
        assert [parcel.deliveries for parcel in few] == [2] * len(few) and len(bodies_in(few)) == 3
        await settle(node, few)
        await until(node.clock, lambda: _is_written(node))
        crash(node, nodes)
        other = next(iter(nodes.values()))
        found: list[bytes] = []
        while more := bodies_in(await pull(other, wait_s=20.0)):
            found += more
        assert sorted(body[:2] for body in found) == [b"%02d" % number for number in range(3, 20)]
        assert await other.dead(DEAD) == []

    run(work(), 1)


def test_what_was_given_back_unseen_does_not_count_for_a_successor() -> None:
    async def work() -> None:
        _, nodes = await simulated("ab", visibility_s=60.0)
        node = await _grouped(nodes, delivery_limit=2)
        await put(node, [b"m"])
        await settle(node, await pull(node), "nack")
        again = await pull(node)
        assert _counts(again) == {b"m": 2}
        await settle(node, again, "release")
        crash(node, nodes)
        (other,) = nodes.values()
        assert bodies_in(await pull(other, wait_s=20.0)) == [b"m"]

    run(work(), 1)


async def _is_written(node: LogNode) -> bool:
    return not (await _owner(node))._cursors.behind


async def test_a_filter_that_is_taken_back_while_messages_are_read_breaks_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await embedded(tmp_path)
    queue = await node.queue()
    await queue.create_group("g", "earliest", {"filter": {"color": ["red"]}})
    await put(node, [b"first"], [{"color": "red"}])
    await asyncio.gather(*[put(node, [b"%d" % at], [{"color": "red"}]) for at in range(100)])
    await settle(node, await pull(node, count=1))
    owner, changed = await _owner(node), False
    read = owner._blocks

    async def while_it_changes(*arguments: Any) -> Any:
        nonlocal changed
        if not changed:
            changed = True
            await queue.change_group("g", {"filter": {}})
        return await read(*arguments)

    monkeypatch.setattr(owner, "_blocks", while_it_changes)
    found = bodies_in(await pull(node, count=7))
    assert found == [b"%d" % at for at in range(7)]
    assert await drained(node, wait_s=0.2) == [b"%d" % at for at in range(7, 100)]
    await closed(node)


def test_nacks_wait_longer_each_time_up_to_a_bound() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await _grouped(nodes, nack_delay_s=1.0, nack_delay_most_s=3.0)
        await put(node, [b"m"])
        waits: list[float] = []
        for _ in range(4):
            parcels = await pull(node, wait_s=20.0)
            before_s = node.clock.elapsed_s()
            await settle(node, parcels, "nack")
            await until(node.clock, lambda: _is_ready(node))
            waits.append(round(node.clock.elapsed_s() - before_s - 0.5, 1))  # it comes that much later: clocks differ
        assert waits == [1.0, 2.0, 3.0, 3.0]

    run(work(), 1)


async def _is_ready(node: LogNode) -> bool:
    owner = await _owner(node)
    owner.roll()
    return owner.desk.ready == 1


def test_many_dead_letters_go_beside_each_other_and_each_once() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await _grouped(nodes, delivery_limit=1)
        bodies = [f"m{at}".encode() for at in range(3 * BURY_AT_ONCE)]
        await put(node, bodies)
        parcels = await pull(node, count=len(bodies))
        node.fail_moves = 3  # done, but their answers are lost
        before_s = node.clock.elapsed_s()
        await settle(node, parcels, "nack")
        await until(node.clock, lambda: _all_finished(node, len(bodies)))
        took_s = node.clock.elapsed_s() - before_s
        found: list[bytes] = []
        while more := await node.dead(DEAD):
            found += more
        assert sorted(found) == sorted(bodies)
        assert len(node.moves) == len(bodies) + 3
        assert took_s < len(bodies) * 0.02  # one after the other each would take some rounds to the store

    run(work(), 1)


async def _all_finished(node: LogNode, count: int) -> bool:
    return (await _owner(node)).desk.pages.next == count


def test_a_letter_that_cannot_be_carried_in_an_unforeseen_way_is_tried_again_after_a_while() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await _grouped(nodes, delivery_limit=1)
        await put(node, [b"m"])
        parcels = await pull(node)
        owner, tries = await _owner(node), 0

        async def entry(number: int) -> None:
            nonlocal tries
            tries += 1
            raise ArithmeticError("nobody has thought of this")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, "_entry", entry)
            await settle(node, parcels, "nack")
            await node.clock.sleep(10)
        assert 5 <= tries <= 12
        await node.clock.sleep(5)
        assert await node.dead(DEAD) == [b"m"]

    run(work(), 1)


def test_an_owner_that_was_paused_beyond_its_lease_confirms_no_ack() -> None:
    """The ack had been sent before, and was durable: but by now another may own the extent, and not know of it."""

    async def work() -> None:
        _, nodes = await simulated("ab", visibility_s=60.0)
        node = await _grouped(nodes)
        await put(node, [b"x"])
        item = settle_of((await pull(node))[0])
        owner = await _owner(node)
        before = owner._cursors.writes
        assert node.client is not None
        acking = node.client.spawn((await node.queue()).settle("g", [item]))
        while owner._cursors.writes == before:
            await nodes["b"].clock.sleep(0.000_1)
        node.client.pause(30.0)
        await nodes["b"].clock.sleep(31.0)
        (answer,) = await acking
        assert (answer.ranges, answer.error) == ([], "unknown")

    run(work(), 1)


def test_acks_of_an_owner_after_one_whose_clock_was_far_ahead_are_kept() -> None:
    async def work() -> None:
        _, nodes = await simulated("abc", visibility_s=60.0)
        node = await _grouped(nodes)
        assert node.client is not None
        await put(node, [b"one", b"two", b"three"])
        node.client.clock.step(3_600.0)
        await settle(node, await pull(node, count=1))
        crash(node, nodes)
        second = next(iter(nodes.values()))
        parcels = await pull(second, count=1, wait_s=20.0)
        assert bodies_in(parcels) == [b"two"]
        await settle(second, parcels)
        crash((await _owned_by(nodes)), nodes)
        (third,) = nodes.values()
        assert await drained(third, wait_s=20.0) == [b"three"]

    run(work(), 1)


async def _owned_by(nodes: dict[str, LogNode]) -> LogNode:
    (owner,) = [node for node in nodes.values() if (await node.queue()).readers.owners]
    return owner


def test_messages_that_are_too_old_for_a_group_are_skipped_and_finished() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await _grouped(nodes, skip_older_s=5.0)
        await put(node, [b"old"] * 3)
        await node.clock.sleep(6.0)
        await put(node, [b"new"])
        assert await drained(node) == [b"new"]
        assert (await _owner(node)).desk.pages.next == 4

    run(work(), 1)


def test_a_group_with_a_delay_gets_messages_later_than_others() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await _grouped(nodes, delay_s=3.0)
        await (await node.queue()).create_group("soon", "earliest", {})
        before_s = node.clock.now_s()
        await put(node, [b"m"])
        assert bodies_in(await pull(node, "soon")) == [b"m"]
        assert await pull(node, wait_s=2.5) == []
        assert bodies_in(await pull(node, wait_s=10.0)) == [b"m"]
        assert node.clock.now_s() - before_s >= 3.0

    run(work(), 1)


def test_a_delay_that_is_taken_back_holds_nothing_any_more() -> None:
    """What a group waits for was found under its former delay."""

    async def work() -> None:
        _, nodes = await simulated("a")
        node = await _grouped(nodes, delay_s=3600.0)
        await put(node, [b"x"])
        assert await pull(node, wait_s=1.0) == []
        await (await node.queue()).change_group("g", {"delay_s": 10.0})
        assert await pull(node, wait_s=1.0) == []
        assert (await _owner(node)).next_ms() is not None
        await (await node.queue()).change_group("g", {"delay_s": 0})
        assert bodies_in(await pull(node, wait_s=1.0)) == [b"x"]

    run(work(), 1)


def test_a_flush_waits_for_what_is_being_written() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await _grouped(nodes)
        await put(node, [b"1", b"2"])
        parcels = await pull(node)
        owner = await _owner(node)
        acking = asyncio.ensure_future(owner.settle([settle_of(parcel) for parcel in parcels]))

        async def under_way() -> bool:
            return owner.desk.pages.next == 2 and not owner.desk.pages.changed

        await until(node.clock, under_way)
        await owner.flush()
        stored = await read_cursor(owner.place, owner.extent, owner.group.reader)
        assert stored is not None and stored.next == 2
        await acking

    run(work(), 1)


def test_an_owner_whose_write_fails_in_an_unforeseen_way_is_over_and_another_goes_on() -> None:
    """Else what it was about to write would be forgotten, and a line of an ordered queue would stand for ever."""

    async def work() -> None:
        _, nodes = await simulated("a", mode="cp", ordered="total", visibility_s=60.0)
        node = await _grouped(nodes)
        await put(node, [b"1", b"2"])
        parcels = await pull(node, count=1)
        owner = await _owner(node)

        def broken(pages: list[tuple[int, bytes]]) -> None:
            raise ArithmeticError("nobody has thought of this")

        owner._cursors._batch = broken  # type: ignore[assignment, method-assign]
        (done,) = await (await node.queue()).settle("g", [settle_of(parcels[0], "ack")])
        assert done.error == "unknown"
        assert not owner.acts()
        assert bodies_in(await pull(node, count=1)) == [b"1"]

    run(work(), 1)


def test_a_block_that_is_not_there_yet_does_not_keep_a_pull_busy() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await _grouped(nodes)
        await put(node, [b"1"])
        await pull(node)
        owner = await _owner(node)
        owner.reading.top = lambda: 5  # type: ignore[method-assign]
        assert await owner.take(10, 1 << 20, None) == []
        assert owner.desk.out == 1

    run(work(), 1)


async def test_messages_in_flight_are_kept_as_ranges(tmp_path: Path) -> None:
    node = await embedded(tmp_path, extent_bytes=1 << 30)
    try:
        await (await node.queue()).create_group("g", "earliest", {})
        count = 60_000
        for _ in range(count // 1_000):
            await put(node, [b"x" * 100] * 1_000)
        parcels: list[LogParcel] = []
        while sum(parcel.count for parcel in parcels) < count:
            parcels += await pull(node, count=5_000, visibility_s=3_600.0)
        desk = (await _owner(node)).desk
        assert desk.flying == count
        assert len(desk.flights) == len(parcels) <= count // 100
        assert all(len(flight.left) == 1 for flight in desk.flights.values())
    finally:
        await closed(node)


def test_an_owner_settles_nothing_of_another_version_of_its_group() -> None:
    """Deliveries of both are numbered alike."""

    async def work() -> None:
        _, nodes = await simulated("a", visibility_s=60.0)
        node = await _grouped(nodes)
        await put(node, [b"x"])
        (before,) = await pull(node)
        await (await node.queue()).seek_group("g", "earliest")
        (after,) = await pull(node)
        assert (before.delivery, before.epoch) == (after.delivery, after.epoch) and before.reader != after.reader
        owner = next(one for one in (await node.queue()).readers.owners.values() if one.group.version == 2)
        assert [answer.ranges for answer in await owner.settle([settle_of(before), settle_of(after)])] == [[], [(0, 1)]]

    run(work(), 1)


def test_nobody_uses_a_group_as_it_was_when_a_seek_has_returned() -> None:
    async def work() -> None:
        _, nodes = await simulated("ab", visibility_s=60.0)
        node, other = await _grouped(nodes), nodes["b"]
        await put(node, [b"x"])
        held = await pull(other)
        await until(other.clock, lambda: _knows(other, 1))
        await (await node.queue()).seek_group("g", "earliest")
        assert await settle(other, held) == 0

    run(work(), 1)


def test_a_node_that_meets_a_later_version_of_a_group_looks_again() -> None:
    async def work() -> None:
        _, nodes = await simulated("ab", visibility_s=60.0)
        node, other = await _grouped(nodes), nodes["b"]
        await put(node, [b"x"])
        await pull(other)
        assert node.client is not None
        seeking = node.client.spawn((await node.queue()).seek_group("g", "earliest"))
        await until(node.clock, lambda: _knows(node, 2))
        held = await pull(node)
        assert await _knows(other, 1)
        assert await settle(other, held) == 1
        await seeking

    run(work(), 1)


async def _knows(node: LogNode, version: int) -> bool:
    """As of its last look, however old."""
    found = (await node.queue()).groups.get("g")
    return found is not None and found.version == version


def test_whoever_took_a_row_and_failed_to_begin_goes_on_trying() -> None:
    """Nobody else does: nothing is taken from a living node."""

    async def work() -> None:
        _, nodes = await simulated("ab", visibility_s=60.0)
        node, other = await _grouped(nodes), nodes["b"]
        await put(node, [b"x"])  # so that it should be read by `node`
        queue = await other.queue()
        (extent,) = await queue.extents.look()
        group = await queue.groups.live("g")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Owner, "begin", _failing)
            await queue.readers._take_once((extent.name, group.reader), group)
        assert (await queue.readers.rows.owner(extent.name, group.reader)).node == other.name
        assert bodies_in(await pull(node, wait_s=10.0)) == [b"x"]

    run(work(), 1)


def test_what_was_taken_for_a_caller_who_left_is_given_back_at_once() -> None:
    async def work() -> None:
        _, nodes = await simulated("a", visibility_s=60.0)
        node = await _grouped(nodes)
        await put(node, [b"x"])
        await settle(node, await pull(node), "release")
        take = Owner.take

        async def slowly(self: Owner, *asked: Any) -> list[LogParcel]:
            found = await take(self, *asked)
            await self.place.clock.sleep(1.0)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Owner, "take", slowly)
            getting = asyncio.get_running_loop().create_task(pull(node))
            await node.clock.sleep(0.5)
            getting.cancel()
            await node.clock.sleep(1.0)
        assert _counts(await pull(node)) == {b"x": 1}  # nobody has seen it

    run(work(), 1)


async def _failing(owner: Owner) -> None:
    raise Unavailable("the store is away")


def test_a_message_wakes_few_of_very_many_who_wait_and_many_messages_all() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node, looks = await _grouped(nodes), 0
        queue = await node.queue()
        await put(node, [b"begun"])
        await settle(node, await pull(node))
        take = queue._take

        async def counted(*arguments: Any) -> list[LogParcel]:
            nonlocal looks
            looks += 1
            return await take(*arguments)

        queue._take = counted  # type: ignore[method-assign]
        tasks = [asyncio.ensure_future(queue.pull("g", 1, 1 << 20, 20.0)) for _ in range(10 * WOKEN)]
        await until(node.clock, lambda: _looked(lambda: looks, len(tasks)))
        looks = 0
        await put(node, [b"one"])
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1 and looks <= 2 * WOKEN
        gone = next(iter(waiting))
        gone.cancel()  # who leaves keeps nothing from the others
        before_s = node.clock.elapsed_s()
        await put(node, [b"%d" % number for number in range(len(waiting) - 1)])
        found = await asyncio.gather(*(waiting - {gone}))
        assert len({body for parcels in found for body in bodies_in(parcels)}) == len(waiting) - 1
        assert node.clock.elapsed_s() - before_s < LOOK_S, "those who get something wake the next"

    run(work(), 1)


async def _looked(looks: Callable[[], int], most: int) -> bool:
    return looks() >= most
