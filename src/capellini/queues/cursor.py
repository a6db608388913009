"""The cursor: the offset below which all is finished, plus what is finished above it. Pure.

    offsets   0 1 2 3 4 5 6 7 8 9 …
              ■ ■ ■ ■ □ ■ ■ □ ■ □        next = 4; above it 5, 6 and 8 are finished

What lies above is kept in chunks of bits, so that a million acks in any order take some 250 KB, in memory and encoded
alike; a chunk that is sparse or has few runs is encoded as runs. What is new may be a cursor of its own, which is added
to the older one with `merge`, so that only that needs to be written.

    encoded:  next │ per chunk: distance from the one before │ kind: bits (512 B) or runs │ …       numbers as varints
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

CHUNK: Final = 4_096  # offsets: 512 bytes of bits, where runs of a few bytes each begin to be worse
_BITS: Final = 0
_FULL: Final = (1 << CHUNK) - 1


class Cursor:
    """Mutable, owned by one holder."""

    def __init__(self, next: int = 0) -> None:
        self.next = next  # all below is finished
        self._chunks: dict[int, int] = {}

    def __contains__(self, offset: int) -> bool:
        return offset < self.next or bool(self._chunks.get(offset // CHUNK, 0) >> offset % CHUNK & 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cursor) and (self.next, self._chunks) == (other.next, other._chunks)

    __hash__ = None  # type: ignore[assignment]

    def add(self, first: int, count: int = 1) -> None:
        """These are finished. Again is fine."""
        at, end = max(first, self.next), first + count
        while at < end:
            number, start = divmod(at, CHUNK)
            length = min(end - at, CHUNK - start)
            self._chunks[number] = self._chunks.get(number, 0) | (1 << length) - 1 << start
            at += length
        if first <= self.next < end:
            self._advance()

    def _advance(self) -> None:
        while (bits := self._chunks.get(self.next // CHUNK)) is not None:
            rest = bits >> self.next % CHUNK
            run = (~rest & rest + 1).bit_length() - 1  # how many in a row from here
            self.next += run
            if self.next % CHUNK or not run:
                return
            del self._chunks[(self.next - 1) // CHUNK]

    @property
    def above(self) -> int:
        """How many are finished above `next`."""
        total = sum(bits.bit_count() for bits in self._chunks.values())
        first = self._chunks.get(self.next // CHUNK, 0)
        return total - (first & (1 << self.next % CHUNK) - 1).bit_count()

    def ranges(self) -> Iterator[tuple[int, int]]:
        """What is finished above `next`, as (first, count), in order; neighbours of two chunks stay apart."""
        for number in sorted(self._chunks):
            for start, length in _runs(self._chunks[number]):
                first = max(number * CHUNK + start, self.next)
                end = number * CHUNK + start + length
                if end > first:
                    yield first, end - first

    def encode(self) -> bytes:
        out = bytearray()
        _put(out, self.next)
        last = self.next // CHUNK
        for number in sorted(self._chunks):
            bits = self._chunks[number]
            _put(out, number - last)
            last = number
            runs = bytearray()
            at = 0
            pairs = list(_runs(bits))
            for start, length in pairs:
                _put(runs, start - at)
                _put(runs, length)
                at = start + length
            if len(runs) < CHUNK // 8:
                _put(out, len(pairs))
                out += runs
            else:
                _put(out, _BITS)
                out += bits.to_bytes(CHUNK // 8, "little")
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> Cursor:
        """Raises ValueError for what is no encoded cursor."""
        view = memoryview(data)
        next, at = _get(view, 0)
        cursor = cls(next)
        number = next // CHUNK
        while at < len(view):
            distance, at = _get(view, at)
            number += distance
            count, at = _get(view, at)
            if count == _BITS:
                if at + CHUNK // 8 > len(view):
                    raise ValueError("an encoded cursor was cut")
                cursor._chunks[number] = int.from_bytes(view[at : at + CHUNK // 8], "little")
                at += CHUNK // 8
                continue
            bits = place = 0
            for _ in range(count):
                gap, at = _get(view, at)
                length, at = _get(view, at)
                bits |= (1 << length) - 1 << place + gap
                place += gap + length
            if bits > _FULL:
                raise ValueError("an encoded cursor has a run beyond its chunk")
            cursor._chunks[number] = bits
        return cursor

    def merge(self, change: bytes) -> None:
        """Add what another cursor has encoded."""
        other = Cursor.decode(change)
        if other.next > self.next:
            self.add(self.next, other.next - self.next)
        for first, count in other.ranges():
            self.add(first, count)


def _runs(bits: int) -> Iterator[tuple[int, int]]:
    at = 0
    while bits:
        gap = (bits & -bits).bit_length() - 1
        bits >>= gap
        length = (~bits & bits + 1).bit_length() - 1
        yield at + gap, length
        bits >>= length
        at += gap + length


def _put(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _get(view: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(view):
            raise ValueError("an encoded number was cut")
        byte = view[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


put_number, get_number = _put, _get  # what else is stored compactly uses the same form
