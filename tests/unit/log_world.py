"""Nodes with log queues for tests: on an embedded store with the real clock, or several in a simulated world."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from capellini.model import chunks
from capellini.model.clock import Chance, Clock, RealClock
from capellini.model.errors import CapelliniError, Unavailable
from capellini.model.log import LogParcel, Settle, Settled, split_name
from capellini.model.message import Entry
from capellini.node.broker import Broker
from capellini.queues.events import Events
from capellini.queues.lease import Lease, Watcher
from capellini.queues.log.keeper import LogKeeper
from capellini.queues.log.owner import Owner
from capellini.queues.log.peers import Peers
from capellini.queues.log.queue import LogQueue
from capellini.store.interface import Store
from capellini.store.rocks import RocksStore
from capellini.store.schema import TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.world import World

LEASE_S = 2.0
QUEUE = "q"


class Wires(Peers):
    """Every node reaches every other that is there."""

    def __init__(self) -> None:
        self.nodes: dict[str, LogNode] = {}
        self.calls = 0

    async def call(self, node: str, queue: str, operation: str, payload: bytes) -> bytes:
        target = self.nodes.get(node)
        if target is None:
            raise Unavailable(f"node {node} cannot be reached")
        self.calls += 1
        return await target.keeper.serve(queue, operation, payload)


class LogNode:
    def __init__(self, store: Store, clock: Clock, chance: Chance, name: str, wires: Wires) -> None:
        self.name, self.clock, self.store = name, clock, store
        self.broker = Broker(store, clock, chance, name, max_skew_s=0.5)
        self.catalog = self.broker.catalog
        self.lease = Lease(store, clock, chance, name, lease_s=LEASE_S if not store.alone else 10.0, beat_s=0.5)
        self.watcher = Watcher(store, clock, chance, lease_s=LEASE_S if not store.alone else 10.0)
        self.keeper = LogKeeper(
            store, clock, chance, self.catalog, self.lease, self.watcher, Events(clock), 0.5, wires, self.put_moved
        )
        self.lease.on_lost = self.keeper.emergency_stop
        self.moves: list[tuple[str, str]] = []
        self.fail_moves = 0
        self.client: SimulatedClient | None = None
        wires.nodes[name] = self

    async def put_moved(self, target: str, key: str, entry: Entry) -> None:
        self.moves.append((target, key))
        if "@" in target:
            queue, group = split_name(target)
            await (await self.queue(queue)).put_moved(key, entry, group)
        else:
            await self.broker.put_moved(target, key, entry)
        if self.fail_moves:  # done, and the answer is lost
            self.fail_moves -= 1
            raise Unavailable("the answer was lost")

    async def queue(self, name: str = QUEUE) -> LogQueue:
        return self.keeper.queue(await self.catalog.live(name))

    async def turn(self) -> None:
        await self.watcher.look()
        for node in self.watcher.silent():
            if node != self.name:
                await self.watcher.end(node)
        await self.keeper.turn()

    async def turns(self) -> None:
        while True:
            try:
                await self.turn()
            except CapelliniError:
                self.keeper.guards["turn failed"] += 1
            await self.clock.sleep(0.5)

    async def dead(self, name: str) -> list[bytes]:
        return [delivery.body for delivery in await self.broker.get(name, 100)]


async def embedded(folder: Path, name: str = "a", **options: Any) -> LogNode:
    store = await RocksStore.open(folder, clock=RealClock())
    await store.prepare(TABLES)
    node = LogNode(store, RealClock(), random.Random(7), name, Wires())
    await node.lease.start(alone=True)
    await node.catalog.create(QUEUE, "log", options)
    return node


async def closed(node: LogNode) -> None:
    await node.keeper.stop()
    await node.lease.stop()
    await node.broker.close()
    await node.store.close()


async def simulated(names: str = "abc", **options: Any) -> tuple[World, dict[str, LogNode]]:
    """Nodes that take their turns by themselves; a queue with these options."""
    world, wires = World(), Wires()
    nodes: dict[str, LogNode] = {}
    for name in names:
        nodes[name] = await started(world, wires, name)
    first = nodes[names[0]]
    await first.catalog.create(QUEUE, "log", options)
    return world, nodes


async def started(world: World, wires: Wires, name: str) -> LogNode:
    client = world.client(name)
    if not wires.nodes:
        await client.store.prepare(TABLES)
    node = LogNode(client.store, client.clock, client.random, name, wires)
    node.client = client
    await client.spawn(node.lease.start())
    client.spawn(node.turns())
    return node


def crash(wires_of: LogNode, nodes: dict[str, LogNode]) -> None:
    """It never runs again, and nobody reaches it."""
    assert wires_of.client is not None
    wires_of.client.crash()
    del nodes[wires_of.name]
    for node in nodes.values():
        node.keeper._peers.nodes.pop(wires_of.name, None)  # type: ignore[attr-defined]


async def grouped(nodes: dict[str, LogNode], **options: Any) -> LogNode:
    node = next(iter(nodes.values()))
    await (await node.queue()).create_group("g", "earliest", options)
    return node


async def owner_of(node: LogNode) -> Owner:
    (owner,) = (await node.queue()).readers.owners.values()
    return owner


async def put(node: LogNode, bodies: list[bytes], attributes: list[dict[str, str] | None] | None = None) -> None:
    await (await node.queue()).append(chunks.pack(bodies, attributes))


async def pull(node: LogNode, group: str = "g", count: int = 100, wait_s: float = 5.0, **more: Any) -> list[LogParcel]:
    return await (await node.queue()).pull(group, count, 1 << 20, wait_s, **more)


def bodies_in(parcels: list[LogParcel]) -> list[bytes]:
    return [
        body
        for parcel in parcels
        for head in chunks.heads_of(parcel.chunks)
        for body in chunks.bodies_of(parcel.chunks, head)
    ]


def counts_in(parcels: list[LogParcel]) -> dict[bytes, int]:
    return {body: parcel.deliveries for parcel in parcels for body in bodies_in([parcel])}


def attributes_in(parcels: list[LogParcel]) -> list[dict[str, str] | None]:
    return [
        one
        for parcel in parcels
        for head in chunks.heads_of(parcel.chunks)
        for one in chunks.attributes_of(parcel.chunks, head)
    ]


def settle_of(
    parcel: LogParcel, verb: str = "ack", ranges: list[tuple[int, int]] | None = None, value_ms: int | None = None
) -> Settle:
    return Settle(
        parcel.extent, parcel.reader, parcel.epoch, parcel.delivery, parcel.first, parcel.count, parcel.code, verb,
        ranges if ranges is not None else [(parcel.first, parcel.count)], value_ms,
    )  # fmt: skip


async def settle(node: LogNode, parcels: list[LogParcel], verb: str = "ack", group: str = "g", **more: Any) -> int:
    """How many messages were settled."""
    answers: list[Settled] = await (await node.queue()).settle(group, [settle_of(p, verb, **more) for p in parcels])
    assert not [answer for answer in answers if answer.error], answers
    return sum(count for answer in answers for _, count in answer.ranges)


async def until(clock: Clock, holds: Callable[[], Awaitable[bool]], most_s: float = 30.0) -> None:
    end_s = clock.elapsed_s() + most_s
    while not await holds():
        assert clock.elapsed_s() < end_s
        await clock.sleep(0.02)


async def drained(node: LogNode, group: str = "g", wait_s: float = 2.0) -> list[bytes]:
    """All that can be had now, acked."""
    found: list[bytes] = []
    while parcels := await pull(node, group, wait_s=wait_s):
        found += bodies_in(parcels)
        await settle(node, parcels, group=group)
    return found
