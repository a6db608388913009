"""Streams of log queues, the node's end: WebSockets whose frames are those of `model.streams`.

    GET /v1/queues/{name}/streams/put                        producers: chunks in, confirmations out
    GET /v1/queues/{name}/groups/{group}/streams/get         consumers: credits and acks in, parcels out

Chunks pass between the socket and the queue as they are; nothing here knows a single message.

Both ways are bounded. A producer is not read while too much of it is not confirmed, or while it does not read its
confirmations; a consumer gets only what it gave credits for, and nothing while it does not read. What has arrived of a
frame, and what is under way, counts at the gate like the bodies of requests.

A node that leaves, or that does not work the queue any more while others do, says `reconnect` and names those: it hands
out nothing new from then on, finishes what is under way, and closes when the client has, or after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

import msgspec
from websockets.frames import CloseCode
from websockets.protocol import Side

from capellini.api.context import Context
from capellini.api.exchange import Request, Response
from capellini.api.holding import Application
from capellini.api.problems import problem
from capellini.api.pumping import Pump
from capellini.api.router import Kind
from capellini.api.websocket import WebSocket, accepted, wants_websocket
from capellini.api.wire import Visibility, packed, query_of
from capellini.model.errors import CapelliniError, Invalid, StoreError, Unavailable, Unknown, WrongKind
from capellini.model.log import LogParcel, LogService, Routes, Settled
from capellini.model.producers import PRODUCER
from capellini.model.service import Service
from capellini.model.streams import (
    FROM_CONSUMER,
    FROM_PRODUCER,
    MAX_ASKED_BYTES,
    MAX_FRAME_BYTES,
    Confirmed,
    Credit,
    Deliver,
    PutChunk,
    Reconnect,
    Refused,
    SettledItems,
    SettleItems,
    Stop,
    Stopped,
    checked_items,
    decoded,
    encode,
)

log = logging.getLogger("capellini.api")

UNCONFIRMED_BYTES: Final = 8 * 1024 * 1024  # of one producer; then it is not read
UNCONFIRMED_CHUNKS: Final = 256
SETTLES_AT_ONCE: Final = 64  # frames of one consumer; then it is not read
PULLED_BYTES: Final = 256 * 1024 * 1024  # on their way to all consumers, about: each has its share
PULL_MOST: Final = 1_048_576  # bytes for one consumer at a time ...
PULL_LEAST: Final = 65_536  # ... however many there are
LEFT: Final = "this node is leaving: go on with another one"
LEAVE_S: Final = 30.0  # after `reconnect`, a client that stays, to settle what it holds, is closed
WAY_LOOK_S: Final = 15.0  # so often each stream looks whether the queue is worked here


def log_of(service: Service) -> LogService:
    if service.log is None:
        raise Invalid("there are no log queues here")
    return service.log


class PutQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stay`: not to be sent to another node for speed alone."""

    stay: bool = False


class GetQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stay`: not to be sent to another node for speed alone."""

    visibility_s: Visibility | None = None
    stay: bool = False


async def put_stream(context: Context, request: Request) -> Response:
    if not wants_websocket(request):
        return _upgrade_needed(request)
    headers, name, who = accepted(request), request.name, request.producer
    query = query_of(request, PutQuery)
    await _log_queue(context, name)
    request.upgraded = lambda app, transport: ProducerStream(context, app, transport, name, query.stay, who)
    return Response(101, headers=headers)


async def get_stream(context: Context, request: Request) -> Response:
    if not wants_websocket(request):
        return _upgrade_needed(request)
    headers, name, group = accepted(request), request.name, request.params["group"]
    query = query_of(request, GetQuery)
    await _log_queue(context, name)
    await log_of(context.service).routes(name, group)  # is there such a group?
    request.upgraded = lambda app, transport: ConsumerStream(context, app, transport, name, group, query)
    return Response(101, headers=headers)


def _upgrade_needed(request: Request) -> Response:
    says = "this is a WebSocket: ask with Connection: upgrade and Upgrade: websocket, alone on its connection"
    return problem(426, "upgrade", says, packed=packed(request), headers=((b"upgrade", b"websocket"),))


async def _log_queue(context: Context, name: str) -> None:
    """Raises before the connection is a WebSocket, so that the answer is an ordinary one."""
    info = await context.service.show(name)
    if info.kind != "log":
        raise WrongKind(f"queue {name} is a {info.kind} queue: streams are for log queues")


class Stream(WebSocket):
    """What both kinds share: how they are held and how they leave."""

    def __init__(
        self, context: Context, app: Application, transport: Any, queue: str, group: str | None, stay: bool, most: int
    ) -> None:
        super().__init__(Side.SERVER, most, app.now_s)
        self._context, self._app, self._queue, self._group, self._stay = context, app, queue, group, stay
        self._log = log_of(context.service)
        self._transport = transport
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving_since_s: float | None = None
        self._ending = False  # it is closed as soon as nothing is under way
        self._looked_s = app.now_s
        self._away = False  # at the last look the queue was worked by others
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # ... with all that was begun
        context.streams.add(self)

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a stream of %s failed", self._queue, exc_info=error)
            self.shut(CloseCode.INTERNAL_ERROR, "something went wrong in the node, which its log tells more of")
        if not self._tasks:
            if self._ending:
                self.shut(CloseCode.GOING_AWAY, LEFT)
            self._end()
        self._paced()

    def _end(self) -> None:
        if self.gone.done() and not self._tasks and not self.ended.done():
            self._app.closed(self)
            self.ended.set_result(None)

    def _paced(self) -> None:
        """Read on, or not."""

    def tell(self, frame: msgspec.Struct) -> None:
        self.send(encode(frame))

    def holding(self, before: int, now: int) -> CapelliniError | None:
        gate = self._context.gate
        if now <= before:
            gate.bytes -= before - now
            return None
        return gate.grow(Kind.PUT if self._group is None else Kind.FINISH, now - before)

    # ---- leaving

    @property
    def leaving(self) -> bool:
        return self._leaving_since_s is not None

    def signal(self, reason: str) -> None:
        """The client is to go on elsewhere, or here later."""
        if not self.leaving and self.open:
            self._leaving_since_s = self._app.now_s
            self._begin(self._signalled(reason))

    async def _signalled(self, reason: str) -> None:
        addresses: list[str] = []
        try:
            routes = await self._log.routes(self._queue, self._group)
            known = (*self._workers(routes), *routes.writers)
            addresses = [each for each in dict.fromkeys(known) if each and each != routes.here]
        except CapelliniError as error:
            log.debug("where %s is worked is not known now: %s", self._queue, error)
        self.tell(Reconnect(reason, addresses))

    def _workers(self, routes: Routes) -> tuple[str, ...]:
        return routes.writers if self._group is None else routes.readers

    async def _look(self) -> None:
        """A client that would be served faster elsewhere hears so: not at the first look, since owners change hands."""
        try:
            routes = await self._log.routes(self._queue, self._group)
        except CapelliniError:
            return  # what is wrong is said to whoever puts or gets
        workers = self._workers(routes)
        away = bool(workers and routes.here and routes.here not in workers)
        if away and self._away:
            self.signal("other nodes work this queue")
        self._away = away

    # ---- the server calls

    def tick(self, now_s: float) -> None:
        if self.gone.done():
            return
        self.beat(now_s, self._app.limits.write_timeout_s)
        since_s = self._leaving_since_s
        if since_s is not None:
            if now_s - since_s > LEAVE_S and not self._tasks:
                self.shut(CloseCode.GOING_AWAY, LEFT)
        elif not self._stay and now_s - self._looked_s > WAY_LOOK_S:
            self._looked_s = now_s
            self._begin(self._look())

    def close_soon(self) -> None:
        """When what is under way was answered."""
        self._ending = True
        self.signal("this node is leaving")
        if not self._tasks:
            self.shut(CloseCode.GOING_AWAY, LEFT)

    def lost(self, reason: str) -> None:
        self._context.streams.discard(self)
        self._end()

    def abort(self) -> None:
        super().abort()
        for task in self._tasks:
            task.cancel()


class ProducerStream(Stream):
    def __init__(
        self, context: Context, app: Application, transport: Any, queue: str, stay: bool = False, who: str = ""
    ) -> None:
        super().__init__(context, app, transport, queue, None, stay, MAX_FRAME_BYTES)
        self._who = who
        self._bytes = 0  # not confirmed

    def received(self, message: bytes | bytearray) -> None:
        frame = decoded(FROM_PRODUCER, message)
        if self.leaving:
            self._refuse(frame.number, Unavailable(LEFT, retry_after_s=0.0))
            return
        refusal = self._context.gate.admit(Kind.PUT, len(frame.chunk))
        if refusal is not None:
            self._refuse(frame.number, refusal)
            return
        self._bytes += len(frame.chunk)
        self._begin(self._append(frame))
        self._paced()

    async def _append(self, frame: PutChunk) -> None:
        PRODUCER.set(self._who)
        try:
            done = await self._log.append(self._queue, frame.chunk)
        except CapelliniError as error:
            self._refuse(frame.number, error)
        else:
            self._context.metrics.add("put", done.count)
            self.tell(Confirmed(frame.number, done.extent, done.first, done.count, done.duplicate))
        finally:
            self._bytes -= len(frame.chunk)
            self._context.gate.leave(Kind.PUT, len(frame.chunk))

    def _refuse(self, number: int, error: CapelliniError) -> None:
        self.tell(Refused(number, error.name, error.says, error.retry_after_s))

    def slow(self, is_slow: bool) -> None:
        self._paced()

    def _paced(self) -> None:
        """A producer that does not read its confirmations is not read either."""
        full = self._bytes > UNCONFIRMED_BYTES or len(self._tasks) > UNCONFIRMED_CHUNKS
        self.pause_reading(full or self.is_slow)


class ConsumerStream(Stream):
    def __init__(
        self, context: Context, app: Application, transport: Any, queue: str, group: str, query: GetQuery
    ) -> None:
        super().__init__(context, app, transport, queue, group, query.stay, MAX_ASKED_BYTES)
        self._in_group = group
        self._pump = Pump(self._log, queue, group, query.visibility_s, self._share, self._deliver, self._failed)

    def received(self, message: bytes | bytearray) -> None:
        frame = decoded(FROM_CONSUMER, message)
        if isinstance(frame, Credit):
            self._pump.add_credit(frame.messages, frame.bytes)
        elif isinstance(frame, Stop):
            self._begin(self._stopped())
        else:
            self._settle(frame, len(message))
        self._paced()

    def _share(self) -> int:
        return max(PULL_LEAST, min(PULL_MOST, PULLED_BYTES // max(1, len(self._context.streams))))

    def _deliver(self, parcel: LogParcel) -> None:
        self._context.metrics.add("get", parcel.count)
        self.tell(Deliver(parcel))

    def _failed(self, error: CapelliniError) -> None:
        code = CloseCode.INTERNAL_ERROR if isinstance(error, Unknown) else CloseCode.POLICY_VIOLATION
        self.shut(code, f"{error.name}: {error.says}")

    def _settle(self, frame: SettleItems, size: int) -> None:
        checked_items(frame)
        refusal = self._context.gate.admit(Kind.FINISH, size)
        if refusal is None:
            self._begin(self._settled(frame, size))
        else:
            self._unsettled(frame, refusal)

    async def _settled(self, frame: SettleItems, size: int) -> None:
        try:
            results = await self._log.settle(self._queue, self._in_group, frame.items)
        except StoreError as error:
            self._unsettled(frame, error)
        except CapelliniError as error:
            self._failed(error)
        else:
            done = zip(frame.items, results, strict=True)
            acked = sum(count for item, result in done if item.verb == "ack" for _, count in result.ranges)
            self._context.metrics.add("ack", acked)
            self.tell(SettledItems(frame.number, results))
        finally:
            self._context.gate.leave(Kind.FINISH, size)

    def _unsettled(self, frame: SettleItems, error: CapelliniError) -> None:
        """Nothing was done, or nothing is known of any of them: said for each."""
        self.tell(SettledItems(frame.number, [Settled([], error.name, error.says)] * len(frame.items)))

    async def _stopped(self) -> None:
        await _over(self._pump.stop())
        self.tell(Stopped())

    def slow(self, is_slow: bool) -> None:
        self._pump.slow(is_slow)
        self._paced()

    def _paced(self) -> None:
        self.pause_reading(len(self._tasks) > SETTLES_AT_ONCE or self.is_slow)

    def signal(self, reason: str) -> None:
        if not self.leaving and self.open:
            self._begin(_over(self._pump.stop()))
        super().signal(reason)

    def _closing(self) -> None:
        """Nothing is sent any more, though the connection may last for a while: what comes now is for others."""
        if self._closed_at_s is None:
            self._begin(_over(self._pump.stop()))
        super()._closing()

    def lost(self, reason: str) -> None:
        self._begin(_over(self._pump.stop()))
        super().lost(reason)


async def _over(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})
