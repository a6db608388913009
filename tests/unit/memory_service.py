"""A service in a dict, just large enough to show what HTTP does with one. It keeps no promises."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from capellini.model.errors import Invalid, NotFound, TooLarge, Unavailable
from capellini.model.message import Delivery, Entry, NewMessage, Peeked, check_message
from capellini.model.options import options_of
from capellini.model.receipts import parse_receipt, receipts_of
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

CODE = b"12345678"
NOW_S = 1_700_000_000.0
_entries = msgspec.msgpack.Decoder(list[Entry])


class _Queue:
    def __init__(self, info: QueueInfo) -> None:
        self.info = info
        self.next = 1
        self.ready: deque[tuple[int, NewMessage]] = deque()
        self.taken: dict[int, NewMessage] = {}
        self.came = asyncio.Event()


class MemoryService(Service):
    def __init__(self) -> None:
        self.held: dict[str, _Queue] = {}
        self.cancelled = 0  # gets that were cancelled while they waited
        self.fails: Exception | None = None  # what every call on a queue raises
        self.hold: asyncio.Event | None = None  # puts wait for it
        self.nacked: list[NackItem] = []

    def _queue(self, name: str) -> _Queue:
        if self.fails is not None:
            raise self.fails
        if name not in self.held:
            raise NotFound(f"there is no queue {name!r}: create it first")
        return self.held[name]

    async def create(self, name: str, kind: str = "work", options: Mapping[str, Any] | None = None) -> QueueInfo:
        checked = options_of(kind, options or {})
        if name not in self.held:
            self.held[name] = _Queue(QueueInfo(name, kind, 1, msgspec.structs.asdict(checked), NOW_S))
        return self.held[name].info

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[QueueInfo]:
        names = sorted(name for name in self.held if name.startswith(prefix) and name > after)
        return [self.held[name].info for name in names[:limit]]

    async def show(self, name: str) -> QueueInfo:
        return self._queue(name).info

    async def change(self, name: str, options: Mapping[str, Any]) -> QueueInfo:
        queue = self._queue(name)
        after = options_of("work", {**queue.info.options, **options})
        queue.info = msgspec.structs.replace(queue.info, options=msgspec.structs.asdict(after))
        return queue.info

    async def pause(self, name: str, puts: bool | None = None, gets: bool | None = None) -> QueueInfo:
        queue = self._queue(name)
        changes = {"puts_paused": puts, "gets_paused": gets}
        given = {name: value for name, value in changes.items() if value is not None}
        queue.info = msgspec.structs.replace(queue.info, **given)
        return queue.info

    async def purge(self, name: str) -> QueueInfo:
        self._queue(name).ready.clear()
        return self._queue(name).info

    async def delete(self, name: str) -> None:
        self._queue(name)
        del self.held[name]

    async def statistics(self, name: str) -> Statistics:
        queue = self._queue(name)
        return Statistics(len(queue.ready), len(queue.taken), 0, 0, None, 0.0, 0.0, 0.0, ("ready", "in_flight"))

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        queue = self._queue(name)
        if self.hold is not None:
            await self.hold.wait()
        results: list[Put | Problem] = []
        for message in messages:
            try:
                check_message(message, queue.info.options["body_limit"])
            except (Invalid, TooLarge) as error:
                results.append(Problem.of(error))
            else:
                results.append(Put(str(queue.next)))
                queue.ready.append((queue.next, message))
                queue.next += 1
        queue.came.set()
        return results

    async def _taken(self, name: str, count: int, wait_s: float) -> list[tuple[int, NewMessage]]:
        queue = self._queue(name)
        if not queue.ready and wait_s:
            queue.came.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await queue.came.wait()
            except TimeoutError:
                return []
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        found = [queue.ready.popleft() for _ in range(min(count, len(queue.ready)))]
        queue.taken.update(found)
        return found

    async def get(
        self, name: str, count: int = 1, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[Delivery]:
        return [
            Delivery(str(id), receipts_of(1, id, 1, 1, CODE)[0], each.body, dict(each.attributes), NOW_S, 1, NOW_S + 30)
            for id, each in await self._taken(name, count, wait_s)
        ]

    def _finish(self, name: str, receipt: str, done: Done) -> Done | Problem:
        try:
            id = parse_receipt(receipt).id
        except Invalid as error:
            return Problem.of(error)
        if self._queue(name).taken.pop(id, None) is None:
            return Problem("stale", "the receipt is of an earlier delivery, or the message is gone")
        return done

    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]:
        self._queue(name)
        return [self._finish(name, each, Done()) for each in receipts]

    async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]:
        self._queue(name)
        self.nacked += items
        return [self._finish(name, each.receipt, Done(NOW_S)) for each in items]

    async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        self._queue(name)
        return [self._finish(name, each.receipt, Done(NOW_S + each.visibility_s)) for each in items]

    async def peek(self, name: str, count: int = 10, after: str = "") -> list[Peeked]:
        ready = list(self._queue(name).ready)[:count]
        return [Peeked(str(id), "ready", each.body, dict(each.attributes), NOW_S, 0) for id, each in ready]

    async def dead(self, name: str, count: int = 100, after: str = "") -> list[Peeked]:
        self._queue(name)
        return []

    async def redrive(self, name: str, count: int | None = None, ids: Sequence[str] | None = None) -> int:
        self._queue(name)
        return 0

    async def buckets(self, name: str, limit: int = 100) -> list[BucketView]:
        self._queue(name)
        return [BucketView(0, 0, 1_000, 0, {"ready": 0}, None, "open", None)]

    async def pointers(self, name: str) -> PointersView:
        self._queue(name)
        return PointersView(0, 0, None, 0, 1, None, [(0, "open", None)])

    async def move_repair(self, name: str, bucket: int) -> PointersView:
        return await self.pointers(name)

    async def message(self, name: str, id: str) -> MessageView:
        if not id.isdigit():
            raise Invalid(f"{id[:50]!r} is not a message id: it is a number")
        self._queue(name)
        raise NotFound(f"there is no message {id} in {name}")

    async def put_block(self, name: str, entries: bytes) -> list[tuple[int, int]]:
        queue = self._queue(name)
        try:
            found = _entries.decode(entries)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"this is no block: {error}") from None
        if self.hold is not None:
            await self.hold.wait()
        first = queue.next
        for each in found:
            queue.ready.append((queue.next, NewMessage(each.body, each.attributes or {})))
            queue.next += 1
        queue.came.set()
        return [(first, len(found))]

    async def take(self, name: str, count: int, wait_s: float = 0.0, visibility_s: float | None = None) -> list[Parcel]:
        found = await self._taken(name, count, wait_s)
        if not found:
            return []
        entries = msgspec.Raw(msgspec.msgpack.encode([Entry(each.body, dict(each.attributes)) for _, each in found]))
        return [Parcel(1, found[0][0], len(found), 1, CODE, int(NOW_S * 1000), int(NOW_S * 1000), entries)]

    async def ack_parcels(self, name: str, acks: Sequence[ParcelAck]) -> list[list[tuple[int, int]]]:
        queue = self._queue(name)
        for each in acks:
            for offset, count in each.ranges:
                for id in range(each.first + offset, each.first + offset + count):
                    queue.taken.pop(id, None)
        return [each.ranges for each in acks]

    async def close(self) -> None:
        self.held.clear()
        self.fails = Unavailable("this was closed")  # as a real one says to what still comes
