"""The command line in tests: in a process of its own where that matters, else here, which is five times as fast."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

from click.testing import CliRunner
from tests.acceptance.client_processes import CAPELLINI, DEADLINE_S

from capellini.cli.main import capellini as command


class Done:
    """A command that has ended."""

    def __init__(self, returncode: int, stdout: bytes, stderr: bytes) -> None:
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr


def process(at: str, *arguments: str, stdin: bytes = b"") -> Done:
    """In a process of its own."""
    environment = {**os.environ, "CAPELLINI_AT": at}
    done = subprocess.run(
        [CAPELLINI, *arguments], env=environment, input=stdin, capture_output=True, timeout=DEADLINE_S
    )
    return Done(done.returncode, done.stdout, done.stderr)


def run(at: str, *arguments: str, stdin: bytes = b"") -> Done:
    """The same here."""
    done = CliRunner().invoke(command, arguments, input=stdin, env={"CAPELLINI_AT": at})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Done(done.exit_code, done.stdout_bytes, done.stderr_bytes)


def said(at: str, *arguments: str, stdin: bytes = b"", of: Callable[..., Done] = run) -> str:
    done = of(at, *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def refused(at: str, *arguments: str, of: Callable[..., Done] = run) -> str:
    done = of(at, *arguments)
    assert done.returncode in (1, 2) and b"Traceback" not in done.stderr
    return done.stderr.decode()


def lines(at: str, *arguments: str) -> list[Any]:
    return [json.loads(line) for line in said(at, *arguments, "--json").splitlines()]
