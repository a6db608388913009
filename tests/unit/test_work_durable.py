"""Work queues on a folder: what a caller hears of is durable, and those who wait together share one fsync."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from capellini.model.clock import RealClock
from capellini.model.errors import Unavailable, Unknown
from capellini.model.service import Parcel, ParcelAck
from capellini.node.broker import Broker
from capellini.store.interface import Cas, Outcome
from capellini.store.rocks import RocksStore
from capellini.store.schema import TABLES
from capellini.store.worker import ALONE

T = TypeVar("T")
ENTRIES = msgspec.msgpack.encode([(b"x", None, 0)] * 10)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    store = await RocksStore.open(tmp_path / "s", clock=RealClock(), room_bytes=0)
    await store.prepare(TABLES)
    broker = Broker(store, RealClock(), random.Random(1))
    await broker.create("jobs")
    yield broker
    await broker.close()
    await store.close()


def store_of(broker: Broker) -> RocksStore:
    assert isinstance(broker.store, RocksStore)
    return broker.store


def ack_of(parcel: Parcel) -> ParcelAck:
    of = parcel
    return ParcelAck(of.generation, of.first, of.count, of.version, of.code, [(0, of.count)])


async def test_a_put_a_get_and_an_ack_are_durable_when_they_are_answered(broker: Broker) -> None:
    worker = store_of(broker)._worker
    for _ in range(5):
        await broker.put_block("jobs", ENTRIES)
        assert worker.clean
        parcels = await broker.take("jobs", 10)
        assert worker.clean and sum(parcel.count for parcel in parcels) == 10
        assert await broker.ack_parcels("jobs", [ack_of(parcel) for parcel in parcels]) == [[(0, 10)]]
        assert worker.clean


@pytest.mark.slow
async def test_what_could_not_be_synced_is_answered_to_nobody(broker: Broker) -> None:
    await broker.put_block("jobs", ENTRIES)
    (parcel,) = await broker.take("jobs", 5)

    def fails() -> None:
        raise OSError("the disk is gone")

    store_of(broker)._worker._flush = fails
    answers = await asyncio.gather(
        broker.put_block("jobs", ENTRIES),
        broker.take("jobs", 5),
        broker.ack_parcels("jobs", [ack_of(parcel)]),
        return_exceptions=True,
    )
    assert all(isinstance(answer, Unknown | Unavailable) for answer in answers), answers
    assert any(isinstance(answer, Unknown) for answer in answers)  # whoever comes after the failure is refused


async def test_what_was_written_as_another_fsync_failed_is_not_called_undone(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.put_block("jobs", ENTRIES)
    (parcel,) = await broker.take("jobs", 10)
    store = store_of(broker)
    apply = store.compare_and_set

    async def applied(cas: Cas) -> Outcome:
        outcome = await apply(cas)
        store._worker.fail(OSError("the disk is gone"))  # somebody else heard of it meanwhile
        return outcome

    monkeypatch.setattr(store, "compare_and_set", applied)
    with pytest.raises(Unknown):
        await broker.ack_parcels("jobs", [ack_of(parcel)])
    with pytest.raises(Unavailable):  # what comes later is refused
        await broker.put_block("jobs", ENTRIES)
    await store.close()
    again = await RocksStore.open(tmp_path / "s", clock=RealClock(), room_bytes=0)
    await again.prepare(TABLES)
    after = Broker(again, RealClock(), random.Random(2))
    assert await after.peek("jobs", 10) == []  # it had reached the disk
    await after.close()
    await again.close()


async def test_a_claim_and_an_ack_in_one_bucket_share_an_fsync(broker: Broker) -> None:
    await broker.put_block("jobs", ENTRIES)
    (parcel,) = await broker.take("jobs", 5)
    store = store_of(broker)
    store._worker._shared = 2.0  # as in a busy node: whoever is alone waits for nobody
    before = store.counts.fsyncs
    _, taken = await asyncio.gather(broker.ack_parcels("jobs", [ack_of(parcel)]), broker.take("jobs", 5))
    assert [one.first for one in taken] == [5]
    assert store.counts.fsyncs - before == 1


class Still:
    """A clock that stands: nothing is read again for its age, and every fsync is quick."""

    def now_s(self) -> float:
        return 1_800_000_000.0

    def elapsed_s(self) -> float:
        return 1_000.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.fixture
async def quiet(tmp_path: Path) -> AsyncIterator[Broker]:
    """One caller was alone for a while."""
    store = await RocksStore.open(tmp_path / "q", clock=Still(), room_bytes=0)
    await store.prepare(TABLES)
    broker = Broker(store, Still(), random.Random(1))
    await broker.create("jobs")
    for _ in range(ALONE):
        await life(broker)
    await asyncio.sleep(0)
    assert store.lonely
    yield broker
    await broker.close()
    await store.close()


async def life(broker: Broker) -> None:
    worker = store_of(broker)._worker
    await broker.put_block("jobs", ENTRIES)
    assert worker.clean
    (parcel,) = await broker.take("jobs", 10)
    assert worker.clean
    assert await broker.ack_parcels("jobs", [ack_of(parcel)]) == [[(0, 10)]]
    assert worker.clean


async def test_one_caller_alone_needs_no_turn_of_the_loop_and_is_durable(quiet: Broker) -> None:
    store = store_of(quiet)
    before = store.counts.fsyncs

    async def at_once(call: Coroutine[Any, Any, T]) -> T:
        await asyncio.sleep(0)  # each in a turn of its own, as calls come through a connection
        with pytest.raises(StopIteration) as over:  # over with its first step
            call.send(None)
        assert store._worker.clean
        result: T = over.value.value
        return result

    await at_once(quiet.put_block("jobs", ENTRIES))
    (parcel,) = await at_once(quiet.take("jobs", 10))
    assert await at_once(quiet.ack_parcels("jobs", [ack_of(parcel)])) == [[(0, 10)]]
    assert store.counts.fsyncs == before + 3


async def test_one_alone_that_cannot_be_synced_hears_of_it_and_nothing_is_taken_any_more(quiet: Broker) -> None:
    await quiet.put_block("jobs", ENTRIES)
    (parcel,) = await quiet.take("jobs", 5)

    def fails() -> None:
        raise OSError("the disk is gone")

    store_of(quiet)._worker._flush = fails
    store_of(quiet)._database.write_synced = lambda _: fails()
    with pytest.raises(Unknown):
        await quiet.ack_parcels("jobs", [ack_of(parcel)])
    with pytest.raises(Unavailable):
        await quiet.put_block("jobs", ENTRIES)


async def test_company_of_one_that_was_alone_is_noticed_and_shares_again(quiet: Broker) -> None:
    store = store_of(quiet)
    await asyncio.gather(*[quiet.put_block("jobs", ENTRIES) for _ in range(10)])
    before, rounds = store.counts.fsyncs, store.counts.rounds
    await asyncio.gather(*[quiet.put_block("jobs", ENTRIES) for _ in range(10)])
    assert store.counts.fsyncs - before <= 2 and store.counts.rounds - rounds <= 2
