"""A node: an open store, the service on it, maintenance beside it, and a watch over its own condition.

    settings ──▶ store ──▶ broker (queues) + maintenance (leases, repair) + kinds (timed shards, log extents)
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

from capellini.counters.times import Times, check_times
from capellini.model.address import Address, CassandraAddress, RocksAddress
from capellini.model.clock import Chance, Clock, RealClock
from capellini.model.errors import CannotOpen, CapelliniError, Full, Unavailable
from capellini.node import cluster
from capellini.node.background import Background
from capellini.node.broker import Broker
from capellini.node.condition import Condition
from capellini.node.config import TIMES as PREFIX
from capellini.node.config import address_of, announced, listen_of, name_of, times_of
from capellini.node.counting import CounterKeeper
from capellini.node.following import following
from capellini.node.journal import JournalSink
from capellini.node.kinds import Kinds
from capellini.node.maintenance import Maintenance
from capellini.node.peering import Peering
from capellini.node.settings import Settings
from capellini.node.statistics import CountedEvents
from capellini.queues.events import FileSink, MemorySink, Sink
from capellini.queues.timed.peers import Peers
from capellini.queues.work.place import Gone
from capellini.store.interface import Store
from capellini.store.local import LocalStore
from capellini.store.opening import open_store

log = logging.getLogger("capellini.node")

PeersOf = Callable[[Peering], Peers]  # how other nodes are reached, from above: HTTP is no business of this layer
FLUSH_EVENTS_S: Final = 1.0
SAY_LOST_S: Final = 60.0
MEMORY_EVENTS: Final = 100_000  # the last so many, some 30 MB
CHECK_EVERY_S: Final = 1.0
CHECK_TIMEOUT_S: Final = 5.0  # a store that takes longer to say that it is well is not


class Node:
    def __init__(
        self,
        settings: Settings,
        store: Store,
        broker: Broker,
        maintenance: Maintenance,
        clock: Clock,
        times: Times | None = None,
        peers_of: PeersOf | None = None,
        sink: Sink | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.condition = Condition()
        self._maintenance = maintenance
        self._peering = Peering(store, clock, broker.random, maintenance.watcher)
        peers = None if peers_of is None or store.alone else peers_of(self._peering)
        self.kinds = Kinds(broker, maintenance, peers, journal=sink if isinstance(sink, JournalSink) else None)
        self.service = self.kinds.service
        self._clock = clock
        self._keeper = CounterKeeper(broker, random.Random(), times)
        self._listeners: list[Callable[[Condition], None]] = []
        self._watch = Background(self._watching)
        self._events = broker.events
        self._file = sink if isinstance(sink, FileSink) else None
        self._lost, self._say_again_s = 0, 0.0  # events that the file did not take, as was said
        self._flush = Background(self._flushing)

    @classmethod
    async def open(
        cls,
        settings: Settings,
        clock: Clock | None = None,
        chance: Chance | None = None,
        peers_of: PeersOf | None = None,
        begin: bool = True,
    ) -> Node:
        """Opens the store, starts maintenance and the watch. `begin`: at once, not when it is known where others reach
        it. Raises CannotOpen, Invalid or Unavailable."""
        clock = clock or RealClock()
        address = address_of(settings)
        sink = sink_of(settings)
        times = await _times(settings, address, clock)
        store = await open_store(address, clock=clock)
        try:
            broker, maintenance = _service(settings, address, store, clock, chance or random.SystemRandom(), sink)
            node = cls(settings, store, broker, maintenance, clock, times, peers_of, sink)
            await node.look()
        except BaseException:
            await store.close()
            raise
        if begin:
            node.begin(announced(settings, listen_of(settings)[1]))
        return node

    def begin(self, address: str) -> None:
        """Act from now on; other nodes reach this one at that address."""
        self._maintenance.lease.address = address
        self._maintenance.start()
        self.kinds.start()
        self._keeper.start()
        self._keeper.start_sweeping()
        self._watch.start()
        self._flush.start()

    async def serve_peer(self, queue: str, operation: str, envelope: bytes) -> bytes:
        """What another node asks. Raises Invalid for who is none."""
        payload = await self._peering.unseal(queue, operation, envelope)
        try:
            return await self.kinds.serve_peer(queue, operation, payload)
        except Gone as error:
            raise Unavailable(f"{queue}: {error.says}") from error

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
        draining = self.condition.draining  # asked anew: it may have been told to drain while the store was asked
        self._set(msgspec.structs.replace(found, draining=draining, doubled=self._maintenance.doubled))

    async def close(self) -> None:
        """Finish what was begun and give back what is owned."""
        await self._watch.stop()
        await self._flush.stop()
        try:
            await self.kinds.stop()
            await self._maintenance.rest()
            await self.service.close()
            await self.kinds.finish()
            await self._maintenance.stop()
            await self._keeper.stop()  # last: what was finished just now counts as well
        finally:
            await self.store.close()

    async def _watching(self) -> None:
        while True:
            await self._clock.sleep(CHECK_EVERY_S)
            await self.look()

    async def _flushing(self) -> None:
        """A killed node takes at most the last second's events with it."""
        while True:
            await self._clock.sleep(FLUSH_EVENTS_S)
            self.flush_events()

    def flush_events(self) -> None:
        """What a file does not take is lost, and said: not more often than once a minute."""
        self._events.flush()
        now_s = self._clock.elapsed_s()
        if self._file is not None and self._file.dropped > self._lost and now_s >= self._say_again_s:
            self._lost, self._say_again_s = self._file.dropped, now_s + SAY_LOST_S
            log.warning("%s takes no events: %d were lost since the start", self.settings.events, self._lost)

    def _set(self, condition: Condition) -> None:
        before, self.condition = self.condition, condition
        if condition.faults != before.faults:
            if condition.ready:
                log.info("ready%s", f", but {condition.cut}" if condition.cut else "")
            else:
                log.warning("not ready: %s", "; ".join(condition.reasons))
        if condition != before:
            for listener in self._listeners:
                listener(condition)


async def examine(store: Store, max_skew_s: float, draining: bool) -> Condition:
    """The condition that follows from how the store answers, or else the data centre that this is in."""
    found = await _examine(store, max_skew_s, draining)
    if found.down is None or len(store.homes) < 2 or not store.home:
        return found
    at_home = await _examine(LocalStore(store), max_skew_s, draining)
    if at_home.down is not None:
        return found
    says = f"data centre {store.home} is cut off from the others: only log queues of mode ap go on ({found.down})"
    return msgspec.structs.replace(at_home, cut=says)


async def _examine(store: Store, max_skew_s: float, draining: bool) -> Condition:
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
    if settings.events == "journal":
        return JournalSink()
    if settings.events == "memory":
        return MemorySink(MEMORY_EVENTS)
    path = Path(settings.events.removeprefix("file:"))
    try:
        return FileSink(path)
    except OSError as error:
        raise CannotOpen(f"events cannot be written to {path}: {error.strerror}") from None


def _service(
    settings: Settings, address: Address, store: Store, clock: Clock, chance: Chance, sink: Sink | None
) -> tuple[Broker, Maintenance]:
    name = name_of(settings)
    log_sink = following()
    events = CountedEvents(clock, name, secrets.token_hex(8), sink, log_sink)
    broker = Broker(store, clock, chance, name, events, settings.max_skew_s)
    if log_sink is not None:
        log_sink.size_of = broker.bucket_size
    alone = isinstance(address, RocksAddress)
    return broker, Maintenance(store, clock, chance, broker, alone=alone)


async def _times(settings: Settings, address: Address, clock: Clock) -> Times:
    """The times of counters, checked against the cluster; that it is the one that is meant is checked first. Raises
    CannotOpen or Invalid, before anything is created in it."""
    times = times_of(settings)
    if not isinstance(address, CassandraAddress):
        return times
    found = await cluster.ask(address, clock)
    cluster.check_name(found, settings.cluster_name)
    return check_times(msgspec.structs.replace(times, hint_window_s=found.hint_window_s), PREFIX)
