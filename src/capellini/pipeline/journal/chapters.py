"""One chapter of a generated journal: the lives of some neighbouring messages of one queue, as events of three nodes.

    a work chapter      ids base .. base+messages-1; one incarnation puts, one delivers, one acks
    a timed chapter     ids as text, which say their due; the same three

Most lives are plain (put, delivered, acked) and share events in runs, cut anew for each step as real consumers do. Some
are redelivered, expired or cancelled, as happens. A few have a fault that was asked for: their steps are SCRIPTS below,
so that what was planted is known exactly. Everything follows from (seed, chapter): numpy makes it, no clock, no chance
of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from capellini.queues.events import Kind
from capellini.queues.timed.positions import UNIX_TICKS

PUTS, GETS, ACKS = 0, 1, 2  # who tells an event: three incarnations on three nodes
PARCEL: Final = 10  # ids that one event of a timed queue names
WAIT_S: Final = 10.0  # between a timed message's put and its due
KINDS: Final = tuple(kind.value for kind in Kind)
CODE: Final = {name: code for code, name in enumerate(KINDS)}
SHORTEST_CHAPTER_S: Final = 60.0


class Step(NamedTuple):
    who: int
    kind: Kind
    after_s: float  # after the put; for timed queues, after the due
    version: int = 0
    dropped: bool = False  # it got its number and was lost on the way to the journal


def _held(version: int, at_s: float, dropped: bool = False) -> Step:
    return Step(GETS, Kind.DELIVERED, at_s, version, dropped)


def _done(version: int, at_s: float, dropped: bool = False) -> Step:
    return Step(ACKS, Kind.ACKED, at_s, version, dropped)


def _back(version: int, at_s: float) -> Step:
    return Step(ACKS, Kind.NACKED, at_s, version)


# What follows the put. Faults have the names that the audit gives them.
SCRIPTS: Final[Mapping[str, tuple[Step, ...]]] = {
    "redelivered": (_held(1, 0.05), _back(1, 0.1), _held(2, 0.5), _done(2, 0.6)),
    "expired": (Step(GETS, Kind.EXPIRED, 30.0),),
    "lost": (),
    "two_holders": (_held(1, 0.05), _held(1, 0.06), _done(1, 0.2)),
    "delivered_again": (_held(1, 0.05), _done(1, 0.1), _held(2, 5.0)),
    "stale_receipt": (_held(1, 0.05), _held(2, 1.0), _done(1, 3.0)),
    "stuck": (_held(1, 0.05),),
    "dead": (_held(1, 0.05), _back(1, 0.1), _held(2, 0.5), _back(2, 0.6), Step(ACKS, Kind.DEAD, 1.0)),
    "unknown": (_held(1, 0.05, True), _done(1, 0.1, True)),
}
TIMED_SCRIPTS: Final[Mapping[str, tuple[Step, ...]]] = {
    "redelivered": (_held(1, 0.05), _back(1, 0.1), _held(2, 0.5), _done(2, 0.6)),
    "cancelled": (Step(GETS, Kind.CANCELLED, -5.0),),
    "early": (_held(1, -4.0), _done(1, -3.9)),
    "late": (_held(1, 20.0), _done(1, 20.1)),
}
FAULTS: Final = ("lost", "two_holders", "delivered_again", "stale_receipt", "stuck", "dead", "unknown", "early", "late")
TIMED_FAULTS: Final = ("early", "late")


class Chapter(msgspec.Struct, frozen=True):
    """What one chapter is: a value that travels to wherever it is made."""

    number: int
    timed: bool
    queue: str
    base: int  # the first id (work)
    messages: int
    began_s: float
    length_s: float
    run_length: int
    usual: dict[str, int]  # how many lives of which honest script
    faults: dict[str, int]
    seed: int


class _Events(NamedTuple):
    """Columns of one teller's rows; `slot` is the message, `count` of them."""

    at: Any
    kind: Any
    slot: Any
    count: Any
    version: Any
    dropped: Any


def planted(chapter: Chapter) -> list[tuple[str, str]]:
    """(fault, id as text) of all that was planted in it."""
    special = _special(chapter)
    faults = [(name, slot) for name, slots in special.items() if name in FAULTS for slot in slots.tolist()]
    if not chapter.timed:
        return [(name, str(chapter.base + slot)) for name, slot in faults]
    ids = _ids(chapter)
    return [(name, ids[slot].as_py()) for name, slot in faults]


def table_of(chapter: Chapter) -> pa.Table:
    """All its events, each teller's in the order of its numbers, the closing record last."""
    special = _special(chapter)
    tellers: list[list[_Events]] = [[], [], []]
    _usual(chapter, special, tellers)
    _scripted(chapter, special, tellers)
    ids = _ids(chapter) if chapter.timed else None
    return pa.concat_tables([_told(chapter, who, parts, ids) for who, parts in enumerate(tellers)])


def _chance(chapter: Chapter, what: int) -> np.random.Generator:
    return np.random.default_rng((chapter.seed, chapter.number, what))


def _special(chapter: Chapter) -> dict[str, Any]:
    """The slots of each script."""
    wanted = {**chapter.usual, **chapter.faults}
    chosen = _chance(chapter, 0).choice(chapter.messages, sum(wanted.values()), replace=False)
    ends = np.cumsum(list(wanted.values()))
    return dict(zip(wanted, np.split(chosen, ends[:-1]), strict=True)) if wanted else {}


def _put_s(chapter: Chapter, slots: Any) -> Any:
    """When each was put: evenly over the first half of the chapter, so that what follows fits into it."""
    return chapter.began_s + slots * (chapter.length_s / 2 / chapter.messages)


def _due_s(chapter: Chapter, slots: Any) -> Any:
    """From when on its scripts count."""
    return _put_s(chapter, slots) + (WAIT_S if chapter.timed else 0.0)


def _usual(chapter: Chapter, special: dict[str, Any], tellers: list[list[_Events]]) -> None:
    """Puts of all, and the plain lives, in runs."""
    chance = _chance(chapter, 1)
    every = np.ones(chapter.messages, dtype=bool)
    plain = every.copy()
    for slots in special.values():
        plain[slots] = False
    after = (0.05, 0.1)
    tellers[PUTS].append(_runs(chapter, chance, every, Kind.PUT, 0, _put_s, 0.0))
    tellers[GETS].append(_runs(chapter, chance, plain, Kind.DELIVERED, 1, _due_s, after[0]))
    tellers[ACKS].append(_runs(chapter, chance, plain, Kind.ACKED, 1, _due_s, after[1]))


def _runs(
    chapter: Chapter, chance: np.random.Generator, member: Any, kind: Kind, version: int, times: Any, after_s: float
) -> _Events:
    """The members cut at random into runs, or one by one where ids are text."""
    mean = 1 if chapter.timed else chapter.run_length
    begins = chance.random(len(member)) < 1 / mean
    begins[1:] |= ~member[:-1]
    begins[0] = True
    begins &= member
    first = np.flatnonzero(begins)
    count = np.bincount(np.cumsum(begins)[member] - 1, minlength=len(first)).astype(np.int64)
    at = times(chapter, first + count - 1) + after_s
    same = np.full(len(first), CODE[kind], dtype=np.int8)
    return _Events(at, same, first, count, np.full(len(first), version, dtype=np.int32), np.zeros(len(first), bool))


def _scripted(chapter: Chapter, special: dict[str, Any], tellers: list[list[_Events]]) -> None:
    scripts = TIMED_SCRIPTS if chapter.timed else SCRIPTS
    for name, slots in special.items():
        for step in scripts[name]:
            size = len(slots)
            tellers[step.who].append(
                _Events(
                    _due_s(chapter, slots) + step.after_s,
                    np.full(size, CODE[step.kind], dtype=np.int8),
                    slots,
                    np.ones(size, dtype=np.int64),
                    np.full(size, step.version, dtype=np.int32),
                    np.full(size, step.dropped, dtype=bool),
                )
            )


def _told(chapter: Chapter, who: int, parts: list[_Events], ids: pa.Array | None) -> pa.Table:
    """One teller's rows: in the order of time, numbered, and closed."""
    at, kind, slot, count, version, dropped = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(at, kind="stable")
    at, kind, slot, count, version, dropped = (each[order] for each in (at, kind, slot, count, version, dropped))
    number = _numbers(kind, version, chapter.timed)
    kept = ~dropped
    last_s = max(float(at.max()) if len(at) else 0.0, chapter.began_s + chapter.length_s)
    rows = int(kept.sum()) + 1
    open = np.append(np.zeros(rows - 1, bool), True)  # the closing record names no message

    def column(values: Any, closing: Any) -> Any:
        return np.append(values[kept], closing)

    where = pa.array(np.append(slot[kept], 0))
    columns: dict[str, pa.Array] = {
        "node": _same(f"node-{(chapter.number + who) % 3 + 1}", rows),
        "incarnation": _same(f"{chapter.number:08x}{'pga'[who]}", rows),
        "number": pa.array(column(number, (number[-1] if len(number) else 0) + 1)),
        "at": pa.array(column(at, last_s)),
        "kind": pa.DictionaryArray.from_arrays(column(kind, CODE[Kind.CLOSED]).astype(np.int8), KINDS).cast("string"),
        "queue": pa.DictionaryArray.from_arrays(open.astype(np.int8), [chapter.queue, ""]).cast("string"),
        "generation": pa.array(np.where(open, 0, 1)),
        "first": pa.array(column(slot + chapter.base, 0), mask=open | chapter.timed),
        "count": pa.array(column(count, 0), mask=open | chapter.timed),
        "id": pa.nulls(rows, pa.string()) if ids is None else _but_last_null(ids.take(where)),
        "version": pa.array(column(version, 0).astype(np.int32)),
        "detail": _same("", rows),
    }
    return pa.table(columns)


def _numbers(kind: Any, version: Any, timed: bool) -> Any:
    """From 1; neighbours of a timed queue that have kind and version in common share events of PARCEL ids."""
    at = np.arange(len(kind), dtype=np.int64)
    if not timed or not len(kind):
        return at + 1
    fresh = np.ones(len(kind), dtype=bool)
    fresh[1:] = (kind[1:] != kind[:-1]) | (version[1:] != version[:-1]) | (at[1:] % PARCEL == 0)
    return np.cumsum(fresh)


def _same(value: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, dtype=np.int8), [value]).cast("string")


def _but_last_null(values: pa.Array) -> pa.Array:
    return pa.concat_arrays([values[:-1], pa.nulls(1, pa.string())])


def _ids(chapter: Chapter) -> pa.Array:
    """Time uuids as text: the due, and chance. Made as bytes, all at once."""
    slots = np.arange(chapter.messages)
    ticks = (_due_s(chapter, slots) * 1000).astype(np.uint64) * 10_000 + np.uint64(UNIX_TICKS)
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | 1 << 12 | ticks >> 48 & 0xFFF
    low = _chance(chapter, 2).integers(0, 1 << 62, chapter.messages, dtype=np.uint64) | np.uint64(1 << 63)
    text = np.stack([high, low], axis=1).astype(">u8").tobytes().hex().encode()
    ends = np.arange(0, 32 * (chapter.messages + 1), 32, dtype=np.int32)
    return pa.StringArray.from_buffers(chapter.messages, pa.py_buffer(ends), pa.py_buffer(text))
