"""A process with a session on a master: MASTER AT OUT. Reads a queue, writes another, says what it found as JSON."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from capellini.pipeline.session import Plan, session
from capellini.pipeline.source.data import register


def main(master: str, at: str, out: Path) -> None:
    settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    spark = session(Plan(master, memory_mb=768, shuffle_partitions=2, settings=settings))
    register(spark)
    source = spark.read.format("capellini").options(at=at, queue="far", task_rows="500")
    rows = source.load()
    rows.select("body", "attributes").write.format("capellini").options(at=at, queue="near").mode("append").save()

    def where(_: object) -> list[str]:
        import os

        import capellini

        return [f"{socket.gethostname()} {os.environ.get('SPARK_EXECUTOR_DIRS', '')} {capellini.__file__}"]

    places = spark.sparkContext.parallelize(range(8), 8).mapPartitions(where).distinct().collect()
    out.write_text(json.dumps({"rows": rows.count(), "places": places}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
