"""Compaction of an archive in Parquet: the many small files of a queue and day become few large ones.

    small files of settled batches ──▶ _compacting/NAME/batch=compacted-NAME/   few files with the same rows
    all other files of the day     ──▶ _compacting/NAME/batch=…/                links, no copies
    PATH/queue=…/day=…             ◀─▶ _compacting/NAME                         both change places in one step
    _compacting/NAME               ──▶ gone

Who reads the day sees the folder from before or the one from after. Who looked through half of it at that moment
misses a folder that was to be looked into, and says so: none keeps its name with fewer files. Killed before the step,
nothing has happened; after it, all has; what lies about is removed by the next one.

An archive that is written meanwhile: its micro-batches wait for the links and the step, not for the making of files. A
batch that may come again is replaced as a folder by its name, so it is left as it is (`settled`).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from capellini.model.errors import Invalid, Unavailable
from capellini.pipeline.jobs.folders import COMPACTED, COMPACTING, alone, days, keeping, link, settled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES: Final = 128 * 1024 * 1024  # what is made of small files
SMALL_BYTES: Final = FILE_BYTES // 2  # larger ones are not read and written again
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux

Merge = Callable[[Sequence[Path], Path, int], None]  # rows of those files into this folder, in so many files


def merging(spark: SparkSession) -> Merge:
    def merge(files: Sequence[Path], into: Path, count: int) -> None:
        # The queue may have been of another kind on the same day, with other columns: all of them are kept.
        rows = spark.read.option("mergeSchema", "true").parquet(*map(str, files))
        rows.coalesce(count).write.parquet(str(into))

    return merge


def compact_days(place: Path, merge: Merge) -> int:
    """How many files fewer there are. Raises Invalid where the file system cannot do it."""
    fewer = 0
    with keeping(place):
        names = settled(place)
        for day in days(place):
            files = [
                file for folder in sorted(day.glob("batch=*")) if folder.name in names
                for file in sorted(folder.glob("*.parquet")) if file.stat().st_size < SMALL_BYTES
            ]  # fmt: skip
            count = -(-sum(file.stat().st_size for file in files) // FILE_BYTES)
            if count < len(files):
                fewer += len(files) - _compact(place, day, files, count, merge)
    return fewer


def _compact(place: Path, day: Path, files: Sequence[Path], count: int, merge: Merge) -> int:
    name = uuid.uuid4().hex
    fresh = place / COMPACTING / name
    made = fresh / f"batch={COMPACTED}-{name}"
    merge(files, made, count)
    for mark in (*made.glob("_*"), *made.glob("._*")):  # Spark's own, that it was successful
        mark.unlink()
    large = sorted(made.glob("*.parquet"))
    if _rows(large) != _rows(files):
        raise Unavailable(f"{_rows(files)} rows of {day} became {_rows(large)}: it was left as it was")
    for file in large:
        _sync(file)
    replaced = {*files, *(file.with_name(f".{file.name}.crc") for file in files)}
    renamed = {folder: f"batch={COMPACTED}-{uuid.uuid4().hex}" for folder in {file.parent.name for file in files}}
    with alone(place):
        link(day, fresh, replaced, renamed)
        for folder in (fresh, *(each for each in fresh.rglob("*") if each.is_dir())):
            _sync(folder)
        exchange(day, fresh)
        _sync(day.parent)
    shutil.rmtree(fresh)
    return len(large)


def _rows(files: Sequence[Path]) -> int:
    from pyarrow.parquet import read_metadata

    return sum(read_metadata(file).num_rows for file in files)


def _sync(path: Path) -> None:
    """It is on the disk: what it replaces was."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def exchange(one: Path, other: Path) -> None:
    """Two folders change places in one step. Raises Invalid where there is none."""
    names = os.fsencode(one), os.fsencode(other)
    rename = ctypes.CDLL(None, use_errno=True).renameat2
    if rename(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE):
        why = os.strerror(ctypes.get_errno())
        raise Invalid(f"the file system cannot exchange {one} for another folder in one step ({why}): use --form delta")
