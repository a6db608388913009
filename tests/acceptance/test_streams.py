"""Streams of the client to a node in a process of its own, which is killed, stopped and started again meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.acceptance.client_processes import DEADLINE_S, folder_owner, running_node

import capellini

COUNT = 30_000
BATCH = 250


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@pytest.mark.slow
async def test_producers_and_consumers_go_on_through_kills_and_restarts(tmp_path: Path) -> None:
    seen, acked = set[bytes](), set[bytes]()
    with running_node(tmp_path / "data") as node:
        async with asyncio.timeout(DEADLINE_S), capellini.connect_async(node.address, patience_s=DEADLINE_S) as client:
            await client.create_queue("events", "log")
            await client.groups.create("events", "readers", visibility_s=5)

            async def consume() -> None:
                async with client.stream("events", group="readers") as consumer:
                    async for batch in consumer.batches():
                        assert not acked & set(batch.bodies)  # what was confirmed never comes again
                        seen.update(batch.bodies)
                        try:
                            await batch.ack()
                            acked.update(batch.bodies)
                        except (capellini.Stale, capellini.Unknown):
                            pass  # the node was killed: they come again, or were acked

            consuming = asyncio.create_task(consume())
            async with client.stream_put("events") as producer:
                for at in range(0, COUNT, BATCH):
                    sent = await producer.send_many(numbers(at, BATCH))
                    if at in (COUNT // 3, COUNT // 2):
                        await asyncio.to_thread(node.kill if at == COUNT // 3 else node.stop)
                        await asyncio.to_thread(node.start)
                    if at % (10 * BATCH) == 0:
                        await asyncio.wait(sent)
            info, lag = await client.groups.show("events", "readers")
            while len(seen) < COUNT or lag.ready or lag.in_flight:  # what came again is acked, too
                if (await asyncio.wait([consuming], timeout=0.1))[0]:
                    await consuming
                info, lag = await client.groups.show("events", "readers")
            consuming.cancel()
            again = await everything(client, "check")
    assert seen == set(numbers(0, COUNT))
    assert info.name == "readers"
    assert (lag.ready, lag.in_flight, lag.delayed) == (0, 0, 0)
    assert sorted(map(int, [body for bodies in again.values() for body in bodies])) == list(range(COUNT))
    for bodies in again.values():  # of one extent: puts that were sent again were recognised, none overtook another
        assert bodies == sorted(bodies, key=int)


async def everything(client: capellini.AsyncClient[bytes], group: str) -> dict[str, list[bytes]]:
    """All that is in the queue, by extent, as a group finds it that comes later."""
    found: dict[str, list[bytes]] = {}
    await client.groups.create("events", group)
    async with client.stream("events", group=group) as consumer:
        left = COUNT
        while batch := await consumer.batch(wait_s=DEADLINE_S if left > 0 else 0.5):
            for message in batch:
                found.setdefault(message.id.partition(":")[0], []).append(message.body)
            await batch.ack()
            left -= len(batch)
    return found


@pytest.mark.slow
async def test_streams_go_on_when_the_owner_of_a_folder_dies(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with folder_owner(folder, 0) as owner:
        async with asyncio.timeout(DEADLINE_S), capellini.connect_async(f"rocks:{folder}") as client:
            await client.create_queue("events", "log")
            await client.groups.create("events", "readers", visibility_s=2)
            found: set[bytes] = set()
            async with client.stream_put("events") as producer, client.stream("events", group="readers") as consumer:
                await producer.put_many(numbers(0, 100))
                while len(found) < 100:
                    batch = await consumer.batch()
                    found |= set(batch.bodies)
                    await batch.ack()
                sent = await producer.send_many(numbers(100, 100))
                owner.kill()
                sent += await producer.send_many(numbers(200, 100))
                assert sum([(await each).count for each in sent]) == 200
                while len(found) < 300:
                    found |= set((await consumer.batch()).bodies)
    assert found == set(numbers(0, 300))
