"""What a node does with the shards that it holds itself, for callers here and at other nodes.

An operation is a name and a list of items; its answers are one per item. The same function serves both: a caller in
this process without a detour, another node's through bytes.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final
from uuid import UUID

import msgspec

from capellini.model.errors import CapelliniError, Invalid, Stale, Unavailable
from capellini.model.message import Delivery
from capellini.model.timed import DueMessage, ShardView
from capellini.queues.timed import acting, changing
from capellini.queues.timed.desk import Desk, Message, State, size_of
from capellini.queues.timed.holder import Holder, page_rows
from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.positions import before, id_text, ms_of_ticks, parse_id, ticks_of, ticks_of_ms
from capellini.queues.timed.proofs import DELIVERY_BITS, EPOCH_BITS, Proof, lower, receipt_of
from capellini.queues.timed.rows import PAGE_ROWS, TimedRow, order_key, read_between

LISTED_ROWS: Final = 10_000  # looked at per shard for one list or count: what is cancelled or moved away lies there too
LISTED_PAGE: Final = 100  # of one read after the first, at least, unless they are large
COUNTED_ROWS: Final = 1_000  # looked at per shard for one count, and so many bytes: counts are asked for all the time
COUNTED_BYTES: Final = 4 * 1024 * 1024
FIRST: Final = (-1, b"")  # before every place
FAR_MS: Final = 4_102_444_800_000  # the year 2100: after every due
LAG_ALARM_SHARE: Final = 0.5  # of the retention: a cursor that is so far behind comes near the end of what is kept


NEAR_ITS_END: Final = "its oldest message comes near the end of its retention"
TOO_MUCH_FLIES: Final = "too many bytes are in flight: it hands out nothing until consumers ack or give back"
TOO_MUCH_HIDDEN: Final = "too many bytes are hidden or in flight: it reads no further until they are acked or come back"


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """Of one item: an error by name, or when it is visible next."""

    error: str = ""
    says: str = ""
    at_ms: int | None = None


STALE: Final = Answer(Stale.name, "the receipt is of an earlier delivery, or the message is gone")


def refusal(error: CapelliniError) -> Answer:
    return Answer(error.name, error.says)


class Page(msgspec.Struct, frozen=True):
    """Of what is scheduled: the messages, how many rows that took, how large those were, and was it the last?"""

    rows: list[TimedRow]
    looked: int
    size: int
    last: bool


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """What a shard has that is due in some time, as far as it was looked at."""

    messages: list[DueMessage]
    places: list[UUID]  # of each: what is due at the same time is in their order, as it lies in the store
    all: bool


class Counted(msgspec.Struct, frozen=True, array_like=True):
    """A shard's messages: as its holder has it, what is scheduled beyond, the earliest due; and was that all?"""

    view: ShardView
    scheduled: int
    oldest_due_ms: int | None
    all: bool


class Serving:
    def __init__(self, place: TimedPlace, holders: Mapping[int, Holder]) -> None:
        self._place = place
        self._holders = holders

    def holder(self, shard: int, operation: str = "") -> Holder | None:
        """That can do this; an operator's word is for one that is just beginning, too."""
        found = self._holders.get(shard)
        if found is None or not (found.acts() or (operation == "halt" and found.begins())):
            return None
        return found

    def held(self) -> list[Holder]:
        return list(self._holders.values())

    # Handing out

    def take(self, count: int, visibility_ms: int, sent_ms: int) -> list[Delivery]:
        """From the shards held here. `visible_at` is told on the clock of who asked, from the time it asked at."""
        place = self._place
        found: list[Delivery] = []
        shards = list(self._holders)
        place.random.shuffle(shards)
        for shard in shards:
            holder = self._holders[shard]
            for message in holder.take(count - len(found), visibility_ms):
                found.append(self._delivery(holder, message, sent_ms + visibility_ms))
            if len(found) >= count:
                break
        return found

    def _delivery(self, holder: Holder, message: Message, until_ms: int) -> Delivery:
        place, row = self._place, message.row
        proof = Proof(holder.shard, message.offset, holder.epoch, message.deliveries)
        return Delivery(
            id=id_text(row.id),
            receipt=receipt_of(place.secret, place.generation, proof),
            body=row.entry.body,
            attributes=row.entry.attributes or {},
            put_at=row.put_ms / 1000,
            deliveries=message.deliveries,
            visible_at=until_ms / 1000,
        )

    # One shard's operations

    async def do(self, shard: int, operation: str, items: list[Any]) -> list[Answer]:
        """Raises Unavailable when this node does not hold the shard."""
        holder = self.holder(shard, operation)
        if holder is None:
            raise Unavailable(f"this node does not work shard {shard} of {self._place.name} now: try again")
        act = _OPERATIONS.get(operation)
        if act is None:
            raise Invalid(f"{operation!r} is no operation of timed queues")
        return await holder.apart(act(holder, items))

    async def view(self, shard: int) -> ShardView:
        holder = self.holder(shard)
        if holder is None:
            raise Unavailable(f"this node does not work shard {shard} of {self._place.name} now")
        place, desk = self._place, holder.desk
        lag_s = max(0.0, (place.now_ticks() - ticks_of(holder.read)) / 1e7)
        old_s = max(0.0, (place.now_ticks() - holder.cursor_ticks) / 1e7)
        near = old_s > place.options.retention_s * LAG_ALARM_SHARE and bool(desk.first())
        return ShardView(
            queue=place.name,
            shard=shard,
            state="stopped" if holder.halted else "started",
            holder=holder.lease.node,
            epoch=holder.epoch,
            cursor_at=ms_of_ticks(holder.cursor_ticks) / 1000,
            horizon_at=ms_of_ticks(holder.published) / 1000,
            lag_s=lag_s,
            ready=desk.ready,
            waiting=len(desk) - desk.ready - desk.flying,
            in_flight=desk.flying,
            in_flight_bytes=desk.flying_bytes,
            retired=shard >= place.options.shards,
            takeovers=holder.epoch,
            suspicious=NEAR_ITS_END if near else _held_back(desk),
        )

    async def listed(self, shard: int, from_ms: int, to_ms: int, count: int, after: str = "") -> Listed:
        """What is due in that time, up to `count`. `after`: where the last one seen lies, of those due at `from_ms`."""
        holder = self.holder(shard)
        if holder is None:
            raise Unavailable(f"this node does not work shard {shard} of {self._place.name} now")
        holder.roll()
        seen = parse_id(after) if after else before(ticks_of_ms(from_ms))
        mark = (from_ms, order_key(seen) if after else FIRST)

        def wanted(row: TimedRow) -> bool:
            return mark < list_key(row) and row.due_ms < to_ms

        here = [m for m in holder.desk.messages.values() if m.state in _STATE and wanted(m.row)]
        found = [(m.row, _STATE[m.state], m.deliveries) for m in here]
        scheduled = looked = 0
        start = seen if ms_of_ticks(ticks_of(seen)) == from_ms else before(ticks_of_ms(from_ms))
        async with aclosing(self._beyond(holder, start, to_ms, count)) as pages:
            async for page in pages:
                rows = [row for row in page.rows if wanted(row)]
                found += [(row, "scheduled", 0) for row in rows]
                scheduled, looked = scheduled + len(rows), looked + max(1, page.looked)
                if page.last or scheduled >= count or looked >= LISTED_ROWS:
                    break
        found = heapq.nsmallest(count, found, key=lambda one: list_key(one[0]))  # bodies of no more than that
        return Listed([due_message(*one) for one in found], [row.name[0] for row, *_ in found], page.last)

    async def _beyond(self, holder: Holder, start: UUID, to_ms: int, count: int) -> AsyncGenerator[Page]:
        """What is scheduled and was not read yet, in pages that fit into memory, whatever the bodies are."""
        after = max(holder.read, start, key=order_key)
        known, end = set(holder.desk.ids), ticks_of_ms(to_ms) - 1
        limit = min(count, holder.rows_at_once)
        while True:
            reach = await read_between(self._place, holder.shard, after, end, limit)
            rows = [
                row
                for row in reach.rows
                if not (row.cancelled or row.moved_to or row.position in holder.ahead or row.id in known)
            ]
            after, last = reach.to, ticks_of(reach.to) >= end
            yield Page(rows, len(reach.rows), sum(map(size_of, reach.rows)), last)
            count -= len(rows)
            limit = min(max(LISTED_PAGE, count), page_rows(reach.rows) if reach.rows else PAGE_ROWS)

    async def counted(self, shard: int) -> Counted:
        """All of a shard's unfinished messages, as far as that can be known at a bounded cost."""
        view = await self.view(shard)
        holder = self._holders[shard]
        holder.roll()
        dues = [m.row.due_ms for m in holder.desk.messages.values() if m.state in _STATE]
        oldest, scheduled, looked, size = min(dues, default=FAR_MS), 0, 0, 0
        async with aclosing(self._beyond(holder, before(0), FAR_MS, COUNTED_ROWS)) as pages:
            async for page in pages:
                scheduled, looked, size = scheduled + len(page.rows), looked + max(1, page.looked), size + page.size
                oldest = min([oldest, *(row.due_ms for row in page.rows)])
                if page.last or looked >= COUNTED_ROWS or size >= COUNTED_BYTES:
                    break
        return Counted(view, scheduled, None if oldest == FAR_MS else oldest, page.last)


def _held_back(desk: Desk) -> str:
    return TOO_MUCH_FLIES if desk.too_much_flies else TOO_MUCH_HIDDEN if desk.too_much_is_out else ""


_STATE: Final = {State.WAITING: "scheduled", State.READY: "ready", State.FLYING: "in_flight"}


def list_key(row: TimedRow) -> tuple[int, tuple[int, bytes]]:
    """Lists are in this order. Copies of one message share it."""
    return row.due_ms, order_key(row.name[0])


def due_message(row: TimedRow, state: str, deliveries: int) -> DueMessage:
    return DueMessage(
        id=id_text(row.id),
        state=state,
        due_at=row.due_ms / 1000,
        put_at=row.put_ms / 1000,
        deliveries=deliveries,
        body=row.entry.body,
        attributes=row.entry.attributes or {},
    )


def _held(holder: Holder, items: list[Any]) -> list[tuple[int, int]]:
    """(offset, delivery) of each proof; one of another holder's epoch proves nothing here."""
    epoch = lower(holder.epoch, EPOCH_BITS)
    held = []
    for offset, of_epoch, delivery, *_ in items:
        message = holder.desk.messages.get(offset) if of_epoch == epoch else None
        good = message is not None and lower(message.deliveries, DELIVERY_BITS) == delivery
        held.append((offset, message.deliveries) if good and message is not None else (-1, 0))
    return held


async def _ack(holder: Holder, items: list[Any]) -> list[Answer]:
    return [Answer() if good else STALE for good in await acting.ack(holder, _held(holder, items))]


async def _nack(holder: Holder, items: list[Any]) -> list[Answer]:
    ats = await acting.nack(holder, _held(holder, items), [item[3] for item in items])
    return [STALE if at_ms is None else Answer(at_ms=at_ms) for at_ms in ats]


async def _extend(holder: Holder, items: list[Any]) -> list[Answer]:
    ats = acting.extend(holder, _held(holder, items), [item[3] for item in items])
    return [STALE if at_ms is None else Answer(at_ms=at_ms) for at_ms in ats]


async def _each(items: list[Any], act: Callable[[Any], Awaitable[int | None]]) -> list[Answer]:
    async def one(item: Any) -> Answer:
        try:
            return Answer(at_ms=await act(item))
        except CapelliniError as error:
            return refusal(error)

    return list(await asyncio.gather(*[one(item) for item in items]))


async def _cancel(holder: Holder, items: list[Any]) -> list[Answer]:
    async def act(item: str) -> None:
        await changing.cancel(holder, parse_id(item))

    return await _each(items, act)


async def _move(holder: Holder, items: list[Any]) -> list[Answer]:
    async def act(item: tuple[str, int]) -> int:
        return await changing.move(holder, parse_id(item[0]), item[1])

    return await _each(items, act)


async def _wake(holder: Holder, items: list[Any]) -> list[Answer]:
    for ticks in items:
        holder.wake(ticks)
    return [Answer() for _ in items]


async def _halt(holder: Holder, items: list[Any]) -> list[Answer]:
    await holder.look_halted()
    holder.place.woken()
    return [Answer()]


_OPERATIONS: Final[dict[str, Callable[[Holder, list[Any]], Any]]] = {
    "ack": _ack,
    "nack": _nack,
    "extend": _extend,
    "cancel": _cancel,
    "move": _move,
    "wake": _wake,
    "halt": _halt,
}
