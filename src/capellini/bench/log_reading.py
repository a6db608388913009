"""Reading a log queue on the embedded store: how soon a message is there, and what an old position costs.

latency_p99_ms_at_1000_per_s   one stream puts 1,000 messages a second, one delivers; put to delivered, both in one
                               process, so that one clock tells both times. It counts from when a message was due
                               to be put: what makes the load late (`sent_late_p99_ms`) is part of it, as it is for
                               a program that shares the machine with its node. The disk and the machine are told
                               with it (`surroundings`), since each message waits for both
old_position_cost              time per message from a position a million messages back, over that at the tail;
                               once more after a restart of the node; the worse of both counts
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from capellini.bench.figures import Detail, Figure, judge, unmeasured
from capellini.bench.peers.capellini_log import CapelliniLog
from capellini.bench.peers.capellini_node import VISIBILITY_S
from capellini.bench.surroundings import Surroundings, quantile
from capellini.bench.usage import memory_mb
from capellini.client.aio import AsyncClient
from capellini.client.async_streams import AsyncBatch
from capellini.client.connecting import connect_async
from capellini.client.messages import AsyncMessage
from capellini.model.errors import CapelliniError
from capellini.model.service import Problem

LATENCY: Final = "log.rocks.latency_p99_ms_at_1000_per_s"
OLD: Final = "log.rocks.old_position_cost"
PER_S: Final = 1_000.0
BODY_BYTES: Final = 100
BATCH: Final = 1_000
WARM_S: Final = 2.0


class Scale(msgspec.Struct, frozen=True):
    seconds: float  # of puts
    back: int  # messages
    read: int  # messages, at each position
    turns: int


FULL: Final = Scale(seconds=30.0, back=1_000_000, read=100_000, turns=7)
QUICK: Final = Scale(seconds=8.0, back=300_000, read=40_000, turns=3)


async def run(quick: bool, wanted: list[str]) -> list[Figure]:
    scale = QUICK if quick else FULL
    made: list[Figure] = []
    for name in wanted:
        with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
            server = CapelliniLog(Path(folder))
            await asyncio.to_thread(server.start)
            try:
                made.append(await (_latency(server, scale) if name == LATENCY else _old(server, scale)))
            except CapelliniError as error:
                made.append(unmeasured(name, error.says))
            finally:
                await asyncio.to_thread(server.stop)
    return made


async def _latency(server: CapelliniLog, scale: Scale) -> Figure:
    async with connect_async(server.address) as client:
        await client.create_queue("steady", "log")
        await client.groups.create("steady", "readers", visibility_s=VISIBILITY_S)
        async with Surroundings(server.folder, server.pid) as around:
            late_ms, sent_late_ms = await _steady(client, int(PER_S * (scale.seconds + WARM_S)))
    warm, sent = late_ms[int(PER_S * WARM_S) :], sent_late_ms[int(PER_S * WARM_S) :]
    detail: Detail = {f"p{q:g}_ms": round(quantile(warm, q / 100), 2) for q in (50, 90, 99, 99.9)}
    detail |= {"sent_late_p99_ms": round(quantile(sent, 0.99), 2), "messages": len(warm), "per_s": PER_S}
    return judge(LATENCY, quantile(warm, 0.99), detail | around.detail)


async def _steady(client: AsyncClient[bytes], total: int) -> tuple[list[float], list[float]]:
    """Of each message, how long after it was due to be put it was delivered; and was handed to the producer."""
    late_ms: list[float] = []
    sent_late_ms: list[float] = []
    acks: set[asyncio.Task[None]] = set()
    failed: list[Problem] = []
    async with client.stream_put("steady") as producer, client.stream("steady", group="readers") as consumer:

        async def ack(found: AsyncBatch[AsyncMessage[bytes]]) -> None:
            failed.extend(each for each in await consumer.ack_many(found) if isinstance(each, Problem))

        async def consume() -> None:
            while len(late_ms) < total:
                found = await consumer.batch()
                now_s = time.perf_counter()
                late_ms.extend((now_s - float(each.raw.partition(b" ")[0])) * 1000 for each in found)
                acks.add(acking := asyncio.create_task(ack(found)))  # beside: it is no part of a delivery
                acking.add_done_callback(acks.discard)

        reading = asyncio.create_task(consume())
        began_s = time.perf_counter()
        for number in range(total):
            due_s = began_s + number / PER_S
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            sent_late_ms.append((time.perf_counter() - due_s) * 1000)
            await producer.send(f"{due_s:.6f} ".encode().ljust(BODY_BYTES, b"x"))
        await reading
        await asyncio.gather(*acks)
    if failed:
        raise failed[0].raised()
    return late_ms, sent_late_ms


async def _old(server: CapelliniLog, scale: Scale) -> Figure:
    async with connect_async(server.address) as client:
        await client.create_queue("deep", "log")
        async with client.stream_put("deep") as producer:
            body = b"x" * BODY_BYTES
            for _ in range(0, scale.back + scale.read, BATCH):
                await producer.send_many([body] * BATCH)
            await producer.flush()
        running = await _ratios(client, scale, "a")
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    async with connect_async(server.address) as client:
        restarted = await _ratios(client, scale, "b")
    detail: Detail = {
        "ratios": [round(each, 2) for each in running],
        "after_restart": [round(each, 2) for each in restarted],
        "back": scale.back,
        "read": scale.read,
        "memory_mb": memory_mb(server.pid),
    }
    return judge(OLD, max(median(running), median(restarted)), detail)


async def _ratios(client: AsyncClient[bytes], scale: Scale, name: str) -> list[float]:
    """Old over new, in turns; the tail is what was put last, read as it is put."""
    found: list[float] = []
    for turn in range(scale.turns + 1):
        tail_s = await _tail(client, f"tail-{name}{turn}", scale.read)
        old_s = await _from_start(client, f"old-{name}{turn}", scale.read)
        if turn:
            found.append(old_s / tail_s)
    return found


async def _from_start(client: AsyncClient[bytes], group: str, messages: int) -> float:
    """Seconds per message, from the earliest on."""
    await client.groups.create("deep", group, visibility_s=VISIBILITY_S)
    took_s = await _timed(client, group, messages)
    await client.groups.delete("deep", group)
    return took_s


async def _tail(client: AsyncClient[bytes], group: str, messages: int) -> float:
    """Seconds per message of what was put just now."""
    await client.groups.create("deep", group, start="latest", visibility_s=VISIBILITY_S)
    async with client.stream_put("deep") as producer:
        for _ in range(0, messages, BATCH):
            await producer.send_many([b"x" * BODY_BYTES] * BATCH)
        await producer.flush()
    took_s = await _timed(client, group, messages)
    await client.groups.delete("deep", group)
    return took_s


async def _timed(client: AsyncClient[bytes], group: str, messages: int) -> float:
    async with client.stream("deep", group=group, ahead=8 * BATCH) as consumer:
        got, began_s = 0, time.perf_counter()
        while got < messages:
            found = await consumer.batch()
            await consumer.ack_many(found)
            got += len(found)
        return (time.perf_counter() - began_s) / got
