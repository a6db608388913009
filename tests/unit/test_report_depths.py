"""What a report says was unfinished at the end of each hour."""

from __future__ import annotations

from typing import Any

from capellini.pipeline.report.depths import with_depths
from capellini.pipeline.report.tables import KINDS

HOURS = [f"2030-01-31 0{hour}:00:00" for hour in range(5)]


def told(queue: str, hour: int, generation: int = 1, seek: int = 0, also: bool = False, **counts: int) -> Any:
    """`also`: an older version of the group has these puts, too."""
    kinds = dict.fromkeys((*KINDS, "redelivered"), 0) | counts
    own = sum(counts.values()) - kinds["put"]
    place = {"queue": queue, "generation": generation, "seek": seek, "hour": HOURS[hour]}
    return {**place, **kinds, "own": own, "told": 0 if also else kinds["put"]}


def depths(*rows: dict[str, Any]) -> dict[str, list[tuple[int, int, int]]]:
    """By queue: hour, put and depth."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for row in with_depths(rows):
        found.setdefault(row["queue"], []).append((HOURS.index(row["hour"]), row["put"], row["depth"]))
    return found


def test_what_was_purged_waits_no_more() -> None:
    purged = told("q", 0, put=1_000), told("q", 2, acked=10), told("q", 3, 2, put=5, acked=3), told("q", 4, acked=1)
    assert depths(*purged) == {"q": [(0, 1_000, 1_000), (2, 0, 990), (3, 5, 2), (4, 0, 2)]}


def test_what_a_group_left_of_a_purged_queue_waits_no_more() -> None:
    group = told("q@g", 0, seek=1, put=9, acked=4)
    assert depths(group, told("q", 2, 2, put=3)) == {"q": [(2, 3, 3)], "q@g": [(0, 9, 5), (2, 0, 0)]}


def test_a_seek_neither_doubles_puts_nor_leaves_what_was_unfinished() -> None:
    before = told("q@g", 0, seek=1, put=100), told("q@g", 1, seek=1, delivered=50, acked=50)
    after = told("q@g", 0, seek=2, also=True, put=100), told("q@g", 3, seek=2, delivered=90, acked=90)
    assert depths(*before, *after) == {"q@g": [(0, 100, 100), (1, 0, 50), (3, 0, 10)]}


def test_what_was_put_before_the_journal_began_was_there_at_its_beginning() -> None:
    assert depths(told("q", 0, delivered=70, put=5), told("q", 1, acked=70)) == {"q": [(0, 5, 70), (1, 0, 0)]}
    assert with_depths([]) == []
