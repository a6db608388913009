"""Real processes for the tests of the client: nodes on a folder, and owners of a folder that are not nodes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import capellini

CAPELLINI: Final = str(Path(sys.executable).with_name("capellini"))
DEADLINE_S: Final = 60.0  # of anything that is waited for: far above what it takes


def poll(condition: Callable[[], object], what: str) -> None:
    """Waits until it holds."""
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Node:
    """`capellini serve` on a folder; can be killed and started again at the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [CAPELLINI, "serve", "--store", f"rocks:{self.folder}", "--listen", f"127.0.0.1:{self.port}"]
        log = self.folder.with_suffix(".log")
        with log.open("ab") as out:
            process = self._process = subprocess.Popen(command, stdout=out, stderr=out)

        def answers() -> bool:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return True
            return False

        poll(answers, "the node listens")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(DEADLINE_S)

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(DEADLINE_S)


@contextlib.contextmanager
def running_node(folder: Path) -> Iterator[Node]:
    node = Node(folder)
    node.start()
    try:
        yield node
    finally:
        node.kill()


OWNER: Final = """
import sys, capellini
client = capellini.connect(sys.argv[1])
client.create_queue("jobs", visibility_s=3)
for number in range(int(sys.argv[2])):
    print(client.put("jobs", b"owner %d" % number), flush=True)
print("ready", flush=True)
sys.stdin.read()
client.close()
"""


@contextlib.contextmanager
def folder_owner(folder: Path, puts: int) -> Iterator[subprocess.Popen[str]]:
    """A process that opened the folder first, and has put so many messages."""
    command = [sys.executable, "-c", OWNER, f"rocks:{folder}", str(puts)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = []
        while (line := process.stdout.readline().strip()) != "ready":
            assert line, "the owner ended early"
            lines.append(line)
        assert len(lines) == puts
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def drained(client: capellini.Client[bytes], queue: str, count: int) -> list[bytes]:
    """Gets and acks until `count` messages were acked; their bodies."""
    bodies: list[bytes] = []
    until_s = time.monotonic() + DEADLINE_S
    while len(bodies) < count:
        assert time.monotonic() < until_s, f"{len(bodies)} of {count} came"
        messages = client.get(queue, min(100, count - len(bodies)), wait_s=1)
        for message, result in zip(messages, client.ack_many(queue, messages), strict=True):
            if not hasattr(result, "error"):
                bodies.append(message.raw)
    return bodies
