"""What the journal says about each queue and hour, as small tables.

    journal ──▶ rates      events by kind                    sums of counts, one pass
            ──▶ waits      put to first delivery, put to ack: quantiles, by the hour of the put; of timed messages
                           from their due on: to wait until then is what they are for
            ──▶ depth      what was put and not finished at the end of each hour (depths.py)
            ──▶ poison     the messages that were delivered most often
    archive ──▶ attributes the most frequent values           (only if one is named: the journal has none)

Runs of ids are spread out for the waits alone, which need single lives; they are gathered again at once.

A log queue has a row for each of its groups (QUEUE@GROUP), all extents together; puts that no group has begun with are
the queue's own. Versions of a group, of which each seek begins one, are in the same row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import functions as f

from capellini.model.log import AT
from capellini.pipeline.audit.job import DUE_S
from capellini.pipeline.audit.readers import with_puts
from capellini.pipeline.report.depths import with_depths

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KINDS: Final = ("put", "delivered", "acked", "nacked", "dead", "expired", "cancelled", "skipped", "replayed")
QUANTILES: Final = (0.5, 0.95, 0.99)
TOP: Final = 20
TIMED_ID: Final = "^[0-9a-f]{32}$"  # a time uuid, which says its due; others are numbers
READER: Final = f"^[^/]*{AT}[^/]*/[^/]*/|^[^/]*/"  # what is before an extent in the name of its place
_HOUR: Final = "date_trunc('hour', timestamp_seconds({}))"


class Report(msgspec.Struct, frozen=True):
    """Rows as dictionaries, hours as text, in order of queue and hour."""

    hours: list[dict[str, Any]]  # rates and depth
    waits: list[dict[str, Any]]
    poison: list[dict[str, Any]]
    attributes: list[dict[str, Any]]


def report(journal: DataFrame, archive: DataFrame | None = None) -> Report:
    named, _ = with_puts(journal.where("queue <> ''"))
    events = named.selectExpr("*", "queue AS place").withColumn("queue", f.expr("split_part(queue, '/', 1)")).persist()
    try:
        return Report(
            hours(events),
            _rows(waits(events), "queue", "hour"),
            _rows(poison(events)),
            [] if archive is None else _rows(attributes(archive)),
        )
    finally:
        events.unpersist()


def _rows(frame: DataFrame, *order: str) -> list[dict[str, Any]]:
    table = (frame.orderBy(*order) if order else frame).toArrow()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _count(kind: str) -> str:
    return f"sum(if(kind = '{kind}', coalesce(`count`, 1), 0)) AS {kind}"


def hours(events: DataFrame) -> list[dict[str, Any]]:
    """Events by kind, redeliveries, and depth at the end of the hour."""
    again = "sum(if(kind = 'delivered' AND version > 1, coalesce(`count`, 1), 0)) AS redelivered"
    mine = ("queue", "generation", "seek")
    extents = (
        events.selectExpr(
            "*",
            f"string({_HOUR.format('at')}) AS hour",
            f"if(instr(place, '{AT}') > 0, int(split_part(place, '/', 2)), 0) AS seek",
            f"regexp_replace(place, '{READER}', '') AS extent",
        )
        .groupBy(*mine, "extent", "hour")
        .agg(*(f.expr(_count(kind)) for kind in KINDS), f.expr(again), f.expr("count_if(kind <> 'put') AS own"))
    )
    # Each version of a group has the puts of what it read: for the rate they count with the first of these.
    first = "seek = min(seek) OVER (PARTITION BY queue, generation, extent)"
    sums = ", ".join((*KINDS, "redelivered", "own"))
    counted = extents.selectExpr("*", f"if({first}, put, 0) AS told")
    by_version = counted.groupBy(*mine, "hour").agg(*(f.sum(each).alias(each) for each in (*sums.split(", "), "told")))
    return with_depths(_rows(by_version, *mine, "hour"))


def lives(events: DataFrame) -> DataFrame:
    """A row for each message: when it was put, when it could first be delivered (`ready_s`), when it was delivered and
    acked, and how often it was delivered."""
    single = "if(`first` IS NULL, array(id), transform(sequence(`first`, `first` + `count` - 1), n -> string(n)))"
    spread = events.where("`first` IS NOT NULL OR id IS NOT NULL").select(
        "queue", "place", "generation", "kind", "at", "version", "detail", f.explode(f.expr(single)).alias("message")
    )
    moved = "if(kind = 'moved', {}, NULL)"
    lived = spread.groupBy("queue", "place", "generation", "message").agg(
        f.expr("min(if(kind = 'put', at, NULL)) AS put_s"),
        f.expr(f"max_by({moved.format('double(detail) / 1000')}, {moved.format('at')}) AS moved_s"),
        f.expr("min(if(kind = 'delivered', at, NULL)) AS taken_s"),
        f.expr("max(if(kind = 'acked', at, NULL)) AS done_s"),
        f.expr("max(if(kind = 'delivered', version, 0)) AS deliveries"),
    )
    due = f"if(message RLIKE '{TIMED_ID}', {DUE_S.replace('(id,', '(message,')}, put_s)"
    return lived.selectExpr("*", f"greatest(put_s, coalesce(moved_s, {due})) AS ready_s")


def _since(then: str) -> str:
    """Seconds; none where it has not happened yet (`greatest` would pass over that)."""
    return f"if({then} IS NULL, NULL, greatest({then} - ready_s, 0))"


def waits(events: DataFrame) -> DataFrame:
    """Seconds from put, or due, to first delivery and to ack: quantiles by the hour of the put."""
    wanted = ", ".join(map(str, QUANTILES))
    quantiles = (
        lives(events)
        .where("put_s IS NOT NULL")
        .withColumn("hour", f.expr(f"string({_HOUR.format('put_s')})"))
        .selectExpr("queue", "hour", f"{_since('taken_s')} AS wait", f"{_since('done_s')} AS life")
        .groupBy("queue", "hour")
        .agg(
            f.expr(f"percentile_approx(wait, array({wanted})) AS wait"),
            f.expr(f"percentile_approx(life, array({wanted})) AS life"),
        )
    )
    names = [f"{what}_p{round(rank * 100)}" for what in ("wait", "life") for rank in QUANTILES]
    picked = [f"{name.partition('_')[0]}[{at % len(QUANTILES)}] AS {name}" for at, name in enumerate(names)]
    return quantiles.selectExpr("queue", "hour", *picked)


def poison(events: DataFrame) -> DataFrame:
    """The messages that were delivered most often, and more than once."""
    return (
        lives(events)
        .where("deliveries > 1")
        .selectExpr(
            "queue",
            "generation",
            "if(instr(place, '/') > 0, concat(substring_index(place, '/', -1), ':', message), message) AS message",
            "deliveries",
            "done_s IS NOT NULL AS acked",
        )
        .orderBy("deliveries", "queue", "message", ascending=[False, True, True])
        .limit(TOP)
    )


def attributes(archive: DataFrame) -> DataFrame:
    """The most frequent values of attributes, by queue."""
    pairs = archive.select("queue", f.explode("attributes").alias("attribute", "value"))
    counted = pairs.groupBy("queue", "attribute", "value").count()
    return counted.orderBy("count", "queue", "attribute", "value", ascending=[False, True, True, True]).limit(TOP)
