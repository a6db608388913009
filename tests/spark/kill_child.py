"""A process that archives a queue and replays the archive, to be killed at any moment: AT FOLDER.

It says how far it is, a line for each batch; run again it goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path

from capellini.pipeline.jobs.archive import Archive, archive
from capellini.pipeline.jobs.replay import Replay, replay
from capellini.pipeline.session import Plan, session

MAX_ROWS = 1_500


def say(rows: int, left: int | None) -> None:
    print(f"rows {rows}", flush=True)


def main(at: str, folder: Path) -> None:
    spark = session(Plan("local[1]", memory_mb=768, shuffle_partitions=1))
    print("ready", flush=True)
    kept = Archive(at, "kept", str(folder / "archive"), str(folder / "archiving"), max_rows=MAX_ROWS, task_rows=700)
    archive(spark, kept, say)
    print("archived", flush=True)
    replay(spark, Replay(at, "again", str(folder / "replaying"), str(folder / "archive")), say)
    print("replayed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
