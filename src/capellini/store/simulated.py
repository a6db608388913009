"""The simulated store: a cluster in memory, in virtual time, with all the faults of a real one.

Each client of a world has one (`world.client(name).store`); all of them see the same partitions. What a client is
promised here is what `store/interface.py` promises and no more: reads at level one are stale, answers get lost, writes
land late, clocks disagree. See `simulation/` for how: loop (virtual time), world (who there is), faults (what goes
wrong), requests (the way of a request), paxos (compare-and-set), replica and cells (what is where), view (what a
reader sees).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from capellini.model.errors import CannotOpen, Invalid, Unavailable, Unknown
from capellini.store.checks import check_batch, check_cas, check_drop, check_partitions, check_slice
from capellini.store.interface import (
    Batch,
    Cas,
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
    Value,
    Values,
)
from capellini.store.simulation.network import answer, seat_of
from capellini.store.simulation.requests import read, refuse, serial, write

if TYPE_CHECKING:
    from capellini.store.simulation.client import SimulatedClient
    from capellini.store.simulation.replica import Partition

READ_ATTEMPTS: Final = 3  # a read can be repeated: another server may answer


class SimulatedStore(Store):
    def __init__(self, client: SimulatedClient) -> None:
        self.client = client
        self.world = client.world
        self.counts = Counts()
        dcs = self.world.network.dcs
        self.home, self.homes = (client.dc, dcs) if len(dcs) > 1 else ("", ())
        self._closed = False

    async def prepare(self, tables: tuple[Table, ...], create: bool = True) -> None:
        self._open()
        known = self.world.tables
        for table in tables:
            there = known.get(table.name)
            if there is None and not create:
                raise CannotOpen(f"table {table.name} does not exist: create it first")
            if there is not None and there != table:
                raise CannotOpen(f"table {table.name} exists, but is declared otherwise")
        for table in tables:
            known[table.name] = table

    async def read(self, slice: Slice) -> Page:
        check_slice(slice)
        partition = self._partition(slice.table, slice.partition)
        world, counts = self.world, self.counts
        if slice.limit > world.profile.page_rows:
            return await self._read_pages(slice, world.profile.page_rows)
        serially = slice.level is Level.SERIAL or slice.level is Level.LOCAL_SERIAL
        attempt = 1
        while True:
            counts.requests += 1
            counts.statements += 1
            counts.reads += 1
            counts.rounds += serially
            try:
                page: Page = await (serial if serially else read)(self.client, partition, slice)
            except (Unavailable, Unknown) as error:  # a read changes nothing: unknown is as good as unavailable
                if attempt == READ_ATTEMPTS or world.loop.closing:
                    raise Unavailable(f"a read failed {attempt} times: {error.says}") from error
                attempt += 1
                counts.retries += 1
                continue
            if world.trace is not None:
                self._note("read", slice.table.name, slice.partition, len(page.rows))
            return page

    async def _read_pages(self, slice: Slice, most: int) -> Page:
        rows: list[Row] = []  # in pages, as a driver does: no snapshot
        static: dict[str, Value] | None = None
        at = slice
        while True:
            page = await self.read(msgspec.structs.replace(at, limit=min(most, slice.limit - len(rows))))
            rows += page.rows
            static = page.static if static is None else static
            if not page.more or len(rows) >= slice.limit:
                return Page(rows, static, page.more)
            bound = {"end": None} if slice.reverse else {"start": None}
            at = msgspec.structs.replace(slice, after=rows[-1].key, **bound)

    async def write(self, batch: Batch) -> None:
        size = check_batch(batch)
        partition = self._partition(batch.table, batch.partition)
        counts = self.counts
        counts.bytes_written += size
        for part in (batch,) if size <= self.atomic_bytes else _parts(batch, self.atomic_bytes):
            counts.requests += 1
            counts.statements += len(part.rows) + (part.static is not None) + (part.clear_before is not None)
            counts.writes += 1
            try:
                await write(self.client, partition, part, part.level, part.timestamp_us)
            except Unknown:
                counts.unknown += 1
                raise
            if self.world.trace is not None:
                self._note("write", part.table.name, part.partition, len(part.rows))

    async def compare_and_set(self, cas: Cas) -> Outcome:
        size = check_cas(cas)
        partition = self._partition(cas.table, cas.partition)
        counts = self.counts
        counts.requests += 1
        counts.statements += len(cas.changes) + cas.drop
        counts.writes += 1
        counts.rounds += 1
        counts.bytes_written += size
        try:
            outcome: Outcome = await serial(self.client, partition, cas)
        except Unknown:
            counts.unknown += 1
            raise
        if self.world.trace is not None:
            self._note("cas", cas.table.name, cas.partition, outcome.applied)
        return outcome

    async def drop(
        self, table: Table, partition: Key, level: Level = Level.QUORUM, timestamp_us: int | None = None
    ) -> None:
        check_drop(table, partition, timestamp_us, level)
        where = self._partition(table, partition)
        self.counts.requests += 1
        self.counts.statements += 1
        self.counts.writes += 1
        try:
            await write(self.client, where, None, level, timestamp_us)
        except Unknown:
            self.counts.unknown += 1
            raise
        self._note("drop", table.name, partition)

    async def partitions(
        self, table: Table, limit: int = 1_000, after: Key | None = None, level: Level = Level.QUORUM
    ) -> list[Key]:
        check_partitions(table, limit, after)
        self._table(table)
        self.counts.reads += 1
        ring = self.world.rings[table.name]
        first = 0 if after is None else bisect_right(ring, seat_of(table, after))
        found: list[Key] = []
        # Found by one, looked at by a quorum: what a page of a scan shows is of different times.
        for _, _, key in ring[first:]:
            page = await self.read(Slice(table, key, limit=1, level=level))
            if page.rows or page.static:
                found.append(key)
                if len(found) == limit:
                    break
        return found

    async def replicas(self, table: Table, partition: Key) -> tuple[Replica, ...]:
        """Each is asked whether it is there; one that is cut off from this client, down or paused does not answer."""
        self._table(table)
        world, network = self.world, self.world.network
        await self.client.clock.sleep(network.round_trip())
        now_s = world.loop.time()
        return tuple(
            Replica(one.name, one.dc, network.reaches(self.client.name, one) and one.paused_until_s <= now_s)
            for one in world.placement(table, partition).replicas
        )

    async def skew_s(self) -> float:
        self._open()
        world = self.world
        coordinator = world.network.coordinator(self.client.name, self.client.dc)
        future: asyncio.Future[float] = world.loop.create_future()
        if coordinator is None or not world.network.reaches(self.client.name, coordinator):
            refuse(world, future, "no server of the store can be reached")
            return await future
        before_s = self.client.clock.now_s()
        there_s, back_s = world.network.delay(), world.network.delay()
        read_s = world.wall_s(coordinator) + there_s
        world.loop.at(world.loop.time() + there_s + back_s, answer, future, read_s)
        theirs_s = await future
        return theirs_s - (before_s + self.client.clock.now_s()) / 2

    async def check(self) -> None:
        self._open()
        network = self.world.network
        coordinator = network.coordinator(self.client.name, self.client.dc)
        if coordinator is None:
            raise Unavailable("no server of the store can be reached")
        up = sum(network.believes(coordinator.name, replica) for replica in self.world.replicas)
        if up <= len(self.world.replicas) // 2:
            raise Unavailable(f"only {up} of {len(self.world.replicas)} servers of the store are up")

    async def close(self) -> None:
        self._closed = True

    # ---- parts

    def _open(self) -> None:
        if self.world.loop.closing:
            raise asyncio.CancelledError("the run is over")
        if self._closed:
            raise Unavailable("the store is closed")

    def _table(self, table: Table) -> None:
        self._open()
        there = self.world.tables.get(table.name)
        if there is not table and there != table:
            raise Invalid(f"table {table.name} is not prepared as declared: call prepare first")

    def _partition(self, table: Table, key: Key) -> Partition:
        world = self.world
        if self._closed or world.loop.closing or world.tables.get(table.name) is not table:
            self._table(table)
        found = world.partitions.get((table.name, key))
        return world.partition(table, key) if found is None else found

    def _note(self, *what: object) -> None:
        if self.world.trace is not None:
            self.world.note(self.client.name, *what)


def _bytes(row: tuple[Key, Values]) -> int:
    return _values_bytes(row[1])


def _values_bytes(values: Values) -> int:
    size = 0
    for value in values.values():
        size += len(value) if type(value) is str or type(value) is bytes else 8
    return size


def _parts(batch: Batch, most_bytes: int) -> Iterable[Batch]:
    """Split by bytes; the static values and the range delete go with the first part."""
    rows: list[tuple[Key, Values]] = []
    size = _values_bytes(batch.static) if batch.static else 0
    static, clear_before = batch.static, batch.clear_before
    for row in batch.rows:
        if rows and size + _bytes(row) > most_bytes:
            yield msgspec.structs.replace(batch, rows=tuple(rows), static=static, clear_before=clear_before)
            rows, size, static, clear_before = [], 0, None, None
        rows.append(row)
        size += _bytes(row)
    yield msgspec.structs.replace(batch, rows=tuple(rows), static=static, clear_before=clear_before)
