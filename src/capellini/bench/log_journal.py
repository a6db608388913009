"""What the journal costs: the same work on two queues of one node, of which one tells what happens to its messages.

    queue with journal=off  ┐ in turns, slice by slice, the first of each pair by turns
    queue with journal=on   ┘ └─ for each second that these took: what was told is appended, and that counts too

The figure is the part of a node's rate that goes, for batches of 100 of a work queue: one minus what a message takes of
the loop's CPU without the journal by what it takes with it. A node is bound by its one loop, so that this is its rate;
one that is busy all the time appends once in a second of it. Of the slices of each side the low tenth counts: what else
the machine does only adds. The node is in this process and called without a network, so that nothing is added that is
the same for both: through a network the part is smaller.

Beside it, in the details: the same with neither queue telling anything (`b100_noise`: the figure means no more than
this lets it; on a machine with other work it is some hundredths), single messages of a work queue (an event for each
step of each), timed queues (whose ids are told one by one) and log queues.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from capellini.bench import work_lives
from capellini.bench.figures import Detail, Figure, judge, unmeasured
from capellini.model import chunks
from capellini.model.errors import CapelliniError
from capellini.model.log import Settle
from capellini.model.message import NewMessage
from capellini.model.options import OFF, ON
from capellini.node.journal import Journaling
from capellini.node.node import Node
from capellini.node.settings import Settings

NAME: Final = "log.journal_cost"
BATCH: Final = 100
WORKERS: Final = 32  # of single messages
WAIT_S: Final = 2.0
VISIBILITY_S: Final = 600.0
PULL_BYTES: Final = 1 << 20

Life = Callable[[Node, str, int], Awaitable[None]]  # so many messages are put, delivered and acked


class Work(msgspec.Struct, frozen=True):
    kind: str
    life: Life
    slice: int  # messages; some milliseconds


async def _batches(node: Node, queue: str, messages: int) -> None:
    await work_lives.blocks(node.service, queue, messages, BATCH)


async def _singles(node: Node, queue: str, messages: int) -> None:
    await work_lives.singles(node.service, queue, messages, WORKERS)


async def _timed(node: Node, queue: str, messages: int) -> None:
    for _ in range(0, messages, BATCH):
        await node.service.put(queue, [NewMessage(work_lives.BODY)] * BATCH)
        left = BATCH
        while left:
            found = await node.service.get(queue, left, WAIT_S, VISIBILITY_S)
            await node.service.ack(queue, [each.receipt for each in found])
            left -= len(found)


async def _logged(node: Node, queue: str, messages: int) -> None:
    log, chunk = node.service.log, chunks.pack([work_lives.BODY] * BATCH)
    for _ in range(0, messages, BATCH):
        await log.append(queue, chunk)
        left = BATCH
        while left:
            parcels = await log.pull(queue, "default", left, PULL_BYTES, WAIT_S, VISIBILITY_S)
            acks = [
                Settle(p.extent, p.reader, p.epoch, p.delivery, p.first, p.count, p.code, "ack", [(p.first, p.count)])
                for p in parcels
            ]
            await log.settle(queue, "default", acks)
            left -= sum(parcel.count for parcel in parcels)


WORKS: Final = {
    "b100": Work("work", _batches, 2_000),
    "c32": Work("work", _singles, 200),
    "timed": Work("timed", _timed, 300),
    "log": Work("log", _logged, 2_000),
}
PAIRS: Final = 300  # of slices
QUICK_PAIRS: Final = 100
COUNTS: Final = 0.1  # of the slices
FLUSH_S: Final = 1.0  # of the loop's time


class Used(msgspec.Struct, frozen=True):
    """CPU per message, in µs."""

    off: float
    on: float
    appending: float  # what was told

    @property
    def cost(self) -> float:
        """The part of the rate that goes."""
        return 1 - self.off / (self.on + self.appending)


async def run(quick: bool, _wanted: list[str]) -> list[Figure]:
    return [await journal_cost(quick)]


async def journal_cost(quick: bool) -> Figure:
    pairs = QUICK_PAIRS if quick else PAIRS
    with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
        node = await Node.open(Settings(store=f"rocks:{Path(folder) / 'store'}", events="journal"))
        journal = node.kinds.journal
        assert journal is not None
        try:
            await journal.rest()
            found = {name: await _compared(node, journal, name, work, pairs) for name, work in WORKS.items()}
            noise = await _compared(node, journal, "control", WORKS["b100"], pairs, control=True)
            told = journal.figures
        except CapelliniError as error:
            return unmeasured(NAME, error.says)
        finally:
            await node.close()
    if told.dropped:
        return unmeasured(NAME, f"{told.dropped} events were dropped")
    detail: Detail = {"pairs": pairs, "events": told.events, "bytes_per_event": round(told.bytes / told.events, 1)}
    detail["b100_noise"] = round(noise.cost, 4)
    for name, used in found.items():
        detail[f"{name}_cost"] = round(used.cost, 4)
        detail[f"{name}_us"] = [round(each, 3) for each in (used.off, used.on, used.appending)]
    return judge(NAME, found["b100"].cost, detail)


async def _compared(node: Node, journal: Journaling, name: str, work: Work, pairs: int, control: bool = False) -> Used:
    """`control`: neither queue tells anything. What is found then is noise."""
    sides = (OFF, ON)
    for side in sides:
        await node.service.create(f"{name}-{side}", work.kind, {"journal": OFF if control else side})
        await _slice(node, f"{name}-{side}", work)  # it warms up
    await journal.flush()
    used: dict[str, list[float]] = {side: [] for side in sides}
    appending_s: list[float] = []
    busy_s = 0.0
    for pair in range(pairs):
        for side in sides if pair % 2 else reversed(sides):
            used[side].append(await _slice(node, f"{name}-{side}", work))
        busy_s += used[ON][-1]
        if busy_s >= FLUSH_S or pair == pairs - 1:
            began_s, busy_s = time.thread_time(), 0.0
            await journal.flush()
            appending_s.append(time.thread_time() - began_s)
    off_us, on_us = (sorted(used[side])[int(pairs * COUNTS)] / work.slice * 1e6 for side in sides)
    return Used(off_us, on_us, median(appending_s) / FLUSH_S * on_us)


async def _slice(node: Node, queue: str, work: Work) -> float:
    """CPU seconds of the loop."""
    began_s = time.thread_time()
    await work.life(node, queue, work.slice)
    return time.thread_time() - began_s
