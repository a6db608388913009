"""The client for asyncio. `capellini.connect_async` makes one; every call works the same on each kind of address.

    call ──▶ Batcher (puts, acks) ──▶ PatientService ──▶ RemoteService | Broker | whoever owns the folder

Puts without a key, gets and acks of work and log queues take the fast lane: whole blocks or chunks and parcels, one
object per message. Timed queues use the plain calls.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, cast
from weakref import WeakSet

from capellini.client.codecs import Codec, raw_bodies, raw_body
from capellini.client.consuming import POLL_S, Consumer, Plan, steady
from capellini.client.counting import RelayedCounters
from capellini.client.gets import Gets
from capellini.client.groups import Groups, RelayedLog
from capellini.client.lanes import CHUNKS, Acks, Kinds, Puts, Takes, checked, delay_ms, item_bytes, receipt_of
from capellini.client.messages import AsyncMessage, Held, Origin, unpacker
from capellini.client.parts import LETTERS, Moved, in_parts
from capellini.client.patient import PatientService
from capellini.client.scheduling import RelayedTimed
from capellini.model.clock import Chance, Clock, RealClock
from capellini.model.dues import Due, due_ms_of, later
from capellini.model.errors import Invalid, WrongKind
from capellini.model.log import DEFAULT_GROUP, ExtentView, Routes, group_name
from capellini.model.message import NewMessage, Peeked
from capellini.model.scheduling import Missed, NewSchedule, ScheduleInfo
from capellini.model.service import (
    BucketView,
    Done,
    ExtendItem,
    MessageView,
    NackItem,
    PointersView,
    Problem,
    Put,
    QueueInfo,
    Statistics,
    sides,
)
from capellini.model.timed import DueMessage, MoveItem, ShardView

if TYPE_CHECKING:
    from capellini.client.async_streams import AsyncConsumer, AsyncProducer, StreamConsumer

T = TypeVar("T")
H = TypeVar("H", bound=Held[Any])
LIST_PAGE: Final = 1_000


_unpack_async: Callable[[Origin], list[AsyncMessage[Any]]] = unpacker(AsyncMessage)


class AsyncClient(Generic[T]):
    """Safe for any number of tasks of one event loop. Use it with `async with`, or `await close()`."""

    def __init__(
        self,
        service: PatientService,
        codec: Codec[T] | None = None,
        *,
        clock: Clock | None = None,
        chance: Chance | None = None,
    ) -> None:
        self._service = service
        self._codec = codec
        self._clock: Clock = clock or RealClock()
        self._chance = chance or random.Random()
        self._kinds = Kinds(self._clock)
        self._puts = Puts(service, self._kinds)
        self._timed = RelayedTimed(service)
        self._acks = Acks(service)
        self._takes = Takes(service, self._kinds)
        self._gets: Gets[Any] = Gets(self._clock)
        self.counters = RelayedCounters(service)
        self._log = RelayedLog(service)
        self.groups = Groups(self._log)
        self._streams: WeakSet[AsyncProducer[Any] | StreamConsumer[Any]] = WeakSet()

    # Queues

    async def create_queue(self, /, name: str, kind: str = "work", **options: float | str) -> QueueInfo:
        """Same again is fine; Conflict if it exists with other options."""
        return self._kinds.learn(await self._service.create(name, kind, options))

    async def list_queues(self, prefix: str = "") -> list[QueueInfo]:
        """All queues whose names begin so, by name."""
        found: list[QueueInfo] = []
        while True:
            page = await self._service.queues(prefix, found[-1].name if found else "", LIST_PAGE)
            found += page
            if len(page) < LIST_PAGE:
                return found

    async def show_queue(self, name: str) -> QueueInfo:
        return self._kinds.learn(await self._service.show(name))

    async def change_queue(self, /, name: str, **options: float | str) -> QueueInfo:
        return await self._service.change(name, options)

    async def pause_queue(self, name: str, *, puts: bool | None = None, gets: bool | None = None) -> QueueInfo:
        """Both sides, unless one is named; in force everywhere when this returns. False leaves that side as it is."""
        of_puts, of_gets = sides(puts, gets)
        return await self._service.pause(name, of_puts or None, of_gets or None)

    async def resume_queue(self, name: str, *, puts: bool | None = None, gets: bool | None = None) -> QueueInfo:
        of_puts, of_gets = sides(puts, gets)
        return await self._service.pause(name, False if of_puts else None, False if of_gets else None)

    async def purge_queue(self, name: str) -> QueueInfo:
        """All messages go, options and groups stay."""
        return await self._service.purge(name)

    async def delete_queue(self, name: str) -> None:
        await self._service.delete(name)

    async def statistics(self, name: str) -> Statistics:
        return await self._service.statistics(name)

    # Putting

    async def put(
        self,
        queue: str,
        body: T,
        *,
        attributes: Mapping[str, str] | None = None,
        delay_s: float = 0.0,
        key: str | None = None,
        due: Due | timedelta | None = None,
    ) -> str:
        """Puts one message; its id. It is durable when this returns.

        `due`, for timed queues: when it may be delivered, as a datetime with a zone, seconds since 1970, or a
        timedelta from now. In the past means at once.

        With a `key`, the same message is added once however often it is put within the queue's window. Without, a
        lost answer is raised as Unknown: it may have been added.
        """
        raw, given = raw_body(self._codec, body), checked(attributes)
        if key is None and due is None and not self._kinds.plain(queue):
            item = (raw, given, delay_ms(delay_s) if delay_s else 0)
            (result,) = await self._puts.plain(queue, [item], [item_bytes(raw, given)])
        else:
            (result,) = await self._puts.mixed(queue, [NewMessage(raw, given or {}, delay_s, key, self._due(due))])
        if isinstance(result, Problem):
            raise result.raised()
        return result.id

    async def put_many(
        self,
        queue: str,
        bodies: Sequence[T] | Sequence[NewMessage],
        *,
        attributes: Mapping[str, str] | None = None,
        delay_s: float = 0.0,
        due: Due | timedelta | None = None,
    ) -> list[Put | Problem]:
        """Puts any number of bodies, or of NewMessage with raw bodies and settings of their own; a result for each, in
        order."""
        if bodies and isinstance(bodies[0], NewMessage):
            if not all(isinstance(body, NewMessage) for body in bodies):
                raise Invalid("put either bodies or NewMessage objects in one call, not both")
            return await self._puts.mixed(queue, cast(Sequence[NewMessage], bodies))
        raws, given, ms = raw_bodies(self._codec, bodies), checked(attributes), delay_ms(delay_s)
        if due is not None or self._kinds.plain(queue):
            at = self._due(due)
            return await self._puts.mixed(queue, [NewMessage(raw, given or {}, delay_s, None, at) for raw in raws])
        around = item_bytes(b"", given)
        sizes = list(map(around.__add__, map(len, raws)))
        return await self._puts.plain(queue, [(raw, given, ms) for raw in raws], sizes)

    def _due(self, due: Due | timedelta | None) -> Due | None:
        return None if due is None else later(due, self._clock.now_s())

    # Getting

    async def get(
        self,
        queue: str,
        count: int = 1,
        *,
        wait_s: float = 0.0,
        visibility_s: float | None = None,
        group: str | None = None,
    ) -> list[AsyncMessage[T]]:
        """Up to `count` messages, hidden from others for `visibility_s` (None: as the queue's options say).

        If there are none, waits up to `wait_s` for the first. `group`: of a log queue; the same as QUEUE@GROUP.
        """
        return await self._take(_unpack_async, self, group_name(queue, group), count, wait_s, visibility_s)

    async def _take(
        self,
        unpack: Callable[[Origin], list[H]],
        holder: object,
        queue: str,
        count: int,
        wait_s: float,
        visibility_s: float | None,
    ) -> list[H]:
        async def take(count: int, wait_s: float) -> list[H]:
            origins = await self._takes.take(queue, holder, self._codec, count, wait_s, visibility_s)
            if len(origins) == 1:
                return unpack(origins[0])
            return [message for origin in origins for message in unpack(origin)]

        give_back = partial(self._give_back, queue)
        while True:
            lane = self._kinds.lane(queue)
            try:
                if lane == CHUNKS:  # it may be ordered: what comes together is for one consumer
                    return await take(count, wait_s)
                return await self._gets.get((unpack, holder, queue, visibility_s), count, wait_s, take, give_back)
            except WrongKind:
                if self._kinds.lane(queue) == lane:
                    raise

    async def messages(
        self, queue: str, *, count: int = 1, visibility_s: float | None = None
    ) -> AsyncGenerator[AsyncMessage[T], None]:
        """Messages without end, `count` fetched at a time; ack each yourself. Waits for messages, and for the node.
        Close it (`aclosing`) when done: what was fetched and not handed out then goes back, else with the client."""
        get = partial(self.get, queue, count, wait_s=POLL_S, visibility_s=visibility_s)
        take = steady(get, self._clock, self._chance, POLL_S)
        left: deque[AsyncMessage[T]] = self._gets.ahead(partial(self._give_back, queue))
        try:
            while True:
                left.extend(await take())
                while left:
                    yield left.popleft()
        finally:
            self._gets.left(left)

    def _return(self, queue: str, messages: Sequence[Held[Any]]) -> None:
        """They go back to the queue, soon; `close` waits for that."""
        if messages:
            self._gets.returned(list(messages), partial(self._give_back, queue))

    async def _give_back(self, queue: str, messages: Sequence[Held[Any]]) -> None:
        await self.nack_many(queue, messages, 0.0)

    # Acks

    async def ack(self, queue: str, message: Held[Any] | str) -> None:
        """Done for good; a message or its receipt. Raises Stale, or Unknown if it may have been done."""
        _raised(await self._acks.ack(queue, [message]))

    async def ack_many(self, queue: str, messages: Sequence[Held[Any] | str]) -> list[Done | Problem]:
        """A result for each, in order."""
        return await self._acks.ack(queue, messages)

    async def nack(self, queue: str, message: Held[Any] | str, delay_s: float | None = None) -> None:
        """Give it back, to be offered after `delay_s` (None: as the queue's options say)."""
        _raised(await self.nack_many(queue, [message], delay_s))

    async def nack_many(
        self, queue: str, messages: Sequence[Held[Any] | str], delay_s: float | None = None
    ) -> list[Done | Problem]:
        items = [NackItem(receipt_of(message), delay_s) for message in messages]
        return await in_parts(items, lambda some: self._service.nack(queue, some))

    async def extend(self, queue: str, message: Held[Any] | str, visibility_s: float) -> float | None:
        """Keep it hidden for so long from now on; until when."""
        return _raised(await self.extend_many(queue, [message], visibility_s)).visible_at

    async def extend_many(
        self, queue: str, messages: Sequence[Held[Any] | str], visibility_s: float
    ) -> list[Done | Problem]:
        items = [ExtendItem(receipt_of(message), visibility_s) for message in messages]
        return await in_parts(items, lambda some: self._service.extend(queue, some))

    # Timed queues

    async def cancel(self, queue: str, id: str) -> None:
        """It is not delivered: final once this returns. Raises NotFound if there is no such message (any more),
        Conflict if somebody has it now."""
        _raised(await self.cancel_many(queue, [id]))

    async def cancel_many(self, queue: str, ids: Sequence[str]) -> list[Done | Problem]:
        """A result for each, in order."""
        return await in_parts(list(ids), lambda some: self._service.cancel(queue, some))

    async def move(self, queue: str, id: str, due: Due | timedelta) -> None:
        """Due at another time, under the same id. Raises as `cancel` does."""
        _raised(await self.move_many(queue, [(id, due)]))

    async def move_many(self, queue: str, items: Sequence[tuple[str, Due | timedelta]]) -> list[Done | Problem]:
        """Ids and their new dues; a result for each, in order."""
        now_s = self._clock.now_s()
        wanted = [MoveItem(id, due_ms_of(later(due, now_s), now_s)) for id, due in items]
        return await in_parts(wanted, lambda some: self._service.move(queue, some))

    async def due_between(
        self, queue: str, start: Due | timedelta, end: Due | timedelta, count: int = 100, after: str = ""
    ) -> list[DueMessage]:
        """What is due from `start` up to `end`, by due, without taking it; bodies as raw bytes. For the next page give
        the last one's due as `start`, and its id as `after`."""
        now_s = self._clock.now_s()
        from_ms, to_ms = (due_ms_of(later(each, now_s), now_s) for each in (start, end))
        return await self._timed.due_between(queue, from_ms, to_ms, count, after)

    async def shards(self, queue: str) -> list[ShardView]:
        """Who works each shard, and how far it is."""
        return await self._timed.shards(queue)

    async def stop_shard(self, queue: str, shard: int) -> ShardView:
        """It hands out nothing until it is started, whoever works it."""
        return await self._timed.stop_shard(queue, shard)

    async def start_shard(self, queue: str, shard: int) -> ShardView:
        return await self._timed.start_shard(queue, shard)

    # Log queues

    def stream_put(self, queue: str) -> AsyncProducer[T]:
        """Puts into a log queue through one connection, in order: the fastest way. Use it with `async with`."""
        from capellini.client.async_streams import AsyncProducer

        made = AsyncProducer(self._service, queue, self._codec, self._clock, self._chance)
        self._streams.add(made)
        return made

    def stream(
        self,
        queue: str,
        *,
        group: str = DEFAULT_GROUP,
        ahead: int | None = None,
        visibility_s: float | None = None,
    ) -> AsyncConsumer[AsyncMessage[T]]:
        """Messages of a log queue's group as they come, at most `ahead` of them waiting here. Use it with `async
        with`."""
        from capellini.client.async_streams import AsyncConsumer

        parts = (self._service, queue, group, self._codec, AsyncMessage, ahead, visibility_s, self._clock, self._chance)
        made = AsyncConsumer(*parts)
        self._streams.add(made)
        return made

    async def extents(self, queue: str) -> list[ExtentView]:
        """Who writes and reads which extent of a log queue, and how far."""
        return await self._log.extents(queue)

    async def routes(self, queue: str, group: str | None = None) -> Routes:
        """Which nodes write and read a log queue: any works, these are faster."""
        return await self._log.routes(queue, group)

    # Schedules

    async def schedule(
        self,
        name: str,
        queue: str,
        cron: str,
        body: T,
        *,
        zone: str = "UTC",
        attributes: Mapping[str, str] | None = None,
        missed: Missed = "skip",
    ) -> ScheduleInfo:
        """A message with this body at each tick of `cron`, as a clock in `zone` shows it; exactly one per tick. The
        same again is fine; another one of that name is a Conflict. `missed`: "skip" ticks that nobody could put in
        time, or "catch_up" with them."""
        raw = raw_body(self._codec, body)
        return await self._timed.schedule(NewSchedule(name, queue, cron, zone, raw, dict(attributes or {}), missed))

    async def schedules(self, prefix: str = "") -> list[ScheduleInfo]:
        """All whose names begin so, by name."""
        return await self._timed.schedules(prefix)

    async def unschedule(self, name: str) -> None:
        """No tick comes after this, but for those that were due before."""
        await self._timed.unschedule(name)

    # Consuming

    async def consume(
        self,
        queue: str,
        handler: Callable[[AsyncMessage[T]], Awaitable[object]],
        *,
        concurrency: int = 1,
        visibility_s: float | None = None,
        count: int | None = None,
        idle_s: float | None = None,
        stop: asyncio.Event | None = None,
    ) -> int:
        """Runs `handler` on each message, `concurrency` at a time; how many were handled and acked.

        While a handler runs its message stays hidden (heartbeats, as long as the handler lets the loop run). A
        handler that returns has its message acked; one that raises has it offered again after a growing delay. Ends
        after `count` messages, after `idle_s` without any, when `stop` is set, or when cancelled; what runs then is
        finished first (cancel again to end that, too). A node that is away is waited for.
        """
        plan = Plan(queue, concurrency, visibility_s, count, idle_s)
        return await self._consume(_unpack_async, self, handler, plan, stop or asyncio.Event())

    async def _consume(
        self,
        unpack: Callable[[Origin], list[H]],
        holder: object,
        handler: Callable[[H], Awaitable[object]],
        plan: Plan,
        stop: asyncio.Event,
    ) -> int:
        async def take(count: int, wait_s: float, visibility_s: float) -> list[H]:
            return await self._take(unpack, holder, plan.queue, count, wait_s, visibility_s)

        consumer = Consumer(self, take, handler, plan, self._clock, self._chance)
        return await consumer.run(stop)

    # Looking

    async def peek(self, queue: str, count: int = 10, after: str = "") -> list[Peeked]:
        """Messages as they are, without taking them; bodies as raw bytes."""
        return await self._service.peek(queue, count, after)

    async def dead(self, queue: str, count: int = 100, after: str = "") -> list[Peeked]:
        """What was delivered too often and came from this queue."""
        return await self._service.dead(queue, count, after)

    async def redrive(
        self, queue: str, count: int | None = None, *, ids: Sequence[str] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:  # fmt: skip
        """Moves dead letters back, each exactly once; how many. `ids`: only these of them. `progress` is called with
        how many more."""
        moved = Moved(progress)
        if ids is None:
            return await moved.up_to(count, lambda asked: self._service.redrive(queue, asked))
        for at in range(0, len(ids), LETTERS):
            await moved.add(self._service.redrive(queue, ids=ids[at : at + LETTERS]))
        return moved.count

    async def buckets(self, queue: str, limit: int = 100) -> list[BucketView]:
        return await self._service.buckets(queue, limit)

    async def pointers(self, queue: str) -> PointersView:
        return await self._service.pointers(queue)

    async def move_repair(self, queue: str, bucket: int) -> PointersView:
        return await self._service.move_repair(queue, bucket)

    async def message(self, queue: str, id: str) -> MessageView:
        """What is known of one message, for debugging."""
        return await self._service.message(queue, id)

    async def close(self) -> None:
        """Finishes what is under way, streams included, then ends all connections."""
        for stream in list(self._streams):
            await stream.close()
        await self._puts.close()
        await self._acks.close()
        await self._gets.close()
        await self._service.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _raised(results: list[Done | Problem]) -> Done:
    (result,) = results
    if isinstance(result, Problem):
        raise result.raised()
    return result
