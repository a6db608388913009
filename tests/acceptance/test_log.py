"""Log queues as people use them: the command line against a real node and on a folder alone, groups that go their own
ways, dead letters, and a node that is stopped or killed with all of it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.acceptance.client_processes import CAPELLINI, DEADLINE_S, poll, running_node
from tests.acceptance.commands import lines, process, run, said

import capellini

pytestmark = pytest.mark.slow


def bodies(at: str, place: str, count: int = 100, wait_s: float = 20) -> list[str]:
    """Got and acked."""
    return [each["body"] for each in lines(at, "get", place, "-n", str(count), "--wait", str(wait_s), "--ack")]


def lag(at: str, queue: str, group: str) -> tuple[int, int, int]:
    (shown,) = lines(at, "group", "show", queue, group)
    return shown["lag"]["ready"], shown["lag"]["in_flight"], shown["lag"]["delayed"]


def test_two_groups_get_everything_each_at_its_own_pace(node_address: str, queue: str) -> None:
    at = node_address
    said(at, "queue", "create", queue, "--kind", "log", of=process)
    for group in ("billing", "search"):
        assert group in said(at, "group", "create", queue, group, of=process)
    assert said(at, "put", queue, "--attribute", "a=b", stdin=b"one\ntwo\r\nthree", of=process) == "put 3\n"
    assert said(at, "get", f"{queue}@billing", "-n", "10", "--ack", of=process) == "one\ntwo\nthree\n"
    assert (lag(at, queue, "billing"), lag(at, queue, "search")) == ((0, 0, 0), (3, 0, 0))
    got = process(at, "get", f"{queue}@search")
    assert got.stdout == b"one\n"
    receipt = got.stderr.decode().split("receipt ")[1].split()[0]
    assert said(at, "ack", f"{queue}@search", receipt, of=process) == "acked 1\n"
    assert b"stale" in run(at, "ack", f"{queue}@search", receipt, "--json").stdout
    (second, third) = lines(at, "get", f"{queue}@search", "-n", "10", "--ack")
    assert (second["body"], third["body"], third["attributes"], third["deliveries"]) == ("two", "three", {"a": "b"}, 1)


def test_groups_on_a_folder_alone(queue: str, tmp_path: Path) -> None:
    at = f"rocks:{tmp_path / 'data'}"
    said(at, "queue", "create", queue, "--kind", "log")
    said(at, "group", "create", queue, "late", "--start", "latest")
    assert said(at, "put", queue, stdin=b"one\ntwo\n") == "put 2\n"
    assert bodies(at, queue) == bodies(at, f"{queue}@late") == ["one", "two"]
    assert [each["group"]["name"] for each in lines(at, "group", "list", queue)[0]] == ["default", "late"]
    assert bodies(at, queue, wait_s=0) == []


def test_a_group_goes_back_goes_on_and_is_removed(node_address: str, queue: str) -> None:
    at = node_address
    said(at, "queue", "create", queue, "--kind", "log")
    said(at, "group", "create", queue, "readers")
    said(at, "put", queue, stdin=b"one\ntwo\n")
    assert bodies(at, f"{queue}@readers") == ["one", "two"]
    (sought,) = lines(at, "group", "seek", queue, "readers", "earliest")
    assert (sought["version"], sought["start_at"]) == (2, 0.0)
    assert bodies(at, f"{queue}@readers") == ["one", "two"]
    between_s = time.time()
    poll(lambda: time.time() > between_s + 0.01, "the clock goes on")
    said(at, "put", queue, "three")
    said(at, "group", "seek", queue, "readers", str(between_s))
    assert bodies(at, f"{queue}@readers") == ["three"]
    said(at, "group", "seek", queue, "readers", "latest")
    said(at, "put", queue, "four")
    assert bodies(at, f"{queue}@readers") == ["four"]
    gone = run(at, "group", "seek", queue, "readers", "2001-01-01T00:00:00Z")
    assert (gone.returncode, "starts at the oldest" in gone.stderr.decode()) == (0, True)
    assert bodies(at, f"{queue}@readers") == ["one", "two", "three", "four"]
    assert [each["group"]["name"] for each in lines(at, "group", "list", queue)[0]] == ["readers"]
    assert "--yes" in run(at, "group", "delete", queue, "readers").stderr.decode()
    assert said(at, "group", "delete", queue, "readers", "--yes") == f"deleted {queue}@readers\n"
    assert lines(at, "group", "list", queue) == [[]]
    assert "group create" in run(at, "get", f"{queue}@readers").stderr.decode()


def test_a_group_wants_only_what_its_filter_names(node_address: str, queue: str) -> None:
    at = node_address
    said(at, "queue", "create", queue, "--kind", "log")
    options = ("--filter", "color=red,blue", "--filter", "size=xl", "--set", "visibility_s=60")
    (made,) = lines(at, "group", "create", queue, "tall", *options)
    assert made["options"] == {"visibility_s": 60.0, "filter": {"color": ["red", "blue"], "size": ["xl"]}}
    for color, size in (("red", "xl"), ("green", "xl"), ("blue", "s"), ("blue", "xl")):
        said(at, "put", queue, f"{color} {size}", "--attribute", f"color={color}", "--attribute", f"size={size}")
    assert bodies(at, f"{queue}@tall") == ["red xl", "blue xl"]
    (changed,) = lines(at, "group", "set", queue, "tall", "visibility_s=", "--no-filter")
    assert changed["options"] == {}
    said(at, "put", queue, "no color")
    assert bodies(at, f"{queue}@tall") == ["no color"]


def test_what_a_group_got_too_often_is_merged_or_purged(node_address: str, queue: str) -> None:
    at, place = node_address, f"{queue}@picky"
    said(at, "queue", "create", queue, "--kind", "log", "--set", "delivery_limit=1")
    said(at, "group", "create", queue, "picky")
    said(at, "group", "create", queue, "other")

    def bury(body: str) -> None:
        (message,) = lines(at, "get", place, "--wait", "20")
        assert message["body"] == body
        assert said(at, "nack", place, message["receipt"], "--delay", "0") == "given back 1\n"
        poll(lambda: [each["body"] for each in lines(at, "dead", "list", place)] == [body], "it is in dead letters")

    said(at, "put", queue, "poison")
    bury("poison")
    assert lag(at, queue, "picky") == (0, 0, 0)
    (shown,) = lines(at, "queue", "show", place)
    assert (shown["statistics"]["dead"], shown["groups"][0]["group"]["dead_letters"]) == (1, f"{queue}.picky.dead")
    assert said(at, "dead", "merge", place) == "moved 1\n"
    assert lines(at, "dead", "list", place) == []
    bury("poison")
    assert "--yes" in run(at, "dead", "purge", place).stderr.decode()
    assert said(at, "dead", "purge", place, "--yes") == f"purged the dead letters of {place}\n"
    assert lines(at, "dead", "list", place) == []
    assert said(at, "dead", "merge", place) == "moved 0\n"
    assert bodies(at, f"{queue}@other") == ["poison"]  # once: what is merged is for the group alone
    assert run(at, "get", f"{queue}@other").stdout == b""


def test_a_command_is_run_for_each_message_of_a_group(node_address: str, queue: str, tmp_path: Path) -> None:
    at, place = node_address, f"{queue}@workers"
    said(at, "queue", "create", queue, "--kind", "log")
    said(at, "group", "create", queue, "workers")
    said(at, "put", queue, "--attribute", "to=me", stdin=b"a\nb\nc\n")
    work = f'read -r body; echo "$body $CAPELLINI_ATTRIBUTE_to $CAPELLINI_QUEUE" >> {tmp_path}/out'
    assert said(at, "consume", place, "--exec", work, "--count", "3", "--concurrency", "2") == "handled 3\n"
    assert sorted((tmp_path / "out").read_text().split("\n")) == ["", *(f"{each} me {place}" for each in "abc")]
    assert lag(at, queue, "workers") == (0, 0, 0)


def test_many_lines_go_in_and_come_out_once(node_address: str, queue: str) -> None:
    at = node_address
    said(at, "queue", "create", queue, "--kind", "log", "--set", "extent_bytes=1000000", "--set", "body_limit=100")
    wanted = [b"%0.40d" % number for number in range(50_000)]
    assert said(at, "put", queue, stdin=b"\n".join(wanted), of=process) == "put 50000\n"
    some = process(at, "consume", f"{queue}@default", "--count", "20001")  # made by it; in the middle of a batch
    rest = process(at, "consume", queue, "--idle", "1")
    assert (some.returncode, some.stderr, rest.returncode, rest.stderr) == (0, b"", 0, b"")
    assert len(some.stdout.splitlines()) == 20_001
    assert sorted(some.stdout.splitlines() + rest.stdout.splitlines()) == wanted
    assert run(at, "get", queue).stdout == b""
    partly = run(at, "put", queue, stdin=b"short\n" + b"long" * 30 + b"\nlast\n")
    assert (partly.returncode, partly.stdout) == (1, b"put 2\n")
    assert b"line 2: a body has 120 bytes" in partly.stderr
    told = lines(at, "consume", queue, "--idle", "1")
    assert [(each["body"], each["deliveries"]) for each in told] == [("short", 1), ("last", 1)]
    named = run(at, "put", queue, "--json", stdin=b"x\ny\n").stdout.splitlines()
    assert [each["id"] for each in lines(at, "peek", queue)] == [json.loads(line)["id"] for line in named]


def test_what_is_there_is_printed_however_short_the_patience(node_address: str, queue: str) -> None:
    at = node_address
    said(at, "queue", "create", queue, "--kind", "log")
    said(at, "put", queue, stdin=b"a\nb\nc\n")
    assert said(at, "consume", queue, "--idle", "0") == "a\nb\nc\n"


def test_a_reader_that_goes_away_ends_the_stream_and_loses_nothing(node_address: str, queue: str) -> None:
    at = node_address
    said(at, "queue", "create", queue, "--kind", "log")
    said(at, "put", queue, stdin=b"".join(b"%0.100d\n" % number for number in range(24_000)))
    printing = subprocess.Popen(
        [CAPELLINI, "consume", queue, "--at", at], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert printing.stdout is not None and printing.stderr is not None
        assert int(printing.stdout.readline()) == 0
        printing.stdout.close()
        assert printing.wait(DEADLINE_S) == 1
        told = printing.stderr.read().decode()
    finally:
        printing.kill()
    assert "given back" in told and "Traceback" not in told
    left = [int(line) for line in said(at, "consume", queue, "--idle", "1").splitlines()]
    assert len(left) > 10_000  # what was acked is less than a pipe and a batch, which may be of 10,000
    assert sorted(left) == list(range(24_000 - len(left), 24_000))  # what was given back may come last


def test_lines_of_a_slow_pipe_are_put_as_they_come(node_address: str, queue: str) -> None:
    said(node_address, "queue", "create", queue, "--kind", "log")
    putting = subprocess.Popen([CAPELLINI, "put", queue, "--at", node_address], stdin=subprocess.PIPE)
    try:
        assert putting.stdin is not None
        putting.stdin.write(b"early\nhalf a")
        putting.stdin.flush()
        assert bodies(node_address, queue, wait_s=60) == ["early"]
        putting.stdin.write(b" line\n")
        putting.stdin.close()
        assert bodies(node_address, queue, wait_s=60) == ["half a line"]
        assert putting.wait(DEADLINE_S) == 0
    finally:
        putting.kill()


def test_extents_show_their_writer_and_where_each_group_is(node_address: str, queue: str) -> None:
    at = node_address
    said(at, "queue", "create", queue, "--kind", "log")
    assert "nothing was put yet" in run(at, "debug", "extents", queue).stderr.decode()
    said(at, "group", "create", queue, "readers")
    said(at, "put", queue, stdin=b"one\ntwo\nthree\n")
    assert bodies(at, f"{queue}@readers", 1) == ["one"]
    lines(at, "get", f"{queue}@readers")
    ((extent,),) = lines(at, "debug", "extents", queue)
    assert (extent["state"], extent["end"], extent["level"]) == ("open", 3, "quorum")
    reader = extent["readers"]["readers"]
    assert (reader["owner"], reader["next"], reader["in_flight"], reader["ready"]) == (extent["node"], 1, 1, 1)
    shown = said(at, "debug", "extents", queue)
    assert all(word in shown for word in (extent["extent"], "written by", "open", "readers", "in flight"))
    assert "ready" in said(at, "queue", "show", queue)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_node_that_comes_back_has_everything_and_every_cursor(end: str, queue: str, tmp_path: Path) -> None:
    with running_node(tmp_path / "data") as node:
        at = node.address
        said(at, "queue", "create", queue, "--kind", "log")
        for group in ("ahead", "behind"):
            said(at, "group", "create", queue, group)
        said(at, "put", queue, stdin=b"".join(b"%d\n" % number for number in range(1_000)))
        assert bodies(at, f"{queue}@ahead", 600) == [str(number) for number in range(600)]
        held = lines(at, "get", f"{queue}@ahead", "-n", "10", "--visibility", "2")
        assert [each["body"] for each in held] == [str(number) for number in range(600, 610)]
        said(at, "ack", f"{queue}@ahead", held[9]["receipt"])
        if end == "stopped":
            assert node.stop() == 0
        else:
            node.kill()
        node.start()
        with capellini.connect(at) as client:
            came: dict[str, list[bytes]] = {"ahead": [], "behind": []}
            for group, count in (("ahead", 399), ("behind", 1_000)):
                until_s = time.monotonic() + DEADLINE_S
                while len(came[group]) < count and time.monotonic() < until_s:
                    for message in (found := client.get(queue, 500, wait_s=5, group=group)):
                        came[group].append(message.raw)
                    client.ack_many(f"{queue}@{group}", found)
        assert sorted(came["ahead"], key=int) == [b"%d" % number for number in range(600, 1_000) if number != 609]
        assert came["behind"] == [b"%d" % number for number in range(1_000)]
        assert run(at, "get", f"{queue}@ahead").stdout == run(at, "get", f"{queue}@behind").stdout == b""
        said(at, "put", queue, "after")
        assert bodies(at, f"{queue}@ahead") == ["after"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("group", "create", "QUEUE", "bad name"), 2, "of a group"),
        (("group", "create", "QUEUE", "g", "--start", "noon"), 2, "is no time"),
        (("group", "create", "QUEUE", "g", "--set", "visibility_s=long"), 2, "is a number"),
        (("group", "create", "QUEUE", "g", "--set", "visibility_s=0"), 2, "goes from 0.1"),
        (("group", "create", "QUEUE", "g", "--set", "colour=red"), 2, "there are visibility_s"),
        (("group", "create", "QUEUE", "g", "--set", "filter=x"), 2, "--filter ATTRIBUTE=VALUE"),
        (("group", "create", "QUEUE", "g", "--filter", "color"), 2, "NAME=VALUE"),
        (("group", "create", "QUEUE", "there", "--set", "delay_s=5"), 1, "capellini group set"),
        (("group", "create", "nowhere", "g"), 1, "capellini queue create"),
        (("group", "create", "WORK", "g"), 2, "is a work queue"),
        (("group", "show", "QUEUE", "nobody"), 1, "capellini group create"),
        (("group", "set", "QUEUE", "there"), 2, "give NAME=VALUE"),
        (("group", "seek", "QUEUE", "nobody", "latest"), 1, "no group nobody"),
        (("group", "delete", "QUEUE", "nobody", "--yes"), 1, "no group nobody"),
        (("consume", "QUEUE@nobody", "--exec", "cat"), 1, "no group nobody"),
        (("get", "WORK@there"), 2, "is a work queue"),
        (("get", "QUEUE@"), 2, "of a group"),
        (("ack", "QUEUE@there", "nonsense"), 1, "receipt"),
        (("dead", "merge", "QUEUE@there"), 1, "delivery_limit"),
        (("debug", "extents", "WORK"), 2, "is a work queue"),
        (("debug", "buckets", "QUEUE"), 2, "log queue"),
        (("queue", "create", "x", "--kind", "log", "--set", "ordered=total"), 2, "needs mode cp"),
        (("queue", "create", "x", "--kind", "log", "--set", "mode=both"), 2, "mode is one of"),
        (("queue", "set", "QUEUE", "mode=cp"), 1, "cannot change"),
    ],
)
def test_what_is_asked_wrongly_is_said_with_what_to_do(
    node_address: str, arguments: tuple[str, ...], code: int, says: str
) -> None:
    with capellini.connect(node_address) as client:
        client.create_queue("log-asked-wrongly", "log")
        client.create_queue("plain-work")
        client.groups.create("log-asked-wrongly", "there")
    words = [each.replace("QUEUE", "log-asked-wrongly").replace("WORK", "plain-work") for each in arguments]
    done = run(node_address, *words)
    assert (done.returncode, says in done.stderr.decode()) == (code, True), done.stderr


def test_a_queue_that_is_full_says_so_and_takes_more_when_it_may(node_address: str, queue: str) -> None:
    at = node_address
    said(at, "queue", "create", queue, "--kind", "log", "--set", "max_bytes=1000")
    said(at, "put", queue, "x" * 800)
    refused = run(at, "put", queue, "x" * 800)
    assert (refused.returncode, b"max_bytes" in refused.stderr, b"queue set" in refused.stderr) == (1, True, True)
    said(at, "queue", "set", queue, "max_bytes=10000")
    said(at, "put", queue, "y" * 800)
    assert len(bodies(at, queue)) == 2


PAGE = Path(__file__).resolve().parents[2] / "docs" / "log.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_work_as_printed(tmp_path: Path) -> None:
    commands = re.findall(r"^    (?:seq 1 (\d+) \| )?capellini (.+)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) > 15
    with running_node(tmp_path / "data") as node:
        for piped, text in commands:
            words = shlex.split(text)
            stdin = b"".join(b"%d\n" % number for number in range(1, int(piped) + 1)) if piped else b""
            if words[0] == "consume":  # it would go on for ever, and for each of many messages
                words = [*(f"cat >> {tmp_path / 'index'}" if word.startswith("cat") else word for word in words)]
                words += ["--count", "3"]
            done = run(node.address, *words, stdin=stdin)
            assert done.returncode == 0, (text, done.stderr)
    assert (tmp_path / "index").read_text() == "123"


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_programs_of_the_page_run(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAMS[number]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, "")
