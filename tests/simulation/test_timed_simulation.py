"""Timed queues in a simulated world: no promise is broken at any seed, every guard had to decide, planted bugs are
found."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.simulation.planted import Plant, planted
from tests.simulation.timed_plants import BY_HAND, PLANTS, seeds_of

import capellini.queues
from capellini.proof.suites import Result, many, one

SEEDS = range(1, 41)
SEEDED = [plant for plant in PLANTS if plant.name not in BY_HAND]
LEAST_PLANTS = 14  # with fewer the simulation has not shown that it finds bugs
GUARD = re.compile(r'guards\[\s*((?:"[^"]+"|[^\]"])+)\]')
NAME = re.compile(r'"([^"]+)"')

# Guards that these seeds need not reach, each with the reason; `test_timed_guards` and
# `test_timed_changes` reach them by hand.
ELSEWHERE = {
    "background work failed": "its holder must stop while it waits for a record",
    "dead letter not taken yet": "the dead letters' queue must be away",
    "durable only after the lease": "the answer must come in the few instants around the lease's end",
    "marker of a move outdated": "a move's marker must be lost for seconds, and the message be changed again",
    "move finished by the next change": "a holder must die between the two writes of a move that is then changed",
    "move resumed": "a holder must die between the note of a move and its end: one seed in ten",
    "put met an endless horizon": "a put must hang until its queue was deleted and cleared",
    "put too late for another copy": "a horizon must jump by half a minute",
    "row of a move made void": "a move's row must be lost for seconds, and the message be changed again",
    "row of a move written by the reader": "a holder must die between a marker and its row: one seed in a hundred",
    "second copy found by its id": "a cancel must come between a put's second copy and its reading: one seed in twenty",
    "shard not given up": "the store must be away when a node stops",
    "snapshot put off": "the store must be away when one is due: one seed in thirty",
    "unfinished row is gone": "a row must outlive its time to live: weeks",
}


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return list(many("timed", SEEDS))


@pytest.mark.slow
def test_no_promise_is_broken(results: list[Result]) -> None:
    found = [f"seed {result.seed}: {violation}" for result in results for violation in result.violations]
    assert found == [], f"replay with: capellini simulate timed --seed {found[0].split(':')[0][5:]}"


@pytest.mark.slow
def test_every_guard_decided(results: list[Result]) -> None:
    decided: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for result in results:
        decided.update(result.guards)
        faults.update(result.faults)
    guards = guards_in_the_code()
    assert len(guards) >= 20
    idle = {guard for guard in guards if not decided[guard]} - ELSEWHERE.keys()
    assert idle == set(), "no seed reached these guards: they may as well not be there"
    assert ELSEWHERE.keys() <= guards, "a guard that is gone needs no excuse"
    assert {"client_crash", "client_pause", "clock_step", "late_write", "cut"} <= set(faults)


def test_a_run_is_a_function_of_its_seed() -> None:
    assert one("timed", 3, keep_history=True) == one("timed", 3, keep_history=True)


def test_most_planted_bugs_have_seeds_that_find_them() -> None:
    assert sum(bool(seeds_of(plant.name)) for plant in SEEDED) >= LEAST_PLANTS


@pytest.mark.slow
@pytest.mark.parametrize("plant", SEEDED, ids=[plant.name for plant in SEEDED])
def test_a_planted_bug_is_found(plant: Plant) -> None:
    seeds = seeds_of(plant.name)
    assert seeds, f"no seed is known for it: run python -m tests.simulation.timed_plants {plant.name}"
    broken: set[int] = set()
    for seed in seeds:
        with planted(plant):
            broken |= {violation.promise for violation in one("timed", seed).violations}
        if broken & set(plant.promises):
            return
    pytest.fail(f"not found at seeds {seeds}: run python -m tests.simulation.timed_plants {plant.name}")


def guards_in_the_code() -> set[str]:
    found: set[str] = set()
    for path in (Path(next(iter(capellini.queues.__path__))) / "timed").glob("*.py"):
        for match in GUARD.finditer(path.read_text()):
            found.update(NAME.findall(match.group(1)))
    return found
