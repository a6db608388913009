"""`capellini simulate`: the object it prints, and its exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from capellini.cli.simulate import simulate
from capellini.model.errors import NotFound
from capellini.proof import suites
from capellini.proof.history import Violation
from capellini.proof.suites import Result

KEYS = ["simulate", "seeds", "violations", "virtual_s", "wall_s", "messages", "faults", "guards", "replay"]


def test_a_clean_run_prints_one_object_and_exits_with_0() -> None:
    done = CliRunner().invoke(simulate, ["store", "--seeds", "2", "--from", "5", "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert list(printed) == KEYS
    assert (printed["simulate"], printed["seeds"], printed["violations"]) == ("store", 2, 0)
    assert printed["replay"] is None
    assert printed["virtual_s"] > 0 and printed["messages"] > 0 and printed["faults"]


@pytest.mark.parametrize(("kind", "seed"), [("work", 7), ("timed", 7), ("log", 245), ("counters", 10)])
def test_a_run_is_the_same_however_sets_are_ordered(kind: str, seed: int) -> None:
    command = [sys.executable, "-c", f"from capellini.proof.suites import one; print(one({kind!r}, {seed}, True))"]
    run = [subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONHASHSEED": salt}) for salt in "12"]
    assert run[0].returncode == 0, run[0].stderr
    assert run[0].stdout == run[1].stdout


def test_a_violation_exits_with_1_and_says_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_at_4(seed: int) -> Result:
        violations = [Violation(1, "m", "it is lost")] if seed == 4 else []
        return Result(seed, violations, 1.0, 1, {}, {"guard": 1}, ["what happened"])

    monkeypatch.setattr(suites, "suite", lambda name: broken_at_4)
    done = CliRunner().invoke(simulate, ["work", "--seeds", "5", "--json"])
    assert done.exit_code == 1
    printed = json.loads(done.stdout)
    assert (printed["violations"], printed["guards"]) == (1, {"guard": 5})
    assert printed["replay"] == "capellini simulate work --seed 4"
    assert "seed 4: promise 1: m: it is lost" in done.stderr
    again = CliRunner().invoke(simulate, ["work", "--seed", "4"])
    assert again.exit_code == 1
    assert "what happened" in again.stdout and "capellini simulate work --seed 4" in again.stdout


def test_a_run_that_fails_itself_is_told_by_its_seed_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_at_1(seed: int) -> Result:
        if seed == 1:
            raise NotFound("there is no queue a")
        return Result(seed, [], 1.0, 1, {}, {}, [])

    monkeypatch.setattr(suites, "suite", lambda name: failing_at_1)
    done = CliRunner().invoke(simulate, ["work", "--seeds", "3", "--jobs", "1", "--json"])
    printed = json.loads(done.stdout)
    assert (done.exit_code, printed["seeds"], printed["violations"]) == (1, 3, 1)
    assert printed["replay"] == "capellini simulate work --seed 1"
    again = CliRunner().invoke(simulate, ["work", "--seed", "1"])
    assert "there is no queue a" in again.stdout and "Traceback" in again.stdout


def test_seeds_in_several_processes_give_the_same() -> None:
    def printed(*jobs: str) -> dict[str, object]:
        done = CliRunner().invoke(simulate, ["store", "--seeds", "2", "--json", *jobs])
        assert done.exit_code == 0, done.output
        return {key: value for key, value in json.loads(done.stdout).items() if key != "wall_s"}

    assert printed("--jobs", "2") == printed()


def test_ctrl_c_prints_what_the_seeds_so_far_showed(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended_at_4(seed: int) -> Result:
        if seed == 4:
            signal.raise_signal(signal.SIGINT)
        return Result(seed, [], 1.0, 1, {}, {}, [])

    monkeypatch.setattr(suites, "suite", lambda name: ended_at_4)
    done = CliRunner().invoke(simulate, ["work", "--seeds", "5", "--jobs", "1", "--json"])
    assert done.exit_code == 130
    assert json.loads(done.stdout)["seeds"] == 4


def test_ctrl_c_leaves_no_process_behind() -> None:
    command = [
        sys.executable,
        "-m",
        "capellini.cli.main",
        "simulate",
        "store",
        "--seeds",
        "100000",
        "--jobs",
        "2",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        deadline_s = time.monotonic() + 30
        while len(children.read_text().split()) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.02)
        os.killpg(running.pid, signal.SIGINT)
        try:
            out, err = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 130, err.decode()
    assert json.loads(out)["violations"] == 0
    assert "Traceback" not in err.decode()
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)
