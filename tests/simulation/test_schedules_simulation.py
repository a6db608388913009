"""Schedules run by several nodes at once, which crash and lose answers: each tick is one message. Without its key it
is not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from capellini.model.errors import CapelliniError
from capellini.model.message import NewMessage
from capellini.model.scheduling import NewSchedule
from capellini.model.service import Done, Problem, Put
from capellini.node.broker import Broker
from capellini.queues import schedules as scheduling
from capellini.queues.cron import ticks_between
from capellini.queues.schedules import SHELVES, Schedule, Schedules
from capellini.store.schema import TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

SEEDS = range(12)
NODES = ("n1", "n2", "n3")
TURBULENT_S = 90.0
REPAIRS = 20
NEW = NewSchedule("often", "jobs", "*/5 * * * * *", body=b"tick", missed="catch_up")


class Node:
    def __init__(self, client: SimulatedClient) -> None:
        self.client = client
        self.broker = Broker(client.store, client.clock, client.random, client.name)
        self.schedules = Schedules(client.store, client.clock, client.random, self._kind_of, self._put, self._cancel)

    async def _kind_of(self, name: str) -> str:
        return (await self.broker.catalog.live(name)).kind

    async def _put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        return await self.broker.put(name, messages)

    async def _cancel(self, name: str, ids: Sequence[str]) -> list[Done | Problem]:
        raise AssertionError("work queues have no cancel")

    async def turns(self) -> None:
        """As if it were in charge all the time: so are the others."""
        while True:
            try:
                await self.turn()
            except CapelliniError:
                await self.client.clock.sleep(0.5)  # the store does not answer now
            await self.client.clock.sleep(self.client.random.uniform(0.2, 1.5))

    async def turn(self) -> None:
        for shelf in range(SHELVES):
            for schedule in await self.schedules.on(shelf):
                await self.schedules.run(schedule)


async def again_and_again(node: Node, world: World) -> None:
    """A node that crashes now and then, and comes back."""
    while world.loop.time() < TURBULENT_S:
        node.client.spawn(node.turns())
        await asyncio.sleep(world.random.uniform(3.0, 25.0))
        node.client.crash()
        node = Node(world.client(node.client.name))


async def bodies_of(broker: Broker) -> list[str]:
    """The ticks of all messages in the queue."""
    found: list[str] = []
    queue = broker.opened(await broker.catalog.live("jobs"))
    for _ in range(REPAIRS):
        await queue.repair.step()  # as maintenance does: it brings back what was written late
        messages = await broker.get("jobs", 100, 5.0)
        found += [message.attributes["tick"] for message in messages]
        if messages:
            await broker.ack("jobs", [message.receipt for message in messages])
    return found


def lived(seed: int) -> tuple[Counter[str], set[str], Counter[str]]:
    """How often each tick came, which ones should have, and what went wrong on the way."""

    async def main() -> tuple[Counter[str], set[str], Counter[str]]:
        world = World(faults=Faults(lost_answer=0.05, lost_request=0.05, late_cas=0.02, limbo_cas=0.02, skew_s=0.3))
        first = Node(world.client("setup"))
        await first.client.store.prepare(TABLES)
        while True:
            try:
                await first.broker.create("jobs", options={"bucket_size": 10})  # gaps are closed soon
                made = await first.schedules.add(NEW)
                break
            except CapelliniError:
                continue
        await asyncio.gather(*[again_and_again(Node(world.client(name)), world) for name in NODES])
        world.calm()
        last = Node(world.client("last"))
        await asyncio.sleep(30.0)  # what was under way has settled
        await last.turn()
        (info,) = await last.schedules.listed()
        start_ms, end_ms = round(made.created_at * 1000), round(info.through_at * 1000)
        due = ticks_between(NEW.cron, NEW.zone, start_ms, end_ms, 1_000)
        wanted = {scheduling.attributes_of(NEW, tick_ms)["tick"] for tick_ms in due}
        return Counter(await bodies_of(last.broker)), wanted, world.faults

    return run(main(), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_tick_is_one_message(seed: int) -> None:
    came, wanted, faults = lived(seed)
    assert set(came) == wanted
    assert set(came.values()) == {1}, [tick for tick, times in came.items() if times > 1]
    assert len(wanted) >= 18 and faults["client_crash"] >= 3 and faults["lost_answer_applied"]


def test_without_keys_ticks_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: each attempt has a key of its own."""
    attempts = iter(range(1_000_000))

    def careless(schedule: Schedule, tick_ms: int) -> str:
        return f"tick:{schedule.tag}:{tick_ms}:{next(attempts)}"

    monkeypatch.setattr(scheduling, "key_of", careless)
    assert any(max(lived(seed)[0].values()) > 1 for seed in SEEDS)


def test_a_step_confirmed_before_it_is_put_loses_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the row says that ticks are put before they are."""
    real = Schedules.run

    async def hasty(self: Schedules, schedule: Schedule) -> int:
        plan = scheduling.plan_of(schedule, self._now_ms(), 0)
        done = Schedule(schedule.new, schedule.tag, schedule.created_ms, plan.through_ms)
        await self._settle(schedule, done)
        return await real(self, schedule)

    monkeypatch.setattr(Schedules, "run", hasty)
    assert any(set(came) != wanted for came, wanted, _ in map(lived, SEEDS))
