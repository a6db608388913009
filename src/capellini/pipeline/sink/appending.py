"""Chunks of a task on their way into a log queue: several at once, in order, and again from the first that is in doubt.

    put ──▶ window of WINDOW chunks ──▶ lane ──▶ confirmed, in order
                     ▲                    │
                     └── again, in order ◀┘   refused for now, lost, or the node leaves

A chunk has its producer and sequence from whoever made it: sent again it is recognised. The loop runs in a thread of
its own, so that chunks travel while Spark makes the next batch.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from capellini.client.connecting import service_of
from capellini.client.patient import Patience, PatientService
from capellini.client.streams import PutLane, PutOpening, open_put
from capellini.model.clock import RealClock
from capellini.model.errors import CapelliniError, Paused, Unavailable, Unknown
from capellini.model.log import Appended

WINDOW: Final = 8  # chunks under way: with half a megabyte each enough for any connection
PATIENCE_S: Final = 60.0  # with a node that is away; then the task fails, and Spark tries it again


class Appender:
    """One task's chunks. Use it with `with`; `put` waits only while the window is full."""

    def __init__(self, at: str, queue: str) -> None:
        self._at, self._queue = at, queue
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="capellini-sink", daemon=True)
        self._flying: deque[tuple[bytes, asyncio.Future[Appended]]] = deque()
        self._lane: PutLane | None = None
        self.put_again = 0  # messages that were there before

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._close(flush=error is None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def put(self, chunk: bytes) -> None:
        self._run(self._put(chunk))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # ---- in the loop

    async def _open(self) -> None:
        clock, chance = RealClock(), random.Random()
        self._patience = Patience(total_s=PATIENCE_S)
        self._service = PatientService(service_of(self._at), self._patience, clock, chance)
        self._opening = PutOpening(self._queue)
        self._clock, self._chance = clock, chance
        self._lane = await self._service.call("stream", lambda behind: open_put(behind, self._opening, ()))

    async def _put(self, chunk: bytes) -> None:
        while len(self._flying) >= WINDOW:
            await self._one()
        assert self._lane is not None
        self._flying.append((chunk, self._lane.append(chunk)))

    async def _one(self) -> None:
        """The first of those under way is confirmed. Raises when patience ends, or when it is refused for good."""
        try:
            self._count(await asyncio.shield(self._flying[0][1]))
            self._flying.popleft()
        except CapelliniError as error:
            await self._mend(error)

    def _count(self, appended: Appended) -> None:
        if appended.duplicate:
            self.put_again += appended.count

    async def _mend(self, error: CapelliniError) -> None:
        """All that is under way is waited for; what is not confirmed is sent once more, in order. What is refused for
        good is tried twice: the first time it may have come before the one that it follows."""
        since_s, attempt = self._clock.elapsed_s(), 0
        refused: bytes | None = None
        while True:
            await asyncio.wait([answer for _, answer in self._flying])
            _heard(self._flying)
            while self._flying and self._flying[0][1].exception() is None:
                self._count(self._flying.popleft()[1].result())
            if not self._flying:
                return
            chunk, answer = self._flying[0]
            found = answer.exception()
            error = found if isinstance(found, CapelliniError) else Unknown(f"the stream failed: {found!r}")
            if isinstance(error, Unavailable | Unknown | Paused):
                pause_s = self._patience.pause_s(attempt, error.retry_after_s, self._chance)
                if self._clock.elapsed_s() + pause_s - since_s > PATIENCE_S:
                    raise error
                await self._clock.sleep(pause_s)
                attempt += 1
            elif refused is chunk:
                raise error
            else:
                refused = chunk
            await self._again()

    async def _again(self) -> None:
        """On the same lane, or on the next; if there is none to be had, the answers stay what they are."""
        elsewhere: Sequence[str] = ()
        lane = self._lane
        if lane is None or lane.over.done():
            if lane is not None:
                elsewhere, self._lane = lane.over.result(), None
                await lane.leave()
            try:
                lane = self._lane = await open_put(self._service.behind, self._opening, elsewhere)
            except (Unavailable, Unknown):
                return
        chunks = [chunk for chunk, _ in self._flying]
        self._flying.clear()
        self._flying.extend((chunk, lane.append(chunk)) for chunk in chunks)

    async def _close(self, flush: bool) -> None:
        try:
            while flush and self._flying:
                await self._one()
        finally:
            for _, answer in self._flying:
                answer.add_done_callback(lambda done: done.cancelled() or done.exception())
            if self._lane is not None:
                await self._lane.leave()
            await self._service.close()


def _heard(flying: Iterable[tuple[bytes, asyncio.Future[Appended]]]) -> None:
    """Their answers were looked at: what is sent again must not be warned of."""
    for _, answer in flying:
        if not answer.cancelled():
            answer.exception()
