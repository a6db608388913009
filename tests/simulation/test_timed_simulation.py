"""Timed queues in a simulated world: no promise is broken at any seed, every guard had to decide, planted bugs are
found."""

from __future__ import annotations

import pytest
from tests.simulation import verdicts
from tests.simulation.planting import Plant
from tests.simulation.timed_plants import BY_HAND, plants

from capellini.proof.suites import Result

SEEDS = range(1, 41)
SEEDED = [plant for plant in plants.plants if plant.name not in BY_HAND]
LEAST_PLANTS = 14  # with fewer the simulation has not shown that it finds bugs

# Guards that these seeds need not reach, each with the reason; `test_timed_guards`, `_changes` and `_requests` reach
# them by hand.
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
    return [verdicts.undisturbed("timed", seed) for seed in SEEDS]


@pytest.mark.slow
def test_no_promise_is_broken(results: list[Result]) -> None:
    verdicts.no_promise_is_broken("timed", results)


@pytest.mark.slow
def test_every_guard_decided(results: list[Result]) -> None:
    verdicts.every_guard_decided("timed", results, ELSEWHERE, least=20)
    assert verdicts.faults(results) >= {"client_crash", "client_pause", "clock_step", "late_write", "cut"}


def test_a_run_is_a_function_of_its_seed() -> None:
    verdicts.it_is_a_function_of_its_seed("timed", 3)


def test_most_planted_bugs_have_seeds_that_find_them() -> None:
    assert len(SEEDED) >= LEAST_PLANTS


@pytest.mark.slow
@pytest.mark.parametrize("plant", SEEDED, ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    verdicts.it_is_found(plants, plant)
