"""Fsyncs of callers that are alone: made at once, and company is noticed all the same. And those of slow disks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from capellini.model.clock import RealClock
from capellini.model.errors import Unavailable, Unknown
from capellini.store.interface import Counts
from capellini.store.worker import ALONE, INLINE_BELOW_S, SyncWorker


class Disk:
    def __init__(self) -> None:
        self.flushes = 0
        self.broken = False

    def flush(self) -> None:
        if self.broken:
            raise OSError(5, "Input/output error")
        self.flushes += 1


async def alone(disk: Disk) -> SyncWorker:
    """A worker whose callers came one after the other for a while."""
    worker = SyncWorker(disk.flush, RealClock(), Counts())
    for _ in range(ALONE):
        assert not worker.lonely  # not yet
        worker.written()
        await worker.wait()
    assert worker.lonely and worker.clean
    return worker


async def test_who_is_alone_waits_for_no_turn_of_the_loop() -> None:
    disk = Disk()
    worker = await alone(disk)
    before = disk.flushes
    worker.written()
    with pytest.raises(StopIteration):  # over with its first step
        worker.wait().send(None)
    assert disk.flushes == before + 1 and worker.clean


async def test_who_comes_in_its_own_turn_stays_alone() -> None:
    disk = Disk()
    worker = await alone(disk)
    for _ in range(100):
        assert worker.lonely
        await worker.wait()
        assert worker.lonely  # one task after itself is no company
        await asyncio.sleep(0)
        _, lonely = await asyncio.gather(worker.wait(), asks(worker))
        assert not lonely  # in one turn somebody else is


async def asks(worker: SyncWorker) -> bool:
    return worker.lonely


async def test_one_task_alone_gives_way_when_it_held_the_loop_for_long() -> None:
    class Clock(RealClock):
        def elapsed_s(self) -> float:
            return now_s

    now_s = 0.0
    disk = Disk()
    worker = SyncWorker(disk.flush, Clock(), Counts())
    for _ in range(ALONE):
        await worker.wait()
    turns: list[None] = []

    def turned() -> None:
        turns.append(None)
        loop.call_soon(turned)

    loop = asyncio.get_running_loop()
    loop.call_soon(turned)
    for _ in range(10):
        await worker.wait()
    assert not turns  # all in one turn
    now_s += INLINE_BELOW_S
    await worker.wait()
    assert 0 < len(turns) <= 3
    held = len(turns)
    for _ in range(10):
        await worker.wait()
    assert len(turns) == held and disk.flushes == ALONE + 21  # still alone: others had their turn, and nobody came


async def test_company_in_one_turn_is_noticed_at_once() -> None:
    disk = Disk()
    worker = await alone(disk)
    before = disk.flushes
    await asyncio.gather(*(worker.wait() for _ in range(5)))
    assert disk.flushes == before + 2  # the first alone, the others together
    before = disk.flushes
    await asyncio.gather(*(worker.wait() for _ in range(5)))
    assert disk.flushes == before + 1 and not worker.lonely


async def test_a_failure_is_final_for_one_alone_too() -> None:
    disk = Disk()
    worker = await alone(disk)
    disk.broken = True
    worker.written()
    with pytest.raises(Unknown):
        await worker.wait()
    disk.broken = False
    with pytest.raises(Unknown):
        await worker.wait()
    with pytest.raises(Unavailable):
        worker.check()
    assert not worker.clean


class SlowDisk(Disk):
    """Each fsync waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Semaphore(0)

    def flush(self) -> None:
        self.go.acquire()
        super().flush()


def slow(disk: SlowDisk) -> SyncWorker:
    worker = SyncWorker(disk.flush, RealClock(), Counts())
    worker.average_s = 100 * INLINE_BELOW_S
    return worker


async def begun(worker: SyncWorker) -> asyncio.Future[None]:
    while worker.syncing is None:
        await asyncio.sleep(0)
    return worker.syncing


async def test_an_fsync_beside_the_loop_says_that_it_is_under_way_and_when_it_is_over() -> None:
    disk = SlowDisk()
    worker = slow(disk)
    assert worker.syncing is None
    first = asyncio.create_task(worker.wait())
    syncing = await begun(worker)
    worker.written()
    second = asyncio.create_task(worker.wait())
    disk.go.release()
    await syncing
    await first
    assert not worker.clean and not second.done()  # it came too late for that one
    disk.go.release()
    await second
    assert worker.clean and worker.syncing is None and disk.flushes == 2
    worker.close()


async def test_one_that_failed_beside_the_loop_is_over_too() -> None:
    disk = SlowDisk()
    worker = slow(disk)
    disk.broken = True
    waiting = asyncio.create_task(worker.wait())
    syncing = await begun(worker)
    disk.go.release()
    await syncing
    assert worker.syncing is None
    with pytest.raises(Unknown):
        await waiting
    worker.close()


async def test_on_a_slow_disk_company_is_waited_for_though_nobody_came_lately() -> None:
    disk = SlowDisk()
    worker = slow(disk)
    disk.go.release()
    first = asyncio.create_task(worker.wait())
    for _ in range(4):
        await asyncio.sleep(0)
    await asyncio.gather(first, worker.wait())
    assert disk.flushes == 1
    worker.close()
