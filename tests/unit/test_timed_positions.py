"""Where messages of timed queues lie: positions, ids, time parts, shards."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from uuid import UUID

import pytest

from capellini.model.errors import Invalid
from capellini.queues.timed.positions import (
    before,
    behind,
    id_text,
    ms_of_ticks,
    parse_id,
    part_of,
    parts_from,
    position_of,
    shard_in,
    shard_of,
    ticks_of,
    ticks_of_ms,
)
from capellini.queues.timed.rows import order_key, parts_near

AT_MS = int(datetime(2026, 11, 15, 14, 5, 30, tzinfo=UTC).timestamp() * 1000)


def test_parts_are_readable_and_sort_by_time() -> None:
    ticks = ticks_of_ms(AT_MS)
    assert part_of(ticks, "minute") == "2026 319 14 05"
    assert part_of(ticks, "hour") == "2026 319 14"
    assert part_of(ticks, "day") == "2026 319"
    chance = random.Random(1)
    times = sorted(chance.randrange(0, 4_000_000_000_000) for _ in range(500))
    for granularity in ("minute", "hour", "day"):
        parts = [part_of(ticks_of_ms(at), granularity) for at in times]
        assert parts == sorted(parts)


def test_a_position_says_its_time_and_its_shard() -> None:
    chance = random.Random(2)
    for _ in range(200):
        ticks, shard = ticks_of_ms(AT_MS) + chance.randrange(10**12), chance.randrange(256)
        position = position_of(ticks, shard, chance)
        assert (ticks_of(position), shard_in(position)) == (ticks, shard)
        assert position.version == 1
        assert order_key(before(ticks)) < order_key(position) < order_key(behind(ticks)) < order_key(before(ticks + 1))
        assert parse_id(id_text(position)) == position
    assert ms_of_ticks(ticks_of_ms(AT_MS)) == AT_MS


def test_positions_of_one_tick_differ() -> None:
    chance = random.Random(3)
    assert len({position_of(5, 1, chance) for _ in range(10_000)}) == 10_000


OF_ANOTHER_KIND = UUID(int=12345, version=4).hex  # no time uuid


@pytest.mark.parametrize("text", ["", "12", "x" * 32, OF_ANOTHER_KIND, "{" + "1" * 30 + "}"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="not a message id"):
        parse_id(text)


@pytest.mark.parametrize("shards", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("dues", ["one minute", "all on full seconds", "spread over a day"])
def test_shards_are_even_whatever_the_dues_are(shards: int, dues: str) -> None:
    """Chi-square of 20,000 batches: with so many degrees of freedom it stays below this but once in ten thousand."""
    chance = random.Random(f"{shards}/{dues}")
    counts: Counter[int] = Counter()
    for _ in range(20_000):
        seconds = {"one minute": 0, "all on full seconds": chance.randrange(600)}.get(dues, chance.randrange(86_400))
        part = part_of(ticks_of_ms(AT_MS + seconds * 1_000), "minute")
        counts[shard_of(chance.randbytes(8), part, shards)] += 1
    expected = 20_000 / shards
    chi_square = sum((counts[shard] - expected) ** 2 / expected for shard in range(shards))
    assert chi_square < (shards - 1) + 4 * (2 * (shards - 1)) ** 0.5 + 8


def test_one_batch_of_one_part_is_one_shard() -> None:
    assert len({shard_of(b"12345678", "2026 319 14", 64) for _ in range(50)}) == 1


def test_few_parts_are_looked_at_directly_and_many_are_listed() -> None:
    ticks, minute = ticks_of_ms(AT_MS), 60 * 10_000_000
    assert parts_near(ticks, ticks + minute, "minute") == ["2026 319 14 05", "2026 319 14 06"]
    assert parts_near(ticks, ticks + 60 * minute, "minute") is None
    assert len(parts_from(ticks, ticks + 59 * minute, "minute")) == 60
