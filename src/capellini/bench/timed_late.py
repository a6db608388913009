"""How late messages are: put a little ahead at a steady rate, got and acked by a few consumers; each message's lateness
is the time between its due and the moment its consumer has it.

    feeders ──▶ batches of messages, their dues spread over the next BATCH / rate seconds, LEAD_S ahead
    consumers ──▶ get, note how late each is, ack
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from capellini.client.aio import AsyncClient
from capellini.model.errors import CapelliniError
from capellini.model.message import NewMessage
from capellini.model.scheduling import TimedService
from capellini.model.service import Problem, Put, Service

BATCH: Final = 100  # messages in one put
LEAD_S: Final = 1.5  # between a put and its first due
FEEDERS: Final = 4
CONSUMERS: Final = 4
GET_MOST: Final = 500
DONE_WITHIN_S: Final = 60.0  # after the last due
BODY: Final = b"x" * 100


class Lateness(msgspec.Struct, frozen=True):
    late_ms: list[float]  # sorted
    early: int
    due_per_s: float

    def quantile(self, share: float) -> float:
        return self.late_ms[min(len(self.late_ms) - 1, int(len(self.late_ms) * share))]

    def detail(self) -> dict[str, object]:
        return {
            "messages": len(self.late_ms),
            "due_per_s": round(self.due_per_s),
            "p50_ms": round(self.quantile(0.5), 2),
            "p90_ms": round(self.quantile(0.9), 2),
            "max_ms": round(self.late_ms[-1], 1),
            "early": self.early,
        }


PutAll = Callable[[Sequence[NewMessage]], Awaitable[Sequence[Put | Problem]]]
GetSome = Callable[[int, float], Awaitable[Sequence[tuple[bytes, str]]]]  # (body, receipt) of each
AckAll = Callable[[Sequence[str]], Awaitable[Sequence[object]]]


class Way(msgspec.Struct, frozen=True):
    """How a queue is spoken to: by a client over the network, or in this process."""

    put: PutAll
    get: GetSome
    ack: AckAll


def body_of(due_s: float) -> bytes:
    """A body that says when it was due."""
    return f"{due_s:.6f} ".encode() + BODY


async def lateness(way: Way, per_s: float, seconds: float, lead_s: float = LEAD_S) -> Lateness:
    """So many messages due per second, for so long."""
    total = int(per_s * seconds)
    late_ms: list[float] = []
    failed: list[str] = []
    acks: list[asyncio.Future[Sequence[object]]] = []

    began_s = time.time() + lead_s

    async def feed(feeder: int) -> None:
        for first in range(feeder * BATCH, total, FEEDERS * BATCH):
            ahead_s = began_s + first / per_s - lead_s - time.time()
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
            dues = [began_s + number / per_s for number in range(first, min(total, first + BATCH))]
            results = await way.put([NewMessage(body_of(due_s), due=due_s) for due_s in dues])
            failed.extend(each.says for each in results if isinstance(each, Problem))

    async def consume() -> None:
        while len(late_ms) < total:
            found = await way.get(GET_MOST, 1.0)
            now_s = time.time()
            late_ms.extend((now_s - float(body.partition(b" ")[0])) * 1000 for body, _ in found)
            if found:  # acked beside it: how long an ack takes is no matter of lateness
                acks.append(asyncio.ensure_future(way.ack([receipt for _, receipt in found])))

    tasks = [asyncio.create_task(work) for work in (*map(feed, range(FEEDERS)), *(consume() for _ in range(CONSUMERS)))]
    within_s = seconds + lead_s + DONE_WITHIN_S
    done, late = await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_EXCEPTION)
    for task in late:
        task.cancel()
    for task in done:
        task.result()
    for results in await asyncio.gather(*acks):
        failed.extend(each.says for each in results if isinstance(each, Problem))
    if late or failed:
        raise NotMeasured(f"{len(late_ms)} of {total} messages came in time; {failed[:1] or ''}")
    return Lateness(sorted(late_ms), sum(each < 0 for each in late_ms), per_s)


class NotMeasured(CapelliniError):
    """It did not come to its end."""


def by_client(client: AsyncClient[bytes], queue: str) -> Way:
    """As programs speak to a node."""

    async def get(count: int, wait_s: float) -> list[tuple[bytes, str]]:
        return [(each.raw, each.receipt) for each in await client.get(queue, count, wait_s=wait_s)]

    return Way(lambda messages: client.put_many(queue, messages), get, lambda texts: client.ack_many(queue, texts))


def in_process(service: Service, queue: str) -> Way:
    async def get(count: int, wait_s: float) -> list[tuple[bytes, str]]:
        return [(each.body, each.receipt) for each in await service.get(queue, count, wait_s)]

    return Way(lambda messages: service.put(queue, messages), get, lambda texts: service.ack(queue, texts))


async def worked(service: TimedService, queue: str) -> None:
    """Until all its shards have holders."""
    deadline_s = time.monotonic() + DONE_WITHIN_S
    while any(view.state != "started" for view in await service.shards(queue)):
        if time.monotonic() > deadline_s:
            raise NotMeasured(f"the shards of {queue} are not worked")
        await asyncio.sleep(0.05)
