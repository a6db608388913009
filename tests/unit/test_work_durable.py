"""Work queues on a folder: what a caller hears of is durable, and those who wait together share one fsync."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from capellini.model.clock import RealClock
from capellini.model.errors import Unavailable, Unknown
from capellini.model.service import Parcel, ParcelAck
from capellini.node.broker import Broker
from capellini.store.rocks import RocksStore
from capellini.store.schema import TABLES

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


async def test_a_claim_and_an_ack_in_one_bucket_share_an_fsync(broker: Broker) -> None:
    await broker.put_block("jobs", ENTRIES)
    (parcel,) = await broker.take("jobs", 5)
    store = store_of(broker)
    store._worker._shared = 2.0  # as in a busy node: whoever is alone waits for nobody
    before = store.counts.fsyncs
    _, taken = await asyncio.gather(broker.ack_parcels("jobs", [ack_of(parcel)]), broker.take("jobs", 5))
    assert [one.first for one in taken] == [5]
    assert store.counts.fsyncs - before == 1
