"""Log queues in the audit: one put, and a life for each reader of its extent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.unit.test_journal_sheets import WHO, sheet

from capellini.pipeline.audit.job import Audit, Options, audit
from capellini.pipeline.journal.columns import read_journal
from capellini.pipeline.source.events import events_of
from capellini.queues.events import Happened, Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
Told = tuple[str, str, int, str]  # kind, queue, version, runs
Fault = tuple[str, str, str]  # fault, queue, id


def audited(spark: SparkSession, path: Path, told: list[Told], options: Options) -> tuple[Audit, set[Fault]]:
    """The summary and the findings of a journal with these events, a second after each other, and its end."""
    lines = [
        f'{{"node":"n","incarnation":"i","number":{at},"at":{at},"kind":"{kind}","queue":"{queue}",'
        f'"generation":1,"runs":[{runs}],"version":{version}}}\n'
        for at, (kind, queue, version, runs) in enumerate(told, 1)
    ]
    last = f'{{"node":"n","incarnation":"i","number":{len(told) + 1},"at":9000,"kind":"closed"}}\n'
    path.write_text("".join([*lines, last]))
    summary, findings = audit(read_journal(spark, str(path)), options)
    return summary, {(row["fault"], row["queue"], row["id"]) for row in findings.collect()}


# What is to be found in one audit: the start of Spark's jobs is what takes the time.
STORY: list[Told] = [
    # a put is of all readers; 9 is lost to b, which skipped some
    ("put", "feed/e1", 0, "[0,10]"),
    ("delivered", "feed@a/1/e1", 1, "[0,10]"),
    ("acked", "feed@a/1/e1", 1, "[0,10]"),
    ("skipped", "feed@b/1/e1", 0, "[0,4],[6,2]"),
    ("delivered", "feed@b/1/e1", 1, "[4,2],[8,1]"),
    ("acked", "feed@b/1/e1", 1, "[4,2],[8,1]"),
    # nobody has begun with this extent; the queue is not known to be empty
    ("put", "waits/e2", 0, "[0,1]"),
    # after a seek what the version before had not finished is nobody's
    ("put", "seek/e3", 0, "[0,3]"),
    ("delivered", "seek@a/1/e3", 1, "[0,2]"),
    ("acked", "seek@a/1/e3", 1, "[0,1]"),
    ("delivered", "seek@a/2/e3", 1, "[0,3]"),
    ("acked", "seek@a/2/e3", 1, "[0,2]"),
    # delivered after its ack, to one of two readers
    ("put", "twice/e4", 0, "[0,2]"),
    ("delivered", "twice@a/1/e4", 1, "[0,2]"),
    ("acked", "twice@a/1/e4", 1, "[0,2]"),
    ("delivered", "twice@a/1/e4", 2, "[1,1]"),
    ("delivered", "twice@b/1/e4", 1, "[0,2]"),
    ("acked", "twice@b/1/e4", 1, "[0,2]"),
]


def test_each_reader_has_lives_of_its_own_and_all_have_the_put(spark: SparkSession, tmp_path: Path) -> None:
    options = Options(drained=frozenset(("feed", "seek", "twice")), stuck_s=60.0)
    summary, found = audited(spark, tmp_path / "events.jsonl", STORY, options)
    assert found == {
        ("lost", "feed@b/1/e1", "9"),
        ("stuck", "waits/e2", "0"),
        ("stuck", "seek@a/2/e3", "2"),
        ("delivered_again", "twice@a/1/e4", "1"),
    }
    assert (summary.lives, summary.windows) == (20 + 1 + 6 + 4, [])


def test_messages_of_the_journal_queue_are_unfolded_and_what_is_no_sheet_is_a_gap() -> None:
    told = [Happened(*WHO, 0, 5.0, kind, "q", 1, ((0, 3),), 1) for kind in (Kind.PUT, Kind.DELIVERED, Kind.ACKED)]
    bodies = [sheet(told, 1), b"no sheet", sheet(told, 7)]
    times = pa.array([5_000_000] * 3).view(pa.timestamp("us", tz="UTC"))
    messages = pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary()), times], names=["body", "put_at"])
    rows = pa.Table.from_batches(events_of(iter([messages]), ("number", "queue", "first", "count", "id", "stored_at")))
    assert rows["number"].to_pylist() == [1, 2, 3, 7, 8, 9]
    assert {(row["queue"], row["first"], row["count"], row["id"]) for row in rows.to_pylist()} == {("q", 0, 3, None)}
    assert {each.timestamp() for each in rows["stored_at"].to_pylist()} == {5.0}
