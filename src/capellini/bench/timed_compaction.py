"""Which compaction suits rows that are written by due and dropped by part? One Cassandra node, a keyspace per strategy,
the same work in each, side by side. `python -m capellini.bench.timed_compaction` takes about ten minutes.

    every PART_S:   rows with dues spread over the next AHEAD parts ─▶ the part that is due is read ─▶ it is dropped
    every FLUSH_S:  Cassandra writes its memory out as a file

Days are made minutes: parts of PART_S, windows of one minute (Cassandra's shortest). What counts afterwards:

    files, megabytes      on disk; `needed` is what the parts that are not dropped take
    compacted             megabytes that compactions read, from Cassandra's own history
    read_ms               of parts that came due in the last quarter, median: many files make it slow
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import acsylla
import msgspec

from capellini.local import processes
from capellini.local.cluster import LocalCluster
from capellini.model.address import CassandraAddress
from capellini.queues.timed.positions import position_of, ticks_of_ms
from capellini.store.cassandra import CassandraStore
from capellini.store.interface import Batch, Key, Slice, Value
from capellini.store.schema import TIMED_ROWS

STRATEGIES: Final = {
    "size_tiered": "{'class': 'SizeTieredCompactionStrategy'}",
    "unified": "{'class': 'UnifiedCompactionStrategy'}",
    "time_window": (
        "{'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'MINUTES', 'compaction_window_size': 1}"
    ),
}
PART_S: Final = 5.0
FLUSH_S: Final = 4.0
AHEAD: Final = 40  # parts
ROWS: Final = 30  # written to each part ahead, in each turn
TURNS: Final = 100
BODY: Final = 1_000  # bytes of chance: nothing to compress
TTL_S: Final = 604_800
HISTORY: Final = "SELECT keyspace_name, columnfamily_name, bytes_in FROM system.compaction_history"


class Found(msgspec.Struct, frozen=True):
    strategy: str
    files: int
    megabytes: float
    needed: float
    compacted: float
    read_ms: float


class _Side:
    """One strategy's keyspace."""

    def __init__(self, strategy: str, store: CassandraStore) -> None:
        self.strategy, self.store = strategy, store
        self.read_ms: list[float] = []

    async def turn(self, number: int, chance: random.Random) -> None:
        for part in range(number + 1, number + 1 + AHEAD):
            await self.store.write(Batch(TIMED_ROWS, _part(part), _rows(chance), ttl_s=TTL_S))
        began_s = time.perf_counter()
        await self.store.read(Slice(TIMED_ROWS, _part(number), limit=ROWS * AHEAD))
        if number >= TURNS * 3 // 4:
            self.read_ms.append((time.perf_counter() - began_s) * 1000)
        await self.store.drop(TIMED_ROWS, _part(number))


def _part(number: int) -> Key:
    return ("later", 1, f"{number:06}", 0)


def _rows(chance: random.Random) -> tuple[tuple[Key, dict[str, Value]], ...]:
    now_ms = int(time.time() * 1000)
    made = []
    for _ in range(ROWS):
        values: dict[str, Value] = {"due_ms": now_ms, "put_ms": now_ms, "entry": chance.randbytes(BODY)}
        made.append(((position_of(ticks_of_ms(now_ms), 0, chance),), values))
    return tuple(made)


async def measure(host: str, data: Path, turns: int = TURNS) -> list[Found]:
    """On a Cassandra that runs, whose files lie in `data`."""
    session: Any = await acsylla.create_cluster([host], log_level="critical").create_session()
    stamp = int(time.time())
    sides = []
    for strategy, text in STRATEGIES.items():
        store = await CassandraStore.open(CassandraAddress((host,), _keyspace(strategy, stamp)))
        await store.prepare((TIMED_ROWS,))
        table = f"{_keyspace(strategy, stamp)}.{TIMED_ROWS.name}"
        period_ms = int(FLUSH_S * 1000)
        await session.query(
            f"ALTER TABLE {table} WITH compaction = {text} AND memtable_flush_period_in_ms = {period_ms}"
        )
        sides.append(_Side(strategy, store))
    try:
        for number in range(turns):
            began_s = time.monotonic()
            for side in sides:
                await side.turn(number, random.Random(number))
            await asyncio.sleep(max(0.0, PART_S - (time.monotonic() - began_s)))
        await asyncio.sleep(4 * FLUSH_S)  # what is in memory is written, and what is due is compacted
        history = [row.as_list() for row in await session.query(HISTORY)]
        return [_found(side, stamp, data, history) for side in sides]
    finally:
        for side in sides:
            await side.store.close()
        await session.close()


def _keyspace(strategy: str, stamp: int) -> str:
    return f"compaction_{strategy}_{stamp}"


def _found(side: _Side, stamp: int, data: Path, history: list[list[Any]]) -> Found:
    keyspace = _keyspace(side.strategy, stamp)
    files = list((data / keyspace).glob(f"{TIMED_ROWS.name}-*/*-Data.db"))
    mine = [bytes_in for space, table, bytes_in in history if (space, table) == (keyspace, TIMED_ROWS.name)]
    needed = ROWS * BODY * AHEAD * (AHEAD + 1) / 2  # the next part has all its rows, the last one a turn's
    return Found(
        side.strategy,
        len(files),
        round(sum(file.stat().st_size for file in files) / 1e6, 1),
        round(needed / 1e6, 1),
        round(sum(mine) / 1e6, 1),
        round(median(side.read_ms), 2) if side.read_ms else 0.0,
    )


async def main() -> None:
    cluster = LocalCluster(f"bench-compaction-{os.getpid()}")
    try:
        await asyncio.to_thread(cluster.up, 1, jvm="full", owner=processes.identify(os.getpid()))
        (data,) = cluster.folder.glob("*/storage/data")
        for found in await measure(cluster.contact_points(), data):
            print(msgspec.json.encode(found).decode())
    finally:
        await asyncio.to_thread(cluster.down)


if __name__ == "__main__":
    asyncio.run(main())
