"""Who puts: said by whoever takes a call in, read by whoever counts distinct producers.

A client names itself in a header of each request, by an id it makes when it is opened; for others it is the address
they ask from. It travels beside the call and not in it: no promise depends on it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

HEADER: Final = "capellini-producer"
MOST_CHARS: Final = 100  # of an id; what is beyond is cut off
PRODUCER: Final[ContextVar[str]] = ContextVar("producer", default="")  # empty: the program that the service runs in
