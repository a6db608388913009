"""A lean HTTP/1.1 client for one node: a pool of kept-alive connections on asyncio.Protocol and httptools.

Where the node takes it, all requests share one channel (`client.channel`); otherwise they go as HTTP, one request at
a time per connection; the connection used last is used first, so that a quiet client keeps few of
them. What matters to the layers above is whether a failed request may have been done, and the errors say exactly
that:

    Unreachable   nothing was sent: no connection could be had. Nothing was changed.
    Lost          it was sent, wholly or in part, and no whole answer came: it may have been done.

A server may close a kept-alive connection in the very moment a request is sent on it. Such a request is Lost like
any other; connections that lay idle for long are not used again, so that this stays rare.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, cast

import httptools

from capellini.client.channel import Channel, connected, open_channel
from capellini.client.reaching import MSGPACK, Home, Lost, Place, Response, Unreachable
from capellini.model.producers import HEADER

CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 30.0  # longer than a node gives a store call, shorter than a person's patience
IDLE_S: Final = 20.0  # below the keep-alive time of nodes and of the usual proxies (60 s)
MAX_CONNECTIONS: Final = 64  # more requests wait their turn; long polls hold a connection each


class _Connection(asyncio.Protocol):
    """One connection. `answer` is the future of the request under way, or None while idle."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[Response] | None = None
        self.usable = False
        self.idle_since_s = 0.0
        self._start()

    def _start(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: list[bytes] = []
        self._content_type = ""
        self._retry_after_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has its methods, but is no subclass
        self.usable = True

    def send(self, head: bytes, body: bytes, answer: asyncio.Future[Response]) -> None:
        assert self.transport is not None and self.answer is None
        self.answer = answer
        # One segment while small: joining is cheaper than a second system call.
        if len(body) < 65_536:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def data_received(self, data: bytes) -> None:
        if self.answer is None:
            self.close()  # nobody asked: this connection is out of step
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the answer is not HTTP ({error})")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection ended before the answer{f' ({error})' if error else ''}")

    def _fail(self, says: str) -> None:
        self.close()
        answer, self.answer = self.answer, None
        if answer is not None and not answer.done():
            answer.set_exception(Lost(f"{says}: it may have been done", retry_after_s=0.0))

    def close(self) -> None:
        self.usable = False
        if self.transport is not None:
            self.transport.close()

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"content-type":
            self._content_type = value.partition(b";")[0].strip().decode("latin-1").lower()
        elif lower == b"retry-after":
            self._retry_after_s = _seconds(value)

    def on_body(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # an interim answer, such as 100 Continue
            return
        if not self._parser.should_keep_alive():
            self.usable = False
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        answer, self.answer = self.answer, None
        if answer is not None and not answer.done():
            answer.set_result(Response(status, body, self._content_type, self._retry_after_s))
        self._chunks = []
        self._content_type = ""
        self._retry_after_s = None


def _heard(opening: asyncio.Task[Channel | None]) -> None:
    """All who waited for it may have left: then nobody else asks how it ended."""
    if not opening.cancelled():
        opening.exception()


def _seconds(value: bytes) -> float | None:
    """Retry-After in seconds; its other form, a date, says nothing to a client whose clock may differ."""
    try:
        return max(0.0, float(value))
    except ValueError:
        return None


class Transport:
    """Requests to one place. Safe for any number of tasks of one event loop."""

    def __init__(
        self,
        place: Place,
        *,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int = MAX_CONNECTIONS,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        headers: dict[str, str] | None = None,
        channel: bool = False,
    ) -> None:
        """`channel`: all calls on one connection, where the node takes that."""
        self.place = place
        self._ssl = (ssl_context or ssl.create_default_context()) if place.secure else None
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        lines = [f"accept: {MSGPACK}"]
        lines.append(f"{HEADER}: {secrets.token_hex(8)}")  # a transport is a client's: producers are told apart by it
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header is one line")
        self._lines = ("\r\n".join(lines) + "\r\n").encode("latin-1")
        self._common = self.headers_for(place)
        self._idle: list[_Connection] = []
        self._free = max_connections
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._all: set[_Connection] = set()
        self._closed = False
        self._home = Home()
        self._may_channel = channel
        self._channel: Channel | None = None
        self._opening: asyncio.Task[Channel | None] | None = None

    def headers_for(self, place: Place) -> bytes:
        """The header lines of a request to a node there, without the empty one."""
        host = "localhost" if place.unix else f"[{place.host}]" if ":" in place.host else place.host
        return (f"host: {host}:{place.port}\r\n" if place.port else f"host: {host}\r\n").encode("latin-1") + self._lines

    def ssl_for(self, place: Place) -> ssl.SSLContext | None:
        return self._ssl if place.secure else None

    async def request(
        self, method: str, path: str, body: bytes | None = None, *, content_type: str = MSGPACK, wait_s: float = 0.0
    ) -> Response:
        """One request and its answer, whatever its status. `wait_s`: how much longer than usual the answer may take.

        Raises Unreachable (surely not done) or Lost (may have been done).
        """
        self._home.check()
        if self._may_channel and content_type == MSGPACK:
            channel = self._channel
            if channel is None or not channel.fit(IDLE_S):
                channel = await self._reopened()
            if channel is not None:
                found = await channel.ask(f"{method} {path}", body or b"", self._request_timeout_s + wait_s)
                return Response(found.status, found.body, found.media or MSGPACK, found.retry_after_s)
        connection = await self._connection()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Response] = loop.create_future()
        head = b"%b %b HTTP/1.1\r\n%b" % (method.encode(), path.encode("ascii"), self._common)
        if body is None:
            head += b"\r\n"
        else:
            head += b"content-type: %b\r\ncontent-length: %d\r\n\r\n" % (content_type.encode(), len(body))
        seconds = self._request_timeout_s + wait_s
        timer = loop.call_later(seconds, connection._fail, f"no answer within {seconds:g} s")
        try:
            connection.send(head, body or b"", answer)
            return await answer
        finally:
            timer.cancel()
            self._release(connection)

    async def _reopened(self) -> Channel | None:
        """A new channel, opened once for all who wait for it; None where the node takes none."""
        if self._closed:
            raise Unreachable("this client is closed")
        opening = self._opening
        if opening is None:
            opening = self._opening = asyncio.get_running_loop().create_task(self._open())
            opening.add_done_callback(_heard)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if opening.cancelled() and caller is not None and not caller.cancelling():
                raise Unreachable("this client is closed") from None
            raise

    async def _open(self) -> Channel | None:
        try:
            if self._channel is not None:
                self._channel.leave()
            async with self.reaching():
                self._channel = await open_channel(self.place, self._ssl, self._common)
            if self._channel is None:
                self._may_channel = False  # an older node, or a proxy that upgrades nothing
            return self._channel
        finally:
            self._opening = None

    @asynccontextmanager
    async def reaching(self, place: Place | None = None) -> AsyncIterator[None]:
        """What fails in here failed before anything was asked."""
        place = place or self.place
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                yield
        except TimeoutError:
            says = f"no connection to {place} within {self._connect_timeout_s:g} s"
            raise Unreachable(says, retry_after_s=0.0) from None
        except OSError as error:  # refused, no such host, no such socket, a certificate that does not match
            raise Unreachable(f"no connection to {place}: {error}", retry_after_s=0.0) from error

    async def _connection(self) -> _Connection:
        """A connection that is surely ours alone: an idle one, or a new one when the pool allows, or after a wait."""
        if self._closed:
            raise Unreachable("this client is closed")
        while self._free == 0:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake()  # the turn was given to a task that is leaving: pass it on
                raise
            if self._closed:
                raise Unreachable("this client is closed")
        self._free -= 1
        oldest_s = time.monotonic() - IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since_s >= oldest_s:
                return connection
            connection.close()
            self._all.discard(connection)
        try:
            return await self._connect()
        except BaseException:
            self._free += 1
            self._wake()
            raise

    async def _connect(self) -> _Connection:
        async with self.reaching():
            connection = await connected(self.place, self._ssl, _Connection)
        if not connection.usable:  # it ended before anything could be asked
            raise Unreachable(f"{self.place} ended the connection", retry_after_s=0.0)
        self._all.add(connection)
        return connection

    def _release(self, connection: _Connection) -> None:
        if connection.usable and connection.answer is None and not self._closed:
            connection.idle_since_s = time.monotonic()
            self._idle.append(connection)
        else:  # ended, or left by its caller with the answer still to come
            connection.answer = None
            connection.close()
            self._all.discard(connection)
        self._free += 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._free:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def close(self) -> None:
        """Ends all connections; requests under way are Lost."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()  # else it would stay open, with nobody to close it
        if self._channel is not None:
            self._channel.fail("this client was closed")
        for connection in list(self._all):
            connection._fail("this client was closed")
        self._all.clear()
        self._idle.clear()
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
        await asyncio.sleep(0)  # the transports close in the next turn of the loop
