"""The suites of simulated runs, and running many seeds of one.

A suite is a function of a seed. Suites are named by module and imported when asked for.
"""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
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
    result = suite(name)(seed)
    return result if keep_history else msgspec.structs.replace(result, history=[])


def many(name: str, seeds: Iterable[int], jobs: int = 1) -> Iterator[Result]:
    """Each seed's result, in order."""
    if jobs <= 1:
        yield from (one(name, seed) for seed in seeds)
        return
    numbers = list(seeds)
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(one, [name] * len(numbers), numbers, chunksize=4)


def summed(name: str, results: Iterable[Result], replay: Callable[[int], str]) -> tuple[Summary, list[Result]]:
    """All results in one, and those with violations. The time is that of getting them."""
    began_s = time.perf_counter()
    seeds = violations = messages = 0
    virtual_s = 0.0
    faults: Counter[str] = Counter()
    guards: Counter[str] = Counter()
    bad: list[Result] = []
    for result in results:
        seeds += 1
        violations += len(result.violations)
        messages += result.messages
        virtual_s += result.virtual_s
        faults.update(result.faults)
        guards.update(result.guards)
        if result.violations:
            bad.append(result)
    summary = Summary(
        simulate=name,
        seeds=seeds,
        violations=violations,
        virtual_s=round(virtual_s, 3),
        wall_s=round(time.perf_counter() - began_s, 3),
        messages=messages,
        faults=dict(sorted(faults.items())),
        guards=dict(sorted(guards.items())),
        replay=replay(bad[0].seed) if bad else None,
    )
    return summary, bad
