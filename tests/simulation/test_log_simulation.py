"""Log queues in a simulated world: no promise is broken at any seed, every guard had to decide, planted bugs are
found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.simulation import verdicts
from tests.simulation.log_plants import plants
from tests.simulation.planting import Plant, planted
from tests.unit import test_log_deliveries, test_log_guards, test_log_ordering, test_log_owner, test_log_sealing

from capellini.model.errors import CapelliniError
from capellini.proof.suites import Result

SEEDS = (*range(1, 41), 44, 54, 57, 59, 63, 79, 105, 111, 189, 195, 378)  # the last for guards that decide seldom
LEAST_PLANTS = 15  # with fewer the simulation has not shown that it finds bugs

# Bugs that need a pause, a seek or a lost answer at the one moment, or a clock that is off by an hour: each has a run
# that makes it so.
OWN_RUNS: dict[str, Callable[[], None]] = {
    "another_writer_when_a_listing_is_heard_of_late": (
        test_log_guards.test_an_extent_whose_listing_is_heard_of_late_gets_no_second_writer
    ),
    "appended_again_without_a_seal": (
        partial(test_log_sealing.test_a_block_that_cannot_be_written_seals_and_nobody_notices, "ap")
    ),
    "confirmed_after_the_lease": (
        test_log_guards.test_a_writer_that_hears_of_its_block_after_its_lease_confirms_nothing
    ),
    "dead_letter_put_under_a_new_key_each_time": (
        test_log_deliveries.test_many_dead_letters_go_beside_each_other_and_each_once
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
    "taken_for_nobody_and_kept": (test_log_owner.test_what_was_taken_for_a_caller_who_left_is_given_back_at_once),
    "what_may_be_there_told_as_not_done": (
        test_log_guards.test_what_a_broken_writer_handed_back_may_be_there_until_its_extent_is_sealed
    ),
}

# Guards that these seeds need not reach, each with the reason.
ELSEWHERE: dict[str, str] = {
    "block is not there": "a block that is missing below the end: tests/unit/test_log_owner.py",
    "burying put off": "the dead letters are away: tests/unit/test_log_deliveries.py",
    "delayed batch under a new producer": "its extent was dropped meanwhile: tests/unit/test_log_lanes.py",
    "delayed messages not given back": "they come back by themselves when they are not acked",
    "extent dropped: too old": "retention is longer than a run",
    "first not raised": "an extent is opened while a list is cut: tests/unit/test_log_sealing.py",
    "extent not given up": "nodes of a run crash, they do not leave",
    "chain's end got its writer meanwhile": "an answer in the instant of a look: tests/unit/test_log_guards.py",
    "deleted group forgotten": "an hour later: tests/unit/test_log_groups.py",
    "listing heard of too late": "an answer that is lost for seconds: tests/unit/test_log_guards.py",
    "message skipped: too old for the group": "no group of a run skips: tests/unit/test_log_deliveries.py",
    "move begun anew: its extent is gone": "tests/unit/test_log_node.py",
    "not confirmed: the lease is over": "a pause within a block's few milliseconds: tests/unit/test_log_guards.py",
    "numbers used again: the disk was full": "simulated disks are never full: tests/unit/test_log_sealing.py",
    "put refused: the queue is full": "no queue of a run has a limit: tests/unit/test_log_node.py",
    "put sent on to another node": "of processes that write nothing themselves: there are none in a run",
    "put sent on: there are extents enough": "tests/unit/test_log_scaling.py",
    "put taken here: the other node did not": "tests/unit/test_log_scaling.py",
    "queue not given up": "nodes of a run crash, they do not leave",
    "too many deliveries in flight": "a quarter of a million",
}


SEEDED = [plant for plant in plants.plants if plant.name not in OWN_RUNS]


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [verdicts.undisturbed("log", seed) for seed in SEEDS]


@pytest.mark.slow
def test_no_promise_is_broken(results: list[Result]) -> None:
    verdicts.no_promise_is_broken("log", results)


@pytest.mark.slow
def test_every_guard_decided(results: list[Result]) -> None:
    verdicts.every_guard_decided("log", results, ELSEWHERE, least=25)
    assert verdicts.faults(results) >= {"client_crash", "client_pause", "clock_step", "late_write", "cut"}


def test_a_run_is_a_function_of_its_seed() -> None:
    verdicts.it_is_a_function_of_its_seed("log", 3)


def test_most_planted_bugs_have_seeds_that_find_them() -> None:
    assert len(SEEDED) >= LEAST_PLANTS


@pytest.mark.parametrize("name", OWN_RUNS)
def test_a_planted_bug_that_seeds_hardly_reach_is_found_by_a_run_of_its_own(name: str) -> None:
    with planted(plants.named(name)), pytest.raises((AssertionError, CapelliniError, pytest.fail.Exception)):
        OWN_RUNS[name]()


@pytest.mark.slow
@pytest.mark.parametrize("plant", SEEDED, ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    verdicts.it_is_found(plants, plant)
