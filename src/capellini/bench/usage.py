"""What processes use, from /proc: CPU time of a server with all its children, memory, and bytes written to disks. And
what the disk is like: times that wait for it mean little without that."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
PROC: Final = Path("/proc")
SYNCS: Final = 300
SYNC_BYTES: Final = 4_096
SYNC_PAUSE_S: Final = 0.002


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all that it started, children that ended and were waited for included."""
    stats = [fields for number in family(pid) if (fields := _stat(number))]
    # utime, stime and those of waited-for children
    return sum(int(field) for fields in stats for field in fields[11:15]) / TICKS_PER_S


def family(pid: int) -> list[int]:
    """A process and all that it started and that is still there, itself first."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        number = left.pop(0)
        found.append(number)
        left += children.get(number, [])
    return found


def written_bytes(pid: int | None = None) -> int:
    """Bytes that a process and its children had the disks write, ended children included; this one alone unless told.

    The kernel counts a page when it becomes dirty: one that is synced and changed again counts again, one that is
    changed many times before a sync counts once. Only root sees those of other users.
    """
    total = 0
    for each in ("self",) if pid is None else family(pid):
        try:
            text = (PROC / str(each) / "io").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("write_bytes:"))
    return total


def family_memory_mb(pid: int) -> float:
    """Memory of a process and its children; what they share counts once (proportional set size)."""
    total_kb = 0
    for each in family(pid):
        try:
            text = (PROC / str(each) / "smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total_kb += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total_kb * 1024 / 1_000_000


def memory_mb(pid: int | None = None) -> int:
    """Resident memory of one process; this one unless told."""
    pages = (PROC / str(pid or "self") / "statm").read_text().split()[1]
    return int(pages) * PAGE_BYTES // 1_000_000


def waited_s(pid: int) -> float:
    """How long the threads of a process and of its children could have run and had no CPU, up to now."""
    total_ns = 0
    for each in family(pid):
        for thread in (PROC / str(each) / "task").glob("*/schedstat"):
            try:
                total_ns += int(thread.read_text().split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    return total_ns / 1e9


def stolen_s() -> float:
    """CPU time that the machine below this one gave to others, up to now."""
    return int((PROC / "stat").read_text().split(maxsplit=9)[8]) / TICKS_PER_S


def bare_sync_ms(folder: Path) -> list[float]:
    """How long fsyncs of a few new bytes take there, with nothing around them."""
    took_ms: list[float] = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(SYNCS):
            file.write(bytes(SYNC_BYTES))
            began_s = time.perf_counter()
            os.fdatasync(file.fileno())
            took_ms.append((time.perf_counter() - began_s) * 1000)
            time.sleep(SYNC_PAUSE_S)
    return took_ms


def _stat(pid: int) -> list[str] | None:
    """The fields after the command's name, from the state on; None: it is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()  # the name stands in brackets and may hold anything
