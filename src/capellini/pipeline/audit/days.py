"""The audit day by day: each day of the journal is read once, and what lives that go on need is carried to the next.

    day n of the journal ─┐
    carried by day n-1  ──┴──▶ audit ──▶ findings that are new
                                     ──▶ carried: what was told of lives that go on, runs of those that are over,
                                                  puts of log queues (a reader may come later), numbers that were heard

    STATE/day=2030-01-31/   carried, numbers, findings        as Parquet
    STATE/done/2030-01-31   written last: the day is done
    STATE/told              the last day of which somebody was told what was found

So a month costs what its days cost. What is over is remembered for KEEP_DAYS, so that a delivery after its ack is
found across days; later than that it looks like a life of its own. The days are those on which the journal was stored
(the archive's `day`), so that nothing comes late; a day that grew after its audit is noticed, and is an error.

Killed at any moment, it begins again with the day that was not done; what was found until then is told by the next one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from capellini.model.errors import Conflict, Invalid
from capellini.pipeline.audit.digest import DIGEST, numbers_of
from capellini.pipeline.audit.job import FINDINGS, After, Audit, Before, Options, audit
from capellini.pipeline.audit.readers import IS_PUT
from capellini.pipeline.audit.runs import Runs, joined
from capellini.pipeline.audit.verdict import SETTLED
from capellini.pipeline.journal.columns import ARROW, COLUMNS, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEEP_DAYS: Final = 7.0
HOUR_S: Final = 3_600.0  # runs of puts are joined within an hour: how long one waits is known that well
TOLD: Final = "told"
WHO: Final = ("fault", "queue", "generation", "id")


class Done(msgspec.Struct, frozen=True):
    """Of one day."""

    day: str
    rows: int  # of the journal, as they were
    events: int
    lives: int
    plain: int
    counts: dict[str, int]  # findings that are new, by fault
    broken: int
    missing: int = 0  # events known not to be there, of this day and those before; earlier versions did not note it


def audit_days(
    spark: SparkSession, journal: DataFrame, state: str, options: Options | None = None,
    say: Callable[[str], None] = lambda _: None, last: str = "",
) -> Iterator[Done]:  # fmt: skip
    """Each day that was not audited yet and is complete: there is a later one, or it is not after `last`. Raises
    Invalid when the journal has no days, Conflict when one has grown since."""
    if "day" not in journal.columns:
        raise Invalid("this journal has no days: archive the journal first, and audit the archive")
    place = Path(state)
    (place / "done").mkdir(parents=True, exist_ok=True)
    sizes = {str(row[0]): int(row[1]) for row in journal.groupBy("day").count().collect()}
    before = {each.day: each.rows for each in _all_done(place)}
    newest = max(before, default="")
    for day in sorted(sizes):
        if day <= newest and sizes[day] != before.get(day, 0):
            raise Conflict(
                f"{day} had {before.get(day, 0)} rows when it was audited and has {sizes[day]} now: audit a day "
                "after all of it was archived, or begin with a new state"
            )
    days = [day for day in sorted(sizes) if day > newest and (day < max(sizes) or day <= last)]
    for day in days:
        found = _one(spark, journal.where(f"day = '{day}'").select(*COLUMNS), place, newest, day, options, say)
        done = Done(
            day, sizes[day], found[0].events, found[0].lives, found[0].plain, found[1],
            Audit(0, 0, 0, found[1], [], 0.0).broken, found[0].missing,
        )  # fmt: skip
        fresh = place / "done" / f".{day}"
        fresh.write_bytes(msgspec.json.encode(done))
        fresh.replace(place / "done" / day)
        for name in ("carried", "numbers") if newest else ():
            shutil.rmtree(place / f"day={newest}" / name, ignore_errors=True)
        newest = day
        yield done


def findings_of(spark: SparkSession, state: str) -> DataFrame:
    """All that was found, with the day of each."""
    columns, days = f"{FINDINGS}, day string", [each.day for each in _all_done(Path(state))]
    if not days:
        return spark.createDataFrame([], columns)
    # In one go: one after the other, a year of days would be a plan of hundreds of steps.
    paths = [str(Path(state) / f"day={day}" / "findings") for day in days]
    return spark.read.schema(columns).option("basePath", state).parquet(*paths)


def untold(state: str) -> list[Done]:
    """The days that are done and of which nobody was told: who audited them may have been killed before that."""
    told = Path(state) / TOLD
    last = told.read_text() if told.exists() else ""
    return [each for each in _all_done(Path(state)) if each.day > last]


def tell(state: str, day: str) -> None:
    """Somebody was told of all days up to this one."""
    fresh = Path(state) / f".{TOLD}"
    fresh.write_text(day)
    fresh.replace(Path(state) / TOLD)


def _all_done(place: Path) -> list[Done]:
    """In the order of days."""
    files = sorted(each for each in (place / "done").iterdir() if not each.name.startswith("."))
    return [msgspec.json.decode(each.read_bytes(), type=Done) for each in files]


def _one(
    spark: SparkSession, rows: DataFrame, place: Path, newest: str, day: str, options: Options | None,
    say: Callable[[str], None],
) -> tuple[Audit, dict[str, int]]:  # fmt: skip
    """Audits one day; what is new by fault."""
    into = place / f"day={day}"
    before, carried = None, None
    if newest:
        carried = spark.read.schema(SCHEMA).parquet(str(place / f"day={newest}" / "carried"))
        before = Before(carried, spark.read.schema(DIGEST).parquet(str(place / f"day={newest}" / "numbers")))

    def keep(after: After) -> None:
        left = [_settled(after), _unfinished(after), _puts(rows)]
        if carried is not None:
            old_s = after.ended_s - KEEP_DAYS * 86_400
            left.append(carried.where(f"(kind = '{SETTLED}' OR ({IS_PUT})) AND at >= {old_s!r}"))
        all_of_it = left[0]
        for each in left[1:]:
            all_of_it = all_of_it.unionByName(each)
        all_of_it.write.mode("overwrite").parquet(str(into / "carried"))
        numbers_of(after.digest).write.mode("overwrite").parquet(str(into / "numbers"))

    summary, found = audit(rows, options, lambda text: say(f"{day}: {text}"), before, keep)
    fresh = found.join(findings_of(spark, str(place)).select(*WHO), list(WHO), "left_anti")
    fresh.select(*found.columns).write.mode("overwrite").parquet(str(into / "findings"))
    written = spark.read.schema(FINDINGS).parquet(str(into / "findings"))
    return summary, {row["fault"]: row["count"] for row in written.groupBy("fault").count().collect()}


# ---- what is carried: rows of the journal's own columns whose numbers are not above 0


def _settled(after: After) -> DataFrame:
    return after.settled.selectExpr(
        "'' AS node", "'' AS incarnation", "-1L - version AS number", f"double({after.ended_s!r}) AS at",
        f"'{SETTLED}' AS kind", "queue", "generation", "first", "count", "id", "version", "'' AS detail",
    )  # fmt: skip


def _unfinished(after: After) -> DataFrame:
    """As they were told, each by itself. Puts of log queues are carried for all readers, by `_puts`."""
    number = "id RLIKE '^[0-9]{1,19}$'"
    return after.unfinished.where("NOT (kind = 'put' AND instr(queue, '/') > 0)").selectExpr(
        "node", "incarnation", "-abs(number) AS number", "at", "kind", "queue", "generation",
        f"if({number}, bigint(id), NULL) AS first", f"if({number}, 1L, NULL) AS count",
        f"if({number}, NULL, id) AS id", "version", "detail",
    )  # fmt: skip


def _puts(rows: DataFrame) -> DataFrame:
    """The puts of log queues, neighbours of an hour joined."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if batch.num_rows:
                yield _joined(batch)

    return rows.where(f"{IS_PUT} AND first IS NOT NULL").select(*COLUMNS).mapInArrow(run, SCHEMA)


def _joined(batch: pa.RecordBatch) -> pa.RecordBatch:
    places = pa.array(
        [
            f"{generation}/{queue}"
            for queue, generation in zip(
                batch.column("queue").to_pylist(), batch.column("generation").to_pylist(), strict=True
            )
        ]
    ).dictionary_encode()
    hour = np.floor(batch.column("at").to_numpy() / HOUR_S).astype(np.int64)
    first, count = batch.column("first").to_numpy(), batch.column("count").to_numpy()
    runs = joined(Runs(places.indices.to_numpy(), hour, np.zeros(len(hour), np.int64), first, count))
    names = [each.split("/", 1) for each in places.dictionary.to_pylist()]
    size = len(runs.first)
    columns: dict[str, Any] = {
        "node": [""] * size, "incarnation": ["put"] * size, "number": [-1] * size, "at": runs.column * HOUR_S,
        "kind": ["put"] * size, "queue": [names[at][1] for at in runs.group],
        "generation": [int(names[at][0]) for at in runs.group], "first": runs.first, "count": runs.count,
        "id": [None] * size, "version": [0] * size, "detail": [""] * size,
    }  # fmt: skip
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in ARROW], schema=ARROW)
