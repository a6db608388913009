"""Work queues in a simulated world: no promise is broken at any seed, and every guard had to decide."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.simulation.planted import PLANTS, Plant, planted, seeds_of

import capellini.queues
from capellini.proof.suites import Result, many, one

SEEDS = range(1, 61)
GUARD = re.compile(r'guards\[\s*((?:"[^"]+"|[^\]"])+)\]')
NAME = re.compile(r'"([^"]+)"')

# Guards that these seeds need not reach, each with the reason; `test_work_guards` reaches them by hand.
ELSEWHERE = {
    "bucket was dropped before": "its dropper must die between the drop and the list",
    "bucket not finished after all": "only a bucket that was wrongly called done meets it, and the code calls none so",
    "list not told": "the store must go away between a claim and its telling: about one seed in fifty",
    "state without a message": "its bucket must go between two reads of one visit: about one seed in a hundred",
    "get went away with its messages": "the caller must go in the very instant of its answer",
}


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return list(many("work", SEEDS))


def test_no_promise_is_broken(results: list[Result]) -> None:
    found = [f"seed {result.seed}: {violation}" for result in results for violation in result.violations]
    assert found == [], f"replay with: capellini simulate work --seed {found[0].split(':')[0][5:]}"


def test_every_guard_decided(results: list[Result]) -> None:
    decided: Counter[str] = Counter()
    for result in results:
        decided.update(result.guards)
    guards = guards_in_the_code()
    assert len(guards) >= 15
    idle = {guard for guard in guards if not decided[guard]} - ELSEWHERE.keys()
    assert idle == set(), "no seed reached these guards: they may as well not be there"
    assert ELSEWHERE.keys() <= guards, "a guard that is gone needs no excuse"
    assert decided["lost answer resolved: done"] and decided["lost answer resolved: not_done"]


def test_a_run_is_a_function_of_its_seed() -> None:
    assert one("work", 3, keep_history=True) == one("work", 3, keep_history=True)


@pytest.mark.parametrize("plant", PLANTS, ids=[plant.name for plant in PLANTS])
def test_a_planted_bug_is_found(plant: Plant) -> None:
    seeds = seeds_of(plant.name)
    assert seeds, f"no seed is known for it: run python -m tests.simulation.find_plants {plant.name}"
    assert not one("work", seeds[0]).violations, "found without the bug, too"
    broken: set[int] = set()
    for seed in seeds:
        with planted(plant):
            broken |= {violation.promise for violation in one("work", seed).violations}
        if broken & set(plant.promises):
            return
    pytest.fail(f"not found at seeds {seeds}: run python -m tests.simulation.find_plants {plant.name}")


def guards_in_the_code() -> set[str]:
    found: set[str] = set()
    for path in (Path(next(iter(capellini.queues.__path__))) / "work").glob("*.py"):
        for match in GUARD.finditer(path.read_text()):
            found.update(NAME.findall(match.group(1)))
    return found
