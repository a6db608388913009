"""How far owners are, for people and for lags."""

from __future__ import annotations

import msgspec


class View(msgspec.Struct, frozen=True, array_like=True):
    """How far an owner is, for people and for lags."""

    extent: str
    reader: str
    epoch: int
    next: int  # all below is finished
    out: int  # handed out up to here
    ready: int
    in_flight: int
    waiting: int
    oldest_ms: int | None
    says: str = ""
