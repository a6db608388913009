"""Archive, compaction and replay, killed at moments set by chance: in the end the rows are as if undisturbed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.kill_child import go_on
from tests.spark.nodes import numbered, serving

from capellini import connect
from capellini.pipeline.jobs.archive import FORMS, read_archive
from capellini.pipeline.source.data import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MESSAGES = 10_000  # more than fit into one chunk
ROOT = Path(__file__).parents[2]
# What is killed: in which of the batches that are left, and how long after it began. A replay is one batch, at a rate.
# A compaction has none (and is killed before each of its steps in tests/unit/test_compacting.py).
PARTS = {"archiving": (2, 0.5), "compacting": (0, 0.5), "replaying": (1, 1.5)}
LOOK_S = 0.01


def disturbed(command: list[str], folder: Path, part: str, chance: random.Random) -> bool:
    """One run of the child, killed at some moment of its part. False: it was done before."""
    with (folder / "child.log").open("ab") as log:
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
    assert child.stdout is not None
    most, within_s = PARTS[part.split()[0]]
    state = folder / part.replace(" ", "-")
    while (line := child.stdout.readline()) and line.decode().strip() != part:
        pass
    if most:
        batch = len(list((state / "commits").glob("[0-9]*"))) + chance.randrange(most)
        while child.poll() is None and not (state / "offsets" / str(batch)).exists():
            time.sleep(LOOK_S)
    time.sleep(chance.random() * within_s)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    said = child.stdout.read().decode().splitlines()
    child.wait()
    return bool(line) and all(each.startswith("rows") for each in said)


def parts_of(form: str) -> list[str]:
    """Delta compacts by itself."""
    return [part for part in PARTS if form == "parquet" or part != "compacting"]


def run_with_kills(spark: SparkSession, folder: Path, kills: dict[str, int], seed: int, max_rows: int) -> None:
    """`kills`: how often in which part of which form. What was killed is finished in this process, which has a session
    that is warm: each child is for one part alone."""
    chance, forms = random.Random(seed), sorted({part.split()[1] for part in kills})
    with serving(folder / "store") as at, connect(at) as client:
        client.create_queue("kept", "log", extent_bytes=1_048_576)
        for form in forms:
            client.create_queue(f"again-{form}", "log")
        for first in range(0, MESSAGES, 1_000):
            client.put_many("kept", numbered(range(first, first + 1_000)), attributes={"thousand": str(first)})
        command = [sys.executable, "-m", "tests.spark.kill_child", at, str(folder), str(max_rows)]
        killed = {}
        for form in forms:
            for verb in parts_of(form):
                part = f"{verb} {form}"
                if part in kills:
                    run = [*command, form, verb]
                    killed[part] = sum(disturbed(run, folder, part, chance) for _ in range(kills[part]))
                go_on(spark, at, folder, max_rows, form, verb)
        print(f"killed while {killed} (seed {seed})")
        assert killed == kills, "it was done before it was killed: the moments are wrong"
        register(spark)
        source = spark.read.format("capellini").options(at=at, columns="*")
        kept = sorted_rows(source.option("queue", "kept").load())
        assert len(kept) == MESSAGES
        for form in forms:
            assert sorted_rows(read_archive(spark, str(folder / form))) == kept, form
            again = source.option("queue", f"again-{form}").load().select("body", "attributes")
            put = sorted((bytes(row["body"]), row["attributes"]["thousand"]) for row in again.collect())
            assert put == sorted(row[3:] for row in kept), form


def sorted_rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = frame.select("extent", "number", "put_at", "body", "attributes").collect()
    return sorted(
        (row["extent"], row["number"], row["put_at"], bytes(row["body"]), row["attributes"]["thousand"]) for row in rows
    )


def test_killed_twice_archive_and_replay_have_each_message_once(spark: SparkSession, tmp_path: Path) -> None:
    """Parquet, since there it is our own steps that must stand it; Delta at full size."""
    run_with_kills(spark, tmp_path, {"archiving parquet": 1, "replaying parquet": 1}, 1, 2_500)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_killed_twenty_times_each_archive_and_replay_have_each_message_once(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    run_with_kills(spark, tmp_path, {f"{part} {form}": 20 for part in parts_of(form)}, 2, 100)
