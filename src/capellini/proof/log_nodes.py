"""The nodes of a simulated run of log queues, each in a process of its own that can crash; in some runs in two data
centres. Put together as `node.kinds` does it, with short leases; whoever talks to a node that crashes notices."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Final, cast

import msgspec

from capellini.model.errors import CapelliniError, Conflict, StoreError, Unavailable, Unknown
from capellini.model.message import Entry
from capellini.model.options import LogOptions
from capellini.node.broker import Broker
from capellini.node.delays import Delays
from capellini.proof.history import History
from capellini.proof.log_calls import LogCalls, Taken
from capellini.proof.log_history import BURIED_BY, Version
from capellini.proof.log_plan import LogPlan
from capellini.proof.nodes import Node, Nodes
from capellini.proof.timed_nodes import BEAT_S, LEASE_S
from capellini.queues.catalog import Catalog, QueueRecord
from capellini.queues.ending import PAGE
from capellini.queues.lease import Lease, Watcher
from capellini.queues.log.homes import Home
from capellini.queues.log.keeper import LogKeeper
from capellini.queues.log.peers import PREFIX
from capellini.queues.resting import first_of, rest
from capellini.queues.timed.keeper import TimedKeeper
from capellini.queues.timed.peers import Peers
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.world import World

TURN_S: Final = 1.0
LOOK_S: Final = 0.8  # between looks at leases
UPKEEP: Final = 0.2  # of the looks: what deleted queues left, and repair of the dead letters
CALL_S: Final = 4.0  # a node that does not answer for so long is given up
PATIENCE_S: Final = 10.0  # of callers: more than most answers take; those that take longer are open
ANSWER_S: Final = (0.0, 0.006)  # about what the store takes to answer
STALL_S: Final = (LEASE_S, LEASE_S + 3.0)
TAKEN: Final = frozenset(("extent taken first", "extent taken over"))  # guards


class SmallExtents(Catalog):
    """Queues whose extents are far smaller than options allow, so that a run sees many."""

    extent_bytes: int

    def _small(self, record: QueueRecord) -> QueueRecord:
        options = record.options
        if not isinstance(options, LogOptions):
            return record
        small = msgspec.structs.replace(options, extent_bytes=self.extent_bytes)
        return msgspec.structs.replace(record, options=small)

    async def live(self, name: str) -> QueueRecord:
        return self._small(await super().live(name))

    async def show(self, name: str) -> QueueRecord:
        return self._small(await super().show(name))

    async def queues(self, prefix: str = "", after: str = "", limit: int = PAGE) -> list[QueueRecord]:
        return [self._small(record) for record in await super().queues(prefix, after, limit)]

    async def logs(self) -> tuple[list[QueueRecord], bool]:
        records, sure = await super().logs()
        return [self._small(record) for record in records], sure


class Noted(Counter[str]):
    """Counts what was decided, and notes when an extent was taken: what was in flight may be delivered again."""

    def __init__(self, history: History, world: World) -> None:
        super().__init__()
        self._history, self._world = history, world

    def __setitem__(self, guard: str, times: int) -> None:
        if guard in TAKEN:
            self._history.taken_over_s.append(self._world.loop.time())
        super().__setitem__(guard, times)


class LogPeers(Peers):
    """How a node reaches the others."""

    def __init__(self, nodes: LogNodes, client: SimulatedClient) -> None:
        self._nodes, self._client = nodes, client

    async def call(self, node: str, queue: str, operation: str, payload: bytes) -> bytes:
        client = self._client
        world, chance = client.world, client.random
        await client.clock.sleep(world.network.delay())
        target = self._nodes.living_node(node)
        if target is None:
            raise Unavailable(f"node {node} cannot be reached")
        if world.network.is_cut(client.name, node) or chance.random() < world.profile.lost_request:
            await client.clock.sleep(CALL_S)
            raise Unknown(f"node {node} did not answer")
        keeper = target.keeper if operation.startswith(PREFIX) else target.timed
        task = target.client.spawn(keeper.serve(queue, operation, payload))
        task.add_done_callback(_heard)  # whoever asked may be gone by then
        await first_of(task, within_s=CALL_S)
        lost = world.network.is_cut(client.name, node) or chance.random() < world.profile.lost_answer
        if not task.done() or lost or task.cancelled():
            raise Unknown(f"the answer of node {node} was lost")
        await client.clock.sleep(world.network.delay())
        error = task.exception()
        if isinstance(error, CapelliniError):
            raise error.again()
        return task.result()


def _heard(task: asyncio.Task[bytes]) -> None:
    if not task.cancelled():
        task.exception()


class LogNode:
    def __init__(self, nodes: LogNodes, client: SimulatedClient, max_skew_s: float) -> None:
        self.name, self.client = client.name, client
        self._nodes = nodes
        store, clock, chance = client.store, client.clock, client.random
        self.work = Broker(store, clock, chance, client.name, max_skew_s=max_skew_s)
        self.work.catalog = self.catalog = SmallExtents(store, clock, chance)
        self.catalog.extent_bytes = nodes.plan.extent_bytes
        self.lease = Lease(store, clock, chance, client.name, f"at {client.name}", lease_s=LEASE_S, beat_s=BEAT_S)
        self.watcher = Watcher(store, clock, chance, lease_s=LEASE_S)
        self.home: Home | None = None
        if store.homes:
            self.home = Home(store, clock, chance, client.name, lease_s=LEASE_S, beat_s=BEAT_S)
        peers, events = LogPeers(nodes, client), self.work.events
        self.keeper = LogKeeper(
            store, clock, chance, self.catalog, self.lease, self.watcher, events, max_skew_s, peers, self._bury, True,
            self.home,
        )  # fmt: skip
        self.keeper.guards = Noted(nodes.history, client.world)
        self.timed = TimedKeeper(
            store, clock, chance, self.catalog, self.lease, self.watcher, events, max_skew_s, peers, self._bury
        )
        self.clear_others = [self.keeper.clear]
        self.delays = Delays(self.work, cast(Any, self), self.timed, self.keeper)
        self.broker = LogCalls(self, nodes)
        self.work.moved_elsewhere = self.broker.put_moved
        self._begin()

    def _begin(self) -> None:
        self.lease.on_lost = self._lost
        work = [self._looks(), self._turns()]
        if self.home is not None:
            self.home.lease.on_lost = self._lost_at_home
            work.append(self._looks_at_home())
        if self._nodes.plan.delays:
            work += [self._timed_turns(), self._moves()]
        self._tasks = [self.client.spawn(one) for one in work]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._nodes.history.broken.append(f"node {self.name} fails to take its turns: {error!r}")

    def _lost(self, why: str) -> None:
        self.keeper.emergency_stop(why)
        self.timed.emergency_stop(why)

    def _lost_at_home(self, why: str) -> None:
        assert self.home is not None
        self.keeper.emergency_stop(why, self.home.lease)

    async def _bury(self, target: str, key: str, entry: Entry) -> None:
        """A dead letter. It is marked with the reader that buried it: several versions of a group share a queue."""
        _, generation, group, version, *_ = key.split("/")
        reader = Version(int(generation), int(version)).of(group)
        attributes = {**(entry.attributes or {}), BURIED_BY: reader}
        await self.work.put_moved(target, key, msgspec.structs.replace(entry, attributes=attributes))

    # In the background

    async def _looks(self) -> None:
        """What holds in all data centres, as a node's maintenance does."""
        chance, clock = self.client.random, self.client.clock
        while True:
            try:
                if not self.lease.valid():
                    self._lost("no lease")
                    await self.lease.start()
                await self.watcher.look()
                for node in self.watcher.silent():
                    if node != self.name:
                        await self.watcher.end(node)
                if chance.random() < UPKEEP:
                    await self._upkeep()
            except Conflict:
                await clock.sleep(LEASE_S)
            except CapelliniError:
                self.keeper.guards["look failed"] += 1
            await clock.sleep(chance.uniform(LOOK_S * 0.8, LOOK_S * 1.2))

    async def _upkeep(self) -> None:
        for name, generation, bucket_size in await self.catalog.leftovers():
            if bucket_size:
                cleared = await self.work.old_generation(name, generation, bucket_size).repair.clear()
            else:
                cleared = all([await clear(name, generation) for clear in self.clear_others])
            if cleared:
                await self.catalog.cleared(name, generation)
        for record in await self.catalog.queues():
            if record.kind == "work":
                await self.work.opened(record).repair.step()

    async def _looks_at_home(self) -> None:
        home, clock, chance = self.home, self.client.clock, self.client.random
        assert home is not None
        while True:
            try:
                if not home.lease.valid():
                    self._lost_at_home("no lease")
                    await home.lease.start()
                await home.look()
            except Conflict:
                await clock.sleep(LEASE_S)
            except CapelliniError:
                self.keeper.guards["look at home failed"] += 1
            await clock.sleep(chance.uniform(LOOK_S * 0.8, LOOK_S * 1.2))

    async def _turns(self) -> None:
        clock, chance = self.client.clock, self.client.random
        while True:
            try:
                if self.keeper.may_act:
                    await self.keeper.turn()
                else:
                    self.keeper.soon.clear()
            except CapelliniError:
                self.keeper.guards["turn failed"] += 1
            await rest(clock, self.keeper.soon, chance.uniform(TURN_S * 0.8, TURN_S * 1.2))

    async def _timed_turns(self) -> None:
        clock, chance = self.client.clock, self.client.random
        while True:
            try:
                if self.lease.valid():
                    await self.timed.turn()
                else:
                    self.timed.soon.clear()
            except CapelliniError:
                self.keeper.guards["turn of delayed messages failed"] += 1
            await rest(clock, self.timed.soon, chance.uniform(TURN_S * 0.8, TURN_S * 1.2))

    async def _moves(self) -> None:
        while True:
            if self.lease.valid():
                self.delays.delaying.turn()
            await self.client.clock.sleep(0.1)

    async def stop(self) -> None:
        """As a node that is told to stop does."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(set(self._tasks))
        await self.delays.delaying.stop()
        await self.keeper.stop()
        await self.timed.stop()
        for lease in (self.lease, *([self.home.lease] if self.home is not None else [])):
            try:
                await lease.stop()
            except StoreError:
                self.keeper.guards["lease not given back"] += 1


class LogNodes(Nodes):
    def __init__(self, world: World, history: History, chance: random.Random, plan: LogPlan) -> None:
        self.plan = plan
        self.singly = plan.singly
        self.taken: dict[str, Taken] = {}  # by receipt
        self._broken: dict[str, asyncio.Future[None]] = {}  # by node: its connections
        super().__init__(world, history, chance, plan.nodes)

    def dc_of(self, name: str) -> str | None:
        """In turn."""
        dcs = list(self.plan.dcs)
        return dcs[(int(name[1:]) - 1) % len(dcs)] if dcs else None

    def start(self, name: str) -> Node:
        client = self.world.client(name, self.dc_of(name))
        node = cast(Node, LogNode(self, client, self.history.max_skew_s))
        self.all.append(node)
        self.living.append(node)
        self._broken[name] = self.world.loop.create_future()
        return node

    def near(self, dc: str | None) -> Node | None:
        """Some node there; None: there is none now."""
        found = [node for node in self.living if dc is None or node.client.dc == dc]
        return self._chance.choice(found) if found else None

    def people(self) -> None:
        """Each data centre has a node: nobody else reads what was written there."""
        while any(self.near(dc) is None for dc in self.plan.dcs):
            self.start_new()

    def living_node(self, name: str) -> LogNode | None:
        for node in self.living:
            if node.name == name and not node.client.crashed:
                return cast(LogNode, node)
        return None

    def guards(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for node in cast(list[LogNode], self.all):
            found.update(node.keeper.guards)
            found["incarnation ended"] += node.watcher.ended
        return found

    def crash(self, node: Node) -> None:
        """Whoever waits for its answers notices that the connection broke."""
        super().crash(node)
        self._broken[node.name].set_result(None)

    async def stall(self, node: Node) -> None:
        """It stops for longer than its lease, in the middle of what it was just asked for."""
        await asyncio.sleep(self._chance.uniform(*ANSWER_S))
        if not node.client.crashed:
            node.client.pause(self._chance.uniform(*STALL_S))

    async def answered(self, node: Node, task: asyncio.Task[Any], patience_s: float) -> None:
        await first_of(task, self._broken[node.name], within_s=min(patience_s, PATIENCE_S))

    # Cuts between data centres

    def cut(self) -> None:
        for one, other in self._pairs():
            self.world.cut(one, other)

    def heal(self) -> None:
        for one, other in self._pairs():
            self.world.heal(one, other)

    def _pairs(self) -> list[tuple[str, str]]:
        where = {replica.name: replica.dc for replica in self.world.replicas}
        where |= {node.name: node.client.dc for node in self.living}
        return [(one, other) for one in where for other in where if where[one] < where[other]]
