"""What processes use, from /proc: CPU time of a server with all its children, and memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
PROC: Final = Path("/proc")


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all that it started, children that ended and were waited for included."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            number = int(entry.name)
            parents.setdefault(int(fields[1]), []).append(number)
            ticks[number] = sum(int(field) for field in fields[11:15])  # utime, stime and those of waited-for children
    total, left = 0, [pid]
    while left:
        number = left.pop()
        total += ticks.get(number, 0)
        left += parents.get(number, [])
    return total / TICKS_PER_S


def memory_mb(pid: int | None = None) -> int:
    """Resident memory of one process; this one unless told."""
    pages = (PROC / str(pid or "self") / "statm").read_text().split()[1]
    return int(pages) * PAGE_BYTES // 1_000_000


def _stat(pid: int) -> list[str] | None:
    """The fields after the command's name, from the state on; None: it is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()  # the name stands in brackets and may hold anything
