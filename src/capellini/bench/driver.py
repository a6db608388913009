"""A driver's process: producers or consumers of one queue, and nothing else. `driving` starts them.

    stdin   a Job as JSON, then an empty line: go
    stdout  "ready", then a Report as JSON

Each worker has one batch under way at a time: a thread with a client of its own where the client blocks, a task of one
event loop where it does not. Consumers go on until all consumers together have acked everything: each counts in a
place of its own in a shared file.
"""

from __future__ import annotations

import asyncio
import importlib
import mmap
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from capellini.bench.peers.peer import Lane

BODY_BYTES: Final = 100
SLOT: Final = struct.Struct("=q")
LANES: Final = {  # by module: a driver brings along its own peer's client only
    "postgres": "PostgresLane",
    "redis_streams": "RedisLane",
    "beanstalkd": "BeanstalkdLane",
}


class Job(msgspec.Struct, frozen=True):
    peer: str
    address: str
    queue: str
    role: str  # "put" or "get"
    batch: int
    workers: int
    messages: int  # to put by this process; or, for consumers, all there are
    tally: str  # the shared file
    first_slot: int


class Report(msgspec.Struct, frozen=True):
    ended_s: float  # of the last answer that mattered, on the machine's monotonic clock
    cpu_s: float
    calls: int


class Tally:
    """How much each consumer has acked. One writer per place, so nothing is locked."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._all = struct.Struct(f"={len(self._map) // SLOT.size}q")

    @staticmethod
    def make(path: Path, slots: int) -> None:
        path.write_bytes(bytes(SLOT.size * slots))

    def add(self, slot: int, count: int) -> None:
        (before,) = SLOT.unpack_from(self._map, slot * SLOT.size)
        SLOT.pack_into(self._map, slot * SLOT.size, before + count)

    def total(self) -> int:
        return sum(self._all.unpack(self._map))


class Work:
    """One process's share, whatever its workers are."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tally = Tally(Path(job.tally))
        self.left = job.messages
        self.ended_s = 0.0
        self.calls = 0
        self._lock = threading.Lock()

    def next_batch(self) -> list[bytes]:
        with self._lock:
            count = min(self.job.batch, self.left)
            self.left -= count
        return [b"x" * BODY_BYTES] * count

    def answered(self) -> None:
        self.calls += 1
        self.ended_s = max(self.ended_s, time.monotonic())

    def all_acked(self) -> bool:
        return self.tally.total() >= self.job.messages


def blocking(work: Work, ready: Callable[[], None]) -> None:
    """Threads, each with a lane of its own."""
    job = work.job
    module = importlib.import_module(f"capellini.bench.peers.{job.peer}")
    lanes: list[Lane] = [getattr(module, LANES[job.peer])(job.address, job.queue) for _ in range(job.workers)]
    ready()
    failures: list[BaseException] = []

    def work_at(lane: Lane, slot: int) -> None:
        try:
            if job.role == "put":
                while bodies := work.next_batch():
                    lane.put(bodies)
                    work.answered()
            else:
                while not work.all_acked():
                    if found := lane.get(job.batch):
                        lane.ack(found)
                        work.tally.add(slot, len(found))
                        work.answered()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [
        threading.Thread(target=work_at, args=(lane, job.first_slot + index)) for index, lane in enumerate(lanes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for lane in lanes:
        lane.close()
    if failures:
        raise failures[0]


async def tasks(work: Work, ready: Callable[[], None]) -> None:
    """Our own client: tasks that share it."""
    from capellini.bench.peers.capellini_node import VISIBILITY_S, WAIT_S
    from capellini.client.connecting import connect_async
    from capellini.model.service import Problem

    job = work.job
    async with connect_async(job.address) as client:
        await client.show_queue(job.queue)  # connected
        ready()

        def checked(results: list[Any]) -> None:
            for result in results:
                if isinstance(result, Problem):
                    raise result.raised()

        async def produce() -> None:
            while bodies := work.next_batch():
                checked(await client.put_many(job.queue, bodies))
                work.answered()

        async def consume(slot: int) -> None:
            while not work.all_acked():
                found = await client.get(job.queue, job.batch, wait_s=WAIT_S, visibility_s=VISIBILITY_S)
                if found:
                    checked(await client.ack_many(job.queue, found))
                    work.tally.add(slot, len(found))
                    work.answered()

        made = [produce() if job.role == "put" else consume(job.first_slot + index) for index in range(job.workers)]
        await asyncio.gather(*made)


def main() -> None:
    job = msgspec.json.decode(sys.stdin.readline(), type=Job)
    work = Work(job)
    cpu_s = 0.0

    def ready() -> None:
        nonlocal cpu_s
        print("ready", flush=True)
        sys.stdin.readline()
        cpu_s = time.process_time()

    if job.peer in LANES:
        blocking(work, ready)
    else:
        import uvloop

        uvloop.run(tasks(work, ready))
    report = Report(work.ended_s, time.process_time() - cpu_s, work.calls)
    print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    main()
