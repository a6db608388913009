"""One exchange: a request as it was read, and the response that will be written. Values only; no sockets, no routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capellini.model.producers import HEADER, MOST_CHARS

if TYPE_CHECKING:
    from capellini.api.router import Route

JSON: Final = b"application/json"
MSGPACK: Final = b"application/msgpack"
OCTETS: Final = b"application/octet-stream"
_PRODUCER: Final = HEADER.encode()
NO_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = ()


class Response(msgspec.Struct, frozen=True, gc=False):
    status: int = 200
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = NO_HEADERS


class Request:
    """Filled while it arrives: head first, then the body; `route` and `params` come from the router, `cost` from the
    gate."""

    __slots__ = (
        "began_s",
        "body",
        "close",
        "cost",
        "headers",
        "keep_alive_header",
        "method",
        "most",
        "params",
        "path",
        "peer",
        "query",
        "refusal",
        "route",
        "upgraded",
    )

    def __init__(self) -> None:
        self.method = b""
        self.path = b""
        self.query = b""
        self.peer = ""  # the address it came from; empty for a Unix socket
        self.headers: dict[bytes, bytes] = {}  # names in lower case
        self.body = b""
        self.route: Route | None = None
        self.params: Mapping[str, str] = {}
        self.cost = -1  # bytes the gate holds for it; below 0: not admitted
        self.close = False  # the connection ends with the answer
        self.upgraded: Callable[[Any, Any], Any] | None = None  # with status 101: what the connection becomes
        self.keep_alive_header = False  # HTTP/1.0 has to be told
        self.refusal: Response | None = None  # decided before the body was read
        self.most: int | None = None  # bytes of its body, where that is less than what any may have
        self.began_s = 0.0

    def header(self, name: bytes) -> bytes:
        """Empty when it was not sent."""
        return self.headers.get(name, b"")

    @property
    def producer(self) -> str:
        """Who asks: a client by its own id, or whoever is at that address."""
        named = self.headers.get(_PRODUCER)
        return named[:MOST_CHARS].decode("latin-1") if named else self.peer

    @property
    def name(self) -> str:
        """The queue that the path names."""
        return self.params["name"]
