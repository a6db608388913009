"""Preparing, listing, counting, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.conformance.harness import SERIAL, Harness, every_store
from tests.conformance.tables import APART, GUARDED, LISTED, PLAIN, TABLES, columns

from capellini.model.errors import CannotOpen, Unavailable
from capellini.store.interface import ABSENT, Batch, Cas, Change, Counts, Key, Slice, Table, Type


async def listed(h: Harness, table: Table, limit: int) -> list[Key]:
    found: list[Key] = []
    page = await h.store.partitions(table, limit=limit)
    while page:
        assert len(page) <= limit
        found += page
        page = await h.store.partitions(table, limit=limit, after=found[-1])
    return found


@every_store
async def test_listing_has_every_partition_once_whatever_the_page(h: Harness) -> None:
    for table in (LISTED, APART):
        name = h.key()
        mine: set[Key] = {(name, number) for number in range(-5, 20)}
        await asyncio.gather(
            *(
                h.store.write(Batch(table, partition, tuple(((k,), _value(table)) for k in range(3))))
                for partition in mine
            )
        )
        orders = [await listed(h, table, limit) for limit in (1, 7, 1_000)]
        for order in orders:
            assert len(order) == len(set(order))
            assert {partition for partition in order if partition[0] == name} == mine
        assert orders[0] == orders[1] == orders[2]


@every_store
async def test_a_dropped_partition_is_no_longer_listed(h: Harness) -> None:
    for table in (LISTED, APART):
        name = h.key()
        for number in (1, 2, 3):
            await h.store.write(Batch(table, (name, number), (((1,), _value(table)),)))
        await h.store.drop(table, (name, 2))
        found = await listed(h, table, 100)
        assert sorted(key for key in found if key[0] == name) == [(name, 1), (name, 3)]


def _value(table: Table) -> dict[str, str | bytes]:
    return {"text": "x"} if table is LISTED else {"blob": b"x"}


@every_store
async def test_preparing_again_keeps_what_is_there(h: Harness) -> None:
    p = h.key()
    await h.put(PLAIN, p, {("k", 1): {"number": 1}})
    await h.store.prepare(TABLES)
    await h.store.prepare(TABLES, create=False)
    assert await h.rows(PLAIN, p) == {("k", 1): {"number": 1}}


@every_store
async def test_a_missing_table_is_not_made_unless_allowed(h: Harness) -> None:
    missing = Table("conform_missing", "Never made.", columns(p=Type.TEXT), columns=columns(x=Type.INT))
    with pytest.raises(CannotOpen):
        await h.store.prepare((missing,), create=False)


@every_store
async def test_a_table_that_is_declared_otherwise_is_not_opened(h: Harness) -> None:
    other = msgspec.structs.replace(LISTED, clustering=columns(k=Type.TEXT))
    with pytest.raises(CannotOpen):
        await h.store.prepare((other,))
    await h.store.prepare((LISTED,))


# ---- counts


async def moved(h: Harness, call: Callable[[], Awaitable[object]]) -> Counts:
    before = msgspec.structs.asdict(h.store.counts)
    await call()
    after = msgspec.structs.asdict(h.store.counts)
    return Counts(**{name: after[name] - before[name] for name in after})


@every_store
async def test_counts_move_with_what_was_asked_for(h: Harness) -> None:
    p = h.key()
    body = b"x" * 1_000
    wrote = await moved(h, lambda: h.put(GUARDED, p, {(k,): {"body": body} for k in range(10)}))
    assert wrote.requests == 1 and wrote.writes == 1 and wrote.reads == 0 and wrote.rounds == 0
    assert wrote.statements >= 1 and wrote.bytes_written >= 10_000 and wrote.unknown == 0
    read = await moved(h, lambda: h.read(GUARDED, p))
    assert read.requests == 1 and read.reads == 1 and read.writes == 0 and read.rounds == 0 and read.bytes_written == 0
    changed = await moved(
        h, lambda: h.cas(GUARDED, p, *(Change((k,), {"state": None}, {"state": "a"}) for k in (1, 2)))
    )
    assert changed.requests == 1 and changed.rounds == 1 and changed.unknown == 0
    refused = await moved(h, lambda: h.cas(GUARDED, p, Change((1,), {"state": None}, {"state": "b"})))
    assert refused.requests == 1 and refused.rounds == 1
    serial = await moved(h, lambda: h.read(GUARDED, p, level=SERIAL))
    assert serial.reads == 1 and serial.rounds == (
        0 if h.kind == "rocks" else 1
    )  # no Paxos in a folder: nothing to wait for
    dropped = await moved(h, lambda: h.store.drop(PLAIN, (p,)))
    assert dropped.requests == 1 and dropped.writes == 1


@every_store
async def test_the_embedded_store_counts_its_fsyncs(h: Harness) -> None:
    p = h.key()

    async def many() -> None:
        await asyncio.gather(*(h.put(PLAIN, p, {("k", at): {"number": at}}) for at in range(100)))

    synced = await moved(h, many)
    unsynced = await moved(h, lambda: h.put(PLAIN, p, {("k", 1): {"number": 2}}, sync=False))
    assert unsynced.fsyncs == 0 and synced.writes == 100
    if h.kind == "rocks":
        assert 1 <= synced.fsyncs <= 20  # those who wait share one
    else:
        assert synced.fsyncs == 0


@every_store
async def test_refused_requests_are_not_counted_as_unknown(h: Harness) -> None:
    before = h.store.counts.unknown
    with pytest.raises(Exception, match="no column"):
        await h.put(PLAIN, h.key(), {("k", 1): {"nothing": 1}})
    assert h.store.counts.unknown == before


# ---- health and end


@every_store
async def test_a_store_that_works_says_so(h: Harness) -> None:
    await h.store.check()
    assert abs(await h.store.skew_s()) < 60


@every_store
async def test_after_close_every_call_is_unavailable(h: Harness) -> None:
    store = await h.another()
    p = h.key()
    await store.write(Batch(PLAIN, (p,), ((("k", 1), {"number": 1}),)))
    await store.close()
    await store.close()  # closing twice is closing once
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.read(Slice(PLAIN, (p,))),
        lambda: store.write(Batch(PLAIN, (p,), ((("k", 1), {"number": 1}),))),
        lambda: store.compare_and_set(Cas(GUARDED, (p,), (Change((1,), ABSENT, {"state": "a"}),))),
        lambda: store.drop(PLAIN, (p,)),
        lambda: store.partitions(LISTED),
        lambda: store.check(),
        lambda: store.prepare(TABLES),
    ]
    for call in calls:
        with pytest.raises(Unavailable):
            await call()


@every_store
async def test_close_finishes_what_was_begun(h: Harness) -> None:
    store = await h.another()
    p = h.key()
    begun = [asyncio.ensure_future(store.write(Batch(PLAIN, (p,), ((("k", at), {"number": at}),)))) for at in range(30)]
    await asyncio.sleep(0)
    await store.close()
    ended = await asyncio.gather(*begun, return_exceptions=True)
    assert all(end is None or isinstance(end, Unavailable) for end in ended)
    assert sum(end is None for end in ended) > 0
