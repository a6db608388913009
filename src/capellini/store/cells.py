"""Rows as bytes, with a timestamp on every cell.

A row is one record of one of these forms. Integers are big-endian.

    whole      00 | timestamp µs (8)                 | columns          all columns have a value, written together
    expiring   01 | timestamp µs (8) | expiry µs (8) | columns          the same with a time to live
    cells      02 | { column (1), timestamp (8), rank (1), expiry (8), length (4), value } ...

`columns` are first those of fixed size and the lengths of the others but the last, then the others' bytes. Nearly
all rows are written whole, in one piece: for those there is one timestamp and no lookup. The third form holds what
was written in pieces, and cells that were deleted.

A cell is a tuple (timestamp, rank, expiry, bytes). The greater tuple wins, which is the whole rule of
last-write-wins: the later timestamp; of equal ones a tombstone (rank 2) over a value that expires (1) over one that
does not (0), as in Cassandra; then the later expiry; then the larger value, compared as bytes. A tombstone's expiry
is the time of the deletion, by which it is once cleared away.

The encoder, decoder and scanner of a table are written out as Python source for its columns and compiled once, as
dataclasses do: a loop over column objects would take several times as long as RocksDB itself.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final
from uuid import UUID

from capellini.model.errors import Invalid, TooLarge
from capellini.store.interface import MAX_VALUE_BYTES, Column, Row, Type, Value, Values
from capellini.store.ordered import KeyCodec

Cell = tuple[int, int, int, bytes]  # timestamp_us, rank, expiry_us, value
Cells = dict[int, Cell]  # by the column's position
Scanner = Callable[[Iterable[tuple[bytes, bytes]], int, int, int], tuple[list[Row], bool]]

RUN_ROWS: Final = 256  # that a scan takes at once: few enough to stay in the processor's cache
JOINED_BYTES: Final = 1_024  # a record's most to be unpacked with its whole run: larger ones take longer to join
UNPACKERS_KEPT: Final = 256  # sizes of records that came in whole runs
PLAIN, EXPIRING, TOMBSTONE = 0, 1, 2
WHOLE, WHOLE_EXPIRING, IN_CELLS = 0, 1, 2
_CELL: Final = struct.Struct(">BqBqI")
_TIMES: Final = struct.Struct(">qq")
_FIXED: Final = {Type.INT: "q", Type.DOUBLE: "d", Type.BOOL: "?", Type.TIMEUUID: "16s"}
_PYTHON: Final = {
    Type.TEXT: str,
    Type.BLOB: bytes,
    Type.INT: int,
    Type.DOUBLE: float,
    Type.BOOL: bool,
    Type.TIMEUUID: UUID,
}


_PACKED: Final[dict[Type, Callable[[Any], bytes] | None]] = {  # of simple ones; None: as it is
    Type.TEXT: str.encode,
    Type.BLOB: None,
    Type.INT: struct.Struct(">q").pack,
    Type.BOOL: struct.Struct(">?").pack,
}
_SIMPLE: Final = (Type.TEXT, Type.BLOB, Type.INT, Type.BOOL)  # a value of the right Python type is a good one


class RowCodec:
    """Encodes the columns (or the static columns) of one table."""

    def __init__(self, columns: tuple[Column, ...], scanned_with: KeyCodec | None = None) -> None:
        self.columns: Final = columns
        self.names: Final = tuple(column.name for column in columns)
        self._keys = scanned_with or KeyCodec(())
        self._at: Final = {name: at for at, name in enumerate(self.names)}
        self._fixed = [at for at, column in enumerate(columns) if column.type in _FIXED]
        self._loose = [at for at, column in enumerate(columns) if column.type not in _FIXED]
        lengths = "I" * max(0, len(self._loose) - 1)
        body = "".join(_FIXED[columns[at].type] for at in self._fixed) + lengths
        self._body = struct.Struct(">" + body)
        self._plain_head = struct.Struct(">Bq" + body)
        self._expiring_head = struct.Struct(">Bqq" + body)
        self._scanners: dict[tuple[str, ...] | None, Scanner] = {}
        self._wholes: dict[tuple[str, ...] | None, Callable[[bytes, int], dict[str, Value]]] = {}
        self.whole: Final = self._compile_encoder() if columns else _never_whole
        self.simple: Final = frozenset(column.name for column in columns if column.type in _SIMPLE)
        self._parts = [
            (at, column.name, _PYTHON[column.type], _PACKED[column.type])
            for at, column in enumerate(columns)
            if column.type in _SIMPLE
        ]
        self._pieces = self._compile_decoder()

    # ---- to bytes

    def cells(self, values: Values, timestamp_us: int, expiry_us: int, now_us: int) -> Cells:
        """The cells that writing these values makes. Raises Invalid."""
        rank = EXPIRING if expiry_us else PLAIN
        made: Cells = {}
        for name, value in values.items():
            at = self._at.get(name)
            if at is None:
                raise Invalid(f"there is no column {name!r}")
            if value is None:
                made[at] = (timestamp_us, TOMBSTONE, now_us, b"")
            else:
                made[at] = (timestamp_us, rank, expiry_us, encode_value(self.columns[at], value))
        return made

    def record(self, cells: Cells) -> bytes:
        """The record that holds these cells (at least one)."""
        first = next(iter(cells.values()))
        stamp = first[:3]
        if len(cells) == len(self.columns) and first[1] != TOMBSTONE and all(c[:3] == stamp for c in cells.values()):
            return self._whole_of(cells, first)
        parts = [b"\x02"]
        for at, (timestamp_us, rank, expiry_us, value) in sorted(cells.items()):
            parts.append(_CELL.pack(at, timestamp_us, rank, expiry_us, len(value)))
            parts.append(value)
        return b"".join(parts)

    def anew(self, values: Values, timestamp_us: int) -> bytes | None:
        """The record of a row that has these values, written together, and no others. None: they are wrong, or not so
        simple."""
        if not values.keys() <= self.simple:
            return None
        if len(values) == len(self.columns):
            return self.whole(values, timestamp_us, 0)
        parts = [b"\x02"]
        try:
            for at, name, python, packed in self._parts:
                if name not in values:
                    continue
                value = values[name]
                if type(value) is not python:
                    return None
                data: bytes = packed(value) if packed is not None else value  # type: ignore[assignment]
                if len(data) > MAX_VALUE_BYTES:
                    return None
                parts.append(_CELL.pack(at, timestamp_us, PLAIN, 0, len(data)))
                parts.append(data)
        except (UnicodeEncodeError, struct.error):
            return None
        return b"".join(parts)

    def lasts(self, record: bytes) -> bool:
        """Will it be the same later: does nothing in it expire, is nothing in it deleted?"""
        if record[0] == IN_CELLS:
            return all(cell[1] == PLAIN for cell in _parse_cells(record).values())
        return record[0] == WHOLE

    def _whole_of(self, cells: Cells, first: Cell) -> bytes:
        head = (
            b"\x01" + _TIMES.pack(first[0], first[2])
            if first[1] == EXPIRING
            else b"\x00" + _TIMES.pack(first[0], 0)[:8]
        )
        fixed = b"".join(cells[at][3] for at in self._fixed)
        lengths = b"".join(len(cells[at][3]).to_bytes(4, "big") for at in self._loose[:-1])
        return head + fixed + lengths + b"".join(cells[at][3] for at in self._loose)

    # ---- from bytes

    def parse(self, record: bytes) -> Cells:
        """All cells of a record, the dead ones too."""
        form = record[0]
        if form == IN_CELLS:
            return _parse_cells(record)
        timestamp_us, expiry_us = (
            _TIMES.unpack_from(record, 1) if form else (int.from_bytes(record[1:9], "big", signed=True), 0)
        )
        rank = EXPIRING if form else PLAIN
        return {
            at: (timestamp_us, rank, expiry_us, data) for at, data in enumerate(self._pieces(record, 17 if form else 9))
        }

    def live(self, record: bytes, now_us: int, wanted: tuple[str, ...] | None = None) -> dict[str, Value] | None:
        """The values that can be seen now; None if the row does not exist."""
        form = record[0]
        if form == WHOLE:
            return self.values_of_whole(wanted)(record, 9)
        if form == WHOLE_EXPIRING:
            return self.values_of_whole(wanted)(record, 17) if _TIMES.unpack_from(record, 1)[1] > now_us else None
        found: dict[str, Value] = {}
        exists = False
        for at, cell in _parse_cells(record).items():
            if is_live(cell, now_us):
                exists = True
                column = self.columns[at]
                if wanted is None or column.name in wanted:
                    found[column.name] = decode_value(column.type, cell[3])
        return found if exists else None

    # ---- compiled per table

    def source(self, name: str) -> tuple[str, dict[str, Any]]:
        """Python source of the record of a whole row whose values are called name0, name1, ... and were found good,
        with what it uses. It begins with HEAD: to be replaced by a packer's name and its first arguments."""
        texts = [at for at in self._loose if self.columns[at].type is Type.TEXT]
        last = self._loose[-1] if self._loose else None
        # A text in the last place is encoded where it is used; the length of another is needed first.
        found = {at: f"{name}{at}" for at in range(len(self.columns))}
        early = {at: f"(_{name}{at} := {name}{at}.encode())" for at in texts if at != last}
        late = {at: f"_{name}{at}" for at in early}
        if last in texts:
            late[last] = f"{name}{last}.encode()"
        uuids = {at: f"{name}{at}.bytes" for at in self._fixed if self.columns[at].type is Type.TIMEUUID}
        body = [{**found, **uuids}[at] for at in self._fixed]
        body += [f"len({ {**found, **early}[at] })" for at in self._loose[:-1]]
        tail = "".join(f" + { {**found, **late}[at] }" for at in self._loose)
        packers = {"plain": self._plain_head.pack, "expiring": self._expiring_head.pack}
        return f"{', '.join(['HEAD', *body])}){tail}", packers

    def _compile_encoder(self) -> Callable[[Values, int, int], bytes | None]:
        """whole(values, timestamp_us, expiry_us): the record; None when the values are no whole row, or wrong."""
        record, packers = self.source("c")
        takes = "\n".join(f"        c{at} = values[{name!r}]" for at, name in enumerate(self.names))
        checks = " or ".join(f"type(c{at}) is not t{at}" for at in range(len(self.names)))
        source = f"""
def whole(values, timestamp_us, expiry_us):
    try:
{takes}
        if len(values) != {len(self.names)} or {checks}:
            return None
        if expiry_us:
            made = {record.replace("HEAD", "expiring(1, timestamp_us, expiry_us")}
        else:
            made = {record.replace("HEAD", "plain(0, timestamp_us")}
    except (KeyError, StructError, UnicodeEncodeError):
        return None
    return made if len(made) <= {MAX_VALUE_BYTES} else None
"""
        types = {f"t{at}": _PYTHON[column.type] for at, column in enumerate(self.columns)}
        scope: dict[str, Any] = {**packers, "StructError": struct.error, **types}
        exec(source, scope)
        return scope["whole"]  # type: ignore[no-any-return]

    def _expressions(self) -> dict[str, str]:
        """The source of each column's value in a whole record `value` whose columns start at `AT`.
        `_b` is what `body` unpacked there."""
        found: dict[str, str] = {}
        for number, at in enumerate(self._fixed):
            uuid = self.columns[at].type is Type.TIMEUUID
            found[self.names[at]] = f"UUID(bytes=_b[{number}])" if uuid else f"_b[{number}]"
        start = f"AT + {self._body.size}"
        for number, at in enumerate(self._loose):
            end = f"{start} + _b[{len(self._fixed) + number}]" if at != self._loose[-1] else ""
            text = self.columns[at].type is Type.TEXT
            found[self.names[at]] = f"value[{start}:{end}]" + (".decode()" if text else "")
            start = end
        return found

    def _literal(self, wanted: tuple[str, ...] | None, at: str) -> str:
        """The source of the dict of a whole row's values. The first use, from the left, unpacks for all."""
        sources = self._expressions()
        shown = [name for name in self.names if wanted is None or name in wanted]
        literal = "{" + ", ".join(f"{name!r}: {sources[name]}" for name in shown) + "}"
        return literal.replace("_b[", "(_b := body(value, AT))[", 1).replace("AT", at)

    def values_of_whole(self, wanted: tuple[str, ...] | None) -> Callable[[bytes, int], dict[str, Value]]:
        """decode(record, where the columns start): the values of a whole row."""
        found = self._wholes.get(wanted)
        if found is None:
            source = f"def values(value, at):\n    return {self._literal(wanted, 'at')}\n"
            scope: dict[str, Any] = {"body": self._body.unpack_from, "UUID": UUID}
            exec(source, scope)
            found = self._wholes[wanted] = scope["values"]
        return found

    def _compile_decoder(self) -> Callable[[bytes, int], list[bytes]]:
        """pieces(record, at): the bytes of each column of a whole row."""
        decode = self.values_of_whole(None)

        def pieces(record: bytes, at: int) -> list[bytes]:
            values = decode(record, at)
            return [encode_value(column, values[column.name]) for column in self.columns]

        return pieces

    def scanner(self, wanted: tuple[str, ...] | None) -> Scanner:
        """scan(items, cut, limit, now_us): up to `limit` rows that exist, and whether there may be more.
        `cut` is where the clustering key starts in a key."""
        found = self._scanners.get(wanted)
        if found is None:
            found = self._scanners[wanted] = self._compile_scanner(wanted)
        return found

    def _compile_scanner(self, wanted: tuple[str, ...] | None) -> Scanner:
        """In runs of records: what C can do for a whole run (the keys, the making of rows) is not done row by row.
        Whole rows of one size, as small rows often are, are even unpacked as a run: end to end they are one table.

        The collector of cycles is off meanwhile: rows hold nothing but values, and it would look at each for nothing.
        """
        source = f"""
def scan(items, cut, limit, now_us):
    items = iter(items)
    rows = []
    alike = True  # so far; a run that is not is a sign for the next
    collecting = gc.isenabled()
    gc.disable()
    try:
        while len(rows) < limit:
            wants = min(limit - len(rows), {RUN_ROWS})
            run = list(islice(items, wants))
            if run:
                keys, records = zip(*run)
                made = joined(records) if alike else None
                exist = alike = made is not None  # whole rows without an end
                if not exist:
                    made = [{self._literal(wanted, "9")} if not value[0] else live(value, now_us, wanted)
                            for value in records]
                    exist = all(made)
                if exist:
                    rows += map(Row, split(keys, cut), made)
                else:  # rows that do not exist, or of which no column is wanted
                    rows += [Row(key, values) for key, values in zip(split(keys, cut), made) if values is not None]
            if len(run) < wants:
                return rows, False
        return rows, next(items, None) is not None
    finally:
        if collecting:
            gc.enable()
"""
        scope: dict[str, Any] = {
            "Row": Row,
            "UUID": UUID,
            "body": self._body.unpack_from,
            "gc": gc,
            "islice": islice,
            "joined": self._compile_joined(wanted),
            "live": self.live,
            "split": self._keys.split_all,
            "wanted": wanted,
        }
        exec(source, scope)
        return scope["scan"]  # type: ignore[no-any-return]

    def _compile_joined(self, wanted: tuple[str, ...] | None) -> Callable[[Sequence[bytes]], list[Any] | None]:
        """joined(records): the values of whole rows of one size; None for all others.

        The first bytes of all of them, where a record's form stands, are one slice of the joined bytes.
        """
        if len(self._loose) > 1 or not self.columns:  # rows of one size need not have columns of one size
            return _never_joined
        order = [*self._fixed, *self._loose]
        shown = [at for at in order if wanted is None or self.names[at] in wanted]
        pairs = ", ".join(f"{self.names[at]!r}: {self._unpacked(at)}" for at in shown)
        source = f"""
def joined(records):
    size = len(records[0])
    if size > {JOINED_BYTES} or [*map(len, records)].count(size) < len(records):
        return None
    run = b"".join(records)
    if run[::size].strip(ZERO):
        return None
    found = unpackers.get(size)
    if found is None:
        if len(unpackers) >= {UNPACKERS_KEPT}:
            unpackers.clear()
        found = unpackers[size] = make(size)
    return [{{{pairs}}} for {", ".join(f"c{at}" for at in order)}, in found(run)]
"""
        fixed = self._body.format

        def make(size: int) -> Callable[[bytes], Iterable[tuple[Any, ...]]]:
            rest = f"{size - 9 - self._body.size}s" if self._loose else ""
            return struct.Struct(f">9x{fixed[1:]}{rest}").iter_unpack

        scope: dict[str, Any] = {"UUID": UUID, "ZERO": bytes([WHOLE]), "make": make, "unpackers": {}}
        exec(source, scope)
        return scope["joined"]  # type: ignore[no-any-return]

    def _unpacked(self, at: int) -> str:
        """The source of a column's value, of which `c{at}` is what `struct` made."""
        match self.columns[at].type:
            case Type.TIMEUUID:
                return f"UUID(bytes=c{at})"
            case Type.TEXT:
                return f"c{at}.decode()"
            case _:
                return f"c{at}"


def _never_joined(_records: Sequence[bytes]) -> list[Any] | None:
    return None


def _never_whole(_values: Values, _timestamp_us: int, _expiry_us: int) -> bytes | None:
    return None


def _parse_cells(record: bytes) -> Cells:
    cells: Cells = {}
    at = 1
    while at < len(record):
        column, timestamp_us, rank, expiry_us, length = _CELL.unpack_from(record, at)
        at += _CELL.size
        cells[column] = (timestamp_us, rank, expiry_us, record[at : at + length])
        at += length
    return cells


def is_live(cell: Cell, now_us: int) -> bool:
    return cell[1] == PLAIN or (cell[1] == EXPIRING and cell[2] > now_us)


def merge(old: Cells, new: Cells) -> Cells:
    """Last write wins, cell by cell."""
    merged = dict(old)
    for at, cell in new.items():
        known = merged.get(at)
        if known is None or cell > known:
            merged[at] = cell
    return merged


def encode_value(column: Column, value: Value) -> bytes:
    """A value's bytes, which are also how two values of one timestamp compare. Raises Invalid."""
    kind = column.type
    if type(value) is int and kind is Type.DOUBLE:
        value = float(value)
    if type(value) is not _PYTHON[kind]:
        raise Invalid(f"column {column.name} is of type {kind.value}: {type(value).__name__} does not go into it")
    if isinstance(value, bytes):
        data = value
    elif isinstance(value, UUID):
        data = value.bytes
    elif isinstance(value, str):
        try:
            data = value.encode()
        except UnicodeEncodeError:
            raise Invalid(f"column {column.name}: the text holds half of a surrogate pair") from None
    else:
        try:
            data = struct.pack(">" + _FIXED[kind], value)
        except struct.error:
            raise Invalid(f"column {column.name}: {value} does not fit into 64 bits") from None
    if len(data) > MAX_VALUE_BYTES:
        raise TooLarge(f"column {column.name}: a value of {len(data)} bytes is too large: at most {MAX_VALUE_BYTES}")
    return data


def decode_value(kind: Type, data: bytes) -> Value:
    if kind is Type.BLOB:
        return data
    if kind is Type.TEXT:
        return data.decode()
    if kind is Type.TIMEUUID:
        return UUID(bytes=data)
    value: Value = struct.unpack(">" + _FIXED[kind], data)[0]
    return value
