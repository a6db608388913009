"""The folder of an embedded store: who may open it, in which format it is, and how much room is left.

    folder/format.json   {"format": 1}; written last when a folder is made, so that half a folder is not taken for a
    whole one
    folder/lock          locked by the process that has it open, with its process id
    folder/data/         RocksDB

Our own lock comes before RocksDB's: RocksDB renames its log files before it looks at its lock, and would disturb
the other process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from capellini.model.clock import Clock
from capellini.model.errors import CannotOpen, Full, InUse, Invalid
from capellini.store import forks

FORMAT: Final = 2
FORMAT_FILE: Final = "format.json"
LOCK_FILE: Final = "lock"
DATA_FOLDER: Final = "data"
OWN: Final = frozenset(
    {FORMAT_FILE, FORMAT_FILE + ".new", LOCK_FILE, DATA_FOLDER, "node.sock"}
)  # what may lie in a folder that is being made

Migration = Callable[[Path], None]  # takes the folder one format up; may be repeated after a crash in the middle
MIGRATIONS: Final[Mapping[int, Migration]] = {
    1: lambda _: None,  # its record of timestamps is understood, and written anew with the first batch
}  # by the format they start from

ROOM_BYTES: Final = 64 * 1024 * 1024  # below, puts are refused: RocksDB needs room to flush and compact
ACK_ROOM_BYTES: Final = 16 * 1024 * 1024  # below, everything is: acks free room, so they go on for longer
AMPLE_BYTES: Final = 1024 * 1024 * 1024  # below, little is kept in memory: what is there needs room to be flushed
ROOM_EVERY_S: Final = 0.05  # how old the answer of the file system may be


class _Format(msgspec.Struct):
    format: int


class FolderLock:
    """The right to have the folder open. Ends with the process at the latest."""

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK_FILE
        try:
            self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CannotOpen(f"{folder} cannot be opened: {error.strerror}; make it writable for this user") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            os.close(self._file)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise InUse(f"{folder} is in use by {who}: stop it, or go through it") from None
        except OSError as error:  # a network disk without locks, say
            os.close(self._file)
            raise CannotOpen(f"{folder} cannot be locked: {error.strerror}; give one on a local disk") from None
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(self._file)
            raise CannotOpen(f"{folder} cannot be opened: {error.strerror}; make room on its disk") from None
        forks.close_in_children(self._file)

    def release(self) -> None:
        if self._file is not None:
            os.ftruncate(self._file, 0)
            forks.forget(self._file)
            os.close(self._file)  # which unlocks it; the file stays, or two processes could lock two files
            self._file = None


def exists(path: Path) -> bool:
    """Raises CannotOpen where nobody can tell: a folder above is not for this user to see, or the name is too long."""
    try:
        return path.exists()
    except OSError as error:
        raise CannotOpen(f"{path} cannot be looked at: {error.strerror}") from None


def make(folder: Path, create: bool, room_bytes: int = 0) -> None:
    """Sees to it that there is a folder that we may lock; a new one only where there is room. Raises CannotOpen."""
    there = exists(folder)
    if there and not folder.is_dir():
        raise CannotOpen(f"{folder} is a file: give a folder")
    if not there:
        if not create:
            raise CannotOpen(f"{folder} does not exist: nothing was ever stored there")
        try:
            _check_room(folder, room_bytes)
            # Bodies are nobody else's business. Another process may make it in the same moment.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CannotOpen(f"{folder} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise CannotOpen(f"{folder} is not writable for this user")
    if not (folder / FORMAT_FILE).exists():
        foreign = sorted(set(os.listdir(folder)) - OWN)
        if foreign:
            raise CannotOpen(
                f"{folder} holds something else ({foreign[0]}): give an empty folder, or one made by Capellini"
            )
        if not create:
            raise CannotOpen(f"{folder} holds no store: nothing was ever stored there")
        _check_room(folder, room_bytes)


def check_there(folder: Path) -> None:
    """For who only reads: a store is there, or is being made. Raises CannotOpen."""
    if not exists(folder):
        raise CannotOpen(f"{folder} does not exist: nothing was ever stored there")
    if folder.is_dir() and not any(exists(folder / name) for name in (FORMAT_FILE, LOCK_FILE)):
        raise CannotOpen(f"{folder} holds no store: nothing was ever stored there")


def make_empty(folder: Path) -> None:
    """A new folder, for a backup. Raises Invalid when something is there, or CannotOpen when it cannot be made."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.listdir(folder):
            raise Invalid(f"{folder} is not empty: give a new folder for the backup")
    except OSError as error:
        raise CannotOpen(f"{folder} cannot be made: {error.strerror}") from None


def read_format(folder: Path) -> int | None:
    """The folder's format; None for a new folder. Raises CannotOpen for one that is newer than this program."""
    path = folder / FORMAT_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Format).format
    except FileNotFoundError:
        return None
    except PermissionError:
        raise CannotOpen(f"{path} may not be read by this user: run as the one who made it, or chown it") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise CannotOpen(f"{path} cannot be read ({error}): restore the folder from a backup") from None
    if found > FORMAT:
        raise CannotOpen(
            f"{folder} has format {found}, made by a newer Capellini: use it, this one knows formats up to {FORMAT}"
        )
    return found


def migrate(folder: Path, migrations: Mapping[int, Migration] = MIGRATIONS, newest: int = FORMAT) -> None:
    """Takes an older folder up, one format at a time. Call it under the lock. Raises CannotOpen."""
    found = read_format(folder)
    if found is None:
        return
    while found < newest:
        step = migrations.get(found)
        if step is None:
            raise CannotOpen(
                f"{folder} has format {found}, which this Capellini no longer reads: open it with an older one first"
            )
        step(folder)
        found += 1
        write_format(folder, found)


def write_format(folder: Path, number: int = FORMAT) -> None:
    """Replaces the format file, durably."""
    path, fresh = folder / FORMAT_FILE, folder / (FORMAT_FILE + ".new")
    with open(fresh, "wb") as file:
        file.write(msgspec.json.encode(_Format(number)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_room(folder: Path, room_bytes: int) -> None:
    """Before a folder is made, on the disk it will be on. Raises CannotOpen."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    on_disk = os.statvfs(there).f_blocks > 0  # else it is no disk at all, and making the folder will fail
    if on_disk and free_bytes(there) < room_bytes:
        raise CannotOpen(_full(folder, free_bytes(there), room_bytes))


def _full(folder: Path, free: int, wanted: int) -> str:
    return f"the disk of {folder} is full ({free} bytes are left, {wanted} are needed): make room"


def free_bytes(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


class Room:
    """Refuses what would fill the disk, before anything was changed."""

    def __init__(
        self, folder: Path, clock: Clock, room_bytes: int, measure: Callable[[Path], int] = free_bytes
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._plain_bytes = room_bytes
        self._ack_bytes = min(room_bytes, ACK_ROOM_BYTES)
        self._measure = measure
        self._free_bytes = measure(folder)
        self._again_s = clock.elapsed_s() + ROOM_EVERY_S

    @property
    def short(self) -> bool:
        """At the last look puts were refused."""
        return self._free_bytes < self._plain_bytes

    @property
    def ample(self) -> bool:
        """At the last look there was more than enough."""
        return self._free_bytes >= AMPLE_BYTES

    def check(self, frees: bool = False) -> None:
        """Raises Full. `frees`: compare-and-sets, drops, and writes that say so."""
        now_s = self._clock.elapsed_s()
        if now_s >= self._again_s:
            self._free_bytes = self._measure(self._folder)
            self._again_s = now_s + ROOM_EVERY_S
        wanted = self._ack_bytes if frees else self._plain_bytes
        if self._free_bytes < wanted:
            raise Full(_full(self._folder, self._free_bytes, wanted))
