"""Nodes with timed and log queues in a simulated world, which move delayed messages into the log when they are due."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from tests.unit.log_world import QUEUE, LogNode, Wires

from capellini.model.clock import Clock
from capellini.model.errors import Unavailable, Unknown
from capellini.model.message import Entry
from capellini.model.timed import Scheduled
from capellini.queues.log.delaying import Delaying
from capellini.queues.resting import rest
from capellini.queues.timed.keeper import TimedKeeper
from capellini.store.schema import TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.world import World

SKEW_S = 0.5
ANSWER_S = 15.0
T = TypeVar("T")


class DelayNode(LogNode):
    """A node with timed and log queues, and the loop that moves what is due."""

    def __init__(self, client: SimulatedClient, wires: Wires) -> None:
        super().__init__(client.store, client.clock, client.random, client.name, wires)
        self.client = self.own = client
        self.timed = TimedKeeper(
            client.store, client.clock, client.random, self.catalog, self.lease, self.watcher,
            self.broker.events, SKEW_S, wires, self.put_moved,
        )  # fmt: skip
        self.delaying = Delaying(client.clock, self.catalog, self.timed, self.keeper)
        self.lease.on_lost = self._lost

    def _lost(self, why: str) -> None:
        self.keeper.emergency_stop(why)
        self.timed.emergency_stop(why)

    async def turn(self) -> None:
        if not self.lease.valid():
            await self.lease.start()
        await super().turn()
        await self.timed.turn()

    async def moving(self) -> None:
        while True:
            self.delaying.turn()
            await self.clock.sleep(0.1)

    async def put_later(self, bodies: Sequence[bytes], delay_s: float, name: str = QUEUE) -> list[Any]:
        record = await self.catalog.live(name)
        due_ms = int((self.clock.now_s() + delay_s) * 1000)
        return await self.delaying.put(record, [Scheduled(Entry(body), due_ms) for body in bodies])


async def done_by(clock: Clock, node: DelayNode, work: Coroutine[Any, Any, T]) -> T:
    """Done by that node; one that dies does not answer."""
    done = asyncio.Event()
    task = node.own.spawn(work)
    task.add_done_callback(lambda _: done.set())
    await rest(clock, done, ANSWER_S)
    if not task.done():
        task.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody hears of it
        raise Unknown(f"node {node.name} did not answer")
    return task.result()


class BothWires(Wires):
    """To timed and log queues of a node, which does what it is asked for itself."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    async def call(self, node: str, queue: str, operation: str, payload: bytes) -> bytes:
        target = self.nodes.get(node)
        if not isinstance(target, DelayNode) or target.own.crashed:
            raise Unavailable(f"node {node} cannot be reached")
        keeper = target.keeper if operation.startswith("log.") else target.timed
        return await done_by(self._clock, target, keeper.serve(queue, operation, payload))


async def started(world: World, wires: Wires, name: str) -> DelayNode:
    node = DelayNode(world.client(name), wires)
    await node.own.spawn(node.lease.start())
    node.own.spawn(node.turns())
    node.own.spawn(node.moving())
    return node


async def delayed_world(
    names: str = "a", faults: Faults | None = None, **options: Any
) -> tuple[World, dict[str, DelayNode]]:
    world = World(faults=faults)
    first = world.client("setup")
    await first.store.prepare(TABLES)
    wires = BothWires(first.clock)
    nodes = {name: await started(world, wires, name) for name in names}
    await nodes[names[0]].catalog.create(QUEUE, "log", options)
    await (await nodes[names[0]].queue()).create_group("g", "earliest", {})
    return world, nodes
