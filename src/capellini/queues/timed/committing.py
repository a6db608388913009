"""Committing: what a holder has finished is made durable in groups, one write at a time.

    ack ─┐
    ack ─┼─▶ waiting ──▶ one record (epoch, run, seq) ──durable, the lease still valid──▶ everyone is told
    nack ┘   the next group gathers meanwhile, and a little longer when more is about to come

An ack is confirmed only if its record became durable while the lease was valid by this node's clock: then a new holder,
which begins after the lease is over, sees it. Else it is unknown. A record whose answer was lost is written again, the
same, until it is known or the lease is over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final
from uuid import UUID

from capellini.model.errors import StoreError, Unavailable, Unknown
from capellini.queues.lease import Lease
from capellini.queues.timed.horizon import write_run
from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.records import Change, Moving, Name, Noted, Snapshot, packed, partition_of, write_record
from capellini.store.schema import TIMED_RECORDS

GATHER_S: Final = 0.25  # a group waits so long for more, where a write is a request: of 100 acks a second 25 in one
GATHER_LOOK_S: Final = 0.02  # between two looks whether waiting is still worth while
GATHER_RATE: Final = 20  # acks in the last second, below which nothing more is expected within the wait
GATHER_ITEMS: Final = 100  # with so many a request costs little per message: what one put brings to a shard
AGAIN_S: Final = 0.05  # after a write that failed
SNAPSHOT_EVERY_S: Final = 20.0  # of a shard in which something was read; far less than keys are remembered for
SNAPSHOT_SHARE: Final = 1  # changes grow to so many times a snapshot's size before the next: twice the least, at most


class Part:
    """What one caller wants to be durable. `then` is done on the desk in the instant in which it is: a snapshot that is
    taken right after must not say otherwise."""

    __slots__ = ("answer", "counts", "done", "hidden", "moving", "names", "stays", "then")

    def __init__(self, answer: asyncio.Future[None] | None) -> None:
        self.answer = answer
        self.then: Callable[[], None] | None = None
        self.done: list[UUID] = []
        self.names: list[Name] = []
        self.hidden: list[Noted] = []
        self.counts: list[Noted] = []
        self.moving: list[tuple[UUID, Moving]] = []
        self.stays: list[UUID] = []

    def finish(self, position: UUID, name: Name) -> None:
        self.done.append(position)
        if name != (position, 0):
            self.names.append(name)


class Committing:
    """`worth_waiting(acks in the last second)`: are more to be expected, and does nobody need to be told at once?"""

    def __init__(
        self,
        place: TimedPlace,
        shard: int,
        epoch: int,
        lease: Lease,
        snapshot: Callable[[], Snapshot],
        worth_waiting: Callable[[int], bool],
    ) -> None:
        self._place, self._shard, self._epoch = place, shard, epoch
        self._lease = lease
        self._snapshot = snapshot
        self._worth_waiting = worth_waiting
        self._lately: deque[tuple[float, int]] = deque()  # when how many came in, over the last second
        self._waiting: list[Part] = []
        self._items = 0
        self._nudge = asyncio.Event()
        self._run = self._tried = 0
        self._seq = 0
        self._bytes = self._snapshot_bytes = 0
        self._wanted = False
        self.put_off = False  # a snapshot was not written: there must be one, though nothing more is read
        self._leftover: set[int] = set()  # runs that nobody will read, and that may be in the store
        self._snapshot_s = 0.0
        self.stopped = False
        self.records = 0

    def part(self) -> Part:
        """One whose answer somebody waits for."""
        return Part(asyncio.get_running_loop().create_future())

    def submit(self, part: Part) -> None:
        if self.stopped:
            _tell([part], Unavailable("this node does not hold the shard any more: nothing was changed"))
            return
        self._waiting.append(part)
        items = len(part.done) + len(part.hidden) + len(part.moving)
        self._items += items
        self._lately.append((self._place.clock.elapsed_s(), items))
        self._nudge.set()

    async def commit(self, part: Part) -> None:
        """Durable when this returns. Raises Unavailable (surely not) or Unknown."""
        self.submit(part)
        assert part.answer is not None
        await part.answer

    def want_snapshot(self) -> bool:
        """A new holder need not read again what was read. False: not yet."""
        if self._place.clock.elapsed_s() - self._snapshot_s < SNAPSHOT_EVERY_S:
            return False
        self._wanted, self.put_off = True, False
        self._nudge.set()
        return True

    async def begin(self) -> None:
        """The first snapshot, and the shard's row that names its run: before anything is confirmed."""
        await self._write_snapshot()

    async def work(self) -> None:
        while not self.stopped:
            if not self._waiting and not self._wanted:
                self._nudge.clear()
                await self._nudge.wait()
                continue
            if self._wanted:
                await self._next_run()
                continue
            await self._gather()
            await self._write_waiting()
            least = max(self._place.snapshot_bytes, SNAPSHOT_SHARE * self._snapshot_bytes)
            if self._bytes > least and not self.stopped:
                await self._next_run()

    async def _write_waiting(self) -> None:
        """Apart from `work`, which waits: what was finished, bodies and all, is not held by it until more comes."""
        group, self._waiting, self._items = self._waiting, [], 0
        try:
            await self._write(group)
        except asyncio.CancelledError:
            self._place.guards["not durable within the lease"] += 1
            _tell(group, Unknown("this node stops holding the shard: it may have been done"))
            raise

    async def _gather(self) -> None:
        """Worth while only where a write is a request, and when more is about to come."""
        clock = self._place.clock
        end_s = clock.elapsed_s() + GATHER_S
        while (
            not self._place.store.alone
            and not self.stopped
            and self._items < GATHER_ITEMS
            and clock.elapsed_s() < end_s
            and self._worth_waiting(self._in_the_last_second())
        ):
            await clock.sleep(GATHER_LOOK_S)

    def _in_the_last_second(self) -> int:
        since_s = self._place.clock.elapsed_s() - 1.0
        while self._lately and self._lately[0][0] < since_s:
            self._lately.popleft()
        return sum(items for _, items in self._lately)

    async def _write(self, group: list[Part]) -> None:
        change = Change(packed(position for part in group for position in part.done))
        for part in group:
            change.names += part.names
            change.hidden += part.hidden
            change.counts += part.counts
            change.moving += part.moving
            change.stays += part.stays
        seq = self._seq + 1
        sent = False
        while self._lease.valid() and not self.stopped:
            try:
                await write_record(self._place, self._shard, self._epoch, self._run, seq, change)
            except StoreError as error:
                sent = sent or isinstance(error, Unknown)
            else:
                self._seq = seq
                self.records += 1
                self._bytes += len(change.done) + 24 * (len(change.hidden) + len(change.counts) + len(change.moving))
                if self._lease.valid():
                    self._done(group)
                else:
                    self._place.guards["durable only after the lease"] += 1
                    _tell(group, Unknown("it was written after the node's lease was over: it may have been done"))
                return
            await self._place.clock.sleep(AGAIN_S)
        self._place.guards["not durable within the lease"] += 1
        if sent:
            _tell(group, Unknown("the node's lease ended: it may have been done"))
        else:
            _tell(group, Unavailable("the node's lease ended: nothing was changed"))

    def _done(self, group: list[Part]) -> None:
        for part in group:
            if part.then is not None:
                part.then()
        _tell(group, None)

    async def _next_run(self) -> None:
        before, self._wanted = self._run, False
        try:
            await self._write_snapshot()
        except StoreError:
            self._place.guards["snapshot put off"] += 1
            self.put_off = True
            return
        self._leftover.add(before)
        for run in sorted(self._leftover):
            try:
                await self._place.store.drop(TIMED_RECORDS, partition_of(self._place, self._shard, self._epoch, run))
            except StoreError:
                return  # with the next one
            self._leftover.discard(run)

    async def _write_snapshot(self) -> None:
        """Nothing is written into either run meanwhile. When it fails the run before goes on, unless the shard's row
        may name the new one already: then that is finished first."""
        snapshot = self._snapshot()
        self._tried += 1  # a number of its own: what an earlier attempt wrote may still land
        run = self._tried
        try:
            await write_record(self._place, self._shard, self._epoch, run, 0, snapshot)
        except StoreError:
            self._leftover.add(run)
            raise
        while True:
            try:
                await write_run(self._place, self._shard, self._epoch, run)
                break
            except StoreError:
                if not self._lease.valid() or self.stopped:
                    self.stopped = True
                    raise
            await self._place.clock.sleep(AGAIN_S)
        self._run, self._seq, self._bytes = run, 0, 0
        self._snapshot_s = self._place.clock.elapsed_s()
        self._snapshot_bytes = len(snapshot.open) + len(snapshot.recent)

    def stop(self) -> None:
        """Nothing more is confirmed."""
        self.stopped = True
        _tell(self._waiting, Unavailable("this node does not hold the shard any more: nothing was changed"))
        self._waiting = []
        self._nudge.set()


def _tell(group: list[Part], error: StoreError | None) -> None:
    for part in group:
        if part.answer is None or part.answer.done():
            continue
        if error is None:
            part.answer.set_result(None)
        else:
            part.answer.set_exception(error.again())
