"""`archive`: a log queue, or the journal, into tables by queue and day, each message exactly once.

    queue ──▶ micro-batches ──▶ Delta     a batch is one transaction, named by query and number: known if it comes again
                            ──▶ Parquet   PATH/queue=…/day=…/batch=…/: a batch that comes again replaces its own folders

    columns   of messages     generation extent number put_at body attributes · queue day (and batch)
              of the journal  its events (journal/columns.py), stored_at · day (and batch)

Work and timed queues have no positions to go on from. With their option journal=bodies each message that was put is in
a log queue of the nodes' own as well (node/bodies.py), from which it is archived exactly once; without, `snapshot`
writes what is in them now, as of one day and time.
Retention drops whole days; compaction makes large files of small ones: a transaction of Delta's, or compacting.py.

What an archive is of is written down in it (NOTE): it does not become another's target.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capellini.model.errors import Conflict, Invalid, NotFound, WrongKind
from capellini.model.options import BODIES, INTERNAL, JOURNAL, WITH_BODIES
from capellini.node.bodies import GENERATION, ID, OF
from capellini.pipeline.jobs.compacting import compact_days, merging
from capellini.pipeline.jobs.folders import drop, is_here, writing
from capellini.pipeline.jobs.load import record_of
from capellini.pipeline.jobs.running import Say, Summary, claim, plainly, run, silent
from capellini.pipeline.source.asking import EVENTS, FAIL
from capellini.pipeline.source.data import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMS: Final = ("parquet", "delta")
COLUMNS: Final = "queue,generation,extent,number,put_at,body,attributes"
NOTE: Final = "_capellini.json"  # Spark passes over names that begin so
MESSAGES, SNAPSHOTS = "messages", "snapshots"
BY: Final = {MESSAGES: ("queue", "day"), EVENTS: ("day",), SNAPSHOTS: ("queue", "taken_at")}


class Archive(msgspec.Struct, frozen=True):
    at: str
    queue: str
    path: str
    checkpoint: str
    form: str = "parquet"
    once: bool = True
    missing: str = FAIL
    max_rows: int | None = None  # None: as the source has it
    task_rows: int | None = None
    reads_per_s: float | None = None


def archive(spark: SparkSession, wanted: Archive, say: Say = silent) -> Summary:
    """Raises Invalid, NotFound, WrongKind, Unavailable (retention was faster), or what Spark says."""
    record = record_of(wanted.at, wanted.queue)
    if record.kind != "log" and record.options.journal != WITH_BODIES:
        raise WrongKind(
            f"{wanted.queue} is a {record.kind} queue: take a snapshot of it, or set its option journal=bodies, with "
            "which what is put from then on is archived exactly once"
        )
    if wanted.form not in FORMS:
        raise Invalid(f"{wanted.form!r} is no form of an archive: use {', '.join(FORMS)}")
    of = EVENTS if wanted.queue == JOURNAL else MESSAGES
    name = claim(
        wanted.checkpoint,
        {"job": "archive", "queue": wanted.queue, "generation": record.generation, "path": wanted.path,
         "form": wanted.form},
    )  # fmt: skip
    _mark(wanted.path, of, wanted.form)
    register(spark)
    source = wanted.queue if record.kind == "log" else BODIES
    options = {"at": wanted.at, "queue": source, "missing": wanted.missing}
    options |= {"read": EVENTS, "columns": "*"} if of == EVENTS else {"columns": COLUMNS}
    told = {"max_rows": wanted.max_rows, "task_rows": wanted.task_rows, "reads_per_s": wanted.reads_per_s}
    options |= {name: repr(value) for name, value in told.items() if value is not None}
    with plainly():
        rows = spark.readStream.format("capellini").options(**options).load()
    if source == BODIES:
        rows = _put_into(rows, wanted.queue, record.generation)
    stored = "stored_at" if of == EVENTS else "put_at"
    dated = rows.selectExpr("*", f"date_format({stored}, 'yyyy-MM-dd') AS day")
    writer = dated.writeStream.foreachBatch(_writing(wanted, BY[of], name))
    return run(spark, writer, wanted.checkpoint, wanted.once, say)


def _put_into(rows: DataFrame, queue: str, generation: int) -> DataFrame:
    """The messages of one queue, of those that nodes told with their bodies."""
    from pyspark.sql import functions as f

    of = rows.where((f.col(f"attributes.`{OF}`") == queue) & (f.col(f"attributes.`{GENERATION}`") == str(generation)))
    own = f"map_filter(attributes, (name, value) -> NOT startswith(name, '{INTERNAL}'))"
    return of.select(
        f.lit(queue).alias("queue"), f.lit(generation).cast("bigint").alias("generation"),
        f.col(f"attributes.`{ID}`").alias("id"), "put_at", "body", f.expr(own).alias("attributes"),
    )  # fmt: skip


def _mark(path: str, of: str, form: str) -> None:
    """Raises Conflict when something else is there. Only for folders of this machine."""
    if not is_here(path):
        return
    place = Path(path)
    note = place / NOTE
    mine = {"archive": of, "form": form}
    if note.exists():
        there = msgspec.json.decode(note.read_bytes())
        if there != mine:
            other = f"{there.get('archive')} in {there.get('form')}"
            raise Conflict(f"{path} is an archive of {other}: name another folder")
        return
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise Conflict(f"{path} is there already, and is no archive: name another folder")
    place.mkdir(parents=True, exist_ok=True)
    fresh = note.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(mine))
    fresh.replace(note)


def check_replayable(path: str, where: str) -> None:
    """Raises Invalid for an archive that has no messages, and for several snapshots, in which a message is as often as
    it was there. Only for folders of this machine."""
    note = Path(path) / NOTE
    if not is_here(path) or not note.exists():
        return
    of = msgspec.json.decode(note.read_bytes()).get("archive")
    if of == EVENTS:
        raise Invalid(f"{path} is an archive of the journal, which has no bodies: there is nothing to put")
    taken = sorted({each.name.partition("=")[2] for each in Path(path).glob("queue=*/taken_at=*")})
    if of == SNAPSHOTS and len(taken) > 1 and "taken_at" not in where:
        raise Invalid(
            f"{path} has {len(taken)} snapshots, and what is in several would be put several times: choose one with "
            f"--where \"taken_at = '{taken[-1]}'\""
        )


def _writing(wanted: Archive, by: Sequence[str], query: str) -> Callable[[DataFrame, int], None]:
    """`query`: a name that this archiving has for ever; with the number of a batch it is the batch's."""

    def write(rows: DataFrame, number: int) -> None:
        if wanted.form == "delta":
            known = {"txnAppId": query, "txnVersion": str(number)}
            rows.write.format("delta").mode("append").partitionBy(*by).options(**known).save(wanted.path)
            return
        named = rows.selectExpr("*", f"'{query}-{number:08d}' AS batch")
        replace: dict[str, Any] = {"partitionOverwriteMode": "dynamic"}
        with writing(wanted.path):
            named.write.mode("overwrite").partitionBy(*by, "batch").options(**replace).parquet(wanted.path)

    return write


def snapshot(spark: SparkSession, wanted: Archive) -> int:
    """What is in a queue of any kind now, as one more part of the archive: PATH/queue=…/taken_at=…; how many."""
    _mark(wanted.path, SNAPSHOTS, wanted.form)
    register(spark)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    options = {"at": wanted.at, "queue": wanted.queue, "columns": "*"}
    if wanted.reads_per_s is not None:
        options["reads_per_s"] = repr(wanted.reads_per_s)
    with plainly():
        rows = spark.read.format("capellini").options(**options).load().selectExpr("*", f"'{now}' AS taken_at")
        rows.write.format(wanted.form).mode("append").partitionBy(*BY[SNAPSHOTS]).save(wanted.path)
        taken = spark.read.format(wanted.form).load(wanted.path)
        return int(taken.where(f"queue = '{wanted.queue}' AND taken_at = '{now}'").count())


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """An archive as a table. Raises NotFound."""
    check_filled(path)
    # Queues of several kinds may lie in it, with columns of their own: all are shown.
    return spark.read.format(form_of(path)).option("mergeSchema", "true").load(path)


def form_of(path: str) -> str:
    return "delta" if (Path(path) / "_delta_log").is_dir() else "parquet"


def check_filled(path: str) -> None:
    """Raises NotFound when there is no archive, or one with nothing in it. Only for folders of this machine."""
    if not is_here(path):
        return
    if not Path(path).is_dir():
        raise NotFound(f"there is no archive at {path}")
    if _empty(path):
        raise NotFound(f"there is nothing in the archive at {path} yet")


def _empty(path: str) -> bool:
    """Archived was an empty queue: there is the note alone, and what a killed batch left."""
    return all(each.name.startswith(("_", ".")) and each.name != "_delta_log" for each in Path(path).iterdir())


def drop_days(spark: SparkSession, path: str, before: datetime.date) -> list[str]:
    """Retention: days before that one go as a whole; which."""
    if form_of(path) == "delta":
        with plainly():
            old = read_archive(spark, path).where(f"day < '{before}'").select("day").distinct()
            days = [str(row[0]) for row in old.collect()]
            if days:
                spark.sql(f"DELETE FROM delta.`{path}` WHERE day < '{before}'")
            _sweep(spark, path)
        return sorted(days)
    return drop(Path(path), before)


def check_kept(path: str) -> None:
    """Raises Invalid where days cannot be dropped, nor files be compacted."""
    if not is_here(path):
        raise Invalid(f"{path} is not a folder of this machine: drop days and compact with what keeps it")


def compact(spark: SparkSession, path: str) -> None:
    """Small files become large ones; who reads or writes meanwhile has each message once. Raises Invalid."""
    check_kept(path)
    if _empty(path):
        return
    with plainly():
        if form_of(path) == "parquet":
            compact_days(Path(path), merging(spark))
            return
        spark.sql(f"OPTIMIZE delta.`{path}`")
        _sweep(spark, path)


def _sweep(spark: SparkSession, path: str) -> None:
    """Files that the table has not named for a week: Delta itself removes none, and who reads may still want newer."""
    spark.sql(f"VACUUM delta.`{path}`")
