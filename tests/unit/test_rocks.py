"""The embedded store: its fsyncs, its clock, its upkeep, its records. Its folder is in `test_rocks_folder`, and what
all stores have in common in tests/conformance."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rocksdict import AccessType
from tests.unit.rocks_stores import APART, CHECKED, PLAIN, TABLES, keys, opened, row

from capellini.model.clock import RealClock
from capellini.model.errors import Full, Invalid, Unavailable, Unknown
from capellini.store import folder as folders
from capellini.store.cells import RowCodec
from capellini.store.interface import ABSENT, Batch, Cas, Change, Column, Slice, Type, Value
from capellini.store.layout import Mark, add_mark, deleted_until, pack_marks, unpack_marks
from capellini.store.rocks import RocksStore
from capellini.store.rocks.database import Database
from capellini.store.sweeping import GRACE_US


class Hands(RealClock):
    """A clock whose wall time is moved by hand."""

    def __init__(self) -> None:
        self.wall_s = 1_000_000.0

    def now_s(self) -> float:
        return self.wall_s


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RocksStore]:
    store = await opened(tmp_path / "s")
    yield store
    await store.close()


# ---- fsyncs


async def test_a_thousand_writers_share_few_fsyncs(store: RocksStore) -> None:
    before = store.counts.fsyncs
    await asyncio.gather(*(store.write(Batch(PLAIN, (f"p{n}",), (row(n),))) for n in range(1_000)))
    assert 1 <= store.counts.fsyncs - before <= 20


@pytest.mark.parametrize("average_s", [0.0, 1.0])  # on the loop, and in the thread
async def test_after_a_failed_fsync_nothing_is_confirmed_any_more(tmp_path: Path, average_s: float) -> None:
    store = await opened(tmp_path / "s")
    await store.write(Batch(PLAIN, ("p",), (row(1),)))

    def broken() -> None:
        raise OSError(5, "Input/output error")

    store._worker._flush, store._worker.average_s = broken, average_s
    writes = [store.write(Batch(PLAIN, ("p",), (row(n),))) for n in range(2, 6)]
    answers = await asyncio.gather(*writes, return_exceptions=True)
    assert all(isinstance(answer, Unknown) for answer in answers)
    for call in (store.write(Batch(PLAIN, ("p",), (row(9),))), store.drop(PLAIN, ("p",)), store.check()):
        with pytest.raises(Unavailable):
            await call
    with pytest.raises(Unknown):  # what was written before the failure may be durable
        await store.sync()
    await store.close()
    again = await opened(tmp_path / "s")
    assert 1 in await keys(again) and 9 not in await keys(again)
    await again.close()


UNTIL_IT_FAILS = """
import asyncio, resource, sys
from pathlib import Path
from capellini.model.errors import StoreError
from capellini.store.interface import Batch
from tests.unit.rocks_stores import APART, PLAIN, opened, row

async def main():
    store = await opened(Path(sys.argv[1]))
    await store.write(Batch(APART, ("p",), (((1,), {"v": b"a"}),)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    number = 0
    try:
        while True:
            await store.write(Batch(PLAIN, ("p",), (row(number, b"x" * 10_000),)))
            number += 1
    except StoreError:
        print(number)
    await store.close()

asyncio.run(main())
"""


def test_a_store_whose_disk_has_failed_is_closed_all_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNTIL_IT_FAILS, str(tmp_path / "s")]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (child.returncode, child.stderr) == (0, "")
    written = int(child.stdout)

    async def again() -> None:
        store = await opened(tmp_path / "s")
        assert (await keys(store))[:written] == list(range(written))
        await store.close()

    asyncio.run(again())


async def test_an_fsync_that_finds_the_disk_full_says_so(tmp_path: Path) -> None:
    store = await opened(tmp_path / "s")

    def broken() -> None:
        raise Exception("IO error: No space left on device: While fsync")

    store._worker._flush = broken
    with pytest.raises(Unknown):
        await store.write(Batch(PLAIN, ("p",), (row(1),)))
    with pytest.raises(Full):
        await store.write(Batch(PLAIN, ("p",), (row(2),)))
    await store.close()


async def test_a_cancelled_writer_does_not_take_its_group_along(store: RocksStore) -> None:
    tasks = [asyncio.create_task(store.write(Batch(PLAIN, ("p",), (row(n),)))) for n in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert answers[0] is None and answers[2] is None and await keys(store) == [0, 1, 2]


async def test_a_relaxed_write_waits_for_no_fsync_but_a_refusal_built_on_it_does(store: RocksStore) -> None:
    before = store.counts.fsyncs
    cas = Cas(CHECKED, ("p",), (Change((), ABSENT, {"v": "mine"}),), sync=False)
    assert (await store.compare_and_set(cas)).applied and store.counts.fsyncs == before
    firm = Cas(CHECKED, ("p",), (Change((), ABSENT, {"v": "mine"}),))
    assert not (await store.compare_and_set(firm)).applied and store.counts.fsyncs == before + 1


async def test_a_full_disk_refuses_puts_before_acks_and_changes_nothing(tmp_path: Path) -> None:
    store = await opened(tmp_path / "s")
    free = 1 << 40
    store._room = folders.Room(tmp_path, Hurried(), folders.ROOM_BYTES, lambda _: free)
    cas = Cas(CHECKED, ("p",), (Change((), ABSENT, {"v": "a"}),))
    await store.write(Batch(PLAIN, ("p",), (row(1),)))
    free = folders.ROOM_BYTES - 1
    with pytest.raises(Full):
        await store.write(Batch(PLAIN, ("p",), (row(2),)))
    assert (await store.compare_and_set(cas)).applied
    await store.write(Batch(PLAIN, ("p",), (row(3),), frees=True))
    await store.drop(PLAIN, ("elsewhere",))
    free = folders.ACK_ROOM_BYTES - 1
    with pytest.raises(Full):
        await store.compare_and_set(cas)
    with pytest.raises(Full):
        await store.write(Batch(PLAIN, ("p",), (row(4),), frees=True))
    free = 1 << 40
    await store.write(Batch(PLAIN, ("p",), (row(5),)))
    assert await keys(store) == [1, 3, 5]
    await store.close()


class Hurried(RealClock):
    """Every look at it is a second later, so that the room is measured each time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def elapsed_s(self) -> float:
        self.seconds += 1.0
        return self.seconds


# ---- time


async def test_a_clock_that_went_back_loses_no_write_even_across_a_restart(tmp_path: Path) -> None:
    clock = Hands()
    store = await opened(tmp_path / "s", clock)
    await store.write(Batch(PLAIN, ("p",), (row(1, b"first"),)))
    await store.close()
    clock.wall_s -= 3_600
    store = await opened(tmp_path / "s", clock)
    await store.write(Batch(PLAIN, ("p",), (row(1, b"second"),)))
    assert (await store.read(Slice(PLAIN, ("p",)))).rows[0].values["v"] == b"second"
    await store.drop(PLAIN, ("p",))
    await store.write(Batch(PLAIN, ("p",), (row(1, b"third"),)))
    assert (await store.read(Slice(PLAIN, ("p",)))).rows[0].values["v"] == b"third"
    await store.close()


async def test_an_older_write_does_not_come_back_after_a_drop_a_clear_or_expiry(tmp_path: Path) -> None:
    clock = Hands()
    store = await opened(tmp_path / "s", clock)
    await store.drop(PLAIN, ("p",), timestamp_us=500)
    await store.write(Batch(PLAIN, ("p",), (row(1),), timestamp_us=500))
    assert await keys(store) == []
    await store.write(Batch(PLAIN, ("p",), (row(1), row(5)), timestamp_us=501))
    await store.write(Batch(PLAIN, ("p",), (row(6),), clear_before=(5,), timestamp_us=600))
    await store.write(Batch(PLAIN, ("p",), (row(2), row(7)), timestamp_us=600))
    assert await keys(store) == [5, 6, 7]
    await store.write(Batch(PLAIN, ("p",), (row(8),), timestamp_us=700, ttl_s=10))
    clock.wall_s += 11
    assert (await store.sweep()).removed == 1
    await store.write(Batch(PLAIN, ("p",), (row(8),), timestamp_us=699))
    assert await keys(store) == [5, 6, 7]
    await store.close()


# ---- upkeep


async def test_sweep_removes_what_expired_and_then_what_is_left_of_it(tmp_path: Path) -> None:
    clock = Hands()
    store = await opened(tmp_path / "s", clock)
    for p in ("a", "b"):
        await store.write(Batch(PLAIN, (p,), tuple(row(n, bytes(1_000)) for n in range(50)), ttl_s=60))
    await store.write(Batch(PLAIN, ("a",), (row(99),)))
    await store.write(Batch(APART, ("c",), (((1,), {"v": b"v"}),), ttl_s=60))
    await store.compare_and_set(Cas(CHECKED, ("k",), (Change((), ABSENT, {"v": "v"}),), ttl_s=60))
    await store.drop(PLAIN, ("d",))
    assert await round_of_sweeps(store) == 0
    clock.wall_s += 61
    assert await keys(store, "a") == [99]
    assert await round_of_sweeps(store) == 102
    clock.wall_s += GRACE_US / 1_000_000
    assert await round_of_sweeps(store) == 102  # tombstones of 100 rows and of the one apart, and the mark of the drop
    assert await round_of_sweeps(store) == 0
    assert await keys(store, "a") == [99]
    await store.close()


async def round_of_sweeps(store: RocksStore) -> int:
    removed = 0
    for _ in range(100):
        done = await store.sweep(limit=7)
        assert done.seen <= 7
        removed += done.removed
        if done.finished:
            return removed
    raise AssertionError("the sweep never came to its end")


async def test_a_backup_of_a_running_store_is_a_store(tmp_path: Path, store: RocksStore) -> None:
    await store.write(Batch(PLAIN, ("p",), (row(1),)))
    await store.write(Batch(APART, ("p",), (((7,), {"v": b"v"}),)))
    await store.backup(tmp_path / "copy")
    await store.write(Batch(PLAIN, ("p",), (row(2),)))
    copy = await opened(tmp_path / "copy")
    assert await keys(copy) == [1] and await keys(copy, table=APART) == [7]
    await copy.write(Batch(PLAIN, ("p",), (row(3),)))
    await copy.close()
    assert await keys(store) == [1, 2]
    with pytest.raises(Invalid):
        await store.backup(tmp_path / "copy")


async def test_a_secondary_reads_what_the_other_writes_and_writes_nothing(tmp_path: Path, store: RocksStore) -> None:
    await store.write(Batch(PLAIN, ("p",), (row(1),)))
    reader = await RocksStore.open_secondary(tmp_path / "s", tmp_path / "scratch", clock=RealClock())
    await reader.prepare(TABLES, create=False)
    assert await keys(reader) == [1]
    await store.write(Batch(PLAIN, ("p",), (row(2),)))
    await store.write(Batch(APART, ("p",), (((7,), {"v": b"v"}),)))
    await reader.refresh()
    assert await keys(reader) == [1, 2] and await keys(reader, table=APART) == [7]
    with pytest.raises(Unavailable):
        await reader.write(Batch(PLAIN, ("p",), (row(3),)))
    await reader.close()


async def test_a_secondary_misses_nothing_that_goes_from_the_log_into_a_file_while_it_opens(
    tmp_path: Path, store: RocksStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB itself would: it reads the list of files, then the logs that are left."""
    as_it_is, looks = Database._open, 0

    def moved_meanwhile(self: Database, access: AccessType, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        rows = as_it_is(self, access, **more)
        if looks <= 2:
            store._database.rows.put(b"meanwhile%d" % looks, b"")
            store._database.rows.flush()
        return rows

    monkeypatch.setattr(Database, "_open", moved_meanwhile)
    reader = await RocksStore.open_secondary(tmp_path / "s", tmp_path / "scratch", clock=RealClock())
    assert [reader._database.rows.get(b"meanwhile%d" % number) for number in (1, 2)] == [b"", b""] and looks == 3
    await reader.close()


async def test_a_partition_apart_is_dropped_with_its_column_family(tmp_path: Path, store: RocksStore) -> None:
    for p in ("a", "b"):
        await store.write(Batch(APART, (p,), (((1,), {"v": b"v"}),)))
    await store.drop(APART, ("a",))
    assert await keys(store, "a", APART) == [] and await keys(store, "b", APART) == [1]
    await store.write(Batch(APART, ("a",), (((2,), {"v": b"v"}),)))
    await store.close()
    again = await opened(tmp_path / "s")
    assert await keys(again, "a", APART) == [2] and await keys(again, "b", APART) == [1]
    await again.close()


async def test_partitions_beyond_the_most_column_families_share_one_and_are_dropped_all_the_same(
    tmp_path: Path, store: RocksStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capellini.store.rocks.database.MOST_APART", 2)
    for p in "abcd":
        for key in range(3):
            await store.write(Batch(APART, (p,), (((key,), {"v": p.encode()}),)))
    assert len(store._database.apart) == 2 and len(store._database.shared) == 2
    await store.drop(APART, ("a",))
    await store.write(Batch(APART, ("d",), (((3,), {"v": b"d"}),)))  # stays where it is though there is room now
    await store.write(Batch(APART, ("e",), (((1,), {"v": b"e"}),)))
    await store.drop(APART, ("c",))
    await round_of_sweeps(store)
    await store.backup(tmp_path / "copy")
    await store.close()
    for folder in ("s", "copy"):
        again = await opened(tmp_path / folder)
        found = [await keys(again, p, APART) for p in "abcde"]
        assert found == [[], [0, 1, 2], [], [0, 1, 2, 3], [1]]
        assert len(again._database.apart) == 2 and len(again._database.shared) == 1
        await again.write(Batch(APART, ("c",), (((9,), {"v": b"c"}),)))
        assert await keys(again, "c", APART) == [9]
        await again.close()


# ---- records


def test_records_give_their_cells_back_in_each_form() -> None:
    codec = RowCodec((Column("t", Type.TEXT), Column("n", Type.INT), Column("b", Type.BLOB), Column("f", Type.BOOL)))
    values: dict[str, Value] = {"t": "ä", "n": -5, "b": b"", "f": True}
    for expiry_us in (0, 900):
        whole = codec.whole(values, 7, expiry_us)
        assert whole is not None and codec.live(whole, 899) == values
        assert codec.record(codec.parse(whole)) == whole
        assert codec.live(whole, 900) == (None if expiry_us else values)
        assert codec.live(whole, 0, ("b", "n")) == {"b": b"", "n": -5}
    cells = codec.cells({"t": "x", "n": None}, 7, 0, 1)
    assert codec.parse(codec.record(cells)) == cells and codec.live(codec.record(cells), 1) == {"t": "x"}
    assert codec.whole({**values, "n": 2**63}, 7, 0) is None and codec.whole({"t": "x"}, 7, 0) is None


def test_marks_keep_what_earlier_ones_said() -> None:
    marks = add_mark((), Mark(5, b"m"))
    marks = add_mark(marks, Mark(9, b"c"))
    marks = add_mark(marks, Mark(4, b"a"))  # says nothing new
    assert marks == (Mark(5, b"m"), Mark(9, b"c")) == unpack_marks(pack_marks(marks, 1))
    assert [deleted_until(marks, key) for key in (b"b", b"d")] == [9, 5]
    assert add_mark(marks, Mark(10, None)) == (Mark(10, None),) == unpack_marks(pack_marks((Mark(10, None),), 1))
    assert deleted_until(marks, b"z") < 0 and deleted_until(marks, None) < 0
