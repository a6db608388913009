"""The quick start of README.md, typed as a user types it: its own lines, against a node on a fresh folder.

`make run` also installs, so what it runs in the end is started here in its place, on a free port; CAPELLINI_AT tells
the lines after it where that is.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest
from tests.acceptance.client_processes import DEADLINE_S, running_node

ROOT: Final = Path(__file__).resolve().parents[2]


def typed_lines() -> list[str]:
    """The commands of the quick start, in order: its indented lines."""
    section = (ROOT / "README.md").read_text().split("## Quick start")[1].split("\n## ")[0]
    return [line.strip() for line in section.splitlines() if line.startswith("    ")]


def test_make_run_starts_a_node_on_a_folder() -> None:
    done = subprocess.run(["make", "-n", "run"], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
    assert "capellini serve --store rocks:data" in done.stdout, done.stderr


@pytest.mark.slow
def test_the_quick_start_works_as_it_is_written(tmp_path: Path) -> None:
    lines = typed_lines()
    after = lines[lines.index("make run") + 1 :]
    assert sum(line.startswith("capellini ") for line in after) >= 4, "the quick start moved: read it anew"
    with running_node(tmp_path / "data") as node:
        done = subprocess.run(
            ["bash", "-e", "-c", "\n".join(after)],
            cwd=ROOT,
            env={**os.environ, "CAPELLINI_AT": node.address},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert "hello" in said and "got world" in said, done.stdout + done.stderr
