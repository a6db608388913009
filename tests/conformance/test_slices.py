"""Reading: what a slice contains, in which order, and what it says about the rest."""

from __future__ import annotations

from tests.conformance.harness import Harness, every_store, timeuuid
from tests.conformance.tables import BY_TIMEUUID, GUARDED, PLAIN, SINGLE

from capellini.store.interface import Batch, Key, Level, Row, Slice

KEYS: list[Key] = [(a, b) for a in ("a", "b", "c") for b in (-1, 0, 1, 2)]


async def filled(h: Harness) -> str:
    p = h.key()
    await h.put(PLAIN, p, {key: {"number": at} for at, key in enumerate(KEYS)}, static={"title": "t"})
    return p


@every_store
async def test_a_partition_that_was_never_written_is_empty(h: Harness) -> None:
    page = await h.read(PLAIN, h.key())
    assert page.rows == [] and page.static == {} and not page.more


@every_store
async def test_a_slice_without_bounds_has_all_rows_in_order(h: Harness) -> None:
    page = await h.read(PLAIN, await filled(h))
    assert page.rows == [Row(key, {"number": at}) for at, key in enumerate(KEYS)]
    assert page.static == {"title": "t"}
    assert not page.more


@every_store
async def test_every_type_comes_back_as_it_was_written(h: Harness) -> None:
    p = h.key()
    values = {
        "text": "grüße 🍝\0\n",
        "blob": bytes(range(256)),
        "number": -(2**63),
        "ratio": -0.1,
        "flag": False,
        "moment": timeuuid(2**59 + 12345, 678),
    }
    least = {"text": "", "blob": b"", "number": 2**63 - 1, "ratio": 0.0, "flag": True}
    await h.put(PLAIN, p, {("x", 1): values, ("x", 2): least})
    rows = await h.rows(PLAIN, p)
    assert rows == {("x", 1): values, ("x", 2): least}
    assert {name: type(value) for name, value in rows["x", 1].items()} == {
        name: type(value) for name, value in values.items()
    }


@every_store
async def test_start_is_inside_and_end_is_not(h: Harness) -> None:
    p = await filled(h)
    assert await h.keys(PLAIN, p, start=("b", 0)) == KEYS[5:]
    assert await h.keys(PLAIN, p, end=("b", 0)) == KEYS[:5]
    assert await h.keys(PLAIN, p, start=("a", 1), end=("c", 0)) == KEYS[2:9]
    assert await h.keys(PLAIN, p, start=("b", 0), end=("b", 0)) == []
    assert await h.keys(PLAIN, p, start=("c", 0), end=("a", 0)) == []


@every_store
async def test_bounds_need_not_be_rows(h: Harness) -> None:
    p = await filled(h)
    assert await h.keys(PLAIN, p, start=("aa", 7), end=("b", 100)) == KEYS[4:8]
    assert await h.keys(PLAIN, p, start=("zz", 0)) == []
    assert await h.keys(PLAIN, p, end=("", 0)) == []


@every_store
async def test_a_prefix_stands_before_all_keys_that_begin_with_it(h: Harness) -> None:
    p = await filled(h)
    assert await h.keys(PLAIN, p, start=("b",)) == KEYS[4:]
    assert await h.keys(PLAIN, p, end=("b",)) == KEYS[:4]
    assert await h.keys(PLAIN, p, start=("b",), end=("c",)) == KEYS[4:8]
    assert await h.keys(PLAIN, p, start=("b",), end=("b", 1)) == KEYS[4:6]
    assert await h.keys(PLAIN, p, start=("b", 1), end=("c",)) == KEYS[6:8]
    assert await h.keys(PLAIN, p, start=("b", 1), end=("b",)) == []
    assert await h.keys(PLAIN, p, start=()) == KEYS
    assert await h.keys(PLAIN, p, end=()) == []


@every_store
async def test_after_is_strictly_above(h: Harness) -> None:
    p = await filled(h)
    assert await h.keys(PLAIN, p, after=("b", 0)) == KEYS[6:]
    assert await h.keys(PLAIN, p, after=("b", 2), end=("c", 1)) == KEYS[8:10]
    assert await h.keys(PLAIN, p, after=("bb", 0)) == KEYS[8:]
    assert await h.keys(PLAIN, p, after=KEYS[-1]) == []


@every_store
async def test_reverse_goes_from_the_end_with_the_bounds_in_their_places(h: Harness) -> None:
    p = await filled(h)
    assert await h.keys(PLAIN, p, reverse=True) == KEYS[::-1]
    assert await h.keys(PLAIN, p, reverse=True, start=("b",), end=("c", 0)) == KEYS[8:3:-1]
    assert await h.keys(PLAIN, p, reverse=True, limit=2) == [("c", 2), ("c", 1)]
    assert await h.keys(PLAIN, p, reverse=True, after=("b", 0)) == KEYS[4::-1]
    assert await h.keys(PLAIN, p, reverse=True, after=("b", 0), start=("a", 1)) == KEYS[4:1:-1]


@every_store
async def test_a_limit_cuts_and_more_says_so(h: Harness) -> None:
    p = await filled(h)
    for reverse in (False, True):
        keys = KEYS[::-1] if reverse else KEYS
        first = await h.read(PLAIN, p, limit=5, reverse=reverse)
        assert [row.key for row in first.rows] == keys[:5] and first.more
        whole = await h.read(PLAIN, p, limit=len(KEYS) + 1, reverse=reverse)
        assert [row.key for row in whole.rows] == keys and not whole.more
        exact = await h.read(PLAIN, p, limit=len(KEYS), reverse=reverse)
        assert [row.key for row in exact.rows] == keys


@every_store
async def test_pages_after_one_another_have_every_row_once(h: Harness) -> None:
    p = h.key()
    many: list[Key] = [("k", number) for number in range(2_500)]
    await h.put(PLAIN, p, {key: {"flag": True} for key in many})
    for reverse in (False, True):
        for limit in (7, 1_000):
            found: list[Key] = []
            page = await h.read(PLAIN, p, limit=limit, reverse=reverse, columns=())
            while page.rows and len(found) < (70 if limit == 7 else len(many)):
                found += [row.key for row in page.rows]
                page = await h.read(PLAIN, p, limit=limit, reverse=reverse, after=found[-1], columns=())
            assert found == (many[::-1] if reverse else many)[: len(found)]
            assert len(found) == (70 if limit == 7 else len(many))
    assert await h.keys(PLAIN, p, limit=10_000) == many


@every_store
async def test_limit_0_reads_the_static_columns_only(h: Harness) -> None:
    page = await h.read(PLAIN, await filled(h), limit=0)
    assert page.rows == [] and page.static == {"title": "t"}


@every_store
async def test_static_columns_come_with_every_slice_even_an_empty_one(h: Harness) -> None:
    p = await filled(h)
    assert (await h.read(PLAIN, p, start=("b",), limit=1)).static == {"title": "t"}
    assert (await h.read(PLAIN, p, start=("x",))).static == {"title": "t"}
    assert (await h.read(PLAIN, p, after=KEYS[-1])).static == {"title": "t"}
    alone = h.key()
    await h.store.write(Batch(PLAIN, (alone,), static={"total": 3}))
    assert await h.read(PLAIN, alone) == await h.read(PLAIN, alone, start=("a",), reverse=True)
    page = await h.read(PLAIN, alone)
    assert page.rows == [] and page.static == {"total": 3} and not page.more


@every_store
async def test_only_the_columns_asked_for_come_back(h: Harness) -> None:
    p = h.key()
    rows: dict[Key, dict[str, object]] = {("a", 1): {"text": "x", "number": 1}, ("a", 2): {"flag": True}}
    await h.put(PLAIN, p, rows, static={"title": "t", "total": 1})  # type: ignore[arg-type]
    page = await h.read(PLAIN, p, columns=("text", "title"))
    assert page.rows == [Row(("a", 1), {"text": "x"}), Row(("a", 2), {})]
    assert page.static == {"title": "t"}
    assert (await h.read(PLAIN, p, columns=())).rows == [Row(("a", 1), {}), Row(("a", 2), {})]
    assert (await h.read(PLAIN, p, columns=("total",), limit=0)).static == {"total": 1}


@every_store
async def test_reads_at_every_level_see_what_was_confirmed(h: Harness) -> None:
    p = await filled(h)
    for level in Level:
        assert await h.keys(PLAIN, p, level=level, end=("b",)) == KEYS[:4], level


@every_store
async def test_a_table_without_clustering_has_one_row_with_an_empty_key(h: Harness) -> None:
    partition = (h.key(), -5, b"\0\xff", timeuuid(7))
    await h.store.write(Batch(SINGLE, partition, (((), {"body": b"x"}),)))
    for how in (Slice(SINGLE, partition), Slice(SINGLE, partition, limit=1), Slice(SINGLE, partition, reverse=True)):
        assert (await h.store.read(how)).rows == [Row((), {"body": b"x"})]
    others = [(partition[0], -4, *partition[2:]), (*partition[:2], b"\0", partition[3]), (*partition[:3], timeuuid(8))]
    for other in others:
        assert (await h.store.read(Slice(SINGLE, other))).rows == []


@every_store
async def test_partitions_are_apart(h: Harness) -> None:
    base = h.key()
    names = [base + end for end in ("", "\0", "\0\0", "a", "\x7f", "ä", "\U0001f35d", "\uffff")]
    for at, name in enumerate(names):
        await h.put(PLAIN, name, {("k", at): {"number": at}}, static={"total": at})
    for at, name in enumerate(names):
        page = await h.read(PLAIN, name)
        assert page.rows == [Row(("k", at), {"number": at})] and page.static == {"total": at}
    assert (await h.read(GUARDED, base)).rows == []


@every_store
async def test_a_time_series_is_read_by_time(h: Harness) -> None:
    p = h.key()
    moments = [timeuuid(ticks) for ticks in (1, 2**32, 2**48 - 1, 2**48, 2**59)]
    await h.put(BY_TIMEUUID, p, {(moment,): {"number": 1} for moment in reversed(moments)})
    assert await h.keys(BY_TIMEUUID, p) == [(moment,) for moment in moments]
    assert await h.keys(BY_TIMEUUID, p, after=(moments[1],), end=(moments[4],)) == [(moments[2],), (moments[3],)]
