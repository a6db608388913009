"""Recurring schedules over HTTP."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from capellini.api.context import Context
from capellini.api.exchange import Request, Response
from capellini.api.timed import timed_of
from capellini.api.wire import PACKED, Attributes, Form, Start, answer, media, packed, query_of, text_or_bytes
from capellini.model.errors import Invalid
from capellini.model.scheduling import MAX_CRON_CHARS, MAX_ZONE_CHARS, Missed, NewSchedule, ScheduleInfo

Cron = Annotated[str, Meta(min_length=1, max_length=MAX_CRON_CHARS)]
Zone = Annotated[str, Meta(min_length=1, max_length=MAX_ZONE_CHARS)]


class NewRecurring(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule to add, in JSON: the body of its messages is text in `body`, or any bytes in `body_base64`."""

    queue: Start
    cron: Cron
    zone: Zone = "UTC"
    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    attributes: Attributes = {}
    missed: Missed = "skip"


class PackedRecurring(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The same in MessagePack: the body is bytes."""

    queue: Start
    cron: Cron
    zone: Zone = "UTC"
    body: bytes = b""
    attributes: Attributes = {}
    missed: Missed = "skip"


class ScheduleQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix: Start = ""


class Scheduled(msgspec.Struct, frozen=True):
    """A schedule, in JSON."""

    name: str
    queue: str
    cron: str
    zone: str
    attributes: dict[str, str]
    missed: Missed
    created_at: float
    through_at: float
    next_at: list[float]
    skipped: int
    problem: str
    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET


_NEW: Final = Form(NewRecurring)
_PACKED_NEW: Final = Form(PackedRecurring)


def json_schedule(info: ScheduleInfo) -> Scheduled:
    text, raw = text_or_bytes(info.body)
    return Scheduled(
        info.name, info.queue, info.cron, info.zone, info.attributes, info.missed, info.created_at, info.through_at,
        info.next_at, info.skipped, info.problem, text, raw,
    )  # fmt: skip


async def add(context: Context, request: Request) -> Response:
    made = await timed_of(context.service).schedule(_read(request))
    return answer(request, made if packed(request) else json_schedule(made))


def _read(request: Request) -> NewSchedule:
    name = request.params["schedule"]
    if media(request) in PACKED:
        given = _PACKED_NEW.read(request)
        return NewSchedule(name, given.queue, given.cron, given.zone, given.body, given.attributes, given.missed)
    new = _NEW.read(request)
    if new.body is not UNSET and new.body_base64 is not UNSET:
        raise Invalid("a schedule has either body (text) or body_base64 (bytes)")
    text = new.body.encode() if new.body is not UNSET else b""
    body = text if new.body_base64 is UNSET else new.body_base64
    return NewSchedule(name, new.queue, new.cron, new.zone, body, new.attributes, new.missed)


async def list_all(context: Context, request: Request) -> Response:
    found = await timed_of(context.service).schedules(query_of(request, ScheduleQuery).prefix)
    return answer(request, {"schedules": found if packed(request) else [json_schedule(each) for each in found]})


async def remove(context: Context, request: Request) -> Response:
    await timed_of(context.service).unschedule(request.params["schedule"])
    return Response(204)
