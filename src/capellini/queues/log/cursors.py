"""Cursors in the store: what a group has finished of an extent, durable in groups, one write at a time.

    log_cursors (queue, generation, extent, reader) ▸ (epoch, page)    state; page -1 is the head (`pages`)

    ack ─┐
    ack ─┼─▶ the pages that changed and the head, one batch ──durable, the lease still valid──▶ everyone is told
    skip ┘   the next group gathers meanwhile

Each owner writes under its own epoch, with timestamps that rise, so nobody overwrites anybody. A new owner reads the
highest epoch below its own that has a head, writes all of it under its own (pages first, the head last), and acts only
then: so the head of an epoch says that its pages are complete.

Whoever must know what is durable hears of each write before and after it (`settling`): ordered queues deliver the next
message of a line only then.

An ack is confirmed only if it became durable while the lease was valid by this node's clock: then a new owner, which
begins after the lease is over, sees it. Else it is unknown. A write whose answer was lost is written again, the same,
until it is known or the lease is over; then this owner is over too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from capellini.model.errors import StoreError, Unavailable, Unknown
from capellini.queues.log.pages import HEAD, Pages, next_of
from capellini.queues.log.place import LogPlace
from capellini.store.interface import Batch, Key, Slice
from capellini.store.schema import LOG_CURSORS

GATHER_S: Final = 0.01  # a group waits so long for more, where a write is a request
AGAIN_S: Final = 0.05  # after a write that failed
ROWS: Final = 64  # of one read: most extents have fewer pages
ABOVE_ALL: Final = 1 << 62  # an epoch that no owner reaches


def partition_of(place: LogPlace, extent: str, reader: str) -> Key:
    return (*place.partition, extent, reader)


class Stored(msgspec.Struct, frozen=True):
    epoch: int
    head: bytes
    pages: dict[int, bytes]

    @property
    def next(self) -> int:
        return next_of(self.head)


async def read_cursor(place: LogPlace, extent: str, reader: str, below: int = ABOVE_ALL) -> Stored | None:
    """What the last owner before that epoch has written; None: nobody has."""
    partition = partition_of(place, extent, reader)
    epoch, pages = -1, dict[int, bytes]()
    after: Key | None = None
    while True:
        end = (below,) if after is None else None
        page = await place.store.read(Slice(LOG_CURSORS, partition, end=end, after=after, limit=ROWS, reverse=True))
        for row in page.rows:
            of_epoch, number = row.key
            state = row.values.get("state", b"")
            assert isinstance(of_epoch, int) and isinstance(number, int) and isinstance(state, bytes)
            if of_epoch != epoch:
                if epoch >= 0:
                    place.guards["owner without a head passed over"] += 1
                epoch, pages = of_epoch, {}
            if number == HEAD:
                return Stored(epoch, state, pages)
            pages[number] = state
        if not page.more:
            return None
        after = page.rows[-1].key


class Cursors:
    """Of one owner. After an error it is over: nothing more is confirmed."""

    def __init__(self, place: LogPlace, extent: str, reader: str, epoch: int, pages: Pages) -> None:
        self._place = place
        self._partition = partition_of(place, extent, reader)
        self._epoch, self._pages = epoch, pages
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._stamp_us = 0
        self.settling: Callable[[], Callable[[], None] | None] = lambda: None  # before a write: what to call after it
        self.stopped = False
        self.writes = 0

    @property
    def behind(self) -> bool:
        """Is there anything that is not durable yet?"""
        return self._pages.changed or self._task is not None

    async def begin(self) -> None:
        """All of it under this epoch. Raises StoreError: then this epoch has no head, and nobody acts under it."""
        self._pages.touch()
        pages, head = self._pages.changes()
        if pages:
            await self._place.store.write(self._batch(pages))
        await self._place.store.write(self._batch([(HEAD, head)]))
        self._place.lease.require()

    def _batch(self, pages: list[tuple[int, bytes]]) -> Batch:
        self._stamp_us = max(self._stamp_us + 1, int(self._place.clock.now_s() * 1e6))
        rows = tuple(((self._epoch, number), {"state": data}) for number, data in pages)
        stamp_us = None if self._place.store.alone else self._stamp_us
        return Batch(LOG_CURSORS, self._partition, rows, timestamp_us=stamp_us, frees=True)

    async def commit(self) -> None:
        """All that the pages say now is durable when this returns. Raises Unavailable (surely not) or Unknown."""
        if self.stopped:
            raise Unavailable("this node does not read this extent any more: nothing was changed")
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._go()
        await answer

    def soon(self) -> None:
        """Nobody waits, but what changed is to be written some time."""
        if self._pages.changed and not self.stopped:
            self._go()

    def _go(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._rounds())

    async def _rounds(self) -> None:
        group: list[asyncio.Future[None]] = []
        try:
            while (self._waiting or self._pages.changed) and not self.stopped:
                if not self._place.store.alone:
                    await self._place.clock.sleep(GATHER_S)
                group, self._waiting = self._waiting, []
                await self._round(group)
        except BaseException:  # what was to be written is forgotten: another owner begins with what the store has
            self.stop()
            raise
        finally:
            self._task = None
            _tell(group, Unknown("this node stops reading this extent: it may have been done"))

    async def _round(self, group: list[asyncio.Future[None]]) -> None:
        place = self._place
        batch: Batch | None = None
        after: Callable[[], None] | None = None
        if self._pages.changed:
            after = self.settling()
            pages, head = self._pages.changes()
            batch = self._batch([*pages, (HEAD, head)])
        sent = False
        while place.lease.valid() and not self.stopped:
            try:
                if batch is not None:
                    self.writes += 1
                    await place.store.write(batch)
            except StoreError as error:
                sent = sent or isinstance(error, Unknown)
                place.guards["cursor written again"] += 1
            else:
                if place.lease.valid() and not self.stopped:
                    if after is not None:
                        after()
                    _tell(group, None)
                else:
                    place.guards["cursor durable only after the lease"] += 1
                    self.stop()
                    _tell(group, Unknown("it was written after this node's right to: it may have been done"))
                return
            await place.clock.sleep(AGAIN_S)
        place.guards["cursor not durable within the lease"] += 1
        self.stop()
        if sent:
            _tell(group, Unknown("the node's lease ended: it may have been done"))
        else:
            _tell(group, Unavailable("the node's lease ended: nothing was changed"))

    def stop(self) -> None:
        """Nothing more is confirmed."""
        self.stopped = True
        _tell(self._waiting, Unavailable("this node does not read this extent any more: nothing was changed"))
        self._waiting = []

    async def ended(self) -> None:
        """What was begun is over."""
        if self._task is not None:
            await asyncio.wait({self._task})


def _tell(group: list[asyncio.Future[None]], error: StoreError | None) -> None:
    for answer in group:
        if answer.done():
            continue
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error.again())
