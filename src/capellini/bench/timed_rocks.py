"""Lateness on the embedded store: `capellini serve` in a process of its own, a client over the network.

    late_p99_ms                  2,000 messages due per second
    idle_then_300ms_late_p99_ms  queues in which nothing happened for longer than a holder's longest back-off; then one
                                 put each, due in 300 ms, at different moments

The disk and the machine are told with each (`surroundings`).
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Final

from capellini.bench.figures import Figure, judge, unmeasured
from capellini.bench.peers.capellini_node import Capellini
from capellini.bench.surroundings import Surroundings
from capellini.bench.timed_late import Lateness, body_of, by_client, lateness
from capellini.bench.usage import memory_mb
from capellini.client.aio import AsyncClient
from capellini.client.connecting import connect_async
from capellini.model.errors import CapelliniError

PER_S: Final = 2_000.0
SECONDS: Final = 30.0
QUICK_SECONDS: Final = 6.0
IDLE_QUEUES: Final = 40
IDLE_ROUNDS: Final = 4
QUICK_IDLE_ROUNDS: Final = 1
IDLE_S: Final = 7.0  # longer than a holder rests
SOON_S: Final = 0.3
SPREAD_S: Final = 2.0  # the puts of one round come within this


async def run(quick: bool, wanted: list[str]) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
        server = Capellini(Path(folder))
        await asyncio.to_thread(server.start)
        try:
            async with connect_async(server.address) as client:
                return [await _measured(name, client, quick, server) for name in wanted]
        finally:
            await asyncio.to_thread(server.stop)


async def _measured(name: str, client: AsyncClient[bytes], quick: bool, server: Capellini) -> Figure:
    try:
        async with Surroundings(server.folder, server.pid) as around:
            if name == "timed.rocks.late_p99_ms":
                await client.create_queue("steady", "timed", visibility_s=600)
                found = await lateness(by_client(client, "steady"), PER_S, QUICK_SECONDS if quick else SECONDS)
            else:
                found = await _idle(client, QUICK_IDLE_ROUNDS if quick else IDLE_ROUNDS)
    except CapelliniError as error:
        return unmeasured(name, error.says)
    detail = {**found.detail(), "node_memory_mb": memory_mb(server.pid), **around.detail}
    return judge(name, found.quantile(0.99), detail)


async def _idle(client: AsyncClient[bytes], rounds: int) -> Lateness:
    """One consumer waits at each queue all the time, as a worker does that has nothing to do."""
    queues = [f"idle-{number}" for number in range(IDLE_QUEUES)]
    late_ms: list[float] = []
    chance = random.Random(1)
    for queue in queues:
        await client.create_queue(queue, "timed", shards=1)

    async def consume(queue: str) -> None:
        for _ in range(rounds):
            while not (found := await client.get(queue, 1, wait_s=20.0)):
                continue
            late_ms.append((time.time() - float(found[0].raw.partition(b" ")[0])) * 1000)
            await found[0].ack()

    async def feed(queue: str) -> None:
        for _ in range(rounds):
            await asyncio.sleep(IDLE_S + chance.uniform(0, SPREAD_S))
            due_s = time.time() + SOON_S
            await client.put(queue, body_of(due_s), due=due_s)

    await asyncio.gather(*(consume(queue) for queue in queues), *(feed(queue) for queue in queues))
    return Lateness(sorted(late_ms), sum(each < 0 for each in late_ms), len(queues) / (IDLE_S + SPREAD_S / 2))
