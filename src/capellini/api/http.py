"""One HTTP/1.1 connection: bytes in, requests in order to the application, one write per response.

                 ┌────────── parser (httptools) ──────────┐
    bytes ──▶ head ──▶ admitted? ──▶ body ──▶ complete ──▶ queue ──▶ the connection's task ──▶ application ──▶ write
                          └─ no: its answer takes its place in the queue; a large body is not read any more ─┘

One task lives as long as its connection and answers its requests one after the other, so that pipelined answers keep
their order and no task is made per request. A handler that never waits runs straight through.

What can go wrong, and what then happens
- The head is too large (431), malformed (400), the body too large (413, while it arrives), or what is around its
  chunks (431; trailers are read, bounded like a head, and say nothing to anybody): answered, then the
  connection is closed. Closing at once would let unread bytes reset the connection before the answer is read: so it
  lingers, deaf, for a moment.
- A request that dribbles in (slow loris) gets 408; a client that does not read its answers is cut off. One ticker of
  the server looks at all connections; there are no timers per request.
- The client goes away: a get that waits is cancelled. Anything else is finished, since half-done work helps nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

import httptools

from capellini.api.channel import Channel
from capellini.api.exchange import Request, Response
from capellini.api.heads import CONTINUE, SWITCHING, head_of, path_of, size_of, switched, wants_channel
from capellini.api.holding import Application
from capellini.api.problems import problem, response_of
from capellini.api.router import Kind
from capellini.api.websocket import wants_websocket
from capellini.model.errors import CapelliniError, Overloaded

log = logging.getLogger("capellini.api")

PIPELINED_MOST: Final = 32  # requests read ahead on one connection; then it is not read until some are answered
SWALLOW_MOST: Final = 65_536  # a refused body up to this is read and dropped, so that the connection lives on
HEADERS_MOST: Final = 256  # lines; those of one name are joined, so that many of them would cost their number squared
JOIN_MOST: Final = 65_536  # a head and a body up to this are joined into one piece


class Connection(asyncio.Protocol):
    def __init__(self, application: Application, loop: asyncio.AbstractEventLoop) -> None:
        self._app = application
        self._limits = application.limits
        self._loop = loop
        self._transport: Any = None  # asyncio.Transport, without a cast on every use
        self._peer = ""
        self._parser = httptools.HttpRequestParser(self)
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None  # the task waits here for a request
        self._writable: asyncio.Future[None] | None = None  # the task waits here while the client reads too slowly
        self._queue: deque[Request] = deque()
        self._current: Request | None = None
        # the request that is being read
        self._reading: Request | None = None
        self._in_head = False
        self._target: list[bytes] = []
        self._pieces: list[bytes] = []
        self._bounding: asyncio.Task[None] | None = None  # asks how large the body may be
        self._channel: Request | None = None  # asks for the connection to become a channel
        self._switching = False  # a request asks for the connection to become a stream
        self._more = b""  # came behind it
        self._expects: Request | None = None  # waits for "100 Continue", which has its place in the order too
        self._head_bytes = 0  # of earlier pieces than the one being parsed
        self._header_lines = 0
        self._fed = 0  # bytes of the piece being parsed
        self._body_bytes = 0
        self._around_bytes = 0  # since the last byte of a chunked body: sizes, extensions, trailers
        self._chunked = False
        self._since_s = application.now_s  # of the request being read, else of being idle
        # the connection
        self._deaf = False  # nothing more is parsed
        self._lost = False
        self._closing = False  # the server wants it closed after what was begun
        self._reading_paused = False
        self._stuck_since_s: float | None = None
        self._linger_until_s: float | None = None

    # ---- asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        if not self._app.opened(self):
            refused = Request()
            refused.refusal = response_of(Overloaded("this node has as many connections as it may: try again later"))
            self._refuse(refused)
        self._task = self._loop.create_task(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._deaf = True
        self._app.closed(self)
        self._forget_reading()
        self._end_wait()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._cancel_waiting_get()

    def eof_received(self) -> bool:
        """The client sends no more. It may still read: what it asked for is answered, but a get that waits would wait
        for nobody."""
        self._deaf = True
        self._forget_reading()
        self._cancel_waiting_get()
        if self._linger_until_s is not None or (self._current is None and not self._queue):
            return False  # closes
        self._closing = True
        return True

    def pause_writing(self) -> None:
        self._stuck_since_s = self._app.now_s
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        self._stuck_since_s = None
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return  # refused before: what comes is dropped
        self._fed = len(data)
        in_body, had = None if self._in_head else self._reading, self._body_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._deaf = True  # answered as plain HTTP, unless it is a channel or a stream
            if self._channel is not None:
                self._become_channel(self._channel, data[upgrade.args[0] :])
                return
            self._more = data[upgrade.args[0] :]
            if self._switching and not self._reading_paused and not self._lost:  # what follows is for the stream
                self._reading_paused = True
                self._transport.pause_reading()
        except httptools.HttpParserError as error:
            if not self._deaf:
                log.debug("bad request: %s", error)
                self._fail(400, "invalid", f"this is not HTTP/1.1 as it should be: {error}")
        if self._in_head and not self._deaf:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.max_head:
                self._fail(431, "too_large", f"request line and headers take at most {self._limits.max_head} bytes")
        elif in_body is not None and in_body is self._reading and self._body_bytes == had:
            self._around_bytes += len(data)
            if self._around_bytes > self._limits.max_head:
                self._fail(431, "too_large", f"trailers and the like take at most {self._limits.max_head} bytes")
        if len(self._queue) >= PIPELINED_MOST and not self._reading_paused and not self._lost:
            self._reading_paused = True
            self._transport.pause_reading()

    # ---- the parser calls

    def on_message_begin(self) -> None:
        if self._deaf:
            return
        self._reading = Request()
        self._reading.peer = self._peer
        self._in_head = True
        self._target.clear()
        self._pieces = []
        self._head_bytes = self._body_bytes = self._around_bytes = self._header_lines = 0
        self._since_s = self._app.now_s

    def on_url(self, piece: bytes) -> None:
        self._target.append(piece)

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self._reading
        if request is None or not self._in_head:  # a trailer: what was admitted by its head is not another one now
            return
        self._header_lines += 1
        if self._header_lines > HEADERS_MOST:
            self._fail(431, "too_large", f"a request has at most {HEADERS_MOST} header lines")
            return
        name = name.lower()
        if name in request.headers:
            if name == b"host":
                self._fail(400, "invalid", "a request has one Host header, not two")
                return
            value = request.headers[name] + b", " + value
        request.headers[name] = value

    def on_headers_complete(self) -> None:
        request = self._reading
        if request is None or self._deaf:
            return
        self._in_head = False
        parser, headers = self._parser, request.headers
        target = self._target[0] if len(self._target) == 1 else b"".join(self._target)
        if self._head_bytes + self._fed > self._limits.max_head and size_of(target, headers) > self._limits.max_head:
            self._fail(431, "too_large", f"request line and headers take at most {self._limits.max_head} bytes")
            return
        version = parser.get_http_version()
        request.method = parser.get_method()
        request.close = not parser.should_keep_alive() or parser.should_upgrade()
        request.keep_alive_header = not request.close and version == "1.0"
        path, _, request.query = target.partition(b"?")
        request.path = path if path.startswith(b"/") else path_of(path)
        if version not in ("1.1", "1.0"):
            self._fail(505, "invalid", f"HTTP/{version} is not spoken here: use HTTP/1.1")
        elif version == "1.1" and b"host" not in headers:
            self._fail(400, "invalid", "an HTTP/1.1 request needs a Host header")
        elif version == "1.0" and b"transfer-encoding" in headers:
            self._fail(400, "invalid", "HTTP/1.0 knows no Transfer-Encoding: send Content-Length, or use HTTP/1.1")
        elif headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            self._fail(501, "invalid", "the one transfer coding that is read here is chunked: send the body as it is")
        else:
            if version == "1.0":
                headers.pop(b"expect", None)  # it could not understand the answer
            self._admit(request)

    def _admit(self, request: Request) -> None:
        headers = request.headers
        length_text = headers.get(b"content-length")
        self._chunked = b"transfer-encoding" in headers
        length = int(length_text) if length_text is not None else None if self._chunked else 0
        if length is not None and length > self._limits.max_body:
            self._fail_body(length)
            return
        expects = headers.get(b"expect", b"").lower()
        if expects and expects != b"100-continue":
            self._fail(417, "invalid", "the one expectation that is met here is 100-continue")
            return
        request.refusal = self._app.admit(request, length)
        if request.refusal is not None:
            if expects or length is None or length > SWALLOW_MOST:
                self._refuse(request)  # its body will not be read
            return
        if expects and length != 0:
            self._expects = request
        most = self._app.most(request) if length is None or length > SWALLOW_MOST else None
        if most is None:
            self._go_on(request)
        else:
            self._bounding = self._loop.create_task(self._bound(request, length, most))

    async def _bound(self, request: Request, length: int | None, most: Coroutine[Any, Any, int]) -> None:
        """How large its body may be is known after a moment, while it arrives."""
        with contextlib.suppress(CapelliniError):  # the answer to the whole request says it
            request.most = await most
        if self._reading is not request:
            return
        if request.most is not None and max(length or 0, self._body_bytes) > request.most:
            self._fail_body(length)
        else:
            self._go_on(request)

    def _go_on(self, request: Request) -> None:
        if self._expects is request and self._current is None and not self._queue:
            self._expects = None
            self._transport.write(CONTINUE)

    def on_body(self, piece: bytes) -> None:
        request = self._reading
        if request is None or self._deaf:
            return
        self._body_bytes += len(piece)
        self._around_bytes = 0
        if request.refusal is not None:
            return
        if self._chunked:
            if self._body_bytes > (request.most or self._limits.max_body):
                self._fail_body(None)
                return
            request.refusal = self._app.grow(request, len(piece))
            if request.refusal is not None:
                self._refuse(request)
                return
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        request = self._reading
        if request is None or self._deaf:
            return
        self._reading = self._expects = None
        self._since_s = self._app.now_s
        pieces = self._pieces
        if pieces:
            request.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if request.close:
            self._deaf = True
        alone = request.refusal is None and self._current is None and not self._queue
        if alone and self._parser.should_upgrade() and wants_channel(request):
            self._channel = request
            return
        self._switching = self._parser.should_upgrade() and wants_websocket(request)
        self._enqueue(request)

    def _become_channel(self, request: Request, more: bytes) -> None:
        """From here on the connection is another protocol's; `more` has already arrived for it."""
        self._lost = True  # for this one
        self._end_wait()
        self._app.closed(self)
        self._app.done(request, Response(101))
        self._transport.write(SWITCHING)
        channel = Channel(self._app, self._loop, self._transport)
        channel.producer = request.producer
        self._app.opened(channel)
        self._transport.set_protocol(channel)
        if more:
            channel.data_received(more)

    def _become(self, request: Request, response: Response) -> None:
        """The same for what a handler made of it: a stream."""
        assert request.upgraded is not None
        self._lost = True  # for this one
        self._app.closed(self)
        self._transport.write(switched(response))
        stream = request.upgraded(self._app, self._transport)
        self._app.opened(stream)
        self._transport.set_protocol(stream)
        if self._reading_paused:
            self._transport.resume_reading()
        if self._more:
            stream.data_received(self._more)

    # ---- refusing

    def _fail_body(self, length: int | None) -> None:
        size = "more" if length is None else str(length)
        of_queue = self._reading.most if self._reading else None
        most = self._limits.max_body if of_queue is None else of_queue
        what, advice = ("request body", ": send fewer messages at a time") if of_queue is None else ("body here", "")
        says = f"a {what} has at most {most} bytes, not {size}{advice}"
        self._fail(413, "too_large", says)

    def _fail(self, status: int, name: str, says: str) -> None:
        request = self._reading or Request()
        request.refusal = problem(status, name, says)
        self._refuse(request)

    def _refuse(self, request: Request) -> None:
        """The answer is known before the request is complete: it is the last on this connection."""
        self._reading = self._expects = None
        self._in_head = False
        self._deaf = request.close = True
        self._enqueue(request)

    # ---- answering

    def _enqueue(self, request: Request) -> None:
        self._queue.append(request)
        self._end_wait()

    def _end_wait(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _forget_reading(self) -> None:
        """The rest of the request being read will not come."""
        if self._reading is not None:
            self._app.done(self._reading, None)
            self._reading = self._expects = None

    def _cancel_waiting_get(self) -> None:
        current = self._current
        if current is not None and current.route is not None and current.route.kind is Kind.TAKE and self._task:
            self._task.cancel()

    async def _serve(self) -> None:
        """The connection's life: answer what is in the queue, wait for more."""
        try:
            while not self._gone():
                if not self._queue:
                    if self._closing and self._reading is None:
                        break
                    self._wake = self._loop.create_future()
                    await self._wake
                    self._wake = None
                    continue
                request = self._current = self._queue.popleft()
                response = request.refusal or await self._app.answer(request)
                self._current = None
                self._app.done(request, response)
                if self._gone():
                    break
                if request.upgraded is not None and response.status == 101:
                    self._become(request, response)
                    return
                self._write(request, response)
                if request.close:
                    break
                self._go_on_reading()
                if self._writable is not None:
                    await self._writable
        finally:
            self._finish()

    def _gone(self) -> bool:
        return self._lost

    def _finish(self) -> None:
        for request in (self._current, *self._queue):
            if request is not None:
                self._app.done(request, None)
        self._current = None
        self._queue.clear()
        if not self._lost:
            self._linger()

    def _go_on_reading(self) -> None:
        if self._queue:
            return
        if self._reading_paused:
            self._reading_paused = False
            self._since_s = self._app.now_s
            self._transport.resume_reading()
        if self._expects is not None:
            self._expects = None
            self._transport.write(CONTINUE)
        if self._reading is None:
            self._since_s = self._app.now_s

    def _write(self, request: Request, response: Response) -> None:
        request.close = request.close or (self._closing and not self._queue and self._reading is None)
        head = head_of(request, response, self._app.common_head)
        body = b"" if request.method == b"HEAD" else response.body
        if len(body) <= JOIN_MOST:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def _linger(self) -> None:
        """Say that no more is coming, and wait a moment for the client to close."""
        self._deaf = True
        if self._transport.is_closing():
            return
        self._linger_until_s = self._app.now_s + self._limits.linger_s
        if self._reading_paused:
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    # ---- the server calls

    def tick(self, now_s: float) -> None:
        """Cut off what takes too long."""
        if self._linger_until_s is not None:
            if now_s > self._linger_until_s:
                self._transport.abort()
        elif self._stuck_since_s is not None and now_s - self._stuck_since_s > self._limits.write_timeout_s:
            log.debug("a client did not read its answer for %g s", self._limits.write_timeout_s)
            self._transport.abort()
        elif self._reading is not None:
            allowed_s = self._limits.request_timeout_s + self._body_bytes / self._limits.least_bytes_per_s
            if now_s - self._since_s > allowed_s and not self._reading_paused:
                self._fail(408, "timeout", f"the request was not complete after {allowed_s:.3g} s")
        elif self._current is None and not self._queue and now_s - self._since_s > self._limits.idle_timeout_s:
            self.close_soon()

    def close_soon(self) -> None:
        """Close when what was begun is answered."""
        self._closing = True
        self._deaf = self._deaf or self._reading is None
        self._end_wait()

    @property
    def busy(self) -> bool:
        return self._current is not None or bool(self._queue) or self._reading is not None

    @property
    def ended(self) -> asyncio.Future[None] | None:
        return self._task

    def abort(self) -> None:
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()


def connection_factory(application: Application, loop: asyncio.AbstractEventLoop) -> Callable[[], Connection]:
    return lambda: Connection(application, loop)
