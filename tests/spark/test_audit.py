"""The audit finds every fault that was planted in a journal, and none in a clean one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capellini.model.errors import Invalid, NotFound
from capellini.pipeline.audit.job import Audit, Options, audit
from capellini.pipeline.journal.chapters import FAULTS
from capellini.pipeline.journal.columns import COLUMNS, read_journal
from capellini.pipeline.journal.generator import Recipe, generated
from capellini.queues.events import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
EMPTY = Options(drained=None)
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


def test_every_planted_fault_is_found_and_nothing_else(spark: SparkSession) -> None:
    journal, planted = generated(spark, Recipe(40_000, seed=7, faults=dict.fromkeys(FAULTS, 5)))
    summary, findings = audit(journal.persist(), EMPTY)
    wanted = named(planted)
    assert len(wanted) == 5 * len(FAULTS)
    assert named(findings) == wanted
    assert summary.broken == 5 * 5 and summary.plain < summary.lives
    assert sum(window.count for window in summary.windows) == 2 * 5  # a delivery and an ack of each unknown life


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
    recipe = Recipe(30_000, seed=3)
    journal, planted = generated(spark, recipe)
    again, _ = generated(spark, recipe)
    other, _ = generated(spark, Recipe(30_000, seed=4))
    summary, findings = audit(journal.persist(), EMPTY)
    assert (planted.count(), findings.count(), summary.broken, summary.windows) == (0, 0, 0, [])
    assert journal.exceptAll(again).count() == 0 and again.exceptAll(journal).count() == 0
    assert journal.exceptAll(other).count() > 0


def test_events_that_were_read_twice_count_once(spark: SparkSession) -> None:
    journal, planted = generated(spark, Recipe(10_000, seed=5, faults={"two_holders": 3, "lost": 2}))
    _, findings = audit(journal.unionByName(journal).persist(), EMPTY)
    assert named(findings) == named(planted)


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
    summary, found = audited(spark, str(path))
    assert (found, summary.lives, summary.plain, summary.events) == ({"6": "lost", "9": "lost"}, 3, 1, 5)
    path.write_text(whole.replace('"kind":"acked"', '"kind":"ac'))  # cut within the line
    summary, found = audited(spark, str(path))
    assert found == dict.fromkeys(("5", "6", "9"), "unknown")
    assert [(window.first, window.count) for window in summary.windows] == [(3, 1)]


def test_timed_messages_are_named_by_text(spark: SparkSession, tmp_path: Path) -> None:
    id = "ec5aa32049fa11f0b4ea590e9e8195fe"  # due at 1750000250
    said = f'"queue":"t","generation":1,"ids":["{id}"]'
    early = lines(
        tmp_path / "early.jsonl",
        f'"at":1750000000,"kind":"put",{said}',
        f'"at":1750000100,"kind":"delivered",{said},"version":1',
        f'"at":1750000101,"kind":"acked",{said},"version":1',
    )
    assert audited(spark, early)[1] == {id: "early"}
    moved = lines(
        tmp_path / "moved.jsonl",
        f'"at":1750000000,"kind":"put",{said}',
        f'"at":1750000001,"kind":"moved",{said},"detail":"1750000100000"',
        f'"at":1750000100,"kind":"delivered",{said},"version":1',
        f'"at":1750000101,"kind":"acked",{said},"version":1',
    )
    assert audited(spark, moved)[1] == {}


def test_what_waits_in_a_queue_is_lost_only_if_it_is_known_to_be_empty(spark: SparkSession, tmp_path: Path) -> None:
    path = lines(tmp_path / "events.jsonl", event("put", 1.0), event("put", 8_999.0, run="[6,1]"))
    assert audited(spark, path, Options(drained=frozenset(("other",))))[1] == {}
    assert audited(spark, path, Options(stuck_s=100.0))[1] == {"5": "stuck"}
    assert audited(spark, path, Options(drained=frozenset(("q",))))[1] == {"5": "lost", "6": "lost"}


def test_a_purged_generation_is_not_lost(spark: SparkSession, tmp_path: Path) -> None:
    path = lines(tmp_path / "events.jsonl", event("put", 1.0), event("put", 2.0, generation=2, run="[7,1]"))
    assert audited(spark, path)[1] == {"7": "lost"}


def test_bad_input_is_said(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no journal at"):
        read_journal(spark, str(tmp_path / "nothing"))
    spark.range(3).write.parquet(str(tmp_path / "other"))
    with pytest.raises(Invalid, match="no column node"):
        read_journal(spark, str(tmp_path / "other"))
    with pytest.raises(Invalid, match="not a fault"):
        generated(spark, Recipe(10_000, faults={"haunted": 1}))
    assert Kind.PUT.value == "put"  # what the expressions of the audit are written with
