"""What a connection needs from the server that holds it, and the server from its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from capellini.api.exchange import Request, Response
from capellini.api.limits import Limits
from capellini.model.errors import CapelliniError


class Application(Protocol):
    """What a connection needs from the rest of the server."""

    limits: Limits
    now_s: float  # the ticker's time: exact enough for time-outs, and free
    common_head: bytes  # header lines that every response carries

    def admit(self, request: Request, length: int | None) -> Response | None:
        """The head is there. None: go on. Otherwise the answer, and the body does not matter. `length` None: not known
        (chunked)."""

    def most(self, request: Request) -> Coroutine[Any, Any, int] | None:
        """What finds out how large the body may be, where that is less than what any may have."""

    def grow(self, request: Request, size: int) -> Response | None:
        """So many more bytes of a body of unknown length."""

    def hold(self, more: int) -> CapelliniError | None:
        """So many more bytes (fewer, if below zero) are here of what is no request yet. An error: they may not be."""

    def answer(self, request: Request) -> Coroutine[Any, Any, Response]:
        """Never raises but CancelledError."""

    def done(self, request: Request, response: Response | None) -> None:
        """The request is over, answered or (None) given up."""

    def opened(self, connection: Held) -> bool:
        """False: there are too many."""

    def closed(self, connection: Held) -> None: ...


class Held(Protocol):
    """A connection, as the server that holds it sees it."""

    _transport: Any  # asyncio.Transport

    @property
    def ended(self) -> asyncio.Future[None] | None:
        """Done when all that was begun on it is."""

    def tick(self, now_s: float) -> None:
        """Cut off what takes too long."""

    def close_soon(self) -> None:
        """Close when what was begun is answered."""

    def abort(self) -> None: ...
