"""The embedded store beside bare rocksdict.

Both write rows of a count and a block of 100 bytes under (partition, number) and sync each batch before the next. The
bare side packs its keys and values with `struct`, which is the least anyone must do; ours adds checks, timestamps,
cells and the event loop.

Both scan a whole partition into a list. The bare side's list has the key and the value of each row as the bytes they
are, which is the least a caller of that library ends with; ours has rows: the key's parts, and each column by name. So
the figure holds the whole cost of decoding against none. Beside it, `unpacked_ratio` is against a bare side that
unpacks with `struct` what it had packed: number, count and block of each row.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
from rocksdict import AccessType, Options, Rdict, WriteBatch, WriteOptions

from capellini.bench.figures import Detail, Figure, judge
from capellini.model.clock import RealClock
from capellini.store.interface import Batch, Column, Key, Slice, Store, Table, Type, Value
from capellini.store.rocks import RocksStore

TABLE: Final = Table(
    name="bench_rows",
    doc="Rows of the benchmark.",
    partition=(Column("name", Type.TEXT),),
    clustering=(Column("number", Type.INT),),
    columns=(Column("count", Type.INT), Column("block", Type.BLOB)),
)
BLOCK: Final = bytes(range(100))
SIZES: Final = (1, 10, 100)  # rows of a batch
TASKS: Final = 1_000
_KEY: Final = struct.Struct(">8sQ")
_COUNT: Final = struct.Struct(">q")

Rows = tuple[tuple[Key, dict[str, Value]], ...]


class Scale(msgspec.Struct, frozen=True):
    rounds: int
    batches: int  # of each size, in a round
    scanned: int  # rows of a scan
    writes_per_task: int


FULL: Final = Scale(rounds=15, batches=200, scanned=100_000, writes_per_task=20)
QUICK: Final = Scale(rounds=7, batches=60, scanned=30_000, writes_per_task=5)


async def run(quick: bool, wanted: list[str]) -> list[Figure]:
    scale = QUICK if quick else FULL
    measures = {
        "store.rocks.sync_write_b100_vs_bare": _writes,
        "store.rocks.scan_vs_bare": _scans,
        "store.rocks.writes_per_fsync_1000_tasks": _group_commit,
    }
    made: list[Figure] = []
    for name in wanted:
        with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
            store = await RocksStore.open(Path(folder) / "ours", create=True, clock=RealClock())
            bare = Bare(Path(folder) / "bare")
            try:
                await store.prepare((TABLE,))
                value, detail = await measures[name](store, bare, scale)
            finally:
                bare.close()
                await store.close()
        made.append(judge(name, value, detail))
    return made


class Bare:
    """rocksdict with keys and values as bytes, and nothing else."""

    def __init__(self, folder: Path) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._db: Any = Rdict(str(folder), options, access_type=AccessType.read_write())
        self._synced: Any = WriteOptions()
        self._synced.sync = True

    def write(self, partition: bytes, first: int, rows: int) -> None:
        batch: Any = WriteBatch(raw_mode=True)
        for number in range(first, first + rows):
            batch.put(_KEY.pack(partition, number), _COUNT.pack(number) + BLOCK)
        self._db.write(batch, write_opt=self._synced)

    def scan(self, partition: bytes, rows: int) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for key, value in self._db.items(from_key=_KEY.pack(partition, 0)):
            found.append((key, value))
            if len(found) == rows:
                break
        return found

    def scan_unpacked(self, partition: bytes, rows: int) -> list[tuple[int, int, bytes]]:
        found: list[tuple[int, int, bytes]] = []
        for key, value in self._db.items(from_key=_KEY.pack(partition, 0)):
            found.append((_KEY.unpack(key)[1], _COUNT.unpack_from(value)[0], value[_COUNT.size :]))
            if len(found) == rows:
                break
        return found

    def close(self) -> None:
        self._db.close()


def rows_of(first: int, count: int) -> Rows:
    return tuple([((number,), {"count": number, "block": BLOCK}) for number in range(first, first + count)])


async def _writes(store: Store, bare: Bare, scale: Scale) -> tuple[float, Detail]:
    """Batch after batch, each synced before the next begins."""
    ours_s: dict[int, list[float]] = {size: [] for size in SIZES}
    bare_s: dict[int, list[float]] = {size: [] for size in SIZES}
    for turn in range(scale.rounds + 1):
        for size in SIZES:
            first = turn * scale.batches * size
            starts = range(first, first + scale.batches * size, size)
            began_s = time.perf_counter()
            for at in starts:
                bare.write(b"rows%04d" % size, at, size)
            between_s = time.perf_counter()
            for at in starts:
                await store.write(Batch(TABLE, (f"rows{size}",), rows_of(at, size)))
            ended_s = time.perf_counter()
            if turn:  # the first one warms both up
                bare_s[size].append(between_s - began_s)
                ours_s[size].append(ended_s - between_s)
    ratios = {size: median(b / o for b, o in zip(bare_s[size], ours_s[size], strict=True)) for size in SIZES}
    detail: Detail = {}
    for size in SIZES:
        rows = scale.batches * size
        detail[f"b{size}_rows_per_s"] = round(rows / median(ours_s[size]))
        detail[f"b{size}_bare_rows_per_s"] = round(rows / median(bare_s[size]))
        detail[f"b{size}_ratio"] = round(ratios[size], 3)
    return ratios[100], detail


async def _scans(store: Store, bare: Bare, scale: Scale) -> tuple[float, Detail]:
    """A whole partition into a list: as rows here, as pairs of bytes there."""
    for first in range(0, scale.scanned, 1_000):
        bare.write(b"scanned.", first, 1_000)
        await store.write(Batch(TABLE, ("scanned",), rows_of(first, 1_000), sync=False))
    ours_s: list[float] = []
    bare_s: list[float] = []
    unpacked_s: list[float] = []
    for _ in range(scale.rounds):
        began_s = time.perf_counter()
        found = len(bare.scan(b"scanned.", scale.scanned))  # each side's rows are gone before the other's turn
        between_s = time.perf_counter()
        ours = len((await store.read(Slice(TABLE, ("scanned",), limit=scale.scanned))).rows)
        ended_s = time.perf_counter()
        unpacked = len(bare.scan_unpacked(b"scanned.", scale.scanned))
        unpacked_s.append(time.perf_counter() - ended_s)
        if not found == ours == unpacked == scale.scanned:
            raise RuntimeError(f"{scale.scanned} rows were written, {found}, {ours} and {unpacked} found")
        bare_s.append(between_s - began_s)
        ours_s.append(ended_s - between_s)
    detail: Detail = {
        "rows_per_s": round(scale.scanned / median(ours_s)),
        "bare_rows_per_s": round(scale.scanned / median(bare_s)),
        "unpacked_ratio": round(median(u / o for u, o in zip(unpacked_s, ours_s, strict=True)), 3),
        "rows": scale.scanned,
    }
    return median(b / o for b, o in zip(bare_s, ours_s, strict=True)), detail


async def _group_commit(store: Store, _bare: Bare, scale: Scale) -> tuple[float, Detail]:
    """Many tasks, each with one small write after the other: those who wait share an fsync."""

    async def writer(task: int) -> None:
        for number in range(scale.writes_per_task):
            await store.write(Batch(TABLE, (f"task{task}",), rows_of(number, 1)))

    before = msgspec.structs.replace(store.counts)
    began_s = time.perf_counter()
    await asyncio.gather(*(writer(task) for task in range(TASKS)))
    took_s = time.perf_counter() - began_s
    writes, fsyncs = store.counts.writes - before.writes, store.counts.fsyncs - before.fsyncs
    detail: Detail = {"writes": writes, "fsyncs": fsyncs, "writes_per_s": round(writes / took_s)}
    return writes / fsyncs, detail
