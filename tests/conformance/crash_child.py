"""A process that writes into a folder until it is killed, and says what was confirmed.

    python -m tests.conformance.crash_child FOLDER FIRST

Each of its tasks writes batches numbered from FIRST on, in a partition of its own, one after the other. When a write
returned, one line `table task number` goes to standard output, unbuffered: what the parent reads was confirmed.
Even tasks write with sync, odd ones without.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.conformance.tables import APART, GUARDED, PLAIN, TABLES

from capellini.model.clock import RealClock
from capellini.store.interface import Batch, Cas, Change, Key, Store
from capellini.store.rocks import RocksStore

TASKS = 4  # of each table
ROWS = 5  # of each batch
LIFE_S = 60.0  # nobody kills us: end


def say(table: str, task: int, number: int) -> None:
    os.write(1, f"{table} {task} {number}\n".encode())


def partition_of(table: str, task: int) -> Key:
    return (f"task-{task}", task) if table == "apart" else (f"task-{task}",)


def plain_batch(task: int, number: int) -> Batch:
    rows = tuple((("k", number * ROWS + at), {"number": number, "text": "x" * 50}) for at in range(ROWS))
    return Batch(PLAIN, partition_of("plain", task), rows, static={"total": number}, sync=task % 2 == 0)


def apart_batch(task: int, number: int) -> Batch:
    rows = tuple(((number * ROWS + at,), {"blob": number.to_bytes(8, "big")}) for at in range(ROWS))
    return Batch(APART, partition_of("apart", task), rows, sync=task % 2 == 0)


def step(task: int, number: int) -> Cas:
    """From number - 1 to number, in the static row and in a row of its own."""
    expected = {"version": number - 1 if number else None}
    changes = (Change(None, expected, {"version": number}), Change((number,), None, {"count": number}))
    return Cas(GUARDED, partition_of("guarded", task), changes, sync=task % 2 == 0)


async def work(store: Store, table: str, task: int, first: int) -> None:
    number = first
    while True:
        match table:
            case "plain":
                await store.write(plain_batch(task, number))
            case "apart":
                await store.write(apart_batch(task, number))
            case _:
                outcome = await store.compare_and_set(step(task, number))
                if not outcome.applied:  # the one that was under way at the crash had been done
                    number = int(str(outcome.rows.get(None, {}).get("version", -1))) + 1
                    continue
        say(table, task, number)
        number += 1
        await asyncio.sleep(0)  # a write without sync may end without giving way


async def main(folder: Path, first: int) -> None:
    store = await RocksStore.open(folder, create=True, clock=RealClock())
    await store.prepare(TABLES)
    tables = ("plain", "apart", "guarded")
    tasks = [asyncio.ensure_future(work(store, table, task, first)) for table in tables for task in range(TASKS)]
    await asyncio.wait(tasks, timeout=LIFE_S, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        if task.done():
            task.result()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
