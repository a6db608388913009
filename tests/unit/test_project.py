"""The project keeps its own rules: layers, the list of targets, exact pins, a small public surface."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import capellini

ROOT = Path(__file__).resolve().parents[2]
TARGETS = (
    "setup", "run", "test", "test-fast", "test-long", "check", "bench", "simulate", "coverage", "clean",
)  # fmt: skip
PUBLIC = [
    "__version__",
    "connect", "connect_async", "AsyncClient", "AsyncMessage", "Client", "Message", "NewMessage", "Delivery",
    "Put", "Done", "Problem", "QueueInfo", "Statistics", "Failed", "StopConsuming",
    "CapelliniError", "Invalid", "TooLarge", "WrongKind", "NotFound", "Conflict", "Stale", "Paused", "CannotOpen",
    "InUse", "StoreError", "Unavailable", "Overloaded", "Full", "Unknown",
]  # fmt: skip


def lock_lines() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def normal(name: str) -> str:
    """One spelling for a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_layers_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_make_alone_lists_every_target() -> None:
    said = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, timeout=60).stdout
    listed = dict(re.findall(r"^  ([a-z-]+)\s+(\S.*)$", said, re.MULTILINE))
    assert set(TARGETS) <= set(listed)


def test_every_target_that_is_listed_can_be_made() -> None:
    for target in TARGETS:
        done = subprocess.run(["make", "-n", "-C", str(ROOT), target], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


def test_lock_file_pins_everything_exactly() -> None:
    assert [line for line in lock_lines() if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


@pytest.mark.parametrize("group", ["runtime", "dev", "bench", "spark"])
def test_lock_file_covers_what_the_project_asks_for(group: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] if group == "runtime" else project["optional-dependencies"][group]
    pinned = {normal(line.partition("==")[0]) for line in lock_lines()}
    wanted = {normal(re.split(r"[^A-Za-z0-9._-]", line)[0]) for line in asked}
    assert wanted - pinned == set()


def test_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == capellini.__version__


def test_public_surface_is_the_listed_one() -> None:
    assert sorted(capellini.__all__) == sorted(PUBLIC)
    assert all(hasattr(capellini, name) for name in capellini.__all__)


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "('msgspec', 'httptools', 'uvloop', 'acsylla', 'rocksdict', 'asyncio')"
    code = f"import sys, capellini; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_ci_runs_what_people_run() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "make test" in script.read_text()
