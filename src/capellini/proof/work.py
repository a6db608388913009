"""One simulated run of work queues: a pure function of its seed."""

from __future__ import annotations

import random

from capellini.proof.admin import Admin
from capellini.proof.checkers import check
from capellini.proof.clients import Consumer, Producer
from capellini.proof.history import History
from capellini.proof.nodes import Nodes
from capellini.proof.plan import MAX_SKEW_S, Plan, plan_of
from capellini.proof.running import Run, prepared
from capellini.proof.suites import Result
from capellini.store.interface import Slice
from capellini.store.schema import BUCKETS
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import EPOCH_S, World


def simulate(seed: int) -> Result:
    return run(_run(seed), seed)


async def _run(seed: int) -> Result:
    plan = plan_of(seed)
    world = World(faults=plan.faults)
    history = History([], EPOCH_S, MAX_SKEW_S, plan.skew_kept)
    await prepared(world, history)
    return await _WorkRun(plan, world, history, random.Random(f"work/{seed}")).result(seed, lambda: check(history))


class _WorkRun(Run):
    def __init__(self, plan: Plan, world: World, history: History, chance: random.Random) -> None:
        super().__init__(plan, world, history, chance)
        self.nodes = Nodes(world, history, chance, plan.nodes)
        self._admin = Admin(self.nodes, chance, plan)
        queues = list(plan.queues)
        main = [queue for queue in queues if queue != "dead"]
        self._producers = [Producer(f"p{at}", self.nodes, chance, main) for at in range(plan.producers)]
        self._consumers = [Consumer(f"c{at}", self.nodes, chance, queues) for at in range(plan.consumers)]
        self._drainer = Consumer("drain", self.nodes, chance, queues)

    async def _left(self) -> list[str]:
        """Buckets with rows, except the last one of a living generation: that one still takes messages."""
        node = self.nodes.pick()
        catalog = node.broker.catalog
        last: dict[tuple[str, int], int] = {}
        for record in await node.client.spawn(catalog.queues()):
            last[record.name, record.generation] = (await node.client.spawn(node.broker.pointers(record.name))).last
        left: list[str] = []
        for table, key in sorted(self._world.partitions, key=repr):
            if table != BUCKETS.name:
                continue
            queue, generation, bucket = str(key[0]), int(key[1]), int(key[2])
            page = await node.client.spawn(node.client.store.read(Slice(BUCKETS, key, limit=1)))
            if page.rows and "dropped" not in page.static and last.get((queue, generation)) != bucket:
                left.append(f"bucket {bucket} of {queue}, generation {generation}, has rows and was not dropped")
        return left
