"""The write side of log queues: group commit, order, and the nodes that share it; simulated and embedded."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest
from tests.unit.log_writers import LogNode, P, all_of, everything, node_in, simulate, stored

from capellini.model.clock import RealClock
from capellini.model.errors import Conflict, Full, Invalid, TooLarge, Unavailable
from capellini.model.log import Appended
from capellini.queues.log import names
from capellini.queues.log.appending import GATHER_BYTES, GATHER_S, PIPELINE, Crowd, gather_s
from capellini.queues.log.rows import Block, read_blocks, unbroken
from capellini.queues.log.tail import Tail
from capellini.queues.log.writing import full_bytes
from capellini.store.interface import Batch, Cas, Level, Table
from capellini.store.rocks import RocksStore
from capellini.store.schema import LOG_BLOCKS
from capellini.store.simulation.world import World

DEADLINE_S = 30.0


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


def written(crowd: Crowd, per_s: float, seconds: float, callers: int = 0) -> list[int]:
    """The chunks of each block of a simulated extent whose store takes 10 ms. `callers`: so many put one chunk after
    the other; without, chunks come at a rate of their own."""
    step_s, due, since_s = 0.001, 0.0, 0.0
    lands: list[float] = []
    blocks: list[int] = []
    waiting, back = callers, 0
    for _ in range(int(seconds / step_s)):
        since_s += step_s
        lands = [left - step_s for left in lands]
        if lands and lands[0] <= 0:
            lands.pop(0)
            waiting, back = waiting + back, 0
        if not callers:
            due += per_s * step_s
            waiting, due = waiting + int(due), due % 1
        wait_s = gather_s(False, 1e5, since_s, 0)
        if waiting and (wait_s <= 0 or crowd.there(waiting)):
            crowd.sent(waiting, wait_s > 0)
            blocks.append(waiting)
            lands.append(0.01)
            if callers:
                back = waiting
            waiting, since_s = 0, 0.0
    return blocks


def test_who_puts_at_a_rate_of_its_own_is_gathered_for() -> None:
    blocks = written(Crowd(), 100.0, 10.0)
    assert len(blocks) <= 1.2 * 10.0 / GATHER_S and sum(blocks) >= 990


@pytest.mark.parametrize("callers", [1, 16])
def test_nobody_is_gathered_for_where_all_wait_already(callers: int) -> None:
    blocks = written(Crowd(), 0.0, 10.0, callers)
    assert set(blocks) == {callers}
    assert len(blocks) > 0.85 * 10.0 / 0.011, "one store's time each, and now and then a look who else comes"


def test_callers_that_become_fewer_are_not_waited_for_long() -> None:
    crowd = Crowd()
    written(crowd, 0.0, 1.0, 16)
    blocks = written(crowd, 0.0, 10.0, 3)
    assert len(blocks) > 0.7 * 10.0 / 0.011


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
        assert all(isinstance(answer, (Appended, Unavailable)) for answer in answers)
        assert any(isinstance(answer, Appended) for answer in answers)
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
