"""Timed queues as this process offers them: finds the queue, checks the request, hands it to the keeper's queue.

    Dispatcher ─┬─▶ Broker        work queues, and what all kinds share
                └─▶ TimedBroker   timed queues: the same calls, and those of TimedService

Blocks and parcels, buckets and pointers are of work queues alone: asked of a timed queue, they are refused as
WrongKind, which tells a client to use the plain calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from capellini.model.dues import scheduled
from capellini.model.errors import Invalid, Unavailable, WrongKind
from capellini.model.message import (
    MAX_BATCH,
    MAX_DELAY_S,
    MAX_VISIBILITY_S,
    MAX_WAIT_S,
    Delivery,
    Entry,
    NewMessage,
    Peeked,
)
from capellini.model.options import check_own_name
from capellini.model.service import Done, ExtendItem, NackItem, Problem, Put, Statistics
from capellini.model.timed import MAX_SHARDS, DueMessage, MoveItem, Scheduled, ShardView
from capellini.node.broker import Broker
from capellini.node.calls import batch, good_ones, in_range, with_living
from capellini.node.statistics import with_totals
from capellini.queues.catalog import QueueRecord
from capellini.queues.timed.keeper import TimedKeeper
from capellini.queues.timed.queue import TimedQueue

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741
KIND: Final = "timed"
TAKEN_S: Final = 3.0  # a new queue's shards are taken in less; a dead node's later, and nobody is to wait for that
TAKEN_LOOK_S: Final = 0.05
_ENTRY_BYTES: Final = 8  # around a body, about: as blocks of work queues count it


class TimedBroker:
    def __init__(self, broker: Broker, keeper: TimedKeeper) -> None:
        self._broker = broker
        self._catalog, self._clock = broker.catalog, broker.clock
        self.keeper = keeper

    async def _with(self, name: str, act: Callable[[QueueRecord, TimedQueue], Awaitable[T]]) -> T:
        def opened(record: QueueRecord) -> Awaitable[T]:
            if record.kind != KIND:
                raise WrongKind(f"queue {record.name} is a {record.kind} queue: this is for {KIND} queues")
            return act(record, self.keeper.queue(record))

        return await with_living(self._catalog, self._clock, name, opened, lambda record: None)

    async def _seen(self, name: str, look: Callable[[TimedQueue], Awaitable[T]]) -> T:
        """A look at what is held; a shard that is just being taken is waited for."""
        deadline_s = self._clock.elapsed_s() + TAKEN_S
        while True:
            try:
                return await self._with(name, lambda _, queue: look(queue))
            except Unavailable:
                if self._clock.elapsed_s() >= deadline_s:
                    raise
            await self._clock.sleep(TAKEN_LOOK_S)

    async def _taken(
        self,
        name: str,
        items: Sequence[I],
        act: Callable[[TimedQueue, Sequence[I]], Awaitable[list[Done | Problem]]],
    ) -> list[Done | Problem]:
        """The same for items: those whose shard is just being taken are tried again."""
        deadline_s = self._clock.elapsed_s() + TAKEN_S
        results: dict[int, Done | Problem] = {}
        left = list(range(len(items)))
        while True:
            some = [items[index] for index in left]
            answers = await self._with(name, lambda _, queue: act(queue, some))  # noqa: B023
            results.update(zip(left, answers, strict=True))
            left = [index for index in left if _unavailable(results[index])]
            if not left or self._clock.elapsed_s() >= deadline_s:
                return [results[index] for index in range(len(items))]
            await self._clock.sleep(TAKEN_LOOK_S)

    def _rate(self, name: str, what: str, count: int) -> None:
        self._broker.rates.add(name, what, count, self._clock.elapsed_s())

    # Putting

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        batch("messages", len(messages))
        check_own_name(name)
        now_s = self._clock.now_s()

        async def act(record: QueueRecord, queue: TimedQueue) -> list[Put | Problem]:
            record.require_puts()
            results: list[Put | Problem | None] = [None] * len(messages)
            good: list[int] = []
            items: list[Scheduled] = []
            for index, message in enumerate(messages):
                try:
                    items.append(scheduled(message, now_s, record.options.body_limit))
                    good.append(index)
                except Invalid as error:
                    results[index] = Problem.of(error)
            for index, result in zip(good, await queue.put(items) if items else (), strict=True):
                results[index] = result
            self._counted_puts(record, items, [results[index] for index in good])
            return [result for result in results if result is not None]

        return await self._with(name, act)

    def _counted_puts(
        self, record: QueueRecord, items: Sequence[Scheduled], results: Sequence[Put | Problem | None]
    ) -> None:
        self._rate(record.name, "puts", sum([isinstance(result, Put) for result in results]))
        if self._broker.totals is None:
            return
        sizes = [
            len(item.entry.body) + _ENTRY_BYTES
            for item, result in zip(items, results, strict=True)
            if isinstance(result, Put) and not result.duplicate
        ]
        if sizes:
            self._broker.totals.put(record.name, record.generation, len(sizes), sum(sizes))

    async def put_moved(self, target: str, key: str, entry: Entry) -> None:
        async def act(record: QueueRecord, queue: TimedQueue) -> None:
            await queue.put_moved(key, entry)
            if self._broker.totals is not None:
                self._broker.totals.moved_in(target, record.generation, len(entry.body) + _ENTRY_BYTES)

        await self._with(target, act)

    # Getting

    async def get(
        self, name: str, count: int = 1, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[Delivery]:
        check_own_name(name)
        in_range("count", count, 1, MAX_BATCH)
        in_range("wait_s", wait_s, 0, MAX_WAIT_S)
        if visibility_s is not None:
            in_range("visibility_s", visibility_s, 0.1, MAX_VISIBILITY_S)
        deadline_s = self._clock.elapsed_s() + wait_s

        async def act(record: QueueRecord, queue: TimedQueue) -> list[Delivery]:
            record.require_gets()
            found = await queue.get(count, max(0.0, deadline_s - self._clock.elapsed_s()), visibility_s)
            if found:
                self._rate(name, "gets", len(found))
                if self._broker.totals is not None:
                    self._broker.totals.handed_out(name, record.generation, found)
            return found

        return await self._with(name, act)

    # Holding

    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]:
        batch("receipts", len(receipts))

        async def act(record: QueueRecord, queue: TimedQueue) -> list[Done | Problem]:
            results = await queue.ack(receipts)
            count = sum(isinstance(result, Done) for result in results)
            self._rate(name, "acks", count)
            if self._broker.totals is not None and count:
                self._broker.totals.acked(name, record.generation, count, ())
            return results

        return await self._with(name, act)

    async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]:
        batch("items", len(items))

        def wrong(item: NackItem) -> str | None:
            good = item.delay_s is None or 0 <= item.delay_s <= MAX_DELAY_S
            return None if good else f"delay_s goes from 0 to {MAX_DELAY_S:.15g}, not {item.delay_s!r}"

        async def act(record: QueueRecord, queue: TimedQueue) -> list[Done | Problem]:
            results = await good_ones(items, wrong, queue.nack)
            if self._broker.totals is not None:
                count = sum(isinstance(result, Done) for result in results)
                self._broker.totals.nacked(name, record.generation, count)
            return results

        return await self._with(name, act)

    async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        batch("items", len(items))

        def wrong(item: ExtendItem) -> str | None:
            good = 0.1 <= item.visibility_s <= MAX_VISIBILITY_S
            return None if good else f"visibility_s goes from 0.1 to {MAX_VISIBILITY_S:.15g}, not {item.visibility_s!r}"

        return await self._with(name, lambda _, queue: good_ones(items, wrong, queue.extend))

    # What only timed queues have

    async def cancel(self, name: str, ids: Sequence[str]) -> list[Done | Problem]:
        batch("ids", len(ids))
        return await self._taken(name, ids, lambda queue, some: queue.cancel(some))

    async def move(self, name: str, items: Sequence[MoveItem]) -> list[Done | Problem]:
        batch("items", len(items))
        return await self._taken(name, items, lambda queue, some: queue.move(some))

    async def due_between(
        self, name: str, from_ms: int, to_ms: int, count: int = 100, after: str = ""
    ) -> list[DueMessage]:
        in_range("count", count, 1, MAX_BATCH)
        if to_ms < from_ms:
            raise Invalid("the second of the two times is before the first")
        return await self._seen(name, lambda queue: queue.due_between(from_ms, to_ms, count, after))

    async def shards(self, name: str) -> list[ShardView]:
        return await self._with(name, lambda _, queue: queue.shards())

    async def stop_shard(self, name: str, shard: int) -> ShardView:
        in_range("shard", shard, 0, MAX_SHARDS - 1)
        return await self._with(name, lambda _, queue: queue.stop_shard(shard))

    async def start_shard(self, name: str, shard: int) -> ShardView:
        in_range("shard", shard, 0, MAX_SHARDS - 1)
        return await self._with(name, lambda _, queue: queue.start_shard(shard))

    # Looking

    async def peek(self, name: str, count: int, after: str) -> list[Peeked]:
        in_range("count", count, 1, MAX_BATCH)
        return [peeked(each) for each in await self._seen(name, lambda queue: queue.peek(count, after))]

    async def statistics(self, name: str) -> Statistics:
        record = await self._catalog.live(name)
        counted = await self._with(name, lambda _, queue: queue.statistics())
        dead, dead_exact = await self._broker.views.dead_count(record)
        oldest, now_s, rates = counted.oldest_due_ms, self._clock.elapsed_s(), self._broker.rates
        exact = ("ready", "in_flight", "delayed", "oldest_age_s") if counted.exact else ("in_flight",)
        found = Statistics(
            ready=counted.ready,
            in_flight=counted.in_flight,
            delayed=counted.waiting + counted.scheduled,
            dead=dead,
            oldest_age_s=None if oldest is None else max(0.0, self._clock.now_s() - oldest / 1000),
            puts_per_s=rates.per_s(name, "puts", now_s),
            gets_per_s=rates.per_s(name, "gets", now_s),
            acks_per_s=rates.per_s(name, "acks", now_s),
            exact=(*exact, "dead") if dead_exact else exact,
        )
        if self._broker.totals is None:
            return found
        totals, whole = await self._broker.totals.totals(name, record.generation)
        return with_totals(found, totals, exact=whole and self._broker.store.alone)


def _unavailable(result: Done | Problem) -> bool:
    return isinstance(result, Problem) and result.error == Unavailable.name


def peeked(message: DueMessage) -> Peeked:
    """As peek shows it: `visible_at` is when it is due."""
    state = "delayed" if message.state == "scheduled" else message.state
    return Peeked(
        message.id, state, message.body, message.attributes, message.put_at, message.deliveries, message.due_at
    )
