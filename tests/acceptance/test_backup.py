"""`capellini backup` as people run it: beside a node that serves."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.acceptance.client_processes import CAPELLINI, running_node

import capellini

pytestmark = pytest.mark.slow


def backup(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CAPELLINI, "backup", *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_a_running_node_is_copied_and_the_copy_serves(tmp_path: Path) -> None:
    with running_node(tmp_path / "data") as node, capellini.connect(node.address) as client:
        client.create_queue("jobs")
        client.put_many("jobs", [b"one", b"two", b"three"])
        done = backup(f"rocks:{tmp_path / 'data'}", str(tmp_path / "copy"), "--json")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["target"] == str(tmp_path / "copy") and said["rows"] > 0
        client.put("jobs", b"four")
        assert sorted(each.body for each in client.get("jobs", 10)) == [b"four", b"one", b"three", b"two"]
        again = backup(f"rocks:{tmp_path / 'data'}", str(tmp_path / "copy"))
        assert again.returncode == 2 and again.stderr.splitlines() == [
            f"Error: {tmp_path / 'copy'} is not empty: give a new folder for the backup"
        ]
    with capellini.connect(f"rocks:{tmp_path / 'copy'}") as restored:
        assert sorted(each.body for each in restored.get("jobs", 10)) == [b"one", b"three", b"two"]
    spoken = backup(f"rocks:{tmp_path / 'copy'}", str(tmp_path / "copy of copy"))
    assert spoken.returncode == 0 and "is copied to" in spoken.stdout


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("http://127.0.0.1:7411", "is a node: name the folder it runs on"),
        ("cassandra://127.0.0.1/jobs", "Cassandra's own tools"),
        ("nonsense", "is not an address"),
        ("rocks:nothing", "holds no store"),
    ],
)
def test_what_has_no_folder_is_refused(tmp_path: Path, address: str, says: str) -> None:
    done = backup(address, str(tmp_path / "copy"))
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "copy").exists()
