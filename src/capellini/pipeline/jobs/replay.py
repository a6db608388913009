"""`replay`: messages of the archive, or of what a log queue still keeps, put into any queue once more.

    archive (Parquet, Delta) ─┐
    log queue (retention)    ─┴──▶ since, until, attributes, SQL ──▶ queue

Its checkpoint is what makes it happen once: run again with it, it goes on where it was; a batch that comes again is
recognised by the queue. `counted` tells beforehand what would be put.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from capellini.model.errors import Invalid
from capellini.pipeline.jobs.archive import check_filled, form_of
from capellini.pipeline.jobs.load import BATCH_BYTES, record_of, sink
from capellini.pipeline.jobs.running import Say, Summary, claim, plainly, run, silent
from capellini.pipeline.source.asking import MAX_ROWS
from capellini.pipeline.source.data import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Replay(msgspec.Struct, frozen=True):
    """From `path` (an archive) or `from_queue` (a log queue at `from_at`) into `queue` at `at`."""

    at: str
    queue: str
    checkpoint: str
    path: str = ""
    from_at: str = ""
    from_queue: str = ""
    since: str = ""
    until: str = ""
    attributes: dict[str, str] = {}
    where: str = ""  # SQL over the archive's columns
    per_s: float | None = None
    max_rows: int = MAX_ROWS


def counted(spark: SparkSession, wanted: Replay) -> DataFrame:
    """A dry run: messages and bytes by queue and day. Raises as `replay` does."""
    _check(wanted)
    register(spark)
    with plainly():
        rows = _chosen(_table(spark, wanted), wanted)
        return rows.groupBy("queue", "day").agg({"*": "count", "size": "sum"}).selectExpr(
            "queue", "day", "`count(1)` AS messages", "`sum(size)` AS bytes"
        ).orderBy("queue", "day")  # fmt: skip


def replay(spark: SparkSession, wanted: Replay, say: Say = silent) -> Summary:
    """Raises Invalid, NotFound, or what putting raises."""
    _check(wanted)
    record = record_of(wanted.at, wanted.queue)
    what = msgspec.to_builtins(wanted)
    for changeable in ("at", "checkpoint", "per_s", "from_at", "max_rows"):
        del what[changeable]
    claim(
        wanted.checkpoint,
        {"job": "replay", **what, "generation": record.generation, "paced": wanted.per_s is not None},
    )
    register(spark)
    with plainly():
        rows = _chosen(_stream(spark, wanted), wanted).select("body", "attributes")
    return run(spark, sink(rows, wanted.at, wanted.queue, wanted.per_s), wanted.checkpoint, True, say)


def _check(wanted: Replay) -> None:
    if bool(wanted.path) == bool(wanted.from_queue):
        raise Invalid("name the archive, or the log queue, that is to be replayed")
    if wanted.path:
        check_filled(wanted.path)


def _options(wanted: Replay) -> dict[str, str]:
    columns = "queue,generation,extent,number,put_at,body,attributes"
    return {"at": wanted.from_at or wanted.at, "queue": wanted.from_queue, "columns": columns}


def _table(spark: SparkSession, wanted: Replay) -> DataFrame:
    if wanted.from_queue:
        options = _options(wanted) | {
            name: value for name, value in (("since", wanted.since), ("until", wanted.until)) if value
        }
        return spark.read.format("capellini").options(**options).load()
    return spark.read.format(form_of(wanted.path)).load(wanted.path)


def _stream(spark: SparkSession, wanted: Replay) -> DataFrame:
    read: Any = spark.readStream
    if wanted.from_queue:
        options = _options(wanted) | {"max_rows": str(wanted.max_rows)}
        options |= {"start": wanted.since} if wanted.since else {}
        found: DataFrame = read.format("capellini").options(**options).load()
        return found
    form = form_of(wanted.path)
    if form == "delta":
        found = read.format(form).option("ignoreDeletes", "true").load(wanted.path)  # days that retention dropped
    else:
        schema = spark.read.parquet(wanted.path).schema
        found = read.schema(schema).option("maxBytesPerTrigger", BATCH_BYTES).parquet(wanted.path)
    return found


def _chosen(rows: DataFrame, wanted: Replay) -> DataFrame:
    """What is to be put, with its day and size."""
    from pyspark.sql import functions as f

    for name, value in wanted.attributes.items():
        rows = rows.where(f.col("attributes")[name] == f.lit(value))
    if wanted.since:
        rows = rows.where(f.col("put_at") >= f.lit(_moment(wanted.since)).cast("timestamp"))
    if wanted.until:
        rows = rows.where(f.col("put_at") < f.lit(_moment(wanted.until)).cast("timestamp"))
    if wanted.where:
        rows = rows.where(wanted.where)
    if "day" not in rows.columns:
        rows = rows.withColumn("day", f.date_format("put_at", "yyyy-MM-dd"))
    return rows.withColumn("size", f.octet_length("body"))


def _moment(text: str) -> float | str:
    """Seconds since 1970, or a time as text: Spark knows both."""
    try:
        return float(text)
    except ValueError:
        return text
