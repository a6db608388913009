"""When a message is due: times, numbers and texts, never rounded down, never absurdly far."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capellini.model.dues import due_ms_of, due_of, later, scheduled, text_of
from capellini.model.errors import Invalid, TooLarge
from capellini.model.message import NewMessage
from capellini.model.timed import MAX_DUE_S

NOW_S = 1_794_850_000.0


@given(st.integers(0, int((NOW_S + MAX_DUE_S) * 1000)))
def test_whole_milliseconds_come_back_as_they_were(ms: int) -> None:
    assert due_ms_of(ms / 1000, NOW_S) == ms


@given(st.floats(0, NOW_S + MAX_DUE_S))
def test_a_due_is_never_rounded_down(seconds: float) -> None:
    assert due_ms_of(seconds, NOW_S) >= seconds * 1000 - 0.001
    assert due_ms_of(seconds, NOW_S) <= seconds * 1000 + 1


def test_a_zone_counts_and_a_time_without_one_is_refused() -> None:
    east = datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert due_ms_of(east, NOW_S) == due_ms_of(datetime(2030, 1, 1, tzinfo=UTC), NOW_S) == 1_893_456_000_000
    with pytest.raises(Invalid, match="no time zone"):
        due_ms_of(datetime(2030, 1, 1), NOW_S)


@pytest.mark.parametrize("due", [math.nan, math.inf, -math.inf, NOW_S + MAX_DUE_S + 1, NOW_S * 1000])
def test_what_is_no_time_or_too_far_is_refused(due: float) -> None:
    with pytest.raises(Invalid):
        due_ms_of(due, NOW_S)


def test_the_past_is_fine() -> None:
    assert due_ms_of(-5.0, NOW_S) == due_ms_of(-1e308, NOW_S) == 0
    assert due_ms_of(datetime(1950, 1, 1, tzinfo=UTC), NOW_S) == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2030-01-01T00:00:00Z", 1_893_456_000.0), ("2030-01-01T01:00:00+01:00", 1_893_456_000.0), ("12.5", 12.5)],
)
def test_texts_are_read(text: str, seconds: float) -> None:
    assert due_of(text) == seconds
    assert due_of(text_of(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "noon", "2030-13-01T00:00:00Z", "2030-01-01T00:00:00", "nan", "inf", "1e999"])
def test_texts_that_are_no_time_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        due_of(text)


def test_a_span_counts_from_now() -> None:
    assert later(timedelta(minutes=1), NOW_S) == NOW_S + 60
    assert later(5.0, NOW_S) == 5.0


def test_messages_are_checked_with_their_due() -> None:
    made = scheduled(NewMessage(b"x", {"a": "b"}, delay_s=1.5, key="k"), NOW_S, 10)
    assert (made.due_ms, made.key, made.entry.attributes) == (int(NOW_S * 1000) + 1_500, "k", {"a": "b"})
    assert scheduled(NewMessage(b"x"), NOW_S, 10).due_ms == NOW_S * 1000
    for bad in (
        NewMessage(b"x", delay_s=1.0, due=NOW_S), NewMessage(b"x", delay_s=-1.0), NewMessage(b"x", delay_s=math.nan),
        NewMessage(b"x", delay_s=MAX_DUE_S + 1), NewMessage(b"x", key=""), NewMessage(b"x", {"": "x"}),
    ):  # fmt: skip
        with pytest.raises(Invalid):
            scheduled(bad, NOW_S, 10)
    with pytest.raises(TooLarge):
        scheduled(NewMessage(b"x" * 11), NOW_S, 10)
