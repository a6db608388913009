"""RocksStore: the operations of the store's contract on one folder. See the package's header."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import msgspec
from rocksdict import WriteBatch

from capellini.model.clock import Clock
from capellini.model.errors import CannotOpen, Invalid, Unavailable
from capellini.store import folder as folders
from capellini.store.checks import check_batch, check_cas, check_drop, check_partitions, check_slice
from capellini.store.interface import (
    Absent,
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
from capellini.store.layout import BEYOND, CLOCK_KEY, FIRST_TABLE, ROWS, STATIC, TABLE_KEYS, Plan, declaration
from capellini.store.rocks.batches import Batches
from capellini.store.rocks.database import Database, Space, upper
from capellini.store.rocks.recent import Recent
from capellini.store.rocks.stamps import Stamps
from capellini.store.rocks.upkeep import Garbage, Sweeper, Swept
from capellini.store.worker import SyncWorker

APPLIED: Final = Outcome(True, {})
CALLS_PER_TURN: Final = 8  # so many calls may pass without a wait; then others get their turn


class RocksStore(Store):
    """Made by `open`, or by `open_secondary` to look at a folder that another process has open."""

    alone = True

    def __init__(
        self, database: Database, clock: Clock, lock: folders.FolderLock | None, room_bytes: int = folders.ROOM_BYTES
    ) -> None:
        self.folder: Final = database.folder
        self.counts = Counts()
        self._database = database
        self._lock = lock
        self._closed = False
        self._room = folders.Room(database.folder, clock, room_bytes)
        self._worker = SyncWorker(database.flush, clock, self.counts)
        self._stamps = Stamps(clock)
        self._batches = Batches(database, self._stamps)
        self._recent = Recent()
        self._sweeper = Sweeper(database)
        self._garbage = Garbage(database, clock)
        self._calls = 0
        self._plans: dict[str, Plan] = {}
        self._load()

    # ---- opening and closing

    @classmethod
    async def open(
        cls, folder: Path, *, create: bool = True, clock: Clock, room_bytes: int = folders.ROOM_BYTES
    ) -> RocksStore:
        """Raises CannotOpen, InUse when another process has it open, or Full."""
        folders.make(folder, create, room_bytes)
        folders.read_format(folder)  # one that is not ours to read is refused before anything is touched
        lock = folders.FolderLock(folder)
        try:
            folders.migrate(folder)
            fresh = folders.read_format(folder) is None
            database = Database(folder, fresh)
            if fresh:
                folders.write_format(folder)
            return cls(database, clock, lock, room_bytes)
        except OSError as error:
            lock.release()
            raise CannotOpen(f"{folder} cannot be opened: {error.strerror}") from error
        except BaseException:
            lock.release()
            raise

    @classmethod
    async def open_secondary(cls, folder: Path, scratch: Path, *, clock: Clock) -> RocksStore:
        """Read what another process writes, as of the last `refresh`. `scratch` is a folder for RocksDB's own notes."""
        if folders.read_format(folder) is None:
            raise CannotOpen(f"{folder} holds no store: nothing was ever stored there")
        return cls(Database(folder, False, scratch), clock, None)

    async def refresh(self) -> None:
        """A secondary: see what was written since. Everybody else sees it anyway."""
        self._open()
        if self._lock is None:
            self._database.open_again()
            self._load()

    def _load(self) -> None:
        """What the folder says about itself."""
        self._recent.clear()
        self._stamps.load(self._database.rows.get(CLOCK_KEY))
        self._tables: dict[str, Any] = {
            bytes(key[len(TABLE_KEYS) :]).decode(): msgspec.json.decode(value)
            for key, value in self._database.registered(TABLE_KEYS)
        }
        self._database.load()

    async def prepare(self, tables: tuple[Table, ...], create: bool = True) -> None:
        self._open()
        made = WriteBatch(raw_mode=True)
        for table in tables:
            declared = declaration(table)
            stored = self._tables.get(table.name)
            if stored is None:
                if not create or self._lock is None:
                    raise CannotOpen(
                        f"{self.folder} has no table {table.name}: open it once with an up-to-date Capellini"
                    )
                number = max((entry["number"] for entry in self._tables.values()), default=FIRST_TABLE - 1) + 1
                stored = self._tables[table.name] = {"number": number, "columns": declared}
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
        whole = True
        try:
            if self._lock is not None and self._worker.failure is None:
                await self._worker.wait()
            whole = await self._garbage.end()
        finally:
            self._worker.close()
            # Its end fails like what was before. What could not be flushed is in the log.
            failed = (Exception,) if self._worker.failure is not None or not whole else ()
            with contextlib.suppress(*failed):
                self._database.close()
            if self._lock is not None:
                self._lock.release()

    def _open(self) -> None:
        if self._closed:
            raise Unavailable("the store is closed")

    def _writable(self, frees: bool = False) -> None:
        """Raises Unavailable or Full: nothing was changed."""
        if self._closed or self._lock is None or self._worker.failure is not None:
            self._open()
            if self._lock is None:
                raise Unavailable(f"{self.folder} is open for reading only: another process writes it")
            self._worker.check()
        self._room.check(frees)
        if self._database.large and not self._room.ample:
            self._database.shrink()

    def _plan(self, table: Table) -> Plan:
        plan = self._plans.get(table.name)
        if plan is None or (plan.table is not table and plan.table != table):
            raise Invalid(f"table {table.name} was not prepared as declared")
        return plan

    def _count(self, statements: int, reads: int = 0, writes: int = 0) -> None:
        counts = self.counts
        counts.requests += 1
        counts.statements += statements
        counts.reads += reads
        counts.writes += writes

    # ---- reading

    async def read(self, slice: Slice) -> Page:
        self._open()
        check_slice(slice)
        plan = self._plan(slice.table)
        self._count(1, reads=1)
        now_us = self._stamps.now_us()
        prefix = plan.prefix(slice.partition)
        static: dict[str, Value] = {}
        if plan.static_names:
            record = self._database.rows.get(prefix + STATIC)
            if record is not None:
                static = plan.statics.live(record, now_us, slice.columns) or {}
        space = self._database.space(plan, prefix) if slice.limit else None
        rows, more = _rows(plan, space, slice, now_us) if space is not None else ([], False)
        await self._turn()
        return Page(rows, static, more)

    async def _turn(self) -> None:
        """Nothing here waits for a disk, so a caller in a loop would keep everybody else from running."""
        self._calls += 1
        if self._calls >= CALLS_PER_TURN:
            self._calls = 0
            await asyncio.sleep(0)

    async def partitions(
        self, table: Table, limit: int = 1_000, after: Key | None = None, level: Level = Level.QUORUM
    ) -> list[Key]:
        self._open()
        check_partitions(table, limit, after)
        plan = self._plan(table)
        self._count(1, reads=1)
        now_us = self._stamps.now_us()
        found: list[Key] = []
        options = upper(plan.stop)
        place = self._database.rows.iter(options)
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
        record = self._database.rows.get(prefix + STATIC)
        if record is not None and plan.statics.live(record, now_us) is not None:
            return True
        space = self._database.space(plan, prefix)
        if space is None:
            return False
        options = upper(space.upper)
        records = space.rows.items(from_key=space.base, read_opt=options)
        return any(plan.rows.live(record, now_us) is not None for _, record in records)

    # ---- writing

    async def write(self, batch: Batch) -> None:
        plan = self._plan(batch.table)
        made = self._batches.blind(plan, batch)
        if made is None:
            check_batch(batch)
            self._writable(batch.frees)
            prefix = plan.prefix(batch.partition)
            self._forget(prefix)
            made = self._batches.merging(plan, batch, self._make_space(plan, prefix), prefix)
        else:
            self._writable(batch.frees)
        self._count(len(batch.rows) + bool(batch.static) + (batch.clear_before is not None), writes=1)
        self._apply(made, batch.sync)
        await self._settled(batch.sync)

    def _make_space(self, plan: Plan, prefix: bytes) -> Space:
        space = self._database.space(plan, prefix)
        if space is None:
            space, made = self._database.make_space(prefix, self._stamps.now_us())
            self._apply(made)  # durable with what is then written there
        return space

    async def drop(
        self, table: Table, partition: Key, level: Level = Level.QUORUM, timestamp_us: int | None = None
    ) -> None:
        check_drop(table, partition, timestamp_us, level)
        plan = self._plan(table)
        self._writable(frees=True)
        prefix = plan.prefix(partition)
        self._forget(prefix)
        made, gone = self._batches.drop(plan, prefix, self._database.space(plan, prefix), timestamp_us)
        self._count(1, writes=1)
        self._apply(made)
        self._dropped(plan, partition, prefix, gone)
        await self._worker.wait()

    async def compare_and_set(self, cas: Cas) -> Outcome:
        if self.swap(cas):
            await self._settled(cas.sync)
            return APPLIED
        check_cas(cas)
        plan = self._plan(cas.table)
        self._writable(frees=True)
        self.counts.rounds += 1
        now_us = self._stamps.now_us()
        prefix = plan.prefix(cas.partition)
        space = self._database.space(plan, prefix)
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
        self._count(len(cas.changes) + cas.drop, writes=holds)
        if not holds:
            # What refused it may not be durable yet, and the caller may build on it.
            await self._settled(cas.sync)
            return Outcome(False, current)
        if not cas.drop and any(change.key is not None for change in cas.changes):
            space = self._make_space(plan, prefix)
        self._apply(self._batches.changes(plan, cas, prefix, space, records), cas.sync)
        self._remember(plan, cas, prefix, records, current)
        if cas.drop:
            self._dropped(plan, cas.partition, prefix, space)
        await self._settled(cas.sync)
        return APPLIED

    def swap(self, cas: Cas) -> bool:
        known = self._recent.holding(cas)
        if known is None:
            return False
        self._writable(frees=True)
        made = self._batches.over(self._plan(cas.table), known, cas.changes[0])
        if made is None:
            return False
        self.counts.rounds += 1
        self._count(1, writes=1)
        self._apply(made, cas.sync)
        known.values = dict(cas.changes[0].values)
        return True

    @property
    def broken(self) -> str | None:
        return None if self._worker.failure is None else self._worker.failure.says

    @property
    def lonely(self) -> bool:
        return self._worker.lonely

    @property
    def syncing(self) -> asyncio.Future[None] | None:
        return self._worker.syncing

    def _remember(
        self,
        plan: Plan,
        cas: Cas,
        prefix: bytes,
        records: dict[Key | None, bytes | None],
        current: dict[Key | None, dict[str, Value]],
    ) -> None:
        """What was applied, for the next one; nothing that it may have changed is remembered as it was."""
        self._forget(prefix)
        change = cas.changes[0]
        static = change.key is None
        if len(cas.changes) > 1 or cas.drop or cas.ttl_s is not None or change.expect is None or plan.table.apart:
            return
        codec, record = plan.statics if static else plan.rows, records[change.key]
        if (static or change.key == ()) and (record is None or codec.lasts(record)):
            place = prefix + (STATIC if static else ROWS)
            self._recent.changed(cas, place, codec, current.get(change.key))

    def _forget(self, prefix: bytes) -> None:
        self._recent.forget(prefix + STATIC)
        self._recent.forget(prefix + ROWS)

    def _record(self, plan: Plan, prefix: bytes, space: Space | None, key: Key | None) -> bytes | None:
        if key is None:
            found: bytes | None = self._database.rows.get(prefix + STATIC)
        else:
            found = space.rows.get(space.base + plan.keys.encode(key)) if space is not None else None
        return found

    # ---- durability

    def _apply(self, made: WriteBatch, sync: bool = False) -> None:
        """To RocksDB and its log. `sync`: where nobody is to be waited for, durable with it, and all before it; else
        `_settled` waits for that. Raises Unknown, and then nothing is written any more."""
        kept = self._stamps.to_keep()
        if kept is not None:
            made.put(CLOCK_KEY, kept)
        self.counts.bytes_written += made.size_in_bytes()
        if sync and self._worker.lonely:
            self._worker.written()
            self._worker.alone(lambda: self._database.write_synced(made))
            self._calls = 0  # for how long one holds the loop so, the worker knows
            return
        try:
            self._database.rows.write(made)
        except Exception as error:  # rocksdict raises plain Exception for everything
            raise self._worker.fail(error) from error
        self._worker.written()

    async def _settled(self, sync: bool) -> None:
        """What was written, and what was seen, is durable if that is asked for."""
        if not sync or self._worker.clean:
            await self._turn()
        else:
            await self._worker.wait()

    async def sync(self) -> None:
        self._open()
        if self._worker.clean:
            self._worker.check()
        else:  # also after a failure: whoever asks may have written before it, and that may be durable
            await self._worker.wait()

    async def skew_s(self) -> float:
        return 0.0

    async def check(self) -> None:
        self._writable()

    # ---- upkeep

    async def sweep(self, limit: int = 10_000) -> Swept:
        """Look at up to `limit` records from where the last call stopped; remove what has served."""
        try:
            self._writable(frees=True)
        finally:  # where no room is left for anything this is what is left to do
            if not self._closed and self._lock is not None:
                self._garbage.clear(self._room)
        seen, made = self._sweeper.step(self._plans, limit, self._stamps.now_us())
        removed = len(made)
        if removed:
            self._recent.clear()
            self._apply(made)
        return Swept(seen, removed, self._sweeper.finished)

    def _dropped(self, plan: Plan, partition: Key, prefix: bytes, space: Space | None) -> None:
        self._database.forget(prefix, space)
        if space is None or not space.number:
            self._garbage.add(plan, partition, prefix)

    async def backup(self, target: Path) -> None:
        """A copy of this folder as of now, while it is in use. `target` must be new or empty."""
        self._writable(frees=True)
        folders.make_empty(target)
        await self._worker.wait()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._database.checkpoint, target / folders.DATA_FOLDER)
        folders.write_format(target)


def _rows(plan: Plan, space: Space, slice: Slice, now_us: int) -> tuple[list[Row], bool]:
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
    options = upper(high)
    if slice.reverse:
        items = takewhile(lambda item: item[0] >= low, space.rows.items(backwards=True, read_opt=options))
    else:
        items = space.rows.items(from_key=low, read_opt=options)
    return plan.rows.scanner(slice.columns)(items, len(base), slice.limit, now_us)


def _holds(change: Change, values: dict[str, Value] | None) -> bool:
    expect = change.expect
    if isinstance(expect, Absent):
        return values is None
    found = values or {}
    return expect is None or all(found.get(name) == value for name, value in expect.items())
