"""Retention: sealed extents are dropped whole, in an order that a crash anywhere can be resumed from.

    sealed ─▶ too old, or old enough and finished by all groups ─▶ owners (fenced) ─▶ cursors ─▶ blocks ─▶ off the list

The list is the last to forget: what is on it and half dropped is dropped again. Owners are fenced first, so that
nobody takes what is going; who still reads it then finds nothing, and stops when it sees the list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from capellini.model.errors import StoreError
from capellini.model.options import is_internal
from capellini.queues.assignments import liking
from capellini.queues.lease import Watcher
from capellini.queues.log.cursors import partition_of, read_cursor
from capellini.queues.log.desk import joined
from capellini.queues.log.extents import Extent, Extents
from capellini.queues.log.groups import Group, Groups
from capellini.queues.log.lanes import expire_lanes
from capellini.queues.log.owners import OwnerRows
from capellini.queues.log.pages import Pages
from capellini.queues.log.place import LogPlace
from capellini.queues.log.readers import Readers
from capellini.queues.log.rows import DROP_AHEAD_US, drop_blocks
from capellini.queues.log.telling import name_of_lives
from capellini.store.schema import LOG_CURSORS

DROPS: Final = 16  # extents in one turn
LOOKS: Final = 16  # extents in one turn of which is found that a group has not finished them: the others come later
CROWDED: Final = 0.8  # of max_bytes: the rest is for what is open, and for what comes until the next turn


def past(extent: Extent, now_ms: int, retention_s: float, consumed_s: float, finished_by_all: bool) -> bool:
    """May it go? `finished_by_all`: there are groups, and all of them have finished it."""
    if not extent.sealed or extent.sealed_ms is None:
        return False
    age_s = (now_ms - extent.sealed_ms) / 1000
    return age_s >= retention_s or (finished_by_all and age_s >= consumed_s)


async def drop_old(
    place: LogPlace,
    extents: Extents,
    groups: Groups,
    readers: Readers,
    watcher: Watcher,
    before: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Drop what is past its retention; how many. One node of those that live does it. `before`: to be done before each
    drop."""
    nodes = {*watcher.live(), place.node}
    if max(nodes, key=lambda node: liking(f"{place.name}/{place.generation}", node)) != place.node:
        return 0
    options, dropped, left, go_on = place.options, 0, 0, ""
    live = await groups.all()
    crowded = crowding(extents.known(), options.max_bytes, options.extent_bytes) if is_internal(place.name) else set()
    for extent in _from(extents.known(), readers.dropping_from):
        now_ms = place.now_ms()
        if dropped >= DROPS or not past(extent, now_ms, 0.0, 0.0, False) or extent.home != place.home:
            continue
        old = extent.name in crowded or past(extent, now_ms, options.retention_s, options.consumed_s, False)
        if not old:
            if not past(extent, now_ms, options.retention_s, options.consumed_s, True):
                continue
            if left >= LOOKS:
                go_on = go_on or extent.name
                continue
            if not await _finished_by_all(place, extent, live, readers):
                left += 1
                continue
        try:
            if before is not None:
                await before()
            if old:
                await _tell_expired(place, extent, live, readers)
            await drop_extent(place, extents, extent, readers.rows)
        except StoreError:
            place.guards["drop put off"] += 1
            continue
        place.guards["extent dropped: too old" if old else "extent dropped: consumed"] += 1
        dropped += 1
    readers.dropping_from = go_on
    await groups.forget(min([extent.opened_ms for extent in extents.known()], default=place.now_ms()))
    if dropped:
        await extents.raise_first()
    return dropped


def _from(known: Sequence[Extent], name: str) -> list[Extent]:
    """In order, but beginning there."""
    return [one for one in known if one.name >= name] + [one for one in known if one.name < name]


def crowding(known: Sequence[Extent], max_bytes: int, extent_bytes: int) -> set[str]:
    """The oldest that must go so that new ones have room: for queues that must go on, and forget instead."""
    sealed = [extent for extent in known if extent.sealed]
    sizes = {extent.name: extent_bytes if extent.bytes is None else extent.bytes for extent in sealed}
    most, held = max_bytes * CROWDED, sum(sizes.values())
    gone: set[str] = set()
    for name in sorted(sizes):
        if not max_bytes or held <= most:
            break
        gone.add(name)
        held -= sizes[name]
    return gone


async def _tell_expired(place: LogPlace, extent: Extent, groups: list[Group], readers: Readers) -> None:
    """What groups had not finished of an extent that is going: told while it is still known."""
    if not extent.end or (await readers.rows.read(extent.name)).dropped:
        return
    for group in groups:
        if (extent.name, group.reader) in readers.finished or group.start_ms > (extent.sealed_ms or 0):
            continue
        stored = await read_cursor(place, extent.name, group.reader)
        pages = Pages() if stored is None else Pages.decode(stored.head, stored.pages)
        open_ranges = [(one.first, one.end) for one in pages.open(0, extent.end) if not one.moving]
        if runs := [(first, end - first) for first, end in joined(open_ranges)]:
            place.events.expired(name_of_lives(place, group.reader, extent.name), place.generation, runs)


async def _finished_by_all(place: LogPlace, extent: Extent, groups: list[Group], readers: Readers) -> bool:
    for group in groups:
        if (extent.name, group.reader) in readers.finished or not extent.end:
            continue
        stored = await read_cursor(place, extent.name, group.reader)
        if stored is None or stored.next < extent.end:
            return await _half_dropped(place, extent, readers)
        readers.finished.add((extent.name, group.reader))
    return bool(groups)


async def _half_dropped(place: LogPlace, extent: Extent, readers: Readers) -> bool:
    """Was a drop begun? Then a group that came since, or was set back, can never read it, whatever it has begun."""
    if not (await readers.rows.read(extent.name)).dropped:
        return False
    place.guards["drop resumed"] += 1
    return True


async def drop_extent(place: LogPlace, extents: Extents, extent: Extent, rows: OwnerRows) -> None:
    """All of it. Raises StoreError: then what is left is dropped at the next attempt."""
    stamp_us = None if place.store.alone else int(place.clock.now_s() * 1e6) + DROP_AHEAD_US
    before = await rows.read(extent.name)
    for reader in sorted({*before.owners, *await rows.drop(extent.name)}):
        await place.store.drop(LOG_CURSORS, partition_of(place, extent.name, reader), timestamp_us=stamp_us)
    await drop_blocks(place, extent.name)
    await extents.drop(extent)


async def clear_generation(place: LogPlace, watcher: Watcher) -> bool:
    """Of an ended generation nothing is written or read any more: seal what is open, drop all that is of this node's
    home. True: nothing is left, in no home."""
    extents, rows = Extents(place), OwnerRows(place, watcher)
    await extents.end()
    for extent in await extents.look():
        if extent.home != place.home:
            continue
        sealed = extent if extent.sealed else await extents.seal(extent, 0)
        await drop_extent(place, extents, sealed, rows)
        place.guards["extent of an ended generation cleared"] += 1
    await expire_lanes(place)
    return not await extents.look() and await extents.nothing_abroad()
