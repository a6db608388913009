"""`capellini serve` with what cannot work: one sentence on stderr, exit code 2, and soon."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 60.0


def serve(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CAPELLINI_")}
    command = [sys.executable, "-m", "capellini.cli.main", "serve", *arguments]
    if "--listen" not in arguments:
        command += ["--listen", "127.0.0.1:0"]
    return subprocess.run(
        command, cwd=cwd, env={**clean, **environ}, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def one_sentence(done: subprocess.CompletedProcess[str], says: str) -> None:
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("Error: ")
    assert says in lines[0]


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
    from capellini.store import folder as folders

    (tmp_path / "data").mkdir()
    folders.write_format(tmp_path / "data", folders.FORMAT + 1)
    one_sentence(serve("--store", "rocks:data", cwd=tmp_path), "made by a newer Capellini")


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
