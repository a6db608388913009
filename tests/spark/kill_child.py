"""A process that archives a queue and replays the archive, to be killed at any moment: AT FOLDER MAX_ROWS FORM.

It says how far it is, a line for each batch; run again it goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path

from capellini.pipeline.jobs.archive import Archive, archive
from capellini.pipeline.jobs.replay import Replay, replay
from capellini.pipeline.session import Plan, session

PER_S = 8_000.0  # a replay takes some seconds: time to be killed in


def say(rows: int, left: int | None) -> None:
    print(f"rows {rows}", flush=True)


def main(at: str, folder: Path, max_rows: int, form: str) -> None:
    spark = session(Plan("local[1]", memory_mb=768, shuffle_partitions=1, delta=form == "delta"))
    kept = Archive(
        at, "kept", str(folder / "archive"), str(folder / "archiving"), form, max_rows=max_rows, task_rows=700
    )
    print("archiving", flush=True)
    archive(spark, kept, say)
    print("replaying", flush=True)
    replay(spark, Replay(at, "again", str(folder / "replaying"), str(folder / "archive"), per_s=PER_S), say)
    print("replayed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
