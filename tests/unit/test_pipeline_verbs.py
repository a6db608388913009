"""The verbs of the pipeline, as far as they need no Spark: what they refuse, and what they say of what was found."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from capellini.cli import pipeline as verbs
from capellini.pipeline.audit import days
from capellini.pipeline.audit.job import Audit
from capellini.pipeline.audit.verdict import Window
from capellini.pipeline.journal import columns

GAP = Window("n", "i", 4, 3, 1.0, 2.0)
OPEN = Window("n", "i", 9, 0, 5.0, float("inf"))


class Frame:
    """A journal of two days, of which a later audit finds nothing."""

    columns = ("at", "day")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self

    def collect(self) -> list[Any]:
        return []


class Journal(Frame):
    def groupBy(self, column: str) -> Any:
        counted = Frame()
        counted.collect = lambda: [("2030-01-01", 5), ("2030-01-02", 1)]  # type: ignore[method-assign]
        return counted


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An audit day by day of a journal with a gap."""
    monkeypatch.setattr(verbs, "spark_on", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(columns, "read_journal", lambda *_, **__: Journal())
    monkeypatch.setattr(days, "findings_of", lambda *_: Frame())
    monkeypatch.setattr(days, "_one", lambda *_: (Audit(5, 2, 1, {}, [GAP, OPEN], 0.0), {}))
    return ["audit", str(tmp_path / "journal"), "--state", str(tmp_path / "state")]


def test_events_that_are_missing_are_told_day_by_day_too(audited: list[str]) -> None:
    said = CliRunner().invoke(verbs.pipeline, audited).output
    assert said.startswith("2030-01-01: 5 events, 2 lives, 1 of them plain\n3 events are known to be missing")


def test_events_that_are_missing_are_in_the_json_of_each_day(audited: list[str]) -> None:
    (day,) = json.loads(CliRunner().invoke(verbs.pipeline, [*audited, "--json"]).output)["days"]
    assert (day["day"], day["missing"]) == ("2030-01-01", 3)


def test_a_day_that_an_earlier_version_audited_is_known(audited: list[str], tmp_path: Path) -> None:
    (tmp_path / "state" / "done").mkdir(parents=True)
    told = {"day": "2030-01-01", "rows": 5, "events": 5, "lives": 2, "plain": 2, "counts": {}, "broken": 0}
    (tmp_path / "state" / "done" / "2030-01-01").write_text(json.dumps(told))
    said = CliRunner().invoke(verbs.pipeline, audited).output
    assert said == "2030-01-01: 5 events, 2 lives, 2 of them plain\nnothing was found\n"


def test_where_no_day_is_complete_nothing_is_said_of_what_was_found(audited: list[str]) -> None:
    assert "nothing was found" in CliRunner().invoke(verbs.pipeline, audited).output
    again = CliRunner().invoke(verbs.pipeline, audited)
    assert (again.exit_code, again.output) == (0, "no day is complete that was not audited yet\n")
