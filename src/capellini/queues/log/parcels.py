"""From blocks to parcels: which messages are for a group, in pieces of chunks as they were put. Pure.

    block   ├── chunk ──┼── chunk ──┼─── chunk ───┤      numbers first … end-1
    wanted        ├─────────────────────┤                a part, whole chunks, a part
    pieces        ├─────┼───────────┼───┤

Without a filter nothing is looked at but the chunks' headers. Messages with the hidden attribute GROUP (dead letters
that were sent back to one group) are for that group alone, and are delivered without it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from capellini.model import chunks
from capellini.model.errors import Invalid
from capellini.queues.log.rows import Block

GROUP: Final = "capellini-group"  # the attribute that names the one group a message is for
_GROUP_BYTES: Final = GROUP.encode()
CODE_BYTES: Final = 16
_ANY_BODY: Final = (1 << 31) - 1  # an offset cannot say more: the queue's own limit is looked at later
SAME_MS: Final = 20  # blocks that were put so close to each other may share a parcel
PARCEL_BYTES: Final = 1024 * 1024  # a parcel ends there: one frame of every transport


def check_unaddressed(attributes: Mapping[str, str] | None) -> None:
    """Of a put: only dead letters on their way back are for one group alone. Raises Invalid."""
    if attributes and GROUP in attributes:
        raise Invalid(f"the attribute {GROUP} is not for puts: a message is for all groups of its queue")


def check_unaddressed_chunk(chunk: bytes, head: chunks.Head) -> None:
    """The same of each of its messages. Raises Invalid."""
    if head.flags & chunks.WITH_ATTRIBUTES and _GROUP_BYTES in chunk:  # hardly ever
        chunks.check(chunk, _ANY_BODY)  # nobody has looked at its offsets yet
        for attributes in chunks.attributes_of(chunk, head):
            check_unaddressed(attributes)


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Messages first .. end-1, as one chunk or several. `data` None: not for this group."""

    first: int
    end: int
    data: bytes | None


class Cutter:
    """Knows the chunks of the block it cut last: whoever takes message by message finds each at once."""

    def __init__(self) -> None:
        self._block: Block | None = None
        self._heads: list[chunks.Head] = []
        self._firsts: list[int] = []

    def _know(self, block: Block) -> None:
        if self._block is block:
            return
        self._heads = list(chunks.heads_of(block.chunks))
        self._firsts = []
        at = block.first
        for head in self._heads:
            self._firsts.append(at)
            at += head.count
        self._block = block

    def pieces(
        self,
        block: Block,
        first: int,
        end: int,
        group: str,
        filter: Mapping[str, Sequence[str]],
        most_bytes: int,
        whole: bool,
        exact: bool = False,
    ) -> Iterator[Piece]:
        """Of the messages first .. end-1, all of them in this block; a piece has about `most_bytes` at most, one
        message at least. No chunk but the first is cut because it ends behind `end`: what is left of it comes next
        time. `whole`: not even the first is. `exact`: all of them are."""
        small = len(block.chunks) <= most_bytes
        if small and first == block.first and end == block.end and not filter and _GROUP_BYTES not in block.chunks:
            yield Piece(first, end, block.chunks)  # nearly always
            return
        self._know(block)
        at = bisect_right(self._firsts, first) - 1
        began = first
        while first < end:
            head, start = self._heads[at], self._firsts[at]
            stop = min(end, start + head.count)
            if stop < start + head.count and not exact and (whole or first > began):
                return
            while first < stop:
                until = stop if head.size <= most_bytes else min(stop, first + _share(head, most_bytes))
                yield from _chosen(block, head, start, first, until, group, filter)
                first = until
            at += 1

    def attributes(self, block: Block, first: int, end: int) -> list[dict[str, str] | None]:
        """Of the messages first .. end-1, all of them in this block."""
        self._know(block)
        found: list[dict[str, str] | None] = []
        at = bisect_right(self._firsts, first) - 1
        while first < end:
            head, start = self._heads[at], self._firsts[at]
            count = min(end, start + head.count) - first
            if head.flags & chunks.WITH_ATTRIBUTES:
                data = chunks.part(block.chunks, head, first - start, count)
                found += chunks.attributes_of(data, chunks.head_of(data))
            else:
                found += [None] * count
            first += count
            at += 1
        return found


class Filling:
    """A parcel that is being filled. Blocks that were put close to each other share it; it tells the first one's
    time."""

    __slots__ = ("data", "end", "first", "put_ms", "size")

    def __init__(self, piece: Piece, put_ms: int) -> None:
        assert piece.data is not None
        self.first, self.end = piece.first, piece.end
        self.put_ms = put_ms
        self.data = [piece.data]
        self.size = len(piece.data)

    def takes(self, piece: Piece, put_ms: int) -> bool:
        assert piece.data is not None
        return (
            piece.first == self.end and put_ms - self.put_ms <= SAME_MS and self.size + len(piece.data) <= PARCEL_BYTES
        )

    def add(self, piece: Piece) -> None:
        assert piece.data is not None
        self.end = piece.end
        self.data.append(piece.data)
        self.size += len(piece.data)


def first_of(piece: Piece, count: int) -> Piece:
    """So many of them at most: a group that filters picks more than it was asked for, and its filter may have been
    taken back since."""
    if piece.end - piece.first <= count or piece.data is None:
        return piece
    parts: list[bytes] = []
    left = count
    for head in chunks.heads_of(piece.data):
        parts.append(chunks.part(piece.data, head, 0, min(left, head.count)))
        left -= head.count
        if left <= 0:
            break
    return Piece(piece.first, piece.first + count, b"".join(parts))


def _share(head: chunks.Head, most_bytes: int) -> int:
    """How many messages of a chunk have about so many bytes, if they are alike."""
    return max(1, head.count * most_bytes // head.size)


def _chosen(
    block: Block, head: chunks.Head, start: int, first: int, end: int, group: str, filter: Mapping[str, Sequence[str]]
) -> Iterator[Piece]:
    """Of the messages first .. end-1 of a chunk whose first is `start`."""
    data = chunks.part(block.chunks, head, first - start, end - first)
    addressed = bool(head.flags & chunks.WITH_ATTRIBUTES) and _GROUP_BYTES in data
    if not filter and not addressed:
        yield Piece(first, end, data)
        return
    of = chunks.head_of(data)
    attributes = chunks.attributes_of(data, of)
    good = [is_for(one, group, filter) for one in attributes]
    for low, high in _runs(good):
        if not good[low]:
            yield Piece(first + low, first + high, None)
        elif addressed:
            shown = [_shown(one) for one in attributes[low:high]]
            bodies = chunks.bodies_of(data, of)[low:high]
            yield Piece(first + low, first + high, chunks.pack(bodies, shown, head.producer, head.sequence))
        else:
            yield Piece(first + low, first + high, chunks.part(data, of, low, high - low))


def is_for(attributes: Mapping[str, str] | None, group: str, filter: Mapping[str, Sequence[str]]) -> bool:
    found = attributes or {}
    if found.get(GROUP, group) != group:
        return False
    return all(found.get(name) in values for name, values in filter.items())


def _shown(attributes: dict[str, str] | None) -> dict[str, str] | None:
    if not attributes or GROUP not in attributes:
        return attributes
    return {name: value for name, value in attributes.items() if name != GROUP} or None


def _runs(values: Sequence[bool]) -> Iterator[tuple[int, int]]:
    low = 0
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[low]:
            yield low, at
            low = at


def code_of(secret: bytes, extent: str, reader: str, epoch: int, delivery: int, first: int, count: int) -> bytes:
    """Proves that this delivery was made by a node that knows the queue's secret."""
    said = f"{extent}\0{reader}".encode() + struct.pack(">qqqq", epoch, delivery, first, count)
    return blake2b(said, key=secret, digest_size=CODE_BYTES).digest()
