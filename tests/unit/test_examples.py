"""The examples run, and do what they say."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import capellini

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text()
    assert [each.name for each in EXAMPLES.glob("*.py") if f'"{each.name}"' not in text] == []


def test_the_producer_adds_nothing_twice_and_the_worker_does_all_but_one(tmp_path: Path) -> None:
    assert run("producer.py", tmp_path, "rocks:shop", "15") == "15 added, 0 were there before\n"
    assert run("producer.py", tmp_path, "rocks:shop", "16") == "1 added, 15 were there before\n"
    said = run("worker.py", tmp_path, "rocks:shop", "4")
    assert "handled 15;" in said
    done = [f"done with order {number} for anna" in said for number in range(1, 17)]  # threads share lines
    assert done == [number != 13 for number in range(1, 17)]
    with capellini.connect(f"rocks:{tmp_path / 'shop'}") as client:
        assert dead_of(client, "orders") == [b"order 13"]


def dead_of(client: capellini.Client[bytes], queue: str) -> list[bytes]:
    """Dead letters, once there are some: who gets next takes up the move."""
    deadline_s = time.monotonic() + 30
    while not (found := client.dead(queue)) and time.monotonic() < deadline_s:
        assert client.get(queue, wait_s=0.2) == []
    return [each.body for each in found]


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    assert run("two_processes.py", tmp_path, "shared", "20") == "20 squares, the largest is 400\n"


def test_two_groups_get_what_each_wants(tmp_path: Path) -> None:
    said = run("fan_out.py", tmp_path, "rocks:shop", "12")
    assert said == "billing got 4, search got 12\nsearch got 12 again\nsearch is 0 behind\n"


def test_a_stream_is_put_and_got_meanwhile(tmp_path: Path) -> None:
    assert run("streams.py", tmp_path, "rocks:shop", "5000") == "5000 readings came\n"
