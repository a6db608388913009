"""Rows as cells with timestamps, and how two versions of them become one.

    cell    (timestamp, value or None for a tombstone, when it expires)
    row     cells by column; nearly all rows were written at once, and keep one timestamp for all their cells
    state   rows in order, the static row, and the tombstones of the partition: dropped, and ranges cleared

Merging is by cell: the higher timestamp wins; of equal ones a tombstone, else the larger value. So merging can be
repeated and done in any order, and what a set of replicas knows is the merge of all that any of them has.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

import msgspec

from capellini.store.interface import Batch, Cas, Key, Table, Type, Value, Values

NEVER: Final = float("inf")
STATIC: Final = None

Order = Any  # a clustering key in a form that Python's own order sorts as the store must
Cell = tuple[int, Value, float]


class Cells(msgspec.Struct, gc=False):
    """One row, never changed once made. `mixed` None: all of `values` have this stamp and this expiry, and none is a
    tombstone."""

    stamp: int
    expires_s: float
    values: dict[str, Value]
    mixed: dict[str, Cell] | None = None


def cells_of(values: Values, stamp: int, expires_s: float) -> Cells:
    if None in values.values():
        return Cells(stamp, expires_s, {}, {name: (stamp, value, expires_s) for name, value in values.items()})
    return Cells(stamp, expires_s, {**values})


def live(cells: Cells, now_s: float) -> dict[str, Value]:
    """The values a reader sees."""
    mixed = cells.mixed
    if mixed is None:
        return cells.values.copy() if cells.expires_s > now_s else {}
    return {name: value for name, (_, value, expires_s) in mixed.items() if value is not None and expires_s > now_s}


def single(cells: Cells) -> dict[str, Cell]:
    if cells.mixed is not None:
        return cells.mixed
    stamp, expires_s = cells.stamp, cells.expires_s
    return {name: (stamp, value, expires_s) for name, value in cells.values.items()}


def wins(new: Cell, old: Cell) -> bool:
    if new[0] != old[0]:
        return new[0] > old[0]
    if new[1] is None or old[1] is None:
        return old[1] is not None
    if new[1] != old[1]:
        larger: bool = _size(new[1]) > _size(old[1])
        return larger
    return new[2] > old[2]


def _size(value: Value) -> Any:
    return value.bytes if isinstance(value, UUID) else value


def merged(old: Cells, new: Cells) -> Cells:
    if new.mixed is None:
        if old.mixed is None:
            if new.stamp > old.stamp:
                if new.values.keys() >= old.values.keys():
                    return new
            elif new.stamp < old.stamp and old.values.keys() >= new.values.keys():
                return old
        elif new.values.keys() >= old.mixed.keys() and all(new.stamp > cell[0] for cell in old.mixed.values()):
            return new
    cells = dict(single(old))
    for name, cell in single(new).items():
        there = cells.get(name)
        if there is None or wins(cell, there):
            cells[name] = cell
    return Cells(0, NEVER, {}, cells)


def above(cells: Cells, stamp: int) -> Cells | None:
    """What a tombstone of that stamp leaves of a row."""
    if cells.mixed is None:
        return cells if cells.stamp > stamp else None
    kept = {name: cell for name, cell in cells.mixed.items() if cell[0] > stamp}
    if len(kept) == len(cells.mixed):
        return cells
    return Cells(0, NEVER, {}, kept) if kept else None


class Delta(msgspec.Struct, gc=False):
    """What one write brings."""

    rows: list[tuple[Order, Cells]]
    static: Cells | None = None
    dropped_us: int = 0  # a tombstone of the whole partition; 0: none
    cleared: tuple[tuple[Order, int], ...] = ()  # tombstones of all rows below a key
    simple: bool = False  # no row expires or has tombstones


class State:
    """A partition, or what some replicas of it have and others lack."""

    __slots__ = ("cleared", "dropped_us", "keys", "rows", "simple", "static")

    def __init__(self) -> None:
        self.rows: dict[Order, Cells] = {}
        self.keys: list[Order] = []  # of `rows`, sorted
        self.static: Cells | None = None
        self.dropped_us = 0
        self.cleared: list[tuple[Order, int]] = []
        self.simple = True  # no row ever expired, had tombstones, or was put together from several writes

    def absorb(self, delta: Delta | State) -> None:
        if delta.dropped_us > self.dropped_us:
            self._drop(delta.dropped_us)
        for bound, stamp in delta.cleared:
            self._clear(bound, stamp)
        if delta.static is not None:
            static = above(delta.static, self.dropped_us)
            if static is not None:
                self.static = static if self.static is None else merged(self.static, static)
        if not delta.rows:
            return
        items: Iterable[tuple[Order, Cells]] = delta.rows if isinstance(delta, Delta) else delta.rows.items()
        rows, keys = self.rows, self.keys
        if not delta.simple:
            self.simple = False
        shadowed = self.dropped_us or self.cleared
        if not shadowed:
            new = [key for key, _ in items]
            if (not keys or new[0] > keys[-1]) and (len(new) == 1 or new == sorted(new)):  # in order, as nearly always
                rows.update(items)
                keys += new
                return
        for key, cells in items:
            if shadowed:
                left = self.shadow(key, cells)
                if left is None:
                    continue
                cells = left
            old = rows.get(key)
            if old is not None:
                both = rows[key] = merged(old, cells)
                if both.mixed is not None:
                    self.simple = False
                continue
            rows[key] = cells
            if not keys or key > keys[-1]:
                keys.append(key)
            else:
                insort(keys, key)

    def shadow(self, key: Order, cells: Cells) -> Cells | None:
        stamp = self.dropped_us
        for bound, cleared_us in self.cleared:
            if key < bound and cleared_us > stamp:
                stamp = cleared_us
        return above(cells, stamp)

    def _drop(self, stamp: int) -> None:
        self.dropped_us = stamp
        self.cleared = [(bound, cleared_us) for bound, cleared_us in self.cleared if cleared_us > stamp]
        self._purge(len(self.keys))
        if self.static is not None:
            self.static = above(self.static, stamp)

    def _clear(self, bound: Order, stamp: int) -> None:
        if stamp <= self.dropped_us or any(bound <= other and stamp <= at for other, at in self.cleared):
            return
        self.cleared = [(other, at) for other, at in self.cleared if other > bound or at > stamp]
        self.cleared.append((bound, stamp))
        self._purge(bisect_left(self.keys, bound))

    def _purge(self, upto: int) -> None:
        kept = []
        for key in self.keys[:upto]:
            left = self.shadow(key, self.rows[key])
            if left is None:
                del self.rows[key]
            else:
                self.rows[key] = left
                kept.append(key)
        self.keys[:upto] = kept


# ---- what requests bring


def delta_of_batch(batch: Batch, ordering: Ordering, stamp_us: int, wall_s: float) -> Delta:
    expires_s = NEVER if batch.ttl_s is None else wall_s + batch.ttl_s
    simple = expires_s == NEVER
    rows: list[tuple[Order, Cells]] = []
    for key, values in batch.rows:
        if None in values.values():
            cells, simple = cells_of(values, stamp_us, expires_s), False
        else:
            cells = Cells(stamp_us, expires_s, {**values})  # copied: what is written stays as it was
        rows.append((key if ordering.plain else ordering.order(key), cells))
    static = cells_of(batch.static, stamp_us, expires_s) if batch.static else None
    before = batch.clear_before
    return Delta(rows, static, 0, () if before is None else ((ordering.order(before), stamp_us),), simple)


def delta_of_cas(cas: Cas, ordering: Ordering, ballot_us: int, wall_s: float) -> Delta:
    expires_s = NEVER if cas.ttl_s is None else wall_s + cas.ttl_s
    simple = expires_s == NEVER
    rows: list[tuple[Order, Cells]] = []
    static = None
    for change in cas.changes:
        cells = cells_of(change.values, ballot_us, expires_s)
        if change.key is None:
            static = cells
        else:
            rows.append((ordering.order(change.key), cells))
            simple = simple and cells.mixed is None
    return Delta(rows, static, ballot_us - 1 if cas.drop else 0, (), simple)


# ---- the order of keys. TEXT by code point is TEXT by UTF-8 byte, so only time UUIDs need another form.


class Ordering:
    """How the clustering keys of one table sort."""

    __slots__ = ("_moments", "plain")

    def __init__(self, table: Table) -> None:
        self._moments = tuple(column.type is Type.TIMEUUID for column in table.clustering)
        self.plain = not any(self._moments)

    def order(self, key: Key) -> Order:
        if self.plain:
            return key
        return tuple(
            _moment(part) if moment and isinstance(part, UUID) else part
            for part, moment in zip(key, self._moments, strict=False)
        )

    def key(self, order: Order) -> Key:
        if self.plain:
            key: Key = order
            return key
        return tuple(part[2] if moment else part for part, moment in zip(order, self._moments, strict=True))


def _moment(part: UUID) -> tuple[int, int, UUID]:
    """By time, then by the lower half as signed bytes: turning each byte's sign bit makes that the order of numbers."""
    return part.time, part.int & 0xFFFF_FFFF_FFFF_FFFF ^ 0x8080_8080_8080_8080, part
