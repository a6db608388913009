"""What nodes ask each other about log queues, through `Peers` (the same as for timed queues).

    payload = MessagePack [generation, arguments]; operations and their answers:
        log.take     [group, count, most_bytes, visibility_ms or nil]    parcels (LogParcel) of the extents read there
        log.settle   [group, [Settle]]                                   one Settled per item
        log.append   [chunk]                                             Appended; the chunk's producer is bound there
        log.views    [group or nil]                                      Views of the owners there
        log.peek     [group, count]                                      messages (Peeked) of the extents read there
        log.load     []                                                  what the extents open there take (`Load`s)
        log.written  []                                                  how far those are (`Written`)

Whoever carries these between nodes need not look inside; operations that begin with "log." are for `LogKeeper.serve`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from capellini.model.errors import Invalid
from capellini.queues.timed.peers import NoPeers, Peers

PREFIX: Final = "log."
Call = Callable[[str, str, list[Any]], Awaitable[bytes]]  # node, operation, arguments


class Ask(msgspec.Struct, frozen=True, array_like=True):
    generation: int
    arguments: list[Any]


_ASK: Final = msgspec.msgpack.Decoder(Ask)


def ask_of(payload: bytes) -> Ask:
    try:
        return _ASK.decode(payload)
    except msgspec.MsgspecError as error:
        raise Invalid(f"this is no question of another node: {error}") from None


__all__ = ["PREFIX", "Ask", "Call", "NoPeers", "Peers", "ask_of"]
