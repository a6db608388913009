"""Log queues in a simulated world: no promise is broken at any seed, every guard had to decide, planted bugs are
found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.simulation.log_plants import PLANTS, seeds_of
from tests.simulation.planted import Plant, planted
from tests.unit import test_log_guards, test_log_ordering, test_log_owner, test_log_writing

import capellini.queues
from capellini.model.errors import CapelliniError
from capellini.proof.suites import Result, many, one

SEEDS = (*range(1, 41), 52, 55)  # the last two for guards that decide seldom
LEAST_PLANTS = 15  # with fewer the simulation has not shown that it finds bugs
GUARD = re.compile(r'guards\[\s*((?:"[^"]+"|[^\]"])+)\]')
NAME = re.compile(r'"([^"]+)"')

# Bugs that need a pause, a seek or a lost answer at the one moment, or a clock that is off by an hour: each has a run
# that makes it so.
OWN_RUNS: dict[str, Callable[[], None]] = {
    "appended_again_without_a_seal": (
        partial(test_log_writing.test_a_block_that_cannot_be_written_seals_and_nobody_notices, "ap")
    ),
    "confirmed_after_the_lease": (
        test_log_guards.test_a_writer_that_hears_of_its_block_after_its_lease_confirms_nothing
    ),
    "dead_letter_put_under_a_new_key_each_time": (
        test_log_owner.test_many_dead_letters_go_beside_each_other_and_each_once
    ),
    "epoch_not_in_the_key": test_log_owner.test_acks_of_an_owner_after_one_whose_clock_was_far_ahead_are_kept,
    "group_sought_without_waiting_for_the_caches": (
        test_log_owner.test_nobody_uses_a_group_as_it_was_when_a_seek_has_returned
    ),
    "line_goes_on_before_it_is_durable": (
        partial(test_log_ordering.test_a_line_goes_on_only_when_its_ack_is_durable, "total")
    ),
    "newer_version_of_a_group_not_looked_for": (
        test_log_owner.test_a_node_that_meets_a_later_version_of_a_group_looks_again
    ),
    "receipt_of_another_version_of_the_group_accepted": (
        test_log_owner.test_an_owner_settles_nothing_of_another_version_of_its_group
    ),
    "owner_acts_after_its_lease": test_log_owner.test_an_owner_that_was_paused_beyond_its_lease_confirms_no_ack,
    "row_that_was_taken_unheard_left_alone": (
        test_log_owner.test_whoever_took_a_row_and_failed_to_begin_goes_on_trying
    ),
    "what_may_be_there_told_as_not_done": (
        test_log_guards.test_what_a_broken_writer_handed_back_may_be_there_until_its_extent_is_sealed
    ),
}

# Guards that these seeds need not reach, each with the reason.
ELSEWHERE: dict[str, str] = {
    "block is not there": "a block that is missing below the end: tests/unit/test_log_owner.py",
    "burying put off": "the dead letters are away: tests/unit/test_log_owner.py",
    "delayed batch under a new producer": "its extent was dropped meanwhile: tests/unit/test_log_delaying.py",
    "delayed messages not given back": "they come back by themselves when they are not acked",
    "extent dropped: too old": "retention is longer than a run",
    "first not raised": "an extent is opened while a list is cut: tests/unit/test_log_writing.py",
    "extent not given up": "nodes of a run crash, they do not leave",
    "message skipped: too old for the group": "no group of a run skips: tests/unit/test_log_owner.py",
    "move begun anew: its extent is gone": "tests/unit/test_log_node.py",
    "not confirmed: the lease is over": "a pause within a block's few milliseconds: tests/unit/test_log_guards.py",
    "numbers used again: the disk was full": "simulated disks are never full: tests/unit/test_log_writing.py",
    "put refused: the queue is full": "no queue of a run has a limit: tests/unit/test_log_node.py",
    "put sent on to another node": "of processes that write nothing themselves: there are none in a run",
    "put sent on: there are extents enough": "tests/unit/test_log_scaling.py",
    "put taken here: the other node did not": "tests/unit/test_log_scaling.py",
    "queue not given up": "nodes of a run crash, they do not leave",
    "too many deliveries in flight": "a quarter of a million",
}


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return list(many("log", SEEDS))


@pytest.mark.slow
def test_no_promise_is_broken(results: list[Result]) -> None:
    found = [f"seed {result.seed}: {violation}" for result in results for violation in result.violations]
    assert found == [], f"replay with: capellini simulate log --seed {found[0].split(':')[0][5:]}"


@pytest.mark.slow
def test_every_guard_decided(results: list[Result]) -> None:
    decided: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for result in results:
        decided.update(result.guards)
        faults.update(result.faults)
    guards = guards_in_the_code()
    assert len(guards) >= 25
    idle = {guard for guard in guards if not decided[guard]} - ELSEWHERE.keys()
    assert idle == set(), "no seed reached these guards: they may as well not be there"
    assert ELSEWHERE.keys() <= guards, "a guard that is gone needs no excuse"
    assert {"client_crash", "client_pause", "clock_step", "late_write", "cut"} <= set(faults)


def test_a_run_is_a_function_of_its_seed() -> None:
    assert one("log", 3, keep_history=True) == one("log", 3, keep_history=True)


def test_planted_bugs_have_seeds_that_find_them_but_for_those_that_have_a_run_of_their_own() -> None:
    unfound = {plant.name for plant in PLANTS if not seeds_of(plant.name)}
    assert unfound == OWN_RUNS.keys()
    assert len(PLANTS) - len(unfound) >= LEAST_PLANTS


@pytest.mark.parametrize("name", OWN_RUNS)
def test_a_planted_bug_that_seeds_hardly_reach_is_found_by_a_run_of_its_own(name: str) -> None:
    (plant,) = [plant for plant in PLANTS if plant.name == name]
    with planted(plant), pytest.raises((AssertionError, CapelliniError, pytest.fail.Exception)):
        OWN_RUNS[name]()


@pytest.mark.slow
@pytest.mark.parametrize("plant", [plant for plant in PLANTS if seeds_of(plant.name)], ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    seeds = seeds_of(plant.name)
    broken: set[int] = set()
    for seed in seeds:
        with planted(plant):
            broken |= {violation.promise for violation in one("log", seed).violations}
        if broken & set(plant.promises):
            return
    pytest.fail(f"not found at seeds {seeds}: run python -m tests.simulation.log_plants {plant.name}")


def guards_in_the_code() -> set[str]:
    found: set[str] = set()
    for path in (Path(next(iter(capellini.queues.__path__))) / "log").glob("*.py"):
        for match in GUARD.finditer(path.read_text()):
            found.update(NAME.findall(match.group(1)))
    return found
