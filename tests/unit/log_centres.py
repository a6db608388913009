"""Nodes with log queues in several data centres of a simulated world, that can be cut from each other."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.unit.log_world import LEASE_S, LogNode, Wires

from capellini.model.errors import CapelliniError, Conflict, Unavailable, Unknown
from capellini.queues.events import Events
from capellini.queues.log.homes import Home
from capellini.queues.log.keeper import LogKeeper
from capellini.queues.log.peers import Peers
from capellini.queues.resting import rest
from capellini.store.schema import TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.world import World

T = TypeVar("T")
ANSWER_S = 5.0  # then a node that was asked may have done it
TURN_S = 0.5


class Links(Peers):
    """How one node reaches the others: not across a cut."""

    def __init__(self, centres: Centres, client: SimulatedClient) -> None:
        self._centres, self._client = centres, client

    async def call(self, node: str, queue: str, operation: str, payload: bytes) -> bytes:
        centres, target = self._centres, self._centres.nodes.get(node)
        if target is None or centres.world.network.is_cut(self._client.name, node):
            await self._client.clock.sleep(0.01)
            raise Unavailable(f"node {node} cannot be reached")
        assert target.client is not None
        done = asyncio.Event()
        task = target.client.spawn(target.keeper.serve(queue, operation, payload))
        task.add_done_callback(lambda _: done.set())
        await rest(self._client.clock, done, ANSWER_S)
        if not task.done() or centres.world.network.is_cut(self._client.name, node):
            raise Unknown(f"node {node} did not answer")
        return task.result()


class HomeNode(LogNode):
    def __init__(self, centres: Centres, client: SimulatedClient) -> None:
        super().__init__(client.store, client.clock, client.random, client.name, centres.wires)
        self.client = client
        home = self.home = Home(client.store, client.clock, client.random, client.name, lease_s=LEASE_S, beat_s=0.5)
        self.keeper = LogKeeper(
            client.store, client.clock, client.random, self.catalog, self.lease, self.watcher, Events(client.clock),
            0.5, Links(centres, client), self.put_moved, True, home,
        )  # fmt: skip
        self.lease.on_lost = self.keeper.emergency_stop
        home.lease.on_lost = lambda why: self.keeper.emergency_stop(why, home.lease)

    async def everywhere(self) -> None:
        """What holds in all data centres."""
        while True:
            try:
                if not self.lease.valid():
                    await self.lease.start()
                await self.watcher.look()
                for node in self.watcher.silent():
                    if node != self.name:
                        await self.watcher.end(node)
            except (CapelliniError, Conflict):
                self.keeper.guards["look failed"] += 1
            await self.clock.sleep(TURN_S)

    async def at_home(self) -> None:
        while True:
            try:
                if not self.home.lease.valid():
                    await self.home.lease.start()
                await self.home.look()
            except (CapelliniError, Conflict):
                self.keeper.guards["look at home failed"] += 1
            await self.clock.sleep(TURN_S)

    async def turns(self) -> None:
        while True:
            try:
                if self.keeper.may_act:
                    await self.keeper.turn()
            except CapelliniError:
                self.keeper.guards["turn failed"] += 1
            await self.clock.sleep(TURN_S)


class Centres:
    """Data centres with so many replicas each, and nodes in them: "dc1" has a and b, "dc2" has c."""

    def __init__(self, replicas: dict[str, int] | None = None, faults: Faults | None = None) -> None:
        self.world = World(replicas=replicas or {"dc1": 2, "dc2": 1}, faults=faults)
        self.wires = Wires()
        self.nodes: dict[str, HomeNode] = {}
        self.dcs: dict[str, str] = {}

    async def start(self, **nodes: str) -> None:
        """Nodes by name, each with its data centre. Returns when all may act."""
        for name, dc in nodes.items():
            await self.begin(name, dc)
        while not all(self.nodes[name].home.lease.valid() and self.nodes[name].lease.valid() for name in nodes):
            await asyncio.sleep(0.1)

    async def begin(self, name: str, dc: str) -> None:
        client = self.world.client(name, dc)
        if not self.dcs:
            await client.store.prepare(TABLES)
        self.dcs[name] = dc
        self.nodes[name] = node = HomeNode(self, client)
        for work in (node.everywhere(), node.at_home(), node.turns()):
            client.spawn(work)

    async def at(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Done by that node's process."""
        client = self.nodes[name].client
        assert client is not None
        return await client.spawn(work)

    def crash(self, name: str) -> None:
        client = self.nodes.pop(name).client
        assert client is not None
        client.crash()

    def cut(self) -> None:
        """No message between data centres passes."""
        for one, other in self._pairs():
            self.world.cut(one, other)

    def heal(self) -> None:
        for one, other in self._pairs():
            self.world.heal(one, other)

    def _pairs(self) -> list[tuple[str, str]]:
        where = {replica.name: replica.dc for replica in self.world.replicas} | self.dcs
        return [(one, other) for one in where for other in where if where[one] < where[other]]
