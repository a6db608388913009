"""Delayed messages of log queues: never early, exactly once whatever crashes, and gone with their queue."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.unit.log_world import QUEUE, LogNode, Wires, bodies_in, crash, pull, put, settle, until

from capellini.model import chunks
from capellini.model.clock import Clock
from capellini.model.errors import CapelliniError, Conflict, Invalid, StoreError, Unavailable, Unknown
from capellini.model.log import Appended
from capellini.model.message import Delivery, Entry, NewMessage
from capellini.model.options import check_name
from capellini.model.service import Done, Problem, Put
from capellini.model.timed import Scheduled
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.queues.log.delaying import PREFIX, Delaying, waiting_name
from capellini.queues.log.lanes import NOWHERE, Lane, Overtaken, batches, producer_of, read_lanes
from capellini.queues.log.place import LogPlace
from capellini.queues.log.queue import STALE
from capellini.queues.log.sequences import bind, read_bound
from capellini.queues.resting import rest
from capellini.queues.timed.keeper import TimedKeeper
from capellini.queues.timed.positions import id_text, position_of, ticks_of_ms
from capellini.store.schema import TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
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


async def _at(clock: Clock, node: DelayNode, work: Coroutine[Any, Any, T]) -> T:
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
        return await _at(self._clock, target, keeper.serve(queue, operation, payload))


async def _start(world: World, wires: Wires, name: str) -> DelayNode:
    node = DelayNode(world.client(name), wires)
    await node.own.spawn(node.lease.start())
    node.own.spawn(node.turns())
    node.own.spawn(node.moving())
    return node


async def _world(names: str = "a", faults: Faults | None = None, **options: Any) -> tuple[World, dict[str, DelayNode]]:
    world = World(faults=faults)
    first = world.client("setup")
    await first.store.prepare(TABLES)
    wires = BothWires(first.clock)
    nodes = {name: await _start(world, wires, name) for name in names}
    await nodes[names[0]].catalog.create(QUEUE, "log", options)
    await (await nodes[names[0]].queue()).create_group("g", "earliest", {})
    return world, nodes


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
        _, nodes = await _world()
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
        _, nodes = await _world()
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
        _, nodes = await _world()
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
        _, nodes = await _world()
        node = nodes["a"]
        record = await node.catalog.show(QUEUE)
        await node.catalog.delete(QUEUE)
        with pytest.raises(CapelliniError, match="deleted or purged"):
            await node.delaying.put(record, [Scheduled(Entry(b"x"), 0)])
        assert await node.catalog.queues(PREFIX) == []

    run(work(), 1)


def test_paused_puts_hold_delayed_messages_back() -> None:
    async def work() -> None:
        _, nodes = await _world()
        node = nodes["a"]
        await node.put_later([b"later"], 2.0)
        await node.catalog.pause(QUEUE, puts=True)
        assert await pull(node, wait_s=6.0) == []
        await node.catalog.pause(QUEUE, puts=False)
        assert bodies_in(await pull(node, wait_s=10.0)) == [b"later"]

    run(work(), 1)


def test_a_body_that_was_taken_enters_whatever_the_limit_is_by_then() -> None:
    async def work() -> None:
        _, nodes = await _world()
        node = nodes["a"]
        await node.put_later([b"x" * 5_000], 3.0)
        await node.catalog.change(QUEUE, {"body_limit": 100})
        assert bodies_in(await pull(node, wait_s=10.0)) == [b"x" * 5_000]

    run(work(), 1)


def test_a_full_queue_refuses_delayed_messages_too() -> None:
    async def work() -> None:
        _, nodes = await _world(max_bytes=1_000)
        node = nodes["a"]
        await put(node, [b"x" * 800])
        (taken,) = await node.put_later([b"a little"], 1.0)
        assert isinstance(taken, Put)
        (refused,) = await node.put_later([b"y" * 200], 1.0)
        assert isinstance(refused, Problem) and refused.error == "full"

    run(work(), 1)


def test_how_many_wait_is_told() -> None:
    async def work() -> None:
        _, nodes = await _world()
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
        _, nodes = await _world()
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
                parcels = await _at(self.client.clock, node, pull(node, count=50, wait_s=0.5))
                for parcel in parcels:
                    for at, body in enumerate(bodies_in([parcel])):
                        self.places.setdefault(body, set()).add(f"{parcel.extent}:{parcel.first + at}")
                        if self.world.loop.time() < self.due_s[body]:
                            self.early.append(body)
                await _at(self.client.clock, node, settle(node, parcels))
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
                answers = await _at(self.client.clock, node, node.put_later(bodies, delay_s))
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
        self.nodes[name] = await _start(self.world, wires, name)

    async def all_there(self) -> bool:
        return self.confirmed <= self.places.keys()


@pytest.mark.parametrize("seed", range(8))
def test_delayed_messages_enter_once_whatever_crashes(seed: int) -> None:
    """Nodes die while they move, extents are small and dropped as soon as they are consumed, answers are lost."""

    async def work() -> None:
        faults = Faults(lost_answer=0.02, lost_request=0.01) if seed % 2 else None
        world, nodes = await _world("abc", faults, consumed_s=0.0, extent_bytes=65_536, visibility_s=5.0)
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


# One lane


class Waiting:
    """The timed queue and the log of a lane, in memory: hands out what is not acked, and takes each chunk once."""

    def __init__(self, place: LogPlace, count: int) -> None:
        self.place = place
        now_ms, shard = place.now_ms(), 0
        ids = [id_text(position_of(ticks_of_ms(now_ms + at), shard, random.Random(at))) for at in range(count)]
        self.open = {id: f"body {at}".encode() for at, id in enumerate(ids)}
        self.entered: list[bytes] = []
        self.chunks: dict[bytes, int] = {}  # producer: its last sequence
        self.forgotten: set[bytes] = set()
        self.fail = ""  # the step that fails next: append (not done), answer (done, and lost), ack (not done)

    def lane(self) -> Lane:
        return Lane(self.place, 0, self.append, self.ack, self.cancel)

    def take(self) -> list[Delivery]:
        return [Delivery(id, id, body, {}, 0.0, 1, 0.0) for id, body in self.open.items()]

    async def carry(self, lane: Lane) -> None:
        await lane.know()
        assert lane.known is not None
        await lane.carry(self.take(), lane.known)

    async def append(self, chunk: bytes) -> Appended:
        head = chunks.head_of(chunk)
        if self.fail == "append":
            self.fail = ""
            raise Unavailable("the log is away")
        if head.producer in self.forgotten:
            raise Conflict("this producer was silent for too long")
        if head.sequence == self.chunks.get(head.producer, 0) + 1:
            self.chunks[head.producer] = head.sequence
            self.entered += chunks.bodies_of(chunk, head)
        if self.fail == "answer":
            self.fail = ""
            raise Unknown("the answer was lost")
        return Appended("extent", 0, head.count)

    async def ack(self, receipts: Sequence[str]) -> list[Done | Problem]:
        if self.fail == "ack":
            self.fail = ""
            return [Problem("unavailable", "the holder is away")] * len(receipts)
        return [Done() if self.open.pop(one, None) is not None else STALE for one in receipts]

    async def cancel(self, ids: Sequence[str]) -> list[Done | Problem]:
        gone = Problem("not_found", "there is no such message")
        return [Done() if self.open.pop(one, None) is not None else gone for one in ids]


def _with_lane(count: int, work: Callable[[Waiting], Coroutine[Any, Any, None]]) -> None:
    async def all_of_it() -> None:
        _, nodes = await _world()
        place = (await nodes["a"].queue()).place
        waiting = Waiting(place, count)
        await work(waiting)
        assert sorted(waiting.entered) == sorted(f"body {at}".encode() for at in range(count))
        assert waiting.open == {}

    run(all_of_it(), 1)


@pytest.mark.parametrize("step", ["append", "answer", "ack"])
def test_whoever_comes_after_a_crash_goes_on_where_it_was(step: str) -> None:
    async def work(waiting: Waiting) -> None:
        waiting.fail = step
        if step == "ack":
            await waiting.carry(waiting.lane())
        else:
            with pytest.raises(StoreError):
                await waiting.carry(waiting.lane())
        assert len(waiting.open) == 7
        await waiting.carry(waiting.lane())  # another node's: it knows the row alone

    _with_lane(7, work)


@pytest.mark.parametrize("step", ["append", "answer", "ack"])
def test_the_same_lane_goes_on_after_a_failure(step: str) -> None:
    async def work(waiting: Waiting) -> None:
        lane = waiting.lane()
        waiting.fail = step
        with suppress(StoreError):
            await waiting.carry(lane)
        await waiting.carry(lane)
        await lane.rest()
        assert lane.rests

    _with_lane(7, work)


def test_what_was_taken_before_another_moved_it_is_not_moved_again() -> None:
    async def work(waiting: Waiting) -> None:
        slow, other = waiting.lane(), waiting.lane()
        await slow.know()
        taken, known = waiting.take(), slow.known
        await waiting.carry(other)
        await other.rest()  # it has forgotten all ids
        assert known is not None
        with pytest.raises(Overtaken):
            await slow.carry(taken, known)
        await slow.know()  # what was taken before it knew the row must not be moved either
        with pytest.raises(Overtaken):
            await slow.carry(taken, known)

    _with_lane(7, work)


def test_a_chunk_goes_under_a_new_producer_when_the_log_forgot_the_old_one() -> None:
    async def work(waiting: Waiting) -> None:
        old = producer_of(0, 0)
        waiting.forgotten.add(old)
        seen = await read_bound(waiting.place, old)
        await waiting.carry(waiting.lane())
        assert waiting.chunks == {producer_of(0, 1): 1}
        assert (await read_bound(waiting.place, old)).extent == NOWHERE
        assert not await bind(waiting.place, old, seen, "elsewhere", 0)  # who was about to is refused

    _with_lane(7, work)


@pytest.mark.parametrize("knew_the_row_before", [False, True])
def test_a_lane_that_is_settled_has_nothing_in_hand_and_keeps_what_is_not_acked(knew_the_row_before: bool) -> None:
    """By whoever is about to drop an extent: perhaps a node that knows the row as it was long ago."""

    async def work(waiting: Waiting) -> None:
        other = waiting.lane()
        if knew_the_row_before:
            await other.know()
        waiting.fail = "answer"
        with pytest.raises(Unknown):
            await waiting.carry(waiting.lane())
        (row,) = (await read_lanes(waiting.place)).values()
        await other.settle(row)
        (row,) = (await read_lanes(waiting.place)).values()
        assert (row.chunk, len(row.ids)) == (b"", 7)
        await waiting.carry(waiting.lane())

    _with_lane(7, work)


def test_batches_are_bounded_in_messages_and_bytes() -> None:
    def message(size: int) -> Delivery:
        return Delivery("", "", b"x" * size, {}, 0.0, 1, 0.0)

    assert [len(batch) for batch in batches([message(10)] * 2_500)] == [1_000, 1_000, 500]
    assert [len(batch) for batch in batches([message(100_000)] * 5)] == [2, 2, 1]
    assert [len(batch) for batch in batches([message(4_000_000)] * 2)] == [1, 1]


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
