"""Log queues in several data centres: what goes on while they are cut from each other, and what they see after."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.log_centres import Centres
from tests.unit.log_world import LEASE_S, QUEUE, drained, put
from tests.unit.log_writers import simulate

from capellini.model.errors import StoreError, Unavailable
from capellini.node.node import examine
from capellini.queues.log.extents import Extents
from capellini.store.interface import Slice
from capellini.store.local import Nearby
from capellini.store.schema import QUEUES
from capellini.store.simulation.network import NOTICED_S
from capellini.store.simulation.world import World

LONG_S = 10 * LEASE_S  # a cut that outlasts leases and patience


async def two_centres(mode: str, ordered: str = "", **more: str) -> Centres:
    """dc1 with two replicas, a and b; dc2 with one, c; and a queue with a group."""
    centres = Centres()
    await centres.start(a="dc1", b="dc1", c="dc2", **more)
    node = centres.nodes["a"]
    await node.catalog.create(QUEUE, "log", {"mode": mode, "ordered": ordered})
    await (await node.queue()).create_group("g", "earliest", {})
    return centres


async def put_at(centres: Centres, name: str, *bodies: bytes) -> None:
    await centres.at(name, put(centres.nodes[name], list(bodies)))


async def all_of(centres: Centres, name: str, wait_s: float = 3.0) -> list[bytes]:
    return await centres.at(name, drained(centres.nodes[name], wait_s=wait_s))


def test_both_sides_of_a_cut_go_on_and_see_each_other_after() -> None:
    async def main() -> None:
        centres = await two_centres("ap")
        await put_at(centres, "a", b"a0")
        await put_at(centres, "c", b"c0")
        assert sorted(await all_of(centres, "b")) == [b"a0", b"c0"]  # from owners in both
        centres.cut()
        for number in range(1, 6):
            await put_at(centres, "a", b"a%d" % number)
            await put_at(centres, "c", b"c%d" % number)
            await asyncio.sleep(LONG_S / 5)
        assert sorted(await all_of(centres, "b")) == [b"a%d" % number for number in range(1, 6)]
        assert sorted(await all_of(centres, "c"))[:3] == [b"c1", b"c2", b"c3"]
        await put_at(centres, "c", b"c6")
        await put_at(centres, "a", b"a6")
        assert not centres.nodes["c"].lease.valid() and centres.nodes["c"].home.lease.valid()
        centres.heal()
        await asyncio.sleep(2 * LONG_S)
        assert sorted(await all_of(centres, "a")) == [b"a6", b"c6"]
        assert await all_of(centres, "c") == []

    simulate(main())


def test_of_a_chain_only_the_side_with_a_majority_goes_on() -> None:
    async def main() -> None:
        centres = await two_centres("cp", "total")
        await put_at(centres, "c", b"0")  # its writer is in what will be the minority
        centres.cut()
        with pytest.raises(StoreError):
            await put_at(centres, "c", b"lost")
        for number in range(1, 4):
            for _ in range(40):  # until the writer's lease is over
                try:
                    await put_at(centres, "a", b"%d" % number)
                    break
                except StoreError:
                    await asyncio.sleep(0.5)
        with pytest.raises(Unavailable):
            await put_at(centres, "c", b"refused")
        centres.heal()
        await asyncio.sleep(LONG_S)
        await put_at(centres, "c", b"4")
        found = [body for body in await all_of(centres, "c") if body != b"lost"]  # that one may be there: unknown
        assert found == [b"%d" % number for number in range(5)]

    simulate(main())


def test_nobody_ends_or_seals_what_is_of_another_home() -> None:
    async def main() -> None:
        centres = await two_centres("ap")
        await put_at(centres, "a", b"a0")
        await put_at(centres, "c", b"c0")
        incarnation = centres.nodes["c"].home.lease.incarnation
        centres.cut()
        await asyncio.sleep(LONG_S)
        centres.heal()
        await asyncio.sleep(LONG_S)
        await put_at(centres, "c", b"c1")
        assert centres.nodes["c"].home.lease.incarnation == incarnation
        for name in "abc":
            known = (await centres.nodes[name].queue()).extents.known()
            assert [extent.home for extent in known if not extent.sealed] == ["dc1", "dc2"]
            assert not any(extent.sealed for extent in known)

    simulate(main())


def test_a_node_that_dies_in_a_cut_is_followed_by_others_of_its_home() -> None:
    async def main() -> None:
        centres = await two_centres("ap", d="dc2")
        await put_at(centres, "c", b"c0", b"c1")
        centres.cut()
        await asyncio.sleep(LONG_S)
        await put_at(centres, "c", b"c2")
        centres.crash("c")
        await put_at(centres, "d", b"d0")
        found = await all_of(centres, "d", wait_s=LONG_S)
        assert sorted(found) == [b"c0", b"c1", b"c2", b"d0"]
        assert centres.nodes["d"].keeper.guards["extent of a dead writer sealed"] == 1
        centres.heal()
        await asyncio.sleep(LONG_S)
        assert await all_of(centres, "a") == []

    simulate(main())


def test_what_a_deleted_queue_left_is_cleared_in_every_home() -> None:
    async def main() -> None:
        centres = await two_centres("ap")
        await put_at(centres, "a", b"a0")
        await put_at(centres, "c", b"c0")
        a, c = centres.nodes["a"], centres.nodes["c"]
        places = [(await node.queue()).place for node in (a, c)]
        await centres.at("a", a.catalog.delete(QUEUE))
        await asyncio.sleep(2)
        assert await a.catalog.leftovers() == []  # the first look only notes it
        await asyncio.sleep(2)
        assert await a.catalog.leftovers() == [(QUEUE, 1, 0), (f"{QUEUE}@", 1, 0)]
        for _ in range(30):
            if await centres.at("a", a.keeper.clear(QUEUE, 1)):
                break
            await asyncio.sleep(1)
        else:
            raise AssertionError("it was not cleared")
        for place in places:
            assert await Extents(place).look() == []

    simulate(main())


def test_a_group_that_was_just_made_is_known_in_the_other_data_centre() -> None:
    async def main() -> None:
        centres = await two_centres("ap")
        for number in range(20):
            made = await centres.at("a", (await centres.nodes["a"].queue()).create_group(f"g{number}", "earliest", {}))
            found = await centres.at("c", (await centres.nodes["c"].queue()).groups.live(made.name))
            assert found.name == f"g{number}"

    simulate(main())


def test_shared_reads_come_from_here_only_while_the_others_do_not_answer() -> None:
    async def main() -> None:
        world = World(replicas={"dc1": 2, "dc2": 1})
        client = world.client("c", "dc2")
        await client.store.prepare((QUEUES,))
        nearby, slice = Nearby(client.store, client.clock), Slice(QUEUES, ("all",))
        assert (await nearby.read(slice))[1]
        for replica in world.replicas[:2]:
            world.cut(replica.name, "c")
            world.cut(replica.name, world.replicas[2].name)
        await client.clock.sleep(NOTICED_S + 0.1)
        for _ in range(10):
            assert not (await nearby.read(slice))[1]
            await client.clock.sleep(0.5)
        for replica in world.replicas[:2]:
            world.heal(replica.name, "c")
            world.heal(replica.name, world.replicas[2].name)
        await client.clock.sleep(3)
        assert (await nearby.read(slice))[1]

    simulate(main())


def test_a_node_that_is_cut_off_is_ready_and_says_so() -> None:
    async def main() -> None:
        centres = await two_centres("ap")
        a, c = centres.nodes["a"], centres.nodes["c"]
        assert not (await centres.at("c", examine(c.store, 1.0, False))).reasons
        centres.cut()
        await asyncio.sleep(NOTICED_S + 1)
        found = await centres.at("c", examine(c.store, 1.0, False))
        assert found.ready and found.cut is not None and "dc2 is cut off" in found.cut
        assert not (await centres.at("a", examine(a.store, 1.0, False))).reasons
        for replica in centres.world.replicas:
            centres.world.crash(replica)
        await asyncio.sleep(NOTICED_S + 1)
        assert (await centres.at("c", examine(c.store, 1.0, False))).down is not None

    simulate(main())
