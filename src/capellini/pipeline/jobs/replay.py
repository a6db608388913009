"""`replay`: messages of the archive, or of what a log queue still keeps, put into any queue once more.

    archive (Parquet, Delta) ─┐
    log queue (retention)    ─┴──▶ since, until, attributes, SQL ──▶ queue

Its checkpoint is what makes it happen once: run again with it, it goes on where it was; a batch that comes again is
recognised by the queue. `counted` tells beforehand what would be put.

    from Parquet     what was in the archive when the replay began (folders.py: links), whatever is compacted meanwhile
    from Delta       that, and run again what has come since
    from a queue     likewise

Into a timed queue messages of a timed queue keep their due: the column `due_at` of snapshots; else the time of the id,
which is the due, or the time of the put where that was later. A due that is past is due at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capellini.model.errors import Invalid, Unavailable
from capellini.pipeline.jobs.archive import check_filled, check_replayable, form_of, read_archive
from capellini.pipeline.jobs.folders import begun, end, is_here, is_over
from capellini.pipeline.jobs.load import BATCH_BYTES, record_of, sink
from capellini.pipeline.jobs.running import Say, Summary, claim, plainly, run, silent
from capellini.pipeline.source.asking import MAX_ROWS
from capellini.pipeline.source.data import register
from capellini.queues.timed.positions import TICKS_PER_MS, UNIX_TICKS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TIMED_ID: Final = "^[0-9a-f]{12}1[0-9a-f]{3}[89ab][0-9a-f]{15}$"  # those of work queues are short numbers
TICKS: Final = "conv(concat(substr(id, 14, 3), substr(id, 9, 4), substr(id, 1, 8)), 16, 10)"
DUE: Final = f"timestamp_millis((cast({TICKS} AS bigint) - {UNIX_TICKS}) div {TICKS_PER_MS})"


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
    linked = bool(wanted.path) and is_here(wanted.path) and form_of(wanted.path) == "parquet"
    what |= {"linked": True} if linked else {}
    name = claim(
        wanted.checkpoint,
        {"job": "replay", **what, "generation": record.generation, "paced": wanted.per_s is not None},
    )
    if not linked:
        return _put(spark, wanted, record.kind, wanted.path, say)
    try:
        place = begun(wanted.path, name)
    except OSError as error:
        raise Unavailable(f"a replay of Parquet has links in the archive, and cannot make them: {error}") from error
    if is_over(place):
        return Summary(0, 0, 0.0)
    done = _put(spark, wanted, record.kind, str(place), say)
    if not done.interrupted:
        end(place)
    return done


def _put(spark: SparkSession, wanted: Replay, kind: str, path: str, say: Say) -> Summary:
    register(spark)
    with plainly():
        rows = _chosen(_stream(spark, wanted, path), wanted)
        rows = rows.select("body", "attributes", *_due(rows.columns) if kind == "timed" else ())
    return run(spark, sink(rows, wanted.at, wanted.queue, wanted.per_s), wanted.checkpoint, True, say)


def _due(columns: Sequence[str]) -> list[Column]:
    """Null where there is none: then it is due at once."""
    from pyspark.sql import functions as f

    told = ["due_at"] if "due_at" in columns else []
    if "id" in columns:
        told.append(f"CASE WHEN id RLIKE '{TIMED_ID}' THEN {DUE} END")
    return [f.expr(f"coalesce({', '.join(told)})").alias("due_at")] if told else []


def _check(wanted: Replay) -> None:
    if bool(wanted.path) == bool(wanted.from_queue):
        raise Invalid("name the archive, or the log queue, that is to be replayed")
    if wanted.path:
        check_filled(wanted.path)
        check_replayable(wanted.path, wanted.where)


def _options(wanted: Replay) -> dict[str, str]:
    columns = "queue,generation,extent,number,put_at,body,attributes"
    return {"at": wanted.from_at or wanted.at, "queue": wanted.from_queue, "columns": columns}


def _table(spark: SparkSession, wanted: Replay) -> DataFrame:
    if wanted.from_queue:
        options = _options(wanted) | {
            name: value for name, value in (("since", wanted.since), ("until", wanted.until)) if value
        }
        return spark.read.format("capellini").options(**options).load()
    return read_archive(spark, wanted.path)


def _stream(spark: SparkSession, wanted: Replay, path: str) -> DataFrame:
    read: Any = spark.readStream
    if wanted.from_queue:
        options = _options(wanted) | {"max_rows": str(wanted.max_rows)}
        options |= {"start": wanted.since} if wanted.since else {}
        found: DataFrame = read.format("capellini").options(**options).load()
        return found
    if form_of(path) == "delta":
        found = read.format("delta").option("ignoreDeletes", "true").load(path)  # days that retention dropped
    else:
        schema = read_archive(spark, path).schema
        found = read.schema(schema).option("maxBytesPerTrigger", BATCH_BYTES).parquet(path)
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
