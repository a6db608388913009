"""Capellini: a message queue on the Cassandra you already have, or on nothing but a folder.

    import capellini

    with capellini.connect("rocks:data", codec="json") as client:
        client.create_queue("jobs")
        client.put("jobs", {"say": "hello"})
        for message in client.get("jobs", count=10, wait_s=5):
            print(message.body)
            message.ack()

Names are loaded at their first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capellini.client.aio import AsyncClient
    from capellini.client.connecting import connect, connect_async
    from capellini.client.consuming import Failed, StopConsuming
    from capellini.client.messages import AsyncMessage, Message
    from capellini.client.sync import Client
    from capellini.model.errors import (
        CannotOpen,
        CapelliniError,
        Conflict,
        Full,
        InUse,
        Invalid,
        NotFound,
        Overloaded,
        Paused,
        Stale,
        StoreError,
        TooLarge,
        Unavailable,
        Unknown,
        WrongKind,
    )
    from capellini.model.message import Delivery, NewMessage
    from capellini.model.service import Done, Problem, Put, QueueInfo, Statistics

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "connect", "connect_async", "AsyncClient", "AsyncMessage", "Client", "Message", "NewMessage", "Delivery",
    "Put", "Done", "Problem", "QueueInfo", "Statistics", "Failed", "StopConsuming",
    "CapelliniError", "Invalid", "TooLarge", "WrongKind", "NotFound", "Conflict", "Stale", "Paused", "CannotOpen",
    "InUse", "StoreError", "Unavailable", "Overloaded", "Full", "Unknown",
]  # fmt: skip

_HOME = {
    "connect": "client.connecting",
    "connect_async": "client.connecting",
    "AsyncClient": "client.aio",
    "AsyncMessage": "client.messages",
    "Client": "client.sync",
    "Failed": "client.consuming",
    "StopConsuming": "client.consuming",
    "Message": "client.messages",
    "NewMessage": "model.message",
    "Delivery": "model.message",
    "Put": "model.service",
    "Done": "model.service",
    "Problem": "model.service",
    "QueueInfo": "model.service",
    "Statistics": "model.service",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'model.errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
