"""Records: what a shard's holder has finished, durable before it is confirmed.

    timed_records (queue, generation, shard, epoch, run) ▸ seq     0: a snapshot, then changes, in order

A change names positions: finished (acked, cancelled, moved away), hidden until a time (nacked), counted (delivered
more than once), moving (to the dead letters, or to another due). A position takes about 9 bytes.

A snapshot says all of it in proportion to what is unfinished, not to what was finished:

    read         all rows up to here were read: what is not `open` is finished
    open         the positions up to `read` that are unfinished
    recent       ids that are finished and not further than COPY_WITHIN_S below `read`: second copies of them may come

A snapshot also ends the time in which a row may be judged again: one whose key named another id must not be met by a
holder that finds the key forgotten. So there is one soon after anything was read (SNAPSHOT_EVERY_S).

Runs. A snapshot opens a new run, in a partition of its own; then the shard's row names it, then the run before is
dropped whole. Changes are written one at a time, so that a run has no gaps. A new holder reads the run of the highest
epoch below its own, and writes its own first snapshot before it does anything else: what lands later under lower
epochs is never looked at again. So then it drops the run that it has read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

import msgspec

from capellini.model.errors import Unavailable
from capellini.queues.cursor import get_number, put_number
from capellini.queues.timed.horizon import ENDLESS, read_shard
from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.positions import _uuid, ticks_of
from capellini.queues.timed.rows import order_key
from capellini.store.interface import Batch, Key, Slice
from capellini.store.schema import TIMED_RECORDS

PAGE: Final = 500
LOOKS: Final = 3  # for a run that is there: whoever does not hold the shard may see one that is just replaced
EPOCHS: Final = 1_000  # earlier holders that a new one looks at: takers that wrote no snapshot are passed over

Name = tuple[UUID, int]  # id and version: what copies share
Noted = tuple[Name, int]  # by name, not by position: a new holder may read another copy first


class Moving(msgspec.Struct, frozen=True, array_like=True):
    """On its way. Without a position: to the dead letters."""

    position: UUID | None = None
    due_ms: int = 0
    deliveries: int = 0


class Change(msgspec.Struct, array_like=True):
    done: bytes = b""  # packed positions
    names: list[tuple[UUID, int]] = []  # of those done that are not named by their position
    hidden: list[Noted] = []  # until, in ms
    counts: list[Noted] = []
    moving: list[tuple[UUID, Moving]] = []
    stays: list[UUID] = []  # positions that are not moving any more


class Snapshot(msgspec.Struct, array_like=True):
    read: UUID
    dropped: str  # parts up to this one are dropped
    open: bytes
    hidden: list[Noted]
    counts: list[Noted]
    moving: list[tuple[UUID, Moving]]
    recent: bytes
    names: list[tuple[UUID, int]]
    next_offset: int
    ahead: bytes = b""  # finished before they were read: cancelled above `read`


class Known(msgspec.Struct):
    """What the records say, put together."""

    read: UUID
    dropped: str = ""
    open: set[UUID] = msgspec.field(default_factory=set)
    done: set[UUID] = msgspec.field(default_factory=set)  # above `read`
    hidden: dict[Name, int] = msgspec.field(default_factory=dict)
    counts: dict[Name, int] = msgspec.field(default_factory=dict)
    moving: dict[UUID, Moving] = msgspec.field(default_factory=dict)
    recent: set[Name] = msgspec.field(default_factory=set)
    next_offset: int = 0
    said_by: Key | None = None  # the run that was read


_CHANGE: Final = msgspec.msgpack.Decoder(Change)
_SNAPSHOT: Final = msgspec.msgpack.Decoder(Snapshot)
BEGINNING: Final = _uuid(0, 0x8080808080808080)


def packed(positions: Iterable[UUID]) -> bytes:
    """Positions of one shard, in about 9 bytes each."""
    out = bytearray()
    last = 0
    for position in sorted(positions, key=ticks_of):
        ticks, low = ticks_of(position), position.int & (1 << 64) - 1
        put_number(out, ticks - last)
        last = ticks
        out += (low >> 48).to_bytes(2) + (low & 0xFFFFFFFF).to_bytes(4)
    return bytes(out)


def unpacked(data: bytes, shard: int) -> list[UUID]:
    view = memoryview(data)
    found: list[UUID] = []
    at = ticks = 0
    while at < len(view):
        distance, at = get_number(view, at)
        ticks += distance
        high, low = int.from_bytes(view[at : at + 2]), int.from_bytes(view[at + 2 : at + 6])
        found.append(_uuid(ticks, high << 48 | shard << 32 | low))
        at += 6
    return found


def known_of(snapshot: Snapshot, changes: Iterable[Change], shard: int) -> Known:
    """What a new holder knows: pure."""
    known = Known(
        read=snapshot.read,
        dropped=snapshot.dropped,
        open=set(unpacked(snapshot.open, shard)),
        done=set(unpacked(snapshot.ahead, shard)),
        hidden=dict(snapshot.hidden),
        counts=dict(snapshot.counts),
        moving=dict(snapshot.moving),
        recent={(id, 0) for id in unpacked(snapshot.recent, shard)} | {(id, at) for id, at in snapshot.names},
        next_offset=snapshot.next_offset,
    )
    read = order_key(known.read)
    for change in changes:
        done = unpacked(change.done, shard)
        known.open.difference_update(done)
        known.done.update(position for position in done if order_key(position) > read)
        known.recent.update((position, 0) for position in done)
        known.recent.update((id, version) for id, version in change.names)
        known.hidden.update(change.hidden)
        known.counts.update(change.counts)
        known.moving.update(change.moving)
        for name in (*((position, 0) for position in done), *change.names):
            known.hidden.pop(name, None)
            known.counts.pop(name, None)
        for position in (*done, *change.stays):
            known.moving.pop(position, None)
    return known


def partition_of(place: TimedPlace, shard: int, epoch: int, run: int) -> Key:
    return (*place.partition, shard, epoch, run)


async def write_record(
    place: TimedPlace, shard: int, epoch: int, run: int, seq: int, record: Change | Snapshot
) -> None:
    rows = (((seq,), {"record": msgspec.msgpack.encode(record)}),)
    await place.store.write(Batch(TIMED_RECORDS, partition_of(place, shard, epoch, run), rows, frees=True))


async def read_known(place: TimedPlace, shard: int, epoch: int) -> tuple[Known, int]:
    """What holders before `epoch` have left, and the highest horizon they published (0: nobody was before)."""
    for _ in range(LOOKS):
        rows = await read_shard(place, shard, EPOCHS)
        if rows and rows[0].horizon >= ENDLESS:
            raise Unavailable(f"generation {place.generation} of {place.name} is over: nobody works it any more")
        before = [row for row in rows if row.epoch < epoch]
        horizon = max((row.horizon for row in before), default=0)
        named = next(((row.epoch, row.run) for row in before if row.run is not None), None)
        if named is None:
            return Known(BEGINNING), horizon
        known = await _read_run(place, shard, *named)
        if known is not None:
            return known, horizon
    raise Unavailable(f"generation {place.generation} of {place.name} is being cleared")


async def _read_run(place: TimedPlace, shard: int, epoch: int, run: int) -> Known | None:
    """None: it was dropped between two reads, with all of its generation or because there is a newer one."""
    partition = partition_of(place, shard, epoch, run)
    rows = []
    after: Key | None = None
    while True:
        page = await place.store.read(Slice(TIMED_RECORDS, partition, after=after, limit=PAGE))
        rows += [record for row in page.rows if isinstance(record := row.values.get("record"), bytes)]
        if not page.more:
            break
        after = page.rows[-1].key
    if not rows:
        return None
    known = known_of(_SNAPSHOT.decode(rows[0]), map(_CHANGE.decode, rows[1:]), shard)
    known.said_by = partition
    return known
