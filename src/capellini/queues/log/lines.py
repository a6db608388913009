"""Lines: chunks that cannot be taken at once, and where the chunks of a producer go.

    a chunk ─▶ its producer is bound to an open extent here, or it has none ─▶ taken                   (nothing awaited)
            └▶ else it stands in its producer's line, whose one worker
                  opens an extent · binds the producer (compare-and-set) · forwards to the node that it is bound to
               and then takes all that stands there, in order

Lines keep the order of a producer's chunks whatever has to be waited for: who comes while there is a line stands at its
end, and what a broken writer hands back stands in front.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, Protocol

from capellini.model.chunks import NO_PRODUCER
from capellini.model.errors import CapelliniError, Conflict, StoreError, Unavailable, Unknown
from capellini.model.log import Appended
from capellini.queues.lease import Watcher
from capellini.queues.log import sequences
from capellini.queues.log.appending import Item, Writer
from capellini.queues.log.extents import Extent, Extents
from capellini.queues.log.place import LogPlace
from capellini.queues.log.sealing import take_over

BINDS: Final = 8  # attempts to bind a producer; each is lost only to another that did
TOGETHER: Final = 64  # chunks without a producer that are sent on to a node at a time
SENT_MOST: Final = 3  # a chunk is sent on so often
PAST: Final = 8  # sealed extents whose producers are remembered

Forward = Callable[[str, bytes], Awaitable[Appended]]  # node, chunk: `Writers.append(…, forwarded=True)` there


class Openers(Protocol):
    """The open extents of this node (`writing`)."""

    def writer(self, extent: str) -> Writer | None: ...

    def least_busy(self) -> Writer | None: ...

    async def some_writer(self, here: bool) -> Writer | str:
        """An open extent here, or the node that writes. `here`: it was sent on to this node. Raises StoreError."""
        ...

    def take(self, writer: Writer, item: Item) -> None: ...

    async def once(self, what: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any: ...

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...

    def turned_away(self) -> None:
        """The node that was said to write does not."""
        ...


class Line:
    """Chunks of one producer (or of none) that cannot be taken yet. `behind`: writers to be sealed first."""

    __slots__ = ("behind", "items")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.behind: list[Writer] = []


class Lines:
    """`forward` reaches another node's."""

    def __init__(self, place: LogPlace, extents: Extents, watcher: Watcher, openers: Openers, forward: Forward) -> None:
        self._place, self._extents, self._watcher = place, extents, watcher
        self._openers, self._forward = openers, forward
        self._bound: dict[bytes, Writer] = {}
        self._lines: dict[bytes, Line] = {}
        self._past: OrderedDict[str, dict[bytes, int]] = OrderedDict()

    # -- standing -----------------------------------------------------------------------------------------------------

    def add(self, item: Item, forwarded: bool) -> None:
        """Taken at once if it can be; else it stands in line."""
        producer = item.head.producer
        line = self._lines.get(producer)
        if line is not None:
            line.items.append(item)
            return
        writer = self._at_hand(producer)
        if writer is not None:
            self._openers.take(writer, item)
        else:
            self._stand(producer, forwarded).items.append(item)

    def _at_hand(self, producer: bytes) -> Writer | None:
        if producer == NO_PRODUCER:
            return self._openers.least_busy()
        writer = self._bound.get(producer)
        return writer if writer is not None and writer.accepting and writer.may_act() else None

    def put_back(self, writer: Writer, items: Iterable[Item]) -> None:
        """What a broken writer hands back, in order: in front, so that nobody overtakes it. The lines go on when the
        writer's extent is sealed."""
        for item in reversed(list(items)):
            item.moves += 1
            line = self._stand(item.head.producer)
            line.items.appendleft(item)
            if writer not in line.behind:
                line.behind.append(writer)

    def _stand(self, producer: bytes, forwarded: bool = False) -> Line:
        line = self._lines.get(producer)
        if line is None:
            line = self._lines[producer] = Line()
            self._openers.spawn(self._drive(producer, line, forwarded))
        return line

    def fail_all(self, error: CapelliniError) -> None:
        for line in self._lines.values():
            _fail(line, error)

    # -- going on -----------------------------------------------------------------------------------------------------

    async def _drive(self, producer: bytes, line: Line, forwarded: bool) -> None:
        try:
            while line.items or line.behind:
                if line.behind:
                    before = line.behind[0]
                    await before.over.wait()
                    line.behind.remove(before)  # others may have broken meanwhile: they are waited for as well
                    continue
                target = await self._target(producer, forwarded)
                if line.behind:
                    continue  # a writer broke meanwhile: what it handed back is settled first
                if isinstance(target, Writer):
                    while line.items and target.accepting and not line.behind:
                        item = line.items.popleft()
                        if not item.answer.done():  # else it was said what became of it
                            self._openers.take(target, item)
                elif forwarded:
                    raise Unavailable(f"node {target} writes that now: try again", retry_after_s=0.05)
                else:
                    await self._send_on(target, producer, line)
        except CapelliniError as error:
            _fail(line, error)
        except BaseException:
            _fail(line, Unavailable("this node is stopping: nothing was changed"))
            raise
        finally:
            if self._lines.get(producer) is line:
                del self._lines[producer]

    async def _send_on(self, node: str, producer: bytes, line: Line) -> None:
        """One chunk of a producer, so that the next is not there before it; what has none goes together. Raises
        StoreError."""
        loose = producer == NO_PRODUCER
        items = [line.items.popleft() for _ in range(min(TOGETHER if loose else 1, len(line.items)))]
        again = loose and not self._place.chained  # any node may take it, this one too
        sent = await asyncio.gather(*(self._sent(node, item, again) for item in items), return_exceptions=True)
        line.items.extend(item for item, result in zip(items, sent, strict=True) if result is False)
        for result in sent:
            if isinstance(result, BaseException):
                raise result

    async def _sent(self, node: str, item: Item, again: bool) -> bool:
        """Is it known what became of it? `again`: one that was not taken may go elsewhere."""
        if item.answer.done():
            return True
        try:
            answer = await self._forward(node, item.chunk)
        except CapelliniError as error:
            self._openers.turned_away()
            item.moves += 1
            if again and isinstance(error, Unavailable) and item.moves <= SENT_MOST:
                self._place.guards["put taken here: the other node did not"] += 1
                return False
            item.fail(error)
            if isinstance(error, StoreError):
                raise
        except BaseException:
            item.fail(Unknown("this node is stopping: it may have been done"))
            raise
        else:
            if not item.answer.done():
                item.answer.set_result(answer)
        return True

    # -- where to -----------------------------------------------------------------------------------------------------

    async def _target(self, producer: bytes, forwarded: bool) -> Writer | str:
        """An open extent here, or the node that has it. Raises StoreError, Conflict."""
        if producer == NO_PRODUCER:
            return await self._openers.some_writer(forwarded)
        for _ in range(BINDS):
            seen = await sequences.read_bound(self._place, producer)
            before = 0
            if seen.extent:
                found = await self._bound_at(producer, seen)
                if not isinstance(found, int):
                    return found
                before = found
            target = await self._openers.some_writer(forwarded)
            if isinstance(target, str):
                return target
            if await sequences.bind(self._place, producer, seen, target.extent.name, before):
                self._place.guards["producer bound" if not seen.extent else "producer bound again"] += 1
                if target.accepting:
                    return self._bind_here(target, producer, before)
        raise Unavailable("this producer is bound by several nodes at once: try again")

    def _bind_here(self, writer: Writer, producer: bytes, before: int) -> Writer:
        writer.know(producer, before)
        self._bound[producer] = writer
        return writer

    async def _bound_at(self, producer: bytes, seen: sequences.Bound) -> Writer | str | int:
        """Where a producer is bound: an open extent here; the node that has it; or, of a sealed one, its last
        sequence there."""
        place = self._place
        writer = self._openers.writer(seen.extent)
        if writer is not None:
            if writer.accepting and writer.may_act():
                return self._bind_here(writer, producer, seen.before)
            await writer.over.wait()
        extent = self._extents.get(seen.extent)
        if extent is None or not extent.sealed:
            await self._extents.look()
            extent = self._extents.get(seen.extent)
        if extent is None:
            raise Conflict("this producer was silent for longer than its messages are kept: begin with a new one")
        if extent.sealed:
            return max(seen.before, (await self._last_of(extent)).get(producer, 0))
        if extent.node == place.node and extent.incarnation == place.lease.incarnation:
            raise Unavailable(f"extent {extent.name} is being sealed: try again")
        if await self._watcher.is_over(extent.node, extent.incarnation):
            await self._openers.once(f"seal {extent.name}", lambda: take_over(place, self._extents, extent))
            place.guards["sealed for a producer that waits"] += 1
            return await self._bound_at(producer, seen)
        return extent.node

    def forget(self, writer: Writer) -> None:
        """It is over: nobody is bound to it here."""
        self._bound = {producer: one for producer, one in self._bound.items() if one is not writer}

    # -- what sealed extents have -------------------------------------------------------------------------------------

    async def _last_of(self, extent: Extent) -> dict[bytes, int]:
        known = self._past.get(extent.name)
        if known is None:
            _, known = await self._openers.once(f"read {extent.name}", lambda: sequences.recover(self._place, extent))
            self.remember(extent.name, known)
        return known

    def remember(self, name: str, last: dict[bytes, int]) -> None:
        """The last sequence of each producer in a sealed extent."""
        self._past[name] = last
        while len(self._past) > PAST:
            self._past.popitem(last=False)


def _fail(line: Line, error: CapelliniError) -> None:
    """What stands in a line is in no extent: it was never sent, or was sealed off; unless that seal is under way."""
    if isinstance(error, Unknown):
        error = Unavailable(f"nothing was changed: {error.says}")
    for item in line.items:
        item.fail(Unknown(f"it may be there: {error.says}") if item.unsure else error)
    line.items.clear()
