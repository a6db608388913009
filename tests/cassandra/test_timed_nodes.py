"""Timed queues on Cassandra: any of two nodes takes any request, whoever holds the shard, and so does a client without
a server; a node that leaves gives its shards back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.flow import DEADLINE_S, Server, until

from capellini import AsyncClient, NotFound, Put, connect_async
from capellini.local.cluster import LocalCluster

pytestmark = [pytest.mark.cassandra, pytest.mark.slow]
QUEUE = "later"
SHARDS = 4


@pytest.fixture
async def servers(
    cassandra_cluster: LocalCluster, shared_keyspace: str, tmp_path: Path
) -> AsyncIterator[tuple[str, list[Server]]]:
    store = f"cassandra://{cassandra_cluster.contact_points()}/{shared_keyspace}?replication=3&timeout_s=20"
    found = [Server(name, store, tmp_path) for name in ("n1", "n2")]
    try:
        for server in found:
            server.start()
        await asyncio.gather(*[server.up() for server in found])
        yield store, found
    finally:
        await asyncio.gather(*[server.kill() for server in found])


async def holders(client: AsyncClient[bytes]) -> set[str]:
    return {view.holder if view.state == "started" else "" for view in await client.shards(QUEUE)}


async def held_by(client: AsyncClient[bytes], *names: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await holders(client) != set(names):
            await asyncio.sleep(0.1)


async def drained(client: AsyncClient[bytes], count: int) -> list[bytes]:
    bodies: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(bodies) < count:
            found = await client.get(QUEUE, 100, wait_s=2.0)
            bodies += [each.body for each in found]
            if found:
                await client.ack_many(QUEUE, found)
    return sorted(bodies)


async def test_every_node_and_a_client_without_a_server_reach_every_shard(servers: tuple[str, list[Server]]) -> None:
    store, (first, second) = servers
    async with (
        connect_async(first.url) as one,
        connect_async(second.url) as other,
        connect_async(store) as alone,
    ):
        await one.create_queue(QUEUE, "timed", shards=SHARDS)
        await held_by(one, "n1", "n2")
        for client in (one, other, alone):
            bodies = [b"%d" % number for number in range(40)]
            ids = [await client.put(QUEUE, body, due=time.time() + int(body) % 3) for body in bodies]
            assert len(set(ids)) == 40
            assert await drained(client, 40) == sorted(bodies)
        far = await one.put_many(QUEUE, [b"x"] * 3, due=timedelta(days=9))
        ids = [each.id for each in far if isinstance(each, Put)]
        for client, id in zip((one, other, alone), ids, strict=True):
            assert id in {each.id for each in await client.due_between(QUEUE, 0.0, timedelta(days=10))}
            await client.move(QUEUE, id, timedelta(days=8))
            await client.cancel(QUEUE, id)
            with pytest.raises(NotFound):
                await client.cancel(QUEUE, id)
            assert len(await client.shards(QUEUE)) == SHARDS


async def test_a_node_that_leaves_gives_its_shards_back_and_a_schedule_goes_on(
    servers: tuple[str, list[Server]],
) -> None:
    _, (first, second) = servers
    async with connect_async(second.url) as client:
        await client.create_queue(QUEUE, "timed", shards=SHARDS)
        await held_by(client, "n1", "n2")
        await client.schedule("often", QUEUE, "* * * * * *", b"tick")
        ticks: list[str] = []

        async def ticked() -> None:
            for message in await client.get(QUEUE, 10, wait_s=2.0):
                ticks.append(message.attributes["tick"])
                await message.ack()

        while len(ticks) < 3:
            await ticked()
        first.leave()
        await held_by(client, "n2")
        await until(lambda: not first.running, "the node ends")
        (left,) = await client.schedules()
        async with asyncio.timeout(DEADLINE_S):
            while (await client.schedules())[0].through_at < left.through_at + 5:  # others put its ticks now
                await ticked()
        await client.unschedule("often")
        assert await client.due_between(QUEUE, time.time() + 1, timedelta(days=1)) == []
        assert sorted(ticks) == sorted(set(ticks))
