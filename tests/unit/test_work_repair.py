"""Giving space back: finished buckets are dropped as fast as busy readers finish them."""

from __future__ import annotations

import random
from pathlib import Path

from capellini.model.clock import RealClock
from capellini.model.message import NewMessage
from capellini.node.broker import Broker
from capellini.store.rocks.store import RocksStore
from capellini.store.schema import TABLES


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
