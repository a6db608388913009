"""The write side of log queues: group commit, order, sealing, rolling, sequences; simulated and embedded."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.unit.log_writers import LogNode, all_of, everything, stored

from capellini.model.clock import RealClock
from capellini.model.errors import Conflict, Full, Invalid, TooLarge, Unavailable, Unknown
from capellini.queues.log import names
from capellini.queues.log.appending import GATHER_BYTES, GATHER_S, PIPELINE, gather_s
from capellini.queues.log.rows import Block, read_blocks, unbroken
from capellini.queues.log.sequences import read_bound, recover
from capellini.queues.log.tail import Tail
from capellini.queues.log.writing import Writers, full_bytes
from capellini.store.interface import Batch, Cas, Level, Table
from capellini.store.rocks import RocksStore
from capellini.store.schema import LOG_BLOCKS, LOG_EXTENTS
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

P = bytes(range(16))
DEADLINE_S = 30.0


def simulate(main: Coroutine[Any, Any, None], seed: int = 0) -> None:
    run(main, seed)


async def node_in(world: World, name: str = "a", nodes: dict[str, LogNode] | None = None, **options: Any) -> LogNode:
    """A node of its own client; what it does is its client's."""
    client = world.client(name)
    node = LogNode(client.store, client.clock, client.random, name, nodes, **options)
    await client.spawn(node.start())
    return node


def failing(*numbers: int, error: type[Unavailable] | type[Unknown] = Unavailable) -> Any:
    """The first writes of the blocks that begin with these messages fail for good, in their first extent."""
    extents: set[object] = set()

    def fails(table: Table, what: Batch | Cas) -> Unavailable | Unknown | None:
        if table is not LOG_BLOCKS or not isinstance(what, Batch) or not what.rows or not what.rows[0][1]["count"]:
            return None
        extents.add(what.partition[2])
        first = len(extents) == 1
        return error("told to") if first and what.rows[0][0][0] in numbers else None

    return fails


# -- parts ----------------------------------------------------------------------------------------------------------


def test_a_name_sorts_by_opening_and_says_its_writer() -> None:
    first = names.make(1_763_324_049_123, 3, 0, "node-1.x", "0f")
    second = names.make(1_763_324_049_124, 0, 12, "a", "ff")
    assert first < second
    assert names.writer_of(first) == ("node-1.x", "0f")
    assert (names.writer_of(second), names.opened_of(second)) == (("a", "ff"), 1_763_324_049_124)
    with pytest.raises(Invalid, match="not the name of an extent"):
        names.writer_of("x-1")


def block(first: int, number: int, count: int) -> Block:
    return Block(first, number, count, 0, 0, b"x" * count)


def test_blocks_are_read_up_to_the_first_gap() -> None:
    rows = [block(0, 0, 3), block(3, 1, 0), block(3, 2, 2), block(7, 4, 1)]
    assert unbroken(rows, 0) == rows[:3]
    assert unbroken(rows, 4) == [rows[2]]
    assert unbroken(rows, 5) == []
    assert unbroken(rows[2:], 7) == [rows[3]]


def test_the_tail_keeps_the_newest_bytes_and_says_what_it_has_not() -> None:
    tail = Tail(most_bytes=10)
    for number in range(5):
        tail.add(block(number * 4, number, 4))
    assert tail.read(0, 100) is None
    assert tail.read(20, 100) == []
    found = tail.read(13, 100)
    assert found is not None and [each.first for each in found] == [12, 16]
    assert tail.read(13, 1) == found[:1]


def test_chunks_gather_only_where_blocks_are_requests_and_many_messages_come() -> None:
    assert gather_s(True, 1e6, 0.0, 0) == 0
    assert gather_s(False, 100, 0.0, 0) == 0
    assert gather_s(False, 1e5, 0.01, 0) == pytest.approx(GATHER_S - 0.01)
    assert gather_s(False, 1e5, 0.01, 1 << 20) == 0
    assert gather_s(False, 1e5, 0.5, 0) == 0


def test_extents_of_a_large_queue_are_larger_where_each_costs() -> None:
    mb = 1 << 20
    assert full_bytes(64 * mb, 10**15, alone=False) == 64 * mb
    assert full_bytes(64 * mb, 512 * mb, alone=True) == 64 * mb
    held = count = 0
    while held < 100_000 * mb:
        held += full_bytes(64 * mb, held, alone=True)
        count += 1
    assert count < 100


# -- one extent -------------------------------------------------------------------------------------------------------


def test_what_waits_together_is_one_block_and_is_confirmed_in_order() -> None:
    async def main() -> None:
        node = await node_in(World())
        order: list[int] = []

        async def one(number: int) -> None:
            appended = await node.put(b"%d" % number)
            order.append(appended.first)

        await one(0)
        before = len(node.store.blocks)
        await asyncio.gather(*(one(number) for number in range(1, 200)))
        assert order == list(range(200))
        assert len(node.store.blocks) - before <= PIPELINE
        await node.clock.sleep(1)
        (found,) = (await everything(node)).values()
        assert found[:3] == [b"0", b"1", b"2"]

    simulate(main())


def test_what_comes_during_an_fsync_is_one_block_after_it() -> None:
    async def main() -> None:
        node = await node_in(World())
        await node.put(b"first")
        await node.clock.sleep(1)  # and the empty block that says so
        before = len(node.store.blocks)
        node.store.disk = asyncio.get_running_loop().create_future()
        puts = []
        for number in range(3 * PIPELINE):  # one after the other, so that each would be a block
            puts.append(asyncio.create_task(node.put(b"%d" % number)))
            await node.clock.sleep(0.01)
        assert len(node.store.blocks) == before
        node.store.disk.set_result(None)
        assert [(await put).first for put in puts] == list(range(1, 3 * PIPELINE + 1))
        blocks = await read_blocks(node.place, (await puts[0]).extent, 0, 1 << 20)
        assert [block.count for block in blocks if block.count] == [1, 3 * PIPELINE]

    simulate(main())


def test_much_is_written_though_an_fsync_is_under_way() -> None:
    async def main() -> None:
        node = await node_in(World())
        await node.put(b"first")
        node.store.disk = asyncio.get_running_loop().create_future()
        assert (await node.put(bytes(GATHER_BYTES))).first == 1

    simulate(main())


def test_blocks_are_under_way_together() -> None:
    async def main() -> None:
        node = await node_in(World())
        await node.put(b"first")
        body = b"x" * 700_000  # two are more than a block
        under_way = most = 0

        def begins(table: Table, _: Batch | Cas) -> None:
            nonlocal under_way, most
            under_way += table is LOG_BLOCKS
            most = max(most, under_way)

        def ends(table: Table, _: Batch | Cas) -> None:
            nonlocal under_way
            under_way -= table is LOG_BLOCKS

        node.store.before, node.store.after = begins, ends
        answers = await asyncio.gather(*(node.put(body) for _ in range(10)))
        assert [answer.first for answer in answers] == list(range(1, 11))
        assert most == PIPELINE

    simulate(main())


def test_an_idle_writer_says_what_is_confirmed_and_readers_elsewhere_see_it() -> None:
    async def main() -> None:
        node = await node_in(World())
        answer = await node.put(b"a", b"b")
        (extent,) = await node.extents.look()
        assert await stored(node, extent) == []
        await node.clock.sleep(1)
        assert await stored(node, extent) == [b"a", b"b"]
        assert answer.extent == extent.name
        count = len(node.store.blocks)
        await node.clock.sleep(10)
        assert len(node.store.blocks) == count == 2

    simulate(main())


def test_blocks_are_written_at_the_level_that_the_queue_asks_for() -> None:
    async def main() -> None:
        world = World()
        node = await node_in(world, level="all")
        await node.put(b"a")
        assert node.store.blocks[0][1] is Level.ALL
        assert node.extents.known()[0].level == "all"

    simulate(main())


def test_a_reader_starts_in_the_middle_of_a_block_and_goes_on_behind_it() -> None:
    async def main() -> None:
        node = await node_in(World())
        for number in range(30):
            await node.put(*(b"%d" % (number * 10 + at) for at in range(10)))
        (extent,) = await node.extents.look()
        blocks = await read_blocks(node.place, extent.name, 137, 1 << 20)
        assert blocks[0].first == 130 and blocks[-1].end == 300
        assert [b.first for b in await read_blocks(node.place, extent.name, 140, 1)] == [140]
        assert all(not b.count for b in await read_blocks(node.place, extent.name, 300, 1 << 20))

    simulate(main())


# -- what fails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ap", "cp"])
def test_a_block_that_cannot_be_written_seals_and_nobody_notices(mode: str) -> None:
    async def main() -> None:
        node = await node_in(World(), mode=mode)
        await node.put(b"0")
        node.store.before = failing(3)
        for number in (1, 2):
            await node.put(b"%d" % number, producer=P, sequence=number)
        answers = await asyncio.gather(*(node.put(b"%d" % n, producer=P, sequence=n) for n in range(3, 40)))
        assert not any(answer.duplicate for answer in answers)
        await node.clock.sleep(1)
        found = await everything(node)
        assert all_of(found) == [b"%d" % n for n in range(40)]
        first, second = await node.extents.look()
        assert (first.state, first.end, second.state) == ("sealed", 3, "open")
        assert second.after == (first.name if mode == "cp" else "")
        assert node.guards["sealed after a failed block"] == 1

    simulate(main())


def test_a_lost_answer_is_asked_for_again_and_does_not_seal() -> None:
    async def main() -> None:
        node = await node_in(World())
        lost = iter([Unknown("lost")])
        node.store.after = lambda table, _: next(lost, None) if table is LOG_BLOCKS else None
        assert (await node.put(b"a")).first == 0
        assert [extent.state for extent in await node.extents.look()] == ["open"]
        assert node.guards["block written again after a lost answer"] == 1

    simulate(main())


def test_a_seal_whose_answer_stays_lost_makes_it_unknown_and_is_made_up_for() -> None:
    async def main() -> None:
        node = await node_in(World())
        await node.put(b"0", producer=P, sequence=1)
        blocks = failing(1)
        node.store.before = lambda table, what: (
            Unknown("lost") if table is LOG_EXTENTS and isinstance(what, Cas) else blocks(table, what)
        )
        with pytest.raises(Unknown, match="may be there"):
            await node.put(b"1", producer=P, sequence=2)
        with pytest.raises(Unavailable, match="being sealed"):
            await node.put(b"1", producer=P, sequence=2)
        node.store.before = lambda _, __: None
        await node.turn()
        assert (await node.put(b"1", producer=P, sequence=2)).duplicate is False
        await node.clock.sleep(1)
        assert all_of(await everything(node)) == [b"0", b"1"]

    simulate(main())


def test_what_two_broken_writers_hand_back_waits_for_both_seals() -> None:
    """Else what one of them may have written would be in its extent, and in the next one, too."""

    async def main() -> None:
        world, nodes = World(), {}
        node, other = [await node_in(world, name, nodes, lease_s=2.0) for name in "ab"]
        await node.put(b"0")
        node.writers.follow({"a": 2}, {"a"})
        await node.writers.turn()
        early, late = node.writers.accepting()

        def before(table: Table, what: Batch | Cas) -> Unavailable | Unknown | None:
            if table is LOG_BLOCKS and isinstance(what, Batch) and what.partition[2] == early.extent.name:
                return Unavailable("told to")
            sealed = {change.key for change in what.changes} if isinstance(what, Cas) else set()
            held = (early.extent.name,) in sealed and not late.broken  # until the other writer has broken, too
            return Unknown("told to") if held or (late.extent.name,) in sealed else None

        def after(table: Table, what: Batch | Cas) -> Unknown | None:
            there = table is LOG_BLOCKS and isinstance(what, Batch) and what.partition[2] == late.extent.name
            return Unknown("told to") if there else None

        node.store.before, node.store.after = before, after
        first, second = await asyncio.gather(node.put(b"1"), node.put(b"2"), return_exceptions=True)
        assert late.broken and isinstance(second, Unknown)
        assert not isinstance(first, Exception) and first.extent not in (early.extent.name, late.extent.name)
        del nodes["a"]
        node.writers.abandon()
        await node.lease.stop()
        for _ in range(5):  # the other node finds the end of what the first one left
            await other.clock.sleep(2)
            await other.turn()
        assert sorted(all_of(await everything(other))) == [b"0", b"1", b"2"]

    simulate(main())


def test_a_full_disk_refuses_and_the_extent_goes_on_afterwards() -> None:
    async def main() -> None:
        node = await node_in(World())
        await node.put(b"0", producer=P, sequence=1)
        node.store.before = lambda table, _: Full("no room") if table is LOG_BLOCKS else None
        for number in range(3):
            with pytest.raises(Full):
                await node.put(b"%d" % number, producer=P, sequence=2)
        node.store.before = lambda _, __: None
        answer = await node.put(b"1", producer=P, sequence=2)
        assert (answer.first, answer.duplicate) == (1, False)
        assert (await node.put(b"1", producer=P, sequence=2)) == type(answer)(answer.extent, 1, 1, True)
        assert len(await node.extents.look()) == 1

    simulate(main())


def test_a_disk_that_is_full_while_several_blocks_are_under_way_seals_nothing() -> None:
    async def main() -> None:
        node = await node_in(World())
        await node.put(b"0")
        node.store.before = lambda table, _: Full("no room") if table is LOG_BLOCKS else None
        bodies = [bytes([number]) * 500_000 for number in range(1, 7)]  # two of them are a block
        refused = await asyncio.gather(*[node.put(body) for body in bodies], return_exceptions=True)
        assert [type(one) for one in refused] == [Full] * len(bodies)
        node.store.before = lambda _, __: None
        assert (await node.put(b"1")).first == 1
        await node.clock.sleep(1)
        assert all_of(await everything(node)) == [b"0", b"1"]
        assert [extent.state for extent in await node.extents.look()] == ["open"]

    simulate(main())


@pytest.mark.parametrize("mode", ["ap", "cp"])
def test_the_extent_of_a_dead_writer_is_sealed_with_all_that_it_confirmed(mode: str) -> None:
    async def main() -> None:
        world, nodes = World(), {}
        a, b = await node_in(world, "a", nodes, mode=mode), await node_in(world, "b", nodes, mode=mode)
        for number in range(5):
            await world.clients[0].spawn(a.put(b"%d" % number, producer=P, sequence=number + 1))
        world.clients[0].crash()
        del nodes["a"]
        await b.turn()
        for _ in range(20):
            await b.clock.sleep(1)
            await b.turn()
        first, *others = b.extents.known()
        assert (first.state, first.end) == ("sealed", 5)
        assert first.bytes == 5 * 49
        assert len(others) == (mode == "cp")
        again = await b.put(b"4", producer=P, sequence=5)
        assert again.duplicate
        with pytest.raises(Invalid, match="sequence 7 came, 6 is next"):
            await b.put(b"6", producer=P, sequence=7)
        assert (await b.put(b"5", producer=P, sequence=6)).first == 0
        await b.clock.sleep(1)
        assert all_of(await everything(b)) == [b"%d" % n for n in range(6)]

    simulate(main())


def test_a_seal_stops_before_a_gap_and_what_lands_later_is_never_seen() -> None:
    async def main() -> None:
        world, nodes = World(), {}
        a, b = await node_in(world, "a", nodes), await node_in(world, "b", nodes)
        await world.clients[0].spawn(a.put(b"0"))
        held = asyncio.Event()
        write, kept = a.store.inner.write, []

        async def slow(batch: Batch) -> None:
            if batch.table is LOG_BLOCKS and batch.rows[0][0][0] == 1:
                kept.append(batch)
                await held.wait()
            await write(batch)

        a.store.inner.write = slow  # type: ignore[method-assign]
        body = b"x" * 700_000
        puts = [world.clients[0].spawn(a.put(body)) for _ in range(3)]
        await b.clock.sleep(2)
        world.clients[0].crash()
        for _ in range(20):
            await b.clock.sleep(1)
            await b.turn()
        (extent,) = b.extents.known()
        assert (extent.state, extent.end) == ("sealed", 1)
        assert b.guards["seal short of the last block"] == 1
        await b.store.inner.write(kept[0])  # the block that was on its way
        assert await stored(b, extent) == [b"0"]
        assert not any(put.done() for put in puts)

    simulate(main())


def test_a_writer_that_was_paused_beyond_its_lease_confirms_nothing() -> None:
    async def main() -> None:
        world, nodes = World(), {}
        a, b = await node_in(world, "a", nodes), await node_in(world, "b", nodes)
        client = world.clients[0]
        await client.spawn(a.put(b"0"))
        put = client.spawn(a.put(b"1"))
        await b.clock.sleep(0)
        client.pause(60)
        for _ in range(30):
            await b.clock.sleep(1)
            await b.turn()
        (extent,) = b.extents.known()
        assert extent.sealed
        await b.clock.sleep(60)
        error = put.exception()
        assert isinstance(error, Unknown | Unavailable)
        with pytest.raises(Unavailable):
            await client.spawn(a.put(b"2"))

    simulate(main())


def test_of_two_sealers_one_is_first_and_both_have_its_end() -> None:
    async def main() -> None:
        node = await node_in(World())
        await node.put(b"0", b"1")
        (extent,) = await node.extents.look()
        one, other = await asyncio.gather(node.extents.seal(extent, 2), node.extents.seal(extent, 1))
        assert one.end == other.end
        (now,) = await node.extents.look()
        assert (now.state, now.end) == ("sealed", one.end)

    simulate(main())


# -- rolling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ap", "cp"])
def test_an_extent_is_sealed_at_its_size_and_nobody_waits(mode: str) -> None:
    async def main() -> None:
        node = await node_in(World(), mode=mode, extent_bytes=65_536)
        bodies = [b"%06d" % number * 100 for number in range(1_000)]
        for at in range(0, 1_000, 20):
            await asyncio.gather(*(node.put(body) for body in bodies[at : at + 20]))
        await node.clock.sleep(1)
        found = await everything(node)
        assert sorted(all_of(found)) == bodies
        extents = node.extents.known()
        sealed = [extent for extent in extents if extent.sealed]
        assert 7 <= len(sealed) <= 10
        assert all(65_536 <= (extent.bytes or 0) <= 2 * 65_536 for extent in sealed)
        if mode == "cp":
            assert [extent.after for extent in extents[1:]] == [extent.name for extent in extents[:-1]]
            assert all_of(found) == bodies

    simulate(main())


def test_a_producer_goes_on_in_the_next_extent_where_it_was() -> None:
    async def main() -> None:
        node = await node_in(World(), extent_bytes=65_536)
        answers = []
        for start in range(0, 300, 30):
            answers += await asyncio.gather(
                *(node.put(b"%06d" % n * 100, producer=P, sequence=n + 1) for n in range(start, start + 30))
            )
        await node.clock.sleep(1)
        assert all_of(await everything(node)) == [b"%06d" % n * 100 for n in range(300)]
        assert len({answer.extent for answer in answers}) >= 2
        again = await node.put(b"x", producer=P, sequence=1)
        assert again.duplicate and again.extent == ""
        bound = await read_bound(node.place, P)
        old = node.extents.known()[0]
        assert bound.extent != old.name
        size, last = await recover(node.place, old)
        assert (size, last[P]) == (old.bytes, len([a for a in answers if a.extent == old.name]))

    simulate(main())


def test_a_confirmed_chunk_is_remembered_by_its_place_and_not_kept() -> None:
    """A producer's last chunks are recognised when they come again: 64 of a megabyte each would be 64 MB."""

    async def main() -> None:
        node = await node_in(World())
        first = await node.put(b"x" * 1000, producer=P, sequence=1)
        (writer,) = node.writers.accepting()
        assert [item.chunk for item in writer.producers[P].recent] == [b""]
        again = await node.put(b"x" * 1000, producer=P, sequence=1)
        assert (again.extent, again.first, again.duplicate) == (first.extent, first.first, True)

    simulate(main())


def test_an_old_extent_is_sealed_so_that_it_can_be_dropped() -> None:
    async def main() -> None:
        node = await node_in(World(), consumed_s=0.0)
        await node.put(b"x")
        await node.clock.sleep(30)
        await node.turn()
        assert [extent.state for extent in node.extents.known()] == ["open"]
        await node.clock.sleep(40)
        await node.turn()
        await node.clock.sleep(1)
        assert [(extent.state, extent.end) for extent in node.extents.known()] == [("sealed", 1)]

    simulate(main())


def test_nothing_is_opened_below_what_was_dropped() -> None:
    async def main() -> None:
        world = World()
        node = await node_in(world)
        await node.put(b"x")
        await node.writers.close(seal=True)
        (old,) = node.extents.known()
        await node.extents.drop(old)
        assert await node.extents.look() == []
        slow = await node_in(world, "b")
        slow.clock.step(-5)  # type: ignore[attr-defined]
        opened = await slow.put(b"y")
        await node.extents.raise_first()
        world.clients[0].clock.step(-60)
        other = await node_in(world, "c")
        other.clock.step(-60)  # type: ignore[attr-defined]
        late = await other.put(b"z")
        assert late.extent > opened.extent
        assert {extent.name for extent in await node.extents.look()} == {opened.extent, late.extent}

    simulate(main())


def test_a_list_begins_where_it_did_when_an_extent_is_opened_meanwhile() -> None:
    async def main() -> None:
        world = World()
        node, other = await node_in(world), await node_in(world, "b")
        await node.put(b"x")
        await node.writers.close(seal=True)
        (old,) = node.extents.known()
        await node.extents.drop(old)
        read, opened = node.extents._read, []

        async def overtaken(*asked: Any) -> Any:
            found = await read(*asked)
            opened.append((await other.put(b"y")).extent)
            return found

        await other.put(b"y")
        await other.writers.close(seal=True)
        other = await node_in(world, "c")
        node.extents._read = overtaken  # type: ignore[method-assign]
        await node.extents.raise_first()
        assert node.guards["first not raised"] == 1
        node.extents._read = read  # type: ignore[method-assign]
        assert set(opened) < {extent.name for extent in await node.extents.look()}

    simulate(main())


# -- nodes ------------------------------------------------------------------------------------------------------------


def test_a_producer_that_comes_to_another_node_is_sent_to_the_one_it_is_bound_to() -> None:
    async def main() -> None:
        world, nodes = World(), {}
        a, b = await node_in(world, "a", nodes), await node_in(world, "b", nodes)
        first = await a.put(b"0", producer=P, sequence=1)
        second, third = await asyncio.gather(b.put(b"1", producer=P, sequence=2), b.put(b"2", producer=P, sequence=3))
        assert first.extent == second.extent == third.extent
        assert (await b.put(b"1", producer=P, sequence=2)) == type(first)(first.extent, 1, 1, True)
        own = await b.put(b"x")
        assert own.extent != first.extent

    simulate(main())


def test_a_chain_has_one_writer_and_others_send_to_it() -> None:
    async def main() -> None:
        world, nodes = World(), {}
        a, b = await node_in(world, "a", nodes, mode="cp"), await node_in(world, "b", nodes, mode="cp")
        answers = [await node.put(b"x") for node in (a, b, a, b)]
        assert [answer.first for answer in answers] == [0, 1, 2, 3]
        assert len({answer.extent for answer in answers}) == 1

    simulate(main())


def test_two_nodes_that_begin_a_chain_at_once_have_one() -> None:
    async def main() -> None:
        world, nodes = World(), {}
        a, b = await node_in(world, "a", nodes, mode="cp"), await node_in(world, "b", nodes, mode="cp")
        answers = await asyncio.gather(*(node.put(b"x") for node in (a, b)), return_exceptions=True)
        assert all(not isinstance(answer, Exception) or isinstance(answer, Unavailable) for answer in answers)
        (extent,) = await a.extents.look()
        assert extent.state == "open"

    simulate(main())


def test_a_producer_that_was_silent_beyond_the_retention_is_told_so() -> None:
    async def main() -> None:
        node = await node_in(World())
        await node.put(b"x", producer=P, sequence=1)
        await node.extents.look()
        node.writers._retire(node.writers.accepting()[0])
        await node.clock.sleep(1)
        await node.extents.drop(node.extents.known()[0])
        with pytest.raises(Conflict, match="silent for longer"):
            await node.put(b"x", producer=P, sequence=2)

    simulate(main())


def test_a_queue_that_holds_its_most_bytes_refuses() -> None:
    async def main() -> None:
        node = await node_in(World(), max_bytes=1_000)
        for _ in range(3):
            await node.put(b"x" * 200)
        with pytest.raises(Full, match="max_bytes"):
            await node.put(b"x" * 400)
        with pytest.raises(TooLarge, match="max_bytes is 1000"):  # to wait would be in vain
            await node.put(b"x" * 1_000)
        assert (await node.put(b"x" * 100)).first == 3

    simulate(main())


def test_cancelling_one_caller_does_not_cancel_the_block() -> None:
    async def main() -> None:
        node = await node_in(World())
        puts = [asyncio.ensure_future(node.put(b"%d" % n)) for n in range(3)]
        await node.clock.sleep(0)
        puts[1].cancel()
        answers = await asyncio.gather(*puts, return_exceptions=True)
        assert isinstance(answers[1], asyncio.CancelledError)
        await node.clock.sleep(1)
        assert all_of(await everything(node)) == [b"0", b"1", b"2"]

    simulate(main())


def test_a_drained_node_leaves_sealed_extents() -> None:
    async def main() -> None:
        node = await node_in(World())
        puts = [asyncio.ensure_future(node.put(b"%d" % n)) for n in range(10)]
        await node.clock.sleep(0.01)
        await node.writers.close(seal=True)
        assert {answer.first for answer in await asyncio.gather(*puts)} == set(range(10))
        assert [(extent.state, extent.end) for extent in await node.extents.look()] == [("sealed", 10)]
        with pytest.raises(Unavailable, match="another node"):
            await node.put(b"x")

    simulate(main())


# -- embedded ---------------------------------------------------------------------------------------------------------


async def test_embedded_extents_roll_survive_a_restart_and_are_dropped_whole(tmp_path: Path) -> None:
    chance = random.Random(5)
    store = await RocksStore.open(tmp_path, clock=RealClock(), room_bytes=0)
    node = await LogNode(store, RealClock(), chance, extent_bytes=1 << 20).start(alone=True)
    bodies = [chance.randbytes(100) for _ in range(40_000)]
    for at in range(0, 40_000, 4_000):
        await asyncio.gather(*(node.put(*bodies[k : k + 500]) for k in range(at, at + 4_000, 500)))
    node.lease._tasks[0].cancel()
    await store.close()

    store = await RocksStore.open(tmp_path, clock=RealClock(), room_bytes=0)
    node = await LogNode(store, RealClock(), random.Random(6), extent_bytes=1 << 20).start(alone=True)
    await node.extents.look()
    await node.turn()
    found = await everything(node)
    assert sorted(all_of(found)) == sorted(bodies)
    assert all(extent.sealed for extent in node.extents.known())
    await node.lease.stop()
    await store.close()


async def test_embedded_what_comes_during_an_fsync_is_durable_with_the_next(tmp_path: Path) -> None:
    store = await RocksStore.open(tmp_path, clock=RealClock(), room_bytes=0)
    node = await LogNode(store, RealClock(), random.Random(5)).start(alone=True)
    await node.put(b"first")
    go, flush, made = threading.Semaphore(0), store._worker._flush, 0

    def slow() -> None:
        nonlocal made
        go.acquire()
        flush()
        made += 1

    store._worker._flush, store._worker.average_s = slow, 1.0
    others = asyncio.create_task(store._worker.wait())
    async with asyncio.timeout(DEADLINE_S):
        while store.syncing is None:
            await asyncio.sleep(0)
        puts = []
        for number in range(3 * PIPELINE):  # one after the other, so that each would be a block
            puts.append(asyncio.create_task(node.put(b"%d" % number)))
            for _ in range(10):
                await asyncio.sleep(0)
        go.release()
        await others
        assert not any(put.done() for put in puts)
        go.release()
        assert [(await put).first for put in puts] == list(range(1, 3 * PIPELINE + 1))
    assert made == 2
    store._worker._flush = flush
    await node.lease.stop()
    await store.close()


@pytest.mark.parametrize("mode", ["ap", "cp"])
def test_what_was_written_before_under_the_same_lease_is_sealed_with_all_of_it(mode: str) -> None:
    async def main() -> None:
        node = await node_in(World(), mode=mode)
        for number in range(3):
            await node.put(b"%d" % number)
        node.writers.abandon()
        again = Writers(node.place, node.extents, node.watcher, node._forward)
        node.writers = again
        await node.turn()
        await node.put(b"3")
        await node.clock.sleep(1)
        await node.turn()
        assert all_of(await everything(node)) == [b"0", b"1", b"2", b"3"]

    simulate(main())
