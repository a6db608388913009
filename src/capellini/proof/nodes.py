"""The nodes of a simulated run: a broker and its maintenance each, in a process of their own that can crash."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from capellini.model.errors import CapelliniError
from capellini.model.service import Service
from capellini.node.broker import Broker
from capellini.node.maintenance import Maintenance
from capellini.proof.history import Call, History
from capellini.queues.catalog import QueueRecord
from capellini.queues.cell import Cell
from capellini.queues.resting import first_of
from capellini.queues.work.place import Place
from capellini.queues.work.queue import WorkQueue
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.world import EPOCH_S, World

T = TypeVar("T")
PATIENCE_S: Final = 30.0  # of a caller beyond what it asked to wait: longer than any honest answer takes
DRAIN_S: Final = 10.0  # a node that is told to stop may take so long


class WatchedBroker(Broker):
    """Keeps everything it ever opened, so that what was decided there can be counted in the end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.places: list[Place] = []
        self.cells: dict[int, Cell[Any]] = {}

    def _open(self, record: QueueRecord) -> WorkQueue:
        queue = super()._open(record)
        place = queue.place
        self.places.append(place)
        opened = place.cell

        def cell(bucket: int) -> Cell[Any]:
            found = opened(bucket)
            self.cells[id(found)] = found
            return found

        place.cell = cell  # type: ignore[method-assign]
        self.cells[id(place.monoton)] = place.monoton
        self.cells[id(place.pointers)] = place.pointers
        return queue

    def guards(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for place in self.places:
            found.update(place.guards)
        for cell in self.cells.values():
            found.update({f"lost answer resolved: {how}": count for how, count in cell.resolved.items()})
        return found


class Node:
    def __init__(self, client: SimulatedClient, max_skew_s: float) -> None:
        self.name = client.name
        self.client = client
        store, clock, chance = client.store, client.clock, client.random
        self.broker = WatchedBroker(store, clock, chance, client.name, max_skew_s=max_skew_s)
        self.maintenance = Maintenance(store, clock, chance, self.broker)
        self.leaving = False
        client.spawn(self._start())

    async def _start(self) -> None:
        self.maintenance.start()

    async def stop(self) -> None:
        """As a node that is told to stop does."""
        self.broker.stop_waiting()
        await self.maintenance.stop()
        await self.broker.close()


class Nodes:
    def __init__(self, world: World, history: History, chance: random.Random, count: int) -> None:
        self.world = world
        self.history = history
        self._chance = chance
        self._numbers = count
        self.all: list[Node] = []
        self.living: list[Node] = []
        for number in range(count):
            self.start(f"n{number + 1}")

    def start(self, name: str) -> Node:
        node = Node(self.world.client(name), self.history.max_skew_s)
        self.all.append(node)
        self.living.append(node)
        return node

    def start_new(self) -> Node:
        self._numbers += 1
        return self.start(f"n{self._numbers}")

    def pick(self) -> Node:
        return self._chance.choice(self.living)

    def crash(self, node: Node) -> None:
        self.living.remove(node)
        node.client.crash()

    async def drain(self, node: Node) -> None:
        """Told to stop; killed when it takes too long."""
        self.living.remove(node)
        task = node.client.spawn(node.stop())
        await asyncio.wait({task}, timeout=DRAIN_S)
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            self.history.broken.append(f"node {node.name} failed to stop: {error!r}")
        node.client.crash()

    def guards(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for node in self.all:
            found.update(node.broker.guards())
            found["incarnation ended"] += node.maintenance.watcher.ended
        return found

    async def answered(self, node: Node, task: asyncio.Task[Any], patience_s: float) -> None:
        """Until the call has an answer, or its caller's patience is over."""
        await first_of(task, within_s=patience_s)

    async def call(
        self,
        who: str,
        op: str,
        queue: str,
        act: Callable[[Service], Coroutine[Any, Any, T]],
        patience_s: float = PATIENCE_S,
        hangs_up: float = 0.5,
        at: Node | None = None,
        **asked: Any,
    ) -> tuple[Call, T | None]:
        """One call through a living node (`at`: this one), written down. None: it failed, or is open; the call says
        which. `hangs_up`: how often a caller whose patience is over is noticed to be gone, so that its call is
        cancelled."""
        node = at or self.pick()
        loop, clock = self.world.loop, node.client.clock
        call = self.history.begin(who, node.name, op, queue, loop.time())
        for name, value in asked.items():
            setattr(call, name, value)
        ahead_s = clock.offset_s
        task = node.client.spawn(act(node.broker))
        await self.answered(node, task, patience_s)
        call.ahead_s = max(ahead_s, clock.offset_s)
        if not task.done():
            task.add_done_callback(_unheard)
            if self._chance.random() < hangs_up and not node.client.crashed:
                task.cancel()  # as when the caller's connection breaks
            return call, None
        call.ended_s = loop.time()
        if task.cancelled():
            call.ended_s = None
            return call, None
        error = task.exception()
        if error is None:
            return call, task.result()
        if isinstance(error, CapelliniError):
            call.error, call.says = error.name, error.says
        else:
            call.error, call.says = "unknown", repr(error)
            self.history.broken.append(f"{op} of {queue} at {call.began_s:.3f} s raised {error!r}")
        return call, None


def _unheard(task: asyncio.Task[Any]) -> None:
    """Its caller went away: nobody else would ask how it ended."""
    if not task.cancelled():
        task.exception()


__all__ = ["EPOCH_S", "PATIENCE_S", "Node", "Nodes"]
