"""Processes that outlive the command which started them, signalled without ever hitting a stranger.

A pid alone is no identity: the kernel gives it to somebody else later. Here a process is (pid, start time, boot), and a
signal goes through a pid file descriptor that is opened *before* the identity is compared:

    open pidfd ─▶ read /proc/PID/stat ─▶ same start time? ─▶ signal through the pidfd

Once the pidfd is open it means one process for ever, so that a pid reused in between is noticed, not signalled.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from capellini.local.errors import ClusterError

PROC = Path("/proc")
POLL_S = 0.05
PR_SET_TIMERSLACK, PR_GET_TIMERSLACK = 29, 30  # of prctl(2)


class ProcessId(msgspec.Struct, frozen=True):
    """One process, for good: `started` counts clock ticks since boot, `boot` names that boot."""

    pid: int
    started: int
    boot: str


def boot_id() -> str:
    """The name of this boot of the machine."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_stat(pid: int) -> tuple[str, int] | None:
    """(state letter, start time) of a pid, or None if there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name stands in brackets and may hold anything, brackets too: count from the last one.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def identify(pid: int) -> ProcessId | None:
    """The identity of a running pid, or None."""
    stat = read_stat(pid)
    return None if stat is None else ProcessId(pid, stat[1], boot_id())


def state_of(process: ProcessId) -> str:
    """`running`, `paused` or `down`; a zombie of ours is reaped and counts as down."""
    reap(process.pid)
    stat = read_stat(process.pid)
    if stat is None or stat[1] != process.started or process.boot != boot_id():
        return "down"
    if stat[0] in "ZX":
        reap(process.pid)  # it ended since we looked
        return "down"
    return "paused" if stat[0] in "Tt" else "running"


def reap(pid: int) -> None:
    """Collect a dead child, if it is one of ours."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # somebody else's child: its own parent collects it


def start(command: Sequence[str], output: Path, environment: Mapping[str, str], slack_us: int = 0) -> ProcessId:
    """Start a program in a session of its own, its output appended to a file; see `timer_slack`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    with timer_slack(slack_us):
        pid = os.posix_spawn(command[0], list(command), dict(environment), file_actions=actions, setsid=True)
    process = identify(pid)
    if process is None:
        raise ClusterError(f"{command[0]} ended at once: see {output}")
    return process


@contextmanager
def timer_slack(slack_us: int) -> Iterator[None]:
    """Programs started meanwhile, by this thread, may be woken so much later than they ask for; 0: as usual (50 us). It
    makes those cheaper that ask all the time, to see whether there is work."""
    libc = ctypes.CDLL(None)
    before_ns = libc.prctl(PR_GET_TIMERSLACK)
    libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1_000 * slack_us))
    try:
        yield
    finally:
        libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(before_ns))


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Signal that very process; False if it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if state_of(process) == "down":
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def wait_for_state(process: ProcessId, wanted: str, timeout_s: float) -> bool:
    """Wait until the process is `running`, `paused` or `down`; False when the time is over."""
    deadline = time.monotonic() + timeout_s
    while state_of(process) != wanted:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def stop(process: ProcessId, grace_s: float) -> None:
    """Ask it to end, and end it when it has not within the grace; 0 ends it at once."""
    if grace_s > 0 and send(process, signal.SIGTERM):
        send(process, signal.SIGCONT)  # a paused process could not hear us
        if wait_for_state(process, "down", grace_s):
            return
    send(process, signal.SIGKILL)
    if not wait_for_state(process, "down", timeout_s=30):
        raise ClusterError(f"process {process.pid} does not die")


def find_by_argument(argument: str) -> list[ProcessId]:
    """All processes that were started with exactly this argument: finds what a crashed run never wrote down."""
    found = []
    wanted = argument.encode()
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or not ours to look at
        if wanted in arguments and (process := identify(int(entry.name))):
            found.append(process)
    return found
