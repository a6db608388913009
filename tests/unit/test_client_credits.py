"""How many messages a consumer lets come: as many as its program takes, and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capellini.client.credits import BYTES, FIRST, Credits


def test_the_first_grant_is_small_and_never_above_what_the_program_wants() -> None:
    assert Credits(10_000).owed() == (FIRST, BYTES)
    assert Credits(5).owed() == (5, BYTES)


def test_a_fast_program_gets_more_and_a_slow_one_gets_less() -> None:
    credits = Credits(10_000)
    credits.owed()
    credits.came(FIRST, 3_200)
    credits.taken()
    credits.worked(FIRST, 0.01)
    assert credits.owed() == (3_200, 3_200)
    credits.came(3_200, 320_000)
    credits.taken()
    credits.worked(3_200, 3_200.0)
    assert credits.owed() == (1, 320_000)
    assert credits.owed() is None


def test_little_is_said_while_much_is_on_its_way() -> None:
    credits = Credits(100)
    credits.worked(100, 0.001)
    assert credits.owed() == (100, BYTES)
    for _ in range(24):
        credits.came(1, 100)
        credits.taken()
        assert credits.owed() is None
    credits.came(1, 100)
    credits.taken()
    assert credits.owed() == (25, 2_500)


def test_what_was_granted_to_a_lane_that_ended_is_granted_again() -> None:
    credits = Credits(100)
    assert credits.owed() == (FIRST, BYTES)
    credits.came(10, 1_000)
    credits.begin()
    assert credits.owed() == (FIRST - 10, BYTES - 1_000)


@given(st.integers(1, 50_000), st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 4 << 20), st.floats(0, 100))))
def test_what_waits_and_what_comes_is_bounded_and_the_node_never_waits_for_nothing(
    ahead: int, steps: list[tuple[int, int, float]]
) -> None:
    credits = Credits(ahead)
    granted, granted_bytes = credits.owed() or (0, 0)
    for count, size, busy_s in steps:
        came = min(count, granted)
        if came and granted_bytes > 0:
            credits.came(came, size)
            granted, granted_bytes = granted - came, granted_bytes - size
        credits.taken()
        if came:
            credits.worked(came, busy_s)
        more, more_bytes = credits.owed() or (0, 0)
        granted, granted_bytes = granted + more, granted_bytes + more_bytes
        assert 0 < granted <= ahead
        assert 0 < granted_bytes <= BYTES
