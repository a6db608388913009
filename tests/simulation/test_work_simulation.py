"""Work queues in a simulated world: no promise is broken at any seed, and every guard had to decide."""

from __future__ import annotations

import pytest
from tests.simulation import verdicts
from tests.simulation.planting import Plant
from tests.simulation.work_plants import plants

from capellini.proof.suites import Result

SEEDS = (*range(1, 61), 117)  # the last one for a guard that decides seldom

# Guards that these seeds need not reach, each with the reason; `test_work_guards` reaches them by hand.
ELSEWHERE = {
    "bucket was dropped before": "its dropper must die between the drop and the list",
    "bucket not finished after all": "only a bucket that was wrongly called done meets it, and the code calls none so",
    "list not told": "the store must go away between a claim and its telling: about one seed in fifty",
    "state without a message": "its bucket must go between two reads of one visit: about one seed in a hundred",
    "move went with what was purged": "dead letters must be purged while one comes, and nobody know that it came",
    "get went away with its messages": "the caller must go in the very instant of its answer",
}


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [verdicts.undisturbed("work", seed) for seed in SEEDS]


@pytest.mark.slow
def test_no_promise_is_broken(results: list[Result]) -> None:
    verdicts.no_promise_is_broken("work", results)


@pytest.mark.slow
def test_every_guard_decided(results: list[Result]) -> None:
    verdicts.every_guard_decided("work", results, ELSEWHERE, least=15)
    decided = verdicts.decided(results)
    assert decided["lost answer resolved: done"] and decided["lost answer resolved: not_done"]


def test_a_run_is_a_function_of_its_seed() -> None:
    verdicts.it_is_a_function_of_its_seed("work", 3)


@pytest.mark.parametrize("plant", plants.plants, ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    verdicts.it_is_found(plants, plant)
