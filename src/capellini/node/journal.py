"""The journal as a node writes it: events in columns, appended to a log queue of the nodes' own about once a second.

    emit ──▶ JournalSink: gathered ──▶ (a second, or SHEET_EVENTS) ──▶ a sheet ──▶ waits
                                                                                    └─▶ Journaling: one after the other
                                                                                        appended, as one message each

Emitting never waits and never fails. Sheets are chunks of one producer with a sequence, so that one whose answer was
lost is sent again and is there once. The queue is `capellini.journal`; the first sheet makes it, with OPTIONS, which
may be changed like those of any queue.

    the end   queues give back what they have ──▶ the closing record ──▶ the last sheets are appended, the extent sealed
              ──▶ the lease is given back

What fails, and what then happens
- The store is away, the disk or the journal is full: sheets wait, MOST_BYTES of them; what happens beyond that is
  dropped, counted, and said once a minute; its numbers are missing.
- The node is killed: it takes its last second along, and leaves no closing record.
- The journal was deleted or purged, or the producer forgotten: sheets go on under a new producer. One of them may then
  be there twice, which harms no reader: numbers are numbers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from capellini.model import chunks
from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError, NotFound, Paused, StoreError, TooLarge
from capellini.model.options import JOURNAL, OFF
from capellini.node.background import Background
from capellini.queues.catalog import Catalog, QueueRecord
from capellini.queues.events import Kind, Run, Who
from capellini.queues.journal import Gathering
from capellini.queues.log.keeper import LogKeeper
from capellini.queues.resting import rest

SHEET_EVENTS: Final = 4_096  # turned into columns within a millisecond
SHEET_BYTES: Final = 256 * 1024  # of their ids and further runs
MOST_BYTES: Final = 16 * 1024 * 1024  # of sheets that wait: minutes of a busy node
FLUSH_S: Final = 1.0  # what a node that is killed takes with it
AGAIN_S: Final = 1.0  # after a sheet was refused
SAY_DROPPED_S: Final = 60.0  # a journal that stays away must not fill the log
STOP_S: Final = 3.0  # at the end: the lease must not be kept for the journal's sake
OPTIONS: Final[dict[str, Any]] = {
    "journal": OFF,
    "retention_s": 604_800.0,
    "consumed_s": 86_400.0,
    "max_bytes": 1 << 30,  # beyond it the oldest go
    "extent_bytes": 16 * 1024 * 1024,
    "extents_most": 1,
    "body_limit": 1 << 20,  # a sheet is smaller than what was gathered, but for its names
}
log: Final = logging.getLogger("capellini.journal")


class JournalFigures(msgspec.Struct, frozen=True):
    """Since the node was started."""

    events: int  # in sheets that were appended
    dropped: int
    bytes: int  # of sheets that were appended
    waiting_bytes: int


class JournalSink:
    """Where events become sheets. `soon` is set when one should not wait for its second."""

    def __init__(self, sheet_events: int = SHEET_EVENTS, most_bytes: int = MOST_BYTES) -> None:
        self._sheet_events, self._sheet_bytes, self._most_bytes = sheet_events, SHEET_BYTES, most_bytes
        self._gathering = Gathering()
        self._who = Who("", "")
        self._first = 0  # number of the first event that is gathered
        self.waiting: deque[tuple[bytes, int]] = deque()  # sheets, and how many events each has
        self.waiting_bytes = 0
        self.dropped = 0
        self.soon = asyncio.Event()

    def add(
        self,
        who: Who,
        number: int,
        at: float,
        kind: Kind,
        queue: str,
        generation: int,
        runs: Sequence[Run],
        version: int,
        detail: str,
        ids: Sequence[str],
    ) -> None:
        gathering = self._gathering
        if kind is Kind.CLOSED and number == 1:
            return  # nothing happened, so that nothing can be missing
        if self.waiting_bytes >= self._most_bytes and kind is not Kind.CLOSED:  # that one is small, and says much
            self._drop()
            return
        if not gathering.events:
            self._who, self._first = who, number
        try:
            gathering.add(at, kind, queue, generation, runs, version, detail, ids)
        except (ValueError, OverflowError):
            log.error("an event of %s could not be told: its ids are none", queue, exc_info=True)
            self._drop()
            return
        if gathering.events >= self._sheet_events or gathering.more >= self._sheet_bytes:
            self.flush()
            self.soon.set()

    def _drop(self) -> None:
        """A number that will be missing: a sheet's numbers follow each other, so the one before it ends here."""
        self.dropped += 1
        self.flush()

    def flush(self) -> None:
        if self._gathering.events:
            count = self._gathering.events
            sheet = self._gathering.taken(self._who, self._first)
            self.waiting.append((sheet, count))
            self.waiting_bytes += len(sheet)

    def close(self) -> None:
        self.flush()

    def appended(self) -> tuple[int, int]:
        """The first of those that wait is done with; its events and bytes."""
        sheet, count = self.waiting.popleft()
        self.waiting_bytes -= len(sheet)
        return count, len(sheet)


class Journaling:
    """Carries sheets to the journal queue, beside the serving."""

    def __init__(
        self,
        sink: JournalSink,
        catalog: Catalog,
        keeper: LogKeeper,
        clock: Clock,
        random: Chance,
        stop_s: float = STOP_S,
    ) -> None:
        self._sink, self._catalog, self._keeper = sink, catalog, keeper
        self._clock, self._random, self._stop_s = clock, random, stop_s
        self._producer, self._sequence = b"", 0
        self._events = self._bytes = 0
        self._refused = False
        self._said, self._say_again_s = 0, clock.elapsed_s()  # events that were dropped, as was said
        self._turn = asyncio.Lock()  # sheets go one after the other
        self._background = Background(self._turns)

    @property
    def figures(self) -> JournalFigures:
        return JournalFigures(self._events, self._sink.dropped, self._bytes, self._sink.waiting_bytes)

    def start(self) -> None:
        self._background.start()

    async def flush(self) -> bool:
        """Append what was told up to now. False: it waits, since the store does not take it."""
        self._sink.flush()
        async with self._turn:
            appended = await self._append_all()
        self._say_dropped()
        return appended

    def _say_dropped(self) -> None:
        now_s = self._clock.elapsed_s()
        if self._sink.dropped > self._said and now_s >= self._say_again_s:
            self._said, self._say_again_s = self._sink.dropped, now_s + SAY_DROPPED_S
            log.warning("%d events were dropped since the start: they are not in the journal", self._said)

    async def rest(self) -> None:
        """Nothing is appended any more but by `flush`."""
        await self._background.stop()

    async def finish(self) -> None:
        """All that waits is appended, the closing record too, if the store takes it in time. Raises nothing."""
        await self.rest()
        try:
            async with asyncio.timeout(self._stop_s):
                while not await self.flush():
                    await self._clock.sleep(AGAIN_S / 4)
        except TimeoutError:
            lost = sum(count for _, count in self._sink.waiting)
            self._sink.dropped += lost
            log.warning("the last %d events of this node are not in the journal: the store did not take them", lost)

    async def _turns(self) -> None:
        while True:
            await rest(self._clock, self._sink.soon, FLUSH_S)
            self._sink.soon.clear()
            if not await self.flush():
                await self._clock.sleep(AGAIN_S)

    async def _append_all(self) -> bool:
        """False: some wait for better times."""
        while self._sink.waiting:
            sheet, _ = self._sink.waiting[0]
            try:
                taken = await self._append(sheet)
            except CapelliniError as error:
                if not self._refused:
                    log.warning("the journal waits: %s", error.says)
                self._refused = True
                return False
            if self._refused:
                log.info("the journal goes on; %d events were dropped since the start", self._sink.dropped)
            self._refused = False
            count, size = self._sink.appended()
            if taken:
                self._events += count
                self._bytes += size
        return True

    async def _append(self, sheet: bytes) -> bool:
        """False: the queue will never take it. Raises CapelliniError: it is not there, or not known to be."""
        queue = self._keeper.queue(await self._record())
        if not self._producer:
            self._producer, self._sequence = self._random.randbytes(16), 0
        try:
            await queue.append(chunks.pack([sheet], None, self._producer, self._sequence + 1))
        except (StoreError, Paused):
            raise
        except TooLarge as error:
            log.error("a sheet of the journal is lost: %s", error.says)
            self._sink.dropped += self._sink.waiting[0][1]
        except CapelliniError:
            self._producer = b""  # forgotten, or of a generation that is over: begin again
            raise
        else:
            self._sequence += 1
            return True
        return False

    async def _record(self) -> QueueRecord:
        try:
            return await self._catalog.live(JOURNAL)
        except NotFound:
            self._producer = b""
            return await self._catalog.create(JOURNAL, "log", OPTIONS)
