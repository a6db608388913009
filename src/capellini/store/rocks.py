"""The store in a folder: RocksDB inside this process.

    write, compare_and_set ─▶ decide ─▶ one RocksDB batch, at once, on the loop ─▶ wait for the shared fsync
    read                   ─▶ straight from RocksDB, on the loop

One process has the folder open (store/folder.py), and all its calls come from one event loop. What a call decides
and writes happens between two awaits, so compare-and-sets are linear without any lock.

A reader may see what is not yet synced. That is sound: whoever acts on it and wants a confirmation writes later,
and a later fsync makes everything before it durable too (there is one log). If the machine stops before, both are
gone.

Timestamps. A write without one takes the clock's, but always a higher one than the last. The highest timestamp ever
written is known (`_newest_us`, kept in the folder within a second), so most writes are known to be newer than
everything there is: a whole row is then put without looking at what it replaces, and a drop is one range delete. A
write with an older timestamp reads first and merges cell by cell (store/cells.py). What was dropped or cleared
leaves a mark in the partition's head, so that an older write never brings anything back; `sweep` removes marks,
tombstones and expired rows when they have served.

Key layout: store/layout.py. Where RocksDB fails: store/worker.py.
"""

from __future__ import annotations

import asyncio
import struct
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import msgspec
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from capellini.model.clock import Clock
from capellini.model.errors import CannotOpen, Invalid, Unavailable
from capellini.store import folder as folders
from capellini.store.cells import Cells, RowCodec, merge
from capellini.store.checks import (
    MAX_TTL_S,
    check_batch,
    check_cas,
    check_drop,
    check_partitions,
    check_slice,
    rules_of,
)
from capellini.store.interface import (
    ABSENT,
    MAX_KEY_BYTES,
    Batch,
    Cas,
    Change,
    Counts,
    Key,
    Level,
    Outcome,
    Page,
    Row,
    Slice,
    Store,
    Table,
    Value,
)
from capellini.store.layout import (
    APART_KEYS,
    BEYOND,
    CLOCK_KEY,
    FIRST_TABLE,
    HEAD,
    ROWS,
    STATIC,
    TABLE_KEYS,
    Mark,
    Plan,
    add_mark,
    declaration,
    deleted_until,
    marks_made_us,
    pack_marks,
    unpack_marks,
)
from capellini.store.sweeping import GRACE_US, swept
from capellini.store.worker import SyncWorker

CACHE_BYTES: Final = 32 * 1024 * 1024  # one block cache for everything: hot rows are in memtables anyway
MEMTABLE_BYTES: Final = 16 * 1024 * 1024
MEMTABLES_BYTES: Final = 64 * 1024 * 1024  # of all column families together
LOG_BYTES: Final = 128 * 1024 * 1024  # a larger log makes its oldest column families flush: bounds the time to open
BLOOM_BITS: Final = 10  # per key: one of a hundred misses reads a block for nothing
OPEN_FILES: Final = 512
CLOCK_EVERY_US: Final = 1_000_000  # how far the highest timestamp in the folder may lag behind
_CLOCK: Final = struct.Struct(">qq")

CALLS_PER_TURN: Final = 8  # so many calls may pass without a wait; then others get their turn
_SERIAL: Final = (Level.SERIAL, Level.LOCAL_SERIAL)


class Swept(msgspec.Struct, frozen=True):
    """What one call of `sweep` did. `finished`: it came to the end, and the next call starts over."""

    seen: int
    removed: int
    finished: bool


class Space(msgspec.Struct, frozen=True):
    """Where the rows of a partition are: in the common column family below a prefix, or in one of their own."""

    rows: Any  # the Rdict to read from
    handle: Any  # of its column family, for batches; None: the common one
    base: bytes  # what comes before the clustering key
    upper: bytes | None  # above all its rows
    number: int = 0  # of its own column family


def _options(cache: Cache, create: bool) -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_bloom_filter(BLOOM_BITS, False)
    blocks.set_cache_index_and_filter_blocks(True)  # counted in the cache, so that memory stays bounded
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(MEMTABLE_BYTES)
    options.set_db_write_buffer_size(MEMTABLES_BYTES)
    options.set_max_total_wal_size(LOG_BYTES)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_background_jobs(2)
    options.set_max_open_files(OPEN_FILES)
    options.set_bytes_per_sync(1024 * 1024)  # flushes write evenly, so that they disturb the log's fsyncs less
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(1024 * 1024)
    return options


def _upper(bound: bytes | None) -> ReadOptions:
    """Must live as long as its iterator: RocksDB keeps a pointer to the bound.
    (There is no lower bound: where it is asked for, rocksdict sets the upper one instead.)"""
    options = ReadOptions()
    if bound is not None:
        options.set_iterate_upper_bound(bound)
    return options


class RocksStore(Store):
    """Made by `open`, or by `open_secondary` to look at a folder that another process has open."""

    alone = True

    def __init__(
        self, folder: Path, clock: Clock, options: Options, db: Any, lock: folders.FolderLock | None, room_bytes: int
    ) -> None:
        self.folder: Final = folder
        self.counts = Counts()
        self._clock = clock
        self._options = options
        self._db = db
        self._lock = lock
        self._secondary: Path | None = None
        self._closed = False
        self._room = folders.Room(folder, clock, room_bytes)
        self._worker = SyncWorker(lambda: db.flush_wal(True), clock, self.counts)
        self._calls = 0
        self._plans: dict[str, Plan] = {}
        self._apart: dict[bytes, Space] = {}
        self._cursor: tuple[int, bytes] = (0, b"")
        self._load()

    # ---- opening and closing

    @classmethod
    async def open(
        cls, folder: Path, *, create: bool = True, clock: Clock, room_bytes: int = folders.ROOM_BYTES
    ) -> RocksStore:
        """Raises CannotOpen, InUse when another process has it open, or Full."""
        folders.make(folder, create)
        lock = folders.FolderLock(folder)
        try:
            folders.migrate(folder)
            fresh = folders.read_format(folder) is None
            options = _options(Cache(CACHE_BYTES), fresh)
            db = _open_db(folder, options, AccessType.read_write())
            if fresh:
                folders.write_format(folder)
            return cls(folder, clock, options, db, lock, room_bytes)
        except BaseException:
            lock.release()
            raise

    @classmethod
    async def open_secondary(cls, folder: Path, scratch: Path, *, clock: Clock) -> RocksStore:
        """Read what another process writes, as of the last `refresh`. `scratch` is a folder for RocksDB's own notes."""
        if folders.read_format(folder) is None:
            raise CannotOpen(f"{folder} holds no store: nothing was ever stored there")
        options = _options(Cache(CACHE_BYTES), False)
        options.set_max_open_files(-1)  # a secondary must hold its files open: the other process deletes them
        db = _open_db(folder, options, AccessType.secondary(str(scratch)))
        store = cls(folder, clock, options, db, None, 0)
        store._secondary = scratch
        return store

    async def refresh(self) -> None:
        """A secondary: see what was written since. Everybody else sees it anyway."""
        self._open()
        if self._secondary is None:
            return
        self._db.try_catch_up_with_primary()
        known = {space.number for space in self._apart.values()}
        if {int.from_bytes(key[len(APART_KEYS) :], "big") for key, _ in self._registered(APART_KEYS)} != known:
            self._close_db()  # a secondary sees only the column families there were when it was opened
            self._db = _open_db(self.folder, self._options, AccessType.secondary(str(self._secondary)))
        self._load()

    def _load(self) -> None:
        """What the folder says about itself."""
        now_us = self._now_us()
        last_us, newest_us = _CLOCK.unpack(self._db.get(CLOCK_KEY) or bytes(16))
        self._last_us = last_us + CLOCK_EVERY_US if now_us <= last_us + CLOCK_EVERY_US else now_us
        self._newest_us = newest_us + CLOCK_EVERY_US
        self._marked_us = (0, 0)
        self._numbers = {
            bytes(key[len(TABLE_KEYS) :]).decode(): msgspec.json.decode(value)
            for key, value in self._registered(TABLE_KEYS)
        }
        self._apart = {}
        names = set(Rdict.list_cf(str(self.folder / folders.DATA_FOLDER), self._options)) - {"default"}
        for key, prefix in self._registered(APART_KEYS):
            number = int.from_bytes(key[len(APART_KEYS) :], "big")
            if f"a{number}" in names:  # else it was dropped, and the crash came before this line was
                self._apart[prefix] = self._own_space(number)
                names.discard(f"a{number}")
        if self._secondary is None and self._lock is not None:
            for name in names:  # made or dropped, and the crash came before it was written down
                self._db.drop_column_family(name)

    def _registered(self, start: bytes) -> list[tuple[bytes, bytes]]:
        options = _upper(start[:-1] + bytes([start[-1] + 1]))
        return list(self._db.items(from_key=start, read_opt=options))

    async def prepare(self, tables: tuple[Table, ...], create: bool = True) -> None:
        self._open()
        made = WriteBatch(raw_mode=True)
        for table in tables:
            declared = declaration(table)
            stored = self._numbers.get(table.name)
            if stored is None:
                if not create or self._lock is None:
                    raise CannotOpen(
                        f"{self.folder} has no table {table.name}: open it once with an up-to-date Capellini"
                    )
                number = max((entry["number"] for entry in self._numbers.values()), default=FIRST_TABLE - 1) + 1
                stored = self._numbers[table.name] = {"number": number, "columns": declared}
                made.put(TABLE_KEYS + table.name.encode(), msgspec.json.encode(stored))
            elif stored["columns"] != declared:
                raise CannotOpen(
                    f"{self.folder}: table {table.name} was made with other columns, by another version of Capellini"
                )
            self._plans[table.name] = Plan(table, stored["number"])
        if len(made):
            self._apply(made)
            await self._worker.wait()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._lock is not None and self._worker.failure is None:
                await self._worker.wait()
        finally:
            self._worker.close()
            self._close_db()
            if self._lock is not None:
                self._lock.release()

    def _close_db(self) -> None:
        for space in self._apart.values():
            space.rows.close()
        self._apart = {}
        self._db.close()

    def _open(self) -> None:
        if self._closed:
            raise Unavailable("the store is closed")

    def _writable(self, conditional: bool = False) -> None:
        """Raises Unavailable or Full: nothing was changed."""
        self._open()
        if self._lock is None:
            raise Unavailable(f"{self.folder} is open for reading only: another process writes it")
        self._worker.check()
        self._room.check(conditional)

    # ---- time

    def _now_us(self) -> int:
        return int(self._clock.now_s() * 1_000_000)

    def _tick(self, now_us: int) -> int:
        """A timestamp above all that this store gave before."""
        self._last_us = now_us if now_us > self._last_us else self._last_us + 1
        return self._last_us

    # ---- places

    def _plan(self, table: Table) -> Plan:
        plan = self._plans.get(table.name)
        if plan is None or (plan.table is not table and plan.table != table):
            raise Invalid(f"table {table.name} was not prepared as declared")
        return plan

    def _space(self, plan: Plan, prefix: bytes) -> Space | None:
        """None: a space apart that does not exist."""
        if plan.table.apart:
            return self._apart.get(prefix)
        return Space(self._db, None, prefix + ROWS, prefix + BEYOND)

    def _own_space(self, number: int) -> Space:
        name = f"a{number}"
        return Space(self._db.get_column_family(name), self._db.get_column_family_handle(name), b"", None, number)

    def _make_space(self, plan: Plan, prefix: bytes) -> Space:
        space = self._space(plan, prefix)
        if space is None:
            number = max((space.number for space in self._apart.values()), default=0) + 1
            self._db.create_column_family(f"a{number}", self._options)
            made = WriteBatch(raw_mode=True)
            made.put(APART_KEYS + number.to_bytes(8, "big"), prefix)
            if self._db.get(prefix + HEAD) is None:
                made.put(prefix + HEAD, pack_marks((), self._now_us()))  # by which `partitions` finds it
            self._apply(made)  # durable with what is then written there
            space = self._apart[prefix] = self._own_space(number)
        return space

    # ---- reading

    async def read(self, slice: Slice) -> Page:
        self._open()
        check_slice(slice)
        plan = self._plan(slice.table)
        self.counts.requests += 1
        self.counts.statements += 1
        self.counts.reads += 1
        now_us = self._now_us()
        prefix = plan.prefix(slice.partition)
        static: dict[str, Value] = {}
        if plan.static_names:
            record = self._db.get(prefix + STATIC)
            if record is not None:
                static = plan.statics.live(record, now_us, slice.columns) or {}
        space = self._space(plan, prefix) if slice.limit else None
        rows, more = self._rows(plan, space, slice, now_us) if space is not None else ([], False)
        await self._turn()
        return Page(rows, static, more)

    async def _turn(self) -> None:
        """Nothing here waits for a disk, so a caller in a loop would keep everybody else from running."""
        self._calls += 1
        if self._calls >= CALLS_PER_TURN:
            self._calls = 0
            await asyncio.sleep(0)

    def _rows(self, plan: Plan, space: Space, slice: Slice, now_us: int) -> tuple[list[Row], bool]:
        base, high, keys = space.base, space.upper, plan.keys
        low = base + keys.prefix(slice.start) if slice.start else base
        if slice.end is not None:
            high = base + keys.prefix(slice.end)
        if slice.after is not None:
            if slice.reverse:
                high = base + keys.encode(slice.after)
            else:
                low = base + keys.encode(slice.after) + b"\x00"
        if high is not None and low >= high:
            return [], False
        if not keys.types:  # one row at most: a get is quicker than a scan
            record = space.rows.get(base) if low == base else None
            values = plan.rows.live(record, now_us, slice.columns) if record is not None else None
            return ([Row((), values)] if values is not None else []), False
        options = _upper(high)
        if slice.reverse:
            items = takewhile(lambda item: item[0] >= low, space.rows.items(backwards=True, read_opt=options))
        else:
            items = space.rows.items(from_key=low, read_opt=options)
        return plan.rows.scanner(slice.columns)(items, len(base), slice.limit, now_us)

    async def partitions(self, table: Table, limit: int = 1_000, after: Key | None = None) -> list[Key]:
        self._open()
        check_partitions(table, limit, after)
        plan = self._plan(table)
        self.counts.requests += 1
        self.counts.statements += 1
        self.counts.reads += 1
        now_us = self._now_us()
        found: list[Key] = []
        options = _upper(plan.stop)
        place = self._db.iter(options)
        place.seek(plan.start if after is None else plan.prefix(after) + BEYOND)
        while len(found) < limit and place.valid():
            key = place.key()
            partition, end = plan.partitions.split(key, 2)
            prefix = key[:end]
            if self._exists(plan, prefix, now_us):
                found.append(partition)
            place.seek(prefix + BEYOND)
        place.status()
        return found

    def _exists(self, plan: Plan, prefix: bytes, now_us: int) -> bool:
        record = self._db.get(prefix + STATIC)
        if record is not None and plan.statics.live(record, now_us) is not None:
            return True
        space = self._space(plan, prefix)
        if space is None:
            return False
        options = _upper(space.upper)
        records = space.rows.items(from_key=space.base, read_opt=options)
        return any(plan.rows.live(record, now_us) is not None for _, record in records)

    # ---- plain writes

    async def write(self, batch: Batch) -> None:
        plan = self._plan(batch.table)
        made = self._blind(plan, batch)
        if made is None:
            check_batch(batch)
            self._writable()
            made = self._merging(plan, batch)
        else:
            self._writable()
        self.counts.requests += 1
        self.counts.statements += len(batch.rows) + bool(batch.static) + (batch.clear_before is not None)
        self.counts.writes += 1
        self._apply(made)
        await (self._worker.wait() if batch.sync else self._turn())

    def _blind(self, plan: Plan, batch: Batch) -> WriteBatch | None:
        """The usual batch: whole rows, newer than everything there is, put without a look.
        None: it is another kind of batch, or a wrong one."""
        rows, ttl_s = batch.rows, batch.ttl_s
        if (
            not plan.blind
            or not rows
            or batch.static is not None
            or batch.clear_before is not None
            or batch.level in _SERIAL
        ):
            return None
        if batch.timestamp_us is not None or (
            ttl_s is not None and not (type(ttl_s) is int and 0 < ttl_s <= MAX_TTL_S)
        ):
            return None
        rules_of(batch.table).check_partition(batch.partition)
        space = self._space(plan, plan.prefix(batch.partition))
        now_us = self._now_us()
        timestamp_us = self._tick(now_us)
        if space is None or timestamp_us <= self._newest_us:
            return None
        expiry_us = now_us + ttl_s * 1_000_000 if ttl_s else 0
        made = WriteBatch(raw_mode=True)
        put, encode, whole, base, handle = made.put, plan.keys.encode, plan.rows.whole, space.base, space.handle
        seen = set()
        for key, values in rows:
            record = whole(values, timestamp_us, expiry_us)
            if record is None or type(key) is not tuple:
                return None
            place = base + encode(key)
            if len(place) > MAX_KEY_BYTES:
                return None  # perhaps too long: the careful way will say
            seen.add(place)
            put(place, record, handle)
        if len(seen) != len(rows):
            return None
        self._newest_us = timestamp_us
        return made

    def _merging(self, plan: Plan, batch: Batch) -> WriteBatch:
        """Any batch: cell by cell with what is there."""
        now_us = self._now_us()
        timestamp_us = self._tick(now_us) if batch.timestamp_us is None else batch.timestamp_us
        fresh = timestamp_us > self._newest_us
        expiry_us = now_us + batch.ttl_s * 1_000_000 if batch.ttl_s else 0
        prefix = plan.prefix(batch.partition)
        space = self._make_space(plan, prefix)
        made = WriteBatch(raw_mode=True)
        pending: dict[bytes, Cells] = {}
        marks = () if fresh and batch.clear_before is None else unpack_marks(self._db.get(prefix + HEAD))
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
                old = pending.get(place)
                if old is None:
                    old = self._cells(plan.rows, space.rows, space.base + place)
                whole = plan.rows.record(merge(old, cells))
            made.put(space.base + place, whole, space.handle)
        if batch.static and deleted_until(marks, None) < timestamp_us:
            cells = plan.statics.cells(batch.static, timestamp_us, expiry_us, now_us)
            old = self._cells(plan.statics, self._db, prefix + STATIC)
            made.put(prefix + STATIC, plan.statics.record(merge(old, cells)))
        self._newest_us = max(self._newest_us, timestamp_us)
        return made

    def _cells(self, codec: RowCodec, where: Any, place: bytes) -> Cells:
        record = where.get(place)
        return {} if record is None else codec.parse(record)

    def _prune(self, plan: Plan, space: Space, made: WriteBatch, mark: Mark) -> dict[bytes, Cells]:
        """Delete what a mark covers that is older than something in the store: newer cells stay.
        The rows that were changed."""
        pruned: dict[bytes, Cells] = {}
        options = _upper(space.upper if mark.bound is None else space.base + mark.bound)
        for place, record in space.rows.items(from_key=space.base, read_opt=options):
            old = plan.rows.parse(record)
            kept = {at: cell for at, cell in old.items() if cell[0] > mark.timestamp_us}
            if len(kept) != len(old):
                self._replace(made, plan.rows, place, kept, space.handle)
                pruned[place[len(space.base) :]] = kept
        return pruned

    def _replace(self, made: WriteBatch, codec: RowCodec, place: bytes, cells: Cells, handle: Any = None) -> None:
        if cells:
            made.put(place, codec.record(cells), handle)
        else:
            made.delete(place, handle)

    # ---- dropping

    async def drop(
        self, table: Table, partition: Key, level: Level = Level.QUORUM, timestamp_us: int | None = None
    ) -> None:
        check_drop(table, partition, timestamp_us, level)
        plan = self._plan(table)
        self._writable()
        now_us = self._now_us()
        mark = Mark(self._tick(now_us) if timestamp_us is None else timestamp_us, None)
        prefix = plan.prefix(partition)
        space = self._space(plan, prefix)
        made = WriteBatch(raw_mode=True)
        if mark.timestamp_us > self._newest_us:
            self._erase(plan, prefix, space, made)
            made.put(prefix + HEAD, pack_marks((mark,), now_us))
            self._newest_us = mark.timestamp_us
            gone = space
        else:
            marks = add_mark(unpack_marks(self._db.get(prefix + HEAD)), mark)
            made.put(prefix + HEAD, pack_marks(marks, now_us))
            old = self._cells(plan.statics, self._db, prefix + STATIC)
            self._replace(
                made, plan.statics, prefix + STATIC, {at: c for at, c in old.items() if c[0] > mark.timestamp_us}
            )
            if space is not None:
                self._prune(plan, space, made, mark)
            gone = None
        self.counts.requests += 1
        self.counts.statements += 1
        self.counts.writes += 1
        self._apply(made)
        self._forget(prefix, gone)
        await self._worker.wait()

    def _erase(self, plan: Plan, prefix: bytes, space: Space | None, made: WriteBatch) -> None:
        """Static columns and rows, without looking at them."""
        if space is not None and space.number:
            made.delete(APART_KEYS + space.number.to_bytes(8, "big"))
            made.delete(prefix + STATIC)
        elif plan.keys.types:
            made.delete_range(prefix + STATIC, prefix + BEYOND)
        else:
            made.delete(prefix + ROWS)  # one row: a range would cost every later reader more

    def _forget(self, prefix: bytes, space: Space | None) -> None:
        """A space apart goes as a whole, once the batch that says so is written."""
        if space is not None and space.number:
            del self._apart[prefix]
            space.rows.close()
            self._db.drop_column_family(f"a{space.number}")

    # ---- compare-and-set

    async def compare_and_set(self, cas: Cas) -> Outcome:
        check_cas(cas)
        plan = self._plan(cas.table)
        self._writable(conditional=True)
        self.counts.requests += 1
        self.counts.statements += len(cas.changes) + cas.drop
        self.counts.rounds += 1
        now_us = self._now_us()
        prefix = plan.prefix(cas.partition)
        space = self._space(plan, prefix)
        records = {change.key: self._record(plan, prefix, space, change.key) for change in cas.changes}
        current: dict[Key | None, dict[str, Value]] = {}
        holds = True
        for change in cas.changes:
            if change.expect is None:
                continue
            record = records[change.key]
            codec = plan.statics if change.key is None else plan.rows
            values = codec.live(record, now_us) if record is not None else None
            holds = holds and _holds(change, values)
            if values is not None:
                current[change.key] = values
        if not holds:
            # What refused it may not be durable yet, and the caller may build on it.
            await (self._worker.wait() if cas.sync and not self._worker.clean else self._turn())
            return Outcome(False, current)
        self._set(plan, cas, prefix, space, records, now_us)
        self.counts.writes += 1
        await (self._worker.wait() if cas.sync else self._turn())
        return Outcome(True, {})

    def _record(self, plan: Plan, prefix: bytes, space: Space | None, key: Key | None) -> bytes | None:
        if key is None:
            found: bytes | None = self._db.get(prefix + STATIC)
        else:
            found = space.rows.get(space.base + plan.keys.encode(key)) if space is not None else None
        return found

    def _set(
        self,
        plan: Plan,
        cas: Cas,
        prefix: bytes,
        space: Space | None,
        records: dict[Key | None, bytes | None],
        now_us: int,
    ) -> None:
        made = WriteBatch(raw_mode=True)
        dropped_us, timestamp_us = self._tick(now_us), self._tick(now_us)
        if dropped_us <= self._newest_us:  # somebody wrote a timestamp of the future: this comes after it all the same
            dropped_us, timestamp_us = self._newest_us + 1, self._newest_us + 2
        self._newest_us = timestamp_us
        if cas.drop:
            self._erase(plan, prefix, space, made)
            made.put(prefix + HEAD, pack_marks((Mark(dropped_us, None),), now_us))
            records = dict.fromkeys(records)
        elif space is None and any(change.key is not None for change in cas.changes):
            space = self._make_space(plan, prefix)
        expiry_us = now_us + cas.ttl_s * 1_000_000 if cas.ttl_s else 0
        for change in cas.changes:
            codec = plan.statics if change.key is None else plan.rows
            record = records[change.key]
            cells = codec.parse(record) if record is not None else {}
            for at, cell in codec.cells(change.values, timestamp_us, expiry_us, now_us).items():
                if cell[3] or cell[1] != 2:
                    cells[at] = cell
                else:
                    cells.pop(at, None)  # no tombstone: nothing older can come for a conditional cell
            if change.key is None:
                self._replace(made, codec, prefix + STATIC, cells)
            elif space is not None:
                self._replace(made, codec, space.base + plan.keys.encode(change.key), cells, space.handle)
        self._apply(made)
        if cas.drop:
            self._forget(prefix, space)

    # ---- durability

    def _apply(self, made: WriteBatch) -> None:
        """To RocksDB and its log, not yet synced. Raises Unknown, and then nothing is written any more."""
        last_us, newest_us = self._marked_us
        if self._last_us >= last_us + CLOCK_EVERY_US or self._newest_us >= newest_us + CLOCK_EVERY_US:
            self._marked_us = (self._last_us, self._newest_us)
            made.put(CLOCK_KEY, _CLOCK.pack(*self._marked_us))
        self.counts.bytes_written += made.size_in_bytes()
        try:
            self._db.write(made)
        except Exception as error:  # rocksdict raises plain Exception for everything
            raise self._worker.fail(error) from error
        self._worker.written()

    async def sync(self) -> None:
        self._writable(conditional=True)
        await self._worker.wait()

    async def skew_s(self) -> float:
        return 0.0

    async def check(self) -> None:
        self._writable()

    # ---- upkeep

    async def sweep(self, limit: int = 10_000) -> Swept:
        """Look at up to `limit` records from where the last call stopped; remove what has served."""
        self._writable(conditional=True)
        now_us = self._now_us()
        plans = {plan.start: plan for plan in self._plans.values()}
        number, place = self._cursor
        spaces = {space.number: (space, prefix) for prefix, space in self._apart.items()}
        made = WriteBatch(raw_mode=True)
        seen = 0
        rows, handle = (
            (self._db, None)
            if number == 0 or number not in spaces
            else (spaces[number][0].rows, spaces[number][0].handle)
        )
        for key, record in rows.items(from_key=place):
            if seen == limit:
                self._cursor = (number, key)
                break
            seen += 1
            plan = (
                plans.get(key[:2] if number == 0 else spaces[number][1][:2])
                if number == 0 or number in spaces
                else None
            )
            if plan is not None:
                self._sweep_one(plan, key, record, now_us, made, handle, number)
        else:
            following = sorted(other for other in spaces if other > number)
            self._cursor = (following[0], b"") if following else (0, b"")
        removed = len(made)
        if removed:
            self._apply(made)
        return Swept(seen, removed, self._cursor == (0, b""))

    def _sweep_one(
        self, plan: Plan, key: bytes, record: bytes, now_us: int, made: WriteBatch, handle: Any, number: int
    ) -> None:
        codec, conditional = plan.rows, plan.conditional_rows
        if number == 0:
            _, end = plan.partitions.split(key, 2)
            if key[end:] == HEAD:
                if marks_made_us(record) + GRACE_US <= now_us and key[:end] not in self._apart:
                    made.delete(key)
                return
            if key[end:] == STATIC:
                codec, conditional = plan.statics, plan.conditional_statics
        new = swept(codec, conditional, record, now_us)
        if new is None:
            made.delete(key, handle)
        elif new is not record:
            made.put(key, new, handle)

    async def backup(self, target: Path) -> None:
        """A copy of this folder as of now, while it is in use. `target` must be new or empty."""
        self._writable(conditional=True)
        folders.make_empty(target)
        await self._worker.wait()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._checkpoint, str(target / folders.DATA_FOLDER))
        folders.write_format(target)

    def _checkpoint(self, path: str) -> None:
        Checkpoint(self._db).create_checkpoint(path)


def _holds(change: Change, values: dict[str, Value] | None) -> bool:
    if change.expect is ABSENT:
        return values is None
    assert not isinstance(change.expect, type(ABSENT)) and change.expect is not None
    found = values or {}
    return all(found.get(name) == value for name, value in change.expect.items())


def _open_db(folder: Path, options: Options, access: AccessType) -> Any:
    path = str(folder / folders.DATA_FOLDER)
    try:
        names = Rdict.list_cf(path, options) if (folder / folders.DATA_FOLDER / "CURRENT").exists() else []
        families = {name: options for name in names if name != "default"}
        return Rdict(path, options, column_families=families or None, access_type=access)
    except Exception as error:  # rocksdict raises plain Exception for everything
        raise CannotOpen(f"{folder} cannot be opened: {error}") from error
