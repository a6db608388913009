"""What the simulated runs of the three kinds of queues share: their course.

turbulence                                      calm                    drain              check
nodes crash, clocks differ, answers get lost │  all is well; promise  │ take and ack     │ wait until space was
producers, consumers, an admin at work       │  10 is looked at       │ until all empty  │ given back; checkers
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from capellini.proof.admin import Admin
from capellini.proof.clients import Consumer, Producer
from capellini.proof.history import History, Violation
from capellini.proof.nodes import Nodes
from capellini.proof.plan import Plan
from capellini.proof.suites import Result
from capellini.store.schema import TABLES
from capellini.store.simulation.world import CALM_S, World

SETTLED_S: Final = 3.0  # after the end of all faults, until calls that met them are over
CALM_WORK_S: Final = 8.0
EMPTY_S: Final = 14.0  # nothing came for so long: longer than any visibility, delay or resumed move takes
GIVEN_BACK_S: Final = 60.0  # repair has so long to drop what is finished


async def prepared(world: World, history: History) -> None:
    """The tables are there, and no error of a task goes unseen."""
    unseen: list[str] = history.broken
    world.loop.call_exception_handler = lambda context: unseen.append(_failure(context))  # type: ignore[method-assign]
    first = world.client("setup")
    await first.store.prepare(TABLES)
    first.crash()


def _failure(context: dict[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r} in {context.get('future')!r}"


class Run:
    settled_s = SETTLED_S
    calm_work_s = CALM_WORK_S
    empty_s = EMPTY_S
    waiting = 2  # consumers that wait at each queue in the calm

    def __init__(self, plan: Plan, world: World, history: History, chance: random.Random) -> None:
        self._plan, self._world, self._history, self._chance = plan, world, history, chance
        self.nodes: Nodes
        self._admin: Admin
        self._producers: Sequence[Producer]
        self._consumers: Sequence[Consumer]
        self._drainer: Consumer

    async def result(self, seed: int, check: Callable[[], list[Violation]]) -> Result:
        """The whole course, and what is found in its history."""
        await self.turbulence()
        await self.calm()
        await self.drain()
        await self.look_for_leftovers()
        return Result(
            seed=seed,
            violations=check(),
            virtual_s=self._world.loop.time(),
            messages=sum(len(call.sent) for call in self._history.calls),
            faults=dict(self._world.faults),
            guards=dict(self.nodes.guards()),
            history=self._history.lines(),
        )

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
        every_s, chance = self._plan.node_trouble_every_s, self._chance
        while every_s and self._world.loop.time() < end_s:
            await asyncio.sleep(chance.expovariate(1 / every_s))
            await self._trouble_a_node()

    async def _trouble_a_node(self) -> None:
        """It crashes, or is stopped, and starts again under its old name or a new one."""
        chance, nodes = self._chance, self.nodes
        node, others = nodes.pick(), len(nodes.living) > 1
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
        await asyncio.sleep(CALM_S + self.settled_s)
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
        """What should have been dropped by now, in words."""
        raise NotImplementedError
