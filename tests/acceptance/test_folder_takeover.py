"""A folder shared by processes that are killed: nothing confirmed is lost, nothing acked comes again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from tests.acceptance.client_processes import DEADLINE_S, poll

import capellini

pytestmark = pytest.mark.slow

WORKERS: Final = 3
KILLS: Final = 4
WORKER: Final = """
import sys, threading, capellini

address, name = sys.argv[1:]
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()


def say(*words):
    # One write per line: what was said before a kill is whole.
    sys.stdout.write(" ".join(words) + "\\n")
    sys.stdout.flush()


with capellini.connect(address, codec="str") as client:
    client.create_queue("jobs", visibility_s=2)
    say("ready")
    number = 0
    while not stop.is_set():
        number += 1
        body = f"{name}-{number}"
        say("putting", body)
        try:
            client.put("jobs", body)
            say("put", body)
        except capellini.Unknown:
            say("unknown", body)
        for message in client.get("jobs", 2, wait_s=0.2):
            say("got", message.body)
            if hash(message.body) % 3 == 0 and message.deliveries == 1:
                continue  # left for its visibility to end
            try:
                message.ack()
                say("acked", message.body)
            except (capellini.Stale, capellini.Unknown) as error:
                say(type(error).__name__.lower(), message.body)
"""


class Worker:
    def __init__(self, folder: Path, name: str, log: Path) -> None:
        self.log = log
        with log.open("wb") as out:
            command = [sys.executable, "-c", WORKER, f"rocks:{folder}", name]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out)

    def said(self, word: str) -> list[str]:
        """What it said it had put, got or acked; a last line that a kill cut off does not count."""
        whole = self.log.read_text().rpartition("\n")[0]
        return [line.partition(" ")[2] for line in whole.splitlines() if line.split(" ")[0] == word]

    def end(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        assert self.process.wait(DEADLINE_S) in (0, -signal.SIGKILL), self.log.read_text()[-500:]


def owner_of(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int((folder / "lock").read_text())
    return 0


@pytest.mark.slow
def test_owners_are_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    workers = [Worker(folder, f"w{each}", tmp_path / f"w{each}.log") for each in range(WORKERS)]
    try:
        poll(lambda: all(worker.said("ready") for worker in workers), "all workers joined")
        for kill in range(KILLS):
            counts = {worker: len(worker.said("put")) for worker in workers if worker.process.poll() is None}

            def moved(counts: dict[Worker, int] = counts) -> bool:
                return all(len(worker.said("put")) >= before + 5 for worker, before in counts.items())

            poll(moved, f"all work on after {kill} kills")
            owner = owner_of(folder)
            assert owner in {worker.process.pid for worker in counts}
            os.kill(owner, signal.SIGKILL)
            workers.append(Worker(folder, f"w{WORKERS + kill}", tmp_path / f"w{WORKERS + kill}.log"))
            poll(lambda: workers[-1].said("ready"), "the new worker joined")
        for worker in workers:
            worker.end()
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait(DEADLINE_S)
    confirmed = {body for worker in workers for body in worker.said("put")}
    got = {body for worker in workers for body in worker.said("got")}
    acked = Counter(body for worker in workers for body in worker.said("acked"))
    with capellini.connect(f"rocks:{folder}", codec="str") as client:

        def empty() -> bool:
            for message in client.get("jobs", 100, wait_s=0.2):
                assert message.body not in acked, "an acked message came again"
                got.add(message.body)
                message.ack()
            return client.peek("jobs") == []

        poll(empty, "the queue is empty")
    assert confirmed - got == set(), "confirmed puts that nobody got"
    assert [body for body, count in acked.items() if count > 1] == []
    assert got <= {body for worker in workers for body in worker.said("putting")}, "messages that nobody put"


LEFT_OPEN: Final = """
import sys, capellini, capellini.store.worker

capellini.store.worker.INLINE_BELOW_S = 0.0  # as on a slow disk: every fsync in its thread
client = capellini.connect(sys.argv[1])
client.create_queue("jobs")
client.put("jobs", b"x")
print("end", flush=True)
"""


def test_a_client_that_was_left_open_ends_with_its_process_and_leaves_the_folder(tmp_path: Path) -> None:
    address = f"rocks:{tmp_path / 'folder'}"
    for count in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", LEFT_OPEN, address], capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
        with capellini.connect(address) as client:
            assert client.statistics("jobs").ready == count


FORKS: Final = """
import os, sys, time, capellini

client = capellini.connect(sys.argv[1])
client.create_queue("jobs")
client.put("jobs", b"x")
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
os._exit(0)  # as if it were killed: nothing is handed over
"""


def test_a_forked_child_does_not_keep_the_folder_of_its_parent(tmp_path: Path) -> None:
    address = f"rocks:{tmp_path / 'folder'}"
    parent = subprocess.Popen([sys.executable, "-c", FORKS, address], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert parent.wait(DEADLINE_S) == 0
        with capellini.connect(address) as client:
            assert client.statistics("jobs").ready == 1
    finally:
        os.kill(child, signal.SIGKILL)


EXITS: Final = """
import os, signal, sys, time, capellini

client = capellini.connect(sys.argv[1])
client.create_queue("jobs")
client.put("jobs", b"x")
child = os.fork()
if child == 0:
    signal.alarm(20)
    with capellini.connect(sys.argv[1]) as own:
        own.put("jobs", b"y")
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), client.statistics("jobs").ready, flush=True)
"""


def test_a_forked_child_exits_as_it_says(tmp_path: Path) -> None:
    address = f"rocks:{tmp_path / 'folder'}"
    done = subprocess.run(
        [sys.executable, "-c", EXITS, address], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "7 2\n"), done.stderr


OPENS: Final = """
import os, signal, sys, capellini

with capellini.connect(sys.argv[1]) as client:
    client.create_queue("jobs")
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        with capellini.connect(sys.argv[1]) as own:
            own.put("jobs", b"y")
    except capellini.CannotOpen as error:
        print(error, flush=True)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
with capellini.connect(sys.argv[1]) as client:
    client.put("jobs", b"x")
"""


def test_a_forked_child_is_told_that_it_cannot_own_a_folder_where_its_parent_did(tmp_path: Path) -> None:
    address = f"rocks:{tmp_path / 'folder'}"
    done = subprocess.run(
        [sys.executable, "-c", OPENS, address], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "forked" in done.stdout and "capellini serve" in done.stdout


def test_closing_ends_a_consumer_in_another_thread(tmp_path: Path) -> None:
    client = capellini.connect(f"rocks:{tmp_path / 'folder'}")
    client.create_queue("jobs")
    ended: list[str] = []

    def consume() -> None:
        try:
            client.consume("jobs", lambda message: None)
        except capellini.Unavailable as error:
            ended.append(str(error))

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    poll(lambda: bool(client._thread.loop.is_running()), "it runs")
    client.close()
    consumer.join(DEADLINE_S)
    assert len(ended) == 1 and "closed" in ended[0]
