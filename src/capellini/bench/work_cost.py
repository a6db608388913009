"""Does a message cost more in a queue with a past, or with a backlog? Embedded store, this process.

    new    a queue just created, on a store of its own          ┐ in turns: put 100, get 100, ack 100, ..., and the drop
    old    a queue that a million messages went through, or     ├ of the buckets that are finished by it
           that holds five million unread ones                  ┘

Cost is requests to the store per message, and CPU time of this process per message. The figure is the worse of the two
ratios, old to new. Repair is called here instead of running by itself, so that its work falls into the turn that
caused it.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from capellini.bench import work_lives
from capellini.bench.figures import Detail, Figure, judge
from capellini.bench.usage import memory_mb
from capellini.model.clock import RealClock
from capellini.node.broker import Broker
from capellini.store.rocks import RocksStore
from capellini.store.schema import TABLES

BATCH: Final = 100
FILL_BATCH: Final = 1_000
OLD: Final = "old"
QUIET_SHARE: Final = 0.03  # of a core: below it RocksDB has merged its files, and what is measured is the queue
QUIET_LOOK_S: Final = 0.5
QUIET_WITHIN_S: Final = 60.0


class Scale(msgspec.Struct, frozen=True):
    consumed: int
    unread: int
    turns: int
    messages: int  # of one turn, on each side


FULL: Final = Scale(consumed=1_000_000, unread=5_000_000, turns=15, messages=20_000)
QUICK: Final = Scale(consumed=100_000, unread=500_000, turns=7, messages=10_000)


class Cost(msgspec.Struct, frozen=True):
    """Per message."""

    requests: float
    cpu_us: float


async def run(quick: bool, wanted: list[str]) -> list[Figure]:
    scale = QUICK if quick else FULL
    made: list[Figure] = []
    for name in wanted:
        consumed = name == "work.cost_after_1M_consumed"
        value, detail = await _compare(scale, scale.consumed if consumed else scale.unread, consumed)
        if quick:
            full = FULL.consumed if consumed else FULL.unread
            detail["quick"] = f"{detail['history']} instead of {full} messages"
        made.append(judge(name, value, detail))
    return made


async def _compare(scale: Scale, history: int, consumed: bool) -> tuple[float, Detail]:
    async with _broker() as old, _broker() as new:
        await old.create(OLD)
        before_mb = memory_mb()
        for first in range(0, history, 50 * FILL_BATCH):
            count = min(50 * FILL_BATCH, history - first)
            await work_lives.filled(old, OLD, count, FILL_BATCH)
            if consumed:
                await work_lives.consumed(old, OLD, count, FILL_BATCH)
                await _repair(old, OLD)
        after_mb = memory_mb()
        quiet = await _quiet()
        olds: list[Cost] = []
        news: list[Cost] = []
        for turn in range(scale.turns + 1):
            queue = f"new{turn}"
            await new.create(queue)
            costs = await _cost(new, queue, scale.messages), await _cost(old, OLD, scale.messages)
            if turn:  # the first one warms both up
                news.append(costs[0])
                olds.append(costs[1])
        ended_mb = memory_mb()
    requests = median(o.requests / n.requests for o, n in zip(olds, news, strict=True))
    cpu = median(o.cpu_us / n.cpu_us for o, n in zip(olds, news, strict=True))
    detail: Detail = {
        "history": history,
        "requests_ratio": round(requests, 3),
        "cpu_ratio": round(cpu, 3),
        "requests_per_message": round(median(each.requests for each in olds), 4),
        "requests_per_message_new": round(median(each.requests for each in news), 4),
        "cpu_us_per_message": round(median(each.cpu_us for each in olds), 2),
        "cpu_us_per_message_new": round(median(each.cpu_us for each in news), 2),
        "memory_mb": {"before": before_mb, "with_history": after_mb, "at_the_end": ended_mb},
    }
    if not quiet:
        detail["not_quiet"] = "RocksDB was still merging files in the background"
    return max(requests, cpu), detail


async def _cost(broker: Broker, queue: str, messages: int) -> Cost:
    """Of so many whole lives, batches of 100."""
    requests, cpu_s = broker.store.counts.requests, time.process_time()
    await work_lives.blocks(broker, queue, messages, BATCH)
    await _repair(broker, queue)
    cpu_s = time.process_time() - cpu_s
    return Cost((broker.store.counts.requests - requests) / messages, cpu_s / messages * 1e6)


async def _repair(broker: Broker, queue: str) -> None:
    """All finished buckets go."""
    opened = broker.opened(await broker.catalog.live(queue))
    while await opened.repair.step():
        pass


async def _quiet() -> bool:
    deadline_s = time.monotonic() + QUIET_WITHIN_S
    while time.monotonic() < deadline_s:
        cpu_s = time.process_time()
        await asyncio.sleep(QUIET_LOOK_S)
        if time.process_time() - cpu_s < QUIET_LOOK_S * QUIET_SHARE:
            return True
    return False


@asynccontextmanager
async def _broker() -> AsyncIterator[Broker]:
    """On an embedded store in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
        store = await RocksStore.open(Path(folder) / "store", create=True, clock=RealClock())
        try:
            await store.prepare(TABLES)
            broker = Broker(store, RealClock(), random.Random())
            yield broker
            await broker.close()
        finally:
            await store.close()
