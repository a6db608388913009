"""The keeper: the log queues that this node writes and reads.

A node makes one, beside its maintenance, with the maintenance's lease and watcher:

    keeper = LogKeeper(store, clock, random, catalog, lease, watcher, events, max_skew_s, peers, put_moved)
    lease.on_lost: keeper.emergency_stop(why)      # (call it beside what is there)
    home.lease.on_lost: keeper.emergency_stop(why, home.lease)        # where there are data centres (`homes`)
    every second or so:  await keeper.turn()       # after watcher.look() and ending the silent, as maintenance does;
                                                   # sooner when keeper.soon is set
    at drain:            await keeper.stop()       # before lease.stop(): seals, and gives up what it reads

A turn, for each queue that is used here or has something to be done: look at the list of extents, seal what dead
writers left, roll and seal what is written here, take what should be read here, drop what is past its retention.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec

from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError, Conflict, Unavailable
from capellini.model.log import AT, Appended
from capellini.model.options import LogOptions
from capellini.queues.assignments import liking
from capellini.queues.catalog import Catalog, QueueRecord
from capellini.queues.events import Events
from capellini.queues.lease import Lease, Watcher
from capellini.queues.log.extents import Extents
from capellini.queues.log.groups import Groups
from capellini.queues.log.homes import Home
from capellini.queues.log.peers import PREFIX, Peers, ask_of
from capellini.queues.log.place import LogPlace
from capellini.queues.log.queue import LogQueue
from capellini.queues.log.readers import Readers
from capellini.queues.log.reading import Shelf
from capellini.queues.log.retention import clear_generation, drop_old
from capellini.queues.log.sealing import seal_over
from capellini.queues.log.writing import Writers
from capellini.queues.work.letters import PutMoved
from capellini.queues.work.place import Gone
from capellini.store.interface import Store

LOOK_TURNS_ALONE: Final = 10  # lists that only this process changes are read for changes whose caller went away
CLEAR_TURNS: Final = 10  # what ended generations left is looked for at every so many turns
log: Final = logging.getLogger("capellini.log")

Place = tuple[str, int]  # queue, generation


class LogKeeper:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Chance,
        catalog: Catalog,
        lease: Lease,
        watcher: Watcher,
        events: Events,
        max_skew_s: float,
        peers: Peers,
        put_moved: PutMoved,
        holds: bool = True,
        home: Home | None = None,
    ) -> None:
        self._holds, self._home = holds, home
        self._store, self._clock, self._random = store, clock, random
        self._catalog, self._lease, self._watcher, self._events = catalog, lease, watcher, events
        self._max_skew_s = 0.0 if store.alone else max_skew_s
        self._peers, self._put_moved = peers, put_moved
        self._queues: dict[Place, LogQueue] = {}
        self.shelf = Shelf()
        self.soon = asyncio.Event()  # a turn should not wait: extents have changed
        self.guards: Counter[str] = Counter()
        self._turns = 0
        self.emergency_stops = 0
        self.dropped = 0  # extents past their retention
        self.before_drop: Callable[[LogQueue], Awaitable[None]] | None = None  # of an extent: see `delaying`

    # For callers

    def queue(self, record: QueueRecord) -> LogQueue:
        """This node's view of that generation of a log queue; cheap, one object per (name, generation)."""
        options = record.options
        assert isinstance(options, LogOptions)
        found = self._queues.get((record.name, record.generation))
        if found is None:
            found = self._queues[record.name, record.generation] = self._opened(record, options)
        found.place.options = options
        return found

    def queues(self) -> list[LogQueue]:
        """Those that are used here."""
        return list(self._queues.values())

    def _place(self, name: str, generation: int, secret: bytes, options: LogOptions) -> LogPlace:
        """Raises Unavailable in a data centre that holds no copies, for a queue that lives in homes."""
        home = self._home if options.mode == "ap" else None
        if home is None:
            return LogPlace(
                self._store, self._clock, self._random, self._events, name, generation, secret, options,
                self._max_skew_s, self.guards, self._lease,
            )  # fmt: skip
        home.require()
        return LogPlace(
            home.store, self._clock, self._random, self._events, name, generation, secret, options, self._max_skew_s,
            self.guards, home.lease, home.name, self._store, home.abroad,
        )  # fmt: skip

    def _watching(self, place: LogPlace) -> Watcher:
        return self._home.watcher if self._home is not None and place.home else self._watcher

    def _opened(self, record: QueueRecord, options: LogOptions) -> LogQueue:
        place = self._place(record.name, record.generation, record.secret_bytes, options)

        async def current(puts: bool) -> None:
            now = await self._catalog.live(record.name)
            if now.generation != record.generation:
                raise Gone("this queue was deleted or purged")
            if puts:
                now.require_puts()
            else:
                now.require_gets()

        async def forward(node: str, chunk: bytes) -> Appended:
            return await queue.forward(node, chunk)

        extents, groups, watcher = Extents(place), Groups(place, record.creation), self._watching(place)
        extents.on_change.append(self.soon.set)
        writers = Writers(place, extents, watcher, forward)
        readers = Readers(
            place, extents, writers, watcher, groups, self.shelf, self._put_moved, self._make_queue,
            lambda: queue.wake(),
        )  # fmt: skip
        queue = LogQueue(
            place, extents, writers, groups, readers, self._peers, current, self._make_queue, watcher, self._holds
        )
        return queue

    async def _make_queue(self, name: str) -> None:
        """A work queue for a group's dead letters, if there is none."""
        try:
            await self._catalog.create(name, "work", {})
        except Conflict:
            if (await self._catalog.show(name)).kind != "work":
                raise

    async def serve(self, queue: str, operation: str, payload: bytes) -> bytes:
        """What another node's `Peers.call` asks for. Raises CapelliniErrors for the caller to raise again."""
        asked = ask_of(payload)
        record = await self._catalog.live(queue)
        if record.kind != "log" or record.generation != asked.generation:
            raise Unavailable(f"this node does not know that generation of {queue}: try again")
        answer = await self.queue(record).serve(operation.removeprefix(PREFIX), asked.arguments)
        return msgspec.msgpack.encode(answer)

    # Turns

    @property
    def may_act(self) -> bool:
        """Is a lease of this node valid, that for all or that of its home?"""
        return self._lease.valid() or (self._home is not None and self._home.lease.valid())

    async def turn(self) -> None:
        """What is to be done now and then, for all log queues. One that fails does not hold up the others."""
        self.soon.clear()
        if not self.may_act:
            self._lease.require()
        before = set(self._queues)  # one that comes while the list is read may be newer than the list
        found, sure = await self._catalog.logs()
        records = {(record.name, record.generation): record for record in found}
        for record in found:
            try:
                queue = self.queue(record)
                if queue.place.lease.valid():
                    await self._turn(queue)
            except CapelliniError as error:
                self.guards["turn put off"] += 1
                log.info("queue %s: %s", record.name, error.says)
        for at in [at for at in self._queues if sure and at in before and at not in records]:
            self._ended(self._queues.pop(at))
        self._turns += 1
        if self._turns % CLEAR_TURNS == 0 and sure:
            await self._clear_home()

    def _ended(self, queue: LogQueue) -> None:
        queue.readers.abandon()
        queue.writers.abandon(f"queue {queue.place.name} was deleted or purged")

    async def _turn(self, queue: LogQueue) -> None:
        watcher = self._watching(queue.place)
        if not self._store.alone or not queue.extents.looked or self._turns % LOOK_TURNS_ALONE == 0:
            await queue.extents.look()
        await seal_over(queue.place, queue.extents, watcher)
        await queue.scaling.turn()
        await queue.writers.turn()
        await queue.readers.turn()
        before = None if self.before_drop is None else partial(self.before_drop, queue)
        self.dropped += await drop_old(queue.place, queue.extents, queue.groups, queue.readers, watcher, before)

    async def _clear_home(self) -> None:
        """What ended generations left in this home; one node of it does so. Others cannot."""
        home = self._home
        if home is None or not home.name or not home.lease.valid():
            return
        nodes = {*home.watcher.live(), home.lease.node}
        if max(nodes, key=lambda node: liking(f"clear/{home.name}", node)) != home.lease.node:
            return
        for name, generation, bucket_size in await self._catalog.leftovers():
            if not bucket_size and not name.endswith(AT):
                await clear_generation(self._place(name, generation, b"", LogOptions()), home.watcher)

    # The end

    def emergency_stop(self, why: str, lease: Lease | None = None) -> int:
        """A lease is gone (unless told otherwise, the one for all): hand out nothing, confirm nothing under it, from
        this moment on. How many queues that stopped."""
        before = self.emergency_stops
        for queue in self._queues.values():
            if queue.place.lease is not (lease or self._lease):
                continue
            if queue.readers.owners or queue.writers.accepting():
                self.emergency_stops += 1
                self.guards["emergency stop"] += 1
            queue.readers.abandon()
            queue.writers.abandon()
        return self.emergency_stops - before

    async def stop(self, but: str = "") -> None:
        """Seal what is written here, and give up what is read: others may go on at once. `but`: a queue that goes on
        for now."""
        queues = [queue for queue in self.queues() if queue.place.name != but]
        for queue in queues:
            queue.stop_waiting()
        for queue in queues:
            try:
                await queue.writers.close(seal=True)
                await queue.readers.give_up()
            except CapelliniError as error:
                self.guards["queue not given up"] += 1
                log.info("queue %s: %s", queue.place.name, error.says)

    async def clear(self, name: str, generation: int) -> bool:
        """Clear what a deleted or purged generation left (`Catalog.leftovers` names it with bucket size 0), or the
        groups of a deleted queue (QUEUE@). True: nothing is left."""
        place = self._place(name.removesuffix(AT), generation, b"", LogOptions(mode="cp"))
        if name.endswith(AT):
            await Groups(place, generation).expire()
            return True
        queue = self._queues.pop((name, generation), None)
        if queue is not None:
            self._ended(queue)
        cleared = await clear_generation(place, self._watcher)
        if self._home is None or not self._home.name:
            return cleared
        at_home = self._place(name, generation, b"", LogOptions())
        return await clear_generation(at_home, self._home.watcher) and cleared
