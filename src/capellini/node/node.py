"""A node: an open store, the service on it, maintenance beside it, and a watch over its own condition.

    settings ──▶ store ──▶ broker (the service) + maintenance (leases, repair)
                   └── looked at once a second ──▶ condition ──▶ whoever listens: the API's gate and readiness

The API is above: `api.serving` runs a node and a server together.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from capellini.model.address import Address, CassandraAddress, RocksAddress
from capellini.model.clock import Chance, Clock, RealClock
from capellini.model.errors import CannotOpen, CapelliniError, Full
from capellini.node.broker import Broker
from capellini.node.condition import Condition
from capellini.node.config import address_of, name_of
from capellini.node.counting import CounterKeeper
from capellini.node.maintenance import Maintenance
from capellini.node.settings import Settings
from capellini.queues.events import Events, FileSink, MemorySink, Sink
from capellini.store.interface import Level, Store
from capellini.store.opening import open_store

log = logging.getLogger("capellini.node")

CHECK_EVERY_S: Final = 1.0
CHECK_TIMEOUT_S: Final = 5.0  # a store that takes longer to say that it is well is not


class Node:
    def __init__(
        self, settings: Settings, store: Store, broker: Broker, maintenance: Maintenance, clock: Clock
    ) -> None:
        self.settings = settings
        self.store = store
        self.service = broker
        self.condition = Condition()
        self._maintenance = maintenance
        self._clock = clock
        self._keeper = CounterKeeper(store, clock, random.Random())
        broker.counters = self._keeper.counters
        self._listeners: list[Callable[[Condition], None]] = []
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, settings: Settings, clock: Clock | None = None, chance: Chance | None = None) -> Node:
        """Opens the store, starts maintenance and the watch. Raises CannotOpen, Invalid or Unavailable."""
        clock = clock or RealClock()
        address = address_of(settings)
        sink = sink_of(settings)
        await _check_cluster_name(settings, address, clock)
        store = await open_store(address, clock=clock)
        try:
            broker, maintenance = _service(settings, address, store, clock, chance or random.SystemRandom(), sink)
            node = cls(settings, store, broker, maintenance, clock)
            await node.look()
        except BaseException:
            await store.close()
            raise
        maintenance.start()
        node._keeper.start()
        node._watch = asyncio.get_running_loop().create_task(node._watching())
        return node

    def subscribe(self, listener: Callable[[Condition], None]) -> None:
        """Called at once, and whenever the condition changes."""
        self._listeners.append(listener)
        listener(self.condition)

    async def drain(self, draining: bool = True) -> None:
        """Take no new work, or take it again."""
        self._set(msgspec.structs.replace(self.condition, draining=draining))

    async def look(self) -> None:
        """How is the store now?"""
        found = await examine(self.store, self.settings.max_skew_s, self.condition.draining)
        self._set(found)

    async def close(self) -> None:
        """Finish what was begun and give back what is owned."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        try:
            await self._keeper.stop()
            await self._maintenance.stop()
            await self.service.close()
        finally:
            await self.store.close()

    async def _watching(self) -> None:
        while True:
            await self._clock.sleep(CHECK_EVERY_S)
            await self.look()

    def _set(self, condition: Condition) -> None:
        before, self.condition = self.condition, condition
        if condition.reasons != before.reasons:
            if condition.ready:
                log.info("ready")
            else:
                log.warning("not ready: %s", "; ".join(condition.reasons))
        if condition != before:
            for listener in self._listeners:
                listener(condition)


async def examine(store: Store, max_skew_s: float, draining: bool) -> Condition:
    """The condition that follows from how the store answers."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await store.check()
            skew_s = await store.skew_s()
    except Full as error:
        return Condition(draining, full=error.says)
    except CapelliniError as error:
        return Condition(draining, down=error.says)
    except TimeoutError:
        return Condition(draining, down=f"the store did not answer for {CHECK_TIMEOUT_S:g} s")
    except Exception as error:  # the watch must go on, and tell of it
        log.exception("the store cannot be looked at")
        return Condition(draining, down=f"the store cannot be looked at: {error}")
    if abs(skew_s) > max_skew_s:
        says = f"the store's clock is {skew_s:+.3f} s off; {max_skew_s:g} s are allowed: set the clocks right"
        return Condition(draining, skewed=says, skew_s=skew_s)
    return Condition(draining, skew_s=skew_s)


def sink_of(settings: Settings) -> Sink | None:
    """Where life-cycle events go. Raises CannotOpen."""
    if settings.events == "none":
        return None
    if settings.events == "memory":
        return MemorySink()
    path = Path(settings.events.removeprefix("file:"))
    try:
        return FileSink(path)
    except OSError as error:
        raise CannotOpen(f"events cannot be written to {path}: {error.strerror}") from None


def _service(
    settings: Settings, address: Address, store: Store, clock: Clock, chance: Chance, sink: Sink | None
) -> tuple[Broker, Maintenance]:
    name = name_of(settings)
    events = Events(clock, name, secrets.token_hex(8), sink)
    broker = Broker(store, clock, chance, name, events, settings.max_skew_s)
    alone = isinstance(address, RocksAddress)
    return broker, Maintenance(store, clock, chance, broker, address=settings.listen, alone=alone)


async def _check_cluster_name(settings: Settings, address: Address, clock: Clock) -> None:
    """Raises CannotOpen when this is another cluster than the one meant: before anything is created in it."""
    if not settings.cluster_name or not isinstance(address, CassandraAddress):
        return
    from capellini.store.cassandra_session import Session

    session = await Session.connect(address, clock)
    try:
        found = (await session.read("SELECT cluster_name FROM system.local", [], Level.ONE))[0][0]
    finally:
        await session.close()
    if found != settings.cluster_name:
        raise CannotOpen(f"the Cassandra cluster is called {found!r}, not {settings.cluster_name!r}: see cluster_name")
