"""A stage for stories of timed queues, told by hand in a simulated world: nodes with one queue, a store that does what
it is asked, and writes that are kept back until the story wants them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

from capellini.model.errors import Unknown
from capellini.model.message import Delivery, NewMessage
from capellini.model.service import Put
from capellini.proof.history import History
from capellini.proof.timed_nodes import TimedNode, TimedNodes
from capellini.queues.timed.queue import TimedQueue
from capellini.store.interface import Batch
from capellini.store.schema import TABLES
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import EPOCH_S, World


class Stage:
    """Some nodes with the timed queue "q", nothing wrong with the store."""

    def __init__(self, nodes: TimedNodes) -> None:
        self.nodes = nodes
        self.world = nodes.world

    @property
    def living(self) -> list[TimedNode]:
        return cast(list[TimedNode], self.nodes.living)

    async def do(self, node: TimedNode, work: Any) -> Any:
        return await node.client.spawn(work)

    async def until(self, true: Callable[[], bool], within_s: float = 60.0) -> None:
        end_s = self.world.loop.time() + within_s
        while not true():
            assert self.world.loop.time() < end_s, "it did not come to that"
            await asyncio.sleep(0.05)

    def holder(self, shard: int = 0) -> TimedNode | None:
        for node in self.living:
            for (name, _), holders in node.keeper._holders.items():
                found = holders.get(shard) if name == "q" else None
                if found is not None and found.acts():
                    return node
        return None

    async def held(self, but: TimedNode | None = None) -> TimedNode:
        await self.until(lambda: self.holder() not in (None, but))
        node = self.holder()
        assert node is not None
        return node

    def guard(self, name: str) -> int:
        return self.nodes.guards()[name]

    async def queue(self, node: TimedNode) -> TimedQueue:
        return node.keeper.queue(await self.do(node, node.catalog.show("q")))

    async def put(self, node: TimedNode, body: bytes = b"m", **more: Any) -> str:
        (answer,) = await self.do(node, node.broker.put("q", [NewMessage(body, **more)]))
        assert isinstance(answer, Put)
        return answer.id

    async def get(self, node: TimedNode, wait_s: float = 5.0, queue: str = "q") -> list[Delivery]:
        found: list[Delivery] = await self.do(node, node.broker.get(queue, 10, wait_s, 30.0))
        return found


def told(story: Callable[[Stage], Awaitable[None]], nodes: int = 1, **options: Any) -> None:
    async def main() -> None:
        world = World()
        first = world.client("setup")
        await first.store.prepare(TABLES)
        first.crash()
        stage = Stage(TimedNodes(world, History([], EPOCH_S), random.Random(1), nodes))
        node = stage.living[0]
        await stage.do(node, node.broker.create("dead", "timed", {"shards": 1}))
        await stage.do(node, node.broker.create("q", "timed", {"shards": 1, **options}))
        await stage.held()
        await story(stage)

    run(main(), 1)


class KeptBack:
    """Writes of one node that `which` picks are not answered; they land when told to, stamped then: as if their
    writer's clock were ahead of everybody's."""

    def __init__(self, node: TimedNode, which: Callable[[Batch], bool]) -> None:
        self._store: Any = node.client.store
        self._write, self._which = self._store.write, which
        self.batches: list[Batch] = []
        self._store.write = self._kept

    async def _kept(self, batch: Batch) -> None:
        if not self._which(batch):
            return await self._write(batch)
        if batch not in self.batches:
            self.batches.append(batch)
        raise Unknown("kept back")

    def no_more(self) -> None:
        self._store.write = self._write

    async def land(self, node: TimedNode) -> None:
        assert self.batches
        for batch in self.batches:
            await node.client.spawn(node.client.store.write(batch))
