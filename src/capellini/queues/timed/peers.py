"""How a node reaches the holders of shards at other nodes, and what is said between them.

    payload = MessagePack [generation, shard, items]; the answer depends on the operation:
        ack, nack, extend, cancel, move, wake, halt      one Answer per item
        take (shard -1; items [count, visibility_ms])    deliveries, their `visible_at` to be set by who asked
        view                                             a ShardView
        count                                            a Counted
        list (items [from_ms, to_ms, count, seen])       a Listed; `seen`: the place of the last one seen, or empty

Whoever carries these between nodes need not look inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from capellini.model.errors import Unavailable


class Peers(ABC):
    """How this node reaches the holders at other nodes."""

    @abstractmethod
    async def call(self, node: str, queue: str, operation: str, payload: bytes) -> bytes:
        """What `TimedKeeper.serve(queue, operation, payload)` of that node answers. Errors that it raises are raised
        here as they were (by name). Raises Unavailable when it surely was not done (no such node, connection
        refused), Unknown when the answer was lost. Must end within a few seconds: no operation waits for messages."""


class NoPeers(Peers):
    """A node that is alone."""

    async def call(self, node: str, queue: str, operation: str, payload: bytes) -> bytes:
        raise Unavailable(f"node {node} cannot be reached from here")


class Payload(msgspec.Struct, frozen=True, array_like=True):
    generation: int
    shard: int
    items: list[Any]
