"""Rows that are changed over and over: what the embedded store remembers of them is what there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from capellini.model.clock import RealClock
from capellini.model.errors import Invalid
from capellini.store.interface import Batch, Cas, Change, Column, Key, Outcome, Slice, Table, Type, Value
from capellini.store.layout import Plan
from capellini.store.rocks import RocksStore
from capellini.store.rocks.database import Space

ROW: Final = Table(
    "row", "", (Column("p", Type.TEXT), Column("n", Type.INT)),
    columns=(Column("state", Type.TEXT), Column("token", Type.TEXT), Column("body", Type.BLOB)),
    conditional=frozenset({"state", "token"}),
)  # fmt: skip
STATIC: Final = Table(
    "statics", "", (Column("p", Type.TEXT), Column("n", Type.INT)), (Column("k", Type.INT),), (Column("v", Type.INT),),
    statics=(Column("state", Type.TEXT), Column("token", Type.TEXT), Column("dropped", Type.BLOB)),
    conditional=frozenset({"state", "token", "dropped"}),
)  # fmt: skip
PLACES: Final = ((ROW, ()), (STATIC, None))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RocksStore]:
    store = await RocksStore.open(tmp_path / "s", clock=RealClock(), room_bytes=0)
    await store.prepare((ROW, STATIC))
    yield store
    await store.close()


class Row:
    """One row, asked for by one partition key object, as a queue does it."""

    def __init__(self, store: RocksStore, table: Table, key: Key | None) -> None:
        self.store, self.table, self.key = store, table, key
        self.partition: Key = ("p", 1)

    async def cas(self, before: dict[str, Value], after: dict[str, Value], **more: bool | int) -> Outcome:
        change = Change(self.key, before, after)
        return await self.store.compare_and_set(Cas(self.table, self.partition, (change,), **more))  # type: ignore[arg-type]

    async def values(self) -> dict[str, Value]:
        page = await self.store.read(Slice(self.table, self.partition))
        return page.static if self.key is None else page.rows[0].values

    async def busy(self) -> None:
        """Changed a few times: known by now."""
        assert (await self.cas({"token": None}, {"state": "a", "token": "t1"})).applied
        assert (await self.cas({"token": "t1"}, {"state": "b", "token": "t2"})).applied
        assert self.store._recent.holding(Cas(self.table, self.partition, (Change(self.key, {"token": "t2"}, {}),)))


@pytest.fixture(params=PLACES, ids=["row", "static"])
async def row(request: pytest.FixtureRequest, store: RocksStore) -> Row:
    row = Row(store, *request.param)
    await row.busy()
    return row


async def test_each_change_is_applied_once_and_can_be_read(row: Row) -> None:
    for number in range(2, 20):
        expected, new = {"token": f"t{number}"}, {"state": str(number), "token": f"t{number + 1}"}
        assert (await row.cas(expected, dict(new))).applied
        assert await row.values() == new
        refused = await row.cas(expected, {"state": "again", "token": "again"})
        assert not refused.applied and refused.rows == {row.key: new}


async def test_a_change_of_a_part_keeps_the_rest(row: Row) -> None:
    assert (await row.cas({"token": "t2"}, {"token": "t3"})).applied
    assert (await row.cas({"token": "t3"}, {"token": "t4"})).applied
    assert await row.values() == {"state": "b", "token": "t4"}
    assert (await row.cas({"token": "t4"}, {"state": None, "token": "t5"})).applied
    assert await row.values() == {"token": "t5"}
    assert not (await row.cas({"state": "b", "token": "t5"}, {"token": "t6"})).applied


async def test_who_asks_with_another_object_sees_and_is_seen(row: Row) -> None:
    other = Row(row.store, row.table, row.key)
    other.partition = (*row.partition,)[:1] + row.partition[1:]
    assert other.partition is not row.partition
    assert (await other.cas({"token": "t2"}, {"state": "c", "token": "t3"})).applied
    assert not (await row.cas({"token": "t2"}, {"state": "d", "token": "t4"})).applied
    assert (await row.cas({"token": "t3"}, {"state": "d", "token": "t4"})).applied
    assert not (await other.cas({"token": "t3"}, {"state": "e", "token": "t5"})).applied
    assert await other.values() == {"state": "d", "token": "t4"}


async def test_tables_with_the_same_key_object_are_told_apart(store: RocksStore) -> None:
    first, second = Row(store, *PLACES[0]), Row(store, *PLACES[1])
    second.partition = first.partition
    await first.busy()
    await second.busy()
    assert (await first.cas({"token": "t2"}, {"state": "c", "token": "t3"})).applied
    assert not (await second.cas({"token": "t3"}, {"state": "x", "token": "x"})).applied
    assert (await second.values(), await first.values()) == (
        {"state": "b", "token": "t2"}, {"state": "c", "token": "t3"},
    )  # fmt: skip


async def test_a_drop_elsewhere_costs_it_no_look(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Key | None] = []
    look = RocksStore._record

    def counted(store: RocksStore, plan: Plan, prefix: bytes, space: Space | None, key: Key | None) -> bytes | None:
        looks.append(key)
        return look(store, plan, prefix, space, key)

    monkeypatch.setattr(RocksStore, "_record", counted)
    for number in range(2, 10):
        await row.store.drop(row.table, ("elsewhere", number))
        assert (await row.cas({"token": f"t{number}"}, {"state": "c", "token": f"t{number + 1}"})).applied
    assert not looks
    await row.store.drop(row.table, row.partition)
    assert not (await row.cas({"token": "t10"}, {"state": "d", "token": "t11"})).applied
    assert looks == [row.key]


async def test_what_is_wrong_is_refused_as_at_first(row: Row) -> None:
    for expected, new in (
        ({"token": "t2"}, {"state": 5, "token": "t3"}),
        ({"token": "t2"}, {"state": "c", "token": "\ud800"}),
        ({"token": "t2"}, {"nothing": "c"}),
        ({"token": "t2", "nothing": None}, {"state": "c"}),
        ({"token": "t2"}, {}),
    ):
        with pytest.raises(Invalid):
            await row.cas(dict(expected), dict(new))
    assert await row.values() == {"state": "b", "token": "t2"}


async def test_a_plain_value_beside_it_stays_and_is_not_written_by_compare_and_set(store: RocksStore) -> None:
    row = Row(store, *PLACES[0])
    await row.busy()
    await store.write(Batch(ROW, row.partition, (((), {"body": b"x"}),)))
    assert (await row.cas({"token": "t2"}, {"state": "c", "token": "t3"})).applied
    assert (await row.cas({"token": "t3"}, {"state": "d", "token": "t4"})).applied
    assert await row.values() == {"state": "d", "token": "t4", "body": b"x"}
    with pytest.raises(Invalid):
        await row.cas({"token": "t4"}, {"state": "d", "token": "t5", "body": b"y"})


async def test_after_a_drop_nothing_is_remembered(store: RocksStore) -> None:
    row = Row(store, *PLACES[1])
    await row.busy()
    assert (await row.cas({"token": "t2"}, {"dropped": b"m", "token": "t3"}, drop=True)).applied
    assert await row.values() == {"dropped": b"m", "token": "t3"}
    assert not (await row.cas({"token": "t2"}, {"state": "c", "token": "t4"})).applied
    single = Row(store, *PLACES[0])
    await single.busy()
    await store.drop(ROW, single.partition)
    assert not (await single.cas({"token": "t2"}, {"state": "c", "token": "t3"})).applied


async def test_what_expires_is_not_remembered(row: Row) -> None:
    assert (await row.cas({"token": "t2"}, {"state": "c", "token": "t3"}, ttl_s=60)).applied
    assert not row.store._recent.holding(
        Cas(row.table, row.partition, (Change(row.key, {"token": "t3"}, {"token": "t4"}),))
    )
