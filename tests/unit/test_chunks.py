"""Chunks of log queues: what is packed comes out again, whole or in parts, and what is broken is refused."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capellini.model import chunks
from capellini.model.errors import Invalid, TooLarge
from capellini.queues.log.parcels import GROUP, check_unaddressed_chunk

BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=30)
ATTRIBUTES = st.none() | st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=3)
LIMIT = 1_000


@given(BODIES, st.data())
def test_what_is_packed_comes_out_again(bodies: list[bytes], data: st.DataObject) -> None:
    attributes = data.draw(st.lists(ATTRIBUTES, min_size=len(bodies), max_size=len(bodies)))
    chunk = chunks.pack(bodies, attributes, b"p" * 16, 7)
    head = chunks.check(chunk, LIMIT)
    assert (head.count, head.size, head.producer, head.sequence) == (len(bodies), len(chunk), b"p" * 16, 7)
    assert chunks.bodies_of(chunk, head) == bodies
    assert chunks.attributes_of(chunk, head) == [one or None for one in attributes]


@given(BODIES, BODIES, st.data())
def test_a_part_of_a_chunk_in_a_block_is_a_chunk(before: list[bytes], bodies: list[bytes], data: st.DataObject) -> None:
    attributes = data.draw(st.none() | st.lists(ATTRIBUTES, min_size=len(bodies), max_size=len(bodies)))
    first = data.draw(st.integers(0, len(bodies) - 1))
    count = data.draw(st.integers(1, len(bodies) - first))
    block = chunks.pack(before) + chunks.pack(bodies, attributes)
    _, head = chunks.heads_of(block)
    one = chunks.part(block, head, first, count)
    again = chunks.part(one, chunks.head_of(one), count - 1, 1)  # of a part, too
    assert chunks.bodies_of(one, chunks.head_of(one)) == bodies[first : first + count]
    assert chunks.attributes_of(one, chunks.head_of(one)) == [
        one or None for one in (attributes or [None] * len(bodies))[first : first + count]
    ]
    assert chunks.bodies_of(again, chunks.head_of(again)) == [bodies[first + count - 1]]


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"short",
        chunks.pack([b"a"])[:-1],
        chunks.pack([b"a"]) + b"x",
        chunks.pack([]),
        b"\x00" + chunks.pack([b"a"])[1:],
        chunks.pack([b"a"])[:1] + b"\x02" + chunks.pack([b"a"])[2:],
        chunks.pack([b"ab", b"c"])[:40] + struct.pack("<iii", 0, 3, 1) + b"abc",
        chunks.pack([b"ab", b"c"])[:40] + struct.pack("<iii", 1, 2, 4) + b"abc",
        chunks.pack([b"ab", b"c"])[:40] + struct.pack("<iii", 0, 2, 1 << 30) + b"abc",
        chunks.pack([b"a"], [{"n": "v"}])[:-1] + b"\xc1",
    ],
    ids=["empty", "short", "cut", "more", "none", "magic", "version", "falling", "from one", "beyond", "attributes"],
)
def test_broken_chunks_are_refused(broken: bytes) -> None:
    with pytest.raises(Invalid):
        chunks.check(broken, LIMIT)


def test_offsets_that_rise_beyond_what_they_can_hold_are_refused() -> None:
    """Each message seems to have 64 KiB: all together 4 GiB, so that the last offset is 0 again."""
    count = 65_536
    ends = (np.arange(count + 1, dtype=np.int64) << 16).astype(np.uint32).tobytes()
    size = chunks.HEADER.size + len(ends)
    chunk = chunks.HEADER.pack(chunks.MAGIC, chunks.VERSION, 0, count, size, 0, chunks.NO_PRODUCER, 0) + ends
    with pytest.raises(Invalid, match="do not rise"):
        chunks.check(chunk, 262_144)


@pytest.mark.parametrize("count", [2, 16, 17, 200])
def test_few_offsets_are_checked_as_many_are(count: int) -> None:
    good = chunks.pack([b"abc"] * count)
    assert chunks.bodies_of(good, chunks.check(good, LIMIT)) == [b"abc"] * count
    for place, wrong in ((0, 1), (1, 7), (count - 1, -1)):
        broken = bytearray(good)
        struct.pack_into("<i", broken, chunks.HEADER.size + 4 * place, wrong)
        with pytest.raises(Invalid, match="do not rise"):
            chunks.check(bytes(broken), LIMIT)
    with pytest.raises(TooLarge, match="3 bytes"):
        chunks.check(good, 2)


def test_a_chunk_that_names_a_group_at_a_place_that_is_not_there_is_refused() -> None:
    data = struct.pack("<iiii", 0, (1 << 31) - 1, 0, 20) + GROUP.encode() + bytes(20)
    size = chunks.HEADER.size + len(data)
    chunk = chunks.HEADER.pack(chunks.MAGIC, chunks.VERSION, 1, 1, size, 0, chunks.NO_PRODUCER, 0) + data
    with pytest.raises(Invalid, match="do not fit"):
        check_unaddressed_chunk(chunk, chunks.head_of(chunk))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_chunk_or_refused(data: bytes) -> None:
    try:
        head = chunks.check(chunks.pack([b"abc", b"d"], [{"a": "b"}, None])[:20] + data, LIMIT)
    except Invalid:
        return
    assert head.count >= 1


def test_a_body_above_the_limit_is_too_large() -> None:
    with pytest.raises(TooLarge, match="11 bytes; this queue takes at most 10"):
        chunks.check(chunks.pack([b"x" * 11]), 10)


def test_a_chunk_above_its_limit_is_too_large() -> None:
    with pytest.raises(TooLarge, match="fewer messages"):
        chunks.check(chunks.pack([bytes(100_000)] * 43), 100_000)


@given(st.lists(st.integers(0, 50)), st.integers(1, 60))
def test_runs_are_cut_so_that_each_fits_and_none_could_have_been_joined(sizes: list[int], most: int) -> None:
    runs = chunks.cut(sizes, most)
    assert [at for start, end in runs for at in range(start, end)] == list(range(len(sizes)))
    for start, end in runs:
        assert end == start + 1 or sum(sizes[start:end]) <= most
    for (start, end), _ in pairwise(runs):
        assert sum(sizes[start : end + 1]) > most
