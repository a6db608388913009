"""Blocks: joining, cutting and storing entries as bytes never changes what they say."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capellini.model.errors import Invalid, TooLarge
from capellini.model.message import MAX_BATCH, MAX_DELAY_S, Entry
from capellini.queues.work.block import (
    DELAYED,
    MOVED,
    Packed,
    array_head,
    block_of,
    check,
    cut,
    decode,
    encode,
    joined,
    pack,
)

names = st.text(min_size=1, max_size=5)
new_entries = st.builds(
    Entry,
    body=st.binary(max_size=20),
    attributes=st.one_of(st.none(), st.dictionaries(names, st.text(max_size=5), min_size=1, max_size=2)),
    delay_ms=st.sampled_from((0, 0, 1, 86_400_000)),
)
moved_entries = st.builds(Entry, body=st.binary(max_size=5), origin=st.just("q/1/7"))
batches = st.lists(st.one_of(new_entries, moved_entries), min_size=1, max_size=40)


def entries_of(packed: Packed) -> list[Entry]:
    return block_of(0, packed, 0).read()


@given(batches, st.integers(0, 2**53), st.integers(0, 2**50))
def test_what_is_stored_is_what_was_put(entries: list[Entry], first: int, put_at_ms: int) -> None:
    block = block_of(first, pack(entries), put_at_ms)
    again = decode(block.first, block.count, encode(block))
    assert again == block
    assert again.read() == entries
    assert bool(block.flags & DELAYED) == any(entry.delay_ms for entry in entries)
    assert bool(block.flags & MOVED) == any(entry.origin for entry in entries)


@given(st.lists(batches, min_size=1, max_size=4))
def test_joined_they_follow_each_other(parts: list[list[Entry]]) -> None:
    packed = joined([pack(part) for part in parts])
    assert packed.count == sum(map(len, parts))
    assert entries_of(packed) == [entry for part in parts for entry in part]


@given(batches, st.data())
def test_cut_anywhere_and_joined_again_nothing_has_changed(entries: list[Entry], data: st.DataObject) -> None:
    packed = pack(entries)
    at = data.draw(st.integers(1, packed.count))
    head, rest = cut(packed, at)
    assert (head.count, rest.count) == (at, packed.count - at)
    assert entries_of(head) == entries[:at]
    assert joined([head, rest]) == packed


@given(batches, st.data())
def test_a_part_of_a_block_is_an_array_of_its_entries(entries: list[Entry], data: st.DataObject) -> None:
    block = block_of(100, pack(entries), 0)
    low = data.draw(st.integers(0, len(entries) - 1))
    high = data.draw(st.integers(low + 1, len(entries)))
    part = block.part(100 + low, 100 + high)
    assert msgspec.msgpack.decode(part, type=list[Entry]) == entries[low:high]


@given(st.lists(new_entries, min_size=1, max_size=40), st.integers(0, 2**50))
def test_a_delay_is_counted_from_the_put(entries: list[Entry], put_at_ms: int) -> None:
    dues = block_of(0, pack(entries), put_at_ms).dues_ms()
    if not any(entry.delay_ms for entry in entries):
        assert dues is None
    else:
        assert dues == [put_at_ms + entry.delay_ms + 1 if entry.delay_ms else 0 for entry in entries]


@given(st.lists(new_entries, min_size=1, max_size=40))
def test_a_good_batch_of_a_caller_is_taken_as_it_is(entries: list[Entry]) -> None:
    sent = msgspec.msgpack.encode([(entry.body, entry.attributes, entry.delay_ms) for entry in entries])
    assert entries_of(check(sent, 1_000)) == entries


@given(st.integers(1, 40))
def test_a_longer_head_than_needed_is_said_the_short_way(count: int) -> None:
    elements = msgspec.msgpack.encode((b"x",)) * count
    for head in (array_head(count), b"\xdc" + count.to_bytes(2, "big"), b"\xdd" + count.to_bytes(4, "big")):
        packed = check(head + elements, 10)
        assert packed.count == count
        assert entries_of(packed) == [Entry(b"x")] * count


@pytest.mark.parametrize("count", [15, 16, 17, 65_535, 65_536])
def test_heads_are_as_messagepack_writes_them(count: int) -> None:
    assert msgspec.msgpack.encode([None] * count).startswith(array_head(count))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode({"body": b"x"}),
        msgspec.msgpack.encode([[b"x", None, -1]]),
        msgspec.msgpack.encode([[b"x", None, 0, "q/1/7"]]),
        msgspec.msgpack.encode([[b"x", {"": "nameless"}]]),
        msgspec.msgpack.encode([["text", 1]]),
        msgspec.msgpack.encode([[b"x"]] * (MAX_BATCH + 1)),
    ],
)
def test_a_bad_batch_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(Invalid) as caught:
        check(data, 10)
    assert caught.value.says


def test_a_body_over_the_limit_is_too_large() -> None:
    with pytest.raises(TooLarge):
        check(msgspec.msgpack.encode([[b"x" * 11]]), 10)


@given(st.binary(max_size=40))
def test_whatever_bytes_come_nothing_but_invalid_is_raised(data: bytes) -> None:
    try:
        packed = check(data, 10)
    except Invalid:
        return
    assert len(entries_of(packed)) == packed.count


def test_a_delay_out_of_range_is_said_in_seconds() -> None:
    data = msgspec.msgpack.encode([[b"a"], [b"b", None, int(MAX_DELAY_S * 1000) + 1_000]])
    with pytest.raises(Invalid, match=r"delay_s goes from 0 to 31536000, not 31536001\.0"):
        check(data, 100)
