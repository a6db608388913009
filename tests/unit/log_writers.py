"""The write side of log queues for tests: nodes with a lease on one queue, and a store whose block writes go wrong as
told."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from capellini.model.chunks import NO_PRODUCER, bodies_of, check, heads_of, pack
from capellini.model.clock import Clock
from capellini.model.errors import StoreError, Unavailable, Unknown
from capellini.model.log import Appended
from capellini.model.options import LogOptions
from capellini.queues.events import Events
from capellini.queues.lease import Lease, Watcher
from capellini.queues.log.extents import Extent, Extents
from capellini.queues.log.place import LogPlace
from capellini.queues.log.rows import Block, read_blocks
from capellini.queues.log.sealing import seal_over
from capellini.queues.log.writing import Writers
from capellini.queues.resting import rest
from capellini.store.interface import Batch, Cas, Counts, Key, Level, Outcome, Page, Replica, Slice, Store, Table
from capellini.store.schema import LOG_BLOCKS, TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

MUCH = 1 << 30
LIMIT = 1 << 20
P = bytes(range(16))  # a producer
FORWARD_S = 5.0  # a node that does not answer another for so long may have done it


class Troubled(Store):
    """Another store, but `trouble(table, batch or cas)` may raise: before it was done, or after (`later`)."""

    def __init__(self, store: Store) -> None:
        self.inner = store
        self.alone, self.home, self.homes = store.alone, store.home, store.homes
        self.counts: Counts = store.counts
        self.before: Callable[[Table, Batch | Cas], StoreError | None] = lambda _, __: None
        self.after: Callable[[Table, Batch | Cas], StoreError | None] = lambda _, __: None
        self.blocks: list[tuple[Key, Level]] = []
        self.disk: asyncio.Future[None] | None = None  # an fsync is said to be under way

    @property
    def syncing(self) -> asyncio.Future[None] | None:
        if self.disk is None:
            return self.inner.syncing
        return None if self.disk.done() else self.disk

    async def prepare(self, tables: tuple[Table, ...], create: bool = True) -> None:
        await self.inner.prepare(tables, create)

    async def read(self, slice: Slice) -> Page:
        return await self.inner.read(slice)

    async def write(self, batch: Batch) -> None:
        if error := self.before(batch.table, batch):
            raise error
        if batch.table is LOG_BLOCKS and batch.rows:
            self.blocks.append((batch.rows[0][0], batch.level))
        await self.inner.write(batch)
        if error := self.after(batch.table, batch):
            raise error

    async def compare_and_set(self, cas: Cas) -> Outcome:
        if error := self.before(cas.table, cas):
            raise error
        outcome = await self.inner.compare_and_set(cas)
        if error := self.after(cas.table, cas):
            raise error
        return outcome

    async def drop(
        self, table: Table, partition: Key, level: Level = Level.QUORUM, timestamp_us: int | None = None
    ) -> None:
        await self.inner.drop(table, partition, level, timestamp_us)

    async def partitions(
        self, table: Table, limit: int = 1_000, after: Key | None = None, level: Level = Level.QUORUM
    ) -> list[Key]:
        return await self.inner.partitions(table, limit, after, level)

    async def replicas(self, table: Table, partition: Key) -> tuple[Replica, ...]:
        return await self.inner.replicas(table, partition)

    async def skew_s(self) -> float:
        return await self.inner.skew_s()

    async def check(self) -> None:
        await self.inner.check()

    async def close(self) -> None:
        await self.inner.close()


class LogNode:
    """One node's write side. `nodes` are all there are, by name: how chunks are forwarded."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: random.Random,
        name: str = "a",
        nodes: dict[str, LogNode] | None = None,
        lease_s: float = 10.0,
        **options: object,
    ) -> None:
        self.store, self.clock = Troubled(store), clock
        self.nodes = nodes if nodes is not None else {}
        self.nodes[name] = self
        self.guards: Counter[str] = Counter()
        self.client: SimulatedClient | None = None
        self.lease = Lease(store, clock, chance, name, lease_s=lease_s, beat_s=lease_s * 0.3, on_lost=self._lost)
        self.watcher = Watcher(store, clock, chance, lease_s=lease_s)
        self.place = LogPlace(
            self.store,
            clock,
            chance,
            Events(clock),
            "q",
            1,
            b"secret",
            msgspec.convert(options, LogOptions),
            0.5,
            self.guards,
            self.lease,
        )
        self.extents = Extents(self.place)
        self.writers = Writers(self.place, self.extents, self.watcher, self._forward)

    def _lost(self, why: str) -> None:
        self.writers.abandon()

    async def _forward(self, node: str, chunk: bytes) -> Appended:
        there = self.nodes.get(node)
        if there is None:
            raise Unavailable(f"node {node} is gone")
        work = there.writers.append(chunk, check(chunk, LIMIT), forwarded=True)
        if there.client is None:
            return await work
        if there.client.crashed:
            work.close()
            raise Unavailable(f"node {node} is gone")
        done = asyncio.Event()  # what it does there is that client's, and ends with it
        task = there.client.spawn(work)
        task.add_done_callback(lambda _: done.set())
        await rest(self.clock, done, FORWARD_S)
        if not task.done():
            raise Unknown(f"node {node} did not answer")
        return task.result()

    async def start(self, alone: bool = False) -> LogNode:
        await self.store.prepare(TABLES)
        await self.lease.start(alone)
        return self

    async def put(self, *bodies: bytes, producer: bytes = NO_PRODUCER, sequence: int = 0) -> Appended:
        chunk = pack(bodies, None, producer, sequence)
        return await self.writers.append(chunk, check(chunk, LIMIT))

    async def turn(self) -> None:
        """What the keeper does about once a second."""
        await self.watcher.look()
        for node in self.watcher.silent():
            await self.watcher.end(node)
        await self.extents.look()
        await seal_over(self.place, self.extents, self.watcher)
        await self.writers.turn()


def simulate(main: Coroutine[Any, Any, None], seed: int = 0) -> None:
    run(main, seed)


async def node_in(world: World, name: str = "a", nodes: dict[str, LogNode] | None = None, **options: Any) -> LogNode:
    """A node of its own client; what it does is its client's."""
    client = world.client(name)
    node = LogNode(client.store, client.clock, client.random, name, nodes, **options)
    await client.spawn(node.start())
    return node


async def stored(node: LogNode, extent: Extent) -> list[bytes]:
    """The bodies of all messages that a reader of this extent may see now, in order."""
    blocks = await read_blocks(node.place, extent.name, 0, MUCH)
    known = max((block.confirmed for block in blocks), default=0)
    end = extent.end if extent.sealed and extent.end is not None else known
    return [body for number, body in numbered(blocks) if number < end]


def numbered(blocks: list[Block]) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for block in blocks:
        number = block.first
        for head in heads_of(block.chunks):
            for body in bodies_of(block.chunks, head):
                found.append((number, body))
                number += 1
    return found


async def everything(node: LogNode) -> dict[str, list[bytes]]:
    """By extent, in order of their opening, as anybody sees it."""
    return {extent.name: await stored(node, extent) for extent in await node.extents.look()}


def all_of(found: Mapping[str, list[bytes]]) -> list[bytes]:
    return [body for bodies in found.values() for body in bodies]
