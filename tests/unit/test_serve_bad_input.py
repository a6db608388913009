"""`capellini serve` with what cannot work: one sentence on stderr, exit code 2, and soon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.refusals import one_sentence, serve

from capellini.model.clock import RealClock
from capellini.store import folder as folders
from capellini.store.interface import Batch, Slice
from capellini.store.rocks import RocksStore
from capellini.store.schema import BUCKETS, TABLES


def tree(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("nonsense", "is not an address"),
        ("redis://localhost", "is not a kind of address"),
        ("cassandra://localhost", "names no keyspace"),
        ("rocks:", "is not an address"),
        ("http://127.0.0.1:7411", "is a node, not a store"),
    ],
)
def test_a_wrong_address(tmp_path: Path, address: str, says: str) -> None:
    one_sentence(serve("--store", address, cwd=tmp_path), says)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    one_sentence(serve("--store", "rocks:file", cwd=tmp_path), "is a file")
    one_sentence(serve("--store", "rocks:file/below", cwd=tmp_path), "cannot be made")
    one_sentence(serve("--store", "rocks:/proc/capellini", cwd=tmp_path), "/proc/capellini cannot be made")


def test_a_folder_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("x")
    one_sentence(serve("--store", "rocks:photos", cwd=tmp_path), "holds something else")


def test_a_folder_of_a_newer_format(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    folders.write_format(tmp_path / "data", folders.FORMAT + 1)
    before = tree(tmp_path)
    one_sentence(serve("--store", "rocks:data", cwd=tmp_path), "made by a newer Capellini")
    assert tree(tmp_path) == before


def test_contact_points_that_nobody_listens_on(tmp_path: Path) -> None:
    done = serve(cwd=tmp_path, CAPELLINI_CONTACT_POINTS=f"127.0.0.1:{free_port()}")
    one_sentence(done, "127.0.0.1")


def test_a_wrong_setting(tmp_path: Path) -> None:
    one_sentence(serve(cwd=tmp_path, CAPELLINI_MAX_BODY="huge"), "CAPELLINI_MAX_BODY is a whole number")
    one_sentence(serve("--config", "none.toml", cwd=tmp_path), "none.toml cannot be read")


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        one_sentence(
            serve("--store", "rocks:data", "--listen", f"127.0.0.1:{port}", cwd=tmp_path), "something else does"
        )
    assert list(tmp_path.iterdir()) == []  # no store is left behind


# ---- a full disk, which takes a disk of one's own

SMALL_DISK_MB = 24
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MB}m", "tmpfs", place], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def fill(place: Path) -> None:
    """To the last byte."""
    with contextlib.suppress(OSError), (place / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@ROOT_ONLY
def test_a_disk_that_is_nearly_full_takes_no_new_folder(small_disk: Path, tmp_path: Path) -> None:
    one_sentence(serve("--store", f"rocks:{small_disk / 'data'}", cwd=tmp_path), "is full")
    one_sentence(serve("--store", f"rocks:{small_disk}", cwd=tmp_path), "is full")
    assert list(small_disk.iterdir()) == []


@ROOT_ONLY
def test_a_folder_on_a_disk_without_a_byte_left_is_refused_and_whole_afterwards(
    small_disk: Path, tmp_path: Path
) -> None:
    data = small_disk / "data"

    async def opened() -> RocksStore:
        store = await RocksStore.open(data, clock=RealClock(), room_bytes=0)
        await store.prepare(TABLES)
        return store

    async def write() -> None:
        store = await opened()
        await store.write(Batch(BUCKETS, ("jobs", 1, 0), (((0,), {"count": 1, "delayed": False, "block": b"x"}),)))
        await store.close()

    async def read() -> int:
        store = await opened()
        try:
            return len((await store.read(Slice(BUCKETS, ("jobs", 1, 0)))).rows)
        finally:
            await store.close()

    asyncio.run(write())
    fill(small_disk)
    one_sentence(serve("--store", f"rocks:{data}", cwd=tmp_path), "cannot be opened")
    (small_disk / "filler").unlink()
    assert asyncio.run(read()) == 1
