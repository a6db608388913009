"""Drives a queue from processes of their own, the same for every peer: four that put, four that get and ack.

    start all ─▶ all are connected ─▶ go ─▶ until the last message is acked     the time between, and the server's CPU

A run is a whole life of its messages; the rate is messages by that time.
"""

from __future__ import annotations

import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from capellini.bench.driver import Job, Report, Tally
from capellini.bench.peers.peer import Server
from capellini.bench.usage import cpu_s, memory_mb

PRODUCERS: Final = 4  # processes
CONSUMERS: Final = 4
READY_WITHIN_S: Final = 60.0
DONE_WITHIN_S: Final = 300.0


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
    """A driver's process ended without its report."""


def drive(server: Server, queue: str, shape: Shape, messages: int) -> Run:
    """One run on an empty queue."""
    server.fresh(queue)
    with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
        tally = Path(folder) / "acked"
        Tally.make(tally, CONSUMERS * shape.workers)
        drivers: list[subprocess.Popen[str]] = []
        try:
            for index in range(PRODUCERS + CONSUMERS):
                drivers.append(_start(_job(server, queue, shape, messages, str(tally), index)))
            for driver in drivers:
                _line(driver, READY_WITHIN_S)
            before_s, began_s = cpu_s(server.pid), time.monotonic()
            for driver in drivers:
                _send(driver, "\n")
            reports = [msgspec.json.decode(_line(driver, DONE_WITHIN_S), type=Report) for driver in drivers]
            server_cpu_s = cpu_s(server.pid) - before_s
        finally:
            for driver in drivers:
                if driver.poll() is None:
                    driver.kill()
                driver.communicate()
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


def _start(job: Job) -> subprocess.Popen[str]:
    driver = subprocess.Popen(
        [sys.executable, "-m", "capellini.bench.driver"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    _send(driver, msgspec.json.encode(job).decode() + "\n")
    return driver


def _send(driver: subprocess.Popen[str], text: str) -> None:
    assert driver.stdin is not None
    driver.stdin.write(text)
    driver.stdin.flush()


def _line(driver: subprocess.Popen[str], within_s: float) -> str:
    """The next line of a driver that says few of them."""
    assert driver.stdout is not None
    ready, _, _ = select.select([driver.stdout], [], [], within_s)
    line = driver.stdout.readline() if ready else ""
    if not line:
        driver.kill()
        _, errors = driver.communicate()
        last = errors.strip().splitlines()[-1:] or [f"it said nothing for {within_s:g} s"]
        raise DriverFailed(f"a driver ended too early: {last[0]}")
    return line
