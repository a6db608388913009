"""The lanes that streams run on: a WebSocket to a node, or straight into the log queues of this process.

    PutLane    chunks in order in, a future for each            SocketPutLane | DirectPutLane
    GetLane    credits and settles in, parcels out              SocketGetLane | DirectGetLane

A lane lives until it is over: the connection ended, or the node said that it leaves. What was under way on a lost
connection is Lost: it may have been done. Whoever uses lanes opens the next one (`producing`, `streaming`).
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from websockets.frames import CloseCode
from websockets.protocol import Side
from websockets.utils import accept_key

from capellini.api.pumping import Pump
from capellini.api.streams import PULL_MOST
from capellini.api.websocket import WebSocket
from capellini.client.answers import error_of, queue_path, with_query
from capellini.client.channel import connected
from capellini.client.groups import group_path, log_of
from capellini.client.peers import place_of
from capellini.client.reaching import Lost, Place, Response, Unreachable
from capellini.client.relay import Relay
from capellini.client.remote import RemoteService
from capellini.client.transport import Transport
from capellini.model.errors import BY_NAME, CapelliniError, Invalid, Unavailable, Unknown, WrongKind, from_name
from capellini.model.log import Appended, LogParcel, LogService, Settle, Settled
from capellini.model.service import Service
from capellini.model.streams import (
    MAX_TOLD_BYTES,
    TO_CONSUMER,
    TO_PRODUCER,
    Confirmed,
    Credit,
    Deliver,
    PutChunk,
    Reconnect,
    Refused,
    SettleItems,
    Stop,
    Stopped,
    decoded,
    encode,
)

BEAT_S: Final = 1.0
STUCK_S: Final = 30.0  # a node that reads nothing for so long is as good as away
HEAD_MOST: Final = 65_536  # of the answer to the handshake
CLOSE_S: Final = 2.0  # for the other end's close
FASTER_S: Final = 1.0  # to reach a node that is faster, or was named; a node behind a wall must not hold up everything
_WRONG: Final = (CloseCode.POLICY_VIOLATION, CloseCode.PROTOCOL_ERROR, CloseCode.MESSAGE_TOO_BIG)


class Lane(ABC):
    def __init__(self) -> None:
        self.over: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()  # where to go on, if known
        self.failure: CapelliniError | None = None  # it was ended for this, which another lane does not mend

    def is_over(self, addresses: Sequence[str] = ()) -> None:
        if not self.over.done():
            self.over.set_result(list(addresses))

    @property
    @abstractmethod
    def open(self) -> bool:
        """What is asked now is answered: also when it is over, for a while."""

    @abstractmethod
    async def leave(self) -> None:
        """Closed, once what is under way was answered."""


class PutLane(Lane):
    @abstractmethod
    def append(self, chunk: bytes) -> asyncio.Future[Appended]:
        """Sent in the order of these calls."""


class GetLane(Lane):
    @abstractmethod
    def credit(self, messages: int, size: int) -> None:
        """So many more messages, and about so many bytes, may come."""

    @abstractmethod
    def settle(self, items: list[Settle]) -> asyncio.Future[list[Settled]]: ...

    @abstractmethod
    async def stop(self) -> None:
        """When it returns no parcel comes any more; settles still work."""


# ---- through a WebSocket


class _Socket(WebSocket):
    """The client's end: the handshake, then frames."""

    def __init__(self, heard: Callable[[bytes | bytearray], None], gone: Callable[[str], None], where: str) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(Side.CLIENT, MAX_TOLD_BYTES, self._loop.time())
        self._heard, self._gone, self._where = heard, gone, where
        self._head: bytes | None = b""  # of the answer to the handshake, while it arrives
        self._key = base64.b64encode(secrets.token_bytes(16)).decode()
        self._timer: asyncio.TimerHandle | None = None
        self.opened: asyncio.Future[None] = self._loop.create_future()

    def ask(self, path: str, headers: bytes) -> None:
        lines = f"GET {path} HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        self._transport.write(f"{lines}sec-websocket-key: {self._key}\r\n".encode() + headers + b"\r\n")
        self._tick()

    def _tick(self) -> None:
        if self.gone.done():
            return
        self.beat(self._loop.time(), STUCK_S)
        self._timer = self._loop.call_later(BEAT_S, self._tick)

    def data_received(self, data: bytes) -> None:
        if self._head is None:
            super().data_received(data)
            return
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            if len(head) > HEAD_MOST:
                self._refused(Unreachable(f"{self._where} does not answer as a node does"))
            return
        status = int(head[9:12]) if head[9:12].isdigit() else 0
        fields = {name.lower(): value for line in head.split(b"\r\n")[1:] for name, _, value in [line.partition(b": ")]}
        if status != 101:
            self._not_taken(status, fields, rest)
        elif fields.get(b"sec-websocket-accept", b"") != accept_key(self._key).encode():
            self._refused(Unreachable(f"{self._where} does not speak WebSocket as it should"))
        else:
            self._head = None
            self.opened.set_result(None)
            if rest:
                super().data_received(rest)

    def _not_taken(self, status: int, fields: dict[bytes, bytes], body: bytes) -> None:
        size = fields.get(b"content-length", b"0")
        if size.isdigit() and len(body) < int(size) <= HEAD_MOST:
            return  # the rest is on its way
        media = fields.get(b"content-type", b"").partition(b";")[0].decode("latin-1")
        retry = fields.get(b"retry-after", b"")
        after_s = float(retry) if retry.isdigit() else None
        self._refused(error_of(Response(status, body, media, after_s), self._where))

    def _refused(self, error: CapelliniError) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
        self.abort()

    def received(self, message: bytes | bytearray) -> None:
        self._heard(message)

    def lost(self, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.opened.done():
            self.opened.set_exception(Unreachable(f"{self._where} ended the connection", retry_after_s=0.0))
        self._gone(reason)

    @property
    def refusal(self) -> CapelliniError | None:
        """The node closed it since something is wrong with what it was asked."""
        told = self._ends.close_rcvd
        if told is None or told.code not in _WRONG:
            return None
        name, _, says = told.reason.partition(": ")
        if name in BY_NAME and says:
            return from_name(name, says)
        return Invalid(f"{self._where} ended this stream: {told.reason or told.code}")


class _SocketLane(Lane):
    """Numbers questions, and keeps who waits for which answer."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.socket = _Socket(self._heard, self._gone, where)
        self._next = 0
        self._asked: dict[int, asyncio.Future[Any]] = {}

    @property
    def open(self) -> bool:
        return self.socket.open

    def _question(self) -> tuple[int, asyncio.Future[Any]]:
        """Its number, and who waits for the answer. If the connection has ended, that is the answer."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._next += 1
        if self.socket.open:
            self._asked[self._next] = future
        else:
            future.set_exception(Unreachable("the connection of this stream has ended", retry_after_s=0.0))
        return self._next, future

    def _answered(self, number: int, result: Any) -> None:
        future = self._asked.pop(number, None)
        if future is None or future.done():
            return
        if isinstance(result, CapelliniError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _heard(self, message: bytes | bytearray) -> None:
        raise NotImplementedError

    def _gone(self, reason: str) -> None:
        self.failure = self.socket.refusal
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                says = f"the stream ended before the answer ({reason}): it may have been done"
                future.set_exception(Lost(says, retry_after_s=0.0))
        self.is_over()

    async def leave(self) -> None:
        self.is_over()
        if self._asked:
            await asyncio.wait(list(self._asked.values()), timeout=STUCK_S)
        self.socket.shut(CloseCode.NORMAL_CLOSURE, "")
        if not self.socket.gone.done():
            await asyncio.wait({self.socket.gone}, timeout=CLOSE_S)
            self.socket.abort()


class SocketPutLane(_SocketLane, PutLane):
    def append(self, chunk: bytes) -> asyncio.Future[Appended]:
        number, answer = self._question()
        self.socket.send(encode(PutChunk(number, chunk)))
        return answer

    def _heard(self, message: bytes | bytearray) -> None:
        frame = decoded(TO_PRODUCER, message)
        if isinstance(frame, Confirmed):
            self._answered(frame.number, Appended(frame.extent, frame.first, frame.count, frame.duplicate))
        elif isinstance(frame, Refused):
            self._answered(frame.number, from_name(frame.error, frame.says, frame.retry_after_s))
        else:
            self.is_over(frame.addresses)


class SocketGetLane(_SocketLane, GetLane):
    def __init__(self, where: str, deliver: Callable[[LogParcel], None]) -> None:
        super().__init__(where)
        self._deliver = deliver
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def credit(self, messages: int, size: int) -> None:
        self.socket.send(encode(Credit(messages, size)))

    def settle(self, items: list[Settle]) -> asyncio.Future[list[Settled]]:
        number, answer = self._question()
        self.socket.send(encode(SettleItems(number, items)))
        return answer

    def _heard(self, message: bytes | bytearray) -> None:
        frame = decoded(TO_CONSUMER, message)
        if isinstance(frame, Deliver):
            self._deliver(frame.parcel)
        elif isinstance(frame, Reconnect):
            self.is_over(frame.addresses)
        elif isinstance(frame, Stopped):
            if not self._stopped.done():
                self._stopped.set_result(None)
        else:
            self._answered(frame.number, frame.results)

    async def stop(self) -> None:
        self.socket.send(encode(Stop()))
        ends: set[asyncio.Future[None]] = {self._stopped, self.socket.gone}
        await asyncio.wait(ends, timeout=STUCK_S, return_when=asyncio.FIRST_COMPLETED)


# ---- in this process


class DirectPutLane(PutLane):
    open = True

    def __init__(self, log: LogService, queue: str) -> None:
        super().__init__()
        self._log, self._queue = log, queue
        self._flying: set[asyncio.Future[Appended]] = set()

    def append(self, chunk: bytes) -> asyncio.Future[Appended]:
        future = asyncio.ensure_future(self._log.append(self._queue, chunk))
        self._flying.add(future)
        future.add_done_callback(self._flying.discard)
        return future

    async def leave(self) -> None:
        self.is_over()
        if self._flying:
            await asyncio.wait(self._flying)


class DirectGetLane(GetLane):
    open = True

    def __init__(
        self, log: LogService, queue: str, group: str, visibility_s: float | None, deliver: Callable[[LogParcel], None]
    ) -> None:
        super().__init__()
        self._log, self._queue, self._group = log, queue, group
        self._flying: set[asyncio.Future[list[Settled]]] = set()
        self._pump = Pump(log, queue, group, visibility_s, lambda: PULL_MOST, deliver, self._failed)

    def _failed(self, error: CapelliniError) -> None:
        self.failure = None if isinstance(error, Unknown) else error
        self.is_over()

    def credit(self, messages: int, size: int) -> None:
        self._pump.add_credit(messages, size)

    def settle(self, items: list[Settle]) -> asyncio.Future[list[Settled]]:
        future = asyncio.ensure_future(self._log.settle(self._queue, self._group, items))
        self._flying.add(future)
        future.add_done_callback(self._flying.discard)
        return future

    async def stop(self) -> None:
        await asyncio.wait({self._pump.stop()})

    async def leave(self) -> None:
        self.is_over()
        await self.stop()
        if self._flying:
            await asyncio.wait(self._flying)


# ---- opening


class Opening(ABC):
    """How to open lanes of one kind to one queue."""

    def __init__(self, queue: str, group: str | None = None) -> None:
        self.queue, self.group = queue, group
        self.known: list[str] = []  # addresses of nodes, as they were named last

    @abstractmethod
    def path(self, stay: bool) -> str: ...

    @abstractmethod
    def remote(self, where: str) -> Any:
        """A lane whose connection is not open yet."""

    @abstractmethod
    def local(self, log: LogService) -> Any: ...

    async def better(self, log: LogService) -> list[str]:
        """Addresses of nodes that work the queue; none: the node that was asked is as good as any."""
        try:
            routes = await log.routes(self.queue, self.group)
        except (Unavailable, Unknown):
            return self.known  # the node of this client is away: one that was named before may do
        self.known = [each for each in dict.fromkeys((*routes.readers, *routes.writers)) if each != routes.here]
        wanted = routes.writers if self.group is None else routes.readers
        return [secrets.choice(wanted)] if wanted and routes.here not in wanted else []


class PutOpening(Opening):
    def path(self, stay: bool) -> str:
        return with_query(queue_path(self.queue, "streams/put"), stay="true" if stay else "")

    def remote(self, where: str) -> SocketPutLane:
        return SocketPutLane(where)

    def local(self, log: LogService) -> DirectPutLane:
        return DirectPutLane(log, self.queue)


class GetOpening(Opening):
    def __init__(
        self, queue: str, group: str, visibility_s: float | None, deliver: Callable[[LogParcel], None]
    ) -> None:
        super().__init__(queue, group)
        self._in_group, self._visibility_s, self._deliver = group, visibility_s, deliver

    def path(self, stay: bool) -> str:
        visibility = "" if self._visibility_s is None else repr(self._visibility_s)
        path = group_path(self.queue, self._in_group, "streams/get")
        return with_query(path, visibility_s=visibility, stay="true" if stay else "")

    def remote(self, where: str) -> SocketGetLane:
        return SocketGetLane(where, self._deliver)

    def local(self, log: LogService) -> DirectGetLane:
        return DirectGetLane(log, self.queue, self._in_group, self._visibility_s, self._deliver)


async def open_put(service: Service, opening: PutOpening, elsewhere: Sequence[str] = ()) -> PutLane:
    """`elsewhere`: addresses of nodes to try first. Raises CapelliniError."""
    lane: PutLane = await _opened(service, opening, elsewhere)
    return lane


async def open_get(service: Service, opening: GetOpening, elsewhere: Sequence[str] = ()) -> GetLane:
    lane: GetLane = await _opened(service, opening, elsewhere)
    return lane


async def _opened(service: Service, opening: Opening, elsewhere: Sequence[str]) -> Any:
    """With what is behind the relays at this moment."""
    if isinstance(service, Relay):
        return await service.call("stream", lambda behind: _opened(behind, opening, elsewhere))
    if not isinstance(service, RemoteService):
        return await _local(service, opening)
    transport = service.transport
    home, named = transport.place, list(elsewhere)
    may_leave = not home.unix and not home.secure  # behind a socket or TLS there are no other doors that we know of
    if named:
        opening.known = named
    elif may_leave:
        named = await opening.better(log_of(service))
    for address in named if may_leave else ():
        try:
            async with asyncio.timeout(FASTER_S):
                return await _reach(transport, place_of(address), opening, stay=False)
        except (Unavailable, TimeoutError):
            continue  # any node does
    return await _reach(transport, home, opening, stay=not may_leave or bool(named))


async def _local(service: Service, opening: Opening) -> Any:
    """As a node does: what is not there is said at once."""
    log = log_of(service)
    info = await service.show(opening.queue)
    if info.kind != "log":
        raise WrongKind(f"queue {opening.queue} is a {info.kind} queue: streams are for log queues")
    if opening.group is not None:
        await log.routes(opening.queue, opening.group)  # is there such a group?
    return opening.local(log)


async def _reach(transport: Transport, place: Place, opening: Opening, stay: bool) -> Any:
    lane = opening.remote(str(place))
    socket: _Socket = lane.socket
    async with transport.reaching(place):
        await connected(place, transport.ssl_for(place), lambda: socket)
        socket.ask(opening.path(stay), transport.headers_for(place))
        try:
            await socket.opened
        except BaseException:
            socket.abort()
            raise
    return lane
