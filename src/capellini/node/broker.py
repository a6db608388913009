"""The service as this process offers it: finds the queue, checks the request, and hands it to the queue's algorithm.

A broker needs only the store; many brokers on one store are many nodes. `open_queues` holds one WorkQueue per (name,
generation) that was used lately. When a generation turns out to be over, the call goes to the next one, or says
NotFound.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError, Invalid, WrongKind
from capellini.model.log import AT
from capellini.model.message import (
    MAX_BATCH,
    MAX_DELAY_S,
    MAX_VISIBILITY_S,
    MAX_WAIT_S,
    Delivery,
    Entry,
    NewMessage,
    Peeked,
    check_message,
    whole_ms,
)
from capellini.model.options import INTERNAL, WorkOptions, check_own_name, is_internal
from capellini.model.receipts import code_of, receipts_of
from capellini.model.service import (
    BucketView,
    Done,
    ExtendItem,
    MessageView,
    NackItem,
    Parcel,
    ParcelAck,
    PointersView,
    Problem,
    Put,
    QueueInfo,
    Service,
    Statistics,
)
from capellini.node.calls import batch, check_delay, in_range, with_living
from capellini.node.holds import STALE, held_by, parcel_of
from capellini.node.rates import Rates
from capellini.node.statistics import CountedEvents, QueueStatistics
from capellini.node.views import Views, letter_ids
from capellini.queues.catalog import Catalog, QueueRecord
from capellini.queues.events import Events
from capellini.queues.work import pointers as pointing
from capellini.queues.work.block import DELAYED, Packed, block_of, check, pack
from capellini.queues.work.letters import PutMoved
from capellini.queues.work.place import Gone, Place
from capellini.queues.work.queue import Held, WorkQueue
from capellini.queues.work.shelf import Room
from capellini.store.interface import Store

T = TypeVar("T")
KIND: Final = "work"
MAX_OPEN: Final = 5_000  # queues whose state a node keeps in memory
_ENTRIES: Final = msgspec.msgpack.Decoder(list[Entry])


class Broker(Service):
    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Chance,
        node_name: str = "node",
        events: Events | None = None,
        max_skew_s: float = 0.5,
    ) -> None:
        self.store = store
        self.clock = clock
        self.random = random
        self.node_name = node_name
        self.events = events or Events(clock)
        self.max_skew_s = 0.0 if store.alone else max_skew_s  # one process, one clock
        self.catalog = Catalog(store, clock, random)
        self.room = Room()
        self.open_queues: OrderedDict[tuple[str, int], WorkQueue] = OrderedDict()
        self.rates = Rates()
        self.totals: QueueStatistics | None = None  # see count_with
        self.views = Views(self)
        self.moved_elsewhere: PutMoved | None = None  # for queues of other kinds

    # Queues

    async def create(self, name: str, kind: str = "work", options: Mapping[str, Any] | None = None) -> QueueInfo:
        return (await self.catalog.create(check_own_name(name), kind, options)).info()

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[QueueInfo]:
        """Those of the nodes' own are told to who asks for their prefix."""
        in_range("limit", limit, 1, 1_000)
        found: list[QueueInfo] = []
        while len(found) < limit:
            page = await self.catalog.queues(prefix, after, limit)
            found += [each.info() for each in page if prefix.startswith(INTERNAL) or not is_internal(each.name)]
            if len(page) < limit:
                break
            after = page[-1].name
        return found[:limit]

    async def show(self, name: str) -> QueueInfo:
        return (await self.catalog.show(name)).info()

    async def body_limit(self, name: str) -> int:
        return (await self.catalog.live(name)).options.body_limit

    async def change(self, name: str, options: Mapping[str, Any]) -> QueueInfo:
        return (await self.catalog.change(name, options)).info()

    async def pause(self, name: str, puts: bool | None = None, gets: bool | None = None) -> QueueInfo:
        return (await self.catalog.pause(name, puts, gets)).info()

    async def purge(self, name: str) -> QueueInfo:
        info = (await self.catalog.purge(name)).info()
        self._wake(name)
        return info

    async def delete(self, name: str) -> None:
        await self.catalog.delete(name)
        self._wake(name)

    def _wake(self, name: str) -> None:
        """Gets that wait in a generation that is over look for the next one."""
        for (queue, _), opened in self.open_queues.items():
            if queue == name:
                opened.place.woken()

    # Finding the queue

    def opened(self, record: QueueRecord, read_s: float | None = None) -> WorkQueue:
        """The queue's generation in this node, as the record describes it. `read_s`: who keeps records read it then."""
        if record.kind != KIND:
            raise WrongKind(f"queue {record.name} is a {record.kind} queue: this is for {KIND} queues")
        key = (record.name, record.generation)
        queue = self.open_queues.get(key)
        if queue is None:
            queue = self._open(record)
            self.open_queues[key] = queue
            while len(self.open_queues) > MAX_OPEN:
                self.open_queues.popitem(last=False)[1].place.shelf.clear()
        else:
            self.open_queues.move_to_end(key)
            queue.place.learn(record.options, read_s)
        return queue

    def _open(self, record: QueueRecord) -> WorkQueue:
        place = Place(
            self.store,
            self.clock,
            self.random,
            self.events,
            self.room,
            record.name,
            record.generation,
            record.secret_bytes,
            record.options,
            self.max_skew_s,
        )

        async def current() -> None:
            now = await self.catalog.live(record.name)
            if now.generation != record.generation:
                raise Gone("this queue was deleted or purged")
            place.learn(now.options)
            now.require_gets()

        return WorkQueue(place, current, self.put_moved)

    def bucket_size(self, name: str, generation: int) -> int | None:
        """Of a generation that is in use here."""
        queue = self.open_queues.get((name, generation))
        return None if queue is None else queue.place.size

    def old_generation(self, name: str, generation: int, bucket_size: int) -> WorkQueue:
        """A generation that is over, to be cleared."""
        record = QueueRecord(name, "work", generation, WorkOptions(bucket_size=bucket_size), 0.0, "")
        self._forget(record)
        return self._open(record)

    async def _with(self, name: str, act: Callable[[QueueRecord, WorkQueue], Awaitable[T]]) -> T:
        """Do it with the queue's living generation; if that is over meanwhile, with the next."""
        return await with_living(
            self.catalog, self.clock, name, lambda record: act(record, self.opened(record)), self._forget
        )

    def _forget(self, record: QueueRecord) -> None:
        queue = self.open_queues.pop((record.name, record.generation), None)
        if queue is not None:
            queue.place.shelf.clear()

    def count_with(self, statistics: QueueStatistics) -> None:
        """From now on totals are kept."""
        self.totals = statistics
        if isinstance(self.events, CountedEvents):
            self.events.statistics = statistics

    async def clear_statistics(self, name: str, generation: int) -> None:
        """Of a generation that is over everywhere."""
        if self.totals is not None:
            await self.totals.clear(name, generation)

    def _rate(self, name: str, what: str, count: int) -> None:
        self.rates.add(name, what, count, self.clock.elapsed_s())

    # Putting

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        batch("messages", len(messages))

        async def act(record: QueueRecord, queue: WorkQueue) -> list[Put | Problem]:
            record.require_puts()
            results: list[Put | Problem | None] = [None] * len(messages)
            plain: list[int] = []
            keyed: list[int] = []
            for index, message in enumerate(messages):
                try:
                    check_message(message, record.options.body_limit)
                    check_delay(message.delay_s, record.options.ttl_s)
                except Invalid as error:
                    results[index] = Problem.of(error)
                else:
                    (plain if message.key is None else keyed).append(index)
            if plain:
                block = pack([_entry(messages[index]) for index in plain])
                ids = await queue.put(block)
                self._counted_puts(record, block)
                numbers = [id for first, count in ids for id in range(first, first + count)]
                for index, id in zip(plain, numbers, strict=True):
                    results[index] = Put(str(id))
            if keyed:
                same: dict[str | None, list[int]] = {}
                for index in keyed:
                    same.setdefault(messages[index].key, []).append(index)
                await asyncio.gather(*[self._put_keyed(name, messages, each, results) for each in same.values()])
            self._rate(name, "puts", sum([isinstance(result, Put) for result in results]))
            return [result for result in results if result is not None]

        return await self._with(name, act)

    async def _put_keyed(
        self, name: str, messages: Sequence[NewMessage], indexes: list[int], results: list[Put | Problem | None]
    ) -> None:
        """Those of one key, in order: the first is the message. Each on its own: what becomes of one, also when the
        queue is purged meanwhile, is not the others' business."""
        for index in indexes:
            try:
                results[index] = await self._put_once(name, messages[index])
            except CapelliniError as error:
                results[index] = Problem.of(error)

    async def _put_once(self, name: str, message: NewMessage) -> Put:
        key, packed = message.key, pack([_entry(message)])
        assert key is not None

        async def act(record: QueueRecord, queue: WorkQueue) -> Put:
            id, duplicate = await queue.put_once(key, packed)
            if not duplicate:
                self._counted_puts(record, packed)
            return Put(str(id), duplicate)

        return await self._with(name, act)

    async def put_block(self, name: str, entries: bytes) -> list[tuple[int, int]]:
        async def act(record: QueueRecord, queue: WorkQueue) -> list[tuple[int, int]]:
            record.require_puts()
            packed = check(entries, record.options.body_limit)
            if record.options.ttl_s and packed.flags & DELAYED:
                check_delay(longest_delay_s(packed), record.options.ttl_s)
            ids = await queue.put(packed)
            self._counted_puts(record, packed)
            self._rate(name, "puts", packed.count)
            return ids

        return await self._with(name, act)

    def _counted_puts(self, record: QueueRecord, packed: Packed) -> None:
        if self.totals is not None:
            self.totals.put(record.name, record.generation, packed.count, packed.size)

    async def put_moved(self, target: str, key: str, entry: Entry) -> None:
        """A move into `target`, once per key."""
        if AT in target and self.moved_elsewhere is not None:  # a group of a log queue
            await self.moved_elsewhere(target, key, entry)
            return
        packed = pack([entry])

        async def act(record: QueueRecord, queue: WorkQueue) -> None:
            came = await queue.put_moved(key, packed)
            if came and self.totals is not None:
                self.totals.moved_in(record.name, record.generation, packed.size)

        try:
            await self._with(target, act)
        except WrongKind:
            if self.moved_elsewhere is None:
                raise
            await self.moved_elsewhere(target, key, entry)

    # Getting

    async def take(self, name: str, count: int, wait_s: float = 0.0, visibility_s: float | None = None) -> list[Parcel]:
        in_range("count", count, 1, MAX_BATCH)
        in_range("wait_s", wait_s, 0, MAX_WAIT_S)
        if visibility_s is not None:
            in_range("visibility_s", visibility_s, 0.1, MAX_VISIBILITY_S)
        deadline_s = self.clock.elapsed_s() + wait_s

        async def act(record: QueueRecord, queue: WorkQueue) -> list[Parcel]:
            record.require_gets()
            left_s = max(0.0, deadline_s - self.clock.elapsed_s())
            taken = await queue.take(count, left_s, visibility_s)
            if taken:
                self._rate(name, "gets", sum([one.count for one in taken]))
                if self.totals is not None:
                    self.totals.delivered(name, record.generation, taken)
            return [parcel_of(record.generation, queue.place.secret, one) for one in taken]

        return await self._with(name, act)

    async def get(
        self, name: str, count: int = 1, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[Delivery]:
        deliveries: list[Delivery] = []
        for parcel in await self.take(name, count, wait_s, visibility_s):
            receipts = receipts_of(parcel.generation, parcel.first, parcel.count, parcel.version, parcel.code)
            for index, entry in enumerate(_ENTRIES.decode(parcel.entries)):
                deliveries.append(
                    Delivery(
                        id=str(parcel.first + index),
                        receipt=receipts[index],
                        body=entry.body,
                        attributes=entry.attributes or {},
                        put_at=parcel.put_at_ms / 1000,
                        deliveries=parcel.version,
                        visible_at=parcel.visible_at_ms / 1000,
                    )
                )
        return deliveries

    # Holding

    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]:
        batch("receipts", len(receipts))

        async def act(record: QueueRecord, queue: WorkQueue) -> list[Done | Problem]:
            held, results, places = held_by(receipts, record, queue.place)
            acked = await queue.ack(held)
            for index, runs in zip(places, acked, strict=True):
                results[index] = Done() if runs else STALE
            self._counted_acks(record, sum([count for runs in acked for _, count in runs]), held)
            return _all(results)

        return await self._with(name, act)

    async def ack_parcels(self, name: str, acks: Sequence[ParcelAck]) -> list[list[tuple[int, int]]]:
        batch("parcels", len(acks))

        async def act(record: QueueRecord, queue: WorkQueue) -> list[list[tuple[int, int]]]:
            place = queue.place
            held: list[Held] = []
            of: list[int] = []
            for index, ack in enumerate(acks):
                if ack.generation != record.generation:
                    continue
                if ack.code != code_of(place.secret, ack.generation, ack.first, ack.count, ack.version):
                    raise Invalid("a receipt is not of this queue, or was altered")
                for offset, count in ack.ranges:
                    if not (offset >= 0 and 0 < count <= ack.count - offset):
                        raise Invalid("a range of a parcel lies outside of it")
                    held.append(Held(ack.first + offset, count, ack.version))
                    of.append(index)
            results: list[list[tuple[int, int]]] = [[] for _ in acks]
            for index, runs in zip(of, await queue.ack(held), strict=True):
                first = acks[index].first
                results[index] += [(start - first, count) for start, count in runs]
            self._counted_acks(record, sum([count for ranges in results for _, count in ranges]), held)
            return results

        return await self._with(name, act)

    def _counted_acks(self, record: QueueRecord, count: int, held: Sequence[Held]) -> None:
        self._rate(record.name, "acks", count)
        if self.totals is not None and count:
            self.totals.acked(record.name, record.generation, count, held)

    async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]:
        batch("items", len(items))

        async def act(record: QueueRecord, queue: WorkQueue) -> list[Done | Problem]:
            held, results, places = held_by([item.receipt for item in items], record, queue.place)
            delays: list[float | None] = []
            for position, index in reversed(list(enumerate(places))):
                delay = items[index].delay_s
                if delay is not None and not 0 <= delay <= MAX_DELAY_S:
                    results[index] = Problem(Invalid.name, f"delay_s goes from 0 to {MAX_DELAY_S:.15g}, not {delay!r}")
                    del held[position], places[position]
                else:
                    delays.insert(0, delay)
            nacked = await queue.nack(held, delays)
            for index, at_ms in zip(places, nacked, strict=True):
                results[index] = STALE if at_ms is None else Done(at_ms / 1000)
            if self.totals is not None:
                self.totals.nacked(name, record.generation, sum([at_ms is not None for at_ms in nacked]))
            return _all(results)

        return await self._with(name, act)

    async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        batch("items", len(items))

        async def act(record: QueueRecord, queue: WorkQueue) -> list[Done | Problem]:
            held, results, places = held_by([item.receipt for item in items], record, queue.place)
            seconds: list[float] = []
            for position, index in reversed(list(enumerate(places))):
                visibility_s = items[index].visibility_s
                if not 0.1 <= visibility_s <= MAX_VISIBILITY_S:
                    says = f"visibility_s goes from 0.1 to {MAX_VISIBILITY_S:.15g}, not {visibility_s!r}"
                    results[index] = Problem(Invalid.name, says)
                    del held[position], places[position]
                else:
                    seconds.insert(0, visibility_s)
            for index, at_ms in zip(places, await queue.extend(held, seconds), strict=True):
                results[index] = STALE if at_ms is None else Done(at_ms / 1000)
            return _all(results)

        return await self._with(name, act)

    # Looking

    async def statistics(self, name: str) -> Statistics:
        return await self.views.statistics(name)

    async def peek(self, name: str, count: int = 10, after: str = "") -> list[Peeked]:
        return await self.views.peek(name, count, after)

    async def dead(self, name: str, count: int = 100, after: str = "") -> list[Peeked]:
        return await self.views.dead(name, count, after)

    async def buckets(self, name: str, limit: int = 100) -> list[BucketView]:
        return await self.views.buckets(name, limit)

    async def pointers(self, name: str) -> PointersView:
        return await self.views.pointers(name)

    async def message(self, name: str, id: str) -> MessageView:
        return await self.views.message(name, id)

    # Acting on what was seen

    async def redrive(self, name: str, count: int | None = None, ids: Sequence[str] | None = None) -> int:
        letters = self.opened(await self.views.letters(name))
        if ids is not None:
            return await letters.redrive_these(name, letter_ids(ids))
        if count is not None:
            in_range("count", count, 1, 1_000_000_000)
        return await letters.redrive(name, count)

    async def move_repair(self, name: str, bucket: int) -> PointersView:
        in_range("repair", bucket, 0, 1 << 53)
        place = self.opened(await self.catalog.live(name)).place
        await place.pointers.change(lambda now: (pointing.back_to(now, bucket), None))
        return await self.pointers(name)

    # The end

    def stop_waiting(self) -> None:
        """Long polls end now."""
        for queue in self.open_queues.values():
            queue.getting.stop_waiting()

    async def close(self) -> None:
        await asyncio.gather(*[queue.close() for queue in list(self.open_queues.values())])
        self.events.close()


def _entry(message: NewMessage) -> Entry:
    return Entry(message.body, message.attributes or None, whole_ms(message.delay_s))


def longest_delay_s(packed: Packed) -> float:
    return max(entry.delay_ms for entry in block_of(0, packed, 0).read()) / 1000


def _all(results: list[Done | Problem | None]) -> list[Done | Problem]:
    return [result for result in results if result is not None]
