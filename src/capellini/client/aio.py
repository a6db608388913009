"""The client for asyncio. `capellini.connect_async` makes one; every call works the same on each kind of address.

    call ──▶ Batcher (puts, acks) ──▶ PatientService ──▶ RemoteService | Broker | whoever owns the folder

Puts without a key, gets and acks take the fast lane: whole blocks and parcels, one object per message.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast

from capellini.client.codecs import Codec, raw_body
from capellini.client.consuming import POLL_S, Consumer, Plan, steady
from capellini.client.counting import RelayedCounters
from capellini.client.lanes import Acks, Puts, delay_ms, item_bytes
from capellini.client.messages import Held, Origin, unpacker
from capellini.client.patient import PatientService
from capellini.model.clock import Chance, Clock, RealClock
from capellini.model.errors import Invalid
from capellini.model.message import MAX_BATCH, NewMessage, Peeked
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
)

T = TypeVar("T")
H = TypeVar("H", bound=Held[Any])
V = TypeVar("V")
LIST_PAGE: Final = 1_000


class AsyncMessage(Held[T], array_like=True, gc=False, eq=False):
    """A delivered message. Ack it when its work is done; else it is offered again when its visibility ends."""

    async def ack(self) -> None:
        """Done for good. Raises Stale if the delivery is no longer valid, Unknown if the answer was lost."""
        await self._origin.client.ack(self._origin.queue, self)

    async def nack(self, delay_s: float | None = None) -> None:
        """Give it back, to be offered after `delay_s` (None: as the queue's options say)."""
        await self._origin.client.nack(self._origin.queue, self, delay_s)

    async def extend(self, visibility_s: float) -> float | None:
        """Keep it hidden for so long from now on; until when."""
        done: float | None = await self._origin.client.extend(self._origin.queue, self, visibility_s)
        return done


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
        self._puts = Puts(service)
        self._acks = Acks(service)
        self.counters = RelayedCounters(service)

    # Queues

    async def create_queue(self, /, name: str, kind: str = "work", **options: float | str) -> QueueInfo:
        """Same again is fine; Conflict if it exists with other options."""
        return await self._service.create(name, kind, options)

    async def list_queues(self, prefix: str = "") -> list[QueueInfo]:
        """All queues whose names begin so, by name."""
        found: list[QueueInfo] = []
        while True:
            page = await self._service.queues(prefix, found[-1].name if found else "", LIST_PAGE)
            found += page
            if len(page) < LIST_PAGE:
                return found

    async def show_queue(self, name: str) -> QueueInfo:
        return await self._service.show(name)

    async def change_queue(self, /, name: str, **options: float | str) -> QueueInfo:
        return await self._service.change(name, options)

    async def pause_queue(self, name: str, *, puts: bool = True, gets: bool = True) -> QueueInfo:
        """In force everywhere when this returns. False leaves that side as it is."""
        return await self._service.pause(name, puts or None, gets or None)

    async def resume_queue(self, name: str, *, puts: bool = True, gets: bool = True) -> QueueInfo:
        return await self._service.pause(name, False if puts else None, False if gets else None)

    async def purge_queue(self, name: str) -> QueueInfo:
        """All messages go, options stay."""
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
    ) -> str:
        """Puts one message; its id. It is durable when this returns.

        With a `key`, the same message is added once however often it is put within the queue's window. Without, a
        lost answer is raised as Unknown: it may have been added.
        """
        raw, given = raw_body(self._codec, body), dict(attributes) if attributes else None
        if key is None:
            item = (raw, given, delay_ms(delay_s) if delay_s else 0)
            (result,) = await self._puts.plain(queue, [item], [item_bytes(raw, given)])
        else:
            (result,) = await self._puts.mixed(queue, [NewMessage(raw, given or {}, delay_s, key)])
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
    ) -> list[Put | Problem]:
        """Puts any number of bodies, or of NewMessage with raw bodies and settings of their own; a result for each, in
        order."""
        if bodies and isinstance(bodies[0], NewMessage):
            if not all(isinstance(body, NewMessage) for body in bodies):
                raise Invalid("put either bodies or NewMessage objects in one call, not both")
            return await self._puts.mixed(queue, cast(Sequence[NewMessage], bodies))
        codec, given, ms = self._codec, dict(attributes) if attributes else None, delay_ms(delay_s)
        if codec is None and set(map(type, bodies)) == {bytes}:
            raws = cast(Sequence[bytes], bodies)
        else:
            raws = [raw_body(codec, body) for body in bodies]
        around = item_bytes(b"", given)
        return await self._puts.plain(queue, [(raw, given, ms) for raw in raws], [len(raw) + around for raw in raws])

    # Getting

    async def get(
        self, queue: str, count: int = 1, *, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[AsyncMessage[T]]:
        """Up to `count` messages, hidden from others for `visibility_s` (None: as the queue's options say).

        If there are none, waits up to `wait_s` for the first.
        """
        return await self._take(_unpack_async, self, queue, count, wait_s, visibility_s)

    async def _take(
        self,
        unpack: Callable[[Origin], list[H]],
        holder: object,
        queue: str,
        count: int,
        wait_s: float,
        visibility_s: float | None,
    ) -> list[H]:
        parcels = await self._service.take(queue, count, wait_s, visibility_s)
        codec = self._codec
        if len(parcels) == 1:
            return unpack(Origin(queue, parcels[0], holder, codec))
        return [message for parcel in parcels for message in unpack(Origin(queue, parcel, holder, codec))]

    async def messages(
        self, queue: str, *, count: int = 1, visibility_s: float | None = None
    ) -> AsyncIterator[AsyncMessage[T]]:
        """Messages without end, `count` fetched at a time; ack each yourself. Waits for messages, and for the node."""
        get = partial(self.get, queue, count, wait_s=POLL_S, visibility_s=visibility_s)
        take = steady(get, self._clock, self._chance, POLL_S)
        while True:
            for message in await take():
                yield message

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
        items = [NackItem(_receipt(message), delay_s) for message in messages]
        return await _in_parts(items, lambda some: self._service.nack(queue, some))

    async def extend(self, queue: str, message: Held[Any] | str, visibility_s: float) -> float | None:
        """Keep it hidden for so long from now on; until when."""
        return _raised(await self.extend_many(queue, [message], visibility_s)).visible_at

    async def extend_many(
        self, queue: str, messages: Sequence[Held[Any] | str], visibility_s: float
    ) -> list[Done | Problem]:
        items = [ExtendItem(_receipt(message), visibility_s) for message in messages]
        return await _in_parts(items, lambda some: self._service.extend(queue, some))

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

    async def redrive(self, queue: str, count: int | None = None) -> int:
        """Moves dead letters back, each exactly once; how many."""
        return await self._service.redrive(queue, count)

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
        """Finishes the batches under way, then ends all connections."""
        await self._puts.close()
        await self._acks.close()
        await self._service.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _receipt(message: Held[Any] | str) -> str:
    return message if isinstance(message, str) else message.receipt


def _raised(results: list[Done | Problem]) -> Done:
    (result,) = results
    if isinstance(result, Problem):
        raise result.raised()
    return result


async def _in_parts(items: list[V], do: Callable[[list[V]], Awaitable[list[Done | Problem]]]) -> list[Done | Problem]:
    results: list[Done | Problem] = []
    for start in range(0, len(items), MAX_BATCH):
        results += await do(items[start : start + MAX_BATCH])
    return results
