"""Where new extents lie: on replicas that are up, at the level that these can give."""

from __future__ import annotations

import asyncio

from tests.unit.log_writers import LogNode, all_of, everything, node_in, simulate

from capellini.queues.log import names
from capellini.queues.log.placing import DOUBT_S, level_of, replicas_of, shown, unfit
from capellini.queues.log.writing import MOVE_S
from capellini.store.interface import Replica
from capellini.store.simulation.network import NOTICED_S
from capellini.store.simulation.world import World


def test_a_salt_changes_nothing_of_a_name_but_itself() -> None:
    name = names.make(1_763_324_049_123, 0, 12, "a-b", "0f")
    other = names.salted(name, 255)
    assert other == "1763324049123-ff12-a-b-0f" != name
    assert (names.writer_of(other), names.opened_of(other)) == (names.writer_of(name), names.opened_of(name))


def test_replicas_that_are_down_or_doubted_do_not_suit() -> None:
    replicas = (Replica("1", "x", True), Replica("2", "x", False), Replica("3", "y", False), Replica("4", "y", True))
    assert unfit(replicas, set(), "") == 2
    assert unfit(replicas, {"1", "2"}, "") == 3
    assert unfit(replicas, {"4"}, "x") == 1
    assert unfit((), {"1"}, "") == 0


def test_all_replicas_confirm_only_where_all_are_up() -> None:
    assert level_of("all", 0, False) == "all"
    assert level_of("all", 1, False) == level_of("all", 0, True) == "quorum"
    assert level_of("quorum", 0, False) == level_of("quorum", 2, True) == "quorum"


async def lies_at(node: LogNode, extent: str) -> set[str]:
    return {one.name for one in await replicas_of(node.place, extent)}


def test_an_extent_is_opened_where_all_replicas_are_up() -> None:
    async def main() -> None:
        world = World(replicas=5)
        world.crash(world.replicas[1])
        await asyncio.sleep(NOTICED_S + 1)
        for number in range(12):
            node = await node_in(world, f"n{number}", level="all")
            assert (await node.put(b"x")).count == 1
            (mine,) = [extent for extent in node.extents.known() if extent.node == f"n{number}"]
            assert mine.level == "all"
            assert world.replicas[1].name not in await lies_at(node, mine.name)
            assert not any("down" in one for one in await shown(node.place, mine.name))

    simulate(main())


def test_where_no_name_has_all_replicas_up_a_quorum_confirms_until_one_has() -> None:
    async def main() -> None:
        world = World(replicas=3)
        world.crash(world.replicas[0])
        await asyncio.sleep(NOTICED_S + 1)
        node = await node_in(world, level="all")
        await node.put(b"first")
        (extent,) = node.extents.known()
        assert extent.level == "quorum"
        assert node.guards["opened at a quorum: not all replicas are up"] == 1
        assert f"{world.replicas[0].name} (down)" in await shown(node.place, extent.name)
        world.restart(world.replicas[0])
        await node.clock.sleep(MOVE_S + 1)
        await node.turn()
        await node.put(b"second")
        await node.clock.sleep(1)
        assert [one.level for one in node.extents.known()] == ["quorum", "all"]
        assert all_of(await everything(node)) == [b"first", b"second"]

    simulate(main())


def test_a_replica_that_dies_costs_producers_nothing_but_time() -> None:
    async def main() -> None:
        world = World(replicas=5)
        node = await node_in(world, level="all")
        await node.put(b"%03d" % 0)
        first = node.extents.known()[0]
        holders = await lies_at(node, first.name)
        lost = next(one for one in world.replicas if one.name in holders)
        tasks = [asyncio.ensure_future(node.put(b"%03d" % number)) for number in range(1, 50)]
        world.crash(lost)
        tasks += [asyncio.ensure_future(node.put(b"%03d" % number)) for number in range(50, 100)]
        await asyncio.gather(*tasks)
        await node.clock.sleep(1)
        assert (await node.extents.look())[0].sealed and first.level == "all"
        last = node.extents.known()[-1]
        assert last.level == "all" and lost.name not in await lies_at(node, last.name)
        assert node.guards["sealed after a failed block"] >= 1
        assert all_of(await everything(node)) == [b"%03d" % number for number in range(100)]

    simulate(main())


def test_a_replica_that_answers_here_but_not_the_others_is_doubted() -> None:
    async def main() -> None:
        world = World(replicas=3)
        node = await node_in(world, level="all")
        await node.put(b"0")
        for other in world.replicas[1:]:
            world.cut(world.replicas[0].name, other.name)
        await asyncio.gather(*(node.put(b"%d" % number) for number in range(1, 10)))
        assert node.guards["replicas doubted: a block failed though all seemed up"] >= 1
        assert node.extents.known()[-1].level == "quorum"
        for other in world.replicas[1:]:
            world.heal(world.replicas[0].name, other.name)
        await node.clock.sleep(DOUBT_S + MOVE_S)
        await node.turn()
        await node.put(b"10")
        await node.clock.sleep(1)
        assert node.extents.known()[-1].level == "all"
        assert sorted(all_of(await everything(node)), key=int) == [b"%d" % number for number in range(11)]

    simulate(main())
