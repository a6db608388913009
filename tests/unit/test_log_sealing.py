"""The ends of extents: sealed after a failed block or a dead writer, or at their size; and how it goes on then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.log_writers import P, all_of, everything, node_in, simulate, stored

from capellini.model.errors import Full, Invalid, Unavailable, Unknown
from capellini.queues.log.sequences import read_bound, recover
from capellini.queues.log.writing import Writers
from capellini.store.interface import Batch, Cas, Table
from capellini.store.schema import LOG_BLOCKS, LOG_EXTENTS
from capellini.store.simulation.world import World


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
