"""What is known to be in the store is had at once: nobody waits as for what another node may put meanwhile."""

from __future__ import annotations

from capellini.model.message import Entry, NewMessage
from capellini.node.broker import Broker
from capellini.queues.work.block import block_of, pack
from capellini.queues.work.shelf import Room, Shelf
from capellini.store.schema import TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

MESSAGES = 120


async def _two_nodes() -> list[tuple[SimulatedClient, Broker]]:
    world = World()
    clients = [world.client(name) for name in ("one", "other")]
    await clients[0].store.prepare(TABLES)
    return [(client, Broker(client.store, client.clock, client.random)) for client in clients]


def test_a_bucket_for_which_there_is_no_room_is_known_to_be_in_the_store() -> None:
    shelf = Shelf(Room(limit=3_000), bucket_size=10)
    for first in (0, 5, 10, 20):
        shelf.add(block_of(first, pack([Entry(b"x" * 800)]), 0))
    assert [shelf.has(bucket) for bucket in range(3)] == [False, True, True]
    assert [shelf.has_more(id) for id in (0, 7, 10, 20)] == [True, True, False, False]
    shelf.forget(0)
    assert not shelf.has_more(0)


def test_single_messages_that_another_node_put_come_one_after_the_other_without_a_pause() -> None:
    async def main() -> None:
        (one, putting), (other, getting) = await _two_nodes()
        await one.spawn(putting.create("q", "work", {}))
        for number in range(MESSAGES):
            await one.spawn(putting.put("q", [NewMessage(b"%d" % number)]))
        await other.spawn(getting.get("q", 1, 5.0))
        for _ in range(MESSAGES - 1):
            assert len(await other.spawn(getting.get("q", 1, 0.0))) == 1

    run(main())


def test_messages_for_which_there_was_no_room_come_one_after_the_other_without_a_pause() -> None:
    async def main() -> None:
        client = World().client("node")
        await client.store.prepare(TABLES)
        broker = Broker(client.store, client.clock, client.random)
        broker.room.limit = 20_000
        await client.spawn(broker.create("q", "work", {"bucket_size": 40}))
        for _ in range(MESSAGES):
            await client.spawn(broker.put("q", [NewMessage(b"x" * 1_000)]))
        for _ in range(MESSAGES):
            assert len(await client.spawn(broker.get("q", 1, 0.0))) == 1

    run(main())


def test_what_lies_above_an_id_that_nobody_writes_is_looked_for_in_its_own_turn() -> None:
    """Another node sees a gap, messages that are taken, and above them one that it has not read."""

    async def main() -> None:
        (one, putting), (other, getting) = await _two_nodes()
        await one.spawn(putting.create("q", "work", {"bucket_size": 10, "repair_after_s": 60.0}))
        queue = putting.opened(await one.spawn(putting.catalog.live("q")))
        await one.spawn(queue.putting.reserve())  # an id that is never written
        await one.spawn(putting.put("q", [NewMessage(b"taken")]))
        assert len(await one.spawn(putting.get("q", 1, 5.0))) == 1
        assert not await other.spawn(getting.get("q", 1, 0.0))
        getting.opened(await other.spawn(getting.catalog.live("q"))).place.shelf.forget(0)
        await one.spawn(putting.put("q", [NewMessage(b"above")]))
        assert len(await other.spawn(getting.get("q", 1, 5.0))) == 1

    run(main())
