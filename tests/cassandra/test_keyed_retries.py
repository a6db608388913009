"""Puts with a key, repeated at another node after the first one stopped half-way: one message, whatever it had done.

    first node    claims the key ── a ── writes the message ── b ── pins it
    second node                     the same put again

Both nodes are brokers in this process on real stores; one call of the first one's store is held back, before (a) or
after (b) the message is written. It stays held, as if that node had been killed, or goes on later, as if it had been
paused.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, cast

import pytest

from capellini.model.address import parse
from capellini.model.clock import RealClock
from capellini.model.message import NewMessage
from capellini.model.service import Done, Put
from capellini.node.broker import Broker
from capellini.store.interface import Batch, Store
from capellini.store.opening import open_store
from capellini.store.schema import BUCKETS

pytestmark = [pytest.mark.cassandra, pytest.mark.slow]
DEADLINE_S: Final = 120.0
SIZE: Final = 10  # of a bucket: the least
MESSAGE: Final = NewMessage(b"once", {"a": "b"}, key="k")


class Holding:
    """A real store, one write of which can be held back: before it is sent, or after it was done."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.hold = ""  # before or after: the next write of messages
        self.held = asyncio.Event()
        self.go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, batch: Batch) -> None:
        hold = self.hold if batch.table is BUCKETS else ""
        if hold:
            self.hold = ""
        if hold == "before":
            await self._wait()
        await self._store.write(batch)
        if hold == "after":
            await self._wait()

    async def _wait(self) -> None:
        self.held.set()
        await self.go_on.wait()


class Pair:
    """Two nodes on one keyspace; the first one's store can be held."""

    def __init__(self, first: Store, second: Store) -> None:
        self.holding = Holding(first)
        self.first = Broker(cast(Store, self.holding), RealClock(), random.Random(1), "n1")
        self.second = Broker(second, RealClock(), random.Random(2), "n2")


@pytest.fixture
async def pair(cassandra_address: str, shared_keyspace: str) -> AsyncIterator[Pair]:
    address = parse(f"cassandra://{cassandra_address}/{shared_keyspace}?replication=3&timeout_s=20")
    stores = [await open_store(address), await open_store(address)]
    pair = Pair(*stores)
    try:
        yield pair
    finally:
        pair.holding.go_on.set()
        for broker in (pair.first, pair.second):
            await broker.close()
        for store in stores:
            await store.close()


async def answered(ask: Callable[[], Awaitable[Any]], good: Callable[[Any], bool], what: str) -> Any:
    """Asks until the answer is good."""
    end_s = time.monotonic() + DEADLINE_S
    while not good(found := await ask()):
        assert time.monotonic() < end_s, f"not within {DEADLINE_S:g} s: {what}; last: {found}"
        await asyncio.sleep(0.05)
    return found


async def put_once(broker: Broker, queue: str) -> Put:
    """Until it is confirmed: a busy machine may say that the store is too slow, and nothing was put."""
    ((result,)) = await answered(
        lambda: broker.put(queue, [MESSAGE]), lambda results: isinstance(results[0], Put), "the put is confirmed"
    )
    return cast(Put, result)


async def taken(broker: Broker, queue: str, count: int) -> list[tuple[str, bytes]]:
    """Takes and acks until so many were acked, and until after that nothing is left."""
    found: list[tuple[str, bytes]] = []

    async def take() -> int:
        deliveries = await broker.get(queue, 100, 0.2)
        if deliveries:
            results = await broker.ack(queue, [one.receipt for one in deliveries])
            assert all(isinstance(result, Done) for result in results)
        found.extend((one.id, one.body) for one in deliveries)
        return len(deliveries)

    await answered(take, lambda got: len(found) >= count, f"{count} messages come")
    await answered(take, lambda got: got == 0, "nothing is left")
    statistics = await broker.statistics(queue)
    assert (statistics.ready, statistics.in_flight, statistics.delayed) == (0, 0, 0)
    return found


async def dropped(broker: Broker, queue: str, bucket: int) -> None:
    """Repairs the queue until that bucket is gone."""
    work = broker.opened(await broker.catalog.show(queue))

    async def repaired() -> list[int]:
        await broker.get(queue, 1)  # readers find out that a bucket is finished
        await work.repair.step()
        return [view.bucket for view in await broker.buckets(queue) if view.listed != "dropped"]

    await answered(repaired, lambda left: bucket not in left, f"bucket {bucket} is dropped")


async def fill(broker: Broker, queue: str) -> None:
    """Enough that the first bucket takes no more messages, all acked."""
    bodies = [NewMessage(b"%d" % number) for number in range(2 * SIZE)]
    results = await broker.put(queue, bodies)
    assert all(isinstance(result, Put) for result in results)


async def stopped(pair: Pair, queue: str, where: str) -> asyncio.Task[Put]:
    """A put at the first node that stopped half-way."""
    await pair.first.create(queue, options={"bucket_size": SIZE, "visibility_s": 60.0})
    pair.holding.hold = where
    half = asyncio.ensure_future(put_once(pair.first, queue))
    await asyncio.wait_for(pair.holding.held.wait(), DEADLINE_S)
    return half


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("fate", ["killed", "paused"])
async def test_a_retry_at_another_node_adds_one_message(pair: Pair, where: str, fate: str) -> None:
    queue = f"{where}-{fate}"
    half = await stopped(pair, queue, where)
    again = await put_once(pair.second, queue)
    assert again.duplicate is (where == "after")  # what was written is the put; what was not, is voided
    if fate == "killed":
        half.cancel()
    else:
        pair.holding.go_on.set()
        assert (await asyncio.wait_for(half, DEADLINE_S)).id == again.id
    assert (await put_once(pair.second, queue)) == Put(again.id, duplicate=True)
    assert await taken(pair.second, queue, 1) == [(again.id, b"once")]


@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_retry_after_the_bucket_was_dropped_adds_nothing(pair: Pair, where: str) -> None:
    queue = f"{where}-dropped"
    half = await stopped(pair, queue, where)
    again = await put_once(pair.second, queue)
    await fill(pair.second, queue)
    assert (again.id, b"once") in await taken(pair.second, queue, 2 * SIZE + 1)
    await dropped(pair.second, queue, int(again.id) // SIZE)
    assert await put_once(pair.second, queue) == Put(again.id, duplicate=True)
    pair.holding.go_on.set()  # the first node wakes, and its id is in a bucket that is gone
    assert (await asyncio.wait_for(half, DEADLINE_S)).id == again.id
    assert await taken(pair.first, queue, 0) == []
    assert await taken(pair.second, queue, 0) == []
