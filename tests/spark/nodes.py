"""A node for the tests of the pipeline: a process on a folder, on loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from capellini import Client

DEADLINE_S = 240.0
POLL_S = 0.02
# Of sessions whose tables have a handful of rows: making and changing plans is what takes the time.
SMALL = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[str]:
    """Its address; the node has answered once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "capellini.cli.main", "serve", "--store", f"rocks:{folder}"]
    command += ["--listen", f"127.0.0.1:{port}", *arguments]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        node = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        at = f"http://127.0.0.1:{port}"
        deadline_s = time.monotonic() + DEADLINE_S
        while not _answers(port):
            assert node.poll() is None, (folder.parent / f"{folder.name}.log").read_text()
            assert time.monotonic() < deadline_s, "the node does not answer"
            time.sleep(POLL_S)
        yield at
    finally:
        node.terminate()
        node.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
        return True
    except OSError:
        return False


def bodies(client: Client[bytes], queue: str, count: int) -> list[bytes]:
    """Of a work or timed queue: what comes, acked; `count` of them."""
    found: list[bytes] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < deadline_s:
        messages = client.get(queue, 1_000, wait_s=1.0)
        found += [message.raw for message in messages]
        if messages:
            client.ack_many(queue, messages)
    return found


def numbered(numbers: Sequence[int]) -> list[bytes]:
    return [f"message {number}".encode() for number in numbers]
