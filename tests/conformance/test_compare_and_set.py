"""Compare-and-set: all conditions or nothing, what a refusal shows, and one winner among many."""

from __future__ import annotations

import asyncio

from tests.conformance.harness import SERIAL, Harness, every_store, timeuuid
from tests.conformance.tables import GUARDED, SINGLE
from tests.conformance.test_writes import LATER_S, SOON_S

from capellini.store.interface import ABSENT, Batch, Cas, Change, Key, Outcome, Slice, Value


def shows(outcome: Outcome, key: Key | None, wanted: dict[str, Value]) -> bool:
    """Whether a refusal shows these values of a row (it may show more of them)."""
    row = outcome.rows.get(key, {})
    return not outcome.applied and all(row.get(name) == value for name, value in wanted.items())


@every_store
async def test_it_happens_if_the_value_is_the_one_expected(h: Harness) -> None:
    p = h.key()
    await h.make(GUARDED, p, ((1,), {"state": "new", "count": 1}))
    first = await h.cas(GUARDED, p, Change((1,), {"state": "new"}, {"state": "taken"}))
    assert first.applied and first.rows == {}
    again = await h.cas(GUARDED, p, Change((1,), {"state": "new"}, {"state": "lost", "count": 9}))
    assert shows(again, (1,), {"state": "taken"})
    assert await h.rows(GUARDED, p, level=SERIAL) == {(1,): {"state": "taken", "count": 1}}


@every_store
async def test_every_type_can_be_expected_and_written(h: Harness) -> None:
    p = h.key()
    old: dict[str, Value] = {
        "state": "ä\0", "count": -1, "ratio": 0.1, "flag": False, "packed": b"\0\xff", "moment": timeuuid(5, 6),
    }  # fmt: skip
    new: dict[str, Value] = {
        "state": "", "count": 2**63 - 1, "ratio": -2.5, "flag": True, "packed": b"", "moment": timeuuid(7, 8),
    }  # fmt: skip
    await h.make(GUARDED, p, ((1,), old))
    for name, value in new.items():
        refused = await h.cas(GUARDED, p, Change((1,), {name: value}, {"token": "wrong"}))
        assert shows(refused, (1,), {name: old[name]}), name
        assert (await h.cas(GUARDED, p, Change((1,), {name: old[name]}, {name: value}))).applied, name
    assert (await h.cas(GUARDED, p, Change((1,), new, {"token": "right"}))).applied
    assert await h.rows(GUARDED, p, level=SERIAL) == {(1,): {**new, "token": "right"}}


@every_store
async def test_an_empty_value_is_not_a_missing_one(h: Harness) -> None:
    p = h.key()
    await h.make(GUARDED, p, ((1,), {"state": "", "packed": b"", "count": 0}))
    for name in ("state", "packed", "count"):
        assert not (await h.cas(GUARDED, p, Change((1,), {name: None}, {"token": "x"}))).applied, name
    assert not (await h.cas(GUARDED, p, Change((1,), {"token": ""}, {"token": "x"}))).applied


@every_store
async def test_absent_means_that_the_row_does_not_exist(h: Harness) -> None:
    p = h.key()
    assert (await h.cas(GUARDED, p, Change((1,), ABSENT, {"state": "a", "token": "t"}))).applied
    refused = await h.cas(GUARDED, p, Change((1,), ABSENT, {"state": "b"}))
    assert not refused.applied and refused.rows == {(1,): {"state": "a", "token": "t"}}
    assert (await h.cas(GUARDED, p, Change((2,), ABSENT, {"state": "c"}))).applied
    assert await h.rows(GUARDED, p) == {(1,): {"state": "a", "token": "t"}, (2,): {"state": "c"}}


@every_store
async def test_a_row_with_only_plain_columns_is_not_absent(h: Harness) -> None:
    p = h.key()
    await h.put(GUARDED, p, {(1,): {"body": b"x"}})
    assert not (await h.cas(GUARDED, p, Change((1,), ABSENT, {"state": "a"}))).applied
    assert (await h.cas(GUARDED, p, Change((1,), {"state": None}, {"state": "a"}))).applied
    assert await h.rows(GUARDED, p) == {(1,): {"body": b"x", "state": "a"}}


@every_store
async def test_a_row_whose_cells_are_all_gone_is_absent_again(h: Harness) -> None:
    p = h.key()
    await h.make(GUARDED, p, ((1,), {"state": "a", "count": 1}))
    assert (await h.cas(GUARDED, p, Change((1,), {"state": "a"}, {"state": None, "count": None}))).applied
    assert await h.rows(GUARDED, p, level=SERIAL) == {}
    assert (await h.cas(GUARDED, p, Change((1,), ABSENT, {"state": "b"}))).applied


@every_store
async def test_expecting_none_means_no_value_whether_the_row_exists_or_not(h: Harness) -> None:
    p = h.key()
    assert (await h.cas(GUARDED, p, Change((1,), {"state": None}, {"state": "a"}))).applied
    refused = await h.cas(GUARDED, p, Change((1,), {"state": None}, {"state": "b"}))
    assert shows(refused, (1,), {"state": "a"})
    assert (await h.cas(GUARDED, p, Change((1,), {"token": None, "state": "a"}, {"token": "t"}))).applied
    assert (await h.cas(GUARDED, p, Change((1,), {"token": "t"}, {"token": None, "count": 3}))).applied
    assert await h.rows(GUARDED, p, level=SERIAL) == {(1,): {"state": "a", "count": 3}}


@every_store
async def test_expecting_a_value_of_a_row_that_does_not_exist_is_refused(h: Harness) -> None:
    p = h.key()
    refused = await h.cas(GUARDED, p, Change((1,), {"state": "a"}, {"state": "b"}))
    assert not refused.applied and (1,) not in refused.rows
    assert await h.rows(GUARDED, p, level=SERIAL) == {}


@every_store
async def test_many_rows_change_together_or_not_at_all(h: Harness) -> None:
    p = h.key()
    keys: list[Key] = [(k,) for k in range(100)]
    await h.make(GUARDED, p, *((key, {"state": "new", "count": 0}) for key in keys))
    all_new = [Change(key, {"state": "new"}, {"state": "mine"}) for key in keys]
    one_off = [*all_new[:57], Change((57,), {"state": "old"}, {"state": "mine"}), *all_new[58:]]
    refused = await h.cas(GUARDED, p, *one_off)
    assert not refused.applied
    assert {key: row.get("state") for key, row in refused.rows.items()} == dict.fromkeys(keys, "new")
    assert {row["state"] for row in (await h.rows(GUARDED, p, level=SERIAL)).values()} == {"new"}
    assert (await h.cas(GUARDED, p, *all_new)).applied
    assert {row["state"] for row in (await h.rows(GUARDED, p, level=SERIAL)).values()} == {"mine"}


@every_store
async def test_each_row_may_have_a_condition_of_its_own_kind(h: Harness) -> None:
    p = h.key()
    await h.make(GUARDED, p, ((1,), {"state": "a"}), ((4,), {"state": "d", "token": "old"}))
    changes = (
        Change((1,), {"state": "a"}, {"state": "aa"}),
        Change((2,), ABSENT, {"state": "bb"}),
        Change((3,), {"state": None}, {"state": "cc"}),
        Change((4,), None, {"token": "free"}),
        Change(None, {"version": None}, {"version": 1, "head": "h"}),
    )
    assert (await h.cas(GUARDED, p, *changes)).applied
    page = await h.read(GUARDED, p, level=SERIAL)
    assert {row.key: row.values for row in page.rows} == {
        (1,): {"state": "aa"}, (2,): {"state": "bb"}, (3,): {"state": "cc"}, (4,): {"state": "d", "token": "free"},
    }  # fmt: skip
    assert page.static == {"version": 1, "head": "h"}
    refused = await h.cas(GUARDED, p, *changes)
    assert shows(refused, (1,), {"state": "aa"}) and shows(refused, (2,), {"state": "bb"})
    assert shows(refused, (3,), {"state": "cc"}) and shows(refused, None, {"version": 1})
    assert (4,) not in refused.rows


@every_store
async def test_a_refusal_leaves_out_rows_that_do_not_exist(h: Harness) -> None:
    p = h.key()
    await h.make(GUARDED, p, ((1,), {"state": "a"}), ((3,), {"state": "c"}))
    refused = await h.cas(GUARDED, p, *(Change((k,), {"state": "x"}, {"state": "y"}) for k in (1, 2, 3, 4)))
    assert not refused.applied
    assert {key: row.get("state") for key, row in refused.rows.items()} == {(1,): "a", (3,): "c"}


# ---- the static row


@every_store
async def test_static_conditions_guard_rows_and_rows_guard_static_values(h: Harness) -> None:
    p = h.key()
    assert (await h.cas(GUARDED, p, Change(None, {"version": None}, {"version": 1}))).applied
    guard = Change(None, {"version": 1, "dropped": None}, {"version": 2})
    assert (await h.cas(GUARDED, p, guard, Change((1,), None, {"state": "a"}))).applied
    refused = await h.cas(GUARDED, p, guard, Change((1,), None, {"state": "b"}))
    assert shows(refused, None, {"version": 2}) and "dropped" not in refused.rows[None]
    row_guard = Change((1,), {"state": "b"}, {"state": "c"})
    assert not (await h.cas(GUARDED, p, row_guard, Change(None, None, {"version": 3}))).applied
    page = await h.read(GUARDED, p, level=SERIAL)
    assert page.static == {"version": 2} and [row.values for row in page.rows] == [{"state": "a"}]


@every_store
async def test_a_refusal_shows_the_static_row_of_a_partition_without_rows(h: Harness) -> None:
    p = h.key()
    nothing = await h.cas(GUARDED, p, Change(None, {"head": "x"}, {"head": "y"}))
    assert not nothing.applied and not nothing.rows.get(None)
    assert (await h.cas(GUARDED, p, Change(None, {"head": None}, {"head": "h", "version": 7}))).applied
    refused = await h.cas(GUARDED, p, Change(None, {"head": "x", "version": 7}, {"head": "y"}))
    assert shows(refused, None, {"head": "h", "version": 7}) and set(refused.rows) == {None}


@every_store
async def test_static_and_row_conditions_are_shown_together(h: Harness) -> None:
    p = h.key()
    await h.make(GUARDED, p, ((1,), {"state": "a"}))
    assert (await h.cas(GUARDED, p, Change(None, {"head": None}, {"head": "h"}))).applied
    refused = await h.cas(
        GUARDED, p,
        Change(None, {"head": "h"}, {"version": 1}),
        Change((1,), {"state": "x"}, {"state": "y"}),
        Change((2,), {"state": "x"}, {"state": "y"}),
    )  # fmt: skip
    assert shows(refused, None, {"head": "h"}) and shows(refused, (1,), {"state": "a"}) and (2,) not in refused.rows


@every_store
async def test_plain_and_conditional_columns_live_side_by_side(h: Harness) -> None:
    p = h.key()
    await h.put(GUARDED, p, {(1,): {"body": b"plain"}}, static={"note": "plain"})
    first = await h.cas(
        GUARDED, p, Change((1,), {"state": None}, {"state": "a"}), Change(None, {"head": None}, {"head": "h"})
    )
    assert first.applied
    await h.put(GUARDED, p, {(1,): {"body": b"again"}}, static={"note": "again"})
    page = await h.read(GUARDED, p, level=SERIAL)
    assert page.rows[0].values == {"body": b"again", "state": "a"} and page.static == {"note": "again", "head": "h"}


@every_store
async def test_a_table_of_one_row_per_partition(h: Harness) -> None:
    partition = (h.key(), 1, b"x", timeuuid(1))
    assert (await h.store.compare_and_set(Cas(SINGLE, partition, (Change((), ABSENT, {"state": "a"}),)))).applied
    refused = await h.store.compare_and_set(Cas(SINGLE, partition, (Change((), ABSENT, {"state": "b"}),)))
    assert not refused.applied and refused.rows == {(): {"state": "a"}}
    change = Change((), {"state": "a", "token": None}, {"state": "c", "token": "t"})
    assert (await h.store.compare_and_set(Cas(SINGLE, partition, (change,)))).applied
    await h.store.write(Batch(SINGLE, partition, (((), {"body": b"b"}),)))
    page = await h.store.read(Slice(SINGLE, partition, level=SERIAL))
    assert page.rows[0].values == {"state": "c", "token": "t", "body": b"b"}


@every_store
async def test_what_it_writes_can_have_a_time_to_live(h: Harness) -> None:
    p = h.key()
    await h.make(GUARDED, p, ((1,), {"state": "kept"}))
    assert (await h.cas(GUARDED, p, Change((2,), ABSENT, {"state": "soon"}), ttl_s=SOON_S)).applied
    assert (await h.cas(GUARDED, p, Change(None, {"head": None}, {"head": "soon"}), ttl_s=SOON_S)).applied
    assert (await h.cas(GUARDED, p, Change((3,), ABSENT, {"state": "later"}), ttl_s=LATER_S)).applied

    async def free_again() -> bool:
        return (await h.cas(GUARDED, p, Change((2,), ABSENT, {"state": "next"}))).applied

    await h.until(free_again, "an expired row is absent")

    async def ended() -> bool:
        return await h.static(GUARDED, p) == {}

    await h.until(ended, "an expired static value is gone")
    rows = await h.rows(GUARDED, p, level=SERIAL)
    assert {key: row["state"] for key, row in rows.items()} == {(1,): "kept", (2,): "next", (3,): "later"}


# ---- many at once


@every_store
async def test_exactly_one_of_many_wins_each_round(h: Harness) -> None:
    p = h.key()
    tasks, rounds = 8, 5
    await h.make(GUARDED, p, ((1,), {"count": 0}))
    for number in range(rounds):
        outcomes = await asyncio.gather(
            *(
                h.cas(GUARDED, p, Change((1,), {"count": number}, {"count": number + 1, "token": f"{number}/{task}"}))
                for task in range(tasks)
            )
        )
        winners = [task for task, outcome in enumerate(outcomes) if outcome.applied]
        assert len(winners) == 1
        assert all(shows(outcome, (1,), {"count": number + 1}) for outcome in outcomes if not outcome.applied)
        row = (await h.rows(GUARDED, p, level=SERIAL))[(1,)]
        assert row == {"count": number + 1, "token": f"{number}/{winners[0]}"}


@every_store
async def test_adding_by_compare_and_set_loses_no_step(h: Harness) -> None:
    p = h.key()
    tasks, steps = 5, 4
    assert (await h.cas(GUARDED, p, Change(None, {"version": None}, {"version": 0}))).applied

    async def add() -> None:
        done, seen = 0, 0
        while done < steps:
            outcome = await h.cas(GUARDED, p, Change(None, {"version": seen}, {"version": seen + 1}))
            done += outcome.applied
            now = seen + 1 if outcome.applied else outcome.rows[None]["version"]
            assert isinstance(now, int) and now > seen
            seen = now

    await asyncio.gather(*(add() for _ in range(tasks)))
    assert (await h.read(GUARDED, p, limit=0, level=SERIAL)).static == {"version": tasks * steps}


@every_store
async def test_different_rows_of_one_partition_do_not_refuse_each_other(h: Harness) -> None:
    p = h.key()
    outcomes = await asyncio.gather(*(h.cas(GUARDED, p, Change((k,), ABSENT, {"count": k})) for k in range(10)))
    assert all(outcome.applied for outcome in outcomes)
    assert await h.rows(GUARDED, p, level=SERIAL) == {(k,): {"count": k} for k in range(10)}
