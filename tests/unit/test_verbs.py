"""The command itself: it starts without loading its verbs, and tells errors in one sentence."""

from __future__ import annotations

import contextlib
import importlib
import os
import pty
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from capellini import __version__
from capellini.cli.main import VERBS, capellini
from capellini.client.patient import PatientService
from capellini.model.errors import Invalid, Unknown
from capellini.model.service import Service


def test_the_list_of_verbs_and_the_version() -> None:
    text = CliRunner().invoke(capellini, ["--help"]).output
    assert all(f"  {verb} " in text for verb in VERBS)
    assert CliRunner().invoke(capellini, ["--version"]).output == f"capellini, version {__version__}\n"
    assert CliRunner().invoke(capellini, ["dance"]).exit_code == 2


def test_a_mistyped_verb_is_told_the_right_one() -> None:
    done = CliRunner().invoke(capellini, ["quee", "list"])
    assert (done.exit_code, "Did you mean 'queue'?" in done.output) == (2, True)
    assert "Did you mean" not in CliRunner().invoke(capellini, ["xyzzy"]).output


@pytest.mark.parametrize(
    ("command", "module", "missing", "package"),
    [
        (["get", "q"], "capellini.cli.get", "msgspec", "capellini, and all that it needs"),
        (["pipeline", "--help"], "capellini.cli.pipeline", "pyspark.sql", "capellini[spark]"),
        (["bench", "peers"], "capellini.bench.beside", "pika", "capellini[bench]"),
        (["bench", "pipeline"], "capellini.bench.pipeline", "pyspark", "capellini[spark]"),
    ],
)
def test_what_is_not_installed_is_named_with_what_brings_it(
    command: list[str], module: str, missing: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = without(missing, module, command, monkeypatch)
    assert (done.exit_code, f"needs {missing}, which is missing: install {package}\n" in done.output) == (1, True)


def test_a_module_of_ours_that_is_missing_is_no_matter_of_installing(monkeypatch: pytest.MonkeyPatch) -> None:
    done = without("capellini.client.gone", "capellini.cli.get", ["get", "q"], monkeypatch)
    assert isinstance(done.exception, ModuleNotFoundError) and "install" not in done.output


def without(missing: str, module: str, command: list[str], monkeypatch: pytest.MonkeyPatch) -> Result:
    """What the command does where `module` cannot be imported since `missing` is not there."""
    real = importlib.import_module

    def imported(name: str) -> Any:
        if name == module:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", imported)
    return CliRunner().invoke(capellini, command)


def test_looks_without_watch_are_refused() -> None:
    done = CliRunner().invoke(capellini, ["timed", "shards", "later", "--looks", "3", "--at", "rocks:nowhere"])
    assert (done.exit_code, "--looks goes with --watch" in done.output) == (2, True)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from capellini.cli.main import capellini; capellini(['--help'], standalone_mode=False); "
        "print([each for each in ('acsylla', 'rocksdict', 'numpy', 'uvloop', 'rich') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("verb", ["serve", "doctor", "schema", "drain", "health", "completion", "group", "dead"])
def test_each_verb_has_help(verb: str) -> None:
    done = CliRunner().invoke(capellini, [verb, "--help"])
    assert (done.exit_code, "Usage: capellini" in done.output) == (0, True)


def test_the_schema_is_printed_as_cql() -> None:
    text = CliRunner().invoke(capellini, ["schema", "print", "--keyspace", "mq", "--replication", "dc1:3"]).output
    assert "CREATE KEYSPACE" in text
    assert "'dc1': 3" in text
    assert "buckets" in text


@pytest.mark.parametrize(
    "wrong",
    [
        ("--replication", ""),
        ("--replication", "3&level=one"),
        ("--replication", "dc1:3,dc1:2"),
        ("--keyspace", "/mq/"),
        ("--keyspace", ""),
    ],
)
def test_a_schema_that_cassandra_would_refuse_is_not_printed(wrong: tuple[str, str]) -> None:
    done = CliRunner().invoke(capellini, ["schema", "print", *wrong])
    assert isinstance(done.exception, Invalid)
    assert done.output == ""


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


@pytest.mark.parametrize(
    "verb",
    ["queue list", "queue show jobs", "get jobs", "peek jobs", "put jobs x", "consume jobs", "dead list jobs",
     "debug buckets jobs", "debug extents feed", "group list feed", "group create feed g", "dead merge feed@g",
     "counter read hits", "schedule list"],
)  # fmt: skip
def test_a_folder_that_does_not_exist_is_said_and_not_made(tmp_path: Path, verb: str) -> None:
    done = CliRunner().invoke(capellini, [*verb.split(), "--at", f"rocks:{tmp_path / 'foldr'}"])
    assert (done.exit_code, "foldr does not exist: nothing was ever stored there" in done.stderr) == (2, True)
    assert not (tmp_path / "foldr").exists()
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(capellini, [*verb.split(), "--at", f"rocks:{tmp_path / 'empty'}"])
    assert (done.exit_code, "empty holds no store" in done.stderr) == (2, True)
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_folder_that_cannot_be_looked_at_is_said_in_a_sentence(tmp_path: Path) -> None:
    at = f"rocks:{tmp_path}/{'long' * 100}"
    for verb in (["queue", "list"], ["queue", "create", "jobs"]):
        done = CliRunner().invoke(capellini, [*verb, "--at", at])
        assert (done.exit_code, "File name too long" in done.stderr) == (2, True), verb
    done = CliRunner().invoke(capellini, ["doctor", at])
    assert (done.exit_code, "bad  folder:" in done.output) == (1, True)


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All verbs, and the verbs of verbs."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(context := click.Context(command)):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, *path, name)


def test_every_option_of_every_verb_is_explained() -> None:
    found = dict(commands(capellini))
    assert len(found) > 50
    silent = [
        (*path, option.opts[-1])
        for path, command in found.items()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []


def test_output_that_cannot_be_written_is_said_in_a_sentence_and_a_closed_one_is_none(tmp_path: Path) -> None:
    at = f"rocks:{tmp_path / 'data'}"
    run("queue", "create", "jobs", "--at", at)
    command = f"{sys.executable} -m capellini.cli.main queue list --at {at}"
    full = subprocess.run(f"{command} >/dev/full", shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert (full.returncode, full.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in full.stderr
    closed = subprocess.run(f"{command} >&-", shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_a_new_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    at = ["--at", f"rocks:{tmp_path / 'data'}"]
    assert CliRunner().invoke(capellini, ["queue", "create", "jobs", *at]).exit_code == 0
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_a_negative_number_is_a_value_and_a_mistyped_option_is_none(tmp_path: Path) -> None:
    at = ["--at", f"rocks:{tmp_path / 'data'}"]

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(capellini, ["counter", *words, *at])
        return done.exit_code, done.output

    assert run("add", "hits", "-5", "2", "-3")[0] == 0
    assert run("read", "hits") == (0, "-6\n")
    assert CliRunner().invoke(capellini, ["counter", "add", *at, "names", "--kind", "set", "--", "-x"]).exit_code == 0
    assert run("add", "heat", "--kind=min", "-1.5", "-0.5")[0] == 0
    assert run("read", "heat") == (0, "-1.5\n")
    code, says = run("add", "names", "--kind", "set", "--jsno")
    assert (code, "No such option" in says) == (2, True)
    assert "--jsno" not in run("read", "names")[1]


def completed(*words: str) -> list[str]:
    """What a shell is offered for the last word."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("capellini"))],
        env={
            **os.environ,
            "_CAPELLINI_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("capellini", *words)),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_shells_complete_names_of_queues_and_of_options(tmp_path: Path) -> None:
    at = ["--at", f"rocks:{tmp_path / 'data'}"]
    for name in ("jobs", "jobs-dead", "mail"):
        assert CliRunner().invoke(capellini, ["queue", "create", name, *at]).exit_code == 0
    assert completed("queue", "show", *at, "jo") == ["jobs", "jobs-dead"]
    assert completed("get", *at, "m") == ["mail"]
    assert completed("queue", "set", *at, "jobs", "visib") == ["visibility_s="]
    assert completed("queue", "create", "x", "--kind", "timed", "--set", "sha") == ["shards="]
    assert completed("queue", "create", "x", "--kind", "work", "--set", "sha") == []
    assert completed("queue", "create", "x", "--kind", "l") == ["log"]


def test_shells_complete_groups_by_themselves_and_behind_their_queue(tmp_path: Path) -> None:
    at = ["--at", f"rocks:{tmp_path / 'data'}"]
    assert CliRunner().invoke(capellini, ["queue", "create", "feed", "--kind", "log", *at]).exit_code == 0
    for name in ("billing", "search"):
        assert CliRunner().invoke(capellini, ["group", "create", "feed", name, *at]).exit_code == 0
    assert completed("group", "show", *at, "feed", "b") == ["billing"]
    assert completed("get", *at, "fe") == ["feed"]
    assert completed("get", *at, "feed@") == ["feed@billing", "feed@search"]
    assert completed("dead", "merge", *at, "feed@s") == ["feed@search"]
    assert completed("get", *at, "nowhere@s") == []
    assert completed("group", "set", *at, "feed", "billing", "skip") == ["skip_older_s="]


def test_bash_takes_a_queue_with_its_group_for_one_word() -> None:
    script = CliRunner().invoke(capellini, ["completion", "bash"]).output
    done = subprocess.run(
        ["bash", "-c", f'COMP_WORDBREAKS="a@:"\n{script}\necho "left $COMP_WORDBREAKS"'],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "left a:", done.stderr


@pytest.mark.parametrize("at", ["http://127.0.0.1:1", "nonsense", "cassandra://127.0.0.1:1/k", "rocks:/nowhere/at/all"])
def test_completion_is_silent_where_nobody_answers(at: str) -> None:
    assert completed("queue", "show", "--at", at, "jo") == []


def on_terminal(*arguments: str) -> tuple[int, str]:
    """Exit code and what a person sees on stderr."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.Popen(
            [sys.executable, "-m", "capellini.cli.main", *arguments], stdout=subprocess.DEVNULL, stderr=theirs
        )
        os.close(theirs)
        seen = bytearray()
        with contextlib.suppress(OSError):  # which is how a terminal says that its other end is closed
            while part := os.read(ours, 4096):
                seen += part
        return done.wait(timeout=60), seen.decode()
    finally:
        os.close(ours)


def test_long_work_shows_how_far_it_is_to_people_and_not_to_programs(tmp_path: Path) -> None:
    at = f"rocks:{tmp_path / 'data'}"
    assert CliRunner().invoke(capellini, ["counter", "add", "hits", "--at", at]).exit_code == 0
    code, seen = on_terminal("backup", at, str(tmp_path / "copy"))
    assert (code, "copying rows to" in seen) == (0, True)
    code, seen = on_terminal("counter", "gc", "hits", "--at", at)
    assert (code, "merging shards" in seen, "1/1" in seen) == (0, True, True)
    piped = run("backup", at, str(tmp_path / "other"))
    assert (piped.returncode, piped.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["queue", "create", "later", "kind=timed"], "--kind"),
        (["queue", "create", "later", "--set", "name=other"], "no option of a queue"),
        (["group", "create", "feed", "readers", "--set", "start=latest"], "--start"),
    ],
)
def test_what_is_no_option_is_said_before_anybody_is_asked(command: list[str], says: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(capellini, [*command, "--at", f"rocks:{tmp_path / 'data'}"])
    assert done.exit_code == 2
    assert says in done.output


LOST = "Error: the answer was lost"


@pytest.mark.parametrize(
    ("command", "operation", "says"),
    [
        (["put", "jobs", "x"], "put_block", [LOST, "Look with `capellini peek QUEUE` before you repeat it; puts with"]),
        (["counter", "add", "hits"], "counter_update", [LOST, "Look with `capellini counter read NAME` before you"]),
        (["queue", "delete", "jobs", "--yes"], "delete", [LOST, "Look with `capellini queue show NAME` before you"]),
        (["queue", "purge", "jobs", "--yes"], "purge", [LOST, "Look with `capellini queue show NAME` before you"]),
        (["schedule", "remove", "daily"], "unschedule", [LOST, "Look with `capellini schedule list` before you"]),
        (["dead", "redrive", "jobs"], "redrive", [LOST, "See what is left with `capellini dead list QUEUE`, and"]),
        (["dead", "merge", "feed@readers"], "merge_dead", [LOST, "See what is left with `capellini dead list QUEUE`"]),
        (["queue", "set", "jobs", "visibility_s=5"], "change", [LOST]),  # the same again is fine
        (["group", "delete", "feed", "readers", "--yes"], "delete_group", [LOST]),
    ],
)
def test_what_to_do_when_an_answer_was_lost_fits_the_verb(
    command: list[str], operation: str, says: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ["--at", f"rocks:{tmp_path / 'data'}"]
    for made in (["queue", "create", "jobs"], ["queue", "create", "feed", "--kind", "log"]):
        assert CliRunner().invoke(capellini, [*made, *at]).exit_code == 0
    assert CliRunner().invoke(capellini, ["group", "create", "feed", "readers", *at]).exit_code == 0
    real = PatientService.call

    async def call(self: PatientService, asked: str, do: Callable[[Service], Awaitable[Any]]) -> Any:
        if asked == operation:
            raise Unknown("the answer was lost")
        return await real(self, asked, do)

    monkeypatch.setattr(PatientService, "call", call)
    done = CliRunner().invoke(capellini, [*command, *at])
    assert done.exit_code == 1
    said = done.stderr.splitlines()
    assert [line[: len(start)] for line, start in zip(said, says, strict=True)] == says
