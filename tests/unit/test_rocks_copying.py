"""A copy of a folder that is open elsewhere: all that was confirmed before, nothing half, and the source unchanged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.rocks_stores import APART, PLAIN, keys, opened, row

from capellini.model.errors import CannotOpen, Invalid
from capellini.store import folder as folders
from capellini.store.interface import Batch
from capellini.store.rocks.copying import copy


async def test_a_copy_has_what_was_confirmed_before_and_the_source_goes_on(tmp_path: Path) -> None:
    store = await opened(tmp_path / "s")
    await store.write(Batch(PLAIN, ("p",), tuple(row(number) for number in range(2_500))))
    await store.write(Batch(APART, ("p",), (((7,), {"v": b"v"}),)))
    done = await asyncio.to_thread(copy, tmp_path / "s", tmp_path / "copy")
    await store.write(Batch(PLAIN, ("p",), (row(9_999),)))
    assert done.rows > 2_500 and done.bytes > 0 and done.format == folders.FORMAT
    made = await opened(tmp_path / "copy")
    assert await keys(made) == list(range(2_500)) and await keys(made, table=APART) == [7]
    await made.write(Batch(PLAIN, ("p",), (row(5_000),)))
    await made.write(Batch(APART, ("q",), (((1,), {"v": b"v"}),)))  # the numbers of column families go on, too
    assert await keys(made, "q", APART) == [1]
    await made.close()
    assert await keys(store) == [*range(2_500), 9_999]
    await store.close()


async def test_a_copy_under_writes_and_drops_is_of_one_moment(tmp_path: Path) -> None:
    """A writer keeps a pair of partitions, in both kinds of places, equal: a batch to one, then to the other. In a copy
    the second is never ahead, and lacks one batch at most."""
    store = await opened(tmp_path / "s")
    over = False

    async def write() -> None:
        number = 0
        while not over:
            number += 1
            await store.write(Batch(PLAIN, ("p",), (row(number),), sync=False))
            await store.write(Batch(APART, ("p",), (((number,), {"v": b"v"}),), sync=False))
            if number % 20 == 0:
                await store.write(Batch(APART, (f"gone{number}",), (((1,), {"v": b"v"}),), sync=False))
                await store.drop(APART, (f"gone{number}",))
            await asyncio.sleep(0)

    writer = asyncio.create_task(write())
    for number in range(4):
        before = len(await keys(store, table=APART))
        await asyncio.to_thread(copy, tmp_path / "s", tmp_path / f"copy{number}")
        made = await opened(tmp_path / f"copy{number}")
        first, second = await keys(made), await keys(made, table=APART)
        assert first == list(range(1, len(first) + 1)) and first[: len(second)] == second
        assert before <= len(second) <= len(first) <= len(second) + 1
        await made.close()
    over = True
    await writer
    await store.close()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_target_that_is_none_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    store = await opened(tmp_path / "s")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "cat.jpg").write_text("x")
    with pytest.raises(Invalid, match="is not empty"):
        copy(tmp_path / "s", tmp_path / "full")
    with pytest.raises(Invalid, match="is inside of"):
        copy(tmp_path / "s", tmp_path / "s" / "copy")
    with pytest.raises(CannotOpen, match="cannot be made"):
        copy(tmp_path / "s", tmp_path / "full" / "cat.jpg" / "copy")
    with pytest.raises(CannotOpen, match="holds no store"):
        copy(tmp_path / "nothing", tmp_path / "copy")
    assert names_in(tmp_path) == ["full", "s"] and names_in(tmp_path / "full") == ["cat.jpg"]
    await store.close()


async def test_a_folder_that_cannot_be_read_leaves_no_half_copy(tmp_path: Path) -> None:
    store = await opened(tmp_path / "s")
    await store.close()
    (tmp_path / "s" / folders.DATA_FOLDER / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(CannotOpen, match="cannot be opened"):
        copy(tmp_path / "s", tmp_path / "copy")
    assert names_in(tmp_path / "copy") == []
