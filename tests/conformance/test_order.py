"""The order of keys is the documented one, for every type a key can have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conformance.harness import Harness, Stand, timeuuid
from tests.conformance.tables import BY_BLOB, BY_TEXT, BY_TIMEUUID, PLAIN

from capellini.store.interface import Key, KeyPart, Table


def rank(part: KeyPart) -> Any:
    """Where a part of a key stands among others of its type, as `Type` documents it."""
    match part:
        case str():
            return part.encode()
        case UUID():
            return part.time, tuple(byte - 256 if byte > 127 else byte for byte in part.bytes[8:])
        case _:
            return part


def ranked(keys: list[Key]) -> list[Key]:
    return sorted(keys, key=lambda key: tuple(rank(part) for part in key))


# Small alphabets make neighbours; the whole ranges make surprises.
texts = st.one_of(
    st.text("\0\x01a\x7fä\uffff\U0001f35d", max_size=4), st.text(st.characters(codec="utf-8"), max_size=12)
)
blobs = st.one_of(st.lists(st.sampled_from((0, 1, 127, 128, 255)), max_size=5).map(bytes), st.binary(max_size=12))
ints = st.one_of(st.integers(-300, 300), st.integers(-(2**63), 2**63 - 1))
timeuuids = st.builds(
    timeuuid,
    st.one_of(st.integers(0, 3), st.sampled_from((2**32 - 1, 2**32, 2**48)), st.integers(0, 2**60 - 1)),
    st.one_of(st.integers(0, 2**62 - 1), st.sampled_from((0, 0x7F, 0x80, 0xFF, 0x7FFF, 0x80FF))),
)
CASES: dict[str, tuple[Table, st.SearchStrategy[Key]]] = {
    "text": (BY_TEXT, st.tuples(texts)),
    "blob": (BY_BLOB, st.tuples(blobs)),
    "int": (PLAIN, st.tuples(st.just("k"), ints)),
    "timeuuid": (BY_TIMEUUID, st.tuples(timeuuids)),
    "text, int": (PLAIN, st.tuples(texts, st.integers(-2, 2))),
}


def on_keys(stand: Stand, case: str, check: Callable[[Harness, Table, list[Key], Key], Any]) -> None:
    """Run a check on sets of keys and one key more (a bound), each in a partition of its own."""
    table, keys = CASES[case]

    @settings(
        max_examples=8 if stand.kind == "cassandra" else 25,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(some=st.lists(keys, min_size=1, max_size=40, unique=True), bound=keys)
    def explore(some: list[Key], bound: Key) -> None:
        stand.run(lambda h: check(h, table, some, bound))

    explore()


async def write_keys(h: Harness, table: Table, keys: list[Key]) -> str:
    p = h.key()
    await h.put(table, p, {key: {"number": at} for at, key in enumerate(keys)}, sync=False)
    return p


@pytest.mark.parametrize("case", CASES)
def test_rows_come_in_the_documented_order(stand: Stand, case: str) -> None:
    async def check(h: Harness, table: Table, keys: list[Key], bound: Key) -> None:
        p = await write_keys(h, table, keys)
        assert await h.rows(table, p) == {key: {"number": at} for at, key in enumerate(keys)}
        assert await h.keys(table, p) == ranked(keys)
        assert await h.keys(table, p, reverse=True) == ranked(keys)[::-1]

    on_keys(stand, case, check)


@pytest.mark.parametrize("case", CASES)
def test_bounds_cut_where_the_documented_order_says(stand: Stand, case: str) -> None:
    async def check(h: Harness, table: Table, keys: list[Key], bound: Key) -> None:
        p = await write_keys(h, table, keys)
        whole = ranked(list({*keys, bound}))
        below = [key for key in whole[: whole.index(bound)] if key in keys]
        above = [key for key in whole[whole.index(bound) + 1 :] if key in keys]
        here = [bound] if bound in keys else []
        assert await h.keys(table, p, end=bound) == below
        assert await h.keys(table, p, start=bound) == here + above
        assert await h.keys(table, p, after=bound) == above
        assert await h.keys(table, p, after=bound, reverse=True) == below[::-1]
        prefix = bound[:1]
        assert await h.keys(table, p, end=prefix) == [key for key in whole if key in keys and _less(key[:1], prefix)]
        assert await h.keys(table, p, start=prefix) == [
            key for key in whole if key in keys and not _less(key[:1], prefix)
        ]

    on_keys(stand, case, check)


def _less(one: Key, other: Key) -> bool:
    return tuple(rank(part) for part in one) < tuple(rank(part) for part in other)
