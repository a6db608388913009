"""Reaching a node: where it is, what it answered, and, when it did not, whether a request may have been done."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

import msgspec

from capellini.model.errors import Invalid, Unavailable, Unknown

MSGPACK: Final = "application/msgpack"


class Unreachable(Unavailable):
    """No connection: surely nothing was sent."""


class Closed(Unreachable):
    """This client was closed: nothing was sent, and nothing will be."""


class Lost(Unknown):
    """The connection ended, or time was up, after the request had been sent."""


class Home:
    """The event loop that a client belongs to: that of its first call. In another its connections do not work, and what
    runs in the background has ended."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raises Invalid."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise Invalid("this client belongs to another event loop: connect in each loop, and close it there")


class Place(msgspec.Struct, frozen=True):
    """Where a node listens: a host and port, or a Unix socket."""

    host: str = ""
    port: int = 0
    secure: bool = False
    unix: str = ""

    @classmethod
    def of_url(cls, url: str) -> Place:
        parts = urlsplit(url)
        return cls(parts.hostname or "", parts.port or 0, parts.scheme == "https")

    def __str__(self) -> str:
        return f"unix:{self.unix}" if self.unix else f"http{'s' * self.secure}://{self.host}:{self.port}"


class Response(msgspec.Struct, frozen=True, gc=False):
    status: int
    body: bytes
    content_type: str
    retry_after_s: float | None
