"""A channel, the node's end: many calls at a time on one connection (frames: `model.frames`).

    GET /v1/channel, Upgrade: capellini-channel ──▶ 101 ──▶ frames both ways
    frame ──▶ admitted? ──▶ a task of its own ──▶ answer, when it is there; those of one turn of the loop are one write
                        └─▶ begun at once, where its route allows that: no task, if it waits for nothing

Each call goes the way that an HTTP request goes from its router on: the same gate, handlers, figures and errors.

What can go wrong, and what then happens
- A frame that is too long, or no call, or an id that is in use: told (id 0), and the channel ends after what was
  begun. A call that is wrong gets its own error, and the channel lives on.
- A frame that does not become whole in time, or whose pieces fill the memory: the same.
- Too many calls under way, or a client that does not read: nothing more is read until some are answered.
- Many reads at a time, whose answers are large, or a client that does not take them: reads have to wait their turn.
- The client goes away, or gives a call up: waits end. Anything else is finished, since half-done work helps nobody.
- The node leaves: it says so, answers what comes nevertheless, and closes when the client has, or after a moment.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import copy_context
from functools import lru_cache, partial
from typing import Any, Final

from capellini.api.exchange import MSGPACK, Request, Response
from capellini.api.holding import Application
from capellini.api.problems import problem, status_of
from capellini.api.router import Kind
from capellini.model.eager import Going, begun
from capellini.model.errors import CapelliniError, Invalid
from capellini.model.frames import GIVE_UP, LEAVING, LEAVING_ID, Answer, Call, Splitter, call_of, frame_of, send

log = logging.getLogger("capellini.api")

CALLS_MOST: Final = 4_096  # under way on one channel: long polls of a large client; then it is not read
AROUND_BYTES: Final = 4_096  # of a frame besides its body
READS_AT_ONCE: Final = 16  # of one channel; a short call may have an answer of 16 MiB, and the client need not read it
CALL_CHARS: Final = 4_096  # method and target
CALLS_KEPT: Final = 1_024  # that came lately: clients call the same few again and again
_HEADERS: Final = {b"content-type": MSGPACK, b"accept": MSGPACK}
_RETRY_AFTER: Final = b"retry-after"


@lru_cache(CALLS_KEPT)
def _parts(call: str) -> tuple[bytes, bytes, bytes]:
    """Method, path and query."""
    method, _, target = call.partition(" ")
    path, _, query = target.partition("?")
    return method.encode(), path.encode(), query.encode()


class Channel(asyncio.Protocol):
    def __init__(self, application: Application, loop: asyncio.AbstractEventLoop, transport: Any) -> None:
        self._app = application
        self._loop = loop
        self._transport = transport  # asyncio.Transport, without a cast on every use
        self.producer = ""  # whoever opened it: all its calls are theirs
        self._splitter = Splitter(application.limits.max_body + AROUND_BYTES)
        self._tasks: dict[int, asyncio.Task[Response]] = {}
        self._waits: set[int] = set()  # ids of gets: they end when nobody waits for them
        self._deaf = False  # nothing more is read from it
        self._leaving_until_s: float | None = None
        self._unread = False  # the client reads too slowly
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self._room = asyncio.Event()  # not unread, or over
        self._room.set()
        self._reading_paused = False
        self._stuck_since_s: float | None = None
        self._held = 0  # bytes of a frame that is not whole, as the gate knows them
        self._since_s = application.now_s  # of the frame that is not whole, else of being idle
        self.ended: asyncio.Future[None] = loop.create_future()

    # ---- asyncio calls

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        try:
            frames = self._splitter.feed(data)
            if frames or not self._held:
                self._since_s = self._app.now_s
                self._hold(0)  # what was held is in these frames
            for frame in frames:
                self._begin(call_of(frame))
            self._hold(self._splitter.have)
        except CapelliniError as error:
            self._give_up(error)
        self._pace()

    def _hold(self, now: int) -> None:
        """What is here of a frame counts like the body of a request, before it is one."""
        refusal = self._app.hold(now - self._held)
        if refusal is not None:
            raise refusal
        self._held = now

    def connection_lost(self, exc: Exception | None) -> None:
        self._deaf = True
        self._hold(0)
        self._room.set()
        self._app.closed(self)
        for id in tuple(self._waits):
            self._tasks[id].cancel()
        if not self._tasks:
            self._end()

    def eof_received(self) -> bool:
        """The client sends no more: what it asked for is answered, but nobody waits."""
        self._deaf = True
        for id in tuple(self._waits):
            self._tasks[id].cancel()
        return bool(self._tasks)

    def pause_writing(self) -> None:
        self._stuck_since_s = self._app.now_s
        self._unread = True
        self._room.clear()
        self._pace()

    def resume_writing(self) -> None:
        self._stuck_since_s = None
        self._unread = False
        self._room.set()
        self._pace()

    def _pace(self) -> None:
        """Reads from a client only as fast as it takes its answers."""
        pause = self._unread or len(self._tasks) >= CALLS_MOST
        if pause != self._reading_paused and not self._transport.is_closing():
            self._reading_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # ---- calls

    def _begin(self, call: Call) -> None:
        id = call.id
        if call.call == GIVE_UP:
            if id in self._waits:
                self._tasks[id].cancel()
            return
        if id <= LEAVING_ID or id in self._tasks:
            raise Invalid(f"{id} is no id for a new call: it is in use, or not above 0")
        if len(call.call) > CALL_CHARS:
            raise Invalid(f"method and target of a call have at most {CALL_CHARS} characters, not {len(call.call)}")
        request = Request()
        request.method, request.path, request.query = _parts(call.call)
        request.headers = _HEADERS
        request.peer = self.producer
        request.body = call.body
        refusal = self._app.admit(request, len(call.body))
        if refusal is not None:
            self._answer(id, request, refusal)
            return
        assert request.route is not None
        if request.route.kind is Kind.TAKE:
            self._waits.add(id)
        if request.route.at_once:
            context = copy_context()  # as a task has: what it sets is its own
            found = begun(self._app.answer(request), context)
            if not isinstance(found, Going):
                self._answer(id, request, found)
                return
            task = self._loop.create_task(found, context=context)
        elif request.route.kind in (Kind.READ, Kind.SYSTEM):
            task = self._loop.create_task(self._in_turn(request))
        else:
            task = self._loop.create_task(self._app.answer(request))
        self._tasks[id] = task
        # As a callback, since a task that is cancelled before its first step runs nothing of its own.
        task.add_done_callback(partial(self._done, id, request))

    async def _in_turn(self, request: Request) -> Response:
        async with self._turns:
            await self._room.wait()
            if self._transport.is_closing():
                raise asyncio.CancelledError  # nobody reads it
            answer = await self._app.answer(request)
            await asyncio.sleep(0)  # also one that waits for nothing keeps its turn until others could be written
            return answer

    def _done(self, id: int, request: Request, task: asyncio.Task[Response]) -> None:
        del self._tasks[id]
        self._waits.discard(id)
        self._answer(id, request, None if task.cancelled() else task.result())
        if self._reading_paused:
            self._pace()
        if self._deaf and not self._tasks:
            self._end()

    def _answer(self, id: int, request: Request, response: Response | None) -> None:
        self._app.done(request, response)
        if response is None or self._transport.is_closing():
            return
        retry_after_s: float | None = None
        for name, value in response.headers:
            if name == _RETRY_AFTER:
                retry_after_s = float(value)
        media = "" if response.content_type == MSGPACK else response.content_type.decode()
        send(Answer(id, response.status, response.body, retry_after_s, media), self._transport)

    def _give_up(self, error: CapelliniError) -> None:
        """What comes next cannot be told apart from noise."""
        log.debug("a channel ends: %s", error.says)
        status = 400 if isinstance(error, Invalid) else status_of(error)
        refusal = problem(status, error.name, error.says, packed=True)
        self._transport.write(frame_of(Answer(LEAVING_ID, refusal.status, refusal.body)))
        self._deaf = True
        self._splitter.forget()
        self._hold(0)
        if not self._tasks:
            self._end()

    def _end(self) -> None:
        if not self._transport.is_closing():
            self._transport.close()
        if not self.ended.done():
            self.ended.set_result(None)

    # ---- the server calls

    def tick(self, now_s: float) -> None:
        """Cut off what takes too long."""
        limits = self._app.limits
        if self._leaving_until_s is not None and not self._tasks and now_s > self._leaving_until_s:
            self._end()
        elif self._stuck_since_s is not None and now_s - self._stuck_since_s > limits.write_timeout_s:
            log.debug("a client did not read its answers for %g s", limits.write_timeout_s)
            self._transport.abort()
        elif self._reading_paused:  # what is missing of a frame cannot come
            self._since_s = now_s
        elif self._splitter.partial:
            allowed_s = limits.request_timeout_s + self._held / limits.least_bytes_per_s
            if now_s - self._since_s > allowed_s:
                self._give_up(Invalid(f"a frame was not complete after {allowed_s:.3g} s"))
        elif not self._tasks and now_s - self._since_s > limits.idle_timeout_s:
            self.close_soon()

    def close_soon(self) -> None:
        """Close when what was begun is answered and the client knows."""
        if self._leaving_until_s is None and not self._transport.is_closing():
            self._leaving_until_s = self._app.now_s + self._app.limits.linger_s
            self._transport.write(frame_of(LEAVING))

    def abort(self) -> None:
        self._transport.abort()
        for task in tuple(self._tasks.values()):
            task.cancel()
