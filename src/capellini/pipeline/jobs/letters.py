"""`dead-letters`: the letters of a queue in groups, the biggest first, with samples.

    dead letters (a work queue) ──▶ origin, shape, attributes ──▶ groups: how many, since when, samples

The shape of a JSON object is the names of its fields; of anything else its beginning, with numbers made alike. Letters
of one bug mostly share it.

`redrive` moves chosen letters back to where they came from, each once: run again it finds those that are left. What
was put among them by somebody came from nowhere, and stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import functions as f

from capellini.model.errors import Invalid, NotFound, WrongKind
from capellini.model.log import AT, split_name
from capellini.pipeline.jobs.load import record_of
from capellini.pipeline.jobs.running import plainly
from capellini.pipeline.source.data import register
from capellini.queues.log.groups import dead_letters_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHAPE_CHARS: Final = 40  # of a body that is no JSON
SAMPLE_CHARS: Final = 200
SAMPLES: Final = 3
BY: Final = ("origin", "shape", "attributes")
REDRIVE_TASKS: Final = 4  # they move side by side; a queue's buckets bear no more
REDRIVE_NEAR: Final = 1_000  # neighbours go together: they share compare-and-sets


class Letters(msgspec.Struct, frozen=True):
    """`queue`: the queue, or QUEUE@GROUP, whose dead letters they are, or the dead letters themselves."""

    at: str
    queue: str
    by: tuple[str, ...] = BY
    ignore: tuple[str, ...] = ()  # attributes that tell nothing, as request ids
    where: str = ""  # SQL over id, put_at, text, attributes (as JSON), deliveries, origin, shape: only those
    top: int = 20
    reads_per_s: float | None = None


def letters_of(at: str, queue: str) -> str:
    """The queue that has them. Of a log queue each group has its own: QUEUE@GROUP. Raises NotFound, WrongKind."""
    of, group = split_name(queue)
    record = record_of(at, of)
    if record.kind == "log":
        name = dead_letters_of(of, group)
        try:
            return record_of(at, name).name
        except NotFound:
            says = f"{of}{AT}{group} has no dead letters, and each group has its own: see `capellini group list {of}`"
            raise NotFound(says) from None
    if AT in queue:
        raise WrongKind(f"{of} is a {record.kind} queue, which has no groups")
    return record.options.dead_letters or queue


def groups(spark: SparkSession, wanted: Letters) -> DataFrame:
    """The biggest groups: count, the columns of `by`, first_at, last_at, deliveries, samples. Raises Invalid."""
    if wrong := [name for name in wanted.by if name not in BY]:
        raise Invalid(f"letters cannot be grouped by {wrong[0]!r}: use {', '.join(BY)}")
    with plainly():
        return grouped(described(_letters(spark, wanted), wanted), wanted)


def redrive(spark: SparkSession, wanted: Letters) -> int:
    """Moves the letters that `where` chooses back to where they came from; how many."""
    at = wanted.at

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from capellini.client.connecting import connect

        with connect(at) as client:
            for batch in batches:
                ids: dict[str, list[str]] = {}
                for origin, id in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                    ids.setdefault(origin, []).append(id)
                moved = [client.redrive(origin, ids=some) for origin, some in ids.items()]
                yield pa.RecordBatch.from_pydict({"moved": pa.array(moved, pa.int64())})

    with plainly():
        chosen = described(_letters(spark, wanted), wanted).where("origin <> ''").select("origin", "id")
        near = chosen.repartition(REDRIVE_TASKS, f.expr(f"bigint(id) div {REDRIVE_NEAR}")).sortWithinPartitions(
            f.expr("bigint(id)")
        )
        row = near.mapInArrow(run, "moved bigint").selectExpr("coalesce(sum(moved), 0L)").first()
        return int(row[0]) if row is not None else 0


def _letters(spark: SparkSession, wanted: Letters) -> DataFrame:
    register(spark)
    options = {
        "at": wanted.at, "queue": letters_of(wanted.at, wanted.queue),
        "columns": "id,put_at,body,attributes,deliveries,origin",
    }  # fmt: skip
    if wanted.reads_per_s is not None:
        options["reads_per_s"] = repr(wanted.reads_per_s)
    return spark.read.format("capellini").options(**options).load()


def described(rows: DataFrame, wanted: Letters) -> DataFrame:
    """Each letter with its origin, shape and attributes; only those that `where` chooses."""
    keys = "json_object_keys(text)"  # null where it is no object
    plain = f"regexp_replace(substr(text, 1, {SHAPE_CHARS}), '[0-9]+', 'N')"
    named = f"concat('{{', concat_ws(', ', array_sort({keys})), '}}')"
    ignored = ", ".join(map(_quoted, wanted.ignore)) or "''"
    told = (
        rows.selectExpr("*", "string(body) AS text")
        .withColumn("shape", f.expr(f"if({keys} IS NULL, {plain}, {named})"))
        .withColumn("origin", f.expr("split_part(coalesce(origin, ''), '/', 1)"))
        .withColumn(
            "attributes",
            f.expr(
                "to_json(map_from_entries(array_sort(map_entries(map_filter("
                f"coalesce(attributes, map()), (name, value) -> name NOT IN ({ignored}))))))"
            ),
        )
    )
    return told.where(wanted.where) if wanted.where else told


def _quoted(text: str) -> str:
    """As SQL has it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def grouped(told: DataFrame, wanted: Letters) -> DataFrame:
    # The oldest ones, and no more than these are ever held: a group may have millions.
    samples = f"min_by(struct(id, substr(text, 1, {SAMPLE_CHARS}) AS body), bigint(id), {SAMPLES}) AS samples"
    return (
        told.groupBy(*wanted.by)
        .agg(
            f.expr("count(*) AS letters"),
            f.expr("min(put_at) AS first_at"),
            f.expr("max(put_at) AS last_at"),
            f.expr("max(deliveries) AS deliveries"),
            f.expr(samples),
        )
        .orderBy("letters", *wanted.by, ascending=[False] + [True] * len(wanted.by))
        .limit(wanted.top)
    )
