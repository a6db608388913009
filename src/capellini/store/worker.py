"""Group commit: all writers that wait share one fsync.

    write ─▶ RocksDB (log written, not synced) ─▶ wait ─┐
    write ─▶ ...                               ─▶ wait ─┼─▶ one fsync ─▶ all of them go on
    write ─▶ ...                               ─▶ wait ─┘   the next group gathers meanwhile

Where the disk is quick the fsync is made on the event loop, after everything else that was ready: two changes of
thread cost more than it does. Where it is slow it is made in one thread of its own and the loop goes on.
Which of the two, the moving average of its duration decides. Who was alone the last times (`lonely`) has it made at
once, without a turn of the loop, and in the very call that writes. Company is noticed by the next one: any other task
that comes in the same turn of the loop could have shared it, so from then on fsyncs are put off for others again. One
task that writes again and again gives way when it has held the loop for as long as a slow fsync.

An fsync that failed says nothing about what reached the disk, and a second one that succeeds proves nothing about
the first. So the first failure is final: whoever waits gets Unknown, and every later call is refused until the
store is opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from capellini.model.clock import Clock
from capellini.model.errors import Full, Unavailable, Unknown
from capellini.store.interface import Counts

INLINE_BELOW_S: Final = 0.001_5  # two changes of thread cost a busy loop as much, and no request waits long for it
GATHER_TURNS: Final = 8  # of the loop, without anybody joining: from its arrival a request takes about five to get here
SLOW_TURNS: Final = 5  # the same where fsyncs are slow, all in all: what gathered during one takes three to get here
LONELY: Final = 1.2  # on average fewer than this share an fsync: then nobody is waited for
ALONE: Final = 8  # fsyncs in a row for one caller each: the next one is made at once
WEIGHT: Final = 0.1  # of the newest duration in the moving average: some ten fsyncs decide
NO_TASK: Final = object()
OUTLIER_S: Final = 0.02  # one stall of the disk counts at most so much, or it would keep us off the loop for long


class _SyncThread:
    """Makes fsyncs one after the other. Not one of concurrent.futures, which take no more work while the interpreter
    ends: the very time in which a client that was left open hands its folder over."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="capellini-sync", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def do(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """When what was asked for is done."""
        self._jobs.put(None)
        self._thread.join()


class SyncWorker:
    """Makes what was written durable, for all who wait at once."""

    def __init__(self, flush: Callable[[], None], clock: Clock, counts: Counts) -> None:
        self._flush = flush
        self._clock = clock
        self._counts = counts
        self._waiting: list[asyncio.Future[None]] = []
        self._running = False
        self._thread: _SyncThread | None = None
        self._written = 0  # batches given to RocksDB
        self._synced = 0  # of those, how many are durable
        self._shared = 1.0  # the moving average of how many share an fsync
        self._alone = 0  # fsyncs in a row that nobody shared
        self._held_by: object = None  # for whom one was made at once in this turn of the loop: a task, or NO_TASK
        self._held_s = 0.0  # since when
        self.syncing: asyncio.Future[None] | None = None  # one is being made in the thread; done when it is over
        self.average_s = 0.0
        self.failure: Unavailable | None = None

    async def wait(self) -> None:
        """Everything written before this call is durable when it returns. Raises Unknown."""
        if self.lonely:
            self.alone(self._flush)
            return
        loop = asyncio.get_running_loop()
        if self._held_by not in (None, asyncio.current_task()):
            self._alone = 0
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if not self._running:
            self._running = True
            loop.call_soon(self._gather, loop)
        await future

    @property
    def lonely(self) -> bool:
        """Whoever waits now waits alone, and would not give way to the loop."""
        if (
            self._alone < ALONE
            or self._running
            or self._shared > LONELY
            or self.average_s >= INLINE_BELOW_S
            or self.failure is not None
        ):
            return False
        if self._held_by is None:
            return True
        return self._held_by is asyncio.current_task() and self._clock.elapsed_s() - self._held_s < INLINE_BELOW_S

    def alone(self, flush: Callable[[], None]) -> None:
        """Makes it durable at once, for one who is `lonely`. `flush` may write, too. Raises Unknown."""
        if self._held_by is None:
            self._held_by, self._held_s = asyncio.current_task() or NO_TASK, self._clock.elapsed_s()
            asyncio.get_running_loop().call_soon(self._turned)
        error = self._timed_flush(flush)
        if error is not None:
            raise self.fail(error) from error
        self._counts.fsyncs += 1
        self._synced = self._written
        self._alone += 1
        self._shared += WEIGHT * (1 - self._shared)

    def _turned(self) -> None:
        self._held_by = None

    def written(self) -> None:
        """Something was written that a later fsync makes durable."""
        self._written += 1

    @property
    def clean(self) -> bool:
        """Whether everything written is durable."""
        return self._synced == self._written

    def check(self) -> None:
        """Raises Unavailable (or Full) once an fsync or a write has failed."""
        if self.failure is not None:
            raise type(self.failure)(self.failure.says)

    def fail(self, error: Exception) -> Unknown:
        """From now on nothing is written. The answer for whoever was writing."""
        if self.failure is None:
            self.failure = refusal(error)
        self._counts.unknown += 1
        return Unknown(f"it may have been written or not: {error}")

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def _gather(self, loop: asyncio.AbstractEventLoop, seen: int = 0, turns: int = 0) -> None:
        """Where several share an fsync, more may be on their way: each turn of the loop brings what has arrived a step
        nearer. Whoever is alone waits for nobody. Where fsyncs are slow, whoever misses one waits for two, so that some
        turns always pass; but no more of them, since the disk has nothing to do meanwhile."""
        joined = len(self._waiting)
        if self.average_s >= INLINE_BELOW_S:
            turns, enough = turns + 1, SLOW_TURNS
        else:
            turns, enough = 0 if joined > seen else turns + 1, GATHER_TURNS if self._shared > LONELY else 0
        if turns < enough:
            loop.call_soon(self._gather, loop, joined, turns)
        else:
            self._begin(loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        group, self._waiting = self._waiting, []
        upto = self._written
        if self.failure is not None:
            self._finish(loop, group, upto, None)
        elif self.average_s < INLINE_BELOW_S:
            self._finish(loop, group, upto, self._timed_flush(self._flush))
        else:
            self._thread = self._thread or _SyncThread()
            self.syncing = loop.create_future()
            self._thread.do(lambda: self._flush_for(loop, group, upto))

    def _flush_for(self, loop: asyncio.AbstractEventLoop, group: list[asyncio.Future[None]], upto: int) -> None:
        error = self._timed_flush(self._flush)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: then nobody waits
            loop.call_soon_threadsafe(self._finish, loop, group, upto, error)

    def _timed_flush(self, flush: Callable[[], None]) -> Exception | None:
        before_s = self._clock.elapsed_s()
        try:
            flush()
        except Exception as error:  # of any kind: whatever it is, durability is not known
            return error
        took_s = min(self._clock.elapsed_s() - before_s, OUTLIER_S)
        self.average_s += WEIGHT * (took_s - self.average_s)
        return None

    def _finish(
        self, loop: asyncio.AbstractEventLoop, group: list[asyncio.Future[None]], upto: int, error: Exception | None
    ) -> None:
        if error is not None:
            self.failure = self.failure or refusal(error)
        elif self.failure is None:
            self._counts.fsyncs += 1
            self._synced = upto
        for future in group:
            if future.done():  # its caller was cancelled
                continue
            if self.failure is None:
                future.set_result(None)
            else:
                self._counts.unknown += 1
                future.set_exception(Unknown(f"it may be durable or not: {error or self.failure.says}"))
        if (over := self.syncing) is not None:
            self.syncing = None
            over.set_result(None)
        self._shared += WEIGHT * (len(group) - self._shared)
        self._alone = self._alone + 1 if len(group) == 1 else 0
        if self._waiting:
            loop.call_soon(self._gather, loop)
        else:
            self._running = False


def refusal(error: Exception) -> Unavailable:
    """What later calls get after that error."""
    text = str(error)
    if getattr(error, "errno", None) == errno.ENOSPC or os.strerror(errno.ENOSPC) in text:
        return Full("the disk is full: make room, then start again")
    return Unavailable(f"the store stopped at an error of the disk; start again: {text}")
