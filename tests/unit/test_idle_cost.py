"""What a node on a folder does that nobody asked for, in counts: it must not grow faster than what there is to look
after, nor with what was there once."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.test_work_repair import Ahead

from capellini.model.clock import RealClock
from capellini.model.message import NewMessage
from capellini.model.options import WorkOptions
from capellini.model.service import Put
from capellini.node.broker import Broker
from capellini.node.maintenance import IDLE_S, Maintenance
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.queues import catalog as cataloguing
from capellini.queues.assignments import TAKES_PER_TURN
from capellini.queues.catalog import Catalog, QueueRecord, row_of
from capellini.queues.lease import Lease, read_lease
from capellini.queues.log.keeper import LOOK_TURNS_ALONE
from capellini.queues.timed import keeper as keeping
from capellini.queues.timed.desk import Message
from capellini.store.interface import Page, Slice
from capellini.store.rocks import RocksStore
from capellini.store.rocks.batches import Batches
from capellini.store.schema import TABLES

DEADLINE_S = 30.0
BEATS = 5
SHARDS = 4 * TAKES_PER_TURN


class NoWaiting(RealClock):
    """What waits is over at once."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


async def opened(tmp_path: Path) -> RocksStore:
    store = await RocksStore.open(tmp_path / "store", clock=RealClock())
    await store.prepare(TABLES)
    return store


@asynccontextmanager
async def turned_by_hand(folder: Path, clock: RealClock) -> AsyncIterator[tuple[Node, RocksStore]]:
    """A node that does nothing by itself, and holds its lease."""
    node = await Node.open(Settings(store=f"rocks:{folder / 'store'}", events="none"), clock, begin=False)
    try:
        assert isinstance(node.store, RocksStore)
        await node._maintenance.lease.start(alone=True)
        yield node, node.store
    finally:
        await node.close()


def reads_of(store: RocksStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Slices that are read from now on, by table."""
    found: Counter[str] = Counter()
    read = store.read

    async def counted(slice: Slice) -> Page:
        found[slice.table.name] += 1
        return await read(slice)

    monkeypatch.setattr(store, "read", counted)
    return found


def in_memory(kind: type) -> int:
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())


async def test_beats_of_a_node_that_is_alone_leave_the_disk_alone(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    lease = Lease(store, RealClock(), random.Random(1), "n", beat_s=0.01)
    await lease.start(alone=True)
    synced = store.counts.fsyncs
    async with asyncio.timeout(DEADLINE_S):
        while (row := await read_lease(store, "n")) is None or row.beat <= BEATS:
            await asyncio.sleep(0.01)
    assert store.counts.fsyncs == synced
    await lease.stop()
    assert store.counts.fsyncs == synced + 1
    await store.close()


async def test_queues_are_read_after_a_change_only_where_nobody_else_can_change_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path)
    catalog = Catalog(store, NoWaiting(), random.Random(1))

    async def names() -> list[str]:
        return [f"{record.name}/{record.generation}" for record in await catalog.all()]

    assert await names() == []
    for name, kind in (("b", "log"), ("a", "work"), ("c", "timed")):
        await catalog.create(name, kind)
    assert await names() == ["a/1", "b/1", "c/1"]
    await catalog.purge("b")
    await catalog.delete("a")
    assert await names() == ["b/2", "c/1"]
    await catalog.pause("c", gets=True)
    assert [record.gets_paused for record in await catalog.all()] == [False, True]
    reads = reads_of(store, monkeypatch)
    for _ in range(3):
        assert await names() == ["b/2", "c/1"]
        assert [record.name for record in (await catalog.logs())[0]] == ["b"]
    assert not reads
    await store.close()


def test_records_of_some_thousand_queues_are_decoded_once() -> None:
    records = [QueueRecord(f"q{at}", "work", 1, WorkOptions(), 0.0, "") for at in range(5_000)]
    rows = [{"generation": 1, "state": "live", "record": msgspec.json.encode(each).decode()} for each in records]
    before = cataloguing._record_of.cache_info().misses
    for _ in range(2):
        assert all(row_of("q", values) for values in rows)
    assert cataloguing._record_of.cache_info().misses == before + len(rows)


async def test_a_look_at_what_is_to_be_repaired_lists_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path)
    clock, chance = RealClock(), random.Random(1)
    broker = Broker(store, clock, chance, "n")
    maintenance = Maintenance(store, clock, chance, broker, alone=True)
    await maintenance.lease.start(alone=True)
    for at in range(2 * TAKES_PER_TURN):
        await broker.create(f"q{at}")
    await maintenance._share()
    assert len(maintenance.owned) == 2 * TAKES_PER_TURN + 1  # nobody else wants any
    reads = reads_of(store, monkeypatch)
    await maintenance._share()
    assert (reads["assignments"], reads["queues"]) == (1, 0)
    await maintenance.stop()
    await store.close()


async def test_a_work_queue_that_was_used_and_is_empty_rests_until_its_list_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Ahead()
    async with turned_by_hand(tmp_path, clock) as (node, store):
        maintenance, service = node._maintenance, node.service
        await service.create("jobs", options={"bucket_size": 10})

        async def work(count: int) -> None:
            await service.put("jobs", [NewMessage(b"x")] * count)
            taken = await service.get("jobs", count)
            assert len(await service.ack("jobs", [each.receipt for each in taken])) == count

        async def turns(count: int) -> None:
            for _ in range(count):
                clock.passed_s += 1.0
                await maintenance._repair()

        await work(5)
        await maintenance._share()
        await turns(60)  # past the time at which what was delivered would have come back
        reads = reads_of(store, monkeypatch)
        await turns(40)
        assert max(reads["pointers"], reads["buckets"]) <= 40 / IDLE_S + 1
        await work(20)  # one bucket is done, and one more
        await turns(2)
        assert [view.listed for view in await service.buckets("jobs")] == ["open"]


async def test_shards_that_are_taken_together_share_lists_and_fsyncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with turned_by_hand(tmp_path, RealClock()) as (node, store):
        await node.service.create("later", "timed", {"shards": SHARDS})
        keeper, reads = node.kinds.timed.keeper, reads_of(store, monkeypatch)
        synced = store.counts.fsyncs
        await keeper.assignments.turn([f"later/1/{shard}" for shard in range(SHARDS)])
        assert reads["assignments"] == 1 + SHARDS  # the list, and each as it is now
        assert store.counts.fsyncs - synced <= 2 * SHARDS // TAKES_PER_TURN
        assert (
            len([one for one in (await keeper.assignments.list()).values() if keeper.assignments.mine(one)]) == SHARDS
        )


async def test_a_turn_looks_at_each_shard_a_few_times_however_many_queues_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with turned_by_hand(tmp_path, RealClock()) as (node, _):
        queues = 40
        for at in range(queues):
            await node.service.create(f"later{at}", "timed", {"shards": 1})
        keeper = node.kinds.timed.keeper
        await keeper.turn()
        assert len(keeper.held()) == queues
        looks = 0

        def counted(item: str) -> tuple[tuple[str, int], int]:
            nonlocal looks
            looks += 1
            return place_of(item)

        place_of = keeping.place_of
        monkeypatch.setattr(keeping, "place_of", counted)
        await keeper.turn()
        assert queues <= looks <= 10 * queues
        shards = await node.service.timed.shards("later7")  # type: ignore[union-attr]
        assert [view.holder for view in shards] == [node._maintenance.lease.node]


async def test_lists_of_idle_log_queues_are_seldom_read_where_nobody_else_can_change_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Ahead()
    async with turned_by_hand(tmp_path, clock) as (node, store):
        queues = 5
        for at in range(queues):
            await node.service.create(f"events{at}", "log")
            await node.service.put(f"events{at}", [NewMessage(b"x")])
            await node.service.log.create_group(f"events{at}", "g")  # type: ignore[union-attr]
        keeper = node.kinds.log.keeper
        await keeper.turn()
        reads = reads_of(store, monkeypatch)
        for _ in range(LOOK_TURNS_ALONE):
            clock.passed_s += 1.0
            await keeper.turn()
        assert queues <= reads["log_extents"] <= 2 * queues


async def test_what_is_written_again_above_the_horizon_is_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}", events="none"))
    messages = 100
    try:
        await node.service.create("later", "timed", {"shards": 1})
        async with asyncio.timeout(DEADLINE_S):
            while not (held := node.kinds.timed.keeper.held()) or held[0].serving.holder(0) is None:
                await asyncio.sleep(0.05)
        place, looks = held[0].place, 0
        await node.service.put("later", [NewMessage(b"first")])
        look = Batches._cells

        def counted(self: Batches, *args: Any) -> Any:
            nonlocal looks
            looks += 1
            return look(self, *args)

        monkeypatch.setattr(Batches, "_cells", counted)
        again = place.guards["put below the horizon written again"]
        place.horizons.clear()  # as in a process that has just begun
        results = await node.service.put("later", [NewMessage(b"x")] * messages)
        assert all(isinstance(each, Put) for each in results)
        assert place.guards["put below the horizon written again"] > again
        assert looks < messages
    finally:
        await node.close()


@pytest.mark.slow
async def test_what_was_acked_in_a_timed_queue_is_not_kept_in_memory(tmp_path: Path) -> None:
    before = in_memory(Message)
    node = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}", events="none"))
    messages = 100
    try:
        await node.service.create("later", "timed", {"shards": 2})
        await node.service.put("later", [NewMessage(b"x")] * messages)
        acked = 0
        async with asyncio.timeout(DEADLINE_S):
            while acked < messages:
                taken = await node.service.get("later", messages, 1.0)
                acked += len(await node.service.ack("later", [each.receipt for each in taken])) if taken else 0
        await asyncio.sleep(0)
        assert in_memory(Message) <= before
    finally:
        await node.close()
