"""The parts of the consume loop that need no node: how long a failed message waits, how a node is waited for."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capellini.client.consuming import NACK_MOST_S, nack_delay_s, steady
from capellini.client.lanes import ranges_of
from capellini.model.errors import CapelliniError, NotFound, Paused, Unavailable, Unknown


class Clock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.pauses: list[float] = []

    def now_s(self) -> float:
        return self.time_s

    def elapsed_s(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time_s += seconds


class Script:
    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    async def __call__(self) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, CapelliniError):
            raise answer
        return answer


@given(st.integers(0, 10_000), st.integers())
def test_a_failed_message_waits_longer_each_time_up_to_a_minute(deliveries: int, seed: int) -> None:
    longest = min(NACK_MOST_S, 0.5 * 2.0 ** min(max(deliveries, 1) - 1, 30))
    assert longest / 2 <= nack_delay_s(deliveries, random.Random(seed)) <= longest


async def test_a_missing_node_is_waited_for_however_long() -> None:
    clock = Clock()
    away = [Unavailable("x"), Unknown("x"), Paused("x")] * 100
    assert await steady(Script(*away, ["message"]), clock, random.Random(1))() == ["message"]
    assert len(clock.pauses) == 300 and max(clock.pauses) <= 5.0 and min(clock.pauses) > 0


async def test_what_waiting_cannot_mend_is_raised() -> None:
    clock = Clock()
    with pytest.raises(NotFound):
        await steady(Script(Unavailable("x"), NotFound("x")), clock, random.Random(1))()
    assert len(clock.pauses) == 1


async def test_a_long_poll_that_ends_at_once_with_nothing_is_not_repeated_at_once() -> None:
    clock = Clock()
    assert await steady(Script([]), clock, random.Random(1), wait_s=20.0)() == []
    assert len(clock.pauses) == 1
    assert await steady(Script(["message"]), clock, random.Random(1), wait_s=20.0)() == ["message"]
    assert len(clock.pauses) == 1


@given(st.lists(st.integers(0, 50), min_size=1))
def test_acks_are_merged_into_ranges(indexes: list[int]) -> None:
    ranges = ranges_of(indexes)
    covered = [index for offset, count in ranges for index in range(offset, offset + count)]
    assert covered == sorted(set(indexes))
    assert all(one[0] + one[1] < two[0] for one, two in itertools.pairwise(ranges))


def test_a_whole_parcel_is_one_range() -> None:
    assert ranges_of(list(range(1_000))) == [(0, 1_000)]
    assert ranges_of([7]) == [(7, 1)]
