"""Fsyncs of callers that are alone: made at once, and company is noticed all the same."""

from __future__ import annotations

import asyncio

import pytest

from capellini.model.clock import RealClock
from capellini.model.errors import Unavailable, Unknown
from capellini.store.interface import Counts
from capellini.store.worker import ALONE, SyncWorker


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
        assert not worker.lonely  # in this turn somebody else would be company
        await asyncio.sleep(0)


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
