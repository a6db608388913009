"""Collecting what expired mutators have left of a counter, on the simulated store, where a day passes at once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.counter_world import DAY_S, counters_of, in_world, shards

from capellini.counters.shards import (
    STATE,
    TALLY_KEY,
    DamagedShard,
    pack,
)
from capellini.counters.states.total import Sum
from capellini.model.errors import StoreError
from capellini.model.service import Problem
from capellini.store.interface import Batch, Slice
from capellini.store.schema import COUNTERS
from capellini.store.simulation.world import World


def test_expired_shards_are_collected_and_the_value_stays() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        for at in range(10):
            await counters_of(client).add("n", at)
        counters = counters_of(client)
        assert (await counters.collect("n")).shards == 0
        await client.clock.sleep(2 * DAY_S + 60)
        await counters.add("n", 100)
        done = await counters.collect("n")
        assert (done.shards, done.deferred) == (10, "")
        assert len(await shards(client, "n")) == 1
        assert (await counters.read("n")).value == 145
        again = await counters.collect("n")
        assert (again.shards, again.through) == (0, done.through)
        await client.clock.sleep(2 * DAY_S + 60)
        assert await counters.sweep() == 1
        assert (await counters.read("n")).value == 145
        assert await shards(client, "n") == []

    in_world(test)


def test_a_read_that_sees_expired_shards_has_them_collected() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        for _ in range(3):
            await counters_of(client).add("n")
        await client.clock.sleep(2 * DAY_S + 60)
        counters = counters_of(client)
        assert (await counters.read("n")).expired == 3
        for _ in range(100):
            if not await shards(client, "n"):
                break
            await client.clock.sleep(0.1)
        assert await shards(client, "n") == []
        assert (await counters.read("n")).value == 3

    in_world(test)


def test_collecting_waits_for_a_replica_that_is_down_and_shows_it() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client)
        await counters.add("n", 3)
        await client.clock.sleep(2 * DAY_S + 60)
        world.crash(world.replicas[0])
        await client.clock.sleep(5.0)
        done = await counters.collect("n")
        assert done.shards == 0 and "replicas" in done.deferred
        assert counters.figures().deferred == 1 and "replicas" in counters.figures().deferred_why
        assert (await counters.read("n")).value == 3
        world.calm()
        await client.clock.sleep(5.0)
        assert (await counters.collect("n")).shards == 1
        assert (await counters.read("n")).value == 3

    in_world(test)


def test_a_damaged_shard_is_named_and_nothing_is_made_of_it() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        for value in (1, 2, 4):
            await counters_of(client).add("n", value)
            await client.clock.sleep(1.0)
        counters = counters_of(client)
        await counters.add("whole", 7)
        middle = (await shards(client, "n"))[1]
        hurt = middle.values[STATE][:-1] + b"\x00"
        await client.store.write(Batch(COUNTERS, ("n",), ((middle.key, {STATE: hurt}),)))
        with pytest.raises(StoreError, match=str(middle.key[1])):
            await counters.read("n")
        results = await counters.read_many(["n", "whole"])
        assert isinstance(results[0], Problem) and not isinstance(results[1], Problem) and results[1].value == 7
        await client.clock.sleep(2 * DAY_S + 60)
        done = await counters.collect("n")  # up to the damaged one, and no further
        assert done.shards == 1 and str(middle.key[1]) in done.deferred
        await client.store.write(Batch(COUNTERS, ("n",), ((middle.key, {STATE: middle.values[STATE]}),)))
        assert (await counters.read("n")).value == 7

    in_world(test)


def test_a_damaged_tally_is_named() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client)
        await counters.add("n")
        await client.store.write(Batch(COUNTERS, ("n",), ((TALLY_KEY, {STATE: b"\x01nonsense"}),)))
        with pytest.raises(DamagedShard, match="the tally of counter n"):
            await counters.read("n")
        assert "the tally of counter n" in (await counters.collect("n")).deferred

    in_world(test)


def test_a_collection_holds_one_page_of_shards_at_a_time() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        await counters_of(client).add("n", 0)
        row = (await shards(client, "n"))[0]
        expires_us = int(row.key[0])
        rows = tuple(((expires_us, f"m{at}"), {STATE: pack(Sum(1))}) for at in range(10_000))
        await client.store.write(Batch(COUNTERS, ("n",), rows, timestamp_us=expires_us - 1))
        await client.clock.sleep(2 * DAY_S + 60)
        largest = 0
        read = client.store.read

        async def watched(slice: Slice) -> Any:
            nonlocal largest
            page = await read(slice)
            largest = max(largest, len(page.rows))
            return page

        client.store.read = watched  # type: ignore[method-assign]
        counters = counters_of(client)
        assert (await counters.collect("n")).shards == 10_001
        assert 0 < largest <= 500
        assert (await counters.read("n")).value == 10_000

    in_world(test)
