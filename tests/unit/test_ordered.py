"""Keys as bytes: the order of the bytes is the order of the keys, and nothing is lost."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capellini.model.errors import Invalid
from capellini.store.interface import Column, Key, KeyPart, Type
from capellini.store.ordered import KeyCodec


def _timeuuid(parts: tuple[int, int]) -> UUID:
    time, low = parts
    high = (time & 0xFFFF_FFFF) << 32 | (time >> 32 & 0xFFFF) << 16 | 1 << 12 | time >> 48
    return UUID(int=high << 64 | low)


PARTS: dict[Type, st.SearchStrategy[KeyPart]] = {
    Type.TEXT: st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.text("\x00\x01ab", max_size=5),
    Type.BLOB: st.binary(max_size=4) | st.lists(st.sampled_from(b"\x00\x01\xfe\xff"), max_size=5).map(bytes),
    Type.INT: st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    Type.TIMEUUID: st.tuples(st.integers(0, 2**60 - 1), st.integers(0, 2**64 - 1)).map(_timeuuid),
}


def _rank(part: KeyPart) -> tuple[object, ...]:
    """How the interface says that keys are ordered."""
    if isinstance(part, str):
        return (part.encode(),)
    if isinstance(part, UUID):
        return (part.time, [byte - 256 if byte > 127 else byte for byte in part.bytes[8:]])
    return (part,)


def _ranks(key: Key) -> list[tuple[object, ...]]:
    return [_rank(part) for part in key]


def _codec(types: list[Type]) -> KeyCodec:
    return KeyCodec(tuple(Column(f"c{at}", kind) for at, kind in enumerate(types)))


@st.composite
def codecs_with_keys(draw: st.DrawFn) -> tuple[KeyCodec, Key, Key]:
    types = draw(st.lists(st.sampled_from(list(PARTS)), min_size=1, max_size=3))
    first, second = (tuple(draw(PARTS[kind]) for kind in types) for _ in range(2))
    shared = draw(st.integers(0, len(types)))  # keys that begin alike are where an order goes wrong
    return _codec(types), first, first[:shared] + second[shared:]


@given(codecs_with_keys())
def test_keys_come_back_as_they_were(given: tuple[KeyCodec, Key, Key]) -> None:
    codec, key, _ = given
    assert codec.decode(codec.encode(key)) == key
    assert list(codec.split_all([b"abc" + codec.encode(key)] * 2, 3)) == [key, key]
    assert codec.split(codec.encode(key) + b"\x00more") == (key, len(codec.encode(key)))


@given(codecs_with_keys())
def test_bytes_are_ordered_as_the_keys_are(given: tuple[KeyCodec, Key, Key]) -> None:
    codec, one, other = given
    assert (codec.encode(one) < codec.encode(other)) == (_ranks(one) < _ranks(other))
    assert (codec.encode(one) == codec.encode(other)) == (one == other)


@given(codecs_with_keys(), st.integers(0, 3))
def test_a_prefix_stands_before_all_keys_that_begin_with_it_and_among_the_others_where_it_should(
    given: tuple[KeyCodec, Key, Key], length: int
) -> None:
    codec, one, other = given
    prefix = one[:length]
    data = codec.prefix(prefix)
    assert codec.encode(other).startswith(data) == (other[: len(prefix)] == prefix)
    if other[: len(prefix)] == prefix:
        assert data <= codec.encode(other)
    else:
        assert (data < codec.encode(other)) == (_ranks(prefix) < _ranks(other))


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (Type.TEXT, b"bytes"),
        (Type.TEXT, "\ud800"),
        (Type.BLOB, "text"),
        (Type.INT, True),
        (Type.INT, 2**63),
        (Type.TIMEUUID, UUID(int=4 << 76)),
    ],
)
def test_parts_of_another_type_are_refused(kind: Type, part: KeyPart) -> None:
    with pytest.raises(Invalid):
        _codec([kind]).encode((part,))


def test_keys_of_another_length_are_refused() -> None:
    codec = _codec([Type.INT, Type.INT])
    for key in ((), (1,), (1, 2, 3)):
        with pytest.raises(Invalid):
            codec.encode(key)
    with pytest.raises(Invalid):
        codec.prefix((1, 2, 3))


def test_a_key_cannot_be_a_double() -> None:
    with pytest.raises(Invalid):
        _codec([Type.DOUBLE])
