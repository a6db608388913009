"""The folder of the embedded store: what it held is there again, and what is no such folder is refused as it is."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.unit.rocks_stores import APART, PLAIN, keys, opened, row

from capellini.model.clock import RealClock
from capellini.model.errors import CannotOpen, InUse, Invalid, Unavailable
from capellini.store import folder as folders
from capellini.store.interface import Batch, Column, Slice, Table, Type
from capellini.store.rocks import RocksStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RocksStore]:
    store = await opened(tmp_path / "s")
    yield store
    await store.close()


async def test_a_store_is_there_again_when_opened_again(tmp_path: Path) -> None:
    first = await opened(tmp_path / "s")
    await first.write(Batch(PLAIN, ("p",), (row(1), row(2))))
    await first.write(Batch(APART, ("p",), (((1,), {"v": b"a"}),)))
    await first.close()
    with pytest.raises(Unavailable):
        await first.read(Slice(PLAIN, ("p",)))
    second = await opened(tmp_path / "s")
    assert await keys(second) == [1, 2] and await keys(second, table=APART) == [1]
    await second.close()


async def test_a_newer_format_is_refused_in_one_sentence_and_left_as_it_is(tmp_path: Path) -> None:
    folder, newer = tmp_path / "s", f"format {folders.FORMAT + 1}.*newer"
    store = await opened(folder)
    await store.write(Batch(PLAIN, ("p",), (row(1),)))
    await store.close()
    folders.write_format(folder, folders.FORMAT + 1)
    before = listing(folder)
    with pytest.raises(CannotOpen, match=newer):
        await opened(folder)
    with pytest.raises(CannotOpen, match=newer):
        await RocksStore.open_secondary(folder, tmp_path / "scratch", clock=RealClock())
    assert listing(folder) == before
    folders.write_format(folder)
    again = await opened(folder)
    assert await keys(again) == [1]
    await again.close()


def listing(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_size) for path in folder.rglob("*"))


async def test_a_damaged_format_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / folders.FORMAT_FILE).write_text("{")
    with pytest.raises(CannotOpen, match="cannot be read"):
        await opened(tmp_path)


def test_an_older_format_is_taken_up_step_by_step(tmp_path: Path) -> None:
    folders.write_format(tmp_path, -1)
    ran: list[int] = []
    steps = {-1: lambda _: ran.append(-1), 0: lambda _: ran.append(0)}
    folders.migrate(tmp_path, steps, newest=1)
    assert ran == [-1, 0] and folders.read_format(tmp_path) == 1
    folders.migrate(tmp_path, steps, newest=1)
    assert ran == [-1, 0]


async def test_a_format_without_a_way_up_is_refused(tmp_path: Path) -> None:
    folders.write_format(tmp_path, 0)
    with pytest.raises(CannotOpen, match="no longer reads"):
        await opened(tmp_path)


async def test_files_foreign_folders_and_missing_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotOpen, match="is a file"):
        await opened(tmp_path / "file")
    with pytest.raises(CannotOpen, match="something else"):
        await opened(tmp_path)
    with pytest.raises(CannotOpen, match="does not exist"):
        await RocksStore.open(tmp_path / "none", create=False, clock=RealClock())
    assert sorted(os.listdir(tmp_path)) == ["file"]


async def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(CannotOpen, match="cannot be made: Not a directory"):
        await opened(tmp_path / "file" / "s")
    assert (tmp_path / "file").read_text() == "kept"


async def test_a_file_where_the_data_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / folders.DATA_FOLDER).write_text("kept")
    for _ in range(2):  # the second time too: the first released its lock
        with pytest.raises(CannotOpen, match="cannot be opened"):
            await opened(tmp_path)
    assert (tmp_path / folders.DATA_FOLDER).read_text() == "kept"


# Opens a folder as a user who is not root: nothing is unwritable for root. Imports come first, since that user may not
# be able to read them.
AS_NOBODY = """
import asyncio, os, pickle, sys  # pickle: RocksDB's binding imports it when it opens
from pathlib import Path
from typing import Any
from capellini.model.clock import RealClock
from capellini.model.errors import CannotOpen
from capellini.store.rocks import RocksStore
from capellini.store.rocks.database import Database
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for _ in range(2):
    try:
        asyncio.run(RocksStore.open(Path(sys.argv[1]), clock=RealClock()))
    except CannotOpen as error:
        print(error)
    else:
        print("opened")
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that every user can enter; those of pytest are its user's alone."""
    with tempfile.TemporaryDirectory(prefix="capellini-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def opened_by_nobody(folder: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", AS_NOBODY, str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("unwritable", "says"),
    [
        (".", "not writable for this user"),
        (folders.LOCK_FILE, "Permission denied; make it writable for this user"),
        (folders.DATA_FOLDER, "cannot be opened: .*Permission denied"),
    ],
)
async def test_an_unwritable_folder_is_refused_and_left_as_it_is(open_to_all: Path, unwritable: str, says: str) -> None:
    folder = open_to_all / "s"
    store = await opened(folder)
    await store.write(Batch(PLAIN, ("p",), (row(1),)))
    await store.close()
    everything = [folder, *folder.rglob("*")]
    for path in everything:
        path.chmod(0o777 if path.is_dir() else 0o666)
    part = folder / unwritable
    for path in [part, *part.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = listing(folder)
    answers = await asyncio.to_thread(opened_by_nobody, folder)
    assert len(answers) == 2 and all(re.search(says, answer) for answer in answers), answers
    assert listing(folder) == before
    for path in everything:
        path.chmod(0o755 if path.is_dir() else 0o644)
    again = await opened(folder)
    assert await keys(again) == [1]
    await again.close()


def test_a_folder_that_cannot_be_made_is_refused(open_to_all: Path) -> None:
    open_to_all.chmod(0o555)
    answers = opened_by_nobody(open_to_all / "s")
    open_to_all.chmod(0o755)
    assert answers == [f"{open_to_all / 's'} cannot be made: Permission denied"] * 2
    assert not (open_to_all / "s").exists()


async def test_a_folder_that_lost_its_data_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    folders.write_format(tmp_path)
    with pytest.raises(CannotOpen):
        await opened(tmp_path)


def test_a_folder_that_another_process_makes_in_the_same_moment_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "s"
    monkeypatch.setattr(folders, "_check_room", lambda folder, room_bytes: folder.mkdir(exist_ok=True))
    folders.make(folder, create=True)
    assert folder.is_dir()


def test_a_disk_without_locks_is_not_taken_for_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(CannotOpen, match="cannot be locked") as raised:
        folders.FolderLock(tmp_path)
    assert not isinstance(raised.value, InUse)


async def test_another_process_is_told_who_has_it(tmp_path: Path, store: RocksStore) -> None:
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom capellini.model.clock import RealClock\n"
        "from capellini.model.errors import InUse\nfrom capellini.store.rocks import RocksStore\n"
        "try:\n    asyncio.run(RocksStore.open(Path(sys.argv[1]), clock=RealClock()))\n"
        "except InUse as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "s")]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert f"process {os.getpid()}" in done.stdout, done.stderr
    with pytest.raises(InUse):
        await opened(tmp_path / "s")


async def test_a_table_with_other_columns_is_refused(store: RocksStore) -> None:
    other = Table("plain", "", PLAIN.partition, PLAIN.clustering, (Column("v", Type.TEXT),))
    with pytest.raises(CannotOpen, match="plain"):
        await store.prepare((other,))
    with pytest.raises(Invalid):
        await store.read(Slice(other, ("p",)))
