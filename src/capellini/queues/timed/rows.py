"""Rows of timed queues: what lies at a position, and how it is written and read.

    timed_rows (queue, generation, part, shard) ▸ position     entry, due_ms, put_ms; id of a second copy or of a
                                                               message that was moved; key; markers
    timed_moved (queue, generation, id)                        position, before: where its last move was to, from where

A row is written once. Markers (cancelled, moved_to) and notes of moves are added by the shard's holder only, before it
reads that far; void rows are marked by who made them so (`keyed`). Markers are stamped by the holder (its epoch, then a
count), not by a clock: what an earlier move wrote and what lands late never wins over what came after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final
from uuid import UUID

import msgspec

from capellini.model.errors import Unavailable, Unknown
from capellini.model.message import Entry
from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.positions import (
    before,
    behind,
    ms_of_ticks,
    part_number,
    part_of,
    parts_from,
    shard_in,
    ticks_of,
)
from capellini.store.interface import Batch, Key, Row, Slice, Value
from capellini.store.schema import TIMED_MOVED, TIMED_PARTS, TIMED_ROWS

PAGE_ROWS: Final = 500  # of one read: some 100 KB of small messages
LOAD_ROWS: Final = 50  # read at once where single rows are looked for: neighbours come along
FEW_PARTS: Final = 3  # so many are looked at directly; of more, the list of parts says which there are
PARTS_PAGE: Final = 100
LAST_PART: Final = "~"  # stands after every part
DROP_AHEAD_US: Final = 3_600_000_000  # a drop outdates rows whose writers' clocks were ahead; nothing comes later

_ENTRY: Final = msgspec.msgpack.Decoder(Entry)


class TimedRow(msgspec.Struct, frozen=True):
    position: UUID
    id: UUID
    version: int  # how often its due was changed; moves that came to nothing are not counted
    due_ms: int
    put_ms: int
    entry: Entry
    key: str | None = None
    cancelled: bool = False
    moved_to: UUID | None = None
    moved_from: UUID | None = None
    deliveries: int = 0  # before it was moved here

    @property
    def name(self) -> tuple[UUID, int]:
        """Rows with one name are copies of one message. What was moved has no copies: its place names it, so that
        the rows of two moves, one of which came to nothing, are not taken for each other."""
        return (self.position, self.version) if self.version else (self.id, 0)

    @property
    def source(self) -> tuple[UUID, int]:
        """The name of the row that this one was moved from."""
        assert self.moved_from is not None
        return (self.moved_from, self.version - 1) if self.version > 1 else (self.id, 0)


def row_out(row: TimedRow) -> dict[str, Value]:
    values: dict[str, Value] = {
        "due_ms": row.due_ms,
        "put_ms": row.put_ms,
        "entry": msgspec.msgpack.encode(row.entry),
    }
    if row.id != row.position:
        values["id"] = row.id
    if row.version:
        values["version"] = row.version
    if row.deliveries:
        values["deliveries"] = row.deliveries
    if row.key is not None:
        values["key"] = row.key
    if row.moved_from is not None:
        values["moved_from"] = row.moved_from
    return values


def row_in(row: Row) -> TimedRow | None:
    """None: only a marker is there, of a message that was never written, or is written later."""
    values = row.values
    position, entry, due_ms, put_ms = row.key[0], values.get("entry"), values.get("due_ms"), values.get("put_ms")
    assert isinstance(position, UUID)
    if not (isinstance(entry, bytes) and isinstance(due_ms, int) and isinstance(put_ms, int)):
        return None
    id, version, key = values.get("id"), values.get("version"), values.get("key")
    moved_to, moved_from = values.get("moved_to"), values.get("moved_from")
    deliveries = values.get("deliveries")
    return TimedRow(
        position=position,
        id=id if isinstance(id, UUID) else position,
        version=version if isinstance(version, int) else 0,
        due_ms=due_ms,
        put_ms=put_ms,
        entry=_ENTRY.decode(entry),
        key=key if isinstance(key, str) else None,
        cancelled=values.get("cancelled") is True,
        moved_to=moved_to if isinstance(moved_to, UUID) and moved_to != position else None,
        moved_from=moved_from if isinstance(moved_from, UUID) else None,
        deliveries=deliveries if isinstance(deliveries, int) else 0,
    )


def partition_of(place: TimedPlace, position: UUID) -> Key:
    part = part_of(ticks_of(position), place.options.granularity)
    return (*place.partition, part, shard_in(position))


async def write_rows(place: TimedPlace, rows: Sequence[TimedRow], new: bool = False, begun: bool = False) -> None:
    """All of them, of one shard, one batch per partition. `new`: nobody has written them or knows of them. `begun`:
    readers wait for what they finish, so that a disk that is nearly full takes them, too. Raises Unavailable only if
    none was written."""
    groups: dict[Key, list[TimedRow]] = {}
    for row in rows:
        groups.setdefault(partition_of(place, row.position), []).append(row)
    ends = {partition: max(row.due_ms for row in group) for partition, group in groups.items()}
    await _listed(place, shard_in(rows[0].position), ends, begun)
    writes = []
    for partition, group in groups.items():
        made = tuple([((row.position,), row_out(row)) for row in group])
        batch = Batch(TIMED_ROWS, partition, made, ttl_s=place.ttl_s(ends[partition]), new=new, frees=begun)
        writes.append(place.store.write(batch))
    if len(writes) == 1:
        await writes[0]
        return
    results = await asyncio.gather(*writes, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors and len(errors) < len(results) and isinstance(errors[0], Unavailable):
        raise Unknown(f"a part of it was written: {errors[0].says}") from errors[0]
    if errors:
        raise next((error for error in errors if not isinstance(error, Unavailable)), errors[0])


async def mark_row(place: TimedPlace, position: UUID, due_ms: int, stamp: int, **marker: Value) -> None:
    """`moved_to` the place itself: it stays here, whatever an earlier move may still say. It takes next to no room, and
    what is cancelled makes some."""
    rows: tuple[tuple[Key, dict[str, Value]], ...] = (((position,), dict(marker)),)
    partition, ttl_s = partition_of(place, position), place.ttl_s(due_ms)
    await _listed(place, shard_in(position), {partition: due_ms}, frees=True)
    await place.store.write(Batch(TIMED_ROWS, partition, rows, ttl_s=ttl_s, timestamp_us=stamp, frees=True))


async def _listed(place: TimedPlace, shard: int, ends: dict[Key, int], frees: bool) -> None:
    """Before anything is written into a part, its shard and then the part are on their lists: whoever works or clears
    the queue finds it, whatever becomes of this node. Once for each part in each node. `ends`: the latest due of what
    comes into each partition."""
    missing = [partition for partition in ends if partition not in place.listed]
    if not missing:
        return
    await place.register(shard)
    rows: list[tuple[Key, dict[str, Value]]] = [((where[2],), {"first_ms": ends[where]}) for where in missing]
    ttl_s = place.ttl_s(max(ends[partition] for partition in missing))
    await place.store.write(Batch(TIMED_PARTS, (*place.partition, shard), tuple(rows), ttl_s=ttl_s, frees=frees))
    for partition in missing:
        place.saw_part(partition)


async def note_move(place: TimedPlace, row: TimedRow, there: UUID, stamp: int) -> None:
    """Where to look for it from now on; where it was, in case the move goes no further."""
    values: dict[str, Value] = {"position": there, "before": row.position}
    ttl_s = place.ttl_s(max(row.due_ms, ms_of_ticks(ticks_of(there))))
    partition = (*place.partition, row.id)
    await place.store.write(Batch(TIMED_MOVED, partition, (((), values),), ttl_s=ttl_s, timestamp_us=stamp, frees=True))


async def read_note(place: TimedPlace, id: UUID) -> tuple[UUID, UUID] | None:
    """Where the last move of this message was to, and from where. None: it was never moved."""
    page = await place.store.read(Slice(TIMED_MOVED, (*place.partition, id), limit=1))
    if not page.rows:
        return None
    position, before = page.rows[0].values.get("position"), page.rows[0].values.get("before")
    return (position, before) if isinstance(position, UUID) and isinstance(before, UUID) else None


async def read_row(place: TimedPlace, position: UUID) -> TimedRow | None:
    page = await place.store.read(Slice(TIMED_ROWS, partition_of(place, position), start=(position,), limit=1))
    return row_in(page.rows[0]) if page.rows and page.rows[0].key == (position,) else None


class Reach(msgspec.Struct, frozen=True):
    """What one read brought: the rows, and up to where all was read."""

    rows: list[TimedRow]
    to: UUID
    parts: list[str]  # that had rows


async def read_between(place: TimedPlace, shard: int, after: UUID, to_ticks: int, limit: int) -> Reach:
    """Rows above `after` up to the tick `to_ticks`, at most about `limit` of them, in order."""
    rows: list[TimedRow] = []
    parts: list[str] = []
    async with aclosing(_parts(place, shard, ticks_of(after), to_ticks)) as listed:
        async for part in listed:
            partition = (*place.partition, part, shard)
            bounds = Slice(TIMED_ROWS, partition, after=(after,), end=(before(to_ticks + 1),), limit=limit - len(rows))
            page = await place.store.read(bounds)
            if page.rows:
                parts.append(part)
                rows += [row for row in map(row_in, page.rows) if row is not None]
                if page.more:
                    last = page.rows[-1].key[0]
                    assert isinstance(last, UUID)
                    return Reach(rows, last, parts)
            if len(rows) >= limit:
                return Reach(rows, _part_end(page.rows, after), parts)
    return Reach(rows, behind(to_ticks), parts)


def _part_end(rows: list[Row], after: UUID) -> UUID:
    last = rows[-1].key[0] if rows else after
    assert isinstance(last, UUID)
    return last


async def _parts(place: TimedPlace, shard: int, from_ticks: int, to_ticks: int) -> AsyncGenerator[str]:
    """The parts to look at. Far apart, the list of parts says which there are: a part is on it before any put into it
    is confirmed. It is read no further than is asked for: minutes of years are millions."""
    granularity = place.options.granularity
    if from_ticks > 0:
        near = parts_near(from_ticks, to_ticks, granularity)
        if near is not None:
            for part in near:
                yield part
            return
    first = part_of(from_ticks, granularity) if from_ticks > 0 else ""
    async with aclosing(_pages_of_parts(place, shard, first, part_of(to_ticks, granularity) + "\0")) as pages:
        async for page in pages:
            for part in page:
                yield part


def parts_near(from_ticks: int, to_ticks: int, granularity: str) -> list[str] | None:
    """All parts between, if they are few."""
    if part_number(to_ticks, granularity) - part_number(from_ticks, granularity) >= FEW_PARTS:
        return None
    return parts_from(from_ticks, to_ticks, granularity)


async def list_parts(place: TimedPlace, shard: int, first: str = "", last: str = LAST_PART) -> list[str]:
    """The parts of a shard that have been written to, from `first` to `last`."""
    return [part async for page in _pages_of_parts(place, shard, first, last) for part in page]


async def _pages_of_parts(place: TimedPlace, shard: int, first: str, last: str) -> AsyncGenerator[list[str]]:
    start = first
    while True:
        bounds = Slice(
            TIMED_PARTS, (*place.partition, shard), start=(start,) if start else None, end=(last,), limit=PARTS_PAGE
        )
        page = await place.store.read(bounds)
        found = [str(row.key[0]) for row in page.rows]
        yield found
        if not page.more:
            return
        start = found[-1] + "\0"


async def drop_part(place: TimedPlace, part: str, shard: int) -> None:
    """Whole, whatever is in it."""
    stamp_us = int(place.clock.now_s() * 1e6) + DROP_AHEAD_US
    await place.store.drop(TIMED_ROWS, (*place.partition, part, shard), timestamp_us=stamp_us)


async def drop_parts(place: TimedPlace, shard: int) -> None:
    """All that an ended generation has in a shard. The list goes last: what is left of it says what is left."""
    for part in await list_parts(place, shard):
        await drop_part(place, part, shard)
    stamp_us = int(place.clock.now_s() * 1e6) + DROP_AHEAD_US
    await place.store.drop(TIMED_PARTS, (*place.partition, shard), timestamp_us=stamp_us)


async def load_rows(place: TimedPlace, positions: Sequence[UUID]) -> dict[UUID, TimedRow]:
    """The rows at these positions, as far as they are there; neighbours are read together."""
    found: dict[UUID, TimedRow] = {}
    groups: dict[Key, set[UUID]] = {}
    for position in positions:
        groups.setdefault(partition_of(place, position), set()).add(position)
    for partition, wanted in groups.items():
        todo = sorted(wanted, key=order_key)
        at = 0
        while at < len(todo):
            page = await place.store.read(Slice(TIMED_ROWS, partition, start=(todo[at],), limit=LOAD_ROWS))
            for row in page.rows:
                if row.key[0] in wanted and (read := row_in(row)) is not None:
                    found[read.position] = read
            if not page.more:
                break
            last = page.rows[-1].key[0]
            assert isinstance(last, UUID)
            at += 1
            while at < len(todo) and order_key(todo[at]) <= order_key(last):
                at += 1
    return found


def order_key(position: UUID) -> tuple[int, bytes]:
    """Sorts positions as stores do: by time, then by the lower half as signed bytes."""
    low = (position.int & (1 << 64) - 1) ^ LEAST_XOR
    return ticks_of(position), low.to_bytes(8)


LEAST_XOR: Final = 0x8080808080808080  # turns signed bytes into unsigned ones of the same order
