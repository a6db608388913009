"""The audit finds every fault that was planted in a journal, and none in a clean one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from capellini.cli import pipeline as verbs
from capellini.cli.speaking import errors_said
from capellini.model.errors import Conflict, Invalid, NotFound
from capellini.pipeline.audit.days import audit_days, findings_of
from capellini.pipeline.audit.job import Audit, Options, audit
from capellini.pipeline.journal.chapters import FAULTS, table_of
from capellini.pipeline.journal.columns import COLUMNS, read_journal
from capellini.pipeline.journal.generator import Recipe, chapters_of, generated
from capellini.queues.events import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
EMPTY = Options(drained=None)
MIDNIGHT_S = 1_750_032_000.0  # 2025-06-16
Found = set[tuple[str, str, int, str]]


def named(frame: DataFrame) -> Found:
    return {(row["fault"], row["queue"], row["generation"], row["id"]) for row in frame.collect()}


def lines(path: Path, *events: str) -> str:
    """A journal as a node writes it: each event as its JSON without node, incarnation and number; closed at the end."""
    said = [*events, '"at":9000,"kind":"closed"']
    who = '"node":"n","incarnation":"i"'
    text = "".join(f'{{{who},"number":{at},{each}}}\n' for at, each in enumerate(said, 1))
    path.write_text(text)
    return str(path)


def event(kind: str, at: float, version: int = 0, run: str = "[5,1]", generation: int = 1) -> str:
    return f'"at":{at},"kind":"{kind}","queue":"q","generation":{generation},"runs":[{run}],"version":{version}'


def audited(spark: SparkSession, path: str, options: Options = EMPTY) -> tuple[Audit, dict[str, str]]:
    """The summary, and the fault of each id."""
    summary, findings = audit(read_journal(spark, path), options)
    return summary, {row["id"]: row["fault"] for row in findings.collect()}


@pytest.fixture(scope="module")
def planted_days(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[DataFrame, Found]:
    """A journal over midnight, with five faults of each kind, by day as an archive has it; and the faults."""
    recipe = Recipe(6_000, seed=7, faults=dict.fromkeys(FAULTS, 5), began_s=MIDNIGHT_S - 330.0)
    journal, planted = generated(spark, recipe)
    path = str(tmp_path_factory.mktemp("journal") / "days")
    journal.selectExpr("*", "date_format(timestamp_seconds(at), 'yyyy-MM-dd') AS day").write.parquet(path)
    return read_journal(spark, path, days=True), named(planted)


def test_every_planted_fault_is_found_and_nothing_else(planted_days: tuple[DataFrame, Found]) -> None:
    journal, wanted = planted_days
    summary, findings = audit(journal.drop("day"), EMPTY)
    assert len(wanted) == 5 * len(FAULTS)
    assert named(findings) == wanted
    assert summary.broken == 5 * 5 and summary.plain < summary.lives
    assert sum(window.count for window in summary.windows) == 2 * 5  # a delivery and an ack of each unknown life


def test_day_by_day_the_same_is_found_once_though_events_come_twice(
    spark: SparkSession, planted_days: tuple[DataFrame, Found], tmp_path: Path
) -> None:
    journal, wanted = planted_days
    twice, state = journal.unionByName(journal), str(tmp_path)
    first = next(audit_days(spark, twice, state, EMPTY))  # and then it is killed
    assert first.lives > 0 and not (tmp_path / "done" / "2025-06-16").exists()
    assert list(audit_days(spark, twice, state, EMPTY)) == []  # the second day may go on
    (second,) = audit_days(spark, twice, state, EMPTY, last="2025-06-16")
    assert named(findings_of(spark, state)) == wanted
    assert sum(first.counts.values()) + sum(second.counts.values()) == len(wanted)
    assert list(audit_days(spark, twice, state, EMPTY, last="2025-06-16")) == []
    with pytest.raises(Conflict, match="2025-06-15 had"):
        next(audit_days(spark, journal, state, EMPTY))
    with pytest.raises(Invalid, match="has no days"):
        next(audit_days(spark, journal.drop("day"), state, EMPTY))


def days_of(spark: SparkSession, *told: tuple[int, str, str, int]) -> DataFrame:
    """Events with their day: number, kind, day and id; deliveries and acks are the first."""
    named = "number bigint, kind string, day string, first bigint"
    rest = ["'n' AS node", "'i' AS incarnation", "'q' AS queue", "1L AS generation", "1L AS count"]
    more = ["string(null) AS id", "int(kind <> 'put') AS version", "'' AS detail"]
    at = "double(unix_date(date(day))) * 86400 AS at"
    return spark.createDataFrame(list(told), named).selectExpr("*", *rest, *more, at).select(*COLUMNS, "day")


def test_a_day_that_comes_after_a_later_one_was_audited_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    there = (1, "put", "2030-01-02", 5), (2, "delivered", "2030-01-02", 5), (3, "put", "2030-01-03", 6)
    late = (4, "delivered", "2030-01-01", 9), (5, "delivered", "2030-01-01", 9)
    assert [each.day for each in audit_days(spark, days_of(spark, *there), str(tmp_path))] == ["2030-01-02"]
    with pytest.raises(Conflict, match="2030-01-01 had 0 rows when it was audited and has 2 now"):
        list(audit_days(spark, days_of(spark, *there, *late), str(tmp_path)))


def test_what_a_killed_audit_had_found_is_told_by_the_next_one_and_stays_in_its_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = (1, "put", "2030-01-02", 5), (2, "delivered", "2030-01-02", 5), (3, "delivered", "2030-01-02", 5)
    path, state, out = (str(tmp_path / name) for name in ("journal", "state", "out"))
    days_of(spark, *twice, (4, "put", "2030-01-03", 6)).write.partitionBy("day").parquet(path)
    list(audit_days(spark, read_journal(spark, path, days=True), state))  # and then it is killed
    monkeypatch.setattr(verbs, "spark_on", lambda *_, **__: contextlib.nullcontext(spark))
    command = ["audit", path, "--state", state, "--out", out]
    done = CliRunner().invoke(verbs.pipeline, command)
    assert done.exit_code == 1 and "two_holders" in done.output and "2030-01-02: 3 events" in done.output
    done = CliRunner().invoke(verbs.pipeline, command)
    assert done.exit_code == 0 and "no day is complete that was not audited yet" in done.output
    assert spark.read.parquet(out).count() == 1


@pytest.mark.long
def test_a_million_events_with_every_kind_of_fault_and_a_clean_million(spark: SparkSession) -> None:
    journal, planted = generated(spark, Recipe(1_000_000, seed=11, faults=dict.fromkeys(FAULTS, 50)))
    _, findings = audit(journal.persist(), EMPTY)
    assert named(findings) == named(planted)
    clean, _ = generated(spark, Recipe(1_000_000, seed=12))
    summary, findings = audit(clean.persist(), EMPTY)
    assert (named(findings), summary.counts, summary.windows) == (set(), {}, [])
    assert summary.events >= 900_000


def test_a_clean_journal_has_none_and_is_the_same_for_the_same_seed(spark: SparkSession) -> None:
    summary, findings = audit(generated(spark, Recipe(10_000, seed=3))[0].persist(), EMPTY)
    assert (findings.count(), summary.broken, summary.windows) == (0, 0, [])
    one, again, other = (table_of(chapters_of(Recipe(10_000, seed=seed))[1]) for seed in (3, 3, 4))
    assert one.equals(again) and not one.equals(other)


def test_an_incarnation_that_was_not_closed_makes_unknown_what_would_be_lost(spark: SparkSession) -> None:
    journal, planted = generated(spark, Recipe(10_000, seed=6, faults={"lost": 4, "stale_receipt": 2}))
    cut = journal.where("NOT (kind = 'closed' AND incarnation = '00000002g')").persist()
    _, findings = audit(cut, EMPTY)
    changed = {("unknown" if fault == "lost" else fault, *rest) for fault, *rest in named(planted)}
    assert named(findings) == changed


def test_a_file_of_a_node_is_read_as_columns_and_torn_lines_are_gaps(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines(path, event("put", 1.0, run="[5,2],[9,1]"), event("delivered", 2.0, 1), event("acked", 3.0, 1))
    whole = path.read_text()
    frame = read_journal(spark, str(path))
    assert tuple(frame.columns) == COLUMNS
    assert [(row["first"], row["count"]) for row in frame.where("kind = 'put'").collect()] == [(5, 2), (9, 1)]
    path.write_text(whole.replace('"kind":"acked"', '"kind":"ac'))  # cut within the line
    summary, found = audited(spark, str(path))
    assert found == dict.fromkeys(("5", "6", "9"), "unknown")
    assert [(window.first, window.count) for window in summary.windows] == [(3, 1)]


def test_timed_messages_are_named_by_text(spark: SparkSession, tmp_path: Path) -> None:
    ids = "ec5aa32049fa11f0b4ea590e9e8195fe", "ec5aa32049fa11f0b4ea590e9e8195ff"  # due at 1750000250
    early, moved = (f'"queue":"t","generation":1,"ids":["{id}"]' for id in ids)
    path = lines(
        tmp_path / "events.jsonl",
        f'"at":1750000000,"kind":"put",{early}',
        f'"at":1750000000,"kind":"put",{moved}',
        f'"at":1750000001,"kind":"moved",{moved},"detail":"1750000100000"',
        *(f'"at":1750000100,"kind":"delivered",{said},"version":1' for said in (early, moved)),
        *(f'"at":1750000101,"kind":"acked",{said},"version":1' for said in (early, moved)),
    )
    assert audited(spark, path)[1] == {ids[0]: "early"}


def test_what_waits_in_a_queue_is_lost_only_if_it_is_known_to_be_empty(spark: SparkSession, tmp_path: Path) -> None:
    purged = event("put", 1.0, run="[7,1]").replace('"queue":"q"', '"queue":"p"')
    again = event("put", 8_999.0, run="[8,1]", generation=2).replace('"queue":"q"', '"queue":"p"')
    path = lines(tmp_path / "events.jsonl", event("put", 1.0), event("put", 8_999.0, run="[6,1]"), purged, again)
    assert audited(spark, path, Options(stuck_s=100.0))[1] == {"5": "stuck"}
    assert audited(spark, path, Options(drained=frozenset(("q", "p"))))[1] == {"5": "lost", "6": "lost", "8": "lost"}


def test_what_is_no_journal_is_not_called_free_of_faults(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("hello\nworld\n")
    monkeypatch.setattr(verbs, "spark_on", lambda *_, **__: saying(spark))
    done = CliRunner().invoke(verbs.pipeline, ["audit", str(tmp_path / "notes.txt")])
    assert done.exit_code == 1 and "there is no event in" in done.output


@contextlib.contextmanager
def saying(spark: SparkSession) -> Iterator[SparkSession]:
    with errors_said():
        yield spark


@pytest.mark.parametrize(
    ("fault", "share", "says"),
    [("unknown", 1.0, "work queues: lower"), ("lost", 1.0, "work queues: lower"), ("late", 0.0, "timed queues: raise")],
)
def test_a_fault_that_no_queue_can_have_is_refused(fault: str, share: float, says: str) -> None:
    with pytest.raises(Invalid, match=f"{fault} needs {says} timed_share"):
        chapters_of(Recipe(2_000, timed_share=share, faults={fault: 1}))


def test_bad_input_is_said(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no journal at"):
        read_journal(spark, str(tmp_path / "nothing"))
    (tmp_path / "_capellini.json").touch()
    with pytest.raises(NotFound, match="nothing in the journal at"):  # archived, and nothing was there
        read_journal(spark, str(tmp_path))
    spark.range(3).write.parquet(str(tmp_path / "other"))
    with pytest.raises(Invalid, match="no column node"):
        read_journal(spark, str(tmp_path / "other"))
    with pytest.raises(Invalid, match="not a fault"):
        generated(spark, Recipe(10_000, faults={"haunted": 1}))
    assert Kind.PUT.value == "put"  # what the expressions of the audit are written with
