"""What is asked of every kind's simulation: promises are kept, guards decide, planted bugs are found."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from tests.simulation.planting import Bed, Plant

import capellini.queues
from capellini.proof.suites import Result, one

GUARD = re.compile(r'guards\[\s*((?:"[^"]+"|[^\]"])+)\]')
NAME = re.compile(r'"([^"]+)"')


@cache
def undisturbed(kind: str, seed: int) -> Result:
    """A run of the code as it is. A function of its seed: the tests of a file share it."""
    return one(kind, seed)


def no_promise_is_broken(kind: str, results: list[Result]) -> None:
    found = [f"seed {result.seed}: {violation}" for result in results for violation in result.violations]
    assert found == [], f"replay with: capellini simulate {kind} --seed {found[0].split(':')[0][5:]}"


def decided(results: list[Result]) -> Counter[str]:
    return sum((Counter(result.guards) for result in results), Counter())


def faults(results: list[Result]) -> set[str]:
    return {fault for result in results for fault in result.faults}


def every_guard_decided(kind: str, results: list[Result], elsewhere: dict[str, str], least: int) -> None:
    """`elsewhere`: guards that these seeds need not reach, each with the reason."""
    guards = guards_in_the_code(kind)
    assert len(guards) >= least
    idle = guards - set(+decided(results)) - elsewhere.keys()
    assert idle == set(), "no seed reached these guards: they may as well not be there"
    assert elsewhere.keys() <= guards, "a guard that is gone needs no excuse"


def guards_in_the_code(kind: str) -> set[str]:
    found: set[str] = set()
    for path in (Path(next(iter(capellini.queues.__path__))) / kind).glob("*.py"):
        for match in GUARD.finditer(path.read_text()):
            found.update(NAME.findall(match.group(1)))
    return found


def it_is_a_function_of_its_seed(kind: str, seed: int) -> None:
    first = one(kind, seed, keep_history=True)
    assert first.history and first == one(kind, seed, keep_history=True)


def it_is_found(bed: Bed, plant: Plant) -> None:
    again = f"run python -m tests.simulation.find_plants {bed.kind} {plant.name}"
    seeds = bed.seeds_of(plant.name)
    assert seeds, f"no seed is known for it: {again}"
    assert not undisturbed(bed.kind, seeds[0]).violations, "found without the bug, too"
    if not any(bed.found_at(plant, seed) for seed in seeds):
        pytest.fail(f"not found at seeds {seeds}: {again}")
