"""What each operation writes, as one RocksDB batch. Nothing here writes it: the store does, at once.

Most writes are newer than everything there is (stamps.py): a whole row is then put without looking at what it
replaces, and a drop is one range delete. A write with an older timestamp reads first and merges cell by cell
(store/cells.py). What was dropped or cleared leaves a mark in the partition's head, so that an older write never brings
anything back; upkeep.py removes marks, tombstones and expired rows when they have served.
"""

from __future__ import annotations

from typing import Any, Final

from rocksdict import WriteBatch

from capellini.store.cells import TOMBSTONE, Cells, RowCodec, merge
from capellini.store.checks import MAX_TTL_S, rules_of
from capellini.store.interface import MAX_BATCH_ROWS, MAX_VALUE_BYTES, Batch, Cas, Change, Key, Level
from capellini.store.layout import (
    APART_KEYS,
    BEYOND,
    HEAD,
    ROWS,
    SHARED_KEYS,
    STATIC,
    Mark,
    Plan,
    add_mark,
    deleted_until,
    pack_marks,
    unpack_marks,
)
from capellini.store.rocks.database import Database, Space, upper
from capellini.store.rocks.recent import Known, anew
from capellini.store.rocks.stamps import Stamps

_SERIAL: Final = (Level.SERIAL, Level.LOCAL_SERIAL)


class Batches:
    """Makes batches from requests, with the timestamps they carry."""

    def __init__(self, database: Database, stamps: Stamps) -> None:
        self._database = database
        self._stamps = stamps

    # ---- plain writes

    def blind(self, plan: Plan, batch: Batch) -> WriteBatch | None:
        """The usual batch: whole rows, newer than everything there is, checked and put in one pass without a look.
        None: it is another kind of batch, or a wrong one."""
        rows, ttl_s = batch.rows, batch.ttl_s
        if (
            not plan.blind
            or not 0 < len(rows) <= MAX_BATCH_ROWS
            or batch.static is not None
            or batch.clear_before is not None
            or batch.timestamp_us is not None
            or batch.level in _SERIAL
            or (ttl_s is not None and not (type(ttl_s) is int and 0 < ttl_s <= MAX_TTL_S))
        ):
            return None
        rules_of(batch.table).check_partition(batch.partition)
        space = self._database.space(plan, plan.prefix(batch.partition))
        now_us = self._stamps.now_us()
        timestamp_us = self._stamps.tick(now_us)
        if space is None or not self._stamps.newest(plan.number, timestamp_us):
            return None
        expiry_us = now_us + ttl_s * 1_000_000 if ttl_s else 0
        made = WriteBatch(raw_mode=True)
        if not plan.put_whole(rows, made.put, space.base, space.handle, timestamp_us, expiry_us):
            return None
        if made.size_in_bytes() > MAX_VALUE_BYTES:
            return None  # one of them may be too large
        self._stamps.wrote(plan.number, timestamp_us)
        return made

    def merging(self, plan: Plan, batch: Batch, space: Space, prefix: bytes) -> WriteBatch:
        """Any batch that was found good: cell by cell with what is there."""
        now_us = self._stamps.now_us()
        timestamp_us = self._stamps.tick(now_us) if batch.timestamp_us is None else batch.timestamp_us
        fresh = self._stamps.newest(plan.number, timestamp_us)
        expiry_us = now_us + batch.ttl_s * 1_000_000 if batch.ttl_s else 0
        made = WriteBatch(raw_mode=True)
        pending: dict[bytes, Cells] = {}
        marks = () if fresh and batch.clear_before is None else self._marks(prefix)
        if batch.clear_before is not None:
            bound = plan.keys.prefix(batch.clear_before)
            mark = Mark(timestamp_us, bound)
            marks = add_mark(marks, mark)
            made.put(prefix + HEAD, pack_marks(marks, now_us))
            if fresh:
                made.delete_range(space.base, space.base + bound, space.handle)
            else:
                pending = self._prune(plan, space, made, mark)
        for key, values in batch.rows:
            place = plan.keys.encode(key)
            if deleted_until(marks, place) >= timestamp_us:
                continue
            whole = plan.rows.whole(values, timestamp_us, expiry_us) if fresh and plan.blind else None
            if whole is None:
                cells = plan.rows.cells(values, timestamp_us, expiry_us, now_us)
                old = {} if batch.new else pending.get(place)
                if old is None:
                    old = self._cells(plan.rows, space.rows, space.base + place)
                whole = plan.rows.record(merge(old, cells))
            made.put(space.base + place, whole, space.handle)
        if batch.static and deleted_until(marks, None) < timestamp_us:
            cells = plan.statics.cells(batch.static, timestamp_us, expiry_us, now_us)
            old = self._cells(plan.statics, self._database.rows, prefix + STATIC)
            made.put(prefix + STATIC, plan.statics.record(merge(old, cells)))
        self._stamps.wrote(plan.number, timestamp_us)
        return made

    def _marks(self, prefix: bytes) -> tuple[Mark, ...]:
        return unpack_marks(self._database.rows.get(prefix + HEAD))

    def _cells(self, codec: RowCodec, where: Any, place: bytes) -> Cells:
        record = where.get(place)
        return {} if record is None else codec.parse(record)

    def _prune(self, plan: Plan, space: Space, made: WriteBatch, mark: Mark) -> dict[bytes, Cells]:
        """Delete what a mark covers that is older than something in the store: newer cells stay.
        The rows that were changed."""
        pruned: dict[bytes, Cells] = {}
        options = upper(space.upper if mark.bound is None else space.base + mark.bound)
        for place, record in space.rows.items(from_key=space.base, read_opt=options):
            old = plan.rows.parse(record)
            kept = {at: cell for at, cell in old.items() if cell[0] > mark.timestamp_us}
            if len(kept) != len(old):
                _replace(made, plan.rows, place, kept, space.handle)
                pruned[place[len(space.base) :]] = kept
        return pruned

    # ---- dropping

    def drop(
        self, plan: Plan, prefix: bytes, space: Space | None, timestamp_us: int | None
    ) -> tuple[WriteBatch, Space | None]:
        """The batch, and the space that goes with it."""
        now_us = self._stamps.now_us()
        mark = Mark(self._stamps.tick(now_us) if timestamp_us is None else timestamp_us, None)
        made = WriteBatch(raw_mode=True)
        if self._stamps.newest(plan.number, mark.timestamp_us):
            _erase(plan, prefix, space, made)
            made.put(prefix + HEAD, pack_marks((mark,), now_us))
            self._stamps.wrote(plan.number, mark.timestamp_us)
            return made, space
        made.put(prefix + HEAD, pack_marks(add_mark(self._marks(prefix), mark), now_us))
        old = self._cells(plan.statics, self._database.rows, prefix + STATIC)
        _replace(made, plan.statics, prefix + STATIC, {at: c for at, c in old.items() if c[0] > mark.timestamp_us})
        if space is not None:
            self._prune(plan, space, made, mark)
        return made, None

    # ---- compare-and-set

    def over(self, plan: Plan, known: Known, change: Change) -> WriteBatch | None:
        """What a change of a row that is known writes, when all of the row is written anew."""
        timestamp_us = self._stamps.above(plan.number)
        record = anew(known, change, timestamp_us)
        if record is None:
            return None
        self._stamps.wrote(plan.number, timestamp_us)
        made = WriteBatch(raw_mode=True)
        made.put(known.place, record)
        return made

    def changes(
        self, plan: Plan, cas: Cas, prefix: bytes, space: Space | None, records: dict[Key | None, bytes | None]
    ) -> WriteBatch:
        """What a compare-and-set writes whose conditions hold. `records` are the rows as they were."""
        made = WriteBatch(raw_mode=True)
        now_us = self._stamps.now_us()
        dropped_us = self._stamps.above(plan.number)  # somebody may have written a timestamp of the future
        self._stamps.wrote(plan.number, dropped_us)
        timestamp_us = self._stamps.above(plan.number)
        self._stamps.wrote(plan.number, timestamp_us)
        if cas.drop:
            _erase(plan, prefix, space, made)
            made.put(prefix + HEAD, pack_marks((Mark(dropped_us, None),), now_us))
            records = dict.fromkeys(records)
        expiry_us = now_us + cas.ttl_s * 1_000_000 if cas.ttl_s else 0
        for change in cas.changes:
            codec = plan.statics if change.key is None else plan.rows
            record = records[change.key]
            cells = codec.parse(record) if record is not None else {}
            for at, cell in codec.cells(change.values, timestamp_us, expiry_us, now_us).items():
                if cell[1] != TOMBSTONE:
                    cells[at] = cell
                else:
                    cells.pop(at, None)  # no tombstone: nothing older can come for a conditional cell
            if change.key is None:
                _replace(made, codec, prefix + STATIC, cells)
            elif space is not None:
                _replace(made, codec, space.base + plan.keys.encode(change.key), cells, space.handle)
        return made


def _replace(made: WriteBatch, codec: RowCodec, place: bytes, cells: Cells, handle: Any = None) -> None:
    if cells:
        made.put(place, codec.record(cells), handle)
    else:
        made.delete(place, handle)


def _erase(plan: Plan, prefix: bytes, space: Space | None, made: WriteBatch) -> None:
    """Static columns and rows, without looking at them."""
    if plan.table.apart and space is not None and not space.number:
        made.delete(SHARED_KEYS + prefix)
    if space is not None and space.number:
        made.delete(APART_KEYS + space.number.to_bytes(8, "big"))
        made.delete(prefix + STATIC)
    elif plan.keys.types:
        made.delete_range(prefix + STATIC, prefix + BEYOND)
    else:
        made.delete(prefix + ROWS)  # one row: a range would cost every later reader more
