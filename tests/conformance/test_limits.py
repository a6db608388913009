"""What is refused changes nothing, in every store alike; what is allowed works up to its limit."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.conformance.harness import SERIAL, Harness, Stand, every_store, timeuuid
from tests.conformance.tables import APART, BY_BLOB, BY_TEXT, GUARDED, LISTED, PLAIN, SINGLE

from capellini.model.errors import Invalid, TooLarge
from capellini.store.interface import (
    ABSENT,
    MAX_BATCH_ROWS,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    Batch,
    Cas,
    Change,
    Key,
    Level,
    Slice,
)

GOOD: Key = ("k", 1)

BAD_BATCHES: dict[str, dict[str, Any]] = {
    "an unknown column": {"rows": ((GOOD, {"number": 1}), (("k", 2), {"nothing": 1}))},
    "a static column in a row": {"rows": ((GOOD, {"title": "t"}),)},
    "a column as a static one": {"rows": ((GOOD, {"number": 1}),), "static": {"number": 1}},
    "a number as text": {"rows": ((GOOD, {"text": 1}),)},
    "text as a number": {"rows": ((GOOD, {"number": "1"}),)},
    "a truth value as a number": {"rows": ((GOOD, {"number": True}),)},
    "a number as a truth value": {"rows": ((GOOD, {"flag": 1}),)},
    "a whole number as a double": {"rows": ((GOOD, {"ratio": 1}),)},
    "not a number": {"rows": ((GOOD, {"ratio": float("nan")}),)},
    "text as bytes": {"rows": ((GOOD, {"blob": "x"}),)},
    "a bytearray": {"rows": ((GOOD, {"blob": bytearray(b"x")}),)},
    "half a surrogate pair": {"rows": ((GOOD, {"text": "\ud800"}),)},
    "a random uuid": {"rows": ((GOOD, {"moment": UUID(int=4 << 76 | 1 << 63)}),)},
    "a number of 65 bits": {"rows": ((GOOD, {"number": 2**63}),)},
    "a list": {"rows": ((GOOD, {"text": ["x"]}),)},
    "a missing key part": {"rows": ((("k",), {"number": 1}),)},
    "a key part too many": {"rows": ((("k", 1, 2), {"number": 1}),)},
    "a wrong key part": {"rows": (((1, "k"), {"number": 1}),)},
    "a None in a key": {"rows": (((None, 1), {"number": 1}),)},
    "a key that is no tuple": {"rows": ((["k", 1], {"number": 1}),)},
    "a row that writes nothing": {"rows": ((GOOD, {}),)},
    "a row named twice": {"rows": ((GOOD, {"number": 1}), (GOOD, {"number": 2}))},
    "nothing to write": {},
    "a time to live of 0": {"rows": ((GOOD, {"number": 1}),), "ttl_s": 0},
    "a time to live of 100 years": {"rows": ((GOOD, {"number": 1}),), "ttl_s": 100 * 365 * 86_400},
    "half a second to live": {"rows": ((GOOD, {"number": 1}),), "ttl_s": 0.5},
    "a timestamp of 64 bits": {"rows": ((GOOD, {"number": 1}),), "timestamp_us": 2**63},
    "a negative timestamp": {"rows": ((GOOD, {"number": 1}),), "timestamp_us": -1},
    "a serial level": {"rows": ((GOOD, {"number": 1}),), "level": SERIAL},
    "a wrong clear_before": {"rows": ((GOOD, {"number": 1}),), "clear_before": (1,)},
    "an empty clear_before": {"rows": ((GOOD, {"number": 1}),), "clear_before": ()},
}


@pytest.mark.parametrize("what", BAD_BATCHES)
def test_a_bad_batch_is_invalid_and_changes_nothing(stand: Stand, what: str) -> None:
    async def check(h: Harness) -> None:
        p = h.key()
        await h.put(PLAIN, p, {("there", 0): {"number": 7}}, static={"total": 7})
        before = await h.read(PLAIN, p)
        with pytest.raises(Invalid) as caught:
            await h.store.write(Batch(PLAIN, (p,), **BAD_BATCHES[what]))
        assert len(caught.value.says) > 20
        assert await h.read(PLAIN, p) == before

    stand.run(check)


BAD_CHANGES: dict[str, tuple[tuple[Change, ...], dict[str, Any]]] = {
    "no change": ((), {}),
    "no condition": ((Change((1,), None, {"state": "x"}),), {}),
    "an empty condition": ((Change((1,), {}, {"state": "x"}),), {}),
    "nothing to write": ((Change((1,), {"state": "a"}, {}),), {}),
    "a plain column": ((Change((1,), {"state": "a"}, {"body": b"x"}),), {}),
    "a condition on a plain column": ((Change((1,), {"body": None}, {"state": "x"}),), {}),
    "a plain static column": ((Change(None, {"head": "h"}, {"note": "x"}),), {}),
    "an unknown column": ((Change((1,), {"state": "a"}, {"nothing": 1}),), {}),
    "an unknown expected column": ((Change((1,), {"nothing": None}, {"state": "x"}),), {}),
    "a static column in a row": ((Change((1,), {"state": "a"}, {"head": "x"}),), {}),
    "a column in the static row": ((Change(None, {"head": "h"}, {"state": "x"}),), {}),
    "a wrong type": ((Change((1,), {"state": "a"}, {"count": "x"}),), {}),
    "a wrong expected type": ((Change((1,), {"count": "x"}, {"state": "x"}),), {}),
    "a wrong key": ((Change(("1",), {"state": "a"}, {"state": "x"}),), {}),
    "a missing key part": ((Change((), {"state": "a"}, {"state": "x"}),), {}),
    "an absent static row": ((Change(None, ABSENT, {"head": "x"}),), {}),
    "a row named twice": ((Change((1,), {"state": "a"}, {"state": "x"}), Change((1,), None, {"count": 1})), {}),
    "a drop that changes rows": ((Change((1,), {"state": "a"}, {"state": "x"}),), {"drop": True}),
    "a drop without a condition": ((Change(None, None, {"head": "x"}),), {"drop": True}),
    "a plain level": ((Change((1,), {"state": "a"}, {"state": "x"}),), {"level": Level.QUORUM}),
    "a time to live of 0": ((Change((1,), {"state": "a"}, {"state": "x"}),), {"ttl_s": 0}),
    "a second change that is wrong": ((Change((1,), {"state": "a"}, {"state": "x"}), Change((2,), None, {"x": 1})), {}),
}


@pytest.mark.parametrize("what", BAD_CHANGES)
def test_a_bad_compare_and_set_is_invalid_and_changes_nothing(stand: Stand, what: str) -> None:
    changes, how = BAD_CHANGES[what]

    async def check(h: Harness) -> None:
        p = h.key()
        ready = await h.cas(
            GUARDED, p, Change((1,), ABSENT, {"state": "a"}), Change(None, {"head": None}, {"head": "h"})
        )
        assert ready.applied
        before = await h.read(GUARDED, p, level=SERIAL)
        with pytest.raises(Invalid) as caught:
            await h.cas(GUARDED, p, *changes, **how)
        assert len(caught.value.says) > 20
        assert await h.read(GUARDED, p, level=SERIAL) == before

    stand.run(check)


@every_store
async def test_a_plain_write_of_a_conditional_column_is_invalid(h: Harness) -> None:
    p = h.key()
    await h.make(GUARDED, p, ((1,), {"state": "a"}))
    for bad in (
        Batch(GUARDED, (p,), (((1,), {"state": "x"}),)),
        Batch(GUARDED, (p,), (((1,), {"body": b"x", "token": None}),)),
        Batch(GUARDED, (p,), static={"head": "x"}),
        Batch(GUARDED, (p,), static={"note": "x"}, clear_before=(2,)),
    ):
        with pytest.raises(Invalid):
            await h.store.write(bad)
    assert await h.rows(GUARDED, p, level=SERIAL) == {(1,): {"state": "a"}}
    assert await h.static(GUARDED, p) == {}


@every_store
async def test_bad_slices_are_invalid(h: Harness) -> None:
    p = h.key()
    for how in (
        {"start": (1,)},
        {"start": ("a", "b")},
        {"end": ("a", 1, 2)},
        {"after": ("a",)},
        {"after": ("a", 1), "start": ("a",)},
        {"after": ("a", 1), "end": ("a",), "reverse": True},
        {"limit": -1},
        {"limit": 1.5},
        {"columns": ("nothing",)},
        {"columns": ("a",)},
    ):
        with pytest.raises(Invalid):
            await h.read(PLAIN, p, **how)


@every_store
async def test_bad_partition_keys_are_invalid_in_every_operation(h: Harness) -> None:
    bad: list[Any] = [(), ("",), (1,), (b"x",), ("a", "b"), (None,), "a", ("\ud800",)]
    for partition in bad:
        with pytest.raises(Invalid):
            await h.store.read(Slice(PLAIN, partition))
        with pytest.raises(Invalid):
            await h.store.write(Batch(PLAIN, partition, ((GOOD, {"number": 1}),)))
        with pytest.raises(Invalid):
            await h.store.drop(PLAIN, partition)
        with pytest.raises(Invalid):
            await h.store.compare_and_set(Cas(GUARDED, partition, (Change((1,), ABSENT, {"state": "a"}),)))
    moment = timeuuid(1)
    for several in (("", 1, b"x", moment), ("a", 1, b"", moment), ("a", "1", b"x", moment), ("a", 1, b"x", "u")):
        with pytest.raises(Invalid):
            await h.store.write(Batch(SINGLE, several, (((), {"body": b""}),)))  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        await h.store.partitions(PLAIN)
    with pytest.raises(Invalid):
        await h.store.partitions(LISTED, limit=0)
    with pytest.raises(Invalid):
        await h.store.partitions(LISTED, after=("a",))


# ---- sizes


@every_store
async def test_values_of_more_than_a_mebibyte(h: Harness) -> None:
    p = h.key()
    large = bytes(range(256)) * (5 * 1024)  # 1.25 MiB
    text = "ü" * (600 * 1024)
    await h.put(PLAIN, p, {("k", 1): {"blob": large}, ("k", 2): {"text": text}, ("k", 3): {"number": 3}})
    rows = await h.rows(PLAIN, p)
    assert rows["k", 1] == {"blob": large} and rows["k", 2] == {"text": text} and rows["k", 3] == {"number": 3}
    assert (await h.cas(GUARDED, p, Change((1,), ABSENT, {"packed": large}))).applied
    assert not (await h.cas(GUARDED, p, Change((1,), {"packed": large[:-1]}, {"packed": b""}))).applied
    assert (await h.cas(GUARDED, p, Change((1,), {"packed": large}, {"packed": b"small"}))).applied
    assert await h.rows(GUARDED, p, level=SERIAL) == {(1,): {"packed": b"small"}}


@every_store
async def test_values_over_the_limit_are_too_large(h: Harness) -> None:
    p = h.key()
    over = b"x" * (MAX_VALUE_BYTES + 1)
    with pytest.raises(TooLarge):
        await h.put(PLAIN, p, {GOOD: {"number": 1}, ("k", 2): {"blob": over}})
    with pytest.raises(TooLarge):
        await h.put(PLAIN, p, {GOOD: {"text": "ü" * (MAX_VALUE_BYTES // 2 + 1)}})
    with pytest.raises(TooLarge):
        await h.cas(GUARDED, p, Change((1,), ABSENT, {"packed": over}))
    assert await h.rows(PLAIN, p) == {} and await h.rows(GUARDED, p, level=SERIAL) == {}


@every_store
async def test_keys_up_to_the_limit(h: Harness) -> None:
    p = h.key()
    most = "k" * MAX_KEY_BYTES
    partition = p + "x" * (MAX_KEY_BYTES - len(p))
    await h.put(BY_TEXT, p, {(most,): {"number": 1}, (most[:-1],): {"number": 2}})
    assert await h.keys(BY_TEXT, p) == [(most[:-1],), (most,)]
    assert await h.keys(BY_TEXT, p, after=(most[:-1],)) == [(most,)]
    await h.put(BY_BLOB, partition, {(b"\xff" * MAX_KEY_BYTES,): {"number": 3}})
    assert await h.rows(BY_BLOB, partition) == {(b"\xff" * MAX_KEY_BYTES,): {"number": 3}}
    with pytest.raises(TooLarge):
        await h.put(BY_TEXT, p, {(most + "k",): {"number": 3}})
    with pytest.raises(TooLarge):
        await h.put(BY_TEXT, p, {("ü" * (MAX_KEY_BYTES // 2 + 1),): {"number": 3}})
    with pytest.raises(TooLarge):
        await h.put(BY_TEXT, partition + "x", {("k",): {"number": 3}})
    assert len(await h.keys(BY_TEXT, p)) == 2


@every_store
async def test_batches_of_thousands_of_rows(h: Harness) -> None:
    p = h.key()
    count = 5_000
    await h.put(PLAIN, p, {("k", k): {"number": k} for k in range(count)}, static={"total": count})
    page = await h.read(PLAIN, p, limit=count + 1)
    assert [row.values["number"] for row in page.rows] == list(range(count))
    assert page.static == {"total": count} and not page.more


@every_store
async def test_a_batch_of_more_bytes_than_one_request_takes(h: Harness) -> None:
    p = h.key()
    body = b"x" * 40_000
    await h.put(PLAIN, p, {("k", k): {"blob": body, "number": k} for k in range(100)}, static={"total": 100})
    rows = await h.rows(PLAIN, p)
    assert [row["number"] for row in rows.values()] == list(range(100))
    assert all(row["blob"] == body for row in rows.values())
    assert await h.static(PLAIN, p) == {"total": 100}


@every_store
async def test_too_many_rows_are_refused(h: Harness) -> None:
    p = h.key()
    rows = tuple(((k,), {"blob": b""}) for k in range(MAX_BATCH_ROWS + 1))
    with pytest.raises(TooLarge):
        await h.store.write(Batch(APART, (p, 1), rows))
    assert (await h.store.read(Slice(APART, (p, 1)))).rows == []
    changes = tuple(Change((k,), ABSENT, {"count": k}) for k in range(MAX_BATCH_ROWS + 1))
    with pytest.raises(TooLarge):
        await h.cas(GUARDED, p, *changes)
    assert await h.rows(GUARDED, p, level=SERIAL) == {}


@every_store
async def test_a_compare_and_set_of_two_hundred_rows_is_one_round(h: Harness) -> None:
    p = h.key()
    before = h.store.counts.rounds
    made = await h.cas(GUARDED, p, *(Change((k,), ABSENT, {"state": "a", "count": k}) for k in range(200)))
    assert made.applied and h.store.counts.rounds - before <= 1
    assert len(await h.keys(GUARDED, p, level=SERIAL)) == 200
