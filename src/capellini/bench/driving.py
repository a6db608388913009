"""Drives a queue from processes of their own, the same for every peer: four that put, four that get and ack.

    start all ─▶ all are connected ─▶ go ─▶ until the last message is acked     the time between, and the server's CPU

A run is a whole life of its messages; the rate is messages by that time. Drivers are told one job after another: a
process that is there already costs nothing to start.
"""

from __future__ import annotations

import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final, Self

import msgspec

from capellini.bench.driver import Job, Report, Tally
from capellini.bench.peers.peer import Server
from capellini.bench.usage import cpu_s, memory_mb

PRODUCERS: Final = 4  # processes
CONSUMERS: Final = 4
READY_WITHIN_S: Final = 60.0
DONE_WITHIN_S: Final = 300.0
CHATTER: Final = ("nanobind:", " - leaked")  # what a library says when a process ends by an error, and after it


class Shape(msgspec.Struct, frozen=True):
    batch: int
    workers: int  # in each process


B100: Final = Shape(batch=100, workers=4)  # eight processes: 32 under way at once, which is faster for all than 8
B100_FEW: Final = Shape(batch=100, workers=1)
C32: Final = Shape(batch=1, workers=4)


class Run(msgspec.Struct, frozen=True):
    messages: int
    took_s: float
    server_cpu_s: float
    client_cpu_s: float
    memory_mb: int  # of the server's first process, afterwards

    @property
    def per_s(self) -> float:
        return self.messages / self.took_s

    @property
    def server_us(self) -> float:
        """Server CPU per message."""
        return self.server_cpu_s / self.messages * 1e6

    @property
    def client_us(self) -> float:
        return self.client_cpu_s / self.messages * 1e6


class DriverFailed(Exception):
    """A driver's process ended without its report, or said nothing for too long."""


class Driver:
    """One process. Its errors go to a file: a pipe that nobody reads would stop it."""

    def __init__(self) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "capellini.bench.driver"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip

    def send(self, text: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("it is gone") from None

    def line(self, within_s: float) -> str:
        """The next line of a driver that says few of them."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, within_s))
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise self._failed(f"it said nothing for {within_s:g} s")
        return line

    def _failed(self, otherwise: str) -> DriverFailed:
        self.end()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        said = [line for line in lines if not line.startswith(CHATTER)] or [otherwise]
        return DriverFailed(f"a driver ended too early: {said[-1]}")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Drivers:
    """As many processes as a run needs, kept for the next one. After a failure all are new."""

    def __init__(self) -> None:
        self._drivers: list[Driver] = []

    def run(self, jobs: Sequence[Job], before: Callable[[], None], within_s: float) -> tuple[float, list[Report]]:
        """When they were told to go, and what they report; `before` is called when all are ready."""
        try:
            while len(self._drivers) < len(jobs):
                self._drivers.append(Driver())
            mine = self._drivers[: len(jobs)]
            for driver, job in zip(mine, jobs, strict=True):
                driver.send(msgspec.json.encode(job).decode() + "\n")
            for driver in mine:
                driver.line(READY_WITHIN_S)
            before()
            began_s = time.monotonic()
            for driver in mine:
                driver.send("\n")
            deadline_s = began_s + within_s
            lines = [driver.line(deadline_s - time.monotonic()) for driver in mine]
        except BaseException:
            self.close()
            raise
        return began_s, [msgspec.json.decode(line, type=Report) for line in lines]

    def close(self) -> None:
        for driver in self._drivers:
            driver.end()
        self._drivers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def drive(server: Server, queue: str, shape: Shape, messages: int) -> Run:
    """One run on an empty queue."""
    server.fresh(queue)
    with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder, Drivers() as drivers:
        tally = Path(folder) / "acked"
        Tally.make(tally, CONSUMERS * shape.workers)
        jobs = [_job(server, queue, shape, messages, str(tally), index) for index in range(PRODUCERS + CONSUMERS)]
        used_s: list[float] = []
        began_s, reports = drivers.run(jobs, lambda: used_s.append(cpu_s(server.pid)), DONE_WITHIN_S)
        server_cpu_s = cpu_s(server.pid) - used_s[0]
    took_s = max(report.ended_s for report in reports) - began_s
    return Run(messages, took_s, server_cpu_s, sum(report.cpu_s for report in reports), memory_mb(server.pid))


def _job(server: Server, queue: str, shape: Shape, messages: int, tally: str, index: int) -> Job:
    puts = index < PRODUCERS
    return Job(
        peer=server.name,
        address=server.address,
        queue=queue,
        role="put" if puts else "get",
        batch=shape.batch,
        workers=shape.workers,
        messages=messages // PRODUCERS if puts else messages // PRODUCERS * PRODUCERS,
        tally=tally,
        first_slot=0 if puts else (index - PRODUCERS) * shape.workers,
    )
