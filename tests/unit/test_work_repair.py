"""Giving space back: finished buckets are dropped as fast as busy readers finish them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from capellini.model.clock import RealClock
from capellini.model.message import NewMessage
from capellini.model.service import NackItem
from capellini.node.broker import Broker
from capellini.queues.work import place as placing
from capellini.queues.work.bucket import MOVE_AGAIN_MS
from capellini.store.rocks.store import RocksStore
from capellini.store.schema import TABLES


class Ahead(RealClock):
    """Time that can be made to pass."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now_s(self) -> float:  # type: ignore[override]
        return RealClock.now_s() + self.passed_s

    def elapsed_s(self) -> float:  # type: ignore[override]
        return RealClock.elapsed_s() + self.passed_s


async def test_one_step_drops_what_was_finished_since_the_last_and_shares_changes_of_the_list(tmp_path: Path) -> None:
    store = await RocksStore.open(tmp_path / "store", clock=RealClock())
    await store.prepare(TABLES)
    broker = Broker(store, RealClock(), random.Random(1))
    await broker.create("jobs", options={"bucket_size": 10})
    await broker.put("jobs", [NewMessage(b"x")] * 1_000)
    while found := await broker.get("jobs", 200):
        await broker.ack("jobs", [each.receipt for each in found])
    (queue,) = broker.open_queues.values()
    await queue.close()  # what it does in the background is done
    rounds = store.counts.rounds
    assert await queue.repair.step() == 100
    assert store.counts.rounds - rounds < 150  # one for each bucket; those of the list are shared
    assert not (await broker.pointers("jobs")).entries
    await store.close()


async def test_what_is_too_old_goes_though_nobody_gets_from_the_queue(tmp_path: Path) -> None:
    clock = Ahead()
    store = await RocksStore.open(tmp_path / "store", clock=clock)
    await store.prepare(TABLES)
    broker = Broker(store, clock, random.Random(1))
    await broker.create("short", options={"bucket_size": 10, "ttl_s": 60, "visibility_s": 3600})
    await broker.put("short", [NewMessage(b"old")] * 35)
    (queue,) = broker.open_queues.values()
    held = await broker.get("short", 2)
    clock.passed_s += 30
    await broker.put("short", [NewMessage(b"young")] * 10)
    await queue.repair.step()
    assert (await broker.statistics("short")).ready == 43
    clock.passed_s += 31
    await queue.repair.step()
    found = await broker.statistics("short")
    assert (found.ready, found.in_flight) == (10, 2)
    assert [each.body for each in await broker.peek("short", 20)] == [b"old"] * 2 + [b"young"] * 10
    await queue.repair.step()
    assert [view.bucket for view in await broker.buckets("short")] == [0, 3, 4]  # those between are dropped
    assert len(await broker.ack("short", [each.receipt for each in held])) == 2
    assert [each.body for each in await broker.get("short", 20)] == [b"young"] * 10
    await store.close()


async def test_one_get_finds_what_lies_behind_many_messages_that_are_too_old(tmp_path: Path) -> None:
    clock = Ahead()
    store = await RocksStore.open(tmp_path / "store", clock=clock)
    await store.prepare(TABLES)
    broker = Broker(store, clock, random.Random(1))
    await broker.create("short", options={"ttl_s": 60, "visibility_s": 0.1})
    for _ in range(50):
        await broker.put("short", [NewMessage(b"old")])
    assert len(await broker.get("short", 25)) == 25  # of these some were had before
    clock.passed_s += 61
    await broker.put("short", [NewMessage(b"young")])
    assert [each.body for each in await broker.get("short")] == [b"young"]
    await store.close()


async def test_what_is_too_old_goes_though_an_id_before_it_never_became_a_message(tmp_path: Path) -> None:
    clock = Ahead()
    store = await RocksStore.open(tmp_path / "store", clock=clock)
    await store.prepare(TABLES)
    broker = Broker(store, clock, random.Random(1))
    await broker.create("short", options={"bucket_size": 10, "ttl_s": 60})
    queue = broker.opened(await broker.catalog.live("short"))
    for _ in range(2):
        await queue.putting.reserve()  # by a put that is never heard of again
        await broker.put("short", [NewMessage(b"old")] * 9)
    for _ in range(10):
        await queue.putting.reserve()
    await broker.put("short", [NewMessage(b"old")] * 5)
    clock.passed_s += 61
    await broker.put("short", [NewMessage(b"young")] * 5)
    await queue.repair.step()
    assert [each.body for each in await broker.peek("short", 100)] == [b"young"] * 5
    clock.passed_s += 20  # gaps are closed, and space is given back
    for _ in range(4):
        await queue.repair.step()
        clock.passed_s += 11
    assert [view.bucket for view in await broker.buckets("short")][:1] != [0]
    await store.close()


async def test_a_node_that_only_puts_remembers_no_buckets_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "PROMISING_MOST", 5, raising=False)
    store = await RocksStore.open(tmp_path / "store", clock=RealClock())
    await store.prepare(TABLES)
    broker = Broker(store, RealClock(), random.Random(1))
    await broker.create("jobs", options={"bucket_size": 10})
    await broker.put("jobs", [NewMessage(b"x")] * 200)
    (queue,) = broker.open_queues.values()
    assert len(queue.place.promising) <= 5
    taken = 0
    while found := await broker.get("jobs", 50):
        taken += len(found)
    assert taken == 200
    await store.close()


async def test_what_a_generation_left_that_is_over_is_not_kept_in_memory(tmp_path: Path) -> None:
    store = await RocksStore.open(tmp_path / "store", clock=RealClock())
    await store.prepare(TABLES)
    broker = Broker(store, RealClock(), random.Random(1))
    await broker.create("jobs")
    await broker.put("jobs", [NewMessage(b"x" * 1_000)] * 100)
    assert broker.room.used > 100_000
    await broker.delete("jobs")
    broker.old_generation("jobs", 1, 1_000)
    assert broker.room.used == 0
    await store.close()


async def test_letters_whose_way_back_was_begun_by_a_node_that_died_are_sent_back_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Ahead()
    store = await RocksStore.open(tmp_path / "store", clock=clock)
    await store.prepare(TABLES)
    broker = Broker(store, clock, random.Random(1))
    await broker.create("letters")
    await broker.create("jobs", options={"delivery_limit": 1, "dead_letters": "letters"})
    await broker.put("jobs", [NewMessage(b"x")] * 3)
    await broker.nack("jobs", [NackItem(each.receipt, 0.0) for each in await broker.get("jobs", 3)])
    assert await broker.get("jobs", 3) == []
    for queue in list(broker.open_queues.values()):
        await queue.close()
    letters = broker.opened(await broker.catalog.live("letters"))

    async def dies(*_: object) -> None:
        raise RuntimeError("the node is killed")

    monkeypatch.setattr(letters.reading, "lower", dies)  # all are marked, and nobody is told
    with pytest.raises(RuntimeError):
        await broker.redrive("jobs")
    later = Broker(store, clock, random.Random(2))
    assert await later.redrive("jobs") == 0  # somebody may be carrying them
    clock.passed_s += MOVE_AGAIN_MS / 1000
    await later.opened(await later.catalog.live("letters")).repair.step()
    assert await later.redrive("jobs") == 3
    assert [each.body for each in await later.get("jobs", 3)] == [b"x"] * 3
    assert await later.peek("letters") == []
    await later.close()
    await store.close()


async def test_ids_that_never_became_messages_are_not_estimated_as_ready(tmp_path: Path) -> None:
    store = await RocksStore.open(tmp_path / "store", clock=RealClock())
    await store.prepare(TABLES)
    broker = Broker(store, RealClock(), random.Random(1))
    await broker.create("jobs", options={"bucket_size": 10})
    for _ in range(200):
        await broker.put("jobs", [NewMessage(b"x")] * 3)
        (queue,) = broker.open_queues.values()
        await queue.putting.reserve()  # by a put that is never heard of again
        await queue.putting.reserve()
    counted = await broker.statistics("jobs")
    assert (counted.ready, "ready" in counted.exact) == (600, False)
    await store.close()


async def test_a_redrive_ends_though_all_that_comes_back_dies_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await RocksStore.open(tmp_path / "store", clock=RealClock())
    await store.prepare(TABLES)
    broker = Broker(store, RealClock(), random.Random(1))
    await broker.create("letters")
    await broker.create("jobs", options={"delivery_limit": 1, "dead_letters": "letters"})

    async def die() -> None:
        deliveries = await broker.get("jobs", 3)
        await broker.nack("jobs", [NackItem(each.receipt, 0.0) for each in deliveries])
        assert (len(deliveries), await broker.get("jobs", 3)) == (3, [])
        for queue in list(broker.open_queues.values()):
            await asyncio.gather(*queue._tasks)

    await broker.put("jobs", [NewMessage(b"x")] * 3)
    await die()
    letters = broker.opened(await broker.catalog.live("letters"))
    summon, turns = letters._summon, 0

    async def summoned(ids: Sequence[int]) -> int:
        nonlocal turns
        turns += 1
        assert turns == 1, "what died again is moved again, for ever"
        moved = await summon(ids)
        await die()
        return moved

    monkeypatch.setattr(letters, "_summon", summoned)
    assert await broker.redrive("jobs") == 3
    assert len(await broker.dead("jobs", 10)) == 3
    await store.close()
