"""Getting: the gets that wait in this node share claims.

    get(1) ─┐                                 ┌─▶ 1
    get(10) ┼─▶ one claim for 12 at most ─────┼─▶ 10
    get(1) ─┘   (same visibility)             └─▶ 1      what is left over (its waiter went away) is released

A wait ends at once when this node puts something or gives something back; what other nodes put is found by looking
every `POLL_S`; what is hidden is found by its time. What lies behind very many messages that nobody can have (they
expired, or wait for their time) is found by claim after claim, without a rest: each goes on where the last one ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from capellini.model.eager import begun
from capellini.model.errors import CapelliniError, StoreError
from capellini.queues.resting import rest
from capellini.queues.work.place import Gone, Place
from capellini.queues.work.reading import Reading, Taken

POLL_S: Final = 0.2  # between looks for what other nodes have put
POLL_MOST_S: Final = 0.5  # when nothing came for long
CLAIM_MOST: Final = 4_000  # messages in one claim
GO_ON_S: Final = 1.0  # a get that does not wait is looked for so long, while there is more to look through
TROUBLE_S: Final = 0.3  # pause after the store did not answer
CURRENT = Callable[[], Awaitable[None]]


class _Waiter:
    __slots__ = ("answer", "count", "deadline_s", "tried", "visibility_ms")

    def __init__(self, count: int, visibility_ms: int, deadline_s: float, answer: asyncio.Future[list[Taken]]) -> None:
        self.count = count
        self.visibility_ms = visibility_ms
        self.deadline_s = deadline_s
        self.answer = answer
        self.tried = False


class Getting:
    """`current` is awaited before each claim and raises when this generation must not be read any more (deleted,
    purged, paused)."""

    def __init__(
        self, place: Place, reading: Reading, release: Callable[[list[Taken]], None], current: CURRENT
    ) -> None:
        self._place = place
        self._reading = reading
        self._release = release
        self._current = current
        self._waiters: deque[_Waiter] = deque()
        self._serving = False
        self._task: asyncio.Task[None] | None = None  # kept, so that it is not collected while it waits
        self._wake = asyncio.Event()
        self._quiet = 0  # empty looks in a row
        place.on_visible.append(self._wake.set)

    async def get(self, count: int, wait_s: float, visibility_ms: int) -> list[Taken]:
        """At least one message, or nothing when the time is over."""
        loop = asyncio.get_running_loop()
        deadline_s = self._place.clock.elapsed_s() + wait_s
        waiter = _Waiter(count, visibility_ms, deadline_s, loop.create_future())
        self._waiters.append(waiter)
        self._wake.set()
        if not self._serving:
            self._serving = True
            work = begun(self._serve()) if self._place.store.lonely else self._serve()
            if work is not None:
                self._task = loop.create_task(work)
        try:
            taken = await waiter.answer
            if taken:
                await self._place.store.sync()
                taken = self._in_time(taken)
            return taken
        except asyncio.CancelledError:
            if waiter.answer.done() and not waiter.answer.cancelled() and waiter.answer.exception() is None:
                self._place.guards["get went away with its messages"] += 1
                self._release(waiter.answer.result())
            raise

    def _in_time(self, taken: list[Taken]) -> list[Taken]:
        """Those whose visibility has not ended meanwhile: others may have the rest by now."""
        now_s = self._place.clock.elapsed_s()
        if all(now_s < one.until_s for one in taken):
            return taken
        self._place.guards["claim came too late to be handed out"] += 1
        return [one for one in taken if now_s < one.until_s]

    def stop_waiting(self) -> None:
        """Long polls end now, with nothing: the node is going away."""
        for waiter in self._waiters:
            waiter.deadline_s = 0.0
        self._wake.set()

    async def _serve(self) -> None:
        try:
            while self._still_waiting():
                self._wake.clear()
                group = self._group()
                taken, error = await self._claimed(group)
                if taken := self._in_time(taken):
                    self._quiet = 0
                    self._hand_out(group, taken)
                    continue
                more = error is None and self._reading.more
                self._end_waits(group, error, GO_ON_S if more else 0.0)
                if self._waiters and not more:
                    await self._rest(error)
        finally:
            self._serving, self._task = False, None
            for waiter in self._waiters:  # only when this task was ended from outside
                if not waiter.answer.done():
                    waiter.answer.cancel()
            self._waiters.clear()

    def _still_waiting(self) -> bool:
        if any(waiter.answer.done() for waiter in self._waiters):
            self._waiters = deque(waiter for waiter in self._waiters if not waiter.answer.done())
        return bool(self._waiters)

    def _group(self) -> list[_Waiter]:
        """Those that want the same visibility as the one that waits longest, while one claim can serve them; it goes to
        the end of the line."""
        visibility_ms = self._waiters[0].visibility_ms
        group: list[_Waiter] = []
        wanted = 0
        for waiter in self._waiters:
            if waiter.visibility_ms == visibility_ms and wanted < CLAIM_MOST:
                group.append(waiter)
                wanted += waiter.count
        return group

    async def _claimed(self, group: list[_Waiter]) -> tuple[list[Taken], CapelliniError | None]:
        wanted = min(CLAIM_MOST, sum([waiter.count for waiter in group]))
        try:
            await self._current()
            return await self._reading.claim(wanted, group[0].visibility_ms), None
        except StoreError as error:
            return [], error
        except Exception as error:  # whatever it was, the callers hear of it
            for waiter in group:
                if not waiter.answer.done():
                    waiter.answer.set_exception(error)
            return [], error if isinstance(error, CapelliniError) else None

    def _hand_out(self, group: list[_Waiter], taken: list[Taken]) -> None:
        rest = deque(taken)
        for waiter in group:
            if waiter.answer.done():
                continue
            share: list[Taken] = []
            left = waiter.count
            while rest and left:
                one = rest.popleft()
                if one.count > left:
                    rest.appendleft(msgspec.structs.replace(one, first=one.first + left, count=one.count - left))
                    one = msgspec.structs.replace(one, count=left)
                share.append(one)
                left -= one.count
            if share:
                waiter.answer.set_result(share)
            waiter.tried = True
        if rest:
            self._place.guards["claim without a waiter released"] += 1
            self._release(list(rest))

    def _end_waits(self, group: list[_Waiter], error: CapelliniError | None, beyond_s: float) -> None:
        now_s = self._place.clock.elapsed_s()
        for waiter in group:
            waiter.tried = True
            if waiter.deadline_s + beyond_s <= now_s and not waiter.answer.done():
                if error is not None:
                    waiter.answer.set_exception(error)
                else:
                    waiter.answer.set_result([])
        self._still_waiting()
        if self._waiters and len(group) < len(self._waiters):
            visibility_ms = group[0].visibility_ms
            others = [waiter for waiter in self._waiters if waiter.visibility_ms != visibility_ms]
            same = [waiter for waiter in self._waiters if waiter.visibility_ms == visibility_ms]
            self._waiters = deque([*others, *same])

    async def _rest(self, error: CapelliniError | None) -> None:
        """Until something may be there: woken, something is due, somebody's time is over, or it is time to look
        again."""
        place = self._place
        if any(not waiter.tried for waiter in self._waiters):
            return
        if error is not None and not isinstance(error, Gone):
            pause_s = place.random.uniform(TROUBLE_S / 2, TROUBLE_S)
        else:
            self._quiet += 1
            pause_s = min(POLL_MOST_S, POLL_S * (1 + self._quiet / 20))
            due_s = (self._reading.next_due_ms() - place.now_ms()) / 1000 + 0.001
            pause_s = min(pause_s, max(due_s, 0.01))
        now_s = place.clock.elapsed_s()
        first_s = min(waiter.deadline_s for waiter in self._waiters)
        pause_s = min(pause_s, max(0.0, first_s - now_s) + 0.001)
        await rest(place.clock, self._wake, pause_s)
