"""Queues over HTTP: create, list, show, change, pause, purge, delete, statistics, and a look inside."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from capellini.api.context import Context
from capellini.api.exchange import Request, Response
from capellini.api.wire import Form, Start, answer, query_of
from capellini.model.service import sides


class Create(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str = "work"
    options: dict[str, Any] = {}


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    options: dict[str, Any]


class Sides(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which side is meant; both when none is named."""

    puts: bool | None = None
    gets: bool | None = None


class MoveRepair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    repair: Annotated[int, Meta(ge=0, le=2**53)]


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix: Start = ""
    after: Start = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000


class BucketQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


_CREATE: Final = Form(Create)
_CHANGE: Final = Form(Change)
_SIDES: Final = Form(Sides)
_MOVE: Final = Form(MoveRepair)


async def create(context: Context, request: Request) -> Response:
    wanted = _CREATE.read(request)
    return answer(request, await context.service.create(request.name, wanted.kind, wanted.options))


async def list_all(context: Context, request: Request) -> Response:
    query = query_of(request, ListQuery)
    found = await context.service.queues(query.prefix, query.after, query.limit)
    return answer(request, {"queues": found})


async def show(context: Context, request: Request) -> Response:
    return answer(request, await context.service.show(request.name))


async def change(context: Context, request: Request) -> Response:
    wanted = _CHANGE.read(request)
    return answer(request, await context.service.change(request.name, wanted.options))


async def pause(context: Context, request: Request) -> Response:
    said = _SIDES.read(request)
    puts, gets = sides(said.puts, said.gets)
    done = await context.service.pause(request.name, puts or None, gets or None)
    return answer(request, done)


async def resume(context: Context, request: Request) -> Response:
    said = _SIDES.read(request)
    puts, gets = sides(said.puts, said.gets)
    done = await context.service.pause(request.name, False if puts else None, False if gets else None)
    return answer(request, done)


async def purge(context: Context, request: Request) -> Response:
    return answer(request, await context.service.purge(request.name))


async def delete(context: Context, request: Request) -> Response:
    await context.service.delete(request.name)
    return Response(204)


async def statistics(context: Context, request: Request) -> Response:
    return answer(request, await context.service.statistics(request.name))


async def buckets(context: Context, request: Request) -> Response:
    query = query_of(request, BucketQuery)
    return answer(request, {"buckets": await context.service.buckets(request.name, query.limit)})


async def pointers(context: Context, request: Request) -> Response:
    return answer(request, await context.service.pointers(request.name))


async def move_repair(context: Context, request: Request) -> Response:
    wanted = _MOVE.read(request)
    return answer(request, await context.service.move_repair(request.name, wanted.repair))


async def message(context: Context, request: Request) -> Response:
    return answer(request, await context.service.message(request.name, request.params["id"]))
