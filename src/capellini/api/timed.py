"""Timed queues over HTTP: cancel and move what is scheduled, see what is due, look at shards and stop or start them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from capellini.api.context import Context
from capellini.api.exchange import Request, Response
from capellini.api.messages import at_least_one, each_good
from capellini.api.wire import (
    Count,
    DueTime,
    Form,
    Id,
    LooseItems,
    Malformed,
    answer,
    items_of,
    packed,
    packed_answer,
    query_of,
    text_or_bytes,
)
from capellini.model.dues import due_ms_of
from capellini.model.errors import Invalid
from capellini.model.message import MAX_BATCH
from capellini.model.scheduling import TimedService
from capellini.model.service import Problem, Service
from capellini.model.timed import MAX_SHARDS, DueMessage, MoveItem

FAR_MS: Final = 253_402_300_799_000  # the last second of the year 9999: beyond what can be due


class Cancels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ids: Annotated[list[Id], Meta(max_length=MAX_BATCH)]


class LooseCancels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ids: list[msgspec.Raw]


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Id
    due: DueTime


class Moves(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[Move], Meta(max_length=MAX_BATCH)]


class DueQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """From now on, without end, unless times are given. `after`: the id of the last one seen."""

    from_: DueTime | None = None
    to: DueTime | None = None
    count: Count = 100
    after: Id = ""


class SeenDue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message as it is now, in JSON."""

    id: str
    state: str
    due_at: float
    put_at: float
    deliveries: int
    attributes: dict[str, str]
    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET


_CANCELS: Final = Form(Cancels)
_LOOSE_CANCELS: Final = Form(LooseCancels)
_ID: Final[Form[str]] = Form(Id)
_MOVES: Final = Form(Moves)
_MOVE: Final = Form(Move)
_LOOSE_ITEMS: Final = Form(LooseItems)


def timed_of(service: Service) -> TimedService:
    if service.timed is None:
        raise Invalid("there are no timed queues here")
    return service.timed


def json_due(each: DueMessage) -> SeenDue:
    text, raw = text_or_bytes(each.body)
    return SeenDue(each.id, each.state, each.due_at, each.put_at, each.deliveries, each.attributes, text, raw)


async def cancel(context: Context, request: Request) -> Response:
    try:
        ids: Sequence[str | Problem] = _CANCELS.read(request).ids
    except Malformed:
        raise
    except Invalid as whole:
        ids = at_least_one(items_of(request, _LOOSE_CANCELS, _ID), whole)
    timed = timed_of(context.service)
    return answer(request, {"results": await each_good(ids, lambda good: timed.cancel(request.name, good))})


async def move(context: Context, request: Request) -> Response:
    try:
        items: Sequence[Move | Problem] = _MOVES.read(request).items
    except Malformed:
        raise
    except Invalid as whole:
        items = at_least_one(items_of(request, _LOOSE_ITEMS, _MOVE), whole)
    timed, now_s = timed_of(context.service), context.now_s()
    wanted = [each if isinstance(each, Problem) else _move_item(each, now_s) for each in items]
    return answer(request, {"results": await each_good(wanted, lambda good: timed.move(request.name, good))})


def _move_item(each: Move, now_s: float) -> MoveItem | Problem:
    try:
        return MoveItem(each.id, due_ms_of(each.due, now_s))
    except Invalid as error:
        return Problem.of(error)


async def due_between(context: Context, request: Request) -> Response:
    query, now_s = query_of(request, DueQuery), context.now_s()
    from_ms = int(now_s * 1000) if query.from_ is None else due_ms_of(query.from_, now_s)
    to_ms = FAR_MS if query.to is None else due_ms_of(query.to, now_s)
    timed = timed_of(context.service)
    found = await timed.due_between(request.name, from_ms, to_ms, query.count, query.after)
    if packed(request):
        return packed_answer({"messages": found})
    return answer(request, {"messages": [json_due(each) for each in found]})


async def shards(context: Context, request: Request) -> Response:
    return answer(request, {"shards": await timed_of(context.service).shards(request.name)})


async def stop_shard(context: Context, request: Request) -> Response:
    return answer(request, await timed_of(context.service).stop_shard(request.name, _shard(request)))


async def start_shard(context: Context, request: Request) -> Response:
    return answer(request, await timed_of(context.service).start_shard(request.name, _shard(request)))


def _shard(request: Request) -> int:
    text = request.params["shard"]
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise Invalid(f"a shard is a number from 0 to {MAX_SHARDS - 1}, not {text[:40]!r}")
    return int(text)
