"""One open extent and its one writer: chunks become blocks, blocks become durable, and are confirmed in order.

    take ─▶ waiting ─▶ block n   ─▶ store ─┐
                       block n+1 ─▶ store ─┼─▶ in order: is the lease still valid? ─▶ confirmed, into the tail
                       (up to PIPELINE)   ─┘

A block is what waits when there is room for one: group commit. Several are under way, so that the store is never
waited for; a later one that is durable first waits for the earlier ones. Each carries what was confirmed when it was
sent; when nothing follows, an empty block says it (where others read the store). While a disk makes an fsync beside the
loop, what comes gathers, and is written as one block when that is over, in time for the next fsync: sooner would be no
use, and would take the pipeline's places, so that the last would wait for a third fsync.

Where a block is a request of its own, a busy extent lets chunks gather a little, unless all who could bring one wait
already (`Crowd`): whoever puts one chunk after the other would only be slowed down.

What fails, and what then happens
- A block cannot be written: nothing after it can be confirmed, since readers stop at a gap. The writer breaks: it takes
  and confirms nothing more. What it had taken is handed back, to be appended to another extent once this one is sealed
  before it (`writing`). An answer that was lost is asked for again first: the same block once more does no harm. Not
  where every replica should confirm: one that is away would be waited for again and again.
- The disk is full: the block was surely not written. Its numbers are used again, the extent stays.
- The lease has ended, or is another incarnation's: nothing is confirmed any more. What was sent may be there: unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import msgspec

from capellini.model.chunks import NO_PRODUCER, Head
from capellini.model.errors import CapelliniError, Full, Invalid, StoreError, Unavailable, Unknown
from capellini.model.log import Appended
from capellini.queues.log.extents import Extent
from capellini.queues.log.place import LogPlace
from capellini.queues.log.rows import Block, write_block
from capellini.queues.log.tail import Tail
from capellini.queues.log.telling import name_of_puts
from capellini.queues.resting import rest
from capellini.store.interface import Level

MAX_BLOCK_BYTES: Final = 1024 * 1024  # one request of every store; a larger chunk is a block of its own
PIPELINE: Final = 4  # blocks under way: hides the store's answer time, and bounds what a sealer must look at
IDLE_S: Final = 0.05  # without a further block: then an empty one says what is confirmed
REPEATS: Final = 3  # of a block whose answer was lost; each may take a whole time-out. At level all: none
PAUSE_S: Final = 0.05  # before a repeat
RECENT: Final = 64  # confirmed chunks of a producer whose places are remembered
GATHER_S: Final = 0.045  # a busy extent sends so many blocks a second at most where each is a request: 22
GATHER_BYTES: Final = 256 * 1024  # unless so much waits
LATELY: Final = 32  # blocks
BUSY_PER_S: Final = 4_000  # messages: below, whoever puts one after the other must not wait
WEIGHT: Final = 0.3  # of the newest block in the measured rate
LEVELS: Final = {"quorum": Level.QUORUM, "all": Level.ALL}


class Item:
    """A chunk on its way. `answer` is never cancelled: who waits for it shields it."""

    __slots__ = ("answer", "chunk", "first", "head", "moves", "unsure")

    def __init__(self, chunk: bytes, head: Head, answer: asyncio.Future[Appended]) -> None:
        self.chunk, self.head, self.answer = chunk, head, answer
        self.first = -1
        self.moves = 0  # how often it was handed back
        self.unsure = False  # it may be in an extent that is not sealed yet

    def fail(self, error: CapelliniError) -> None:
        """Each caller raises an error of its own."""
        if not self.answer.done():
            self.answer.set_exception(error.again())
            self.answer.exception()  # whoever waited may be gone; then nobody asks


class Known:
    """What a writer knows of one producer: its last sequence taken here, or before this extent."""

    __slots__ = ("last", "recent", "sure")

    def __init__(self, before: int) -> None:
        self.last = before
        self.sure = before  # confirmed
        self.recent: list[Item] = []  # all that are not confirmed, and the newest of the others; a key has one


class _Flight:
    __slots__ = ("block", "error", "items", "landed")

    def __init__(self, block: Block, items: list[Item]) -> None:
        self.block, self.items = block, items
        self.landed = False
        self.error: StoreError | None = None


class Handed(msgspec.Struct, frozen=True):
    """What a broken writer gives back, in order. `sent` may be in the store, `waiting` surely is not."""

    sent: list[Item]
    waiting: list[Item]
    error: StoreError


def gather_s(alone: bool, per_s: float, since_s: float, waiting_bytes: int) -> float:
    """How long to let chunks gather before the next block, `since_s` after the last."""
    if alone or per_s < BUSY_PER_S or waiting_bytes >= GATHER_BYTES:
        return 0.0
    return max(0.0, GATHER_S - since_s)


class Crowd:
    """How many chunks wait when all who put wait: as many as any block had lately.

    Who puts at a rate of their own brings more while one waits, though, and then blocks would stay as small as the
    first one. So the first block waits, and after some that did not one does, to see who else comes.
    """

    def __init__(self) -> None:
        self._counts: deque[int] = deque(maxlen=LATELY)
        self.all = 1  # chunks
        self._early = LATELY  # blocks that did not wait since one did

    def there(self, waiting: int) -> bool:
        """Nobody else is to be waited for."""
        return waiting >= self.all and self._early < LATELY

    def sent(self, count: int, early: bool) -> None:
        """A block of so many chunks; early: it waited for nobody, though it might have."""
        self._early = self._early + 1 if early else 0
        self._counts.append(count)
        self.all = max(self._counts)


class Writer:
    """`on_broken` is called once, with what is handed back."""

    def __init__(self, place: LogPlace, extent: Extent, on_broken: Callable[[Writer, Handed], None]) -> None:
        self._place = place
        self.extent = extent
        self.tail = Tail()
        self.accepting = True
        self.broken = False
        self.over = asyncio.Event()  # sealed, or given up
        self.confirmed = 0  # the next number that is not confirmed
        self.next_number = 0
        self.bytes = 0  # taken
        self.messages = 0  # taken
        self.producers: dict[bytes, Known] = {}
        self.used_s = place.clock.elapsed_s()  # when something was last taken
        self._level = LEVELS[extent.level]
        self._on_broken = on_broken
        self._waiting: deque[Item] = deque()
        self._waiting_bytes = 0
        self._flights: deque[_Flight] = deque()
        self._blocks = 0
        self._put_ms = 0
        self._told = 0  # what the blocks in the store say is confirmed
        self._sent_s = 0.0
        self._per_s = 0.0
        self._crowd = Crowd()
        self._nudge = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending = self._idling = False

    def may_act(self) -> bool:
        """The lease is valid, and still that of the incarnation that the extent belongs to."""
        lease = self._place.lease
        return lease.valid() and lease.incarnation == self.extent.incarnation

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    # -- taking -------------------------------------------------------------------------------------------------------

    async def append(self, chunk: bytes, head: Head) -> Appended:
        """One chunk without regard to its producer. Raises Unavailable, or Unknown."""
        item = Item(chunk, head, asyncio.get_running_loop().create_future())
        self.take(item)
        return await asyncio.shield(item.answer)

    def take(self, item: Item) -> None:
        if not self.accepting:
            item.fail(Unavailable(f"extent {self.extent.name} takes nothing any more"))
            return
        self._waiting.append(item)
        self._waiting_bytes += item.head.size
        self.bytes += item.head.size
        self.messages += item.head.count
        self.used_s = self._place.clock.elapsed_s()
        self._quiet.clear()
        if self._waiting_bytes >= GATHER_BYTES or len(self._waiting) >= self._crowd.all:
            self._nudge.set()
        if not self._sending:
            self._sending = True
            self._spawn(self._send())

    def know(self, producer: bytes, before: int) -> None:
        """The producer is bound to this extent; its last sequence before."""
        if producer not in self.producers:
            self.producers[producer] = Known(before)

    def take_next(self, item: Item) -> None:
        """A chunk of a producer that is bound to this extent: once, and in order."""
        head = item.head
        known = self.producers[head.producer]
        if head.sequence == known.last + 1:
            known.last = head.sequence
            known.recent.append(item)
            while len(known.recent) > RECENT and known.recent[0].answer.done():
                del known.recent[0]
            self.take(item)
        elif head.sequence <= known.last:
            self._place.guards["chunk came again"] += 1
            for earlier in known.recent:
                if earlier.head.sequence == head.sequence:
                    earlier.answer.add_done_callback(lambda answer: _same(answer, item))
                    return
            item.answer.set_result(Appended("", -1, head.count, True))
        else:
            item.fail(Invalid(f"sequence {head.sequence} came, {known.last + 1} is next: send what is missing first"))

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        try:
            while self._waiting and not self.broken:
                if len(self._flights) >= PIPELINE or any(flight.error for flight in self._flights):
                    self._nudge.clear()
                    await self._nudge.wait()
                    continue
                if self._waiting_bytes < GATHER_BYTES and (syncing := self._place.store.syncing) is not None:
                    syncing.add_done_callback(self._synced)
                    self._nudge.clear()
                    await self._nudge.wait()
                    continue
                since_s = self._place.clock.elapsed_s() - self._sent_s
                wait_s = gather_s(self._place.store.alone, self._per_s, since_s, self._waiting_bytes)
                if wait_s > 0 and not self._crowd.there(len(self._waiting)):
                    self._nudge.clear()
                    await rest(self._place.clock, self._nudge, wait_s)
                    continue
                items = self._gathered()
                self._crowd.sent(len(items), early=wait_s > 0)
                self._launch(items)
        finally:
            self._sending = False

    def _synced(self, _: asyncio.Future[None]) -> None:
        self._nudge.set()

    def _gathered(self) -> list[Item]:
        items = [self._waiting.popleft()]
        size = items[0].head.size
        while self._waiting and size + self._waiting[0].head.size <= MAX_BLOCK_BYTES:
            items.append(self._waiting.popleft())
            size += items[-1].head.size
        self._waiting_bytes -= size
        return items

    def _launch(self, items: list[Item]) -> None:
        """An empty list: a block that only says what is confirmed."""
        first = self.next_number
        for item in items:
            item.first = self.next_number
            self.next_number += item.head.count
        self._put_ms = max(self._put_ms, self._place.now_ms())
        chunks = items[0].chunk if len(items) == 1 else b"".join([item.chunk for item in items])
        count = self.next_number - first
        block = Block(first, self._blocks, count, self.confirmed, self._put_ms, chunks)
        self._blocks += 1
        now_s = self._place.clock.elapsed_s()
        if count:
            self._per_s += WEIGHT * (count / max(now_s - self._sent_s, 0.001) - self._per_s)
            self._sent_s = now_s
        flight = _Flight(block, items)
        self._flights.append(flight)
        self._quiet.clear()
        self._spawn(self._fly(flight))

    async def _fly(self, flight: _Flight) -> None:
        place, lost = self._place, False
        for attempt in range(REPEATS + 1):
            try:
                await write_block(place, self.extent.name, flight.block, self._level)
                flight.error = None
                break
            except Unavailable as error:
                flight.error = Unknown(f"it may be there: {error.says}") if lost else error
                if not lost and (attempt or isinstance(error, Full)):
                    break  # nothing was written, twice: another extent may do better
            except Exception as error:  # whatever it was, nobody knows whether the block is there
                lost = True
                flight.error = error if isinstance(error, Unknown) else Unknown(f"it may be there: {error}")
                if self._level is Level.ALL:
                    break  # a replica is away: another extent does better than asking again
            if not self.may_act() or self.broken:
                break
            await place.clock.sleep(PAUSE_S)
        if lost and flight.error is None:
            place.guards["block written again after a lost answer"] += 1
        flight.landed = True
        self._land()

    # -- confirming ---------------------------------------------------------------------------------------------------

    def _land(self) -> None:
        """Confirm what is durable, in order."""
        if self.broken:
            return
        flights = self._flights
        while flights and flights[0].landed:
            flight = flights[0]
            if not self.may_act():
                self._place.guards["not confirmed: the lease is over"] += 1
                self.abandon()
                return
            if flight.error is not None and flight.items:
                if all(isinstance(f.error, Full) for f in flights if f.items and f.landed):
                    if all(later.landed for later in flights):
                        self._rewind()
                    break  # else it is seen what becomes of the others
                self._break(flight.error)
                return
            flights.popleft()
            if flight.error is None:
                self._confirm(flight)
        self._nudge.set()
        if not flights and not self._waiting:
            self._quiet.set()
            if not self._place.store.alone and self._told < self.confirmed and not self._idling and self.accepting:
                self._idling = True
                self._spawn(self._idle())

    def _confirm(self, flight: _Flight) -> None:
        block = flight.block
        self._told = max(self._told, block.confirmed)
        self.confirmed = block.end
        if not block.count:
            return
        name = self.extent.name
        for item in flight.items:
            head = item.head
            if head.producer != NO_PRODUCER and head.producer in self.producers:
                self.producers[head.producer].sure = head.sequence
            if not item.answer.done():
                item.answer.set_result(Appended(name, item.first, head.count))
            item.chunk = b""  # it is durable: who remembers the chunk needs its place alone
        if self._place.events.kept:
            runs = [(block.first, block.count)]
            self._place.events.put(name_of_puts(self._place, name), self._place.generation, runs)
        self.tail.add(block)

    async def _idle(self) -> None:
        """An empty block, once nothing else says what is confirmed."""
        try:
            while self.accepting and self._told < self.confirmed and self.may_act():
                sent = self._blocks
                await self._place.clock.sleep(IDLE_S)
                if sent == self._blocks and not self._flights and not self.broken and self.may_act():
                    self._launch([])
                    await self._quiet.wait()
        finally:
            self._idling = False

    # -- ending -------------------------------------------------------------------------------------------------------

    def _rewind(self) -> None:
        """Nothing of what is under way was written, and nothing will be: the same numbers again."""
        first = self._flights[0].block
        self.next_number = first.first
        self._place.guards["numbers used again: the disk was full"] += 1
        flights, waiting = list(self._flights), list(self._waiting)
        self._flights.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        for item in (*_items(flights), *waiting):
            self.bytes -= item.head.size
            self.messages -= item.head.count
            known = self.producers.get(item.head.producer)
            if known is not None:
                known.last = known.sure
                known.recent = [one for one in known.recent if one.head.sequence <= known.sure]
            item.fail(flights[0].error or Full("the disk is full"))

    def _break(self, error: StoreError) -> None:
        self._on_broken(self, self._hand_back(error))

    def _hand_back(self, error: StoreError) -> Handed:
        self.accepting, self.broken = False, True
        handed = Handed(list(_items(self._flights)), list(self._waiting), error)
        self._flights.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        self._nudge.set()
        self._quiet.set()
        return handed

    def abandon(self, why: str = "") -> None:
        """This incarnation may not act any more (its lease is lost, unless `why` says otherwise): whoever waits hears
        so, and others seal."""
        if self.broken:
            return
        why = why or f"node {self._place.node} lost its lease"
        handed = self._hand_back(Unknown(f"it may be there: {why}"))
        for item in handed.sent:
            item.fail(handed.error)
        for item in handed.waiting:
            item.fail(Unavailable(f"{why}: nothing was changed, try again"))
        self.over.set()

    async def drained(self) -> None:
        """Until nothing is under way."""
        await self._quiet.wait()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _items(flights: Iterable[_Flight]) -> Iterable[Item]:
    return (item for flight in flights for item in flight.items)


def _same(answer: asyncio.Future[Appended], item: Item) -> None:
    """A chunk that came again hears what became of the first one."""
    error = answer.exception()
    if isinstance(error, CapelliniError):
        item.fail(error)
    elif not item.answer.done():
        said = answer.result()
        item.answer.set_result(Appended(said.extent, said.first, said.count, True))
