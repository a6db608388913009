"""The keeper: the timed shards that this node holds.

A node makes one, beside its maintenance, with the maintenance's lease and watcher:

    keeper = TimedKeeper(store, clock, random, catalog, lease, watcher, events, max_skew_s, peers, put_moved)
    lease.on_lost = keeper.emergency_stop          # (call it beside what is there)
    every second or so:  await keeper.turn()       # after watcher.look() and ending the silent, as maintenance does;
                                                   # sooner when keeper.soon is set: a new queue was put into
    at drain:            await keeper.stop()       # before lease.stop(): gives the shards up

`put_moved(target, key, entry)` is what moves use: the node's broker puts into whatever kind the target is.

Shards are items of one scope for all queues, "NAME/GENERATION/SHARD": one list says who works what, and every node
takes its fair share (`assignments`). An item stays on the list when its queue has fewer shards later: a shard that was
ever put into is worked as long as its queue lives. A put into a shard that is not on the list puts it there first.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Final

import msgspec

from capellini.model.clock import Chance, Clock
from capellini.model.errors import Invalid, StoreError, Unavailable
from capellini.model.options import TimedOptions
from capellini.model.timed import ShardView
from capellini.queues.assignments import Assignments, Owned, owned_of
from capellini.queues.catalog import Catalog, QueueRecord
from capellini.queues.events import Events
from capellini.queues.lease import Lease, Watcher
from capellini.queues.timed.acting import bury
from capellini.queues.timed.desk import Message
from capellini.queues.timed.holder import Holder
from capellini.queues.timed.horizon import ENDING_EPOCH, ENDLESS, read_shard, write_horizon
from capellini.queues.timed.peers import Payload, Peers
from capellini.queues.timed.place import SNAPSHOT_BYTES, TimedPlace
from capellini.queues.timed.queue import TimedQueue
from capellini.queues.timed.records import partition_of
from capellini.queues.timed.rows import drop_parts
from capellini.queues.timed.serving import Serving
from capellini.queues.timed.taking import Holders, Owners
from capellini.queues.trail import TOKEN, follow, new_name, settle_named
from capellini.queues.work.letters import PutMoved
from capellini.queues.work.place import Gone
from capellini.store.interface import Cas, Change, Store, Value
from capellini.store.schema import ASSIGNMENTS, TIMED_RECORDS

SCOPE: Final = "timed"
LATE_SAMPLES: Final = 10_000  # of the last first deliveries: how late each was
FORGOTTEN_S: Final = 86_400  # an ended generation's shards stay on the list for so long
QUIT_S: Final = 5.0  # a holder that was told to stop may take so long to finish what it is at
_PAYLOAD: Final = msgspec.msgpack.Decoder(Payload)

Place = tuple[str, int]  # queue, generation


class TimedKeeper:
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
    ) -> None:
        self._store, self._clock, self._random = store, clock, random
        self._catalog, self._lease, self._events = catalog, lease, events
        self._watcher = watcher
        self._max_skew_s = 0.0 if store.alone else max_skew_s
        self._peers, self._put_moved = peers, put_moved
        self.assignments = Assignments(store, clock, random, lease, watcher, SCOPE)
        self._queues: dict[Place, TimedQueue] = {}
        self._owners: dict[Place, Owners] = {}
        self._holders: dict[Place, dict[int, Holder]] = {}
        self._rows: dict[str, Owned] = {}
        self._nodes: dict[Place, dict[int, str]] = {}  # the same by queue: who holds each shard
        self._worked: dict[str, int] = {}  # by item: the epoch that a holder was begun under
        self.soon = asyncio.Event()  # a turn should not wait: there is a shard that nobody has ever worked
        self.guards: Counter[str] = Counter()
        self.snapshot_bytes = SNAPSHOT_BYTES
        self.takeovers = self.emergency_stops = 0
        self.late_ms: deque[int] = deque(maxlen=LATE_SAMPLES)

    # For callers

    def queue(self, record: QueueRecord) -> TimedQueue:
        """This node's view of that generation of a timed queue; cheap, one object per (name, generation)."""
        options = record.options
        assert isinstance(options, TimedOptions)
        found = self._queues.get((record.name, record.generation))
        if found is None:
            found = self._opened(record, options)
        found.place.options = options
        return found

    def _opened(self, record: QueueRecord, options: TimedOptions) -> TimedQueue:
        name, at = record.name, (record.name, record.generation)
        place = self._place(record.name, record.generation, record.secret_bytes, options)
        owners = self._owners.setdefault(at, Owners(self._lease.node))
        owners.nodes = self._nodes.setdefault(at, {})

        async def current() -> None:
            now = await self._catalog.live(name)
            if now.generation != record.generation:
                raise Gone("this queue was deleted or purged")
            now.require_gets()

        async def look_again(shard: int) -> str | None:
            owned = await self.assignments.owner(item_of(at, shard))
            if owned.token is None:
                return None  # not on the list: looking for it must not put it there
            self._rows[owned.item] = owned
            owners.nodes[shard] = owned.node
            return owned.node

        holders = Holders(Serving(place, self._holders.setdefault(at, {})), owners, self._peers)
        queue = TimedQueue(place, holders, current, look_again)
        self._queues[at] = queue
        return queue

    def _place(self, name: str, generation: int, secret: bytes, options: TimedOptions) -> TimedPlace:
        async def register(shard: int) -> None:
            await self._register(item_of((name, generation), shard))

        place = TimedPlace(
            self._store,
            self._clock,
            self._random,
            self._events,
            name,
            generation,
            secret,
            options,
            self._max_skew_s,
            self.guards,
            self.late_ms,
            register,
        )
        place.snapshot_bytes = self.snapshot_bytes
        return place

    def held(self) -> list[TimedQueue]:
        """Queues of which some shards are held here."""
        return [queue for at, queue in self._queues.items() if self._holders.get(at)]

    async def serve(self, queue: str, operation: str, payload: bytes) -> bytes:
        """What another node's `Peers.call` asks for. Raises CapelliniErrors for the caller to raise again."""
        try:
            asked = _PAYLOAD.decode(payload)
        except msgspec.MsgspecError as error:
            raise Invalid(f"this is no question of another node: {error}") from None
        found = self._queues.get((queue, asked.generation))
        if found is None:
            raise Unavailable(f"this node does not work {queue} now: try again")
        return await found.serve(operation, asked)

    async def look(self) -> None:
        """Learn who holds what, and take nothing: for a process that no other can reach."""
        if not self._owners:
            return  # it uses no timed queue
        self._learn(await self.assignments.list())

    async def views(self) -> list[ShardView]:
        """Of the shards held here."""
        return [
            await queue.serving.view(shard)
            for at, queue in list(self._queues.items())
            for shard in sorted(self._holders.get(at, {}))
            if queue.serving.holder(shard) is not None
        ]

    # Taking shards

    async def turn(self) -> None:
        """Take a fair share of the shards, give up what is too much, stop what is not ours any more."""
        self.soon.clear()
        self._lease.require()
        records = {(r.name, r.generation): r for r in await self._catalog.all() if r.kind == "timed"}
        items = {item_of(at, shard) for at, r in records.items() for shard in range(_options(r).shards)}
        items |= {item for item in self._rows if place_of(item)[0] in records}  # as of the last turn: they stay
        taken, give_up = await self.assignments.turn(items)
        for item in give_up:
            await self._give_up(item)
        self._learn(await self.assignments.list() if taken or give_up else self.assignments.rows)
        for at, record in records.items():
            if at in self._queues:
                self._queues[at].place.options = _options(record)
        self._worked = {item: epoch for item, epoch in self._worked.items() if item in self._rows}
        await self._stop_others(records)
        self._start_mine(records)
        for at in [at for at in self._queues if at not in records and not self._holders.get(at)]:
            del self._queues[at], self._owners[at]
            self._holders.pop(at, None)

    def _learn(self, rows: dict[str, Owned]) -> None:
        """Each row is looked at once, however many queues there are."""
        self._rows, self._nodes = rows, {}
        for item, owned in rows.items():
            at, shard = place_of(item)
            self._nodes.setdefault(at, {})[shard] = owned.node
        for at, owners in self._owners.items():
            owners.nodes = self._nodes.setdefault(at, {})

    async def _stop_others(self, records: dict[Place, QueueRecord]) -> None:
        """Holders whose queue is over, whose shard is another's, or that ended by themselves."""
        for at, holders in list(self._holders.items()):
            for shard, holder in list(holders.items()):
                owned = self._rows.get(item_of(at, shard))
                mine = owned is not None and self.assignments.mine(owned) and owned.epoch == holder.epoch
                if at in records and mine and holder.alive:
                    continue
                await self._quit(at, shard)
        for item, owned in list(self._rows.items()):
            at, shard = place_of(item)
            if self._worked_before(owned) and shard not in self._holders.get(at, {}):
                self.guards["shard given up to be taken anew"] += 1
                await self.assignments.give_up(item)

    def _worked_before(self, owned: Owned) -> bool:
        """Is it this node's, under an epoch in which a holder was begun already? What that one wrote is looked at by
        holders of later epochs only: so it is given up, and taken again."""
        return self.assignments.mine(owned) and self._worked.get(owned.item) == owned.epoch

    def _start_mine(self, records: dict[Place, QueueRecord]) -> None:
        for item, owned in sorted(self._rows.items()):
            at, shard = place_of(item)
            record = records.get(at)
            if record is None or not self.assignments.mine(owned):
                continue
            holders = self._holders.setdefault(at, {})
            if shard in holders or self._worked_before(owned):
                continue
            self._worked[item] = owned.epoch
            place = self.queue(record).place
            holder = Holder(place, shard, owned.epoch, self._lease, self._bury)
            holders[shard] = holder
            self.takeovers += 1
            holder.start()

    async def _bury(self, holder: Holder, message: Message) -> None:
        await bury(holder, message, self._put_moved)

    async def _give_up(self, item: str) -> None:
        at, shard = place_of(item)
        await self._quit(at, shard)
        await self.assignments.give_up(item)

    async def _quit(self, at: Place, shard: int) -> None:
        holder = self._holders.get(at, {}).pop(shard, None)
        if holder is not None:
            holder.stop()
            await asyncio.wait({asyncio.ensure_future(holder.ended())}, timeout=QUIT_S)

    async def _register(self, item: str) -> None:
        """A row without an owner, so that whoever looks for shards finds it."""
        if item in self._rows:
            return
        seen = await self.assignments.owner(item)
        if seen.token is None:
            name = new_name(self._random)
            values: dict[str, Value] = {"node": "", "incarnation": "", "epoch": 0, TOKEN: follow(None, name)}
            cas = Cas(ASSIGNMENTS, (SCOPE,), (Change((item,), {TOKEN: None}, values),))
            await settle_named(self._store, self._clock, cas, (item,), None, name)  # refused: it is there
            seen = owned_of(item, {})
        self._rows[item] = seen
        self.soon.set()

    # The end

    def emergency_stop(self, why: str) -> None:
        """The lease is gone: hand out nothing, confirm nothing, from this moment on."""
        for holders in self._holders.values():
            for holder in holders.values():
                self.emergency_stops += 1
                self.guards["emergency stop"] += 1
                holder.stop()
            holders.clear()

    async def stop(self) -> None:
        """Give all shards up: others may take them at once."""
        for queue in list(self._queues.values()):
            queue.stop_waiting()
        for at, holders in list(self._holders.items()):
            for shard in list(holders):
                try:
                    await self._give_up(item_of(at, shard))
                except StoreError:
                    self.guards["shard not given up"] += 1  # others wait until the lease is over
        for queue in list(self._queues.values()):
            await queue.close()

    async def clear(self, name: str, generation: int) -> bool:
        """Clear what a deleted or purged generation left (`Catalog.leftovers` names it with bucket size 0). True:
        nothing is left."""
        at = (name, generation)
        place = self._place(name, generation, b"", TimedOptions())
        for item in await self.assignments.list():
            of, shard = place_of(item)
            if of == at:
                await self._quit(at, shard)
                await self._clear_shard(place, shard)
                await self._forget(item)
        return True

    async def _forget(self, item: str) -> None:
        """An item of an ended generation leaves the list some time: it is of no use to anybody."""
        seen, name = await self.assignments.owner(item), new_name(self._random)
        values: dict[str, Value] = {"node": "", "incarnation": "", "epoch": seen.epoch, TOKEN: follow(seen.token, name)}
        cas = Cas(ASSIGNMENTS, (SCOPE,), (Change((item,), {TOKEN: seen.token}, values),), ttl_s=FORGOTTEN_S)
        await settle_named(self._store, self._clock, cas, (item,), seen.token, name)

    async def _clear_shard(self, place: TimedPlace, shard: int) -> None:
        await write_horizon(place, shard, ENDING_EPOCH, ENDLESS)
        for row in await read_shard(place, shard, 1_000):
            if row.run is not None:
                await self._store.drop(TIMED_RECORDS, partition_of(place, shard, row.epoch, row.run))
        await drop_parts(place, shard)
        self.guards["shard of an ended generation cleared"] += 1


def item_of(at: Place, shard: int) -> str:
    return f"{at[0]}/{at[1]}/{shard}"


def place_of(item: str) -> tuple[Place, int]:
    name, generation, shard = item.split("/")
    return (name, int(generation)), int(shard)


def _options(record: QueueRecord) -> TimedOptions:
    assert isinstance(record.options, TimedOptions)
    return record.options
