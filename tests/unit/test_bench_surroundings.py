"""What a latency is told with."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from capellini.bench.surroundings import Surroundings, disk_alone, quantile

pytestmark = pytest.mark.slow


def test_a_quantile_is_of_the_sorted_values() -> None:
    assert [quantile([3.0, 1.0, 2.0], part) for part in (0.0, 0.5, 1.0)] == [1.0, 2.0, 3.0]


def test_on_an_even_disk_a_message_waits_for_one_to_two_fsyncs() -> None:
    assert disk_alone([2.0] * 10, 0.0) == pytest.approx(2.2)
    assert disk_alone([2.0] * 10, 1.0) == pytest.approx(4.0)


def test_a_long_fsync_is_met_by_as_many_messages_as_it_is_long() -> None:
    seldom = [1.0] * 98 + [100.0, 1.0]  # half of the time one of them is under way
    assert disk_alone(seldom, 0.4) <= 2.0 < 40.0 < disk_alone(seldom, 0.75)


async def test_disk_and_machine_are_told_when_it_is_over(tmp_path: Path) -> None:
    async with Surroundings(tmp_path, os.getpid()) as around:
        assert gc.get_freeze_count() and not around.detail
    assert not gc.get_freeze_count()
    found = around.detail
    assert set(found) == {
        "bare_fsync_p50_ms", "bare_fsync_p99_ms", "disk_alone_p99_ms", "bare_sleep_p99_ms", "node_cpu",
        "node_waited_cpu", "own_waited_cpu", "stolen_cpu",
    }  # fmt: skip
