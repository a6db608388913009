"""The verbs of the pipeline, as far as they need no Spark: what they refuse, and what they say of what was found."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
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


def refused(*command: str) -> str:
    done = CliRunner().invoke(verbs.pipeline, command)
    assert done.exit_code == 2, done.output
    return done.output


@pytest.mark.parametrize(
    ("command", "ignored"),
    [
        (["load", "q", "--to", "f"], ["--body=b", "--checkpoint=c", "--per-s=5"]),
        (["archive", "q", "f", "--snapshot"], ["--missing=fail", "--missing=oldest", "--max-rows=5", "--checkpoint=c"]),
        (["dead-letters", "q", "--redrive"], ["--by=shape", "--top=20"]),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    command: list[str], ignored: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(*_: object, **__: object) -> None:
        raise click.ClickException("as far as Spark")

    monkeypatch.setattr(verbs, "spark_on", reached)
    for option in ignored:
        assert f"{option.partition('=')[0]} does nothing with" in refused(*command, option)
    assert "as far as Spark" in CliRunner().invoke(verbs.pipeline, command).output


def test_what_is_written_as_it_is_now_does_not_go_on() -> None:
    assert "no --go-on" in refused("load", "q", "--to", "f", "--go-on")


JAVA = """#!/bin/sh
case "$*" in
*-version*) echo 'openjdk version "17.0.1"' >&2 ;;
*) echo "a page of what Java says" >&2; exit 1 ;;
esac
"""


def test_what_java_says_of_a_start_that_failed_is_kept(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(JAVA)
    java.chmod(0o755)
    (tmp_path / "logs").mkdir()
    command = [sys.executable, "-m", "capellini.cli.main", "pipeline", "report", "j", str(tmp_path / "page.html")]
    environment = {**os.environ, "JAVA_HOME": str(tmp_path), "TMPDIR": str(tmp_path / "logs")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    named, error = done.stderr.splitlines()
    assert done.returncode == 2 and error.startswith("Error: Spark could not be started on local[*]: ")
    (log,) = (tmp_path / "logs").glob("capellini-spark-*.log")
    assert named == f"what Spark says of it is in {log}" and "a page of what Java says" in log.read_text()


def test_of_a_start_in_which_spark_had_no_part_no_log_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # where there is none
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said = refused("report", "j", str(tmp_path / "page.html"))
    assert "where there is none" in said and "what Spark says" not in said
    assert list(tmp_path.iterdir()) == []
