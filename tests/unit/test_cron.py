"""Ticks of cron expressions, where clocks are put forward and back, and what is no expression."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capellini.model.errors import Invalid
from capellini.queues.cron import check_cron, ticks, ticks_between

BERLIN = "Europe/Berlin"
NEW_YORK = "America/New_York"
HOUR_MS = 3_600_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def seen(cron: str, zone: str, after: str, until: str) -> list[str]:
    """As a clock in UTC shows them."""
    found = ticks_between(cron, zone, ms(after), ms(until), 1_000)
    return [datetime.fromtimestamp(each / 1000, UTC).strftime("%m-%d %H:%M") for each in found]


def test_ticks_lie_after_the_first_moment_and_not_after_the_second() -> None:
    assert seen("0 * * * *", "UTC", "2026-05-01T10:00:00Z", "2026-05-01T12:00:00Z") == ["05-01 11:00", "05-01 12:00"]
    assert ticks_between("* * * * *", "UTC", 0, 10 * HOUR_MS, 7) == [60_000 * each for each in range(1, 8)]


def test_a_clock_of_a_zone_is_what_counts() -> None:
    assert seen("0 8 * * *", BERLIN, "2026-01-10T00:00:00Z", "2026-01-11T00:00:00Z") == ["01-10 07:00"]
    assert seen("0 8 * * *", BERLIN, "2026-07-10T00:00:00Z", "2026-07-11T00:00:00Z") == ["07-10 06:00"]


def test_a_time_in_the_missing_hour_ticks_once_right_after_it() -> None:
    """On 29 March 2026 Berlin goes from 02:00 to 03:00, at 01:00 UTC."""
    assert seen("30 2 * * *", BERLIN, "2026-03-28T00:00:00Z", "2026-03-30T12:00:00Z") == [
        "03-28 01:30", "03-29 01:00", "03-30 00:30",
    ]  # fmt: skip
    assert seen("10,50 2 * * *", BERLIN, "2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z") == ["03-29 01:00"]


def test_a_time_in_the_doubled_hour_ticks_once_the_first_time() -> None:
    """On 25 October 2026 Berlin goes from 03:00 back to 02:00, at 01:00 UTC."""
    assert seen("30 2 * * *", BERLIN, "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z") == ["10-25 00:30", "10-26 01:30"]
    # from a start between the two as well: what ticked before does not tick again
    assert seen("30 2 * * *", BERLIN, "2026-10-25T01:10:00Z", "2026-10-25T12:00:00Z") == []


def test_every_so_many_minutes_goes_by_the_time_that_passes() -> None:
    around = ("2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z")
    assert seen("*/30 * * * *", BERLIN, *around) == ["10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00"]
    missing = ("2026-03-29T00:00:00Z", "2026-03-29T02:00:00Z")
    assert seen("*/30 * * * *", BERLIN, *missing) == ["03-29 00:30", "03-29 01:00", "03-29 01:30", "03-29 02:00"]


CRONS = ["30 2 * * *", "*/20 * * * *", "0 0 1 * *", "15 1-3 * * SUN", "0 12 * * MON#2", "5,35 2 * * *", "*/7 2,3 * * *"]


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(CRONS),
    st.sampled_from(["UTC", BERLIN, NEW_YORK, "Australia/Lord_Howe"]),
    st.integers(ms("2026-03-01T00:00:00Z"), ms("2026-11-20T00:00:00Z")),
    st.integers(1, 48 * HOUR_MS),
)
def test_whoever_computes_them_finds_the_same_ticks(cron: str, zone: str, start_ms: int, more: int) -> None:
    """Or two nodes would put different ones."""
    from_start = [each for each in islice(ticks(cron, zone, start_ms), 12) if each > start_ms + more]
    from_later = list(islice(ticks(cron, zone, start_ms + more), len(from_start)))
    assert from_start == from_later
    assert from_start == sorted(set(from_start))


@pytest.mark.parametrize("cron", ["", "* * * *", "61 * * * *", "* 25 * * *", "0 0 30 2 *", "x * * * *", "*/0 * * * *"])
def test_what_is_no_expression_is_refused_in_one_sentence(cron: str) -> None:
    with pytest.raises(Invalid, match=r"not a cron expression|at most") as refused:
        check_cron(cron, "UTC")
    assert "\n" not in refused.value.says


def test_an_expression_without_end_is_refused() -> None:
    with pytest.raises(Invalid, match="at most 200"):
        check_cron("*/5 * * * " + "1," * 200 + "1", "UTC")


@pytest.mark.parametrize("zone", ["Mars/Base", "", "..", "../etc/passwd", "Europe", "x" * 500, "\0"])
def test_unknown_zones_are_refused(zone: str) -> None:
    with pytest.raises(Invalid, match="not a time zone"):
        check_cron("* * * * *", zone)


def test_a_day_that_comes_seldom_is_found() -> None:
    (leap,) = islice(ticks("0 0 29 2 *", "UTC", ms("2026-11-01T00:00:00Z")), 1)
    assert datetime.fromtimestamp(leap / 1000, ZoneInfo("UTC")).date().isoformat() == "2028-02-29"
    assert timedelta(milliseconds=leap) > timedelta(0)
