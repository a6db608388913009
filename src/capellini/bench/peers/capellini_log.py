"""Log queues of our own node: a stream to put through, and a stream to get from, shared by the tasks of a process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from capellini.bench.peers.capellini_node import VISIBILITY_S, Capellini, checked
from capellini.bench.peers.peer import AsyncLane, Got
from capellini.client.aio import AsyncClient
from capellini.client.async_streams import AsyncConsumer, AsyncProducer
from capellini.client.connecting import connect_async
from capellini.client.messages import AsyncMessage

GROUP: Final = "readers"  # unless told
WAIT_S: Final = 0.2
AHEAD_BATCHES: Final = 8  # credits: enough that the node never waits for them


class CapelliniLog(Capellini):
    name = "capellini_log"
    label = "Capellini log"
    says = "capellini serve on a folder, log queue, fsync before every answer, AsyncClient streams over WebSocket"
    about_per_s = 150_000

    def fresh(self, queue: str) -> None:
        self.fresh_groups(queue, (GROUP,))

    def fresh_groups(self, queue: str, groups: Sequence[str]) -> None:
        async def create() -> None:
            async with connect_async(self.address) as client:
                await client.create_queue(queue, "log")
                for group in groups:
                    await client.groups.create(queue, group, visibility_s=VISIBILITY_S)

        asyncio.run(create())


class Shared:
    """What the lanes of one process have together."""

    def __init__(self, client: AsyncClient[bytes], lanes: int) -> None:
        self.client, self.lanes = client, lanes
        self.producer: AsyncProducer[bytes] | None = None
        self.consumer: AsyncConsumer[AsyncMessage[bytes]] | None = None
        self.left: deque[AsyncMessage[bytes]] = deque()

    async def close(self) -> None:
        self.lanes -= 1
        if self.lanes:
            return
        if self.producer is not None:
            await self.producer.close()
        if self.consumer is not None:
            await self.consumer.close()
        await self.client.close()


class LogLane(AsyncLane):
    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    @classmethod
    async def open(
        cls, address: str, queue: str, count: int, groups: Sequence[str] = (), gets: bool = True, batch: int = 1
    ) -> list[AsyncLane]:
        shared = Shared(connect_async(address), count)
        if gets:
            group, ahead = groups[0] if groups else GROUP, max(2_000, batch * count * AHEAD_BATCHES)
            shared.consumer = shared.client.stream(queue, group=group, ahead=ahead)
            await shared.consumer.__aenter__()
        else:
            shared.producer = shared.client.stream_put(queue)
            await shared.producer.__aenter__()
        return [cls(shared) for _ in range(count)]

    async def put(self, bodies: list[bytes], delay_s: float = 0.0) -> None:
        assert self._shared.producer is not None
        await self._shared.producer.put_many(bodies)

    async def get(self, most: int) -> list[Got]:
        assert self._shared.consumer is not None
        found = await self._shared.consumer.batch(WAIT_S)
        return [(each.raw, each) for each in found]

    async def ack(self, handles: list[Any]) -> None:
        assert self._shared.consumer is not None
        checked(await self._shared.consumer.ack_many(handles))

    async def close(self) -> None:
        await self._shared.close()
