"""Delayed messages of log queues: never early, exactly once whatever crashes, and gone with their queue."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest
from tests.unit.delayed_world import SKEW_S, DelayNode, delayed_world, done_by, started
from tests.unit.log_world import QUEUE, LogNode, Wires, bodies_in, crash, pull, put, settle, until

from capellini.model.errors import CapelliniError, Invalid
from capellini.model.message import Entry, NewMessage
from capellini.model.options import check_name
from capellini.model.service import Problem, Put
from capellini.model.timed import Scheduled
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.queues.log.delaying import PREFIX, waiting_name
from capellini.queues.log.lanes import read_lanes
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World


async def _all(node: LogNode, count: int, most_s: float = 60.0) -> list[tuple[str, bytes]]:
    """(id, body) of everything that comes, until so many are there and nothing follows."""
    found: list[tuple[str, bytes]] = []
    end_s = node.clock.elapsed_s() + most_s
    while node.clock.elapsed_s() < end_s:
        parcels = await pull(node, wait_s=3.0)
        for parcel in parcels:
            bodies = bodies_in([parcel])
            found += [(f"{parcel.extent}:{parcel.first + at}", body) for at, body in enumerate(bodies)]
        await settle(node, parcels)
        if not parcels and len({id for id, _ in found}) >= count:
            break
    return found


def test_a_delayed_message_comes_when_it_is_due_and_not_before() -> None:
    async def work() -> None:
        _, nodes = await delayed_world()
        node = nodes["a"]
        before_s = node.clock.now_s()
        (answer,) = await node.put_later([b"later"], 5.0)
        assert answer.id
        await put(node, [b"now"])
        parcels = await pull(node)
        assert bodies_in(parcels) == [b"now"]
        await settle(node, parcels)
        assert await pull(node, wait_s=4.5) == []
        assert bodies_in(await pull(node, wait_s=20.0)) == [b"later"]
        assert 5.0 <= node.clock.now_s() - before_s < 5.0 + SKEW_S + 2.0

    run(work(), 1)


def test_every_group_gets_a_delayed_message_and_many_cost_few_batches() -> None:
    async def work() -> None:
        _, nodes = await delayed_world()
        node = nodes["a"]
        await (await node.queue()).create_group("h", "earliest", {})
        for some in range(5):
            await node.put_later([f"{some}.{one}".encode() for one in range(300)], 3.0)
        for group in "gh":
            found: list[bytes] = []
            while parcels := await pull(node, group, count=1_000, wait_s=8.0):
                found += bodies_in(parcels)
                await settle(node, parcels, group=group)
            assert sorted(found) == sorted(f"{some}.{one}".encode() for some in range(5) for one in range(300))
        rows = await read_lanes((await node.queue()).place)
        assert sum(row.sequence for row in rows.values()) <= 40  # for 1,500 messages

    run(work(), 1)


def test_what_waits_goes_with_a_purged_queue() -> None:
    async def work() -> None:
        _, nodes = await delayed_world()
        node = nodes["a"]
        await node.put_later([b"of the first generation"], 3.0)
        await node.catalog.purge(QUEUE)
        await (await node.queue()).create_group("g", "earliest", {})
        await node.put_later([b"of the second"], 3.0)
        assert [body for _, body in await _all(node, 1)] == [b"of the second"]
        assert await node.delaying.clear(QUEUE, 1)
        names = [record.name for record in await node.catalog.queues(PREFIX)]
        assert names == [waiting_name(QUEUE, 2)]
        await node.catalog.delete(QUEUE)
        assert await node.delaying.clear(QUEUE, 2)
        assert await node.delaying.clear(QUEUE, 2)  # again is fine
        assert await node.catalog.queues(PREFIX) == []

    run(work(), 1)


def test_a_put_that_comes_too_late_for_its_generation_leaves_nothing() -> None:
    async def work() -> None:
        _, nodes = await delayed_world()
        node = nodes["a"]
        record = await node.catalog.show(QUEUE)
        await node.catalog.delete(QUEUE)
        with pytest.raises(CapelliniError, match="deleted or purged"):
            await node.delaying.put(record, [Scheduled(Entry(b"x"), 0)])
        assert await node.catalog.queues(PREFIX) == []

    run(work(), 1)


def test_paused_puts_hold_delayed_messages_back() -> None:
    async def work() -> None:
        _, nodes = await delayed_world()
        node = nodes["a"]
        await node.put_later([b"later"], 2.0)
        await node.catalog.pause(QUEUE, puts=True)
        assert await pull(node, wait_s=6.0) == []
        await node.catalog.pause(QUEUE, puts=False)
        assert bodies_in(await pull(node, wait_s=10.0)) == [b"later"]

    run(work(), 1)


def test_a_body_that_was_taken_enters_whatever_the_limit_is_by_then() -> None:
    async def work() -> None:
        _, nodes = await delayed_world()
        node = nodes["a"]
        await node.put_later([b"x" * 5_000], 3.0)
        await node.catalog.change(QUEUE, {"body_limit": 100})
        assert bodies_in(await pull(node, wait_s=10.0)) == [b"x" * 5_000]

    run(work(), 1)


def test_a_full_queue_refuses_delayed_messages_too() -> None:
    async def work() -> None:
        _, nodes = await delayed_world(max_bytes=1_000)
        node = nodes["a"]
        await put(node, [b"x" * 800])
        (taken,) = await node.put_later([b"a little"], 1.0)
        assert isinstance(taken, Put)
        (refused,) = await node.put_later([b"y" * 200], 1.0)
        assert isinstance(refused, Problem) and refused.error == "full"

    run(work(), 1)


def test_how_many_wait_is_told() -> None:
    async def work() -> None:
        _, nodes = await delayed_world()
        node = nodes["a"]
        record = await node.catalog.live(QUEUE)
        assert await node.delaying.count(record) == (0, True)
        await node.put_later([b"1", b"2", b"3"], 60.0)

        async def counted() -> bool:
            return await node.delaying.count(record) == (3, True)

        await until(node.clock, counted)

    run(work(), 1)


def test_an_idle_lane_keeps_nothing_in_hand() -> None:
    async def work() -> None:
        _, nodes = await delayed_world()
        node = nodes["a"]
        await node.put_later([b"1"], 1.0)
        assert len(await _all(node, 1)) == 1
        place = (await node.queue()).place

        async def rests() -> bool:
            rows = await read_lanes(place)
            return len(rows) == 1 and not any(row.chunk or row.ids for row in rows.values())

        await until(node.clock, rests)

    run(work(), 1)


class Crowd:
    """Nodes that die and are replaced while they move messages, a producer, and a consumer that notes what it gets."""

    def __init__(self, world: World, nodes: dict[str, DelayNode], chance: random.Random) -> None:
        self.world, self.nodes, self.chance = world, nodes, chance
        self.client = world.client("crowd")
        self.due_s: dict[bytes, float] = {}
        self.confirmed: set[bytes] = set()
        self.places: dict[bytes, set[str]] = {}
        self.early: list[bytes] = []

    def pick(self) -> DelayNode:
        return self.chance.choice(list(self.nodes.values()))

    async def consume(self) -> None:
        while True:
            node = self.pick()
            try:
                parcels = await done_by(self.client.clock, node, pull(node, count=50, wait_s=0.5))
                for parcel in parcels:
                    for at, body in enumerate(bodies_in([parcel])):
                        self.places.setdefault(body, set()).add(f"{parcel.extent}:{parcel.first + at}")
                        if self.world.loop.time() < self.due_s[body]:
                            self.early.append(body)
                await done_by(self.client.clock, node, settle(node, parcels))
            except (CapelliniError, AssertionError):  # its node is gone, perhaps
                await self.client.clock.sleep(0.2)

    async def produce(self, rounds: int) -> None:
        number = 0
        for _ in range(rounds):
            node, delay_s = self.pick(), self.chance.uniform(0.2, 4.0)
            bodies = [f"{number + at}".encode().ljust(3_000, b".") for at in range(self.chance.randrange(1, 12))]
            number += len(bodies)
            self.due_s.update(dict.fromkeys(bodies, self.world.loop.time() + delay_s))
            try:
                answers = await done_by(self.client.clock, node, node.put_later(bodies, delay_s))
                self.confirmed |= {body for body, one in zip(bodies, answers, strict=True) if isinstance(one, Put)}
            except CapelliniError:
                pass  # it may be there or not: nothing is expected of it but that it comes once
            await self.client.clock.sleep(self.chance.uniform(0.0, 0.6))
            if self.chance.random() < 0.12:
                await self.replace(f"n{number}")

    async def replace(self, name: str) -> None:
        victim = self.pick()
        wires = victim.keeper._peers
        assert isinstance(wires, Wires)
        crash(victim, self.nodes)  # type: ignore[arg-type]
        self.nodes[name] = await started(self.world, wires, name)

    async def all_there(self) -> bool:
        return self.confirmed <= self.places.keys()


@pytest.mark.parametrize("seed", range(8))
def test_delayed_messages_enter_once_whatever_crashes(seed: int) -> None:
    """Nodes die while they move, extents are small and dropped as soon as they are consumed, answers are lost."""

    async def work() -> None:
        faults = Faults(lost_answer=0.02, lost_request=0.01) if seed % 2 else None
        world, nodes = await delayed_world("abc", faults, consumed_s=0.0, extent_bytes=65_536, visibility_s=5.0)
        crowd = Crowd(world, nodes, random.Random(seed))
        task = crowd.client.spawn(crowd.consume())
        await crowd.produce(30)
        await until(crowd.client.clock, crowd.all_there, 120.0)
        await crowd.client.clock.sleep(15.0)  # second copies would come
        assert not task.done()
        assert crowd.early == []
        assert {body: places for body, places in crowd.places.items() if len(places) > 1} == {}
        assert len(crowd.confirmed) > 50

    run(work(), seed)


def test_names_of_waiting_queues_are_names() -> None:
    assert waiting_name("orders", 3) == "capellini.delayed.3.orders"
    long = waiting_name("x" * 100, 12)
    assert check_name(long) == long != waiting_name("y" + "x" * 99, 12)


# Through a node


async def test_a_node_takes_delays_and_dues_on_log_queues(tmp_path: Path) -> None:
    node = await Node.open(Settings(store=f"rocks:{tmp_path}/data", listen="127.0.0.1:0"))
    try:
        service = node.service
        await service.create("feed", "log")
        before = time.time()
        results = await service.put(
            "feed",
            [
                NewMessage(b"in a second", {"color": "red"}, delay_s=1.0),
                NewMessage(b"now"),
                NewMessage(b"at a time", due=before + 1.2, key="once"),
                NewMessage(b"at a time", due=before + 1.2, key="once"),
                NewMessage(b"long ago", due=5.0),
                NewMessage(b"tomorrow", delay_s=86_400.0),
                NewMessage(b"both", due=before, delay_s=1.0),
                NewMessage(b"never", delay_s=-1.0),
            ],
        )
        assert [one.error for one in results if isinstance(one, Problem)] == ["invalid", "invalid"]
        assert isinstance(results[-1], Problem) and isinstance(results[-2], Problem)
        assert sorted(one.body for one in await service.get("feed", 10, 5.0)) == [b"long ago", b"now"]
        found: dict[bytes, float] = {}
        while len(found) < 2 and (got := await service.get("feed", 10, 10.0)):
            found.update({one.body: time.time() for one in got})
        assert found[b"in a second"] >= before + 1.0 and found[b"at a time"] >= before + 1.2
        async with asyncio.timeout(20):
            while (await service.statistics("feed")).delayed != 1:
                await asyncio.sleep(0.05)
        assert [info.name for info in await service.queues()] == ["feed"]
        name = waiting_name("feed", 1)
        with pytest.raises(Invalid, match="own"):
            await service.put(name, [NewMessage(b"x")])
        with pytest.raises(Invalid, match="own"):
            await service.get(name)
    finally:
        await node.close()
