"""Errors as responses: one map from an error's name to a status, one form for all: {"error": name, "says": sentence}.

Names beyond `model.errors` are of HTTP alone: no_route, method, forbidden, timeout, media_type, upgrade, internal.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from capellini.api.exchange import JSON, MSGPACK, Response
from capellini.model.errors import CapelliniError
from capellini.model.service import Problem

STATUS: Final = {
    "invalid": 400,
    "too_large": 413,
    "wrong_kind": 400,
    "not_found": 404,
    "conflict": 409,
    "stale": 409,
    "paused": 409,
    "cannot_open": 503,
    "in_use": 503,
    "store": 503,
    "unavailable": 503,
    "overloaded": 429,
    "full": 503,
    "unknown": 503,
}


def status_of(error: CapelliniError) -> int:
    return STATUS.get(error.name, 500)


def problem(
    status: int, name: str, says: str, *, packed: bool = False, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Response:
    body = Problem(name, says)
    if packed:
        return Response(status, msgspec.msgpack.encode(body), MSGPACK, headers)
    return Response(status, msgspec.json.encode(body), JSON, headers)


def response_of(error: CapelliniError, *, packed: bool = False) -> Response:
    """The response for an error that concerns the whole call."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if error.retry_after_s is not None:
        headers = ((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))),)  # HTTP knows whole seconds only
    return problem(status_of(error), error.name, error.says, packed=packed, headers=headers)
