"""Where things are in RocksDB.

    00 00 ...                              of the store itself
      00 00 'c'                            the clock: highest own timestamp, highest timestamp of all (8 bytes each)
      00 00 't' name                       a table: its number, and how it was declared
      00 00 'a' number                     a space apart (the column family named a<number>): the partition prefix
      it holds
      00 00 's' partition prefix           a partition that should be apart and is not: there were too many
    number (2) | partition key | 00        head: what was deleted, as pairs of timestamp and bound
    number (2) | partition key | 01        the static columns
    number (2) | partition key | 02 | key  the rows, in the order of their clustering key

A partition is one run of keys, so it is dropped by one range delete. The rows of a table that is `apart` are in a
column family of their own, under their clustering key alone, and are dropped with it; head and static columns stay
here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec

from capellini.store.cells import RowCodec
from capellini.store.interface import Key, Table
from capellini.store.ordered import KeyCodec
from capellini.store.whole_rows import compiled

CLOCK_KEY: Final = b"\x00\x00c"
TABLE_KEYS: Final = b"\x00\x00t"
APART_KEYS: Final = b"\x00\x00a"
SHARED_KEYS: Final = b"\x00\x00s"
FIRST_TABLE: Final = 1  # table 0 is the store itself
HEAD, STATIC, ROWS, BEYOND = b"\x00", b"\x01", b"\x02", b"\x03"
_MARK: Final = struct.Struct(">qI")

PutWhole = Callable[[Any, Any, bytes, Any, int, int], bool]


class Mark(msgspec.Struct, frozen=True):
    """All cells up to this timestamp were deleted: in the whole partition, or in the rows below `bound`."""

    timestamp_us: int
    bound: bytes | None  # None: the whole partition, static columns too

    def covers(self, key: bytes | None) -> bool:
        """`key` None is the static row."""
        return self.bound is None or (key is not None and key < self.bound)

    def includes(self, other: Mark) -> bool:
        if self.timestamp_us < other.timestamp_us:
            return False
        return self.bound is None or (other.bound is not None and other.bound <= self.bound)


def add_mark(marks: tuple[Mark, ...], new: Mark) -> tuple[Mark, ...]:
    """The marks that say the same with the new one added; few, since later ones usually include earlier ones."""
    if any(mark.includes(new) for mark in marks):
        return marks
    return (*(mark for mark in marks if not new.includes(mark)), new)


def deleted_until(marks: tuple[Mark, ...], key: bytes | None) -> int:
    """Cells of that row with a timestamp up to this one are gone. `key` None is the static row."""
    return max((mark.timestamp_us for mark in marks if mark.covers(key)), default=-(1 << 63))


def pack_marks(marks: tuple[Mark, ...], made_us: int) -> bytes:
    """`made_us`: when, by which the head is once cleared away."""
    parts = [made_us.to_bytes(8, "big", signed=True)]
    for mark in marks:
        bound = mark.bound
        parts.append(_MARK.pack(mark.timestamp_us, 0 if bound is None else len(bound) + 1))
        parts.append(bound or b"")
    return b"".join(parts)


def unpack_marks(data: bytes | None) -> tuple[Mark, ...]:
    if data is None:
        return ()
    marks = []
    at = 8
    while at < len(data):
        timestamp_us, length = _MARK.unpack_from(data, at)
        at += _MARK.size
        bound = data[at : at + length - 1] if length else None
        at += max(0, length - 1)
        marks.append(Mark(timestamp_us, bound))
    return tuple(marks)


def marks_made_us(data: bytes) -> int:
    return int.from_bytes(data[:8], "big", signed=True)


class Plan:
    """A table with its codecs, worked out once."""

    def __init__(self, table: Table, number: int) -> None:
        self.table: Final = table
        self.number: Final = number
        self.start: Final = number.to_bytes(2, "big")
        self.stop: Final = (number + 1).to_bytes(2, "big")
        self.partitions: Final = KeyCodec(table.partition)
        self.keys: Final = KeyCodec(table.clustering)
        self.rows: Final = RowCodec(table.columns, self.keys)
        self.statics: Final = RowCodec(table.statics)
        self.static_names: Final = frozenset(self.statics.names)
        self.conditional_rows: Final = frozenset(
            at for at, name in enumerate(self.rows.names) if name in table.conditional
        )
        self.conditional_statics: Final = frozenset(
            at for at, name in enumerate(self.statics.names) if name in table.conditional
        )
        self.blind: Final = not self.conditional_rows and bool(
            table.columns
        )  # a whole plain row may be written without a look
        self.put_whole: Final = self._compile_put() if self.blind else _puts_nothing

    def _compile_put(self) -> PutWhole:
        """put_whole(rows, put, base, handle, timestamp_us, expiry_us): put every row, and True; else what was put is
        worth nothing."""
        key, key_scope = self.keys.source("k")
        record, record_scope = self.rows.source("c")
        each = f"put(base + {key}, {record}, handle)"
        arguments = "put, base, handle, timestamp_us, expiry_us"
        # A time to live is the batch's: each form of the record gets a function of its own.
        plain, expiring = (
            compiled(
                self.table, arguments, each.replace("HEAD", head), "True", {**key_scope, **record_scope}, packs=True
            )
            for head in ("plain(0, timestamp_us", "expiring(1, timestamp_us, expiry_us")
        )

        def put_whole(rows: Any, put: Any, base: bytes, handle: Any, timestamp_us: int, expiry_us: int) -> bool:
            made = expiring if expiry_us else plain
            return made(rows, put, base, handle, timestamp_us, expiry_us) is True

        return put_whole

    def prefix(self, partition: Key) -> bytes:
        return self.start + self.partitions.encode(partition)


def _puts_nothing(*_: Any) -> bool:
    return False


def declaration(table: Table) -> list[list[list[str]]]:
    """What of a table decides how its rows are laid out."""
    groups = (table.partition, table.clustering, table.columns, table.statics)
    return [[[column.name, column.type.value] for column in group] for group in groups]
