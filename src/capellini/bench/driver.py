"""A driver's process: producers or consumers of one queue, and nothing else. `driving` starts them.

    stdin   a Job as JSON, then an empty line: go          and so on until it is closed
    stdout  "ready", then a Report as JSON

Each worker has one batch under way at a time: a thread with a client of its own where the client blocks, a task of one
event loop where it does not. What it does is its job's role:

    put    put batches until all are put, or until the time is over
    get    get and ack until all consumers together have acked everything, or until the time is over: each counts in a
           place of its own in a shared file; producers that put for a time say in another how much it was
    first  get and ack one message
    life   put a batch, get as many, ack them, again
    pace   put at a steady rate, whatever the answers; each body says when it was meant to be sent

Consumers of paced messages note how late each came. The meant time counts, not the time of sending: a producer that
falls behind because the server does is late too.
"""

from __future__ import annotations

import asyncio
import importlib
import mmap
import random
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from capellini.bench.peers.peer import AsyncLane, Got, Lane
from capellini.bench.usage import written_bytes

BODY_BYTES: Final = 100
RANDOM_BODIES: Final = 20_000
RANDOM_BYTES: Final = 16_000_000  # no more of them than this
SLOT: Final = struct.Struct("=q")
LANES: Final = {  # by module: a driver brings along its own peer's client only
    "beanstalkd": "BeanstalkdLane",
    "capellini_log": "LogLane",
    "capellini_node": "CapelliniLane",
    "elasticmq": "ElasticmqLane",
    "embedded_litequeue": "LitequeueLane",
    "nats_jetstream": "NatsLane",
    "postgres": "PostgresLane",
    "rabbitmq": "RabbitmqLane",
    "redis_streams": "RedisLane",
}


class Job(msgspec.Struct, frozen=True):
    peer: str
    address: str
    queue: str
    role: str  # put, get, first, life or pace
    batch: int
    workers: int
    messages: int  # to put by this process; or, for consumers, all there are
    tally: str  # the shared file
    first_slot: int
    body_bytes: int = BODY_BYTES
    delay_s: float = 0.0  # of each put
    per_s: float = 0.0  # pace: of this process
    within_s: float = 0.0  # put, life, get: no longer than this; 0: until all are put, or acked
    puts: str = ""  # the file in which producers say at their end how much they put: what consumers wait for
    noting: bool = False  # get: how late each message came
    groups: tuple[str, ...] = ()  # of a queue with fan-out; the one to read for, where it gets
    incompressible: bool = False  # bodies are random bytes, each batch others


class Report(msgspec.Struct, frozen=True):
    ended_s: float  # of the last answer that mattered, on the machine's monotonic clock
    cpu_s: float
    calls: int
    messages: int = 0  # put, or got and acked
    written: int = 0  # bytes to disk, by this process itself
    late_ms: list[float] = []


def bodies_of(job: Job) -> list[bytes]:
    """What this process puts, again and again: far more random bytes than a block of any store holds."""
    if job.role not in ("put", "life"):
        return []
    if not job.incompressible:
        return [b"x" * job.body_bytes] * job.batch
    chance = random.Random(job.first_slot)
    count = max(job.batch, min(RANDOM_BODIES, RANDOM_BYTES // job.body_bytes))
    return [chance.randbytes(job.body_bytes) for _ in range(count)]


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

    def done(self, slot: int, count: int) -> None:
        """In a file of producers: this one has put so much, and ends. One more stands there, so that none is not 0."""
        self.add(slot, count + 1)

    def all_done(self) -> int | None:
        """In a file of producers: how much all have put; None while one still puts."""
        counts = self._all.unpack(self._map)
        return sum(counts) - len(counts) if all(counts) else None


class Work:
    """One process's share, whatever its workers are."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tally = Tally(Path(job.tally))
        self.puts = Tally(Path(job.puts)) if job.puts else None
        self.left = job.messages
        self.began_s = self.ended_s = 0.0
        self.calls = self.messages = 0
        self.late_ms: list[float] = []
        self._bodies = bodies_of(job)
        self._lock = threading.Lock()

    def next_batch(self) -> list[bytes]:
        with self._lock:
            if self.is_over():
                self.left = 0
            count = min(self.job.batch, self.left)
            self.left -= count
            at = self.left % len(self._bodies)
        bodies = self._bodies[at : at + count]
        return bodies + self._bodies[: count - len(bodies)]

    def paced(self, worker: int) -> Iterator[tuple[float, list[bytes]]]:
        """When to send, and what, for one of the workers."""
        for number in range(worker, self.job.messages, self.job.workers):
            meant_s = self.began_s + number / self.job.per_s
            yield meant_s, [f"{meant_s + self.job.delay_s:.6f} ".encode().ljust(self.job.body_bytes, b"x")]

    def got(self, found: Sequence[Got]) -> None:
        if self.job.noting:
            now_s = time.monotonic()
            self.late_ms.extend((now_s - float(body.partition(b" ")[0])) * 1000 for body, _ in found)
        elif any(len(body) != self.job.body_bytes for body, _ in found):
            raise RuntimeError("a body came back with another length")

    def acked(self, slot: int, found: Sequence[Got]) -> None:
        self.tally.add(slot, len(found))
        self.answered(len(found))

    def answered(self, messages: int) -> None:
        with self._lock:
            self.calls += 1
            self.messages += messages
            self.ended_s = max(self.ended_s, time.monotonic())

    def is_over(self) -> bool:
        return bool(self.job.within_s) and time.monotonic() > self.began_s + self.job.within_s

    def all_acked(self) -> bool:
        if self.puts is None:
            return self.tally.total() >= self.job.messages
        put = self.puts.all_done()
        return put is not None and self.tally.total() >= put

    def got_all(self) -> bool:
        """Whether a consumer may end."""
        return self.messages > 0 if self.job.role == "first" else self.is_over() or self.all_acked()


def blocking(work: Work, kind: type[Lane], ready: Callable[[], None]) -> None:
    """Threads, each with a lane of its own."""
    job = work.job
    lanes = [kind(job.address, job.queue, job.groups) for _ in range(job.workers)]
    ready()
    failures: list[BaseException] = []

    def work_at(index: int) -> None:
        try:
            _work(work, lanes[index], index)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work_at, args=(index,)) for index in range(job.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for lane in lanes:
        lane.close()
    if failures:
        raise failures[0]


def _work(work: Work, lane: Lane, index: int) -> None:
    job, slot = work.job, work.job.first_slot + index
    if job.role == "put":
        while bodies := work.next_batch():
            lane.put(bodies, job.delay_s)
            work.answered(len(bodies))
    elif job.role == "pace":
        for meant_s, bodies in work.paced(index):
            time.sleep(max(0.0, meant_s - time.monotonic()))
            lane.put(bodies, job.delay_s)
            work.answered(1)
    elif job.role == "life":
        while bodies := work.next_batch():
            lane.put(bodies)
            left = len(bodies)
            while left:
                left -= _get_and_ack(work, lane, slot, left)
    else:
        while not work.got_all():
            _get_and_ack(work, lane, slot, job.batch)


def _get_and_ack(work: Work, lane: Lane, slot: int, most: int) -> int:
    if found := lane.get(most):
        work.got(found)
        lane.ack([handle for _, handle in found])
        work.acked(slot, found)
    return len(found)


async def tasks(work: Work, kind: type[AsyncLane], ready: Callable[[], None]) -> None:
    """Tasks of one loop."""
    job = work.job
    gets = job.role in ("get", "life", "first")
    lanes = await kind.open(job.address, job.queue, job.workers, job.groups, gets, job.batch)
    await asyncio.to_thread(ready)  # the loop goes on: an embedded queue may be served by this process
    await asyncio.gather(*(_work_async(work, lane, index) for index, lane in enumerate(lanes)))
    for lane in lanes:
        await lane.close()


async def _work_async(work: Work, lane: AsyncLane, index: int) -> None:
    job, slot = work.job, work.job.first_slot + index
    if job.role == "put":
        while bodies := work.next_batch():
            await lane.put(bodies, job.delay_s)
            work.answered(len(bodies))
    elif job.role == "pace":
        for meant_s, bodies in work.paced(index):
            await asyncio.sleep(max(0.0, meant_s - time.monotonic()))
            await lane.put(bodies, job.delay_s)
            work.answered(1)
    elif job.role == "life":
        while bodies := work.next_batch():
            await lane.put(bodies)
            left = len(bodies)
            while left:
                left -= await _get_and_ack_async(work, lane, slot, left)
    else:
        while not work.got_all():
            await _get_and_ack_async(work, lane, slot, job.batch)


async def _get_and_ack_async(work: Work, lane: AsyncLane, slot: int, most: int) -> int:
    if found := await lane.get(most):
        work.got(found)
        await lane.ack([handle for _, handle in found])
        work.acked(slot, found)
    return len(found)


def lane_of(peer: str) -> type[Lane] | type[AsyncLane]:
    found: type[Lane] | type[AsyncLane] = getattr(importlib.import_module(f"capellini.bench.peers.{peer}"), LANES[peer])
    return found


def perform(job: Job) -> Report:
    work, kind = Work(job), lane_of(job.peer)
    cpu_s, written = 0.0, 0

    def ready() -> None:
        nonlocal cpu_s, written
        print("ready", flush=True)
        sys.stdin.readline()
        cpu_s, written, work.began_s = time.process_time(), written_bytes(), time.monotonic()

    if issubclass(kind, Lane):
        blocking(work, kind, ready)
    else:
        import uvloop

        uvloop.run(tasks(work, kind, ready))
    if work.puts is not None and job.role in ("put", "pace"):
        work.puts.done(job.first_slot, work.messages)
    spent_s, wrote = time.process_time() - cpu_s, written_bytes() - written
    return Report(work.ended_s, spent_s, work.calls, work.messages, wrote, work.late_ms)


def main() -> None:
    while line := sys.stdin.readline():
        report = perform(msgspec.json.decode(line, type=Job))
        print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    main()
