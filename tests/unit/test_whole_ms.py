"""Times in whole milliseconds are never early."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

import capellini
from capellini.model.message import Entry, whole_ms
from capellini.queues.work.block import block_of, pack


def test_a_delay_is_never_cut() -> None:
    assert [whole_ms(each) for each in (0.0, 0.1, 0.3, 2.0, 0.1534, 1e-9, 0.0004)] == [0, 100, 300, 2_000, 154, 1, 1]
    chance = random.Random(1)
    for _ in range(1_000):
        delay_s = chance.uniform(0.0, 100.0)
        assert delay_s * 1000 - 1e-5 <= whole_ms(delay_s) < delay_s * 1000 + 1


def test_what_is_put_within_a_millisecond_is_due_after_all_of_its_delay() -> None:
    put_s, delay_s = 1.0009, 0.25
    block = block_of(0, pack([Entry(b"x", None, whole_ms(delay_s)), Entry(b"y")]), int(put_s * 1000))
    due_ms, at_once = block.dues_ms() or []
    assert (due_ms >= (put_s + delay_s) * 1000, at_once) == (True, 0)


@pytest.mark.parametrize("kind", ["work", "timed", "log"])
def test_what_is_nacked_waits_for_all_of_its_delay(tmp_path: Path, kind: str) -> None:
    with capellini.connect(f"rocks:{tmp_path / 'data'}") as client:
        client.create_queue("q", kind)
        if kind == "log":
            client.groups.create("q", "g")
        client.put("q", b"x")
        group = "g" if kind == "log" else None
        waited_s = []
        (message,) = client.get("q", wait_s=10, group=group)
        for turn in range(20):
            delay_s = 0.0101 + turn * 0.00013
            before_s = time.time()
            message.nack(delay_s)
            (message,) = client.get("q", wait_s=10, group=group)
            waited_s.append(time.time() - before_s - delay_s)
    assert min(waited_s) >= 0, waited_s
