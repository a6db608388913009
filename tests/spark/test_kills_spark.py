"""Archive and replay, killed at moments set by chance: in the end the rows are those of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.nodes import numbered, serving

from capellini import connect
from capellini.pipeline.jobs.archive import read_archive
from capellini.pipeline.source.data import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MESSAGES = 6_000
CHILD = Path(__file__).with_name("kill_child.py")


def disturbed(at: str, folder: Path, chance: random.Random | None) -> list[str]:
    """One run of the child; with chance it is killed some time after it said so many lines. What it said."""
    with (folder / "child.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, str(CHILD), at, str(folder)], stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    assert child.stdout is not None
    said: list[str] = []
    lines = chance.randrange(1, 7) if chance else None
    for line in child.stdout:
        said.append(line.decode().strip())
        if chance and lines is not None and len(said) == lines:
            threading.Timer(chance.random() * 2.0, os.killpg, (child.pid, signal.SIGKILL)).start()
    child.wait()
    return said


def run_with_kills(spark: SparkSession, folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    with serving(folder / "store") as at, connect(at) as client:
        client.create_queue("kept", "log", extent_bytes=1_048_576)
        client.create_queue("again", "log")
        for first in range(0, MESSAGES, 1_000):
            client.put_many("kept", numbered(range(first, first + 1_000)), attributes={"thousand": str(first)})
        killed = sum("replayed" not in disturbed(at, folder, chance) for _ in range(kills))
        print(f"{killed} of {kills} runs were killed before they were done (seed {seed})")
        assert disturbed(at, folder, None)[-1] == "replayed", (folder / "child.log").read_text()[-2_000:]
        assert killed, "no run was killed: the moments are wrong"
        register(spark)
        source = spark.read.format("capellini").options(at=at, columns="*")
        kept = source.option("queue", "kept").load().select("extent", "number", "put_at", "body", "attributes")
        archived = read_archive(spark, str(folder / "archive")).select(kept.columns)
        again = spark.read.format("capellini").options(at=at, queue="again").load().select("body", "attributes")
        rows = [
            sorted((row["extent"], row["number"], row["put_at"], bytes(row["body"]), row["attributes"]["thousand"])
                   for row in frame.collect())
            for frame in (kept, archived)
        ]  # fmt: skip
        assert len(rows[0]) == MESSAGES and rows[0] == rows[1]
        put = sorted((bytes(row["body"]), row["attributes"]["thousand"]) for row in again.collect())
        assert put == sorted(row[3:] for row in rows[0])


@pytest.mark.long  # two minutes and more on two cores
def test_killed_twice_archive_and_replay_have_each_message_once(spark: SparkSession, tmp_path: Path) -> None:
    run_with_kills(spark, tmp_path, kills=2, seed=1)


@pytest.mark.long
def test_killed_twenty_times_archive_and_replay_have_each_message_once(spark: SparkSession, tmp_path: Path) -> None:
    run_with_kills(spark, tmp_path, kills=20, seed=2)
