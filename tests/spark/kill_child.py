"""A process that archives a queue, compacts the archive or replays it, to be killed at any moment.

    python -m tests.spark.kill_child AT FOLDER MAX_ROWS FORM PART

It says when it begins, when it is done, and a line for each batch; run again it goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.nodes import SMALL

from capellini.pipeline.jobs.archive import Archive, archive, compact
from capellini.pipeline.jobs.replay import Replay, replay
from capellini.pipeline.session import Plan, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PER_S = 4_000.0  # a replay takes some seconds: time to be killed in


def say(rows: int, left: int | None) -> None:
    print(f"rows {rows}", flush=True)


def go_on(spark: SparkSession, at: str, folder: Path, max_rows: int, form: str, part: str) -> None:
    path, state = str(folder / form), str(folder / f"{part}-{form}")
    print(f"{part} {form}", flush=True)
    match part:
        case "archiving":
            archive(spark, Archive(at, "kept", path, state, form, max_rows=max_rows, task_rows=700), say)
        case "compacting":
            compact(spark, path)
        case "replaying":
            replay(spark, Replay(at, f"again-{form}", state, path, per_s=PER_S), say)
    print("done", flush=True)


def main(at: str, folder: str, max_rows: str, form: str, part: str) -> None:
    small = Plan("local[1]", memory_mb=768, shuffle_partitions=1, delta=form == "delta", settings=SMALL)
    go_on(session(small), at, Path(folder), int(max_rows), form, part)


if __name__ == "__main__":
    main(*sys.argv[1:])
