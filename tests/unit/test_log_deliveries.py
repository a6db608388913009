"""What becomes of messages of a group: how often they were delivered, how long they wait, which are skipped, and dead
letters."""

from __future__ import annotations

import asyncio
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
    simulated,
    until,
)

from capellini.queues.log.owner import BURY_AT_ONCE
from capellini.store.simulation.loop import run

DEAD = "q.g.dead"


def test_a_successor_knows_how_often_a_message_was_delivered() -> None:
    async def work() -> None:
        _, nodes = await simulated("ab", visibility_s=60.0)
        node = await grouped(nodes)
        await put(node, [b"once", b"twice"])
        await settle(node, await pull(node, count=2), "nack", ranges=[(1, 1)])
        assert counts_in(await pull(node)) == {b"twice": 2}
        crash(node, nodes)
        (other,) = nodes.values()
        found: dict[bytes, int] = {}
        while len(found) < 2:
            found.update(counts_in(await pull(other, wait_s=20.0)))
        assert found == {b"once": 1, b"twice": 3}  # first deliveries are not counted durably

    run(work(), 1)


def test_a_message_that_takes_its_owner_with_it_ends_in_the_dead_letters() -> None:
    async def work() -> None:
        _, nodes = await simulated("abcd", visibility_s=60.0)
        node = await grouped(nodes, delivery_limit=2)
        await put(node, [b"poison", b"good"])
        await settle(node, await pull(node, count=2), "nack")
        again = await pull(node)
        assert counts_in(again) == {b"poison": 2, b"good": 2}
        await settle(node, again, ranges=[(1, 1)])
        crash(node, nodes)
        other = next(iter(nodes.values()))
        assert await pull(other, wait_s=20.0) == []
        assert await other.dead(DEAD) == [b"poison"]

    run(work(), 1)


def test_what_a_pull_had_no_room_for_does_not_count_as_delivered() -> None:
    async def work() -> None:
        _, nodes = await simulated("abcd", visibility_s=60.0)
        node = await grouped(nodes, delivery_limit=2)
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
        node = await grouped(nodes, delivery_limit=2)
        await put(node, [b"m"])
        await settle(node, await pull(node), "nack")
        again = await pull(node)
        assert counts_in(again) == {b"m": 2}
        await settle(node, again, "release")
        crash(node, nodes)
        (other,) = nodes.values()
        assert bodies_in(await pull(other, wait_s=20.0)) == [b"m"]

    run(work(), 1)


async def _is_written(node: LogNode) -> bool:
    return not (await owner_of(node))._cursors.behind


async def test_a_filter_that_is_taken_back_while_messages_are_read_breaks_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await embedded(tmp_path)
    queue = await node.queue()
    await queue.create_group("g", "earliest", {"filter": {"color": ["red"]}})
    await put(node, [b"first"], [{"color": "red"}])
    await asyncio.gather(*[put(node, [b"%d" % at], [{"color": "red"}]) for at in range(100)])
    await settle(node, await pull(node, count=1))
    owner, changed = await owner_of(node), False
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
        node = await grouped(nodes, nack_delay_s=1.0, nack_delay_most_s=3.0)
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
    owner = await owner_of(node)
    owner.roll()
    return owner.desk.ready == 1


def test_many_dead_letters_go_beside_each_other_and_each_once() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await grouped(nodes, delivery_limit=1)
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
    return (await owner_of(node)).desk.pages.next == count


def test_a_letter_that_cannot_be_carried_in_an_unforeseen_way_is_tried_again_after_a_while() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await grouped(nodes, delivery_limit=1)
        await put(node, [b"m"])
        parcels = await pull(node)
        owner, tries = await owner_of(node), 0

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


def test_messages_that_are_too_old_for_a_group_are_skipped_and_finished() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await grouped(nodes, skip_older_s=5.0)
        await put(node, [b"old"] * 3)
        await node.clock.sleep(6.0)
        await put(node, [b"new"])
        assert await drained(node) == [b"new"]
        assert (await owner_of(node)).desk.pages.next == 4

    run(work(), 1)


def test_a_group_with_a_delay_gets_messages_later_than_others() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await grouped(nodes, delay_s=3.0)
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
        node = await grouped(nodes, delay_s=3600.0)
        await put(node, [b"x"])
        assert await pull(node, wait_s=1.0) == []
        await (await node.queue()).change_group("g", {"delay_s": 10.0})
        assert await pull(node, wait_s=1.0) == []
        assert (await owner_of(node)).next_ms() is not None
        await (await node.queue()).change_group("g", {"delay_s": 0})
        assert bodies_in(await pull(node, wait_s=1.0)) == [b"x"]

    run(work(), 1)
