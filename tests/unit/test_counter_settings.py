"""The times of counters are settings like any other, and go together or are refused in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from capellini.model.errors import CannotOpen, Invalid
from capellini.node.cluster import HINT_WINDOW_S, Cluster, check_name, hint_window_of, longest
from capellini.node.config import load, times_of
from capellini.node.node import Node
from capellini.node.settings import Settings


def test_times_come_from_flags_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("counter_grace_s = 50000\ncounter_last_s = 60\n")
    times = times_of(load({"counter_life_s": "7200"}, {"CAPELLINI_COUNTER_LAST_S": "120"}, file))
    assert (times.life_s, times.last_s, times.grace_s, times.max_skew_s) == (7_200, 120, 50_000, 7_200)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"counter_last_s": "50000"}, "counter_life_s is 86400: a mutator must live for at least twice counter_last_s"),
        ({"counter_last_s": "5"}, "--counter-last-s goes from 20"),
        ({"counter_grace_s": "14000"}, "counter_grace_s is 14000: it must be at least 14400"),
        ({"counter_max_skew_s": "50000"}, "twice counter_max_skew_s"),
        ({"counter_grace_s": "a day"}, "--counter-grace-s is a number"),
        ({"counter_grace_s": "nan"}, "--counter-grace-s goes from 0"),
    ],
)
def test_times_that_do_not_go_together_are_refused(flags: dict[str, str], says: str) -> None:
    with pytest.raises(Invalid) as raised:
        load(flags, {})
    assert says in raised.value.says and "\n" not in raised.value.says


def test_serving_with_bad_times_ends_with_2_and_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "capellini.cli.main", "serve", "--store", f"rocks:{tmp_path / 'data'}"]
    done = subprocess.run([*command, "--counter-grace-s", "60"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "counter_grace_s is 60" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "data").exists()


async def test_a_node_counts_with_the_times_it_was_given(tmp_path: Path) -> None:
    settings = Settings(store=f"rocks:{tmp_path / 'data'}", listen="127.0.0.1:0", counter_life_s=600, counter_last_s=60)
    node = await Node.open(settings)
    try:
        assert node._keeper.counters.times == times_of(settings)
    finally:
        await node.close()


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"max_hint_window": "3h"}, 10_800),
        ({"max_hint_window": "90m"}, 5_400),
        ({"max_hint_window": "10800000ms"}, 10_800),
        ({"max_hint_window": "2d", "max_hint_window_in_ms": "5"}, 172_800),
        ({"max_hint_window_in_ms": "7200000"}, 7_200),
        ({"max_hint_window": "soon"}, HINT_WINDOW_S),
        ({}, HINT_WINDOW_S),
    ],
)
def test_the_hint_window_is_read_in_every_form(settings: dict[str, str], seconds: float) -> None:
    assert hint_window_of(settings) == seconds


def test_of_servers_with_different_hint_windows_the_longest_counts() -> None:
    told = [[["max_hint_window", window]] for window in ("3h", "2d", "90m")]
    assert longest(told) == 172_800
    assert longest([]) == HINT_WINDOW_S


def test_another_cluster_is_refused() -> None:
    check_name(Cluster("mine", 0.0), "")
    check_name(Cluster("mine", 0.0), "mine")
    with pytest.raises(CannotOpen, match="cluster_name"):
        check_name(Cluster("mine", 0.0), "other")
