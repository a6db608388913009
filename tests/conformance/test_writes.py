"""Plain writes: atomic batches, deleted cells, time to live, and which of two writes wins."""

from __future__ import annotations

import asyncio
import itertools

from tests.conformance.harness import Harness, every_store
from tests.conformance.tables import APART, PLAIN

from capellini.store.interface import Batch, Key, Slice, Value

K: Key = ("k", 1)
SOON_S = 2  # a time to live that a test waits for
LATER_S = 100_000  # one that it does not


@every_store
async def test_a_write_changes_the_columns_it_names_and_no_others(h: Harness) -> None:
    p = h.key()
    await h.put(PLAIN, p, {K: {"text": "a", "number": 1}}, static={"title": "x", "total": 1})
    await h.put(PLAIN, p, {K: {"number": 2}, ("k", 2): {"flag": True}}, static={"total": 2})
    assert await h.rows(PLAIN, p) == {K: {"text": "a", "number": 2}, ("k", 2): {"flag": True}}
    assert await h.static(PLAIN, p) == {"title": "x", "total": 2}


@every_store
async def test_rows_that_are_said_to_be_new_go_in_with_rows_that_are_there_and_are_changed_like_any(h: Harness) -> None:
    p = h.key()
    await h.put(PLAIN, p, {K: {"text": "a"}})
    await h.put(PLAIN, p, {("k", 2): {"text": "b", "number": 1}, ("k", 3): {"number": 2}}, new=True)
    await h.put(PLAIN, p, {("k", 2): {"number": None, "flag": True}})
    assert await h.rows(PLAIN, p) == {K: {"text": "a"}, ("k", 2): {"text": "b", "flag": True}, ("k", 3): {"number": 2}}


@every_store
async def test_none_deletes_a_cell(h: Harness) -> None:
    p = h.key()
    await h.put(PLAIN, p, {K: {"text": "a", "number": 1}}, static={"title": "x", "total": 1})
    await h.put(PLAIN, p, {K: {"text": None}}, static={"title": None})
    assert await h.rows(PLAIN, p) == {K: {"number": 1}}
    assert await h.static(PLAIN, p) == {"total": 1}
    await h.put(PLAIN, p, {K: {"text": "b"}})
    assert await h.rows(PLAIN, p) == {K: {"text": "b", "number": 1}}


@every_store
async def test_a_row_without_any_cell_left_does_not_exist(h: Harness) -> None:
    p = h.key()
    await h.put(PLAIN, p, {K: {"text": "a"}, ("k", 2): {"text": "b"}})
    await h.put(PLAIN, p, {K: {"text": None}, ("k", 3): {"number": None}})
    assert await h.rows(PLAIN, p) == {("k", 2): {"text": "b"}}


@every_store
async def test_a_batch_is_seen_as_a_whole_or_not_at_all(h: Harness) -> None:
    p = h.key()
    rounds = 15
    done = asyncio.Event()

    async def write() -> None:
        for number in range(1, rounds + 1):
            await h.put(PLAIN, p, {("k", k): {"number": number} for k in range(50)}, static={"total": number})
        done.set()

    async def look() -> int:
        looks = 0
        while not done.is_set():
            page = await h.read(PLAIN, p)
            seen = {row.values["number"] for row in page.rows} | set(page.static.values())
            assert len(seen) <= 1 and len(page.rows) in (0, 50)
            looks += 1
            await asyncio.sleep(0)  # a read of an embedded store may end without giving way
        return looks

    writing = asyncio.ensure_future(write())
    looks = await asyncio.gather(look(), look())
    await writing
    assert min(looks) > 0
    assert {row.values["number"] for row in (await h.read(PLAIN, p)).rows} == {rounds}


@every_store
async def test_many_tasks_may_write_at_once(h: Harness) -> None:
    p = h.key()
    await asyncio.gather(*(h.put(PLAIN, p, {("k", at): {"number": at}}, sync=at % 2 == 0) for at in range(200)))
    assert await h.rows(PLAIN, p) == {("k", at): {"number": at} for at in range(200)}


@every_store
async def test_sync_makes_durable_what_was_written_without(h: Harness) -> None:
    p = h.key()
    await h.put(PLAIN, p, {K: {"text": "a"}}, sync=False)
    await h.store.sync()
    assert await h.rows(PLAIN, p) == {K: {"text": "a"}}


@every_store
async def test_cancelling_one_writer_does_not_cancel_the_others(h: Harness) -> None:
    p = h.key()
    tasks = [asyncio.ensure_future(h.put(PLAIN, p, {("k", at): {"number": at}})) for at in range(40)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(end is None for end in ended[1::2])
    found = await h.keys(PLAIN, p)
    assert {("k", at) for at in range(1, 40, 2)} <= set(found)


# ---- time to live


@every_store
async def test_what_has_a_time_to_live_ends_and_what_has_none_stays(h: Harness) -> None:
    p, q = h.key(), h.key()
    await h.put(PLAIN, p, {K: {"text": "a"}, ("k", 2): {"text": "b"}}, static={"title": "x"})
    await h.put(PLAIN, p, {K: {"number": 1}, ("k", 3): {"text": "c"}}, static={"total": 1}, ttl_s=SOON_S)
    await h.put(PLAIN, p, {("k", 2): {"number": 2}}, ttl_s=LATER_S)
    await h.put(PLAIN, q, {K: {"text": "whole"}}, static={"total": 1}, ttl_s=SOON_S)
    kept: dict[Key, dict[str, Value]] = {K: {"text": "a"}, ("k", 2): {"text": "b", "number": 2}}

    async def expired() -> bool:
        return await h.rows(PLAIN, p) == kept and await h.static(PLAIN, p) == {"title": "x"}

    await h.until(expired, "cells end")
    await h.until(lambda: _is_empty(h, q), "a partition ends")


@every_store
async def test_a_later_write_renews_or_lifts_a_time_to_live(h: Harness) -> None:
    p = h.key()
    await h.put(PLAIN, p, {("k", at): {"number": at} for at in range(4)}, ttl_s=SOON_S)
    await h.put(PLAIN, p, {("k", 1): {"number": 1}}, ttl_s=LATER_S)
    await h.put(PLAIN, p, {("k", 2): {"number": 2}})
    await h.put(PLAIN, p, {("k", 3): {"text": "other cell"}})

    async def expired() -> bool:
        rows = await h.rows(PLAIN, p)
        assert rows.get(("k", 1)) == {"number": 1} and rows.get(("k", 2)) == {"number": 2}
        return ("k", 0) not in rows and rows[("k", 3)] == {"text": "other cell"}

    await h.until(expired, "only the old cells end")


@every_store
async def test_rows_that_ended_do_not_count_towards_a_limit(h: Harness) -> None:
    p = h.key()
    await h.put(PLAIN, p, {("k", at): {"number": at} for at in range(10)}, ttl_s=SOON_S)
    await h.put(PLAIN, p, {("l", at): {"number": at} for at in range(3)})
    live: list[Key] = [("l", 0), ("l", 1)]

    async def skipped() -> bool:
        return await h.keys(PLAIN, p, limit=2) == live

    await h.until(skipped, "the limit counts live rows")
    assert (await h.read(PLAIN, p, limit=2)).more


# ---- which write wins


@every_store
async def test_the_lower_timestamp_never_wins_in_either_order(h: Harness) -> None:
    p = h.key()
    for order in ((1_000, 2_000), (2_000, 1_000)):
        key: Key = ("k", order[0])
        for stamp in order:
            await h.put(PLAIN, p, {key: {"number": stamp, "text": str(stamp)}}, timestamp_us=stamp)
        assert (await h.rows(PLAIN, p))[key] == {"number": 2_000, "text": "2000"}


@every_store
async def test_timestamps_are_kept_cell_by_cell(h: Harness) -> None:
    p = h.key()
    await h.put(PLAIN, p, {K: {"number": 1}}, timestamp_us=2_000, static={"total": 1})
    await h.put(PLAIN, p, {K: {"number": 2, "text": "late"}}, timestamp_us=1_000, static={"total": 2, "title": "late"})
    assert await h.rows(PLAIN, p) == {K: {"number": 1, "text": "late"}}
    assert await h.static(PLAIN, p) == {"total": 1, "title": "late"}


@every_store
async def test_of_two_equal_timestamps_the_larger_value_wins_in_either_order(h: Harness) -> None:
    p = h.key()
    small: dict[str, Value] = {"text": "a", "blob": b"\x01\xff", "number": 255, "flag": False}
    large: dict[str, Value] = {"text": "ab", "blob": b"\x02", "number": 256, "flag": True}
    mixed: dict[str, Value] = {"text": "ab", "blob": b"\x01\xff", "number": 256, "flag": False}
    other: dict[str, Value] = {"text": "a", "blob": b"\x02", "number": 255, "flag": True}
    for at, pair in enumerate(((small, large), (large, small), (mixed, other), (other, mixed))):
        for values in pair:
            await h.put(PLAIN, p, {("k", at): values}, timestamp_us=5_000)
    assert await h.rows(PLAIN, p) == {("k", at): large for at in range(4)}


@every_store
async def test_a_deleted_cell_wins_over_equal_and_lower_timestamps(h: Harness) -> None:
    p = h.key()
    writes: list[tuple[Value, int]] = [("a", 1_000), (None, 2_000), ("b", 2_000)]
    for at, order in enumerate(itertools.permutations(writes)):
        for value, stamp in order:
            await h.put(PLAIN, p, {("k", at): {"text": value, "flag": True}}, timestamp_us=stamp)
    assert await h.rows(PLAIN, p) == {("k", at): {"flag": True} for at in range(6)}
    await h.put(PLAIN, p, {("k", 0): {"text": "c"}}, timestamp_us=2_001)
    assert (await h.rows(PLAIN, p))["k", 0] == {"text": "c", "flag": True}


@every_store
async def test_a_write_without_a_timestamp_is_of_now(h: Harness) -> None:
    p = h.key()
    await h.put(PLAIN, p, {K: {"number": 1}}, timestamp_us=1_000)
    await h.put(PLAIN, p, {K: {"number": 2}})
    await h.put(PLAIN, p, {K: {"number": 3}})
    assert await h.rows(PLAIN, p) == {K: {"number": 3}}
    await h.put(PLAIN, p, {K: {"number": 4}}, timestamp_us=2_000)
    assert await h.rows(PLAIN, p) == {K: {"number": 3}}
    await h.put(PLAIN, p, {K: {"number": 5}}, timestamp_us=2**62)
    await h.put(PLAIN, p, {K: {"number": 6}})
    assert await h.rows(PLAIN, p) == {K: {"number": 5}}


@every_store
async def test_repeating_a_write_with_its_timestamp_changes_nothing(h: Harness) -> None:
    p = h.key()
    await h.put(PLAIN, p, {K: {"number": 1, "text": "a"}}, timestamp_us=1_000)
    await h.put(PLAIN, p, {K: {"number": 2}}, timestamp_us=1_001)
    await h.put(PLAIN, p, {K: {"number": 1, "text": "a"}}, timestamp_us=1_000)
    assert await h.rows(PLAIN, p) == {K: {"number": 2, "text": "a"}}


# ---- clear_before and drop


@every_store
async def test_clear_before_deletes_the_rows_below_a_key(h: Harness) -> None:
    p = h.key()
    rows: dict[Key, dict[str, Value]] = {(a, b): {"number": b} for a in ("a", "b", "c") for b in range(3)}
    await h.put(PLAIN, p, rows, static={"total": 1})
    await h.store.write(Batch(PLAIN, (p,), static={"total": 2}, clear_before=("b", 1)))
    assert await h.keys(PLAIN, p) == [("b", 1), ("b", 2), ("c", 0), ("c", 1), ("c", 2)]
    assert await h.static(PLAIN, p) == {"total": 2}
    await h.put(PLAIN, p, {("d", 0): {"number": 0}}, clear_before=("c",))
    assert await h.keys(PLAIN, p) == [("c", 0), ("c", 1), ("c", 2), ("d", 0)]
    await h.put(PLAIN, p, {("a", 0): {"number": 7}})
    assert (await h.keys(PLAIN, p))[0] == ("a", 0)


@every_store
async def test_clear_before_spares_later_timestamps_and_covers_late_writes(h: Harness) -> None:
    p = h.key()
    await h.put(PLAIN, p, {("a", 1): {"number": 1}}, timestamp_us=1_000)
    await h.put(PLAIN, p, {("a", 2): {"number": 2}}, timestamp_us=3_000)
    await h.store.write(Batch(PLAIN, (p,), static={"total": 1}, clear_before=("b",), timestamp_us=2_000))
    assert await h.keys(PLAIN, p) == [("a", 2)]
    await h.put(PLAIN, p, {("a", 3): {"number": 3}}, timestamp_us=1_999)
    await h.put(PLAIN, p, {("a", 4): {"number": 4}}, timestamp_us=2_000)
    await h.put(PLAIN, p, {("a", 5): {"number": 5}}, timestamp_us=2_001)
    await h.put(PLAIN, p, {("b", 1): {"number": 6}}, timestamp_us=1_000)
    assert await h.keys(PLAIN, p) == [("a", 2), ("a", 5), ("b", 1)]


@every_store
async def test_a_dropped_partition_is_gone_with_its_static_columns(h: Harness) -> None:
    for table in (PLAIN, APART):
        name, other = h.key(), h.key()
        partition, beside = ((name,), (other,)) if table is PLAIN else ((name, 1), (name, 2))
        key: Key = K if table is PLAIN else (1,)
        for each in (partition, beside):
            await h.store.write(Batch(table, each, ((key, {"blob": b"x"}),), static={"title": "t"}))
        await h.store.drop(table, partition)
        page = await h.store.read(Slice(table, partition))
        assert page.rows == [] and page.static == {}
        kept = await h.store.read(Slice(table, beside))
        assert len(kept.rows) == 1 and kept.static == {"title": "t"}
        await h.store.write(Batch(table, partition, ((key, {"blob": b"y"}),)))
        again = await h.store.read(Slice(table, partition))
        assert [row.values for row in again.rows] == [{"blob": b"y"}] and again.static == {}
        await h.store.drop(table, (h.key(),) if table is PLAIN else (h.key(), 3))  # nothing there: nothing to do


@every_store
async def test_a_drop_with_a_timestamp_spares_what_is_later(h: Harness) -> None:
    p = h.key()
    await h.put(PLAIN, p, {K: {"number": 1, "text": "a"}}, timestamp_us=1_000, static={"title": "x"})
    await h.put(PLAIN, p, {K: {"number": 2}, ("k", 2): {"number": 2}}, timestamp_us=3_000, static={"total": 2})
    await h.store.drop(PLAIN, (p,), timestamp_us=2_000)
    assert await h.rows(PLAIN, p) == {K: {"number": 2}, ("k", 2): {"number": 2}}
    assert await h.static(PLAIN, p) == {"total": 2}
    await h.put(PLAIN, p, {("k", 3): {"number": 3}}, timestamp_us=2_000)
    assert ("k", 3) not in await h.rows(PLAIN, p)


async def _is_empty(h: Harness, p: str) -> bool:
    page = await h.read(PLAIN, p)
    return not page.rows and not page.static
