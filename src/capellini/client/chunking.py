"""Chunks on their way from a producer: pieces that are put together, and whoever waits for them.

    put, put_many ──▶ pieces: bodies of one caller, as many as fit a chunk ──▶ chunks: pieces of any callers

A piece is what is confirmed or refused as one; a chunk is what is sent. Nothing here is done per message that numpy or
one pass of the interpreter over a list cannot do.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from capellini.client.lanes import checked
from capellini.model.chunks import MAX_CHUNK_BYTES, MAX_CHUNK_MESSAGES, pack
from capellini.model.errors import CapelliniError, Invalid, TooLarge, Unknown
from capellini.model.log import Appended
from capellini.model.message import MAX_ATTRIBUTE_BYTES

CHUNK_BYTES: Final = 262_144  # of one chunk, about: large enough that what is around it does not count
CHUNK_MESSAGES: Final = 4_096
BODY_MOST: Final = 4_194_304  # of any queue, see model.options
AROUND: Final = 8  # bytes that a message costs in a chunk beside its body and attributes: its offsets
Attributes = Mapping[str, str] | None


class Piece:
    """Bodies that are put together, and who waits for them. `size`: with what is around them."""

    __slots__ = ("attributes", "bodies", "done", "size")

    def __init__(self, bodies: Sequence[bytes], attributes: dict[str, str] | None, size: int) -> None:
        self.bodies, self.attributes, self.size = bodies, attributes, size
        self.done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()


class Chunk:
    __slots__ = ("alone", "appended", "error", "flying", "lost", "pieces", "sequence", "size")

    def __init__(self, pieces: list[Piece], sequence: int, alone: bool = False, lost: bool = False) -> None:
        self.pieces, self.sequence = pieces, sequence
        self.size = sum([piece.size for piece in pieces])
        self.flying: asyncio.Future[Appended] | None = None
        self.appended: Appended | None = None
        self.error: CapelliniError | None = None
        self.alone = alone  # it was refused as wrong among others
        self.lost = lost  # an attempt may have been done

    def packed(self, producer: bytes) -> bytes:
        if len(self.pieces) == 1:
            bodies = self.pieces[0].bodies
        else:
            bodies = [body for piece in self.pieces for body in piece.bodies]
        attributes = None
        if any(piece.attributes for piece in self.pieces):
            attributes = [piece.attributes for piece in self.pieces for _ in piece.bodies]
        return pack(bodies, attributes, producer, self.sequence)

    def confirmed(self, appended: Appended) -> None:
        first = appended.first
        for piece in self.pieces:
            count = len(piece.bodies)
            if not piece.done.done():
                piece.done.set_result(Appended(appended.extent, first, count, appended.duplicate))
            first += count if first >= 0 else 0  # below 0: it was there before, and where is not known any more

    def failed(self, error: CapelliniError) -> None:
        if self.lost and not isinstance(error, Unknown):
            error = Unknown(f"an earlier attempt may have been done; the last one failed: {error.says}")
        for piece in self.pieces:
            if not piece.done.done():
                piece.done.set_exception(error.again())
                piece.done.exception()  # who left does not hear of it: nothing to warn of


def pieces_of(bodies: Sequence[bytes], attributes: Attributes) -> list[Piece]:
    """Cut so that each fits a chunk. Raises TooLarge or Invalid: before anything is sent."""
    if not bodies:
        raise Invalid("there is nothing to put")
    given = checked(attributes)
    around = AROUND + (len(msgspec.msgpack.encode(given)) if given else 0)
    sizes = list(map(len, bodies))
    if (largest := max(sizes)) > BODY_MOST:
        raise TooLarge(f"a body has {largest} bytes; no queue takes more than {BODY_MOST}")
    total = sum(sizes) + around * len(bodies)
    if total <= CHUNK_BYTES and len(bodies) <= CHUNK_MESSAGES:
        return [Piece(list(bodies), given, total)]
    ends = list(accumulate([size + around for size in sizes], initial=0))
    pieces: list[Piece] = []
    start = 0
    while start < len(bodies):
        end = bisect_right(ends, ends[start] + CHUNK_BYTES) - 1  # the last that fits
        end = min(max(end, start + 1), start + CHUNK_MESSAGES)
        pieces.append(Piece(bodies[start:end], given, ends[end] - ends[start]))
        start = end
    return pieces


assert CHUNK_MESSAGES <= MAX_CHUNK_MESSAGES
assert BODY_MOST + MAX_ATTRIBUTE_BYTES + 1_024 < MAX_CHUNK_BYTES  # the largest message fits
