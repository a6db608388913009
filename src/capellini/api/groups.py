"""Log queues over HTTP: consumer groups, their dead letters, extents, routes, and chunks one call at a time.

Streams (`api.streams`) carry chunks without a request for each; these calls are for who has few, or no WebSocket.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from capellini.api.context import Context
from capellini.api.exchange import Request, Response
from capellini.api.messages import Redrive, woken
from capellini.api.streams import log_of
from capellini.api.wire import PACKED, Form, UnsupportedMedia, Visibility, Wait, answer, media, packed_answer, query_of
from capellini.model.dues import due_of, seconds_of
from capellini.model.log import EARLIEST, LATEST, GroupInfo, GroupLag, Settle
from capellini.model.options import NAME
from capellini.model.streams import MAX_SETTLES, SettleItems, checked_items

MAX_PULL_BYTES: Final = 16 * 1024 * 1024
GroupName = Annotated[str, Meta(pattern=f"^{NAME.pattern}$")]


class CreateGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`start`: earliest, latest, a time as in 2030-01-31T08:00:00Z, or seconds since 1970."""

    start: str | float = EARLIEST
    options: dict[str, Any] = {}


class ChangeGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    options: dict[str, Any]


class Seek(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`to`: as `start` of a new group."""

    to: str | float


class ShownGroup(msgspec.Struct, frozen=True):
    group: GroupInfo
    lag: GroupLag


class RoutesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    group: GroupName | None = None


class Pull(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=100_000)]
    most_bytes: Annotated[int, Meta(ge=1, le=MAX_PULL_BYTES)] = 1_048_576
    wait_s: Wait = 0.0
    visibility_s: Visibility | None = None


_CREATE: Final = Form(CreateGroup)
_CHANGE: Final = Form(ChangeGroup)
_SEEK: Final = Form(Seek)
_COUNT: Final = Form(Redrive)
_PULL: Final = Form(Pull)
_SETTLES: Final[Form[list[Settle]]] = Form(Annotated[list[Settle], Meta(max_length=MAX_SETTLES)])  # type: ignore[arg-type]


def position_of(given: str | float) -> str | float:
    """Where to start: a word, or seconds since 1970. Raises Invalid."""
    if isinstance(given, str):
        return given if given in (EARLIEST, LATEST) else due_of(given)
    return seconds_of(given)


# ---- groups


async def list_all(context: Context, request: Request) -> Response:
    return answer(request, {"groups": await log_of(context.service).groups(request.name)})


async def create(context: Context, request: Request) -> Response:
    wanted = _CREATE.read(request)
    log = log_of(context.service)
    return answer(
        request, await log.create_group(request.name, _group(request), position_of(wanted.start), wanted.options)
    )


async def show(context: Context, request: Request) -> Response:
    info, lag = await log_of(context.service).show_group(request.name, _group(request))
    return answer(request, ShownGroup(info, lag))


async def change(context: Context, request: Request) -> Response:
    options = _CHANGE.read(request).options
    return answer(request, await log_of(context.service).change_group(request.name, _group(request), options))


async def seek(context: Context, request: Request) -> Response:
    to = position_of(_SEEK.read(request).to)
    return answer(request, await log_of(context.service).seek_group(request.name, _group(request), to))


async def delete(context: Context, request: Request) -> Response:
    await log_of(context.service).delete_group(request.name, _group(request))
    return Response(204)


async def merge_dead(context: Context, request: Request) -> Response:
    count = _COUNT.read(request).count
    return answer(request, {"moved": await log_of(context.service).merge_dead(request.name, _group(request), count)})


async def purge_dead(context: Context, request: Request) -> Response:
    await log_of(context.service).purge_dead(request.name, _group(request))
    return Response(204)


def _group(request: Request) -> str:
    return request.params["group"]


# ---- looking


async def extents(context: Context, request: Request) -> Response:
    return answer(request, {"extents": await log_of(context.service).extents(request.name)})


async def routes(context: Context, request: Request) -> Response:
    query = query_of(request, RoutesQuery)
    return answer(request, await log_of(context.service).routes(request.name, query.group))


# ---- chunks


async def put_chunk(context: Context, request: Request) -> Response:
    _packed_only(request)
    done = await log_of(context.service).append(request.name, request.body)
    context.metrics.add("put", done.count)
    return packed_answer(done)


async def get_chunks(context: Context, request: Request) -> Response:
    _packed_only(request)
    asked = _PULL.read(request)
    call = log_of(context.service).pull(
        request.name, _group(request), asked.count, asked.most_bytes, asked.wait_s, asked.visibility_s
    )
    parcels = await (woken(context, call) if asked.wait_s else call)
    context.metrics.add("get", sum(parcel.count for parcel in parcels))
    return packed_answer(parcels)


async def settle(context: Context, request: Request) -> Response:
    _packed_only(request)
    items = checked_items(SettleItems(0, _SETTLES.read(request)))
    results = await log_of(context.service).settle(request.name, _group(request), items)
    acked = [done for item, done in zip(items, results, strict=True) if item.verb == "ack"]
    context.metrics.add("ack", sum(count for done in acked for _, count in done.ranges))
    return packed_answer(results)


def _packed_only(request: Request) -> None:
    if media(request) not in PACKED:
        raise UnsupportedMedia(media(request).decode("latin-1"))
