"""The store on Cassandra: each operation becomes statements on one partition, sent as one request.

    write              UPDATEs in an unlogged batch: one partition, so it is one mutation, atomic and isolated
    compare_and_set    UPDATE ... IF in a batch: one Paxos round for all rows; with `drop` the partition's DELETE too
    read               one SELECT, page by page; a second one for the static row where no row is there to bring it
    drop               one partition tombstone
    partitions         SELECT DISTINCT by token

The texts are in `store/cql.py`, sending and failing in `store/cassandra_session.py`, creating the tables in
`store/cassandra_schema.py`.

Timestamps of plain writes are drawn here, once per write, strictly rising: a write that is repeated after a lost answer
has the timestamp of its first attempt, so that it cannot win over what was written in between.

Sizes. Cassandra limits batches (50 KiB unless told otherwise) only when they span partitions. What limits ours is the
largest mutation, half a commit log segment: 16 MiB by default, less where segments are small. A write is cut at
`atomic_bytes`, far below both.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

from capellini.model.address import CassandraAddress
from capellini.model.clock import Clock, RealClock, skew_of
from capellini.model.errors import CapelliniError, Unknown
from capellini.store import cassandra_schema, cql
from capellini.store.cassandra_placement import Placement
from capellini.store.cassandra_session import Bound, Session
from capellini.store.checks import (
    check_around,
    check_cas,
    check_drop,
    check_partitions,
    check_rows,
    check_slice,
)
from capellini.store.interface import (
    Batch,
    Cas,
    Column,
    Counts,
    Key,
    Level,
    Outcome,
    Page,
    Replica,
    Row,
    Slice,
    Store,
    Table,
    Type,
    Value,
    Values,
)
from capellini.store.whole_rows import compiled

SIZED: Final = (bytes, str)
LOOSE: Final = (Type.TEXT, Type.BLOB)
ROW_BYTES: Final = 64  # what a row costs beside its texts and blobs, roughly: numbers, timestamps, lengths
SKEW_ASKS: Final = 3
QUICK_S: Final = 0.1  # an answer within it tells the clock well enough
WHOLES_KEPT: Final = 1_024  # far above the number of tables there are

Shape = tuple[str, tuple[str, ...], bool, bool]  # of an update: table, columns, whether they are static, and expire


class CassandraStore(Store):
    def __init__(self, session: Session, clock: Clock) -> None:
        self.counts: Counts = session.counts
        self._session = session
        self._clock = clock
        self._keyspace = session.address.keyspace
        self._placement = Placement(session, clock)
        self._updates: dict[Shape, Any] = {}
        # By identity: hashing a table takes long. They hold it, so that no other table gets its identity.
        self._wholes: dict[tuple[int, bool], tuple[Table, Shape, Callable[..., Any]]] = {}
        self._nobody = values_nobody_has()
        self._turns: dict[tuple[str, Key], tuple[asyncio.Lock, int]] = {}
        self._last_us = 0
        self._prepared_once = False

    @classmethod
    async def open(cls, address: CassandraAddress, clock: Clock | None = None) -> CassandraStore:
        """Connect. Raises CannotOpen with what to do. `prepare` makes the tables."""
        clock = clock or RealClock()
        return cls(await Session.connect(address, clock), clock)

    async def prepare(self, tables: tuple[Table, ...], create: bool = True, *, writes: bool = True) -> None:
        """`writes`: the user is asked for the right to change rows, too."""
        with self._session.call():
            await cassandra_schema.ensure(self._session, tables, create, self._clock, writes)
            await self._placement.read()
            self._prepared_once = True

    async def find_homes(self) -> None:
        """For whoever reads tables that were looked at a moment ago: `homes` is told without looking at them again."""
        with self._session.call():
            await self._placement.read()

    @property
    def homes(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._placement.homes

    @property
    def home(self) -> str:  # type: ignore[override]
        return self._session.dc if self._session.dc in self._placement.homes else ""

    # ---- reading

    async def read(self, slice: Slice) -> Page:
        check_slice(slice)
        with self._session.call():
            self.counts.reads += 1
            table = slice.table
            columns = wanted(table.columns, slice.columns)
            statics = wanted(table.statics, slice.columns)
            if slice.limit == 0 or slice.end == ():  # everything begins with (): nothing is below it
                return Page([], await self._static(slice, statics))
            text, parameters = cql.select(self._keyspace, slice, (*columns, *statics))
            found = await self._session.read(text, parameters, slice.level, slice.limit)
            width = len(table.clustering)
            rows = list(rows_of(table, columns, found))
            if found:
                static = values_of(statics, found[0][width + len(columns) :])
            else:
                # Cassandra brings the static row with rows only, unless the whole partition was asked for.
                bounded = slice.start or slice.end or slice.after
                static = await self._static(slice, statics) if bounded else {}
            return Page(rows, static, more=len(rows) >= slice.limit)

    async def _static(self, slice: Slice, columns: Sequence[Column]) -> dict[str, Value]:
        if not columns:
            return {}
        text = cql.select_static(self._keyspace, slice.table, columns)
        found = await self._session.read(text, slice.partition, slice.level)
        return values_of(columns, found[0]) if found else {}

    async def partitions(
        self, table: Table, limit: int = 1_000, after: Key | None = None, level: Level = Level.QUORUM
    ) -> list[Key]:
        check_partitions(table, limit, after)
        with self._session.call():
            self.counts.reads += 1
            text = cql.distinct(self._keyspace, table, after is not None)
            parameters = [*(after or ()), min(limit, cql.MOST_ROWS)]
            found = await self._session.read(text, parameters, level, limit)
            return [key_of(table.partition, row) for row in found]

    async def replicas(self, table: Table, partition: Key) -> tuple[Replica, ...]:
        with self._session.call():
            return await self._placement.replicas(table, partition)

    # ---- plain writes

    async def write(self, batch: Batch) -> None:
        check_around(batch)
        made = self._whole(batch)
        if made is None:
            check_rows(batch)
        with self._session.call():
            self.counts.writes += 1
            timestamp_us = batch.timestamp_us or self._now_us()
            done = False
            for statements, size in await self._requests(batch, made):
                try:
                    await self._session.write(statements, batch.level, timestamp_us, batch.once)
                except CapelliniError as error:
                    if not done or isinstance(error, Unknown):
                        raise
                    raise Unknown(f"a part of a large write was done, the rest was not: {error.says}") from error
                done = True
                self.counts.bytes_written += size

    def _whole(self, batch: Batch) -> tuple[list[Bound], int] | None:
        """The usual batch: whole rows that go in one request, checked and bound in one pass. None: another one."""
        table = batch.table
        if batch.static is not None or batch.clear_before is not None:
            return None
        expires = bool(batch.ttl_s)
        found = self._wholes.get((id(table), expires))
        if found is None:
            if len(self._wholes) >= WHOLES_KEPT:
                self._wholes.clear()
            shape = (table.name, tuple(column.name for column in table.columns), False, expires)
            found = self._wholes[id(table), expires] = (table, shape, compile_whole(table, expires))
        _, shape, whole = found
        made: tuple[list[Bound], int] | None
        made = whole(batch.rows, self._updates.get(shape), batch.ttl_s or 0, batch.partition)
        return made if made is not None and made[1] <= self.atomic_bytes else None

    async def _requests(self, batch: Batch, made: tuple[list[Bound], int] | None) -> list[tuple[list[Bound], int]]:
        """The requests of a write, each with its size."""
        if made is None:
            return await self._parts(batch)
        statements, size = made
        if statements[0][0] is None:  # the first of its table
            names = tuple(column.name for column in batch.table.columns)
            prepared = await self._update(batch.table, names, static=False, expires=bool(batch.ttl_s))
            statements = [(prepared, parameters) for _, parameters in statements]
        return [(statements, size)]

    async def _parts(self, batch: Batch) -> list[tuple[list[Bound], int]]:
        """The statements of a write, in requests of up to `atomic_bytes`, each with its size."""
        table, partition, ttl_s = batch.table, batch.partition, batch.ttl_s or 0
        part: list[Bound] = []
        parts: list[tuple[list[Bound], int]] = []
        size = 0
        if batch.clear_before is not None:
            text = cql.delete_before(self._keyspace, table, len(batch.clear_before))
            part.append((await self._session.prepare(text), [*partition, *batch.clear_before]))
        if batch.static:
            prepared = await self._update(table, tuple(batch.static), static=True)
            part.append((prepared, [ttl_s, *batch.static.values(), *partition]))
            size += size_of(batch.static)
        shapes: dict[tuple[str, ...], Any] = {}
        for key, values in batch.rows:
            names = tuple(values)
            prepared = shapes.get(names)
            if prepared is None:
                prepared = shapes[names] = await self._update(table, names, static=False)
            more = ROW_BYTES  # `size_of`, without a call per row
            for value in values.values():
                if isinstance(value, SIZED):
                    more += len(value)
            if part and size + more > self.atomic_bytes:
                parts.append((part, size))
                part, size = [], 0
            part.append((prepared, [ttl_s, *values.values(), *partition, *key]))
            size += more
        parts.append((part, size))
        return parts

    async def _update(self, table: Table, names: tuple[str, ...], static: bool, expires: bool = True) -> Any:
        shape = (table.name, names, static, expires)
        found = self._updates.get(shape)
        if found is None:
            found = await self._session.prepare(cql.update(self._keyspace, table, names, static, expires))
            self._updates[shape] = found
        return found

    async def drop(
        self, table: Table, partition: Key, level: Level = Level.QUORUM, timestamp_us: int | None = None
    ) -> None:
        check_drop(table, partition, timestamp_us, level)
        with self._session.call():
            self.counts.writes += 1
            prepared = await self._session.prepare(cql.delete_partition(self._keyspace, table))
            await self._session.write([(prepared, [*partition])], level, timestamp_us or self._now_us())

    def _now_us(self) -> int:
        self._last_us = max(self._last_us + 1, int(self._clock.now_s() * 1_000_000))
        return self._last_us

    # ---- compare-and-set

    async def compare_and_set(self, cas: Cas) -> Outcome:
        check_cas(cas)
        with self._session.call():
            self.counts.writes += 1
            statements: list[Bound] = []
            asked: list[Key | None] = []
            size = 0
            for change in cas.changes:
                statements.append(
                    await self._change(cas, change.key, cql.expectations(cas.table, change), change.values)
                )
                if change.expect is not None:
                    asked.append(change.key)
                size += size_of(change.values)
            if cas.drop:
                prepared = await self._session.prepare(cql.delete_partition(self._keyspace, cas.table))
                statements.append((prepared, [*cas.partition]))
            async with self._in_turn((cas.table.name, cas.partition)):
                answer = await self._session.compare_and_set(statements, cas.level)
            if answer[0][cql.APPLIED]:
                self.counts.bytes_written += size
                return Outcome(True, {})
            return Outcome(False, cql.current_rows(cas.table, asked, answer))

    async def _change(self, cas: Cas, key: Key | None, expected: Values | None, values: Values) -> Bound:
        table, static = cas.table, key is None
        parameters = [cas.ttl_s or 0, *values.values(), *cas.partition, *(key or ())]
        if expected is None:
            return await self._update(table, tuple(values), static), parameters
        names = tuple(expected)
        text = cql.update_if(self._keyspace, table, tuple(values), static, names)
        parameters += expected.values()
        parameters += [self._nobody[c.type] for c in cql.shown(table, static, names) if c.type in self._nobody]
        return await self._session.prepare(text), parameters

    @asynccontextmanager
    async def _in_turn(self, place: tuple[str, Key]) -> AsyncIterator[None]:
        """One compare-and-set at a time on a partition: rounds that meet set each other back, or end unknown."""
        lock, waiting = self._turns.get(place) or (asyncio.Lock(), 0)
        self._turns[place] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            waiting = self._turns[place][1] - 1
            if waiting:
                self._turns[place] = (lock, waiting)
            else:
                del self._turns[place]

    # ---- the rest

    async def skew_s(self) -> float:
        """What is sure of it: an answer that took long, or came by way of another coordinator, tells little, and is
        asked for again."""
        found: list[float] = []
        with self._session.call():
            for _ in range(SKEW_ASKS):
                began_s, since_s = self._clock.now_s(), self._clock.elapsed_s()
                rows = await self._session.read("SELECT toTimestamp(now()) FROM system.local", [], Level.ONE)
                found.append(skew_of(began_s, rows[0][0].timestamp(), self._clock.now_s()))
                if self._clock.elapsed_s() - since_s <= QUICK_S:
                    return found[-1]
        return max(found, key=abs)

    async def check(self) -> None:
        """A read at the level of puts, of a row that is always there."""
        with self._session.call():
            if not self._prepared_once:
                await self._session.read("SELECT key FROM system.local", [], Level.ONE)
                return
            text = f"SELECT version FROM {cql.place(self._keyspace, cql.VERSIONS)} WHERE name = ?"
            await self._session.read(text, [cassandra_schema.OURS], Level.QUORUM)

    async def close(self) -> None:
        await self._session.close()


# ---- rows and values


def wanted(columns: Sequence[Column], names: Sequence[str] | None) -> tuple[Column, ...]:
    return tuple(column for column in columns if names is None or column.name in names)


def values_of(columns: Sequence[Column], values: Sequence[Any]) -> dict[str, Value]:
    """The columns that have a value."""
    return {
        column.name: cql.native(column, value)
        for column, value in zip(columns, values, strict=True)
        if value is not None
    }


def key_of(columns: Sequence[Column], values: Sequence[Any]) -> Key:
    return tuple(
        UUID(value) if column.type is Type.TIMEUUID else value for column, value in zip(columns, values, strict=True)
    )


def rows_of(table: Table, columns: Sequence[Column], found: Sequence[list[Any]]) -> Iterator[Row]:
    width, end = len(table.clustering), len(table.clustering) + len(columns)
    for values in found:
        if width and values[0] is None:
            continue  # the static row of a partition without rows
        yield Row(key_of(table.clustering, values[:width]), values_of(columns, values[width:end]))


def size_of(values: Values) -> int:
    """About how many bytes a row takes."""
    size = ROW_BYTES
    for value in values.values():
        if isinstance(value, SIZED):
            size += len(value)
    return size


def compile_whole(table: Table, expires: bool) -> Callable[..., Any]:
    """whole(rows, prepared, ttl_s, partition): the statements of whole rows and about how many bytes they take; None
    where a row is not whole, or wrong."""
    if table.conditional or not table.columns:
        return lambda *_: None
    columns = [f"c{at}" for at in range(len(table.columns))]
    partition = [f"p{at}" for at in range(len(table.partition))]
    keys = [f"k{at}" for at in range(len(table.clustering))]
    sized = [f"len({name})" for name, column in zip(columns, table.columns, strict=True) if column.type in LOOSE]
    size = " + ".join([str(ROW_BYTES), *sized])
    parameters = ", ".join([*(["ttl_s"] if expires else []), *columns, *partition, *keys])
    return compiled(
        table,
        "prepared, ttl_s, partition",
        f"size += {size}; add((prepared, [{parameters}]))",
        "(made, size)",
        {},
        before=(f"{', '.join(partition)}, = partition", "size, made = 0, []", "add = made.append"),
    )


def values_nobody_has() -> dict[Type, Value]:
    """One random value per type, drawn for this process, which no cell holds: 60 bits of chance or more.

    They stand in conditions that always hold (see `store/cql.py`). Should a cell hold one after all, a compare-and-set
    is refused without reason, showing the row as it is.
    """
    version_1 = secrets.randbits(64) & ~(0xF << 12) | 1 << 12
    return {
        Type.TEXT: secrets.token_hex(16),
        Type.BLOB: secrets.token_bytes(16),
        Type.INT: -(1 << 62) - secrets.randbits(61),
        Type.DOUBLE: float.fromhex(f"0x1.{secrets.randbits(52):013x}p-900"),
        Type.TIMEUUID: UUID(int=version_1 << 64 | 1 << 63 | secrets.randbits(62)),
    }
