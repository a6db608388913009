"""The journal's own form: sheets. A sheet is the body of one message of the journal queue: events of one incarnation
whose numbers follow each other, in columns, so that a hundred thousand cost hardly more than one.

    header (28 bytes) ┊ 9 columns ┊ ids ┊ names                                                       all little endian

    header   "CJ" ┊ version 1 ┊ 0 ┊ events (32 bits) ┊ runs (32) ┊ ids (32) ┊ bytes of names (32) ┊ first number (64)
    column   width (8 bits) ┊ base (64, signed) ┊ values, each of `width` bytes without a sign; what is meant is base +
             value. Width 0: no values, all of them are the base. So a column takes what its spread needs.
    ids      16 bytes each: messages of timed queues
    names    MessagePack [node, incarnation, [[queue, generation], …], [detail, …]]

    column   of        what
    at       events    microseconds since 1970
    kind     events    place in KINDS, which only grows at its end
    place    events    which of the names' queues
    version  events    delivery count
    detail   events    which of the names' details
    runs     events    how many runs are the event's; they lie one after the other
    ids      events    how many ids
    first    runs      first id of a run
    count    runs      how many

The number of an event is not stored: it is the first one plus its place. A sheet that is missing is a gap in the
numbers, and nothing else has to say so (`events.account`). Whoever reads one twice sees the same numbers twice.

    add ──▶ `Gathering`: two buffers of packed records, no object per event ──▶ `taken`: numpy turns them into columns
    body ──▶ `sheet_of`: columns again, for numpy and Arrow ──▶ `events_in`: one object per event, for people
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from capellini.model.errors import Invalid
from capellini.queues.events import Account, Happened, Kind, Run, Who, gaps

MAGIC: Final = b"CJ"
VERSION: Final = 1
HEADER: Final = struct.Struct("<2sBBIIIIQ")
COLUMN: Final = struct.Struct("<Bq")
OF_EVENTS: Final = ("at", "kind", "place", "version", "detail", "runs", "ids")
OF_RUNS: Final = ("first", "count")
ID_BYTES: Final = 16
MOST_ROWS: Final = 1 << 20  # events or runs of a sheet: a column of one value takes no bytes, so nothing else bounds it
KINDS: Final = (
    Kind.PUT, Kind.DELIVERED, Kind.ACKED, Kind.NACKED, Kind.EXTENDED, Kind.DEAD, Kind.EXPIRED, Kind.REPAIRED,
    Kind.REPLAYED, Kind.CANCELLED, Kind.MOVED, Kind.CLOSED, Kind.SKIPPED,
)  # fmt: skip
_CODE: Final = {kind: code for code, kind in enumerate(KINDS)}
# While it is gathered an event carries its first run: most have no other. Packing is what it costs.
_EVENT: Final = struct.Struct("<dBIIIIIqq")  # at, kind, place, version, detail, runs, ids, first, count
_EVENTS: Final = np.dtype(
    [
        ("at", "<f8"), ("kind", "u1"), ("place", "<u4"), ("version", "<u4"), ("detail", "<u4"), ("runs", "<u4"),
        ("ids", "<u4"), ("first", "<i8"), ("count", "<i8"),
    ]
)  # fmt: skip
_pack: Final = _EVENT.pack
_RUN: Final = struct.Struct("<qq")
_RUNS: Final = np.dtype([("first", "<i8"), ("count", "<i8")])
_encode: Final = msgspec.msgpack.Encoder().encode

Numbers = npt.NDArray[np.int64]


class Names(msgspec.Struct, frozen=True, array_like=True):
    node: str
    incarnation: str
    queues: list[tuple[str, int]]  # name, generation
    details: list[str]


_NAMES: Final = msgspec.msgpack.Decoder(Names)


class Sheet(msgspec.Struct, frozen=True):
    """Columns as they were told: a value per event, or per run (`first`, `count`). `kind` is a place in KINDS."""

    names: Names
    number: int  # of the first event
    at_us: Numbers
    kind: Numbers
    place: Numbers
    version: Numbers
    detail: Numbers
    runs: Numbers
    ids: Numbers
    first: Numbers
    count: Numbers
    id_bytes: bytes


class Gathering:
    """Events that are not a sheet yet. `more`: bytes of their ids and further runs."""

    def __init__(self) -> None:
        self._empty()

    def _empty(self) -> None:
        self.events = self.more = 0
        self._events, self._runs, self._ids = bytearray(), bytearray(), bytearray()
        self._places: dict[tuple[str, int], int] = {}
        self._details: dict[str, int] = {"": 0}

    @property
    def size(self) -> int:
        """Bytes held, about."""
        return self.events * _EVENT.size + self.more

    def add(
        self,
        at: float,
        kind: Kind,
        queue: str,
        generation: int,
        runs: Sequence[Run],
        version: int,
        detail: str,
        ids: Sequence[str],
    ) -> None:
        """Raises ValueError for ids that are none."""
        if ids:
            self._ids += _packed(ids)
            self.more += ID_BYTES * len(ids)
        place = self._places.get((queue, generation))
        if place is None:
            place = self._places[queue, generation] = len(self._places)
        told = self._details.setdefault(detail, len(self._details)) if detail else 0
        first, count = runs[0] if runs else (0, 0)
        self._events += _pack(at, _CODE[kind], place, version, told, len(runs), len(ids), first, count)
        self.events += 1
        if len(runs) > 1:
            for first, count in runs[1:]:
                self._runs += _RUN.pack(first, count)
            self.more += _RUN.size * (len(runs) - 1)

    def taken(self, who: Who, number: int) -> bytes:
        """All of them as a sheet whose first event has that number; nothing is left."""
        events = np.frombuffer(self._events, _EVENTS)
        firsts, counts = _all_runs(events, np.frombuffer(self._runs, _RUNS))
        columns = [np.rint(events["at"] * 1e6).astype(np.int64)]
        columns += [events[name].astype(np.int64) for name in OF_EVENTS[1:]]
        columns += [firsts, counts]
        names = _encode(Names(*who, list(self._places), list(self._details)))
        head = HEADER.pack(
            MAGIC, VERSION, 0, self.events, len(firsts), len(self._ids) // ID_BYTES, len(names), number
        )  # fmt: skip
        sheet = b"".join([head, *map(_column, columns), self._ids, names])
        self._empty()
        return sheet


def _all_runs(events: Any, others: Any) -> tuple[Numbers, Numbers]:
    """The first run of each event and its other ones, in order."""
    each = events["runs"].astype(np.int64)
    some = each > 0
    at = (np.cumsum(each) - each)[some]  # where the runs of each event begin
    is_first = np.zeros(int(each.sum()), dtype=bool)
    is_first[at] = True
    found = []
    for name in OF_RUNS:
        values = np.empty(len(is_first), dtype=np.int64)
        values[at] = events[name][some]
        values[~is_first] = others[name]
        found.append(values)
    return found[0], found[1]


def _packed(ids: Sequence[str]) -> bytes:
    data = bytes.fromhex("".join(ids))
    if len(data) != ID_BYTES * len(ids):
        raise ValueError(f"ids of messages have {2 * ID_BYTES} hexadecimal digits")
    return data


def _column(values: Numbers) -> bytes:
    if not len(values):
        return COLUMN.pack(0, 0)
    base = int(values.min())
    spread = int(values.max()) - base
    width = 0 if not spread else next(width for width in (1, 2, 4, 8) if spread < 1 << 8 * width)
    if not width:
        return COLUMN.pack(0, base)
    return COLUMN.pack(width, base) + (values - base).astype(f"<u{width}").tobytes()


def sheet_of(body: bytes) -> Sheet:
    """Raises Invalid for what is no sheet, or one of a later version."""
    if len(body) < HEADER.size or body[:2] != MAGIC:
        raise Invalid("this is no sheet of the journal")
    _, version, zero, events, runs, ids, names_bytes, number = HEADER.unpack_from(body)
    if version != VERSION or zero:
        raise Invalid(f"a sheet of the journal has version {version}: this program reads {VERSION}")
    if max(events, runs) > MOST_ROWS:
        raise Invalid(f"a sheet of the journal has at most {MOST_ROWS} events and runs")
    at = HEADER.size
    columns: list[Numbers] = []
    for rows in [events] * len(OF_EVENTS) + [runs] * len(OF_RUNS):
        column, at = _column_at(body, at, rows)
        columns.append(column)
    if at + ids * ID_BYTES + names_bytes != len(body):
        raise Invalid("a sheet of the journal says that it has another size than it has")
    names_at = at + ids * ID_BYTES
    try:
        names = _NAMES.decode(body[names_at:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"the names of a sheet of the journal cannot be read: {error}") from None
    at_us, kind, place, told, detail, runs_each, ids_each, first, count = columns
    sheet = Sheet(
        names, number, at_us, kind, place, told, detail, runs_each, ids_each, first, count, body[at:names_at]
    )  # fmt: skip
    _check(sheet, runs, ids)
    return sheet


def _column_at(body: bytes, at: int, rows: int) -> tuple[Numbers, int]:
    """The column that begins there, and where the next one does."""
    if at + COLUMN.size > len(body):
        raise Invalid("a sheet of the journal is cut within a column")
    width, base = COLUMN.unpack_from(body, at)
    at += COLUMN.size
    if width not in (0, 1, 2, 4, 8) or at + width * rows > len(body):
        raise Invalid("a column of the journal does not fit into its sheet")
    if not width:
        return np.full(rows, base, dtype=np.int64), at
    stored = np.frombuffer(body, f"<u{width}", rows, at)
    return stored.astype(np.int64) + base, at + width * rows


def _check(sheet: Sheet, runs: int, ids: int) -> None:
    """What names something names what is there."""
    for column, things in (
        (sheet.kind, KINDS), (sheet.place, sheet.names.queues), (sheet.detail, sheet.names.details)
    ):  # fmt: skip
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) < len(things):
            raise Invalid("an event of the journal names something that its sheet does not have")
    for column, rows in ((sheet.runs, runs), (sheet.ids, ids)):
        if (len(column) and int(column.min()) < 0) or int(column.sum()) != rows:
            raise Invalid("the events of a sheet of the journal have other ids than it has")


def events_in(body: bytes) -> Iterator[Happened]:
    """One after the other. Raises Invalid."""
    sheet = sheet_of(body)
    names, text = sheet.names, sheet.id_bytes.hex()
    runs = list(zip(sheet.first.tolist(), sheet.count.tolist(), strict=True))
    ids = [text[at : at + 2 * ID_BYTES] for at in range(0, len(text), 2 * ID_BYTES)]
    run_at = id_at = 0
    rows: Any = zip(
        *(column.tolist() for column in (sheet.at_us, sheet.kind, sheet.place, sheet.version, sheet.detail)),
        sheet.runs.tolist(), sheet.ids.tolist(), strict=True,
    )  # fmt: skip
    for index, (at_us, kind, place, version, detail, run_count, id_count) in enumerate(rows):
        queue, generation = names.queues[place]
        yield Happened(
            names.node, names.incarnation, sheet.number + index, at_us / 1e6, KINDS[kind], queue, generation,
            tuple(runs[run_at : run_at + run_count]), version, names.details[detail],
            tuple(ids[id_at : id_at + id_count]),
        )  # fmt: skip
        run_at += run_count
        id_at += id_count


class Ledger:
    """Which numbers were read: `events.account` for a journal that is larger than memory. By runs, in any order, and
    however often."""

    def __init__(self) -> None:
        self._runs: dict[Who, list[Run]] = {}
        self._closed: set[Who] = set()

    def add(self, events: Sequence[Happened]) -> None:
        """Those of one sheet."""
        if not events:
            return
        who = Who(events[0].node, events[0].incarnation)
        runs = self._runs.setdefault(who, [])
        first, count = events[0].number, len(events)
        if runs and sum(runs[-1]) == first:  # as they were told: one run for all of them
            first, count = runs[-1][0], runs.pop()[1] + count
        runs.append((first, count))
        if events[-1].kind is Kind.CLOSED:
            self._closed.add(who)

    def accounts(self) -> dict[Who, Account]:
        return {
            who: Account(max(first + count - 1 for first, count in runs), tuple(gaps(runs)), who in self._closed)
            for who, runs in self._runs.items()
        }
