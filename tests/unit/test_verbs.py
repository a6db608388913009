"""The command itself: it starts without loading its verbs, and tells errors in one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from capellini import __version__
from capellini.cli.main import VERBS, capellini


def test_the_list_of_verbs_and_the_version() -> None:
    text = CliRunner().invoke(capellini, ["--help"]).output
    assert all(f"  {verb} " in text for verb in VERBS)
    assert CliRunner().invoke(capellini, ["--version"]).output == f"capellini, version {__version__}\n"
    assert CliRunner().invoke(capellini, ["dance"]).exit_code == 2


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from capellini.cli.main import capellini; capellini(['--help'], standalone_mode=False); "
        "print([each for each in ('acsylla', 'rocksdict', 'numpy', 'uvloop', 'rich') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("verb", ["serve", "doctor", "schema", "drain", "health", "completion"])
def test_each_verb_has_help(verb: str) -> None:
    done = CliRunner().invoke(capellini, [verb, "--help"])
    assert (done.exit_code, "Usage: capellini" in done.output) == (0, True)


def test_the_schema_is_printed_as_cql() -> None:
    text = CliRunner().invoke(capellini, ["schema", "print", "--keyspace", "mq", "--replication", "dc1:3"]).output
    assert "CREATE KEYSPACE" in text
    assert "'dc1': 3" in text
    assert "buckets" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    done = CliRunner().invoke(capellini, ["completion", shell])
    assert (done.exit_code, "_CAPELLINI_COMPLETE" in done.output) == (0, True)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "capellini.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_wrong_address_is_exit_code_2_and_a_node_that_is_away_is_1() -> None:
    wrong = run("health", "--at", "nonsense")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    away = run("drain", "--at", "http://127.0.0.1:1")
    assert (away.returncode, away.stderr.count("\n")) == (1, 1)
    assert "no connection to http://127.0.0.1:1" in away.stderr
