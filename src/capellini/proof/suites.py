"""The suites of simulated runs, and running many seeds of one.

A suite is a function of a seed. Suites are named by module and imported when asked for.
"""

from __future__ import annotations

import importlib
import multiprocessing
import signal
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from typing import Final

import msgspec

from capellini.proof.history import Violation

SUITES: Final[dict[str, str]] = {
    "store": "capellini.proof.store",
    "work": "capellini.proof.work",
    "counters": "capellini.proof.counters",
    "timed": "capellini.proof.timed",
    "log": "capellini.proof.log",
}


THE_RUN: Final = 0  # no promise
AHEAD: Final = 8  # seeds begun or waiting per process: none is idle while the slowest one is waited for


class Result(msgspec.Struct, frozen=True):
    """What one seed showed."""

    seed: int
    violations: list[Violation]
    virtual_s: float
    messages: int
    faults: dict[str, int]
    guards: dict[str, int]
    history: list[str]


class Summary(msgspec.Struct, frozen=True):
    """What many seeds showed, in the form that `capellini simulate --json` prints."""

    simulate: str
    seeds: int
    violations: int
    virtual_s: float
    wall_s: float
    messages: int
    faults: dict[str, int]
    guards: dict[str, int]
    replay: str | None


Suite = Callable[[int], Result]


def suite(name: str) -> Suite:
    found: Suite = importlib.import_module(SUITES[name]).simulate
    return found


def one(name: str, seed: int, keep_history: bool = False) -> Result:
    """A run that fails itself is that seed's, and the others go on."""
    simulate = suite(name)
    try:
        result = simulate(seed)
    except Exception as error:
        told = traceback.format_exc().splitlines()
        failed = Violation(THE_RUN, name, f"the run failed: {error!r}")
        result = Result(seed, [failed], 0.0, 0, {}, {}, told)
    return result if keep_history else msgspec.structs.replace(result, history=[])


def many(name: str, seeds: Iterable[int], jobs: int = 1) -> Generator[Result, None, None]:
    """Each seed's result, in order. Whoever stops asking ends the processes."""
    if jobs <= 1:
        return (one(name, seed) for seed in seeds)
    left = iter(seeds)
    pool = ProcessPoolExecutor(jobs, initializer=_leave_interrupts)
    begun = deque(pool.submit(one, name, seed) for seed in islice(left, AHEAD * jobs))
    return _ordered(pool, name, begun, left)


def _leave_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal: the one that asked for these ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _ordered(
    pool: ProcessPoolExecutor, name: str, begun: deque[Future[Result]], left: Iterator[int]
) -> Generator[Result, None, None]:
    try:
        while begun:
            yield begun.popleft().result()
            begun.extend(pool.submit(one, name, seed) for seed in islice(left, 1))
    finally:
        if begun:
            for process in multiprocessing.active_children():
                process.terminate()
        pool.shutdown(cancel_futures=True)


class Tally:
    """What the seeds so far showed."""

    def __init__(self, name: str, replay: Callable[[int], str]) -> None:
        self._name = name
        self._replay = replay
        self._began_s = time.perf_counter()
        self._seeds = self._violations = self._messages = 0
        self._virtual_s = 0.0
        self._faults: Counter[str] = Counter()
        self._guards: Counter[str] = Counter()
        self._first_bad: int | None = None

    def add(self, result: Result) -> None:
        self._seeds += 1
        self._violations += len(result.violations)
        self._messages += result.messages
        self._virtual_s += result.virtual_s
        self._faults.update(result.faults)
        self._guards.update(result.guards)
        if result.violations and self._first_bad is None:
            self._first_bad = result.seed

    def summary(self) -> Summary:
        return Summary(
            simulate=self._name,
            seeds=self._seeds,
            violations=self._violations,
            virtual_s=round(self._virtual_s, 3),
            wall_s=round(time.perf_counter() - self._began_s, 3),
            messages=self._messages,
            faults=dict(sorted(self._faults.items())),
            guards=dict(sorted(self._guards.items())),
            replay=None if self._first_bad is None else self._replay(self._first_bad),
        )
