"""Archive and replay, killed at moments set by chance: in the end the rows are those of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
from tests.spark.nodes import numbered, serving

from capellini import connect
from capellini.pipeline.jobs.archive import read_archive
from capellini.pipeline.source.data import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MESSAGES = 20_000  # more than fit into one chunk
CHILD = Path(__file__).with_name("kill_child.py")
# What is killed, and how long after it began or did a batch: before it can be done. A replay is one batch, at a rate.
PARTS = {"archiving": (2, 0.7), "replaying": (1, 2.0)}


def disturbed(command: list[str], folder: Path, part: str, chance: random.Random) -> bool:
    """One run of the child, killed at some moment of that part. False: the part was done before."""
    with (folder / "child.log").open("ab") as log:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
    assert child.stdout is not None
    most, within_s = PARTS[part]
    begun, killer, batches = False, None, chance.randrange(most)
    for line in child.stdout:
        said = line.decode().strip()
        if begun and not said.startswith("rows"):
            break  # it is over
        begun = begun or said == part
        batches -= begun and said != part
        if begun and batches <= 0 and killer is None:
            killer = threading.Timer(chance.random() * within_s, os.killpg, (child.pid, signal.SIGKILL))
            killer.start()
    else:
        child.wait()
        return True
    if killer is not None:
        killer.cancel()
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    return False


def run_with_kills(spark: SparkSession, folder: Path, kills: int, seed: int, max_rows: int, form: str) -> None:
    chance = random.Random(seed)
    with serving(folder / "store") as at, connect(at) as client:
        client.create_queue("kept", "log", extent_bytes=1_048_576)
        client.create_queue("again", "log")
        for first in range(0, MESSAGES, 1_000):
            client.put_many("kept", numbered(range(first, first + 1_000)), attributes={"thousand": str(first)})
        command = [sys.executable, str(CHILD), at, str(folder), str(max_rows), form]
        killed = {part: sum(disturbed(command, folder, part, chance) for _ in range(kills)) for part in PARTS}
        print(f"killed while {killed} (seed {seed})")
        last = subprocess.run(command, capture_output=True, text=True, check=False)
        assert last.stdout.splitlines()[-1:] == ["replayed"], last.stderr[-2_000:]
        assert killed == dict.fromkeys(PARTS, kills), "it was done before it was killed: the moments are wrong"
        register(spark)
        source = spark.read.format("capellini").options(at=at, columns="*")
        kept = source.option("queue", "kept").load().select("extent", "number", "put_at", "body", "attributes")
        archived = archived_rows(spark, folder / "archive").select(kept.columns)
        again = spark.read.format("capellini").options(at=at, queue="again").load().select("body", "attributes")
        rows = [
            sorted((row["extent"], row["number"], row["put_at"], bytes(row["body"]), row["attributes"]["thousand"])
                   for row in frame.collect())
            for frame in (kept, archived)
        ]  # fmt: skip
        assert len(rows[0]) == MESSAGES and rows[0] == rows[1]
        put = sorted((bytes(row["body"]), row["attributes"]["thousand"]) for row in again.collect())
        assert put == sorted(row[3:] for row in rows[0])


def archived_rows(spark: SparkSession, path: Path) -> DataFrame:
    """Of Delta the files that its log names: the shared session does without it."""
    if not (path / "_delta_log").is_dir():
        return read_archive(spark, str(path))
    files: set[str] = set()
    for entry in sorted((path / "_delta_log").glob("*.json")):
        for line in map(json.loads, entry.read_text().splitlines()):
            files |= {line["add"]["path"]} if "add" in line else set()
            files -= {line["remove"]["path"]} if "remove" in line else set()
    return spark.read.option("basePath", str(path)).parquet(*(str(path / unquote(each)) for each in files))


def test_killed_twice_each_archive_and_replay_have_each_message_once(spark: SparkSession, tmp_path: Path) -> None:
    run_with_kills(spark, tmp_path, 2, 1, 2_000, "parquet")


@pytest.mark.long
@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_killed_twenty_times_each_archive_and_replay_have_each_message_once(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    run_with_kills(spark, tmp_path, 20, 2, 200, form)
