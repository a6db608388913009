"""The store on Cassandra beside the bare driver, on a cluster of one node started for it.

Writes: both send unlogged batches of 100 rows to tables of the same columns, with as many under way at once.
Rounds: the store counts its own; Cassandra counts its writes to `system.paxos`, some per round, always as many. How
many, compare-and-sets of one row tell; so what one of 200 rows takes, counted by Cassandra, is known in rounds.
The larger of both counts is the figure.
"""

from __future__ import annotations

import asyncio
import os
import time
from statistics import median
from typing import Any, Final

import acsylla
import msgspec

from capellini.bench.figures import Detail, Figure, judge, unmeasured
from capellini.bench.store_rocks import BLOCK, TABLE, rows_of
from capellini.local import processes
from capellini.local.cluster import LocalCluster
from capellini.local.errors import ClusterError
from capellini.model.address import CassandraAddress
from capellini.model.errors import CapelliniError
from capellini.store.cassandra import CassandraStore
from capellini.store.interface import ABSENT, Batch, Cas, Change, Column, Store, Table, Type

KEYSPACE: Final = "capellini_bench"
GUARDED: Final = Table(
    name="bench_guarded",
    doc="Conditional rows of the benchmark.",
    partition=(Column("name", Type.TEXT),),
    clustering=(Column("number", Type.INT),),
    columns=(Column("state", Type.TEXT), Column("token", Type.TEXT)),
    conditional=frozenset(("state", "token")),
)
BARE_TABLE: Final = f"{KEYSPACE}.bench_bare"
UNDER_WAY: Final = 16  # requests at once, on either side
SIZE: Final = 100  # rows of a batch
CAS_ROWS: Final = 200
PAXOS_WRITES: Final = (
    "SELECT count FROM system_views.local_write_latency WHERE keyspace_name = 'system' AND table_name = 'paxos'"
)


class Scale(msgspec.Struct, frozen=True):
    rounds: int
    batches: int  # of each side, in a round
    changes: int  # compare-and-sets of each kind


FULL: Final = Scale(rounds=15, batches=400, changes=100)
QUICK: Final = Scale(rounds=7, batches=100, changes=20)


async def run(quick: bool, wanted: list[str]) -> list[Figure]:
    scale = QUICK if quick else FULL
    cluster = LocalCluster(f"bench-{os.getpid()}")
    try:
        await asyncio.to_thread(cluster.up, 1, owner=processes.identify(os.getpid()))
        return await _measure(cluster.contact_points(), scale, wanted)
    except ClusterError as error:
        return [unmeasured(name, f"no cluster could be started: {error}") for name in wanted]
    finally:
        await asyncio.to_thread(cluster.down)


async def _measure(host: str, scale: Scale, wanted: list[str]) -> list[Figure]:
    store = await CassandraStore.open(CassandraAddress((host,), KEYSPACE))
    session: Any = None
    try:
        await store.prepare((TABLE, GUARDED))
        # It calls each connection to a server that is not ScyllaDB an error.
        session = await acsylla.create_cluster([host], log_level="critical").create_session()
        made: list[Figure] = []
        for name in wanted:
            measure = _writes if name == "store.cassandra.write_b100_vs_bare" else _rounds
            try:
                value, detail = await measure(store, session, scale)
            except (CapelliniError, acsylla.errors.CassException) as error:  # the other figure may still be had
                made.append(unmeasured(name, f"{type(error).__name__}: {error}"))
            else:
                made.append(judge(name, value, detail))
        return made
    finally:
        if session is not None:
            await session.close()
        await store.close()


class Bare:
    """The driver, prepared statements and unlogged batches, and nothing else."""

    def __init__(self, session: Any, prepared: Any) -> None:
        self._session = session
        self._prepared = prepared

    @classmethod
    async def make(cls, session: Any) -> Bare:
        columns = "name text, number bigint, count bigint, block blob"
        await session.query(f"CREATE TABLE IF NOT EXISTS {BARE_TABLE} ({columns}, PRIMARY KEY (name, number))")
        text = f"INSERT INTO {BARE_TABLE} (name, number, count, block) VALUES (?, ?, ?, ?)"
        return cls(session, await session.create_prepared(text))

    async def write(self, partition: str, first: int) -> None:
        batch = acsylla.create_batch_unlogged()
        batch.set_consistency(acsylla.Consistency.QUORUM)
        for number in range(first, first + SIZE):
            statement = self._prepared.bind()
            statement.bind_list([partition, number, number, BLOCK])
            batch.add_statement(statement)
        await self._session.execute_batch(batch)


async def _writes(store: Store, session: Any, scale: Scale) -> tuple[float, Detail]:
    bare = await Bare.make(session)
    ours_s: list[float] = []
    bare_s: list[float] = []

    async def ours_one(partition: str, first: int) -> None:
        await store.write(Batch(TABLE, (partition,), rows_of(first, SIZE)))

    for turn in range(scale.rounds + 1):
        began_s = time.perf_counter()
        await _many(bare.write, turn, scale.batches)
        between_s = time.perf_counter()
        await _many(ours_one, turn, scale.batches)
        ended_s = time.perf_counter()
        if turn:  # the first one warms both up
            bare_s.append(between_s - began_s)
            ours_s.append(ended_s - between_s)
    rows = scale.batches * SIZE
    detail: Detail = {"rows_per_s": round(rows / median(ours_s)), "bare_rows_per_s": round(rows / median(bare_s))}
    return median(b / o for b, o in zip(bare_s, ours_s, strict=True)), detail


async def _many(write: Any, turn: int, batches: int) -> None:
    """So many batches, as many under way as allowed, each task in a partition of its own."""

    async def task(number: int) -> None:
        for at in range(number, batches, UNDER_WAY):
            await write(f"{turn}/{number}", at * SIZE)

    await asyncio.gather(*(task(number) for number in range(UNDER_WAY)))


async def _rounds(store: Store, session: Any, scale: Scale) -> tuple[float, Detail]:
    """Compare-and-sets of one row, then of 200, each on a partition of its own."""
    single_paxos, single_rounds = await _changes(store, session, scale.changes, 1)
    many_paxos, many_rounds = await _changes(store, session, scale.changes, CAS_ROWS)
    counted = many_rounds / scale.changes
    by_cassandra = many_paxos / single_paxos * single_rounds / scale.changes
    detail: Detail = {
        "compare_and_sets": scale.changes,
        "rows_each": CAS_ROWS,
        "rounds_counted_by_the_store": counted,
        "rounds_counted_by_cassandra": round(by_cassandra, 3),
        "paxos_writes_per_compare_and_set": round(many_paxos / scale.changes, 2),
        "paxos_writes_per_compare_and_set_of_one_row": round(single_paxos / scale.changes, 2),
    }
    return max(counted, round(by_cassandra, 2)), detail


async def _changes(store: Store, session: Any, count: int, rows: int) -> tuple[int, int]:
    """Writes to the Paxos table, as Cassandra counted them, and rounds, as the store did."""
    writes, rounds = await _paxos_writes(session), store.counts.rounds
    for number in range(count):
        changes = tuple(Change((row,), ABSENT, {"state": "new", "token": str(number)}) for row in range(rows))
        outcome = await store.compare_and_set(Cas(GUARDED, (f"{rows}/{number}",), changes))
        if not outcome.applied:
            raise RuntimeError("a compare-and-set on a new partition was refused")
    return await _paxos_writes(session) - writes, store.counts.rounds - rounds


async def _paxos_writes(session: Any) -> int:
    result = await session.query(PAXOS_WRITES)
    return int(next(iter(result)).as_list()[0])
