"""Paths and answers of a node, as a client writes and reads them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec

from capellini.client.reaching import Response
from capellini.model.errors import CapelliniError, Invalid, TooLarge, Unavailable, Unknown, from_name
from capellini.model.log import check_place
from capellini.model.service import Problem

T = TypeVar("T")
JSON: Final = "application/json"
PATHS_KEPT: Final = 1_024  # of calls to the queues that a client uses: names are checked once
SHOWN: Final = 200  # characters of an answer that is no answer of a node
_OF_HTTP: Final[dict[str, type[CapelliniError]]] = {  # names that only HTTP has
    "internal": Unknown,  # a node that failed half-way may have done it
    "timeout": Unavailable,  # the request did not arrive whole
    "forbidden": Invalid,
    "media_type": Invalid,
    "no_route": Invalid,
    "method": Invalid,
}


class Results(msgspec.Struct, frozen=True):
    results: list[dict[str, Any]]


@lru_cache(PATHS_KEPT)
def queue_path(name: str, rest: str = "") -> str:
    return f"/v1/queues/{check_place(name)}/{rest}" if rest else f"/v1/queues/{check_place(name)}"


def with_query(path: str, **query: str | int) -> str:
    given = {name: value for name, value in query.items() if value != ""}
    return f"{path}?{urlencode(given)}" if given else path


def read(response: Response, kind: type[T]) -> T:
    """An answer as what it should be."""
    try:
        if response.content_type == JSON:
            return msgspec.json.decode(response.body, type=kind)
        return msgspec.msgpack.decode(response.body, type=kind)
    except msgspec.MsgspecError as error:
        raise _odd(error) from error


def decoded(decoder: msgspec.msgpack.Decoder[T], response: Response) -> T:
    try:
        return decoder.decode(response.body)
    except msgspec.MsgspecError as error:
        raise _odd(error) from error


def _odd(error: Exception) -> Unknown:
    """It was answered with success, so it may well have been done."""
    return Unknown(f"the answer cannot be read ({error}): is this a node, and of this version?")


def results_of(response: Response, kind: type[T]) -> list[T | Problem]:
    results = read(response, Results).results
    try:
        return [msgspec.convert(item, Problem) if "error" in item else msgspec.convert(item, kind) for item in results]
    except msgspec.MsgspecError as error:
        raise _odd(error) from error


def error_of(response: Response, place: str) -> CapelliniError:
    """The error that a response tells of."""
    try:
        decode = msgspec.json.decode if response.content_type == JSON else msgspec.msgpack.decode
        problem = decode(response.body, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        shown = response.body[:SHOWN].decode("utf-8", "replace")
        says = f"{place} answered {response.status}, and not as a node does: {shown!r}"
        return _of_status(response.status)(says, retry_after_s=response.retry_after_s)
    if problem.error in _OF_HTTP:
        return _OF_HTTP[problem.error](problem.says, retry_after_s=response.retry_after_s)
    return from_name(problem.error, problem.says, response.retry_after_s)


def _of_status(status: int) -> type[CapelliniError]:
    """What an answer means that is not a node's: of a proxy in between, or of somebody else at that address."""
    if status in (408, 429, 503):
        return Unavailable
    if status == 413:
        return TooLarge
    return Unknown if status >= 500 else Invalid  # a gateway that gave up may have passed it on


def encoded(content: object) -> bytes:
    """A request's body. Raises Invalid for what MessagePack cannot hold."""
    try:
        return msgspec.msgpack.encode(content)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise Invalid(f"this cannot be sent: {error}") from None
