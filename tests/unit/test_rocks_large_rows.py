"""Large rows are read from everywhere, also when they have left memory: here, by another process, in a copy."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.unit.rocks_stores import PLAIN, TABLES, keys, opened, row

from capellini.model.clock import RealClock
from capellini.store import folder as folders
from capellini.store.folder import DATA_FOLDER
from capellini.store.interface import Batch, Slice
from capellini.store.rocks import RocksStore
from capellini.store.rocks.copying import copy
from capellini.store.rocks.database import SMALL

LARGE_BYTES = 100_000


async def _filled(folder: Path, partitions: list[str], chance: random.Random) -> tuple[RocksStore, dict[str, bytes]]:
    """So much that it leaves memory, where there is little of it."""
    store = await opened(folder)
    values = {p: chance.randbytes(LARGE_BYTES) for p in partitions}
    rows_each = 3 * SMALL["write_buffer_size"] // LARGE_BYTES // len(partitions)
    for p, value in values.items():
        for number in range(rows_each):
            await store.write(Batch(PLAIN, (p,), (row(number, value),), sync=False))
    await store.write(Batch(PLAIN, ("last",), (row(0),)))
    return store, values


async def _first(store: RocksStore, p: str) -> object:
    return (await store.read(Slice(PLAIN, (p,), limit=1))).rows[0].values["v"]


async def test_large_rows_are_read_here_in_another_process_in_a_copy_and_after_opening_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "AMPLE_BYTES", 1 << 62)
    store, values = await _filled(tmp_path / "s", ["a", "b"], random.Random(1))
    assert list((tmp_path / "s" / DATA_FOLDER).glob("*.sst"))
    reader = await RocksStore.open_secondary(tmp_path / "s", tmp_path / "scratch", clock=RealClock())
    await reader.prepare(TABLES, create=False)
    await asyncio.to_thread(copy, tmp_path / "s", tmp_path / "copy")
    copied = await opened(tmp_path / "copy")
    for p, value in values.items():
        assert [await _first(each, p) for each in (store, reader, copied)] == [value] * 3
        assert await keys(reader, p) == await keys(store, p) == await keys(copied, p)
    for each in (reader, copied, store):
        await each.close()
    again = await opened(tmp_path / "s")
    assert {p: await _first(again, p) for p in values} == values
    await again.close()
