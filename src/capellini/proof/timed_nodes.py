"""The nodes of a simulated run of timed queues: a keeper and the service on it, each in a process of its own that can
crash, and the network between them, which loses and delays."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from capellini.model.errors import CapelliniError, Conflict, Invalid, StoreError, Unavailable, Unknown
from capellini.model.message import Delivery, Entry, NewMessage, check_message
from capellini.model.service import Done, ExtendItem, NackItem, Problem, Put, QueueInfo
from capellini.model.timed import DueMessage, MoveItem, Scheduled, ShardView, TimedCounts
from capellini.node.calls import with_living
from capellini.proof.history import History
from capellini.proof.nodes import Node, Nodes
from capellini.queues.catalog import Catalog, QueueRecord
from capellini.queues.events import Events
from capellini.queues.lease import Lease, Watcher
from capellini.queues.resting import first_of, rest
from capellini.queues.timed.keeper import TimedKeeper
from capellini.queues.timed.queue import Peers, TimedQueue
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.world import World

LEASE_S: Final = 2.0  # short, so that pauses outlast it
BEAT_S: Final = 0.5
TURN_S: Final = 0.7
CALL_S: Final = 4.0  # a node that does not answer for so long is given up
T = TypeVar("T")


class TimedService:
    """The calls of a timed queue, as a node's broker offers them."""

    def __init__(self, catalog: Catalog, keeper: TimedKeeper, client: SimulatedClient) -> None:
        self.catalog, self.keeper = catalog, keeper
        self._client = client

    async def create(self, name: str, kind: str, options: Mapping[str, Any]) -> QueueInfo:
        """Whatever kind is asked for: this run's queues are timed ones."""
        return (await self.catalog.create(name, "timed", options)).info()

    async def change(self, name: str, options: Mapping[str, Any]) -> QueueInfo:
        return (await self.catalog.change(name, options)).info()

    async def pause(self, name: str, puts: bool | None = None, gets: bool | None = None) -> QueueInfo:
        return (await self.catalog.pause(name, puts, gets)).info()

    async def purge(self, name: str) -> QueueInfo:
        return (await self.catalog.purge(name)).info()

    async def delete(self, name: str) -> None:
        await self.catalog.delete(name)

    async def _with(self, name: str, act: Callable[[QueueRecord, TimedQueue], Awaitable[T]]) -> T:
        def opened(record: QueueRecord) -> Awaitable[T]:
            return act(record, self.keeper.queue(record))

        return await with_living(self.catalog, self._client.clock, name, opened, lambda record: None)

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        if not messages:
            raise Invalid("a call takes 1 to 1000 messages, not 0")

        async def act(record: QueueRecord, queue: TimedQueue) -> list[Put | Problem]:
            record.require_puts()
            results: dict[int, Put | Problem] = {}
            good: list[int] = []
            for index, message in enumerate(messages):
                try:
                    check_message(message, record.options.body_limit)
                    good.append(index)
                except Invalid as error:
                    results[index] = Problem.of(error)
            now_ms = queue.place.now_ms()
            scheduled = [_scheduled(messages[index], now_ms) for index in good]
            if scheduled:
                results.update(zip(good, await queue.put(scheduled), strict=True))
            return [results[index] for index in range(len(messages))]

        return await self._with(name, act)

    async def put_moved(self, target: str, key: str, entry: Entry) -> None:
        await self._with(target, lambda record, queue: queue.put_moved(key, entry))

    async def get(
        self, name: str, count: int = 1, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[Delivery]:
        if count < 1 or wait_s < 0:
            raise Invalid("count goes from 1 to 1000, and wait_s from 0 to 60")
        deadline_s = self._client.clock.elapsed_s() + wait_s

        async def act(record: QueueRecord, queue: TimedQueue) -> list[Delivery]:
            record.require_gets()
            left_s = max(0.0, deadline_s - self._client.clock.elapsed_s())
            return await queue.get(count, left_s, visibility_s)

        return await self._with(name, act)

    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]:
        if not receipts:
            raise Invalid("a call takes 1 to 1000 receipts, not 0")
        return await self._with(name, lambda record, queue: queue.ack(receipts))

    async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]:
        return await self._with(name, lambda record, queue: queue.nack(items))

    async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        return await self._with(name, lambda record, queue: queue.extend(items))

    async def cancel(self, name: str, ids: Sequence[str]) -> list[Done | Problem]:
        return await self._with(name, lambda record, queue: queue.cancel(ids))

    async def move(self, name: str, ids: Sequence[str], seconds: Sequence[float]) -> list[Done | Problem]:
        now_ms = int(self._client.clock.now_s() * 1000)
        items = [MoveItem(id, now_ms + int(delay_s * 1000)) for id, delay_s in zip(ids, seconds, strict=True)]
        return await self._with(name, lambda record, queue: queue.move(items))

    async def statistics(self, name: str) -> TimedCounts:
        return await self._with(name, lambda record, queue: queue.statistics())

    async def peek(self, name: str) -> list[DueMessage]:
        return await self._with(name, lambda record, queue: queue.peek(10))

    async def shards(self, name: str) -> list[ShardView]:
        return await self._with(name, lambda record, queue: queue.shards())

    async def halt(self, name: str, shard: int, stopped: bool) -> ShardView:
        return await self._with(
            name, lambda record, queue: queue.stop_shard(shard) if stopped else queue.start_shard(shard)
        )


def _scheduled(message: NewMessage, now_ms: int) -> Scheduled:
    entry = Entry(message.body, message.attributes or None)
    return Scheduled(entry, now_ms + int(message.delay_s * 1000), message.key)


class SimulatedPeers(Peers):
    def __init__(self, nodes: TimedNodes, client: SimulatedClient) -> None:
        self._nodes, self._client = nodes, client

    async def call(self, node: str, queue: str, operation: str, payload: bytes) -> bytes:
        world, chance = self._client.world, self._client.random
        await self._client.clock.sleep(world.network.delay())
        target = self._nodes.living_node(node)
        if target is None:
            raise Unavailable(f"node {node} cannot be reached")
        if world.network.is_cut(self._client.name, node) or chance.random() < world.profile.lost_request:
            await self._client.clock.sleep(CALL_S)
            raise Unknown(f"node {node} did not answer")
        task = target.client.spawn(target.keeper.serve(queue, operation, payload))
        task.add_done_callback(_heard)  # whoever asked may be gone by then
        await first_of(task, within_s=CALL_S)
        lost = world.network.is_cut(self._client.name, node) or chance.random() < world.profile.lost_answer
        if not task.done() or lost or task.cancelled():
            raise Unknown(f"the answer of node {node} was lost")
        await self._client.clock.sleep(world.network.delay())
        error = task.exception()
        if isinstance(error, CapelliniError):
            raise error.again()
        return task.result()


def _heard(task: asyncio.Task[bytes]) -> None:
    if not task.cancelled():
        task.exception()


class TimedNode:
    def __init__(self, nodes: TimedNodes, client: SimulatedClient, max_skew_s: float) -> None:
        self.name = client.name
        self.client = client
        self._nodes = nodes
        store, clock, chance = client.store, client.clock, client.random
        self.catalog = Catalog(store, clock, chance)
        self.lease = Lease(store, clock, chance, client.name, lease_s=LEASE_S, beat_s=BEAT_S)
        self.watcher = Watcher(store, clock, chance, lease_s=LEASE_S)
        peers = SimulatedPeers(nodes, client)
        self.keeper = TimedKeeper(
            store, clock, chance, self.catalog, self.lease, self.watcher, Events(clock), max_skew_s, peers,
            self._put_moved,
        )  # fmt: skip
        self.keeper.snapshot_bytes = nodes.snapshot_bytes
        self.lease.on_lost = self.keeper.emergency_stop
        self.broker = TimedService(self.catalog, self.keeper, client)
        self._task = client.spawn(self._turns())
        self._task.add_done_callback(self._turns_ended)

    def _turns_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._nodes.history.broken.append(f"node {self.name} fails to take its turns: {error!r}")

    async def _put_moved(self, target: str, key: str, entry: Entry) -> None:
        await self.broker.put_moved(target, key, entry)

    async def _turns(self) -> None:
        """As a node's maintenance does."""
        chance, clock = self.client.random, self.client.clock
        while True:
            try:
                if not self.lease.valid():
                    self.keeper.emergency_stop("no lease")
                    await self.lease.start()
                await self.watcher.look()
                for node in self.watcher.silent():
                    if node != self.lease.node:
                        await self.watcher.end(node)
                before = self.keeper.takeovers
                await self.keeper.turn()
                if self.keeper.takeovers > before:
                    self._nodes.history.taken_over_s.append(self.client.world.loop.time())
                if chance.random() < 0.2:
                    for name, generation, _ in await self.catalog.leftovers():
                        if await self.keeper.clear(name, generation):
                            await self.catalog.cleared(name, generation)
            except Conflict:
                await clock.sleep(LEASE_S)
            except CapelliniError:
                self.keeper.guards["turn failed"] += 1
            await rest(clock, self.keeper.soon, chance.uniform(TURN_S * 0.8, TURN_S * 1.2))

    async def stop(self) -> None:
        """As a node that is told to stop does."""
        self._task.cancel()
        await asyncio.wait({self._task})
        await self.keeper.stop()
        try:
            await self.lease.stop()
        except StoreError:
            self.keeper.guards["lease not given back"] += 1


class TimedNodes(Nodes):
    def __init__(self, world: World, history: History, chance: random.Random, count: int) -> None:
        self.snapshot_bytes = chance.choice((10, 200, 64 * 1024))
        super().__init__(world, history, chance, count)

    def start(self, name: str) -> Node:
        node = cast(Node, TimedNode(self, self.world.client(name), self.history.max_skew_s))
        self.all.append(node)
        self.living.append(node)
        return node

    def living_node(self, name: str) -> TimedNode | None:
        for node in cast(list[TimedNode], self.living):
            if node.name == name and not node.client.crashed:
                return node
        return None

    def guards(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for node in cast(list[TimedNode], self.all):
            found.update(node.keeper.guards)
            found["incarnation ended"] += node.watcher.ended
        return found
