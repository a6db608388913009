"""How far a clock is off is told from when it was asked and when the answer came: a slow answer is no wrong clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from tests.unit.test_cassandra_schema import ADDRESS, HurriedClock

from capellini.model.clock import skew_of
from capellini.store.cassandra import CassandraStore
from capellini.store.cassandra_session import Rows, Session
from capellini.store.interface import Level, Value


class Slow(Session):
    """Its clock is `ahead_s`; answers take so long before and after it is looked at."""

    def __init__(self, clock: HurriedClock, ahead_s: float, *took_s: tuple[float, float]) -> None:
        super().__init__(ADDRESS, clock, None, "dc", {"dc": ["127.0.0.1"]})
        self.clock, self.ahead_s, self.took_s = clock, ahead_s, list(took_s)

    async def read(self, text: str, parameters: Sequence[Value], level: Level, limit: int | None = None) -> Rows:
        before_s, after_s = self.took_s.pop(0)
        self.clock.slept_s += before_s
        told_s = self.clock.slept_s + self.ahead_s
        self.clock.slept_s += after_s
        return [[datetime.fromtimestamp(told_s, UTC)]]


@pytest.mark.parametrize(
    ("asked_s", "told_s", "answered_s", "skew_s"),
    [(10.0, 10.0, 10.0, 0.0), (10.0, 15.0, 15.0, 0.0), (10.0, 10.0, 15.0, 0.0), (10.0, 16.0, 15.0, 1.0),
     (10.0, 8.5, 15.0, -1.5)],
)  # fmt: skip
def test_what_is_sure_about_another_clock(asked_s: float, told_s: float, answered_s: float, skew_s: float) -> None:
    assert skew_of(asked_s, told_s, answered_s) == skew_s


@pytest.mark.parametrize("took_s", [(5.0, 0.01), (0.01, 5.0), (2.5, 2.5)])
async def test_a_slow_answer_is_no_wrong_clock(took_s: tuple[float, float]) -> None:
    clock = HurriedClock()
    store = CassandraStore(Slow(clock, 0.0, took_s, took_s, took_s), clock)
    assert abs(await store.skew_s()) < 0.001


async def test_a_wrong_clock_is_seen_by_the_first_answer_that_is_quick() -> None:
    clock = HurriedClock()
    store = CassandraStore(Slow(clock, 0.7, (0.01, 5.0), (0.01, 0.01)), clock)
    assert await store.skew_s() == pytest.approx(0.69)


async def test_a_clock_that_is_far_off_is_seen_however_slow_the_answers_are() -> None:
    clock = HurriedClock()
    store = CassandraStore(Slow(clock, -60.0, (1.0, 1.0), (1.0, 1.0), (5.0, 1.0)), clock)
    assert await store.skew_s() == pytest.approx(-59.0)
