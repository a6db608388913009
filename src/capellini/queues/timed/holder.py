"""The holder of a shard: reads it as time passes, hands its messages out, and makes durable what was finished.

    take over: read what earlier holders left ─▶ own snapshot ─▶ own row (horizon, run) ─▶ load what is unfinished
    then, again and again:
        publish the horizon ─▶ read up to it ─▶ desk ─▶ hand out ─▶ acks ─▶ record ─▶ parts that are finished dropped

It acts while its node's lease is valid, under the epoch of its assignment; everything it writes carries the epoch in
its key. When it ends, whatever it still does changes nothing: a new holder looks at its own epoch's rows only.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from uuid import UUID

from capellini.model.errors import CapelliniError, StoreError
from capellini.queues.lease import Lease
from capellini.queues.log.turns import Turns
from capellini.queues.resting import rest
from capellini.queues.timed.committing import GATHER_ITEMS, GATHER_RATE, Committing, Part
from capellini.queues.timed.desk import Desk, Message, State, size_of
from capellini.queues.timed.halting import read_halted
from capellini.queues.timed.horizon import (
    AHEAD_S,
    IDLE_ALONE_S,
    WOKEN_EVERY_S,
    Pace,
    next_step,
    write_horizon,
)
from capellini.queues.timed.judging import Judging, moved_row
from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.positions import LEAD_MS, TICKS_PER_S, UNIX_TICKS, before, part_of, ticks_of
from capellini.queues.timed.records import Known, Moving, Snapshot, packed, read_known
from capellini.queues.timed.rows import (
    PAGE_ROWS,
    TimedRow,
    drop_part,
    list_parts,
    load_rows,
    note_move,
    order_key,
    read_between,
    read_row,
    write_rows,
)
from capellini.queues.timed.telling import tell_expired, tell_held
from capellini.store.schema import TIMED_RECORDS

ROOM_ROWS: Final = 5_000  # that wait or are ready on a desk: some seconds of the highest rates
ROOM_BYTES: Final = 16 * 1024 * 1024
FIRST_ROWS: Final = 50  # of a holder's first read: it does not know yet how large they are
PAGE_BYTES: Final = 4 * 1024 * 1024  # of one read, about
TURN_ROWS: Final = 100  # of one read where that is no request: some 30 us each on the loop, while nobody else is served
TROUBLE_S: Final = 0.3  # pause after the store did not answer
STAMP_BITS: Final = 28  # of stamps per epoch; a drop's, which is a time, is above those of millions of epochs
FIRST_HORIZON: Final = UNIX_TICKS + 10  # of a shard that nobody has read: before every message

FAILED: Final = "holder failed"
log: Final = logging.getLogger("capellini.timed")

T = TypeVar("T")
Bury = Callable[["Holder", Message], Coroutine[Any, Any, None]]


class Holder:
    def __init__(self, place: TimedPlace, shard: int, epoch: int, lease: Lease, bury: Bury) -> None:
        self.place, self.shard, self.epoch = place, shard, epoch
        self.lease = lease
        self._bury = bury
        self.desk = Desk(0)
        self.read = before(0)
        self.published = self._confirmed = 0  # horizons: sent, and durable
        self._stamps = 0
        self.judging = Judging(place, Known(self.read), self.stamp)
        self.stopped = False
        self.halted = False  # by an operator
        self._halts_asked = self._halts_heard = 0
        self.ready = False  # took over
        self.changes = Turns()  # cancels and moves of one message wait for each other
        self._barred: dict[int, int] = {}
        self._woken = 0
        self._quiet = self._calm = 0
        self._stepped_s = -1e9
        self._parts: list[str] = []  # that had rows and are not dropped
        self._dropped = ""
        self.rows_at_once = FIRST_ROWS  # read: fewer, where they are large
        self._read_since = False  # something was read, and no snapshot says so
        self._nudge = asyncio.Event()
        self._loops: set[asyncio.Task[Any]] = set()  # ended when this stops
        self._tasks: set[asyncio.Task[Any]] = set()  # end by themselves, soon after
        self.committing = Committing(place, shard, epoch, lease, self._snapshot, self._worth_waiting)

    # Beginning and end

    def start(self) -> None:
        self._loop(self._work())

    def _loop(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._loops.add(task)
        task.add_done_callback(self._loop_ended)

    def _loop_ended(self, task: asyncio.Task[Any]) -> None:
        """One that fails ends this holder: the keeper gives the shard up, and somebody begins anew."""
        self._loops.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("shard %d of %s: its holder failed", self.shard, self.place.name, exc_info=error)
            self.place.guards[FAILED] += 1
            self.stop()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Work that nobody waits for: what fails is found again by the next holder."""
        task = asyncio.get_running_loop().create_task(self._quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except CapelliniError as error:
            self.place.guards["background work failed"] += 1
            if not self.stopped:
                self.place.trouble.say("work in the background failed", error)

    async def apart(self, work: Coroutine[Any, Any, T]) -> T:
        """Work for a caller: it goes on when the caller goes away."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._heard)
        return await asyncio.shield(task)

    def _heard(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may be gone

    def stop(self) -> None:
        """Hand out nothing, confirm nothing, from this moment on."""
        self.stopped = True
        self.committing.stop()
        for task in list(self._loops):
            task.cancel()

    @property
    def alive(self) -> bool:
        """It has not ended by itself."""
        return bool(self._loops)

    async def ended(self) -> None:
        await asyncio.gather(*list(self._loops), *list(self._tasks), return_exceptions=True)

    def stamp(self) -> int:
        """Of what this holder writes next on rows: above all that it, and holders before it, wrote."""
        self._stamps += 1
        return self.epoch << STAMP_BITS | self._stamps

    def acts(self) -> bool:
        return self.ready and not self.stopped and self.lease.valid()

    def begins(self) -> bool:
        """It does not act yet, but may soon: what concerns the shard for longer is for it to know."""
        return not self.ready and not self.stopped and self.lease.valid()

    async def look_halted(self) -> None:
        """What an operator says. Of looks that overlap the one that was begun last counts."""
        self._halts_asked += 1
        asked = self._halts_asked
        halted = await read_halted(self.place, self.shard)
        if asked > self._halts_heard:
            self._halts_heard, self.halted = asked, halted

    async def _work(self) -> None:
        while not self.ready:
            try:
                await self._take_over()
            except StoreError:
                await self.place.clock.sleep(TROUBLE_S)
                if not self.lease.valid():
                    return
        self._loop(self.committing.work())
        while not self.stopped and self.lease.valid():
            try:
                wait_s = await self._step()
            except StoreError:
                wait_s = TROUBLE_S
            if wait_s > 0:
                await rest(self.place.clock, self._nudge, wait_s)

    async def _take_over(self) -> None:
        place = self.place
        known, horizon = await read_known(place, self.shard, self.epoch)
        rows = await load_rows(place, list(known.open | known.moving.keys()))
        self._begin(known, rows)
        await write_horizon(place, self.shard, self.epoch, max(horizon, FIRST_HORIZON))
        self.published = self._confirmed = max(horizon, FIRST_HORIZON)
        await self.committing.begin()
        await self.look_halted()
        self._parts = []
        if ticks_of(self.read):
            first = self._dropped + "\0" if self._dropped else ""
            last = part_of(ticks_of(self.read), self._granularity) + "\0"
            self._parts = await list_parts(place, self.shard, first, last)
        await self._resume()
        if horizon:  # who put something above it meanwhile had nobody to wake
            self._woken = horizon + int(AHEAD_S * TICKS_PER_S)
        self.ready = True
        if known.said_by is not None:  # nobody reads it again: this holder's own run says all of it
            self.spawn(place.store.drop(TIMED_RECORDS, known.said_by))
        place.guards["shard taken over"] += bool(known.next_offset or horizon)
        place.woken()

    def _begin(self, known: Known, rows: dict[UUID, TimedRow]) -> None:
        self.desk = Desk(known.next_offset)
        self.judging = Judging(self.place, known, self.stamp)
        self.read, self._dropped = known.read, known.dropped
        resumed = known.moving.keys() - known.open - known.done
        for position in sorted(known.open | resumed, key=order_key):
            row = rows.get(position)
            if row is None:  # its part expired: a safety net that nobody should ever meet
                self.place.guards["unfinished row is gone"] += 1
                tell_expired(self.place, position)
                continue
            self._to_desk(row, known.moving.get(position))
            self.judging.remember(row.name)
        self.judging.ahead |= resumed  # they are on the desk before they are read again

    def _to_desk(self, row: TimedRow, moving: Moving | None = None) -> None:
        hidden_ms, deliveries = self.judging.noted(row)
        at_ms = max(self._due_ms(row), hidden_ms)
        self.desk.add(row, at_ms, deliveries, moving, at_ms - self.place.now_ms() > LEAD_MS)

    async def _resume(self) -> None:
        """Moves that were begun. Nothing is set going before all have arrived: till then this may be tried again, on
        another desk."""
        begun = [(message, message.moving) for message in self.desk.messages.values() if message.moving is not None]
        for message, moving in begun:
            if moving.position is not None:
                await self._arrive(message.row, moving.position, moving)
        for message, moving in begun:
            self.place.guards["move resumed"] += 1
            self.spawn(self._bury(self, message) if moving.position is None else self.finish(message))

    async def _arrive(self, row: TimedRow, position: UUID, moving: Moving) -> None:
        """Make sure of the row that this one was moved to, and that it is found."""
        await note_move(self.place, row, position, self.stamp())
        if await read_row(self.place, position) is None:
            await write_rows(self.place, [moved_row(row, position, moving.due_ms, moving.deliveries)], begun=True)

    async def finish(self, message: Message) -> None:
        """It is leaving; gone once that is durable."""
        part = self.committing.part()
        part.finish(message.row.position, message.row.name)
        part.then = lambda: self.desk.gone(message)
        await self.committing.commit(part)

    @property
    def _granularity(self) -> str:
        return self.place.options.granularity

    def _due_ms(self, row: TimedRow) -> int:
        """Never before its due on anybody's clock."""
        return row.due_ms + self.place.max_skew_ms

    # Reading

    def wake(self, ticks: int) -> None:
        """A putter's message at that position is due before the horizon comes. One that lies in a part that was read
        is no message: another copy is, or another id. It is there to be dropped."""
        if part_of(ticks, self._granularity) < part_of(ticks_of(self.read), self._granularity):
            self._drop_too(ticks)
        elif ticks > self._woken:
            self._woken = ticks
            self._quiet = self._calm = 0
            self._nudge.set()

    @contextmanager
    def barred(self, *positions: UUID) -> Iterator[None]:
        """The horizon stays below these meanwhile."""
        ticks = [ticks_of(position) for position in positions]
        for one in ticks:
            self._barred[one] = self._barred.get(one, 0) + 1
        try:
            yield
        finally:
            for one in ticks:
                self._barred[one] -= 1
                if not self._barred[one]:
                    del self._barred[one]
            self._nudge.set()

    async def _step(self) -> float:
        """One step; in how many seconds the next is due."""
        self._nudge.clear()
        self.roll()
        await self._drop_parts()
        if self._read_since or self.committing.put_off:
            self._read_since = not self.committing.want_snapshot()
        if self.published > self._confirmed:
            await self._publish(self.published)
            return 0.0
        if ticks_of(self.read) < self._confirmed:
            if self._full():
                return WOKEN_EVERY_S
            await self._read()
            if self.place.store.alone:  # such a store waits for nothing: others get their turn
                await self.place.clock.sleep(0)
            return 0.0
        clock = self.place.clock
        since_s = clock.elapsed_s() - self._stepped_s
        barred = min((ticks for ticks in self._barred if ticks > self._confirmed), default=None)  # others were passed
        pace = Pace(self.place.now_ticks(), self._confirmed, self._woken, since_s, self._quiet, self._calm, barred)
        if self.place.store.alone:  # not all shards at the same time
            horizon, wait_s = next_step(pace, 0.0, IDLE_ALONE_S * self.place.random.uniform(0.7, 1.0))
        else:
            horizon, wait_s = next_step(pace, WOKEN_EVERY_S)
        if not horizon:
            return wait_s
        self._stepped_s = clock.elapsed_s()
        self._quiet += 1
        self._calm += 1
        await self._publish(horizon)
        return 0.0

    def _full(self) -> bool:
        count, size = self.desk.waits
        return count >= ROOM_ROWS or size >= ROOM_BYTES or self.desk.too_much_is_out

    async def _publish(self, horizon: int) -> None:
        self.published = horizon  # from the sending on: nothing may be placed below
        await write_horizon(self.place, self.shard, self.epoch, horizon)
        self._confirmed = horizon
        self.place.saw_horizon(self.shard, horizon)

    async def _read(self) -> None:
        limit = min(self.rows_at_once, TURN_ROWS) if self.place.store.alone else self.rows_at_once
        reach = await read_between(self.place, self.shard, self.read, self._confirmed, limit)
        if reach.rows:
            self.rows_at_once = page_rows(reach.rows)
            self._read_since = True
        passed = await self.judging.prepared(reach)
        if self.stopped or passed is None:
            return
        for row in reach.rows:
            if row.position not in passed and self.judging.judge(row):
                self._to_desk(row)
        self.read = reach.to
        self.judging.forget_old(self.read)
        for part in reach.parts:
            if not self._parts or part > self._parts[-1]:
                self._parts.append(part)
        if reach.rows:
            self._quiet = 0
            self.place.woken()

    @property
    def ahead(self) -> set[UUID]:
        """Positions that are finished, or leaving, before they are read."""
        return self.judging.ahead

    # Handing out

    def roll(self) -> None:
        """What has come is ready; what was delivered too often is buried."""
        options = self.place.options
        for message in self.desk.roll(self.place.now_ms()):
            if options.delivery_limit and options.dead_letters and message.deliveries >= options.delivery_limit:
                self.desk.put_aside(message)
                self.spawn(self._bury(self, message))

    def take(self, count: int, visibility_ms: int) -> list[Message]:
        """Up to so many that are due, in flight from now on."""
        if not self.acts() or self.halted:
            return []
        self.roll()
        now_ms = self.place.now_ms()
        taken = self.desk.take(count, now_ms + visibility_ms + self.place.max_skew_ms)
        tell_held(self.place, self.place.events.delivered, taken)
        rows = [message.row for message in taken if message.deliveries == 1]
        self.place.late_ms.extend(now_ms - max(row.due_ms, row.put_ms) for row in rows)  # due before its put: at once
        again = [message for message in taken if message.deliveries > 1]
        if again:
            part = Part(None)
            part.counts = [(message.row.name, message.deliveries) for message in again]
            self.committing.submit(part)
        if self._full():
            self._nudge.set()
        return taken

    def next_ms(self) -> int | None:
        """When something can be had, or may be."""
        if not self.acts() or self.halted:
            return None
        return 0 if self.desk.ready and not self.desk.too_much_flies else self.desk.next_ms()

    def _worth_waiting(self, lately: int) -> bool:
        """Acks wait for more unless consumers fall behind: then nobody is held up for long by what is saved."""
        self.roll()
        if self.desk.ready >= GATHER_ITEMS:
            return False
        return lately >= GATHER_RATE or (self.desk.flying > 0 and not self.desk.ready)

    # Giving back

    def _snapshot(self) -> Snapshot:
        desk = self.desk
        judging, recent = self.judging, self.judging.since(self.read)
        again = [message for message in desk.messages.values() if message.deliveries]
        moving = [(m.row.position, m.moving) for m in desk.messages.values() if m.moving is not None]
        return Snapshot(
            read=self.read,
            dropped=self._dropped,
            open=packed(desk.positions() | judging.tentative),
            hidden=[*judging.hidden.items(), *((m.row.name, m.at_ms) for m in again if m.state is State.WAITING)],
            counts=[*judging.counts.items(), *((m.row.name, m.deliveries) for m in again)],
            moving=[(position, moving) for position, moving in moving if moving is not None],
            recent=packed(id for id, version in recent if version == 0),
            names=[name for name in recent if name[1]],
            next_offset=desk.next_offset,
            ahead=packed(judging.ahead - judging.tentative),
        )

    async def _drop_parts(self) -> None:
        """Parts wholly below the cursor go as they are, without looking at their rows."""
        if not self._parts:
            return
        limit = part_of(self.cursor_ticks, self._granularity)
        while self._parts and self._parts[0] < limit:
            await drop_part(self.place, self._parts[0], self.shard)
            self.place.guards["time part dropped"] += 1
            self._dropped = max(self._dropped, self._parts.pop(0))
            self._read_since = True

    def drop_with(self, position: UUID) -> None:
        """Something is written there that no reading will show: its part is to be dropped like the others."""
        self._drop_too(ticks_of(position))

    def _drop_too(self, ticks: int) -> None:
        part = part_of(ticks, self._granularity)
        if part not in self._parts:
            bisect.insort(self._parts, part)

    @property
    def cursor_ticks(self) -> int:
        """All that lies before is finished, durably: what is passed over while its cancel is written is not yet."""
        first = self.desk.first()
        unfinished = [*self.judging.tentative, *([first.row.position] if first else [])]
        return min([ticks_of(self.read), *map(ticks_of, unfinished)])


def page_rows(rows: Sequence[TimedRow]) -> int:
    """How many to read next, if they are as large as these."""
    size = sum(size_of(row) for row in rows)
    return max(1, min(PAGE_ROWS, PAGE_BYTES * len(rows) // size))
