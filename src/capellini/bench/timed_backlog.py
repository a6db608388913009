"""Does a backlog matter? Two nodes in this process, each on a folder: one queue is empty, the other has millions of
messages scheduled over the next year. Both do the same work in turns, so that whatever the machine does meets both.

    late_with_5M_scheduled    lateness of messages due now (median over all turns), with the backlog by without
    put_with_5M_scheduled     time per put of batches due over the year, with by without
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from capellini.bench.figures import Detail, Figure, judge, unmeasured
from capellini.bench.timed_late import BODY, NotMeasured, in_process, lateness, worked
from capellini.bench.usage import memory_mb
from capellini.model.errors import CapelliniError
from capellini.model.message import NewMessage
from capellini.model.service import Problem
from capellini.node.node import Node
from capellini.node.settings import Settings

QUEUE: Final = "later"
MESSAGES: Final = 5_000_000
QUICK_MESSAGES: Final = 100_000
YEAR_S: Final = 365 * 86_400.0
PART_S: Final = 3_600.0  # a batch's dues lie in one time part, as a batch of a program's do
FILL: Final = 1_000  # messages in one put of the backlog
TURNS: Final = 12
QUICK_TURNS: Final = 3
PER_S: Final = 500.0
SECONDS: Final = 1.5  # of lateness in each turn
PUT_TURNS: Final = (
    15  # for each turn of lateness: short ones, since the speed of a machine changes from second to second
)
PUTS: Final = 10  # batches of 100 in each


async def run(quick: bool, wanted: list[str]) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
        nodes = [await Node.open(Settings(store=f"rocks:{Path(folder) / name}")) for name in ("empty", "full")]
        try:
            return await _measured(nodes, quick, wanted)
        except CapelliniError as error:
            return [unmeasured(name, error.says) for name in wanted]
        finally:
            for node in nodes:
                await node.close()


async def _measured(nodes: list[Node], quick: bool, wanted: list[str]) -> list[Figure]:
    for node in nodes:
        await node.service.create(QUEUE, "timed", {"shards": 4, "visibility_s": 600})
        assert node.service.timed is not None
        await worked(node.service.timed, QUEUE)
    before_mb, began_s = memory_mb(), time.perf_counter()
    backlog = QUICK_MESSAGES if quick else MESSAGES
    await _fill(nodes[1], backlog)
    detail: Detail = {"scheduled": backlog, "filled_per_s": round(backlog / (time.perf_counter() - began_s))}
    if quick:
        detail["quick"] = f"{backlog} instead of {MESSAGES} scheduled"
    detail |= {"memory_before_mb": before_mb, "memory_filled_mb": memory_mb()}
    figures = []
    for name in wanted:
        late = "late_with" in name
        measure = _late if late else _puts
        found: list[list[float]] = [[], []]
        for turn in range((QUICK_TURNS if quick else TURNS) * (1 if late else PUT_TURNS)):
            for place in (0, 1) if turn % 2 else (1, 0):
                found[place].append(await measure(nodes[place], turn))
        empty, full = (median(each) for each in found)
        unit = "late_p50_ms" if late else "us_per_message"
        compared = {f"empty_{unit}": round(empty, 3), f"full_{unit}": round(full, 3)}
        figures.append(judge(name, full / empty, {**detail, **compared}))
    return figures


def _batch(chance: random.Random, count: int) -> list[NewMessage]:
    """Due within one time part, somewhere in the next year."""
    start_s = time.time() + 3 * PART_S + chance.uniform(0, YEAR_S) // PART_S * PART_S
    return [NewMessage(BODY, due=start_s + chance.uniform(0, PART_S)) for _ in range(count)]


async def _put(node: Node, messages: list[NewMessage]) -> None:
    for result in await node.service.put(QUEUE, messages):
        if isinstance(result, Problem):
            raise NotMeasured(result.says)


async def _fill(node: Node, count: int) -> None:
    chance = random.Random(5)
    for _ in range(0, count, FILL):
        await _put(node, _batch(chance, FILL))


async def _late(node: Node, turn: int) -> float:
    return (await lateness(in_process(node.service, QUEUE), PER_S, SECONDS, lead_s=0.5)).quantile(0.5)


async def _puts(node: Node, turn: int) -> float:
    """Microseconds per message."""
    chance = random.Random(turn)
    batches = [_batch(chance, 100) for _ in range(PUTS)]
    began_s = time.perf_counter()
    for messages in batches:
        await _put(node, messages)
    return (time.perf_counter() - began_s) / (PUTS * 100) * 1e6
