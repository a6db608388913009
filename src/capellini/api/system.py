"""The node itself over HTTP: is it alive, is it ready, which version, its metrics, its document; and drain it."""

from __future__ import annotations

from typing import Final

import msgspec

from capellini import __version__
from capellini.api.context import Context
from capellini.api.exchange import Request, Response
from capellini.api.problems import problem
from capellini.api.wire import Form, answer, packed
from capellini.model.frames import UPGRADE


class Health(msgspec.Struct, frozen=True):
    """Alive is all it says."""

    status: str
    node: str


class Ready(msgspec.Struct, frozen=True):
    """Status 200 when ready, else 503 and why."""

    ready: bool
    reasons: list[str]
    skew_s: float


class Version(msgspec.Struct, frozen=True):
    version: str
    node: str


class DrainOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    draining: bool = True


class Drained(msgspec.Struct, frozen=True):
    """What is still to be finished."""

    draining: bool
    in_flight: int
    waiting: int


_ORDER: Final = Form(DrainOrder)


async def health(context: Context, request: Request) -> Response:
    return answer(request, Health("ok", context.node_name))


async def ready(context: Context, request: Request) -> Response:
    condition = context.gate.condition
    found = Ready(condition.ready, condition.reasons, condition.skew_s)
    return answer(request, found, 200 if found.ready else 503)


async def version(context: Context, request: Request) -> Response:
    return answer(request, Version(__version__, context.node_name))


async def metrics(context: Context, request: Request) -> Response:
    body, content_type = await context.metrics.fresh()
    return Response(200, body, content_type)


async def openapi(context: Context, request: Request) -> Response:
    return Response(200, context.document)


async def drain(context: Context, request: Request) -> Response:
    await context.drain(_ORDER.read(request).draining)
    gate = context.gate
    return answer(request, Drained(gate.condition.draining, gate.in_flight, gate.waiting))


async def channel(context: Context, request: Request) -> Response:
    """Reached only by requests that do not ask for the upgrade, or not as the first on their connection."""
    says = f"ask for this with Connection: upgrade and Upgrade: {UPGRADE}, alone on its connection: see the protocol"
    return problem(426, "upgrade", says, packed=packed(request), headers=((b"upgrade", UPGRADE.encode()),))
