"""Blocks: the messages of one group commit that fell into one bucket, stored as one row and shipped as they are stored.

    stored value:  put_at_ms 8 B | flags 1 B | MessagePack array of entries [body, attributes or nil, delay_ms, origin]

The server makes no object per message on the way through: arrays are joined and cut as bytes, and the array of one
call stays as it came.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

import msgspec

from capellini.model.errors import Invalid, TooLarge
from capellini.model.message import MAX_BATCH, MAX_DELAY_S, DelayMs, Entry, NewEntry, attributes_problem

_HEAD: Final = struct.Struct(">QB")
DELAYED: Final = 1  # flag: some entry has a delay
MOVED: Final = 2  # flag: some entry has an origin

_NEW: Final = msgspec.msgpack.Decoder(list[NewEntry])
LARGE_BYTES: Final = 32_768  # entries of so many bytes are looked at where they lie; copies of few bytes cost less


class _LargeEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A `NewEntry` whose body is not copied."""

    body: memoryview
    attributes: dict[str, str] | None = None
    delay_ms: DelayMs = 0
    origin: None = None


_LARGE: Final = msgspec.msgpack.Decoder(list[_LargeEntry])
_ENTRIES: Final = msgspec.msgpack.Decoder(list[Entry])
_FORM: Final = "[body, attributes or nil, delay_ms]"
_RAW: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
CUT_BLOCKS: Final = 8  # that are handed out in parts at a time, and of which is known where their messages begin


class Packed(msgspec.Struct, frozen=True):
    """Entries on their way in: a MessagePack array, its head as short as can be."""

    count: int
    entries: bytes
    flags: int = 0

    @property
    def size(self) -> int:
        """Bytes of the elements alone: what they add where they are joined."""
        return len(self.entries) - _head_bytes(self.count)


class Block(msgspec.Struct, frozen=True):
    """Messages first .. first+count-1 of a queue, all in one bucket."""

    first: int
    count: int
    put_at_ms: int
    flags: int
    entries: bytes  # a MessagePack array

    @property
    def end(self) -> int:
        return self.first + self.count

    def bytes_of(self, count: int) -> int:
        """About how many bytes so many of its messages take."""
        return len(self.entries) * count // self.count

    def read(self) -> list[Entry]:
        return _ENTRIES.decode(self.entries)

    def part(self, first: int, end: int) -> bytes:
        """The entries of ids first .. end-1 as a MessagePack array."""
        if first == self.first and end == self.end:
            return self.entries
        starts = _kept_starts(self.entries)
        return _array(end - first, memoryview(self.entries)[starts[first - self.first] : starts[end - self.first]])

    def dues_ms(self) -> list[int] | None:
        """When each message can first be had; None when that is at once for all. The time of the put was cut to
        milliseconds: one more, or it would be early by what was cut off."""
        if not self.flags & DELAYED:
            return None
        return [self.put_at_ms + entry.delay_ms + 1 if entry.delay_ms else 0 for entry in self.read()]


def _starts(entries: bytes) -> array[int]:
    """Where each of them begins, and behind all where the last one ends."""
    sizes = [len(memoryview(raw)) for raw in _RAW.decode(entries)]
    return array("Q", accumulate(sizes, initial=len(entries) - sum(sizes)))


_kept_starts: Final = lru_cache(maxsize=CUT_BLOCKS)(_starts)  # a block that is handed out in parts is asked for each


def array_head(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 65_536 else b"\xdd" + count.to_bytes(4, "big")


def _array(count: int, *elements: memoryview) -> bytes:
    return b"".join((array_head(count), *elements))


def _head_bytes(count: int) -> int:
    return 1 if count < 16 else 3 if count < 65_536 else 5


def pack(entries: Sequence[Entry | NewEntry]) -> Packed:
    """From entries that were checked before."""
    flags = 0
    for entry in entries:
        if entry.delay_ms:
            flags |= DELAYED
        if isinstance(entry, Entry) and entry.origin is not None:
            flags |= MOVED
    return Packed(len(entries), msgspec.msgpack.encode(entries), flags)


def _wrong(data: bytes) -> str | None:
    """What is wrong with entries that were refused, as whoever put them would say it. None: they are none."""
    try:
        delays_s = [entry.delay_ms / 1000 for entry in _ENTRIES.decode(data)]
    except msgspec.MsgspecError:
        return None
    outside = [delay_s for delay_s in delays_s if not 0 <= delay_s <= MAX_DELAY_S]
    return f"delay_s goes from 0 to {MAX_DELAY_S:.15g}, not {outside[0]!r}" if outside else None


def check(data: bytes, body_limit: int) -> Packed:
    """Entries as a caller sent them. Raises Invalid or TooLarge: nothing of them is put then."""
    try:
        entries = (_NEW if len(data) < LARGE_BYTES else _LARGE).decode(data)
    except msgspec.MsgspecError as error:
        raise Invalid(_wrong(data) or f"this is not a MessagePack array of {_FORM}: {error}") from None
    count = len(entries)
    if not 1 <= count <= MAX_BATCH:
        raise Invalid(f"a batch has 1 to {MAX_BATCH} messages, not {count}")
    if len(data) > body_limit and max([len(entry.body) for entry in entries]) > body_limit:
        raise TooLarge(f"a body in this batch is larger than the {body_limit} bytes that this queue takes")
    flags = 0
    for entry in entries:
        if entry.attributes and (problem := attributes_problem(entry.attributes)):
            raise Invalid(problem)
        if entry.delay_ms:
            flags |= DELAYED
    if data.startswith(array_head(count)):
        return Packed(count, data, flags)
    return Packed(count, msgspec.msgpack.encode(entries), flags)  # a longer form of the head than needed


def joined(parts: Sequence[Packed]) -> Packed:
    if len(parts) == 1:
        return parts[0]
    flags = 0
    for part in parts:
        flags |= part.flags
    count = sum([part.count for part in parts])
    elements = [memoryview(part.entries)[_head_bytes(part.count) :] for part in parts]
    return Packed(count, _array(count, *elements), flags)


def cut(packed: Packed, at: int) -> tuple[Packed, Packed]:
    """The first `at` entries, and the others."""
    starts, view = _starts(packed.entries), memoryview(packed.entries)
    rest = packed.count - at
    return (
        Packed(at, _array(at, view[starts[0] : starts[at]]), packed.flags),
        Packed(rest, _array(rest, view[starts[at] :]), packed.flags),
    )


def parts_of(packed: Packed, most_bytes: int) -> list[Packed]:
    """The entries in parts of up to so many bytes; one that is larger by itself is a part of its own."""
    if packed.size <= most_bytes or packed.count == 1:
        return [packed]
    parts: list[Packed] = []
    starts, view = _starts(packed.entries), memoryview(packed.entries)
    first = 0
    for at in range(1, packed.count + 1):
        if at == packed.count or starts[at + 1] - starts[first] > most_bytes:
            parts.append(Packed(at - first, _array(at - first, view[starts[first] : starts[at]]), packed.flags))
            first = at
    return parts


def tail(packed: Packed) -> Packed:
    """Nothing, after all of it."""
    return Packed(0, array_head(0), packed.flags)


def block_of(first: int, packed: Packed, put_at_ms: int) -> Block:
    return Block(first, packed.count, put_at_ms, packed.flags, packed.entries)


def encode(block: Block) -> bytes:
    return _HEAD.pack(block.put_at_ms, block.flags) + block.entries


def decode(first: int, count: int, value: bytes) -> Block:
    put_at_ms, flags = _HEAD.unpack_from(value)
    return Block(first, count, put_at_ms, flags, value[_HEAD.size :])
