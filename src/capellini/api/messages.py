"""Messages over HTTP: put, get, ack, nack, extend, peek, dead letters, and the fast lane of whole blocks.

The fast lane passes blocks of messages between the wire and the service as they are: no object per message is made
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from capellini.api.context import Context
from capellini.api.exchange import Request, Response
from capellini.api.wire import (
    PACKED,
    Acks,
    Count,
    Extend,
    Extends,
    Form,
    Get,
    Id,
    LooseAcks,
    LooseItems,
    LoosePuts,
    Malformed,
    Message,
    Nack,
    Nacks,
    PackedMessage,
    PackedPuts,
    Puts,
    ReceiptText,
    Take,
    UnsupportedMedia,
    answer,
    check_batch,
    is_raw,
    items_of,
    json_delivery,
    json_peeked,
    media,
    new_message,
    packed,
    packed_answer,
    query_of,
    raw_message,
)
from capellini.model.errors import Invalid
from capellini.model.message import MAX_BATCH, NewMessage, Peeked, page_full
from capellini.model.service import ParcelAck, Problem, Put

T = TypeVar("T")
R = TypeVar("R")

_PUTS: Final = Form(Puts)
_PACKED_PUTS: Final = Form(PackedPuts)
_LOOSE_PUTS: Final = Form(LoosePuts)
_MESSAGE: Final = Form(Message)
_PACKED_MESSAGE: Final = Form(PackedMessage)
_GET: Final = Form(Get)
_ACKS: Final = Form(Acks)
_LOOSE_ACKS: Final = Form(LooseAcks)
_RECEIPT: Final[Form[str]] = Form(ReceiptText)
_NACKS: Final = Form(Nacks)
_NACK: Final = Form(Nack)
_EXTENDS: Final = Form(Extends)
_EXTEND: Final = Form(Extend)
_LOOSE_ITEMS: Final = Form(LooseItems)
_TAKE: Final = Form(Take)
_PARCEL_ACKS: Final[Form[list[ParcelAck]]] = Form(list[ParcelAck])


class PeekQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: Count = 10
    after: Id = ""


class DeadQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: Count = 100
    after: Id = ""


class Redrive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1)] | None = None
    ids: Annotated[list[str], Meta(max_length=MAX_BATCH)] | None = None


_REDRIVE: Final = Form(Redrive)


# ---- put


async def put(context: Context, request: Request) -> Response:
    if is_raw(request):
        results: Sequence[Put | Problem] = await context.service.put(request.name, [raw_message(request)])
        if isinstance(results[0], Problem):
            raise results[0].raised()  # there is one message only: its error is the call's
    else:
        check_batch(request)
        results = await each_good(_read_puts(request), lambda good: context.service.put(request.name, good))
    context.metrics.count("put", results)
    return answer(request, {"results": results})


def _read_puts(request: Request) -> Sequence[NewMessage | Problem]:
    is_packed = media(request) in PACKED
    try:
        if is_packed:
            return _PACKED_PUTS.read(request).messages
        return [new_message(each) for each in _PUTS.read(request).messages]
    except Invalid as error:
        if isinstance(error, Malformed) and request.body.isascii():
            raise  # otherwise text that is not UTF-8 spoils its own message only
        whole = error
    if is_packed:
        return at_least_one(items_of(request, _LOOSE_PUTS, _PACKED_MESSAGE), whole)
    loose = items_of(request, _LOOSE_PUTS, _MESSAGE)
    return at_least_one([each if isinstance(each, Problem) else new_message(each) for each in loose], whole)


def at_least_one(items: list[T], whole: Invalid) -> list[T]:
    """Where no item is at fault, the whole is."""
    if not any(isinstance(each, Problem) for each in items):
        raise whole
    return items


async def each_good(
    items: Sequence[T | Problem], call: Callable[[Sequence[T]], Coroutine[Any, Any, Sequence[R | Problem]]]
) -> Sequence[R | Problem]:
    """Call with the good items; the answers in the order of all."""
    good = [each for each in items if not isinstance(each, Problem)]
    if len(good) == len(items):
        return await call(good)
    done = iter(await call(good) if good else ())
    return [each if isinstance(each, Problem) else next(done) for each in items]


# ---- get


async def get(context: Context, request: Request) -> Response:
    asked = _GET.read(request)
    call = context.service.get(request.name, asked.count, asked.wait_s, asked.visibility_s)
    found = await (woken(context, call) if asked.wait_s else call)
    context.metrics.add("get", len(found))
    if packed(request):
        return packed_answer({"messages": found})
    return answer(request, {"messages": [json_delivery(each) for each in found]})


async def woken(context: Context, call: Awaitable[list[T]]) -> list[T]:
    """A call that waits. When the node drains it ends at once, with nothing; the service gives back what it had
    claimed."""
    task = asyncio.current_task()
    assert task is not None
    context.waiting.add(task)
    if context.gate.condition.draining:  # let in before, behind another on its connection
        context.end_wait(task)
    try:
        return await call
    except asyncio.CancelledError:
        if task not in context.woken:
            raise
        return []
    finally:
        context.waiting.discard(task)
        if task in context.woken:
            context.woken.discard(task)
            task.uncancel()


# ---- ack, nack, extend


async def ack(context: Context, request: Request) -> Response:
    try:
        receipts: Sequence[str | Problem] = _ACKS.read(request).receipts
    except Malformed:
        raise
    except Invalid as whole:
        receipts = at_least_one(items_of(request, _LOOSE_ACKS, _RECEIPT), whole)
    results = await each_good(receipts, lambda good: context.service.ack(request.name, good))
    context.metrics.count("ack", results)
    return answer(request, {"results": results})


async def nack(context: Context, request: Request) -> Response:
    try:
        items: Sequence[Nack | Problem] = _NACKS.read(request).items
    except Malformed:
        raise
    except Invalid as whole:
        items = at_least_one(items_of(request, _LOOSE_ITEMS, _NACK), whole)
    results = await each_good(items, lambda good: context.service.nack(request.name, good))
    context.metrics.count("nack", results)
    return answer(request, {"results": results})


async def extend(context: Context, request: Request) -> Response:
    try:
        items: Sequence[Extend | Problem] = _EXTENDS.read(request).items
    except Malformed:
        raise
    except Invalid as whole:
        items = at_least_one(items_of(request, _LOOSE_ITEMS, _EXTEND), whole)
    results = await each_good(items, lambda good: context.service.extend(request.name, good))
    context.metrics.count("extend", results)
    return answer(request, {"results": results})


# ---- looking, and dead letters


async def peek(context: Context, request: Request) -> Response:
    query = query_of(request, PeekQuery)
    return _seen(request, query.count, await context.service.peek(request.name, query.count, query.after))


async def dead(context: Context, request: Request) -> Response:
    query = query_of(request, DeadQuery)
    return _seen(request, query.count, await context.service.dead(request.name, query.count, query.after))


def _seen(request: Request, count: int, found: list[Peeked]) -> Response:
    more = page_full(found, count)
    if packed(request):
        return packed_answer({"messages": found, "more": more})
    return answer(request, {"messages": [json_peeked(each) for each in found], "more": more})


async def redrive(context: Context, request: Request) -> Response:
    asked = _REDRIVE.read(request)
    moved = await context.service.redrive(request.name, asked.count, asked.ids)
    return answer(request, {"moved": moved})


# ---- the fast lane


def _packed_only(request: Request) -> None:
    if media(request) not in PACKED:
        raise UnsupportedMedia(media(request).decode("latin-1"))


async def put_block(context: Context, request: Request) -> Response:
    _packed_only(request)
    runs = await context.service.put_block(request.name, request.body)
    context.metrics.add("put", sum([count for _, count in runs]))
    return packed_answer(runs)


async def take(context: Context, request: Request) -> Response:
    _packed_only(request)
    asked = _TAKE.read(request)
    call = context.service.take(request.name, asked.count, asked.wait_s, asked.visibility_s)
    parcels = await (woken(context, call) if asked.wait_s else call)
    context.metrics.add("get", sum([parcel.count for parcel in parcels]))
    return packed_answer(parcels)


async def ack_parcels(context: Context, request: Request) -> Response:
    _packed_only(request)
    acked = await context.service.ack_parcels(request.name, _PARCEL_ACKS.read(request))
    context.metrics.add("ack", sum([count for ranges in acked for _, count in ranges]))
    return packed_answer(acked)
