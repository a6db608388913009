"""The page of a report: an hour in which nothing happened is an hour, and is seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from capellini.pipeline.report.page import all_hours, filled, page, unbroken
from capellini.pipeline.report.tables import KINDS, QUANTILES, Report

HOURS = ("2030-01-31 22:00:00", "2030-01-31 23:00:00", "2030-02-01 00:00:00", "2030-02-01 01:00:00")


def counted(hour: str, put: int, depth: int) -> dict[str, Any]:
    kinds = dict.fromkeys(KINDS, 0)
    return {"queue": "orders", "hour": hour, **kinds, "put": put, "redelivered": 0, "depth": depth}


def waited(hour: str) -> dict[str, Any]:
    waits = {f"{what}_p{round(rank * 100)}": 0.5 for what in ("wait", "life") for rank in QUANTILES}
    return {"queue": "orders", "hour": hour, **waits}


def test_a_night_without_an_event_has_no_rate_and_the_depth_of_the_evening() -> None:
    assert all_hours([HOURS[3], HOURS[0], HOURS[0]]) == [*HOURS] and all_hours([]) == []
    rows = filled(HOURS, [counted(HOURS[1], 5, 3), counted(HOURS[3], 2, 4)])
    assert [row["hour"] for row in rows] == [*HOURS]
    assert [row["put"] for row in rows] == [0, 5, 0, 2]
    assert [row["depth"] for row in rows] == [0, 3, 3, 4]


def test_a_line_is_broken_where_there_is_nothing() -> None:
    assert unbroken([None, 1, 2.0, None, float("nan"), 3]) == [[(1, 1.0), (2, 2.0)], [(5, 3.0)]]
    rows = [counted(HOURS[0], 5, 3), counted(HOURS[3], 2, 4)]
    shown = page(Report(rows, [waited(HOURS[0]), waited(HOURS[3])], [], []), "A night")
    assert shown.count("<polyline") == 3 + 1 + 2 + 2 * 2 * len(QUANTILES), "waits before the night and after it"
    poison = {"queue": "orders", "generation": 1_700_000, "message": "7", "deliveries": 1_200, "acked": False}
    named = page(Report(rows, [], [poison], []), "One")
    assert "<td>1700000</td>" in named and "<td>1,200</td>" in named, "a generation is a name"
    assert "2030-01-31 22:00 to 2030-02-01 01:59, UTC" in shown


class Rows(list[dict[str, Any]]):
    """How often all of them were looked at."""

    looks = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.looks += 1
        return super().__iter__()


def test_of_many_queues_the_rows_are_not_gone_through_for_each_of_them() -> None:
    hours, waits = Rows(), Rows()
    for at in range(50):
        hours.append(counted(HOURS[0], 5, 3) | {"queue": f"q{at}"})
        waits.append(waited(HOURS[0]) | {"queue": f"q{at}"})
    assert page(Report(hours, waits, [], []), "Many").count("<h2>q") == 50
    assert max(hours.looks, waits.looks) <= 5


def test_a_journal_without_a_queue_is_said_to_have_none() -> None:
    assert "no event of a queue" in page(Report([], [], [], []), "Nothing")
