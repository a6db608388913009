"""Gets that are asked for in the same turn of the loop share a request.

Tasks whose acks were one request go on together, and so do their gets: a client with many workers then asks its node
once for all of them, as for puts and acks. What comes is dealt out evenly; whoever got nothing waits on, in a request
shared with the others left, until its time is up.

    get, get, get ── one turn ──▶ take(3) ──▶ 2 came ──▶ 1, 1, and the third waits on
    get           ── alone    ──▶ take(1)                                  with nobody else: no task, no detour

A client whose gets came one after the other for a while does not even wait that turn: who has asked alone so often asks
alone again, and company shows by itself, since then one comes while another is under way.

A caller that leaves is not waited for; what came for it goes to the others, or back to the queue. When all have left,
the request is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

from capellini.client.reaching import Closed
from capellini.model.clock import Clock
from capellini.model.errors import CapelliniError

H = TypeVar("H")
Take = Callable[[int, float], Awaitable[list[H]]]  # count, wait_s
GiveBack = Callable[[list[H]], Awaitable[object]]
LONELY: Final = 8  # gets in a row, each after the one before was answered
SHARED_MOST: Final = 1_000  # messages that one shared request asks for; large gets gain nothing by sharing


class _Caller(Generic[H]):
    __slots__ = ("count", "future")

    def __init__(self, count: int, future: asyncio.Future[list[H]]) -> None:
        self.count = count
        self.future = future


class Gets(Generic[H]):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._joining: dict[Hashable, list[_Caller[H]]] = {}  # of this turn; the first of each waits for the others
        self._shared: set[asyncio.Task[None]] = set()
        self._under_way = self._alone = 0  # gets; those in a row that met no other
        self._returning: set[asyncio.Task[None]] = set()
        self._ahead: dict[int, tuple[deque[H], GiveBack[H]]] = {}  # by identity

    async def get(self, kind: Hashable, count: int, wait_s: float, take: Take[H], give_back: GiveBack[H]) -> list[H]:
        """Up to `count` messages. Gets of the same `kind` and `wait_s` differ in nothing but their count."""
        self._alone = 0 if self._under_way else self._alone + 1
        self._under_way += 1
        try:
            if self._alone > LONELY or not 0 < count < SHARED_MOST:
                return await take(count, wait_s)
            return await self._joined((kind, wait_s), count, wait_s, take, give_back)
        finally:
            self._under_way -= 1

    async def _joined(self, key: Hashable, count: int, wait_s: float, take: Take[H], give_back: GiveBack[H]) -> list[H]:
        future: asyncio.Future[list[H]] = asyncio.get_running_loop().create_future()
        callers = self._joining.get(key)
        if callers is None:
            callers = self._joining[key] = [_Caller(count, future)]
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                future.cancel()  # the others go on
                raise
            finally:
                del self._joining[key]
                if len(callers) > 1:
                    self._share(callers, wait_s, take, give_back)
            if len(callers) == 1:
                return await take(count, wait_s)
        else:
            callers.append(_Caller(count, future))
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None and (found := future.result()):
                self.returned(found, give_back)  # it was dealt out to who left in the same moment
            raise

    def ahead(self, give_back: GiveBack[H]) -> deque[H]:
        """For messages that are here and not handed out. What is in it goes back when it is `left`, or at the end: a
        loop that was left may hear of that only later."""
        held: deque[H] = deque()
        self._ahead[id(held)] = held, give_back
        return held

    def left(self, held: deque[H]) -> None:
        _, give_back = self._ahead.pop(id(held), (held, None))
        if held and give_back is not None:
            self.returned(list(held), give_back)
        held.clear()

    def returned(self, found: list[H], give_back: GiveBack[H]) -> None:
        """Back to the queue, soon; `close` waits for that."""

        async def back() -> None:
            with contextlib.suppress(CapelliniError):  # else they come back after their visibility
                await give_back(found)

        task = asyncio.get_running_loop().create_task(back())
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    def _share(self, callers: list[_Caller[H]], wait_s: float, take: Take[H], give_back: GiveBack[H]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(callers, wait_s, take, give_back))
        self._shared.add(task)
        task.add_done_callback(self._shared.discard)

        def left(_: object) -> None:
            if all(caller.future.cancelled() for caller in callers):
                task.cancel()

        for caller in callers:
            caller.future.add_done_callback(left)

    async def _run(self, callers: list[_Caller[H]], wait_s: float, take: Take[H], give_back: GiveBack[H]) -> None:
        until_s = self._clock.elapsed_s() + wait_s
        try:
            while callers:
                found = await take(min(SHARED_MOST, sum(caller.count for caller in callers)), wait_s)
                rest = deal([caller for caller in callers if not caller.future.done()], found)
                if rest:
                    self.returned(rest, give_back)  # apart: when the last caller leaves now, this is ended
                callers = [caller for caller in callers if not caller.future.done()]
                wait_s = until_s - self._clock.elapsed_s()
                if not found or wait_s <= 0:
                    break
            for caller in callers:
                caller.future.set_result([])
        except CapelliniError as error:
            for caller in callers:
                if not caller.future.done():
                    caller.future.set_exception(error.again())
        except BaseException as error:
            # Cancelled: by the last caller that left, or at the end of the client.
            told = error if isinstance(error, Exception) else Closed("this client is closed")
            for caller in callers:
                if not caller.future.done():
                    caller.future.set_exception(told)
            raise

    async def close(self) -> None:
        for task in tuple(self._shared):
            task.cancel()
        for held, _ in tuple(self._ahead.values()):
            self.left(held)
        if left := (*self._shared, *self._returning):
            await asyncio.wait(left)


def deal(callers: Sequence[_Caller[H]], found: list[H]) -> list[H]:
    """Gives each its share, evenly, as far as they want so many; what nobody wants is left."""
    at = 0
    for index, caller in enumerate(sorted(callers, key=lambda caller: caller.count)):
        share = min(caller.count, -(-(len(found) - at) // (len(callers) - index)))
        if share > 0:
            caller.future.set_result(found[at : at + share])
            at += share
    return found[at:]
