"""What `change` says of a work queue is in force on all nodes when it returns: also for a get that waits there, and
whatever a node's maintenance knew of the queue before."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from capellini.model.message import NewMessage
from capellini.model.service import NackItem
from capellini.node.broker import Broker
from capellini.node.maintenance import Maintenance
from capellini.store.schema import TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

LIMITED = {"delivery_limit": 1, "dead_letters": "letters"}
UNLIMITED = {"delivery_limit": 0, "dead_letters": ""}


def simulate(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await test(World())

    run(main(), seed=1)


async def node(world: World, name: str) -> tuple[SimulatedClient, Broker]:
    client = world.client(name)
    await client.store.prepare(TABLES)
    return client, Broker(client.store, client.clock, client.random, name)


async def delivered_once(broker: Broker) -> NackItem:
    await broker.create("letters")
    await broker.create("jobs", options=LIMITED)
    await broker.put("jobs", [NewMessage(b"x")])
    (first,) = await broker.get("jobs", wait_s=5)
    return NackItem(first.receipt, 0.0)


def test_a_get_that_waits_on_another_node_goes_by_the_options_as_they_are_now() -> None:
    async def test(world: World) -> None:
        _, here = await node(world, "here")
        there_client, there = await node(world, "there")
        back = await delivered_once(here)
        waiting = there_client.spawn(there.get("jobs", wait_s=20))
        await here.change("jobs", UNLIMITED)
        await here.nack("jobs", [back])
        (again,) = await waiting
        assert (again.body, again.deliveries) == (b"x", 2)
        assert not (await here.statistics("letters")).ready

    simulate(test)


def test_maintenance_does_not_bring_back_options_that_were_changed() -> None:
    async def test(world: World) -> None:
        client, broker = await node(world, "here")
        back = await delivered_once(broker)
        maintenance = Maintenance(client.store, client.clock, client.random, broker)
        await maintenance.lease.start()
        while "queue:jobs" not in maintenance.owned:
            await maintenance._share()
        await broker.change("jobs", UNLIMITED)
        await broker.nack("jobs", [back])
        await maintenance._repair()
        (queue,) = [each for each in broker.open_queues.values() if each.place.name == "jobs"]
        assert not queue.place.options.delivery_limit
        await broker.change("jobs", {"ttl_s": 60})
        await maintenance._share()
        await maintenance._repair()
        assert queue.place.options.ttl_s == 60  # what it reads later, though nobody calls, counts
        await maintenance.stop()

    simulate(test)
