"""A process with a session on a master: MASTER AT OUT. Reads a queue, writes another, archives, replays and audits, and
says what it found as JSON."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from capellini.model.options import JOURNAL
from capellini.pipeline.audit.job import audit
from capellini.pipeline.jobs.archive import Archive, archive, read_archive
from capellini.pipeline.jobs.replay import Replay, replay
from capellini.pipeline.journal.columns import read_journal
from capellini.pipeline.session import CONNECT, Plan, session
from capellini.pipeline.source.data import register


def where(_: object) -> list[str]:
    import os

    import capellini

    return [f"{socket.gethostname()} {os.environ.get('SPARK_EXECUTOR_DIRS', '')} {capellini.__file__}"]


def main(master: str, at: str, out: Path) -> None:
    settings = {} if master.startswith(CONNECT) else {
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"
    }  # fmt: skip
    spark = session(Plan(master, memory_mb=768, shuffle_partitions=2, settings=settings))
    register(spark)
    source = spark.read.format("capellini").options(at=at, queue="far", task_rows="500")
    rows = source.load()
    rows.select("body", "attributes").write.format("capellini").options(at=at, queue="near").mode("append").save()
    kept, folder = str(out.parent / "kept"), out.parent
    archive(spark, Archive(at, "far", kept, str(folder / "c1"), task_rows=500))
    replayed = replay(spark, Replay(at, "near", str(folder / "c2"), kept))
    archive(spark, Archive(at, JOURNAL, str(folder / "told"), str(folder / "c3")))
    summary, _ = audit(read_journal(spark, str(folder / "told")))
    said = {
        "rows": rows.count(), "archived": read_archive(spark, kept).count(), "replayed": replayed.rows,
        "lives": summary.lives, "places": [],
    }  # fmt: skip
    if not master.startswith(CONNECT):
        said["places"] = spark.sparkContext.parallelize(range(8), 8).mapPartitions(where).distinct().collect()
    out.write_text(json.dumps(said))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
