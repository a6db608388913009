"""One exchange: a request as it was read, and the response that will be written. Values only; no sockets, no routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from capellini.api.router import Route

JSON: Final = b"application/json"
MSGPACK: Final = b"application/msgpack"
OCTETS: Final = b"application/octet-stream"
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
        "params",
        "path",
        "query",
        "refusal",
        "route",
    )

    def __init__(self) -> None:
        self.method = b""
        self.path = b""
        self.query = b""
        self.headers: dict[bytes, bytes] = {}  # names in lower case
        self.body = b""
        self.route: Route | None = None
        self.params: Mapping[str, str] = {}
        self.cost = -1  # bytes the gate holds for it; below 0: not admitted
        self.close = False  # the connection ends with the answer
        self.keep_alive_header = False  # HTTP/1.0 has to be told
        self.refusal: Response | None = None  # decided before the body was read
        self.began_s = 0.0

    def header(self, name: bytes) -> bytes:
        """Empty when it was not sent."""
        return self.headers.get(name, b"")

    @property
    def name(self) -> str:
        """The queue that the path names."""
        return self.params["name"]
