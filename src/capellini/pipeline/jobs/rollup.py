"""`rollup`: what all counters say, once an hour, as tables by hour and by day.

    counters (a row for each shard) ──▶ by name: shards that the tally has not, and the tally, merged
                                                                    ──▶ PATH/hourly/hour=…/
    hours of a day ──▶ the last of each counter                     ──▶ PATH/daily/day=…/

Each counter is merged by its own state, as a read does it: exact kinds exactly. Sketches lie in the column `sketch` as
Spark's own functions read them, so that distinct counts of many counters are merged by Spark
(`hll_union_agg(sketch)`). An hour that is rolled up again is replaced.

`collect` is the garbage collection of very many counters as a job: every task asks for the collection of its names.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capellini.pipeline.jobs.running import plainly
from capellini.pipeline.source.data import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROLLED: Final = "name string, kind string, value string, sketch binary, shards bigint"
COLLECTED: Final = "name string, collected bigint, deferred string"
HOURLY, DAILY = "hourly", "daily"
COLLECT_TASKS: Final = 16


class Rollup(msgspec.Struct, frozen=True):
    at: str
    path: str
    hour: str = ""  # as 2030-01-31T08; empty: this one
    reads_per_s: float | None = None


def counters(spark: SparkSession, at: str, reads_per_s: float | None = None) -> DataFrame:
    """A row for each shard and tally."""
    register(spark)
    options = {"at": at, "read": "counters"}
    if reads_per_s is not None:
        options["reads_per_s"] = repr(reads_per_s)
    return spark.read.format("capellini").options(**options).load()


def merged(shards: DataFrame) -> DataFrame:
    """A row for each counter: its value as JSON, and its sketch where it has one."""

    def merge(table: Any) -> Any:
        import pyarrow as pa

        name, kind, value, sketch, count = merge_rows(table.to_pylist())
        arrays = [pa.array([name]), pa.array([kind]), pa.array([value]), pa.array([sketch], pa.binary())]
        return pa.table([*arrays, pa.array([count], pa.int64())], names=["name", "kind", "value", "sketch", "shards"])

    return shards.groupBy("name").applyInArrow(merge, ROLLED)


def merge_rows(rows: list[dict[str, Any]]) -> tuple[str, str, str, bytes | None, int]:
    """Name, kind, value, sketch and number of shards of one counter."""
    from capellini.counters.states.registry import Registry

    state = Registry().state(rows[0]["kind"])
    total = state()
    through_us = max((row["through_us"] for row in rows if row["through_us"] is not None), default=0)
    shards = [row for row in rows if row["expires_us"] is None or row["expires_us"] >= through_us]
    for row in shards:
        total.merge(state.decode(row["state"], row["version"]))
    value = msgspec.json.encode(total.value()).decode()
    return rows[0]["name"], rows[0]["kind"], value, total.sketch(), len(shards)


def rollup(spark: SparkSession, wanted: Rollup) -> int:
    """Rolls this hour up; how many counters. Run again within the hour, it replaces what it wrote."""
    hour = wanted.hour or datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H")
    with plainly():
        rows = merged(counters(spark, wanted.at, wanted.reads_per_s)).selectExpr("*", f"'{hour}' AS hour")
        _replaced(rows, "hour", f"{wanted.path}/{HOURLY}")
        _replaced(_last_of(spark, wanted.path, hour[:10]), "day", f"{wanted.path}/{DAILY}")
        return int(hourly(spark, wanted.path).where(f"hour = '{hour}'").count())


def _replaced(rows: DataFrame, by: str, path: str) -> None:
    replace: dict[str, Any] = {"partitionOverwriteMode": "dynamic"}
    rows.write.mode("overwrite").partitionBy(by).options(**replace).parquet(path)


def hourly(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.schema(f"{ROLLED}, hour string").parquet(f"{path}/{HOURLY}")


def daily(spark: SparkSession, path: str) -> DataFrame:
    """The last of each counter on each day."""
    return spark.read.schema(f"{ROLLED}, hour string, day string").parquet(f"{path}/{DAILY}")


def _last_of(spark: SparkSession, path: str, day: str) -> DataFrame:
    from pyspark.sql import functions as f

    last = "max_by(struct(kind, value, sketch, shards, hour), hour) AS last"
    hours = hourly(spark, path).where(f"startswith(hour, '{day}T')")
    found = hours.groupBy("name").agg(f.expr(last)).selectExpr("name", "last.*", f"'{day}' AS day")
    return found.select("name", "kind", "value", "sketch", "shards", "hour", "day")


def collect(spark: SparkSession, at: str, prefix: str = "") -> DataFrame:
    """Collects every counter whose name begins so; a row for each, with how many shards went into its tally."""
    register(spark)
    with plainly():
        names = counters(spark, at).select("name").distinct().where(f"startswith(name, {prefix!r})")

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            from capellini.client.connecting import connect

            with connect(at) as client:
                for batch in batches:
                    found = [client.counters.collect(name) for name in batch.column(0).to_pylist()]
                    yield pa.RecordBatch.from_pydict(
                        {
                            "name": batch.column(0),
                            "collected": pa.array([each.shards for each in found], pa.int64()),
                            "deferred": pa.array([each.deferred for each in found], pa.string()),
                        }
                    )

        return names.repartition(COLLECT_TASKS).mapInArrow(run, COLLECTED).persist()
