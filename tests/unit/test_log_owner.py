"""Owners of extents for groups: one at a time, of one version of the group, whatever leases, clocks and writes do."""

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
    counts_in,
    crash,
    drained,
    embedded,
    grouped,
    owner_of,
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
from capellini.queues.log.owner import Owner
from capellini.queues.log.queue import LOOK_S, WOKEN
from capellini.store.interface import Batch
from capellini.store.schema import LOG_CURSORS
from capellini.store.simulation.loop import run


def test_an_owner_that_was_paused_beyond_its_lease_confirms_no_ack() -> None:
    """The ack had been sent before, and was durable: but by now another may own the extent, and not know of it."""

    async def work() -> None:
        _, nodes = await simulated("ab", visibility_s=60.0)
        node = await grouped(nodes)
        await put(node, [b"x"])
        item = settle_of((await pull(node))[0])
        owner = await owner_of(node)
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
        node = await grouped(nodes)
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


def test_a_flush_waits_for_what_is_being_written() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await grouped(nodes)
        await put(node, [b"1", b"2"])
        parcels = await pull(node)
        owner = await owner_of(node)
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
        node = await grouped(nodes)
        await put(node, [b"1", b"2"])
        parcels = await pull(node, count=1)
        owner = await owner_of(node)

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
        node = await grouped(nodes)
        await put(node, [b"1"])
        await pull(node)
        owner = await owner_of(node)
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
        desk = (await owner_of(node)).desk
        assert desk.flying == count
        assert len(desk.flights) == len(parcels) <= count // 100
        assert all(len(flight.left) == 1 for flight in desk.flights.values())
    finally:
        await closed(node)


def test_an_owner_settles_nothing_of_another_version_of_its_group() -> None:
    """Deliveries of both are numbered alike."""

    async def work() -> None:
        _, nodes = await simulated("a", visibility_s=60.0)
        node = await grouped(nodes)
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
        node, other = await grouped(nodes), nodes["b"]
        await put(node, [b"x"])
        held = await pull(other)
        await until(other.clock, lambda: _knows(other, 1))
        await (await node.queue()).seek_group("g", "earliest")
        assert await settle(other, held) == 0

    run(work(), 1)


def test_a_node_that_meets_a_later_version_of_a_group_looks_again() -> None:
    async def work() -> None:
        _, nodes = await simulated("ab", visibility_s=60.0)
        node, other = await grouped(nodes), nodes["b"]
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
        node, other = await grouped(nodes), nodes["b"]
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


def test_whoever_took_a_row_under_its_next_lease_and_failed_to_begin_goes_on_trying() -> None:
    """What it had asked for under the one before was forgotten meanwhile."""

    async def work() -> None:
        _, nodes = await simulated("ab", visibility_s=60.0)
        node, other = await grouped(nodes), nodes["b"]
        await put(node, [b"x"])  # so that it should be read by `node`
        queue = await other.queue()
        (extent,) = await queue.extents.look()
        group = await queue.groups.live("g")
        take = queue.readers.rows.take

        async def taken(name: str, reader: str) -> Any:
            queue.readers.abandon()
            return await take(name, reader)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queue.readers.rows, "take", taken)
            patch.setattr(Owner, "begin", _failing)
            await queue.readers._take_once((extent.name, group.reader), group)
        assert (await queue.readers.rows.owner(extent.name, group.reader)).node == other.name
        assert bodies_in(await pull(node, wait_s=10.0)) == [b"x"]

    run(work(), 1)


def test_a_node_that_leaves_hands_nothing_out_anew_while_it_finishes_acks() -> None:
    """It would have read what was finished before the acks that it still confirms."""

    async def work() -> None:
        _, nodes = await simulated("ab", visibility_s=60.0)
        node, other = await grouped(nodes), nodes["b"]
        await put(node, [b"x"])
        parcels = await pull(node)
        store: Any = node.store
        write, go_on = store.write, asyncio.Event()

        async def slow(batch: Batch) -> None:
            if batch.table is LOG_CURSORS:
                await go_on.wait()
            await write(batch)

        store.write = slow
        assert node.client is not None
        acking = node.client.spawn(settle(node, parcels))
        await other.clock.sleep(0.1)
        leaving = node.client.spawn((await node.queue()).readers.give_up())
        await other.clock.sleep(1.0)  # so that it looks again at what it should read
        pulling = node.client.spawn(pull(node, wait_s=3.0))
        await other.clock.sleep(1.0)
        go_on.set()
        assert (await acking, await pulling) == (1, [])
        await leaving
        assert await pull(other, wait_s=10.0) == []

    run(work(), 1)


def test_what_was_taken_for_a_caller_who_left_is_given_back_at_once() -> None:
    async def work() -> None:
        _, nodes = await simulated("a", visibility_s=60.0)
        node = await grouped(nodes)
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
        assert counts_in(await pull(node)) == {b"x": 1}  # nobody has seen it

    run(work(), 1)


async def _failing(owner: Owner) -> None:
    raise Unavailable("the store is away")


def test_a_message_wakes_few_of_very_many_who_wait_and_many_messages_all() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node, looks = await grouped(nodes), 0
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
