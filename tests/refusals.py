"""`capellini serve` with what cannot work: run it, and hold what it says against what was promised."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 60.0


def serve(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CAPELLINI_")}
    command = [sys.executable, "-m", "capellini.cli.main", "serve", *arguments]
    if "--listen" not in arguments:
        command += ["--listen", "127.0.0.1:0"]
    return subprocess.run(
        command, cwd=cwd, env={**clean, **environ}, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def one_sentence(done: subprocess.CompletedProcess[str], says: str) -> None:
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("Error: ")
    assert says in lines[0]
