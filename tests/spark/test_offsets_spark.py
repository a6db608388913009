"""Offsets of a stream of a log queue: what a micro-batch has follows from them alone, and nothing is skipped unsaid."""

from __future__ import annotations

import datetime
from functools import reduce

import msgspec
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, LessThanOrEqual

from capellini.model.errors import Invalid, Unavailable
from capellini.pipeline.source.asking import asked_of
from capellini.pipeline.source.extents import Known, Range, grouped
from capellini.pipeline.source.log_source import (
    between,
    capped,
    even_rows,
    fresh_offset,
    mean_bytes,
    narrowed,
    next_offset,
    still_there,
)

pytestmark = pytest.mark.spark


def known(name: str, top: int, state: str = "open") -> Known:
    return Known(name, state, top, 0)


START = fresh_offset(1, [], {})


def test_a_batch_takes_the_oldest_first_and_no_more_than_allowed() -> None:
    extents = [known("a", 10, "sealed"), known("b", 5)]
    first = next_offset(START, extents, 12, "fail")
    assert first["extents"] == {"a": 10, "b": 2} and first["done"] == ["a"]
    assert between(START, first) == [Range("a", 0, 10), Range("b", 0, 2)]
    second = next_offset(first, [*extents, known("c", 1)], 12, "fail")
    assert between(first, second) == [Range("b", 2, 5), Range("c", 0, 1)]
    assert between(second, next_offset(second, [*extents, known("c", 1)], None, "fail")) == []


def test_an_extent_that_was_read_to_its_end_may_go() -> None:
    read = next_offset(START, [known("a", 10, "sealed"), known("b", 5)], None, "fail")
    later = next_offset(read, [known("b", 6)], None, "fail")
    assert later["extents"] == {"b": 6} and between(read, later) == [Range("b", 5, 6)]


def test_one_that_was_dropped_at_the_number_that_was_next_is_not_missed() -> None:
    read = next_offset(START, [known("a", 10)], None, "fail")
    later = next_offset(read, [known("a", 10, "dropped"), known("b", 1)], None, "fail")
    assert between(read, later) == [Range("b", 0, 1)]


@pytest.mark.parametrize("now", [[known("b", 1)], [known("a", 12, "dropped"), known("b", 1)]])
def test_what_retention_dropped_unread_is_an_error_unless_told(now: list[Known]) -> None:
    read = next_offset(START, [known("a", 10)], None, "fail")
    with pytest.raises(Unavailable, match="dropped by retention before all of it was read"):
        next_offset(read, now, None, "fail")
    assert between(read, next_offset(read, now, None, "oldest")) == [Range("b", 0, 1)]


def test_an_extent_that_came_and_was_dropped_between_two_looks_is_missed() -> None:
    begun = fresh_offset(1, [known("a", 7, "dropped"), known("b", 10)], {})
    read = next_offset(begun, [known("a", 7, "dropped"), known("b", 10, "sealed")], None, "fail")
    assert between(begun, read) == [Range("b", 0, 10)]  # what was gone at the beginning is nobody's loss
    seen = [known("a", 7, "dropped"), known("b", 10, "dropped"), known("c", 0, "dropped")]
    quiet = next_offset(read, seen, None, "fail")
    now = [*seen, known("d", 3, "dropped"), known("e", 1)]
    for before in (read, quiet):
        with pytest.raises(Unavailable, match="extent d was dropped by retention before all of it was read"):
            next_offset(before, now, None, "fail")
    gone_on = next_offset(quiet, now, None, "oldest")
    assert between(quiet, gone_on) == [Range("e", 0, 1)]
    assert next_offset(gone_on, now, None, "fail") == gone_on
    earlier = {name: each for name, each in quiet.items() if name != "gone"}  # a checkpoint that does not say
    assert next_offset(earlier, now, None, "fail") == gone_on


def test_a_batch_that_comes_again_after_retention_has_the_same_tasks_without_what_was_dropped() -> None:
    tasks = grouped([Range("a", 5, 15), Range("b", 0, 3)], 7)
    assert tasks == [(Range("a", 5, 12),), (Range("a", 12, 15), Range("b", 0, 3))]
    assert still_there(tasks, [known("a", 15, "dropped"), known("b", 3)]) == [(), (Range("b", 0, 3),)]
    assert still_there(tasks, [known("a", 15), known("b", 3)]) == tasks
    assert still_there(tasks, []) == [(), ()]


def test_what_comes_after_the_beginning_of_a_single_run_is_left_for_the_next() -> None:
    extent = capped(known("a", 10, "sealed"), 4)
    offset = next_offset(START, [extent], None, "fail")
    assert offset["extents"] == {"a": 4} and offset["done"] == []


def test_tasks_have_equal_shares_and_small_extents_share_one() -> None:
    assert grouped([Range("a", 5, 15), Range("b", 0, 3)], 4) == [
        (Range("a", 5, 9),), (Range("a", 9, 13),), (Range("a", 13, 15), Range("b", 0, 2)), (Range("b", 2, 3),)
    ]  # fmt: skip
    small = [Range("a", 0, 3), Range("b", 0, 1), Range("c", 0, 2)]
    assert grouped(small, 6) == [tuple(small)]
    assert grouped([], 4) == [] == grouped([Range("a", 2, 2)], 4)


@pytest.mark.parametrize(("total", "cores", "tasks"), [
    (6_016_000, 2, 8), (12_032_000, 2, 14), (6_000_000, 2, 6), (900_000, 2, 2), (900_000, 64, 4), (200_000, 8, 1),
    (1, 2, 1), (70_000_001, 16, 80),
])  # fmt: skip
def test_tasks_of_a_cluster_come_out_even_on_the_cores(total: int, cores: int, tasks: int) -> None:
    shares = grouped([Range("a", 0, total)], even_rows(total, cores))
    assert len(shares) == tasks and sum(each.rows for share in shares for each in share) == total
    assert even_rows(0, 4) == 1


@pytest.mark.parametrize(("size", "tasks"), [(None, 20), (70, 6), (10, 6), (1_000, 20), (1_000_000, 20)])
def test_tasks_have_more_messages_where_they_are_small(size: int | None, tasks: int) -> None:
    extents = [known("a", 500, "sealed"), known("b", 20_000_000, "sealed"), known("c", 7)]
    if size is not None:
        extents[1] = msgspec.structs.replace(extents[1], bytes=size * 20_000_000)
    shares = grouped([Range("a", 0, 20_000_000)], even_rows(20_000_000, 2, mean_bytes(extents)))
    assert len(shares) == tasks


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "say where"),
        ({"at": "rocks:x", "queue": "q", "colour": "red"}, "no option of capellini"),
        ({"at": "rocks:x", "queue": "no good"}, "not a queue name"),
        ({"at": "rocks:x", "queue": "q", "max_rows": "many"}, "max_rows is a number"),
        ({"at": "rocks:x", "queue": "q", "max_rows": "inf"}, "max_rows is at least 1, and a number"),
        ({"at": "rocks:x", "queue": "q", "since": "yesterday"}, "seconds since 1970"),
        ({"at": "rocks:x", "queue": "q", "since": "inf"}, "seconds since 1970"),
        ({"at": "rocks:x", "queue": "q", "missing": "ignore"}, "one of fail, oldest"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        asked_of(options)


def test_pushed_filters_narrow_the_times_that_are_read() -> None:
    asked = asked_of({"at": "rocks:x", "queue": "q", "filters": "push", "since": "50"})
    at = datetime.datetime.fromtimestamp(100, datetime.UTC)
    pushed = [GreaterThan(("put_at",), at), LessThanOrEqual(("put_at",), at + datetime.timedelta(seconds=7))]
    found = reduce(narrowed, [*pushed, EqualTo(("extent",), "e"), GreaterThan(("put_at",), None)], asked)
    assert (found.since_ms, found.until_ms) == (100_000, 107_001)
    assert narrowed(found, GreaterThan(("put_at",), at - datetime.timedelta(seconds=60))) == found


def test_times_are_read_as_people_and_programs_write_them() -> None:
    asked = asked_of({"at": "rocks:x", "queue": "q", "since": "2030-01-31T08:00:00Z", "until": "1900000000.5"})
    assert (asked.since_ms, asked.until_ms) == (1_896_076_800_000, 1_900_000_000_500)


def test_times_keep_their_milliseconds_whenever_they_are() -> None:
    begin = datetime.datetime(2039, 1, 1, tzinfo=datetime.UTC)
    asked = asked_of({"at": "rocks:x", "queue": "q", "filters": "push"})
    for number in range(1_000):
        at, ms = begin + datetime.timedelta(milliseconds=number), 2_177_452_800_000 + number
        found = narrowed(asked, EqualTo(("put_at",), at))
        assert (found.since_ms, found.until_ms) == (ms, ms + 1)
        for text in (at.isoformat(), f"{ms / 1000:.3f}"):
            assert asked_of({"at": "rocks:x", "queue": "q", "since": text}).since_ms == ms
