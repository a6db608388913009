"""A copy of a folder, whether a process has it open or not.

    folder ──▶ a secondary: RocksDB reads files and log as they are, and changes nothing ──▶ row by row ──▶ target

It does not need the folder's lock, so that a node that runs need not be asked. The copy is the folder as of one moment:
a secondary sees what was in the log when it was opened, and what it sees does not move until it is told to catch up.
It keeps the files it saw open, so that the other process may delete them meanwhile.

The format file is written last: half a copy is not taken for a store.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from rocksdict import WriteBatch

from capellini.model.errors import CannotOpen, Invalid
from capellini.store import folder as folders
from capellini.store.rocks.database import Database

ROWS_AT_ONCE: Final = 1_000

Progress = Callable[[int], object]


class Copied(msgspec.Struct, frozen=True):
    """What a backup holds."""

    folder: str
    target: str
    format: int
    rows: int
    bytes: int  # of keys and values, not compressed
    took_s: float


def copy(folder: Path, target: Path, progress: Progress = lambda rows: None) -> Copied:
    """`progress` is called with how many more rows are copied. Raises Invalid when the target cannot be one; CannotOpen
    when the folder is none, or either disk fails."""
    began_s = time.monotonic()
    number = folders.read_format(folder)
    if number is None:
        raise CannotOpen(f"{folder} holds no store: nothing was ever stored there")
    if target.resolve().is_relative_to(folder.resolve()):
        raise Invalid(f"{target} is inside of {folder}: give a folder elsewhere for the backup")
    folders.make_empty(target)
    try:
        with tempfile.TemporaryDirectory(prefix="capellini-backup-") as scratch:
            source = Database(folder, False, Path(scratch))
            try:
                source.load()
                rows, size = _copy(source, target, progress)
            finally:
                source.close()
        folders.write_format(target, number)
    except BaseException:
        shutil.rmtree(target / folders.DATA_FOLDER, ignore_errors=True)  # what was here before: nothing
        raise
    return Copied(str(folder), str(target), number, rows, size, round(time.monotonic() - began_s, 3))


def _copy(source: Database, target: Path, progress: Progress) -> tuple[int, int]:
    made = Database(target, True)
    try:
        rows, size = _copy_rows(source.rows, made.rows, None, progress)
        for space in source.apart.values():
            handle = made.make_family(space.number)
            more_rows, more_size = _copy_rows(space.rows, made.rows, handle, progress)
            rows, size = rows + more_rows, size + more_size
        made.flush()
    except Exception as error:  # as above
        if folders.free_bytes(target) < folders.ROOM_BYTES:
            raise CannotOpen(f"the disk of {target} is full: make room, or give another folder") from error
        raise CannotOpen(f"the backup in {target} failed: {error}") from error
    finally:
        made.close()
    return rows, size


def _copy_rows(source: Any, target: Any, handle: Any, progress: Progress) -> tuple[int, int]:
    rows = size = 0
    batch = WriteBatch(raw_mode=True)
    for key, value in source.items():
        batch.put(key, value, handle)
        rows, size = rows + 1, size + len(key) + len(value)
        if rows % ROWS_AT_ONCE == 0:
            target.write(batch)
            batch = WriteBatch(raw_mode=True)
            progress(ROWS_AT_ONCE)
    target.write(batch)
    progress(rows % ROWS_AT_ONCE)
    return rows, size
