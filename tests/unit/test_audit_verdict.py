"""One life, judged: what is a fault, what is honest, and what nobody can know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capellini.pipeline.audit.digest import holes
from capellini.pipeline.audit.runs import BLOCK, COLUMN, OTHER, Runs, joined, judged, overlaps, split
from capellini.pipeline.audit.verdict import NO_VERSION, Rules, Told, Window, judge, over

RULES = Rules(ended_s=10_000.0, drained=None)
GAP = Window("n", "i", 5, 2, 2.0, 3.0)


def life(*said: str) -> list[Told]:
    """ "kind version at [incarnation [detail]]", one after the other."""
    found = []
    for number, text in enumerate(said, 1):
        kind, version, at, *who = text.split()
        incarnation, detail = (*who, *("i", "")[len(who) :])
        found.append(Told(kind, int(version), float(at), "n", incarnation, number, detail))
    return found


@pytest.mark.parametrize(
    ("said", "faults"),
    [
        (("put 0 1", "delivered 1 2", "acked 1 3"), []),
        (("put 0 1", "delivered 1 2", "nacked 1 3", "delivered 2 4", "acked 2 5"), []),
        (("put 0 1", "delivered 1 2", "delivered 2 40", "acked 2 50"), []),  # visibility ended
        (("put 0 1",), ["lost"]),
        (("put 0 1", "repaired 0 9"), ["lost"]),
        (("repaired 0 9",), []),
        (("delivered 1 2", "acked 1 3"), []),  # its put was never confirmed
        (("put 0 1", "delivered 1 2"), ["stuck"]),
        (("put 0 1", "expired 0 2"), []),
        (("put 0 1", "delivered 1 2", "delivered 1 3", "acked 1 4"), ["two_holders"]),
        (("put 0 1", "delivered 1 2", "acked 1 3", "delivered 2 9"), ["delivered_again"]),
        (("put 0 1", "delivered 1 2", "delivered 2 3", "acked 1 9"), ["stale_receipt"]),
        (("put 0 1", "delivered 1 2", "acked 1 3", "acked 1 9"), ["stale_receipt"]),
        (("put 0 1", "delivered 1 2", "delivered 2 3", "nacked 1 9", "acked 2 10"), ["stale_receipt"]),
        (("put 0 1", "delivered 1 2", "delivered 2 3.2", "nacked 1 3.4", "acked 2 10"), []),  # clocks may differ
        (("put 0 1", "delivered 1 2", "dead 0 3"), ["dead"]),
        (("settled 1 1", "delivered 2 9"), ["delivered_again"]),
    ],
)
def test_faults_of_work_queues(said: tuple[str, ...], faults: list[str]) -> None:
    assert [each.fault for each in judge("q", life(*said), RULES)] == faults


@pytest.mark.parametrize(
    ("said", "faults"),
    [
        (("put 0 1", "delivered 1 100.5", "acked 1 101"), []),
        (("put 0 1", "delivered 1 99.5", "acked 1 101"), []),  # clocks may differ
        (("put 0 1", "delivered 1 98", "acked 1 101"), ["early"]),
        (("put 0 1", "delivered 1 104", "acked 1 105"), ["late"]),
        (("put 0 1 i 90000", "delivered 1 90", "acked 1 101"), []),  # its due, and its id says a later one
        (("put 0 1 i 90000", "delivered 1 88", "acked 1 101"), ["early"]),
        (("put 0 1 i 90000", "delivered 1 102", "acked 1 103"), []),
        (("delivered 1 75", "acked 1 101"), []),  # its put was never confirmed: its due may have been before its id's
        (("delivered 1 65", "acked 1 101"), ["early"]),
        (("put 0 1", "delivered 1 101 a", "delivered 1 102 b", "acked 1 103 b"), []),  # a takeover
        (("put 0 1", "delivered 1 101 a", "delivered 1 102 a", "acked 1 103 a"), ["two_holders"]),
    ],
)
def test_faults_of_timed_queues(said: tuple[str, ...], faults: list[str]) -> None:
    assert [each.fault for each in judge("q", life(*said), RULES, due_s=100.0)] == faults


def test_a_timed_message_that_is_not_due_yet_waits() -> None:
    rules = Rules(ended_s=50.0, stuck_s=1.0)
    assert judge("q", life("put 0 1"), rules, due_s=100.0) == []
    assert [each.fault for each in judge("q", life("put 0 1"), Rules(200.0, stuck_s=1.0), due_s=100.0)] == ["stuck"]


@pytest.mark.parametrize(
    ("said", "faults"),
    [
        (("put 0 1",), ["unknown"]),
        (("put 0 9",), ["lost"]),  # what is missing happened before it was put
        (("put 0 1", "delivered 1 2", "delivered 2 3", "acked 1 9"), ["stale_receipt"]),  # this is seen, not missed
    ],
)
def test_a_gap_explains_what_is_missing_and_excuses_nothing_that_is_seen(
    said: tuple[str, ...], faults: list[str]
) -> None:
    assert [each.fault for each in judge("q", life(*said), RULES, [GAP])] == faults


def test_an_event_that_was_read_twice_is_one() -> None:
    told = life("put 0 1", "delivered 1 2", "acked 1 3")
    assert judge("q", [*told, *reversed(told)], RULES) == []


def columns(*rows: tuple[str, int, int, int]) -> Runs:
    """(kind, version, first, count)"""
    kinds, versions, firsts, counts = zip(*rows, strict=True)
    column = np.array([COLUMN.get(kind, OTHER) for kind in kinds])
    zeros = np.zeros(len(rows), dtype=np.int64)
    return Runs(zeros, column, np.array(versions), np.array(firsts), np.array(counts))


def test_neighbours_are_joined_and_overlaps_stay_apart() -> None:
    runs = joined(columns(("put", 0, 5, 5), ("put", 0, 0, 5), ("put", 0, 12, 1), ("put", 0, 8, 2), ("acked", 1, 10, 1)))
    found = sorted(zip(runs.column.tolist(), runs.first.tolist(), runs.count.tolist(), strict=True))
    assert found == [(COLUMN["put"], 0, 5 + 5), (COLUMN["put"], 8, 2), (COLUMN["put"], 12, 1), (COLUMN["acked"], 10, 1)]


def test_runs_are_cut_at_blocks() -> None:
    block, runs = split(columns(("put", 0, BLOCK - 2, 2 * BLOCK), ("put", 0, 3, 1)))
    assert block.tolist() == [0, 1, 2, 0]
    assert runs.first.tolist() == [BLOCK - 2, BLOCK, 2 * BLOCK, 3] and runs.count.tolist() == [2, BLOCK, BLOCK - 2, 1]


def test_plain_lives_are_counted_and_the_others_named_as_runs() -> None:
    runs = columns(
        ("put", 0, 0, 100), ("delivered", 1, 0, 60), ("acked", 1, 0, 50), ("delivered", 2, 10, 2),
        ("expired", 0, 90, 10), ("repaired", 0, 200, 5),
    )  # fmt: skip
    found = judged(0, runs.column, runs.version, runs.first, runs.count)
    assert (found.lives, found.plain) == (100, 48 + 10)
    assert pairs(found.suspects) == [(10, 2), (50, 40)]
    assert (pairs(found.acked), pairs(found.ended)) == ([(0, 10), (12, 38)], [(90, 10)])


def pairs(stretches: tuple[Any, Any]) -> list[tuple[int, int]]:
    first, count = stretches
    return list(zip(first.tolist(), count.tolist(), strict=True))


def test_what_an_earlier_audit_settled_counts_no_more_unless_something_was_told_since() -> None:
    runs = columns(("settled", 1, 0, 10), ("put", 0, 5, 1), ("delivered", 2, 7, 1))
    found = judged(0, runs.column, runs.version, runs.first, runs.count)
    assert (found.lives, found.plain, pairs(found.suspects)) == (1, 0, [(7, 1)])


@pytest.mark.parametrize(
    ("said", "version"),
    [
        (("put 0 1", "delivered 1 2"), None),
        (("put 0 1", "delivered 1 2", "nacked 1 3", "delivered 2 4", "acked 2 5"), 2),
        (("put 0 1", "expired 0 2"), NO_VERSION),
        (("settled 1 1", "delivered 2 2"), 2),
    ],
)
def test_a_life_is_over_with_the_version_that_later_events_are_held_against(
    said: tuple[str, ...], version: int | None
) -> None:
    assert over(life(*said)) == version


def test_a_version_that_is_not_the_first_is_no_plain_life() -> None:
    runs = columns(
        ("put", 0, 0, 2), ("delivered", 1, 0, 1), ("delivered", 2, 1, 1), ("acked", 1, 0, 1), ("acked", 2, 1, 1)
    )  # fmt: skip
    found = judged(0, runs.column, runs.version, runs.first, runs.count)
    assert (found.plain, pairs(found.suspects)) == (1, [(1, 1)])


def test_ids_that_runs_share_with_stretches() -> None:
    index, ids = overlaps(np.array([0, 8, 30]), np.array([10, 10, 5]), np.array([5, 9, 100]), np.array([7, 12, 200]))
    assert list(zip(index.tolist(), ids.tolist(), strict=True)) == [(0, 5), (0, 6), (0, 9), (1, 9), (1, 10), (1, 11)]


def test_holes_between_numbers() -> None:
    first, count = np.array([11, 3, 5]), np.array([2, 3, 1])
    times = np.array([9.0, 1.0, 3.0]), np.array([10.0, 2.0, 3.0])
    found = holes("n", "i", first, count, *times, closed=False)
    assert [(each.first, each.count, each.after_s, each.before_s) for each in found] == [
        (1, 2, float("-inf"), 1.0), (6, 5, 3.0, 9.0), (13, 0, 10.0, float("inf")),
    ]  # fmt: skip
