"""The command line, as people type it, against a real node and on a folder; what starts and ends processes in processes
of its own."""

from __future__ import annotations

import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from tests.acceptance.client_processes import CAPELLINI, DEADLINE_S, free_port, poll, running_node
from tests.acceptance.commands import lines, process, refused, run, said

pytestmark = pytest.mark.slow


def test_quick_start(node_address: str, queue: str) -> None:
    at = node_address
    assert queue in said(at, "queue", "create", queue, of=process)
    assert said(at, "put", queue, "hello", of=process).strip().isdigit()
    got = process(at, "get", queue)
    assert got.stdout == b"hello\n"
    receipt = got.stderr.decode().split("receipt ")[1].split()[0]
    assert said(at, "ack", queue, receipt, of=process) == "acked 1\n"
    again = refused(at, "ack", queue, receipt, of=process)
    assert "stale" in again or "gone" in again
    assert process(at, "get", queue).stdout == b""


def test_the_commands_of_the_readme_work_as_printed(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    section = page.partition("## Quick start")[2].partition("\n## ")[0]
    commands = [shlex.split(line, comments=True) for line in section.splitlines() if line.startswith("    capellini ")]
    assert {"queue", "put", "get"} <= {words[1] for words in commands}
    with running_node(tmp_path / "data") as node:
        for _, *words in commands:
            if words[0] == "consume":  # it would go on for ever, and CMD stands for a command
                words = [*("cat" if word == "CMD" else word for word in words), "--idle", "0.5"]
            out = said(node.address, *words, of=process)
            if words[0] == "get":
                assert out == "hello\n"


def test_a_node_that_is_stopped_says_so_last_and_nothing_of_what_it_is_made_of(tmp_path: Path) -> None:
    with running_node(tmp_path / "data") as node:
        said(node.address, "queue", "create", "jobs")
        said(node.address, "put", "jobs", "hello")
        assert node.stop() == 0
    told = (tmp_path / "data.log").read_text().splitlines()
    assert told[-1].endswith("capellini.node: stopped") and not [line for line in told if "leaked" in line], told


def test_quick_start_on_a_folder_alone(tmp_path: Path) -> None:
    at = f"rocks:{tmp_path / 'data'}"
    said(at, "queue", "create", "jobs", of=process)
    said(at, "put", "jobs", "hello", of=process)
    assert said(at, "get", "jobs", "--ack", of=process) == "hello\n"
    assert said(at, "get", "jobs", of=process) == ""


@pytest.mark.parametrize("body", [(), ("-",)])
def test_lines_that_are_piped_in_are_messages(node_address: str, queue: str, body: tuple[str, ...]) -> None:
    said(node_address, "queue", "create", queue)
    assert said(node_address, "put", queue, *body, "--attribute", "a=b", stdin=b"one\ntwo\r\nthree") == "put 3\n"
    found = lines(node_address, "get", queue, "-n", "10", "--ack")
    assert sorted(each["body"] for each in found) == ["one", "three", "two"]
    assert all(each["attributes"] == {"a": "b"} and each["deliveries"] == 1 for each in found)


@pytest.mark.parametrize("kind", ["work", "log"])
def test_a_put_that_is_interrupted_says_how_much_was_put(node_address: str, queue: str, kind: str) -> None:
    said(node_address, "queue", "create", queue, "--kind", kind)
    process = subprocess.Popen(
        [CAPELLINI, "put", queue, "--at", node_address], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        poll(lambda: len(lines(node_address, "peek", queue)) == 2, "both are there")
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE_S)
        assert process.returncode == 1
        assert b"of the lines before line 3, 2 were put" in process.stderr.read()
    finally:
        process.kill()


def test_any_bytes_go_by_file(node_address: str, queue: str, tmp_path: Path) -> None:
    raw = bytes(range(256))
    (tmp_path / "body").write_bytes(raw)
    said(node_address, "queue", "create", queue)
    said(node_address, "put", queue, "--file", str(tmp_path / "body"))
    assert run(node_address, "get", queue, "--ack").stdout == raw + b"\n"


def test_keys_delays_and_peeking(node_address: str, queue: str) -> None:
    said(node_address, "queue", "create", queue)
    (first,), (again,) = (lines(node_address, "put", queue, "x", "--key", "k") for _ in range(2))
    assert (first["duplicate"], again["duplicate"], first["id"]) == (False, True, again["id"])
    said(node_address, "put", queue, "later", "--delay", "100")
    assert sorted((each["body"], each["state"]) for each in lines(node_address, "peek", queue)) == [
        ("later", "delayed"), ("x", "ready"),
    ]  # fmt: skip
    assert "later" in said(node_address, "peek", queue)


def test_queues_are_listed_shown_set_paused_and_removed(node_address: str, queue: str) -> None:
    at = node_address
    (made,) = lines(at, "queue", "create", queue, "window_s=60", "--set", "visibility_s=12")
    assert (made["options"]["visibility_s"], made["options"]["window_s"]) == (12, 60)
    assert [each["name"] for each in lines(at, "queue", "list", queue)[0]] == [queue]
    assert lines(at, "queue", "set", queue, "visibility_s=15")[0]["options"]["visibility_s"] == 15
    assert lines(at, "queue", "pause", queue, "--puts")[0]["puts_paused"] is True
    assert "queue resume" in refused(at, "put", queue, "x")
    said(at, "queue", "resume", queue)
    said(at, "put", queue, "x")
    assert lines(at, "queue", "show", queue)[0]["statistics"]["ready"] == 1
    assert "--yes" in refused(at, "queue", "purge", queue)
    said(at, "queue", "purge", queue, "--yes")
    assert lines(at, "queue", "show", queue)[0]["statistics"]["ready"] == 0
    assert said(at, "queue", "delete", queue, "--yes") == f"deleted {queue}\n"
    assert "queue create" in refused(at, "get", queue)


def test_a_command_is_run_for_each_message(node_address: str, queue: str, tmp_path: Path) -> None:
    at = node_address
    said(at, "queue", "create", queue)
    said(at, "put", queue, "--attribute", "to=me", stdin=b"a\nb\nc\n")
    command = f'read -r body; echo "$body $CAPELLINI_ATTRIBUTE_to" >> {tmp_path}/out'
    assert said(at, "consume", queue, "--exec", command, "--count", "3", "--concurrency", "2") == "handled 3\n"
    assert sorted((tmp_path / "out").read_text().split("\n")) == ["", "a me", "b me", "c me"]
    assert run(at, "get", queue).stdout == b""


def test_a_command_that_fails_gives_its_message_back(node_address: str, queue: str, tmp_path: Path) -> None:
    said(node_address, "queue", "create", queue)
    said(node_address, "put", queue, "once more")
    command = f"test -e {tmp_path}/tried || {{ touch {tmp_path}/tried; exit 7; }}"
    assert said(node_address, "consume", queue, "--exec", command, "--idle", "3") == "handled 1\n"


def test_an_empty_command_acks_nothing(node_address: str, queue: str) -> None:
    said(node_address, "queue", "create", queue)
    said(node_address, "put", queue, "precious")
    assert "--exec is empty" in refused(node_address, "consume", queue, "--exec", " ", "--count", "1")
    assert said(node_address, "get", queue) == "precious\n"


def test_consume_finishes_its_command_when_interrupted(node_address: str, queue: str, tmp_path: Path) -> None:
    said(node_address, "queue", "create", queue)
    said(node_address, "put", queue, "x")
    go = tmp_path / "go"
    command = f"touch {tmp_path}/began; until test -e {go}; do sleep 0.05; done"
    process = subprocess.Popen(
        [CAPELLINI, "consume", queue, "--at", node_address, "--exec", command], stdout=subprocess.PIPE
    )
    try:
        poll((tmp_path / "began").exists, "the command runs")
        process.send_signal(signal.SIGINT)
        go.touch()
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out) == (0, b"handled 1\n")
    finally:
        go.touch()
        process.kill()


def test_a_second_interrupt_ends_the_command_and_gives_its_message_back(
    node_address: str, queue: str, tmp_path: Path
) -> None:
    said(node_address, "queue", "create", queue)
    said(node_address, "put", queue, "x")
    command = f"echo $$ > {tmp_path}/pid; sleep 1000"
    process = subprocess.Popen([CAPELLINI, "consume", queue, "--at", node_address, "--exec", command])
    try:
        pid = tmp_path / "pid"
        poll(lambda: pid.exists() and pid.read_text().strip() != "", "the command runs")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 130
        assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    finally:
        process.kill()
    poll(lambda: lines(node_address, "queue", "show", queue)[0]["statistics"]["ready"] == 1, "it was given back")


def test_failures_are_one_line_each_and_told_in_the_end(node_address: str, queue: str) -> None:
    said(node_address, "queue", "create", queue)
    said(node_address, "put", queue, stdin=b"a\nb\nc\n")
    done = process(node_address, "consume", queue, "--exec", "exit 3", "--count", "3")
    assert (done.returncode, done.stdout) == (1, b"handled 0, failed 3\n")
    told = done.stderr.decode().splitlines()
    assert len(told) == 3 and all("the command ended with 3" in line for line in told), told


def test_a_reader_that_goes_away_ends_consume_and_takes_nothing_more(node_address: str, queue: str) -> None:
    said(node_address, "queue", "create", queue)
    said(node_address, "put", queue, stdin=b"message\n" * 20)
    process = subprocess.Popen(
        [CAPELLINI, "consume", queue, "--at", node_address], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"message\n"
        process.stdout.close()
        said(node_address, "put", queue, stdin=b"message\n" * 20)  # more than a pipe holds back
        assert process.wait(DEADLINE_S) == 1
        told = process.stderr.read().decode()
    finally:
        process.kill()
    assert "given back" in told and "Traceback" not in told
    left = lines(node_address, "peek", queue, "--count", "100")
    assert len(left) > 15 and all(message["deliveries"] <= 1 for message in left)


def test_nacks_dead_letters_and_redriving(node_address: str, queue: str) -> None:
    at = node_address
    said(at, "queue", "create", f"{queue}-dead")
    said(at, "queue", "create", queue, "--set", "delivery_limit=1", "--set", f"dead_letters={queue}-dead")
    said(at, "put", queue, "poison")
    (message,) = lines(at, "get", queue)
    assert said(at, "nack", queue, message["receipt"], "--delay", "0") == "given back 1\n"

    def buried() -> bool:
        assert run(at, "get", queue).stdout == b""
        return [each["body"] for each in lines(at, "dead", "list", queue)] == ["poison"]

    poll(buried, "it is in dead letters")
    assert said(at, "dead", "redrive", queue) == "moved 1\n"
    assert said(at, "get", queue, "--wait", "10", "--ack") == "poison\n"


def test_a_look_inside(node_address: str, queue: str) -> None:
    at = node_address
    said(at, "queue", "create", queue)
    id = said(at, "put", queue, "x").strip()
    assert lines(at, "debug", "buckets", queue)[0][0]["written"] == 1
    (pointers,) = lines(at, "debug", "pointers", queue)
    (moved,) = lines(at, "debug", "pointers", queue, "--set", f"repair={pointers['repair']}")
    assert moved["repair"] == pointers["repair"]
    assert lines(at, "debug", "message", queue, id)[0]["id"] == id
    assert id in said(at, "debug", "message", queue, id)
    assert "repair=BUCKET" in refused(at, "debug", "pointers", queue, "--set", "reader=1")
    assert "moved back only" in refused(at, "debug", "pointers", queue, "--set", "repair=5000")


def test_errors_say_what_to_do_next(node_address: str, queue: str) -> None:
    assert "capellini serve" in refused(f"http://127.0.0.1:{free_port()}", "queue", "list")
    assert "rocks:FOLDER" in refused("nonsense", "queue", "list")
    assert "queue create" in refused(node_address, "put", queue, "x")
    assert "visibility_s is a number" in refused(node_address, "queue", "create", queue, "--set", "visibility_s=long")
    assert "no_such" in refused(node_address, "queue", "create", queue, "--set", "no_such=1")
    assert "NAME=VALUE" in refused(node_address, "put", queue, "x", "--attribute", "nothing")
    assert "BODY" in refused(node_address, "put", queue, "x", "--lines")
