"""The cursor: contiguous offset, what is finished above it, and its compact form."""

from __future__ import annotations

import random

import pytest

from capellini.queues.cursor import CHUNK, Cursor


def test_acks_in_order_leave_nothing_above() -> None:
    cursor = Cursor()
    for offset in range(3 * CHUNK):
        cursor.add(offset)
    assert (cursor.next, cursor.above) == (3 * CHUNK, 0)
    assert len(cursor.encode()) <= 4


def test_a_gap_holds_the_cursor_until_it_is_closed() -> None:
    cursor = Cursor(10)
    cursor.add(11, 5)
    assert (cursor.next, cursor.above) == (10, 5)
    assert 10 not in cursor and 11 in cursor and 3 in cursor
    cursor.add(10)
    assert (cursor.next, cursor.above) == (16, 0)


def test_the_same_again_changes_nothing() -> None:
    cursor = Cursor()
    cursor.add(5, 3)
    before = cursor.encode()
    cursor.add(6)
    assert cursor.encode() == before


@pytest.mark.parametrize("seed", range(5))
def test_it_says_what_a_set_says(seed: int) -> None:
    chance = random.Random(seed)
    cursor, model = Cursor(), set[int]()
    for _ in range(3_000):
        first, count = chance.randrange(3 * CHUNK), chance.choice((1, 1, 2, 40))
        cursor.add(first, count)
        model.update(range(first, first + count))
    assert all((offset in cursor) == (offset in model) for offset in range(4 * CHUNK))
    least = next(offset for offset in range(5 * CHUNK) if offset not in model)
    assert cursor.next == least
    assert cursor.above == sum(offset > least for offset in model)
    assert {offset for first, count in cursor.ranges() for offset in range(first, first + count)} == {
        offset for offset in model if offset > least
    }
    assert Cursor.decode(cursor.encode()) == cursor


def test_a_million_random_acks_are_well_below_a_megabyte() -> None:
    chance = random.Random(1)
    cursor = Cursor()
    for offset in chance.sample(range(1, 2_000_000), 1_000_000):
        cursor.add(offset)
    data = cursor.encode()
    assert len(data) < 300_000
    assert Cursor.decode(data) == cursor


def test_changes_added_one_by_one_make_the_same_cursor() -> None:
    chance = random.Random(2)
    offsets = chance.sample(range(20_000), 12_000)
    whole, older = Cursor(), Cursor()
    for at in range(0, len(offsets), 500):
        group = offsets[at : at + 500]
        new = Cursor()
        for offset in group:
            new.add(offset)
        change = new.encode()
        assert len(change) < 2_600  # only what is new, whatever there is already
        older.merge(change)
        for offset in group:
            whole.add(offset)
    assert older == whole


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x00\x01\x00abc", b"\x00\x00\x01\xff\xff\x7f\x01"])
def test_what_was_cut_or_altered_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="encoded"):
        Cursor.decode(data)
