"""Runs of slots against the obvious model: one state per slot."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from capellini.queues.work.runs import FRESH, TIMED, Run, Runs, changed, decode, encode, overlaid, pieces

SIZE = 24
Slot = tuple[int, int, int]  # kind, version, at_ms
NOTHING: Slot = (FRESH, 0, 0)


def states() -> st.SearchStrategy[Slot]:
    def state(kind: int, version: int, at_ms: int) -> Slot:
        return NOTHING if kind == FRESH else (kind, version, at_ms if kind in TIMED else 0)

    return st.builds(state, st.integers(0, 6), st.integers(0, 3), st.sampled_from((0, 5, 1_700_000_000_000)))


slots_of_a_bucket = st.lists(states(), min_size=SIZE, max_size=SIZE)
stretch = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda pair: (min(pair), max(pair)))


def runs_of(slots: list[Slot]) -> Runs:
    """One slot at a time, through the code under test."""
    runs: Runs = ()
    for at, (kind, version, at_ms) in enumerate(slots):
        if kind != FRESH:
            new = Run(at, at + 1, kind, version, at_ms)
            runs, _ = changed(runs, at, at + 1, lambda _piece: new)  # noqa: B023
    return runs


def slots_of(runs: Runs) -> list[Slot]:
    slots = [NOTHING] * SIZE
    for run in runs:
        for at in range(run.start, run.end):
            slots[at] = (run.kind, run.version, run.at_ms)
    return slots


@given(slots_of_a_bucket)
def test_runs_are_in_order_apart_and_as_long_as_can_be(slots: list[Slot]) -> None:
    runs = runs_of(slots)
    assert slots_of(runs) == slots
    for one, next in itertools.pairwise(runs):
        assert one.start < one.end <= next.start
        assert one.end < next.start or one[2:] != next[2:]
    assert all(run.kind != FRESH for run in runs)


@given(slots_of_a_bucket)
def test_encoded_and_decoded_they_are_the_same(slots: list[Slot]) -> None:
    runs = runs_of(slots)
    assert decode(encode(runs)) == runs


@given(slots_of_a_bucket, stretch)
def test_pieces_cover_the_stretch_once(slots: list[Slot], bounds: tuple[int, int]) -> None:
    start, end = bounds
    at = start
    for piece in pieces(runs_of(slots), start, end):
        assert piece.start == at < piece.end
        assert slots[piece.start : piece.end] == [(piece.kind, piece.version, piece.at_ms)] * (piece.end - piece.start)
        at = piece.end
    assert at == end


@given(slots_of_a_bucket, stretch, st.sets(st.integers(0, 6)), states())
def test_a_change_replaces_what_it_decides_on_and_nothing_else(
    slots: list[Slot], bounds: tuple[int, int], kinds: set[int], new: Slot
) -> None:
    start, end = bounds
    runs = runs_of(slots)

    def decide(piece: Run) -> Run | None:
        return Run(piece.start, piece.end, *new) if piece.kind in kinds else None

    after, replaced = changed(runs, start, end, decide)
    expected = [new if start <= at < end and slot[0] in kinds else slot for at, slot in enumerate(slots)]
    assert slots_of(after) == expected
    assert decode(encode(after)) == after == runs_of(expected)
    touched = [at for piece in replaced for at in range(piece.start, piece.end)]
    assert touched == [at for at in range(start, end) if slots[at][0] in kinds]
    if not replaced:
        assert after is runs


@given(slots_of_a_bucket, st.lists(stretch, max_size=6), states())
def test_what_is_laid_over_replaces_its_slots_and_nothing_else(
    slots: list[Slot], stretches: list[tuple[int, int]], new: Slot
) -> None:
    expected, laid, taken = list(slots), [], set[int]()
    for start, end in stretches:
        if start < end and taken.isdisjoint(range(start, end)):
            taken.update(range(start, end))
            laid.append(Run(start, end, *new))
            expected[start:end] = [new] * (end - start)
    assert overlaid(runs_of(slots), laid) == runs_of(expected)
