"""A process that is killed while it writes: what it had confirmed is there, and no batch is there in part.

The child says each confirmed write on a pipe; it is killed after a number of them that the seed decides, several times
in the same folder. Writes without sync survive the process too: only the machine may lose them.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from tests.conformance.crash_child import ROWS, TASKS, partition_of
from tests.conformance.tables import APART, GUARDED, PLAIN, TABLES

from capellini.model.clock import RealClock
from capellini.store.interface import Page, Slice, Store, Table
from capellini.store.rocks import RocksStore

ROOT = Path(__file__).parents[2]
KILLS = 2  # in one folder, one after the other: recovery of what was recovered
MOST_CONFIRMED = 1_500  # so many confirmed writes at most before it is killed
ALL = 1_000_000

Confirmed = dict[tuple[str, int], set[int]]


def write_until_killed(folder: Path, first: int, lines: int) -> list[tuple[str, int, int]]:
    """What a child confirmed that was killed after so many lines."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.crash_child", str(folder), str(first)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout and child.stderr
    said: list[bytes] = []
    for line in child.stdout:
        said.append(line)
        if len(said) == lines:
            break
    child.send_signal(signal.SIGKILL)
    said += child.stdout.readlines()
    errors = child.stderr.read().decode()
    child.stdout.close()
    child.stderr.close()
    assert child.wait() == -signal.SIGKILL, errors
    assert len(said) >= lines, errors
    whole = [line.decode().split() for line in said if line.endswith(b"\n")]
    return [(table, int(task), int(number)) for table, task, number in whole]


async def read_all(store: Store, table: Table, name: str, task: int) -> Page:
    return await store.read(Slice(table, partition_of(name, task), limit=ALL))


async def look(folder: Path) -> dict[tuple[str, int], Page]:
    store = await RocksStore.open(folder, create=False, clock=RealClock())
    try:
        await store.prepare(TABLES, create=False)
        places = (("plain", PLAIN), ("apart", APART), ("guarded", GUARDED))
        return {
            (name, task): await read_all(store, table, name, task) for name, table in places for task in range(TASKS)
        }
    finally:
        await store.close()


def check_batches(name: str, page: Page, confirmed: set[int]) -> None:
    """Every confirmed batch is there, and every batch that is there is whole."""
    rows: dict[int, int] = defaultdict(int)
    for row in page.rows:
        key = row.key[-1]
        assert isinstance(key, int)
        value = row.values["number"] if name == "plain" else int.from_bytes(bytes(row.values["blob"]), "big")  # type: ignore[arg-type]
        assert value == key // ROWS
        rows[key // ROWS] += 1
    assert confirmed <= rows.keys()
    assert set(rows.values()) <= {ROWS}
    if name == "plain" and rows:
        assert page.static == {"total": max(rows)}  # in the same batch as the last rows


def check_steps(page: Page, confirmed: set[int]) -> None:
    """The static version and the rows were written together, one after the other without a gap."""
    counts = [row.values["count"] for row in page.rows]
    assert counts == list(range(len(counts)))
    assert page.static == ({"version": len(counts) - 1} if counts else {})
    assert not confirmed or max(confirmed) < len(counts)


def crash(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    confirmed: Confirmed = defaultdict(set)
    first = 0
    for _ in range(KILLS):
        for table, task, number in write_until_killed(folder, first, chance.randint(1, MOST_CONFIRMED)):
            confirmed[table, task].add(number)
        for (table, task), page in asyncio.run(look(folder)).items():
            if table == "guarded":
                check_steps(page, confirmed[table, task])
            else:
                check_batches(table, page, confirmed[table, task])
        # The next child goes on above whatever was under way, so that batches of two lives never share rows.
        first = 1 + max(number for numbers in confirmed.values() for number in numbers) + ROWS


@pytest.mark.parametrize("seed", range(5))
def test_what_was_confirmed_survives_the_end_of_the_process(tmp_path: Path, seed: int) -> None:
    crash(tmp_path / "store", seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 150))
def test_what_was_confirmed_survives_the_end_of_the_process_many_times(tmp_path: Path, seed: int) -> None:
    crash(tmp_path / "store", seed)
