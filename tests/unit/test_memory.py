"""Memory of large pieces is kept between them: counted by the pages that the kernel has to give."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

ROUNDS = """
import resource
from capellini.store.memory import keep_memory

def pieces():
    held = [b"x" * 1_000_000 for _ in range(8)]

{first}
pieces()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    pieces()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(first: str) -> int:
    command = [sys.executable, "-c", ROUNDS.format(first=first)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep memory by other rules")
def test_memory_of_large_pieces_is_kept() -> None:
    assert faults("keep_memory()") * 4 < faults("")
