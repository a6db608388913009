"""What a session is started with, and what is said where it cannot be: one line, before Spark is."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from capellini.model.errors import CannotOpen
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
    assert "spark.driver.host" not in settings_for(Plan("spark://elsewhere:7077"))


@pytest.mark.parametrize("master", ["sc://127.0.0.1:1", "spark://127.0.0.1:1"])
def test_a_master_that_is_not_there_is_said_in_one_line(master: str) -> None:
    with pytest.raises(CannotOpen, match=f"no Spark answers at {master}") as error:
        session(Plan(master))
    assert "\n" not in error.value.says


def test_the_package_travels_whole(tmp_path: Path) -> None:
    with zipfile.ZipFile(package_zip(tmp_path)) as shipped:
        names = set(shipped.namelist())
    assert {"capellini/__init__.py", "capellini/pipeline/source/data.py", "capellini/py.typed"} <= names
