"""Writers: the open extents of this node, how they are opened, rolled and sealed.

    append ─▶ `lines`: which open extent a chunk goes to ─▶ its writer (`appending`)

An extent's life here

    open ─▶ takes ──▶ (nearly full: the next one is opened) ──▶ retired ──▶ all confirmed ──▶ sealed, end = all
                └──▶ broken: a block could not be written ──▶ sealed, end = what was confirmed; the rest is appended to
                     another one: producers notice nothing

What fails, and what then happens
- The answer to that sealing is lost: what had been sent is unknown, what was waiting was not done. The extent is sealed
  with the same end later (`turn`), and only then its producers are bound anew.
- Another node takes a chain over: it has sealed our extent and opened its own. Ours was over before: nothing that it
  has not kept was confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from capellini.model.chunks import NO_PRODUCER, Head
from capellini.model.errors import CapelliniError, Full, StoreError, TooLarge, Unavailable, Unknown
from capellini.model.log import Appended
from capellini.queues.lease import Watcher
from capellini.queues.log import sequences
from capellini.queues.log.appending import Handed, Item, Writer
from capellini.queues.log.extents import Extent, Extents, open_of
from capellini.queues.log.lines import Forward, Lines
from capellini.queues.log.opening import Opening
from capellini.queues.log.place import LogPlace
from capellini.queues.log.placing import doubt, should_move
from capellini.queues.log.sealing import find_end
from capellini.queues.log.tail import Tail
from capellini.queues.log.turns import Turn
from capellini.queues.resting import rest

AHEAD: Final = 0.9  # of its size: then the next extent is opened, so that nobody waits for it
OVERDUE: Final = 2.0  # of its size: an extent takes so much at most while the next one cannot be opened
SPLIT: Final = 16  # an extent may be so large a part of what the queue holds: some hundred extents hold terabytes
MOST_BYTES: Final = 4 * 1024 * 1024 * 1024
MAX_MOVES: Final = 3  # a chunk is handed back so often: then its store is not to be had
LEAST_AGE_S: Final = 60.0  # an extent is not sealed for its age before
MOST_AGE_S: Final = 86_400.0  # producers' rows outlive this by far
IDLE_S: Final = 300.0  # an extent that takes nothing for so long is sealed: the next put opens one
UNPLANNED_S: Final = 30.0  # the same where the puts go to other nodes
MOVE_S: Final = 10.0  # an extent at another level than asked for is looked at after: replicas come and go
ELSEWHERE_S: Final = 1.0  # who writes a chain is believed for so long; it says so itself when it does not
AWAY_S: Final = 10.0  # nothing is sent on after a node did not take it: until the leases say who lives
CLOSE_S: Final = 10.0  # what is under way may take so long to be confirmed when a node is drained

__all__ = ["Forward", "Item", "Tail", "Writer", "Writers"]


def full_bytes(asked: int, held: int, alone: bool) -> int:
    """At which size an extent is sealed. An embedded store pays for each extent that there is, so that those of a queue
    that holds much are larger."""
    return max(asked, min(held // SPLIT, MOST_BYTES)) if alone else asked


class Writers:
    """Of one place. `forward` reaches another node's."""

    def __init__(self, place: LogPlace, extents: Extents, watcher: Watcher, forward: Forward) -> None:
        self._place, self._extents = place, extents
        self._opening = Opening(place, extents, watcher)
        self._lines = Lines(place, extents, watcher, self, forward)
        self._writers: dict[str, Writer] = {}  # open, or being sealed
        self._spare: list[Writer] = []  # opened in advance
        self._had: set[str] = set()  # names that had a writer here
        self._ends: dict[str, int] = {}  # of extents that could not be sealed: what was confirmed
        self._shared: dict[str, asyncio.Task[Any]] = {}  # what several wait for
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = self._sparing = False
        self._elsewhere = ("", 0.0)  # the node that writes the chain, and until when that is believed
        self._sealed_bytes = 0
        self._full_bytes = place.options.extent_bytes
        extents.on_change.append(self._count_bytes)
        self._plan: Mapping[str, int] = {}  # open extents that nodes should have, see `scaling`
        self._living: set[str] = set()
        self.on_opened: list[Callable[[Writer], None]] = []  # a reader may want its tail

    # -- asking -------------------------------------------------------------------------------------------------------

    def writer(self, extent: str) -> Writer | None:
        return self._writers.get(extent)

    def accepting(self) -> list[Writer]:
        return [w for w in self._writers.values() if w.accepting and w not in self._spare]

    @property
    def held_bytes(self) -> int:
        """What the queue holds, as far as this node knows."""
        return self._sealed_bytes + sum(w.bytes for w in self._writers.values())

    def _count_bytes(self) -> None:
        unknown = self._place.options.extent_bytes
        self._sealed_bytes = sum(
            unknown if extent.bytes is None else extent.bytes for extent in self._extents.known() if extent.sealed
        )
        self._full_bytes = full_bytes(self._place.options.extent_bytes, self._sealed_bytes, self._place.store.alone)

    # -- appending ----------------------------------------------------------------------------------------------------

    async def append(
        self, chunk: bytes, head: Head, forwarded: bool = False, turn: Turn | None = None, limited: bool = True
    ) -> Appended:
        """One chunk that was found good. Confirmed when this returns. Raises Invalid (a sequence that is not next),
        Conflict (a producer that was silent for too long), Full, Unavailable, or Unknown: it may be there."""
        if self._closed:
            raise Unavailable(f"node {self._place.node} takes no more messages: try another node")
        if limited:
            self.require_room(head.size)
        item = Item(chunk, head, asyncio.get_running_loop().create_future())
        self._lines.add(item, forwarded)
        if turn is not None:
            turn.leave()
        return await asyncio.shield(item.answer)

    def least_busy(self) -> Writer | None:
        able = [writer for writer in self.accepting() if writer.may_act()]
        return min(able, key=lambda writer: writer.waiting_bytes) if able else None

    def take(self, writer: Writer, item: Item) -> None:
        if item.head.producer == NO_PRODUCER:
            writer.take(item)
        else:
            writer.take_next(item)
        size = self._full_bytes
        if writer.bytes >= size * AHEAD or len(writer.producers) >= sequences.MAX_PRODUCERS:
            self._roll(writer, full=writer.bytes >= size or len(writer.producers) >= sequences.MAX_PRODUCERS)

    # -- opening ------------------------------------------------------------------------------------------------------

    async def some_writer(self, here: bool) -> Writer | str:
        """An open extent here, or the node that writes: of a chain, or where there are extents enough. `here`: it was
        sent on to this node, so that this one opens one if it may. Raises StoreError."""
        self._place.lease.require()
        writer = self.least_busy()
        if writer is not None:
            return writer
        if self._place.chained:  # what is being sealed here brings the next one
            for writer in [w for w in self._writers.values() if not w.over.is_set() and w.may_act()]:
                await writer.over.wait()
            if (writer := self.least_busy()) is not None:
                return writer
        node, until_s = self._elsewhere
        if self._place.clock.elapsed_s() < until_s:
            if node:
                return node
        elif not here and not self._place.chained and (node := self._other()):
            self._place.guards["put sent on: there are extents enough"] += 1
            return node
        found = await self.once("open", self._opened)
        if isinstance(found, str):
            self._elsewhere = (found, self._place.clock.elapsed_s() + ELSEWHERE_S)
            return found
        return found if found.accepting else await self.some_writer(here)

    def turned_away(self) -> None:
        """The node that was said to write does not. Extents side by side: this one opens one of its own for now."""
        away_s = 0.0 if self._place.chained else self._place.clock.elapsed_s() + AWAY_S
        self._elsewhere = ("", away_s)

    async def _opened(self) -> Writer | str:
        if self._spare:
            return self._spare.pop()
        chained = self._place.chained
        extent = await (self._opening.chain(self._ends, self._had) if chained else self._opening.open())
        if not isinstance(extent, Extent):
            return extent
        if (writer := self._begin(extent)) is None:
            raise Unavailable("the extent that was opened is sealed again: try again", retry_after_s=0.05)
        return writer

    def _begin(self, extent: Extent) -> Writer | None:
        """None: it had its writer, which is over. The answer to its listing came late, and others of this node had
        found it on the list: a second writer would number from the start again."""
        if (writer := self._writers.get(extent.name)) is not None:
            return writer
        if extent.name in self._had:
            self._place.guards["listing heard of too late"] += 1
            return None
        self._had.add(extent.name)
        writer = self._writers[extent.name] = Writer(self._place, extent, self._broken)
        for call in self.on_opened:
            call(writer)
        return writer

    # -- sealing ------------------------------------------------------------------------------------------------------

    def _roll(self, writer: Writer, full: bool) -> None:
        """A new extent comes before the old one goes; a chain's comes with it."""
        if self._place.chained:
            if full and writer.accepting:
                self._retire(writer)
            return
        if self._spare:
            if full and writer.accepting:
                self._spare.pop()
                self._retire(writer)
        elif writer.bytes >= self._full_bytes * OVERDUE:
            self._retire(writer)  # whoever comes next waits for an opening, or hears why there is none
        elif not self._sparing:
            self._sparing = True
            self.spawn(self._spared())

    async def _spared(self) -> None:
        try:
            if (writer := self._begin(await self._opening.open())) is not None:
                self._spare.append(writer)
        except StoreError:
            self._place.guards["next extent not opened in advance"] += 1
        finally:
            self._sparing = False

    def _retire(self, writer: Writer) -> None:
        """It takes nothing more, and is sealed when all of it is confirmed."""
        if writer.accepting:
            writer.accepting = False
            self.spawn(self._finish(writer))

    async def _finish(self, writer: Writer) -> None:
        await writer.drained()
        if not writer.broken:
            await self._seal(writer)

    async def _seal(self, writer: Writer) -> bool:
        """With the end that is confirmed. False: it is not known to be sealed so."""
        name, end = writer.extent.name, writer.confirmed
        self._ends[name] = end
        last = {producer: known.sure for producer, known in writer.producers.items()}
        try:
            if not writer.may_act():
                return False
            if not await self._sealed_with(writer, end):
                return False
            self._lines.remember(name, last)
            self.spawn(self._store_last(writer, last))
            return True
        except StoreError:
            self._place.guards["own extent not sealed yet"] += 1
            return False
        finally:
            self._writers.pop(name, None)
            self._lines.forget(writer)
            writer.broken = True
            writer.over.set()

    async def _sealed_with(self, writer: Writer, end: int) -> bool:
        """Is the extent sealed with this very end, by this node while it could act?"""
        extent, place = writer.extent, self._place
        if place.chained:
            opened = await self._opening.after(extent, end, writer.bytes)
            if opened is None:
                await self._extents.look()
                return False
            self._begin(opened)
        else:
            sealed = await self._extents.seal(extent, end, writer.bytes)
            if sealed.end != end:
                return False
        self._ends.pop(extent.name, None)
        return True

    async def _store_last(self, writer: Writer, last: dict[bytes, int]) -> None:
        extent = self._extents.get(writer.extent.name)
        try:
            if extent is not None:
                await sequences.store_sequences(self._place, extent, writer.bytes, last)
        except StoreError:
            self._place.guards["sequences not stored"] += 1  # whoever needs them reads the blocks

    def _broken(self, writer: Writer, handed: Handed) -> None:
        """Called by a writer whose block could not be written. What it gives back goes in front of the lines now, so
        that nobody overtakes it; the lines go on when the extent is sealed."""
        doubt(self._place, writer.extent)
        for item in handed.sent:
            item.unsure = True
        self._lines.put_back(writer, [*handed.sent, *handed.waiting])
        self.spawn(self._seal_broken(writer, handed))

    async def _seal_broken(self, writer: Writer, handed: Handed) -> None:
        if await self._seal(writer):
            self._place.guards["sealed after a failed block"] += 1
            for item in (*handed.sent, *handed.waiting):
                item.unsure = False
                if item.moves > MAX_MOVES:
                    item.fail(Unavailable(f"nothing was changed: {handed.error.says}"))
                else:
                    self._place.guards["chunk appended again after a seal"] += 1
            return
        for item in handed.sent:
            item.fail(Unknown(f"it may be there: {handed.error.says}"))
        for item in handed.waiting:
            item.fail(Unavailable(f"nothing was changed: {handed.error.says}"))

    # -- upkeep -------------------------------------------------------------------------------------------------------

    async def turn(self) -> None:
        """About once a second, after a look at the list: seal what was left half done, what is old, and what the plan
        does not want any more."""
        place = self._place
        for writer in [w for w in self._writers.values() if not w.may_act() and not w.broken]:
            writer.abandon()
        self._forget_over()
        if not place.lease.valid() or self._closed:
            return
        await self._seal_left()
        max_age_s = min(max(min(place.options.retention_s, place.options.consumed_s), LEAST_AGE_S), MOST_AGE_S)
        for writer in self.accepting():
            if await self._should_go(writer, max_age_s):
                self._retire(writer)
        if not place.chained:
            await self._follow_plan()

    async def _should_go(self, writer: Writer, max_age_s: float) -> bool:
        """Too old, at another level than it could be, or used by nobody."""
        place = self._place
        age_s = (place.now_ms() - writer.extent.opened_ms) / 1000
        if not writer.messages or age_s <= max_age_s:
            idle_s = place.clock.elapsed_s() - writer.used_s
            enough_s = UNPLANNED_S if self._plan else IDLE_S
            if idle_s > enough_s and not place.chained and not self._plan.get(place.node):
                return True
            return bool(writer.messages) and age_s > MOVE_S and await should_move(place, writer.extent)
        return True

    def _forget_over(self) -> None:
        for name in [name for name, writer in self._writers.items() if writer.over.is_set()]:
            writer = self._writers.pop(name)
            self._lines.forget(writer)
        self._spare = [writer for writer in self._spare if writer.accepting]

    async def _seal_left(self) -> None:
        """Extents of this incarnation that nobody writes: the answer to their opening or sealing was lost."""
        place = self._place
        for extent in open_of(self._extents.known(), place.node, place.lease.incarnation):
            end = self._ends.get(extent.name)
            busy = extent.name in self._writers or "open" in self._shared or self._sparing
            if busy or (end is None and extent.name in self._had):
                continue  # it is being opened or sealed
            try:
                if place.chained:
                    await self.once("open", self._opened)
                else:
                    await self._extents.seal(extent, await find_end(place, extent) if end is None else end)
                    self._ends.pop(extent.name, None)
                place.guards["own extent sealed later"] += 1
            except StoreError:
                place.guards["own extent not sealed yet"] += 1

    def follow(self, plan: Mapping[str, int], living: set[str]) -> None:
        """What the manager wants, from the next turn on."""
        self._plan, self._living = plan, living

    async def _follow_plan(self) -> None:
        able, wanted = self.accepting(), self._plan.get(self._place.node)
        least = 1 if wanted is None else wanted
        for writer in sorted(able, key=lambda w: w.used_s)[: max(0, len(able) - least)]:
            self._retire(writer)
        if wanted is not None and len(able) < wanted:
            try:
                self._begin(await self._opening.open())
            except StoreError:
                self._place.guards["wanted extent not opened"] += 1

    def _other(self) -> str:
        """The node that puts are sent on to, where this one is to open no extent; empty: it may."""
        place = self._place
        open_now = [one for one in self._extents.known() if not one.sealed and one.home == place.home]
        wanted = self._plan.get(place.node)
        if wanted or (wanted is None and len(open_now) < place.options.extents_most):
            return ""
        nodes = {one.node for one in open_now if self._plan.get(one.node, 1)} & (self._living - {place.node})
        return place.random.choice(sorted(nodes)) if nodes else ""

    def abandon(self, why: str = "") -> None:
        """Nothing more is confirmed here under this incarnation: its lease is lost, unless `why` says otherwise."""
        for writer in list(self._writers.values()):
            writer.abandon(why)
        says = why or f"node {self._place.node} lost its lease"
        self._lines.fail_all(Unavailable(f"{says}: nothing was changed"))
        self._forget_over()

    async def close(self, seal: bool) -> None:
        """Take nothing more; confirm what is under way, and seal (a chain's end is left to who goes on)."""
        self._closed = True
        writers = list(self._writers.values())
        for writer in writers:
            if seal and not self._place.chained:
                self._retire(writer)
        done = asyncio.gather(*[writer.drained() for writer in writers], *self._tasks, return_exceptions=True)
        nudge = asyncio.Event()
        done.add_done_callback(lambda _: nudge.set())
        await rest(self._place.clock, nudge, CLOSE_S)
        self.abandon(f"node {self._place.node} stops")

    def require_room(self, size: int) -> None:
        """Raises Full; or TooLarge, for which there is no room in an empty queue either."""
        most, name = self._place.options.max_bytes, self._place.name
        if not most or self.held_bytes + size <= most:
            return
        self._place.guards["put refused: the queue is full"] += 1
        if size > most:
            raise TooLarge(f"{size} bytes are more than queue {name} may hold (max_bytes is {most}): put fewer at once")
        raise Full(f"queue {name} holds max_bytes ({most}) already: consume, or wait for its retention")

    # -- sharing ------------------------------------------------------------------------------------------------------

    async def once(self, what: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """What several want at a time is done once. Cancelling one who waits is not the others' business."""
        task = self._shared.get(what)
        if task is None:
            task = self._shared[what] = self.spawn(work())
            task.add_done_callback(lambda _: self._shared.pop(what, None))
        try:
            return await asyncio.shield(task)
        except CapelliniError as error:
            raise error.again() from error

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
