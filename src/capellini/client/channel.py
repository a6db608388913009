"""A channel, the client's end: one connection that carries all calls at a time (frames: `model.frames`).

A call that gets no answer is Lost, as with HTTP: it may have been done. A caller that leaves tells the node, so that
a get that nobody waits for takes no messages. After a call that was too late, or when the node says that it leaves,
the channel takes no new calls; it ends when those under way are over.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections.abc import Callable
from typing import Final, TypeVar, cast

from capellini.client.reaching import Lost, Place, Unreachable
from capellini.model.errors import Invalid, TooLarge
from capellini.model.frames import GIVE_UP, LEAVING_ID, PATH, UPGRADE, Answer, Call, Splitter, answer_of, frame_of, send

FRAME_MOST: Final = 1 << 30  # an answer is as large as what was asked for
HEAD_MOST: Final = 65_536  # of the answer to the upgrade
ASK: Final = f"GET {PATH} HTTP/1.1\r\nconnection: upgrade\r\nupgrade: {UPGRADE}\r\n".encode()
P = TypeVar("P", bound=asyncio.Protocol)
_Asked = tuple[asyncio.Future[Answer], float, float]  # where the answer goes, until when, and after how many seconds


class Channel(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._splitter = Splitter(FRAME_MOST)
        self._calls: dict[int, _Asked] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next_s = math.inf  # when it goes off: not after the first call that may be late
        self._next_id = 1
        self._head = b""  # of the answer to the upgrade, while it arrives
        self._open = False
        self._used_s = time.monotonic()
        self.opened: asyncio.Future[int] = self._loop.create_future()  # the status that the node answered

    def fit(self, idle_s: float) -> bool:
        """May a new call go on it? Not if it lay idle for so long that something in between may have dropped it."""
        return self._open and (bool(self._calls) or time.monotonic() - self._used_s < idle_s)

    async def ask(self, call: str, body: bytes, seconds: float) -> Answer:
        """Raises Lost; or Unreachable if it ended, or the node left, before this was sent."""
        assert self._transport is not None
        if not self.fit(math.inf):
            raise Unreachable("the connection ended as it was opened, or the node leaves", retry_after_s=0.0)
        id = self._next_id
        self._next_id += 1
        answer: asyncio.Future[Answer] = self._loop.create_future()
        until_s = self._loop.time() + seconds
        self._calls[id] = (answer, until_s, seconds)
        if until_s < self._next_s:
            self._watch(until_s)
        send(Call(id, call, body), self._transport)
        try:
            return await answer
        finally:
            if self._calls.pop(id, None) is not None and self._open:  # the caller leaves
                self._transport.write(frame_of(Call(id, GIVE_UP)))
            if not self._open and not self._calls:
                self._transport.close()

    def _watch(self, until_s: float) -> None:
        """One timer for all calls: most are answered long before, and then it is not touched."""
        if self._timer is not None:
            self._timer.cancel()
        self._next_s = until_s
        self._timer = self._loop.call_at(until_s, self._look) if until_s < math.inf else None

    def _look(self) -> None:
        """Calls without an answer in time are lost, and nothing more is asked here."""
        late = [id for id, (_, until_s, _) in self._calls.items() if until_s <= self._next_s]
        for id in late:
            answer, _, seconds = self._calls.pop(id)
            if not answer.done():
                answer.set_exception(_lost(f"no answer within {seconds:g} s"))
        self._watch(min([until_s for _, until_s, _ in self._calls.values()], default=math.inf))
        if late:
            self.leave()

    def leave(self) -> None:
        """No new calls; those under way are waited for."""
        self._open = False
        if not self._calls and self._transport is not None:
            self._transport.close()

    def fail(self, says: str) -> None:
        self._open = False
        calls, self._calls = self._calls, {}
        self._watch(math.inf)
        for answer, _, _ in calls.values():
            if not answer.done():
                answer.set_exception(_lost(says))
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(says))
        if self._transport is not None:
            self._transport.close()

    # ---- asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has its methods, but is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"the connection ended before the answer{f' ({exc})' if exc else ''}")

    def data_received(self, data: bytes) -> None:
        if not self.opened.done():
            data = self._upgraded(data)
        self._used_s = time.monotonic()
        try:
            for frame in self._splitter.feed(data):
                self._answered(answer_of(frame))
        except (Invalid, TooLarge) as error:
            self.fail(f"the answer cannot be read ({error.says})")

    def _upgraded(self, data: bytes) -> bytes:
        """Reads the head of the node's answer; what comes after it."""
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            if len(head) > HEAD_MOST:
                self.fail("the answer is not HTTP")
            return b""
        _, _, after = head.partition(b" ")
        status = int(after[:3]) if after[:3].isdigit() else 0
        self._open = status == 101
        self.opened.set_result(status)
        self._head = b""
        return rest if self._open else b""

    def _answered(self, answer: Answer) -> None:
        if answer.id == LEAVING_ID:
            self.leave()
            return
        waiting = self._calls.pop(answer.id, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(answer)


def _lost(says: str) -> Lost:
    return Lost(f"{says}: it may have been done", retry_after_s=0.0)


async def connected(place: Place, ssl_context: ssl.SSLContext | None, make: Callable[[], P]) -> P:
    """Raises OSError."""
    loop = asyncio.get_running_loop()
    if place.unix:
        _, protocol = await loop.create_unix_connection(make, place.unix)
    else:
        _, protocol = await loop.create_connection(make, place.host, place.port, ssl=ssl_context)
    return protocol


async def open_channel(place: Place, ssl_context: ssl.SSLContext | None, headers: bytes) -> Channel | None:
    """`headers`: lines that every request carries. None: whoever answers there knows no channels. Raises OSError."""
    channel = await connected(place, ssl_context, Channel)
    try:
        assert channel._transport is not None
        channel._transport.write(ASK + headers + b"\r\n")
        status = await channel.opened
    except BaseException:
        channel.fail("it was not opened")
        raise
    if status == 101:
        return channel
    channel.leave()
    if status in (429, 503):
        raise ConnectionRefusedError(f"it answered {status}: it takes no more connections now")
    return None
