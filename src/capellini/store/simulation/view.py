"""What a reader sees: slices, single rows and conditions over the merge of several parts of a partition."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from capellini.store.interface import ABSENT, Cas, Key, Outcome, Page, Row, Slice, Value
from capellini.store.simulation.cells import Cells, Delta, Order, Ordering, State, above, live, merged

Parts = Sequence[Delta | State]
Bounds = tuple[Order | None, bool, Order | None]  # the least key, whether it is itself left out, the first key beyond


def bounds_of(slice: Slice, ordering: Ordering) -> Bounds:
    if slice.after is None and ordering.plain:
        return slice.start, False, slice.end
    after = None if slice.after is None else ordering.order(slice.after)
    start = None if slice.start is None else ordering.order(slice.start)
    end = None if slice.end is None else ordering.order(slice.end)
    if after is None:
        return start, False, end
    return (start, False, after) if slice.reverse else (after, True, end)


def _range(keys: list[Order], bounds: Bounds) -> tuple[int, int]:
    start, beyond, end = bounds
    if start is None:
        low = 0
    else:
        low = bisect_right(keys, start) if beyond else bisect_left(keys, start)
    return low, len(keys) if end is None else bisect_left(keys, end)


def page_of(parts: Parts, slice: Slice, ordering: Ordering, now_s: float) -> Page:
    first = parts[0]
    columns, limit = slice.columns, slice.limit
    alone = len(parts) == 1
    static = {} if alone and first.static is None else static_of(parts, now_s)
    if columns is not None:
        static = {name: value for name, value in static.items() if name in columns}
    rows: list[Row] = []
    if limit == 0:
        return Page(rows, static)
    plain, key_of = ordering.plain, ordering.key
    if alone and plain and columns is None and not slice.reverse and isinstance(first, State):
        return _quick_page(first, bounds_of(slice, ordering), limit, static, now_s)
    for order, cells in _rows(parts, bounds_of(slice, ordering), slice.reverse):
        values = live(cells, now_s)
        if not values:
            continue
        if len(rows) == limit:
            return Page(rows, static, True)
        if columns is not None:
            values = {name: value for name, value in values.items() if name in columns}
        rows.append(Row(order if plain else key_of(order), values))
    return Page(rows, static)


def _quick_page(state: State, bounds: Bounds, limit: int, static: dict[str, Value], now_s: float) -> Page:
    """The most usual slice: all replicas agree, forwards, all columns."""
    keys, rows = state.keys, state.rows
    low, high = _range(keys, bounds)
    if state.simple:
        more = high - low > limit
        chosen = keys[low : low + limit if more else high]
        return Page([Row(key, rows[key].values.copy()) for key in chosen], static, more)
    found: list[Row] = []
    for at in range(low, high):
        cells = rows[keys[at]]
        if cells.mixed is None:
            if cells.expires_s <= now_s:
                continue
            values = cells.values.copy()
        else:
            values = live(cells, now_s)
            if not values:
                continue
        if len(found) == limit:
            return Page(found, static, True)
        found.append(Row(keys[at], values))
    return Page(found, static)


def _rows(parts: Parts, bounds: Bounds, reverse: bool) -> Iterator[tuple[Order, Cells]]:
    first = parts[0]
    if len(parts) == 1 and isinstance(first, State):  # the usual case: all replicas agree
        low, high = _range(first.keys, bounds)
        keys = first.keys
        places = range(high - 1, low - 1, -1) if reverse else range(low, high)
        orders = map(keys.__getitem__, places)
        return ((order, first.rows[order]) for order in orders)
    found = within(parts, bounds)
    return ((order, found[order]) for order in sorted(found, reverse=reverse))


def within(parts: Parts, bounds: Bounds) -> dict[Order, Cells]:
    """All rows in the bounds, merged."""
    found: dict[Order, Cells] = {}
    for part in parts:
        if isinstance(part, State):
            low, high = _range(part.keys, bounds)
            items = [(order, part.rows[order]) for order in part.keys[low:high]]
        else:
            items = [(order, cells) for order, cells in part.rows if _inside(order, bounds)]
        for order, cells in items:
            old = found.get(order)
            found[order] = cells if old is None else merged(old, cells)
    for part in parts:
        if part.dropped_us or part.cleared:
            _shadow(found, part)
    return found


def _inside(order: Order, bounds: Bounds) -> bool:
    start, beyond, end = bounds
    if start is not None and (order < start or (beyond and order == start)):
        return False
    return end is None or order < end


def _shadow(found: dict[Order, Cells], part: Delta | State) -> None:
    for order in list(found):
        stamp = part.dropped_us
        for bound, cleared_us in part.cleared:
            if order < bound and cleared_us > stamp:
                stamp = cleared_us
        left = above(found[order], stamp)
        if left is None:
            del found[order]
        else:
            found[order] = left


def static_cells(parts: Parts) -> Cells | None:
    found: Cells | None = None
    dropped_us = 0
    for part in parts:
        if part.static is not None:
            found = part.static if found is None else merged(found, part.static)
        if part.dropped_us > dropped_us:
            dropped_us = part.dropped_us
    return found if found is None or not dropped_us else above(found, dropped_us)


def static_of(parts: Parts, now_s: float) -> dict[str, Value]:
    cells = static_cells(parts)
    return {} if cells is None else live(cells, now_s)


def row_of(parts: Parts, order: Order, now_s: float) -> dict[str, Value]:
    """One row; empty if it does not exist."""
    first = parts[0]
    if len(parts) == 1 and isinstance(first, State):  # the usual case: all replicas agree
        cells = first.rows.get(order)
        return {} if cells is None else live(cells, now_s)
    cells = None
    stamp = 0
    for part in parts:
        if isinstance(part, State):
            there = part.rows.get(order)
        else:
            there = next((each for at, each in part.rows if at == order), None)
        if there is not None:
            cells = there if cells is None else merged(cells, there)
        if part.dropped_us > stamp:
            stamp = part.dropped_us
        for bound, cleared_us in part.cleared:
            if order < bound and cleared_us > stamp:
                stamp = cleared_us
    if cells is not None and stamp:
        cells = above(cells, stamp)
    return {} if cells is None else live(cells, now_s)


def judge(parts: Parts, cas: Cas, ordering: Ordering, now_s: float) -> Outcome:
    """Whether all conditions hold; if not, the rows that have conditions as they are."""
    holds = True
    rows: dict[Key | None, dict[str, Value]] = {}
    for change in cas.changes:
        expect = change.expect
        if expect is None:
            continue
        key = change.key
        if key is None:
            values = static_of(parts, now_s)
        else:
            values = row_of(parts, key if ordering.plain else ordering.order(key), now_s)
        if values:
            rows[key] = values
        if expect is ABSENT:
            holds = holds and not values
        else:
            for name, value in expect.items():
                if values.get(name) != value:
                    holds = False
    return Outcome(True, {}) if holds else Outcome(False, rows)


def anything(parts: Parts, now_s: float) -> bool:
    """Whether the partition has a live row or static value."""
    if static_of(parts, now_s):
        return True
    return any(live(cells, now_s) for _, cells in _rows(parts, (None, False, None), False))
