"""An archive in Parquet, which is folders of this machine: what lies where, and who may change it when.

    PATH/queue=…/day=…/batch=QUERY-NUMBER/     what one micro-batch brought (the journal has no queues: PATH/day=…/)
    PATH/queue=…/day=…/batch=compacted-NAME/   what many of them brought: compacting.py
    PATH/_replays/NAME/queue=…                 what a replay puts, by links, until it is done
    PATH/_compacting/                          what a compaction makes, and what it has replaced

    lock       shared by                      taken alone by
    _writing   micro-batches on their way in  a day that is exchanged, days that are dropped, a replay that links
    _keeping                                  compaction and retention, one at a time

Folders have no transactions, and every tool that reads Parquet reads them as they are. So whatever is replaced is
replaced by one step of the file system. Spark and others pass over names that begin with _. A lock ends with the
process that has it, however that ends.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Final

COMPACTED: Final = "compacted"
COMPACTING: Final = "_compacting"
REPLAYS: Final = "_replays"
WRITING, KEEPING = "_writing", "_keeping"
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def is_here(path: str) -> bool:
    """A folder of this machine: only there can be locks and links, and only there are days dropped and compacted."""
    return "://" not in path


def writing(path: str) -> AbstractContextManager[None]:
    """No day is exchanged or dropped meanwhile. Others may be writing, too."""
    return _locked(Path(path) / WRITING, fcntl.LOCK_SH) if is_here(path) else nullcontext()


def alone(place: Path) -> AbstractContextManager[None]:
    """Nobody is writing meanwhile."""
    return _locked(place / WRITING, fcntl.LOCK_EX)


@contextmanager
def keeping(place: Path) -> Iterator[None]:
    """For compaction and retention: what a killed compaction left is gone, and no other is at work."""
    with _locked(place / KEEPING, fcntl.LOCK_EX):
        remove(place / COMPACTING)
        try:
            yield
        finally:
            remove(place / COMPACTING)


@contextmanager
def _locked(file: Path, how: int) -> Iterator[None]:
    with file.open("ab") as lock:
        fcntl.flock(lock, how)
        yield


def remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def days(place: Path) -> list[Path]:
    """The folders of days, of all queues."""
    return sorted((*place.glob("queue=*/day=*"), *place.glob("day=*")))


def settled(place: Path) -> set[str]:
    """The names of batches that never come again. A micro-batch begins when the one before it is written down as done:
    of each query that is all but the last one there is."""
    names = {folder.name for day in days(place) for folder in day.glob("batch=*")}
    numbers: dict[str, dict[int, str]] = {}
    for name in names:
        query, _, number = name.removeprefix("batch=").rpartition("-")
        if query != COMPACTED and number.isdecimal():
            numbers.setdefault(query, {})[int(number)] = name
    done = {name for named in numbers.values() for number, name in named.items() if number < max(named)}
    return done | {name for name in names if name.startswith(f"batch={COMPACTED}-")}


def link(source: Path, target: Path, but: Collection[Path] = (), renamed: Mapping[str, str] = NOTHING) -> None:
    """All files below the one folder in the other as well: the same files, with two names. `renamed`: folders that are
    called otherwise there."""
    for file in source.rglob("*"):
        if file.is_file() and file not in but:
            top, *rest = file.relative_to(source).parts
            name = target.joinpath(renamed.get(top, top), *rest)
            name.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, name)


def drop(place: Path, before: datetime.date) -> list[str]:
    """Days before that one go, also from replays that were not finished; which."""
    gone: set[str] = set()
    with keeping(place), alone(place):
        for root in (place, *(place / REPLAYS).glob("*")):
            for folder in days(root):
                day = folder.name.removeprefix("day=")
                if day < before.isoformat():
                    shutil.rmtree(folder)
                    gone.add(day)
    return sorted(gone)


# ---- what a replay puts


def begun(path: str, name: str) -> Path:
    """The files that were in the archive when this replay began, under names of its own: it knows files by their names,
    and what is compacted meanwhile must not come to it a second time, nor what it still needs be gone."""
    place = Path(path) / REPLAYS / name
    if not place.exists():
        fresh = place.with_name(f".{name}")
        remove(fresh)
        fresh.mkdir(parents=True)
        with alone(Path(path)):
            for folder in Path(path).iterdir():
                if folder.is_dir() and not folder.name.startswith(("_", ".")):
                    link(folder, fresh / folder.name)
        fresh.rename(place)
    return place


def is_over(place: Path) -> bool:
    return not any(place.rglob("*.parquet"))


def end(place: Path) -> None:
    """The replay is done: its empty folder says so."""
    for folder in place.iterdir():
        shutil.rmtree(folder)
