"""One simulated run of work queues: a pure function of its seed.

turbulence                                      calm                    drain              check
nodes crash, clocks differ, answers get lost │  all is well; promise  │ take and ack     │ wait until space was
producers, consumers, an admin at work       │  10 is looked at       │ until all empty  │ given back; checkers
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

from capellini.proof.admin import Admin
from capellini.proof.checkers import check
from capellini.proof.clients import Consumer, Producer
from capellini.proof.history import History
from capellini.proof.nodes import Nodes
from capellini.proof.plan import MAX_SKEW_S, Plan, plan_of
from capellini.proof.suites import Result
from capellini.store.interface import Slice
from capellini.store.schema import BUCKETS, TABLES
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import CALM_S, EPOCH_S, World

SETTLED_S: Final = 3.0  # after the end of all faults, until calls that met them are over
CALM_WORK_S: Final = 8.0
EMPTY_S: Final = 14.0  # nothing came for so long: longer than any visibility, delay or resumed move takes
GIVEN_BACK_S: Final = 60.0  # repair has so long to drop what is finished


def simulate(seed: int) -> Result:
    return run(_run(seed), seed)


async def _run(seed: int) -> Result:
    plan = plan_of(seed)
    world = World(faults=plan.faults)
    history = History([], EPOCH_S, MAX_SKEW_S, plan.skew_kept)
    unseen: list[str] = history.broken
    world.loop.call_exception_handler = lambda context: unseen.append(_failure(context))  # type: ignore[method-assign]
    first = world.client("setup")
    await first.store.prepare(TABLES)
    first.crash()
    work = _Run(plan, world, history, random.Random(f"work/{seed}"))
    await work.turbulence()
    await work.calm()
    await work.drain()
    await work.look_for_leftovers()
    return Result(
        seed=seed,
        violations=check(history),
        virtual_s=world.loop.time(),
        messages=sum(len(call.sent) for call in history.calls),
        faults=dict(world.faults),
        guards=dict(work.nodes.guards()),
        history=history.lines(),
    )


def _failure(context: dict[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r} in {context.get('future')!r}"


class _Run:
    calm_work_s = CALM_WORK_S
    empty_s = EMPTY_S
    waiting = 2  # consumers that wait at each queue in the calm

    def __init__(self, plan: Plan, world: World, history: History, chance: random.Random) -> None:
        self._plan = plan
        self._world = world
        self._history = history
        self._chance = chance
        self.nodes = Nodes(world, history, chance, plan.nodes)
        self._admin = Admin(self.nodes, chance, plan)
        queues = list(plan.queues)
        main = [queue for queue in queues if queue != "dead"]
        self._producers = [Producer(f"p{at}", self.nodes, chance, main) for at in range(plan.producers)]
        self._consumers = [Consumer(f"c{at}", self.nodes, chance, queues) for at in range(plan.consumers)]
        self._drainer = Consumer("drain", self.nodes, chance, queues)

    @property
    def _sources(self) -> list[str]:
        """Where messages are got from."""
        return list(self._plan.queues)

    async def turbulence(self) -> None:
        for queue in self._plan.queues:
            await self._admin.create(queue)
        end_s = self._world.loop.time() + self._plan.turbulent_s
        clients = [one.work(end_s) for one in self._producers]
        clients += [one.work(end_s) for one in self._consumers]
        clients.append(self._admin.work(end_s))
        trouble = asyncio.ensure_future(self._trouble(end_s))
        await asyncio.gather(*clients)
        await trouble

    async def _trouble(self, end_s: float) -> None:
        """Nodes crash, or are stopped, and start again under their old name or a new one."""
        every_s, chance, nodes = self._plan.node_trouble_every_s, self._chance, self.nodes
        while every_s and self._world.loop.time() < end_s:
            await asyncio.sleep(chance.expovariate(1 / every_s))
            node = nodes.pick()
            others = len(nodes.living) > 1
            if not others:
                nodes.start_new()
            if chance.random() < 0.6:
                nodes.crash(node)
            else:
                await nodes.drain(node)
            if others:
                await asyncio.sleep(chance.choice((0.0, 1.0, 4.0)))
                nodes.start(node.name) if chance.random() < 0.5 else nodes.start_new()

    async def calm(self) -> None:
        self._world.calm()
        await asyncio.sleep(CALM_S + SETTLED_S)
        for queue in self._plan.queues:
            await self._admin.create(queue)
            await self._admin.resume(queue)
        self._history.calm_from_s = self._world.loop.time()
        end_s = self._history.calm_from_s + self.calm_work_s
        waiting = [self._wait(queue, end_s) for queue in self._sources for _ in range(self.waiting)]
        leaving = [self._leave(queue, end_s) for queue in self._sources]
        await asyncio.gather(*[one.work(end_s) for one in self._producers], *waiting, *leaving)

    async def _wait(self, queue: str, end_s: float) -> None:
        """A consumer that always waits, so that whatever can be had is had; it gives some back, and forgets some."""
        consumer, chance = Consumer(f"w.{queue}", self.nodes, self._chance, [queue]), self._chance
        while self._world.loop.time() < end_s:
            deliveries = await consumer.get(queue, chance.choice((1, 5, 30)), 4.0, chance.choice((0.5, 1.0, 2.0, 5.0)))
            receipts = [one.receipt for one in deliveries if chance.random() < 0.9]
            if not receipts:
                continue
            if chance.random() < 0.3:
                await consumer.nack(queue, receipts, chance.choice((0.0, chance.uniform(0.1, 2.0))))
            else:
                await consumer.ack(queue, receipts)

    async def _leave(self, queue: str, end_s: float) -> None:
        """A consumer that hangs up while it waits: what was claimed for it is given back at once."""
        consumer, chance = Consumer(f"l.{queue}", self.nodes, self._chance, [queue]), self._chance
        while self._world.loop.time() < end_s:
            deliveries = await consumer.get(queue, 10, 4.0, 5.0, chance.uniform(0.0, 0.5), hangs_up=1.0)
            if deliveries:
                await consumer.ack(queue, [one.receipt for one in deliveries])

    async def drain(self) -> None:
        """Take and ack everything, until nothing comes for long enough in any queue."""
        empty_since_s = self._world.loop.time()
        while self._world.loop.time() - empty_since_s < self.empty_s:
            got = await asyncio.gather(*[self._drained(queue) for queue in self._sources])
            if any(got):
                empty_since_s = self._world.loop.time()
        self._history.drained = True

    async def _drained(self, queue: str) -> int:
        deliveries = await self._drainer.get(queue, 100, 3.0, 30.0)
        if deliveries:
            await self._drainer.ack(queue, [one.receipt for one in deliveries])
        return len(deliveries)

    async def look_for_leftovers(self) -> None:
        """Wait until repair has dropped what is finished; what is left then should not be."""
        end_s = self._world.loop.time() + GIVEN_BACK_S
        while True:
            left = await self._left()
            if not left or self._world.loop.time() >= end_s:
                break
            await asyncio.sleep(5.0)
        self._history.left = left

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
