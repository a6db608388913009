"""What a session is started with, and what is said where it cannot be: one line, before Spark is."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from tests.spark.nodes import serving

from capellini import connect
from capellini.cli import pipeline as verbs
from capellini.cli import sparking
from capellini.cli.pipeline import pipeline
from capellini.model.errors import CannotOpen, Unavailable
from capellini.pipeline import session as session_module
from capellini.pipeline.jobs import archive as job
from capellini.pipeline.jobs.running import Summary, plainly
from capellini.pipeline.session import DELTA, Plan, check_java, fitted_memory_mb, package_zip, session, settings_for

pytestmark = pytest.mark.spark


def java_that_says(folder: Path, version: str) -> None:
    (folder / "bin").mkdir()
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "says"), [("", "where there is none"), ("1.8.0_392", "is Java 8"), ("11.0.2", "is Java 11")]
)
def test_a_java_that_is_missing_or_too_old_is_said_in_one_line(
    version: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if version:
        java_that_says(tmp_path, version)
    with pytest.raises(CannotOpen, match=says) as error:
        check_java()
    assert "Java 17 or newer" in error.value.says and "\n" not in error.value.says
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(CannotOpen, match="no java on the PATH"):
        check_java()


@pytest.mark.parametrize(("mode", "within_s", "says"), [(0o644, 20.0, "Permission denied"), (0o755, 0.05, "no answer")])
def test_a_java_that_cannot_be_run_is_said_in_one_line(
    mode: int, within_s: float, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\nexec sleep 60\n")
    java.chmod(mode)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(session_module, "JAVA_WITHIN_S", within_s)
    with pytest.raises(CannotOpen, match=f"cannot be run .{says}.*Java 17 or newer"):
        check_java()


def test_a_java_that_is_new_enough_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that_says(tmp_path, "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check_java()


def test_settings_fit_the_machine_and_delta_comes_by_its_coordinate() -> None:
    plain = settings_for(Plan("local[2]"))
    assert plain["spark.driver.memory"] == f"{fitted_memory_mb()}m" and plain["spark.sql.shuffle.partitions"] == "4"
    assert "spark.jars.packages" not in plain
    with_delta = settings_for(Plan("local[2]", delta=True, settings={"spark.driver.memory": "900m"}))
    assert with_delta["spark.jars.packages"] == DELTA and with_delta["spark.driver.memory"] == "900m"
    elsewhere = settings_for(Plan("spark://elsewhere:7077"))
    assert "spark.driver.host" not in elsewhere
    # Only here is it known that Java and Python are on one machine with such sockets.
    sockets = "spark.python.unix.domain.socket.enabled"
    assert plain[sockets] == "true" and sockets not in elsewhere


@pytest.mark.parametrize("master", ["sc://127.0.0.1:1", "spark://127.0.0.1:1"])
def test_a_master_that_is_not_there_is_said_in_one_line(master: str) -> None:
    with pytest.raises(CannotOpen, match=f"no Spark answers at {master}") as error:
        session(Plan(master))
    assert "\n" not in error.value.says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("An error occurred while calling o97.parquet.\n: org.x.SparkException: Job aborted.\n\tat a.b(C.scala:1)\n"
         "Caused by: java.io.IOException: No space left on device\n\tat java.base/x(Y.java)", "the disk is full"),
        ("[FOREACH] Traceback (most recent call last):\n  File x\npy4j.protocol.Py4JJavaError: An error occurred\n"
         "Caused by: java.io.IOException: File too large\n\tat x(Y.java)", "java.io.IOException: File too large"),
        ("Traceback (most recent call last):\n  File x\nValueError: wrong\n\tat a.b(C.scala:1)", "ValueError: wrong"),
        ("[TABLE_NOT_FOUND] none\nmore", "[TABLE_NOT_FOUND] none"),
    ],
)  # fmt: skip
def test_of_a_page_of_spark_the_line_is_said_that_matters(text: str, says: str) -> None:
    with pytest.raises(Unavailable) as error, plainly():
        raise PySparkException(text)
    assert error.value.says.startswith(says) and "\n" not in error.value.says


@pytest.mark.long
def test_a_job_that_cannot_write_says_it_in_two_lines_and_goes_on_later(tmp_path: Path) -> None:
    """Files may only become so large, as on a disk that is full."""
    with serving(tmp_path / "store") as at, connect(at) as client:
        client.create_queue("large", "log")
        client.put_many("large", [os.urandom(1_000) for _ in range(2_000)])
        command = [sys.executable, "-m", "capellini.cli.main", "pipeline", "archive", "large", str(tmp_path / "kept")]
        command += ["--checkpoint", str(tmp_path / "state"), "--at", at, "--master", "local[1]", "--memory-mb", "768"]
        limit = (resource.RLIMIT_FSIZE, (500_000, 500_000))
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, preexec_fn=lambda: resource.setrlimit(*limit)
        )
        said = done.stderr.splitlines()
        assert done.returncode == 1 and len(said) == 2 and "File too large" in said[1], done.stderr
        log = Path(said[0].split()[-1])
        assert "File too large" in log.read_text()
        log.unlink()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout.startswith("archived 2,000 messages") and not done.stderr


def test_the_package_travels_whole(tmp_path: Path) -> None:
    with zipfile.ZipFile(package_zip(tmp_path)) as shipped:
        names = set(shipped.namelist())
    assert {"capellini/__init__.py", "capellini/pipeline/source/data.py", "capellini/py.typed"} <= names


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["archive", "q", "somewhere", "--checkpoint", "c", "--keep-days", "-1"], "x>=0"),
        (["audit", "somewhere", "--state", "s", "--last", "tomorrow"], "not written as 2030-01-31 is"),
        (["rollup", "somewhere", "--hour", "2030-1-31T8"], "not written as 2030-01-31T08 is"),
        (["audit", "somewhere", "--stuck-s", "nan"], "'nan' is no number of seconds"),
        (["audit", "somewhere", "--skew-s", "-1"], "0<=x"),
        (["audit", "somewhere", "--late-s", "inf"], "0<=x"),
        (["report", "somewhere", "page.html", "--memory-mb", "0"], "x>=1"),
        (["dead-letters", "q", "--top", "0"], "x>=1"),
        (["report", "somewhere", "nowhere/at/all/page.html"], "there is no folder nowhere/at/all for the page"),
    ],
)
def test_days_hours_and_numbers_that_are_none_are_refused(command: list[str], says: str) -> None:
    done = CliRunner().invoke(pipeline, command)
    assert done.exit_code == 2 and says in done.output


@pytest.mark.parametrize(("how", "exit_code", "compacted"), [("--once", 130, []), ("--go-on", 0, ["there"])])
def test_an_archive_that_was_interrupted_says_so_and_does_nothing_else(
    how: str, exit_code: int, compacted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(verbs, "spark_on", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(job, "archive", lambda *_: Summary(5, 1, 1.0, interrupted=True))
    monkeypatch.setattr(job, "compact", lambda _, path: done.append(Path(path).name))
    command = ["archive", "q", str(tmp_path / "there"), "--checkpoint", str(tmp_path / "c"), "--compact", how]
    found = CliRunner().invoke(pipeline, command)
    assert (found.exit_code, done) == (exit_code, compacted), found.output
    assert "archived 5 messages" in found.output
    assert ("run again with the same --checkpoint" in found.output) == (exit_code == 130)


def test_the_session_leaves_ctrl_c_to_the_program_and_pages_of_traceback_to_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(plan: Plan) -> Any:
        signal.signal(signal.SIGINT, lambda *_: None)  # as Spark's own context does
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr(session_module, "session", started)
    before = signal.getsignal(signal.SIGINT)
    with sparking.spark_on("local[1]", None, ()):
        assert signal.getsignal(signal.SIGINT) is before

    def ends() -> None:
        logging.getLogger().error("a page of traceback")
        logging.getLogger("capellini.client").warning("a word of ours")
        raise KeyboardInterrupt

    with pytest.raises(click.exceptions.Exit) as ended, sparking.spark_on("local[1]", None, ()):
        ends()
    assert ended.value.exit_code == 130 and capsys.readouterr().err == "a word of ours\ninterrupted\n"
