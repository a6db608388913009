"""The client for programs without asyncio: the same calls, each waiting for its answer.

The calls of AsyncClient run on an event loop in a thread of this client's own; any number of threads may use it,
and their puts and acks share batches. Signatures are taken over from AsyncClient by `_waits`, so that each is
written once and checked like any other.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import uvloop

from capellini.client.aio import AsyncClient
from capellini.client.consuming import POLL_S, Plan, StopConsuming, steady
from capellini.client.counting import WaitingCounters
from capellini.client.groups import WaitingGroups
from capellini.client.messages import Message, Origin, unpacker
from capellini.model.errors import Unavailable, Unknown
from capellini.model.log import DEFAULT_GROUP, group_name

if TYPE_CHECKING:
    from capellini.client.sync_streams import Consumer, Producer

T = TypeVar("T")
R = TypeVar("R")
H = TypeVar("H")
P = ParamSpec("P")
log = logging.getLogger("capellini.client")

_CLOSED = "this client is closed, or was made before a fork: connect anew"
_unpack: Callable[[Origin], list[Message[Any]]] = unpacker(Message)


def _waits(
    call: Callable[Concatenate[AsyncClient[T], P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Client[T], P], R]:
    """The call of AsyncClient, made to wait for its answer."""

    @functools.wraps(call)
    def run(self: Client[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(call(self._inner, *args, **kwargs))

    return run


def _failure(handler: Callable[[Message[T]], object], message: Message[T]) -> BaseException | None:
    """What the handler raised, as a value: some exceptions cannot pass from a thread to an event loop, and others
    would end the loop."""
    try:
        handler(message)
    except BaseException as failure:
        return failure
    return None


class _Waiting(Generic[R]):
    """A thread that waits for a task of the loop: a lock is all it takes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, R]) -> None:
        self._loop, self._coroutine = loop, coroutine
        self._task: asyncio.Task[R] | None = None
        self._given_up = False
        self._done = threading.Lock()
        self._done.acquire()
        loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._ended)
        if self._given_up:
            self._task.cancel()

    def _ended(self, _: asyncio.Task[R]) -> None:
        self._done.release()

    def _give_up(self) -> None:
        self._given_up = True
        if self._task is not None:
            self._task.cancel()

    def result(self, within_s: float | None) -> R:
        try:
            if not self._done.acquire(timeout=-1 if within_s is None else within_s):
                raise TimeoutError(f"it took longer than {within_s:g} s")
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop is closed: then it has ended
                self._loop.call_soon_threadsafe(self._give_up)  # interrupted: nobody waits for it any more
            raise
        assert self._task is not None
        return self._task.result()


class _Loop:
    """An event loop in a thread of its own. What is handed to it before it is told to stop is begun, and so is ended
    with it; afterwards nothing is taken: whoever waits does not wait for ever."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._handing = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._turn, name="capellini-client", daemon=True)
        self._thread.start()

    def _turn(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:  # whoever waits for one in another thread must not wait for ever
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()  # false after close, and in a child process that was forked

    def run(self, coroutine: Coroutine[Any, Any, R], within_s: float | None = None) -> R:
        """Raises TimeoutError after `within_s`."""
        try:
            return self._handed(coroutine, lambda: _Waiting(self.loop, coroutine)).result(within_s)
        except asyncio.CancelledError:
            raise Unknown("this client was closed meanwhile: it may have been done") from None

    def begin(self, coroutine: Coroutine[Any, Any, R]) -> Future[R]:
        """The same without waiting for it."""
        return self._handed(coroutine, lambda: asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def tell(self, what: Callable[[], object]) -> None:
        """For what runs on the loop; when that is closed, nothing does."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(what)

    def _handed(self, coroutine: Coroutine[Any, Any, Any], hand: Callable[[], H]) -> H:
        try:
            if threading.current_thread() is self._thread:
                raise RuntimeError("a call of the sync client from its own event loop would wait for ever")
            if not self.alive:  # before the lock: after a fork nobody may be left to release it
                raise Unavailable(_CLOSED)
            with self._handing:
                if self._stopping:
                    raise Unavailable(_CLOSED)
                return hand()
        except BaseException:
            coroutine.close()
            raise

    def stop(self) -> None:
        if self.alive:
            with self._handing:
                if not self._stopping:
                    self._stopping = True
                    self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()


class Client(Generic[T]):
    """Safe for any number of threads. Use it with `with`, or `close()`."""

    def __init__(self, make: Callable[[], AsyncClient[T]]) -> None:
        self._thread = _Loop()
        self._inner = make()
        self.counters = WaitingCounters(self._inner.counters, self._run)
        self.groups = WaitingGroups(self._inner.groups, self._run)
        self._closed = False
        _open.add(self)

    def _run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return self._thread.run(coroutine)

    create_queue = _waits(AsyncClient.create_queue)
    list_queues = _waits(AsyncClient.list_queues)
    show_queue = _waits(AsyncClient.show_queue)
    change_queue = _waits(AsyncClient.change_queue)
    pause_queue = _waits(AsyncClient.pause_queue)
    resume_queue = _waits(AsyncClient.resume_queue)
    purge_queue = _waits(AsyncClient.purge_queue)
    delete_queue = _waits(AsyncClient.delete_queue)
    statistics = _waits(AsyncClient.statistics)
    put = _waits(AsyncClient[T].put)
    put_many = _waits(AsyncClient[T].put_many)
    ack = _waits(AsyncClient.ack)
    ack_many = _waits(AsyncClient.ack_many)
    nack = _waits(AsyncClient.nack)
    nack_many = _waits(AsyncClient.nack_many)
    extend = _waits(AsyncClient.extend)
    extend_many = _waits(AsyncClient.extend_many)
    cancel = _waits(AsyncClient.cancel)
    cancel_many = _waits(AsyncClient.cancel_many)
    move = _waits(AsyncClient.move)
    move_many = _waits(AsyncClient.move_many)
    due_between = _waits(AsyncClient.due_between)
    shards = _waits(AsyncClient.shards)
    stop_shard = _waits(AsyncClient.stop_shard)
    start_shard = _waits(AsyncClient.start_shard)
    schedule = _waits(AsyncClient[T].schedule)
    schedules = _waits(AsyncClient.schedules)
    unschedule = _waits(AsyncClient.unschedule)
    peek = _waits(AsyncClient.peek)
    dead = _waits(AsyncClient.dead)
    redrive = _waits(AsyncClient.redrive)
    buckets = _waits(AsyncClient.buckets)
    pointers = _waits(AsyncClient.pointers)
    move_repair = _waits(AsyncClient.move_repair)
    message = _waits(AsyncClient.message)

    extents = _waits(AsyncClient.extents)
    routes = _waits(AsyncClient.routes)

    def get(
        self,
        queue: str,
        count: int = 1,
        *,
        wait_s: float = 0.0,
        visibility_s: float | None = None,
        group: str | None = None,
    ) -> list[Message[T]]:
        """Up to `count` messages, hidden from others for `visibility_s` (None: as the queue's options say).

        If there are none, waits up to `wait_s` for the first. `group`: of a log queue; the same as QUEUE@GROUP.
        """
        return self._run(self._inner._take(_unpack, self, group_name(queue, group), count, wait_s, visibility_s))

    def stream_put(self, queue: str) -> Producer[T]:
        """Puts into a log queue through one connection, in order: the fastest way. Use it with `with`."""
        from capellini.client.sync_streams import Producer

        return Producer(lambda: self._inner.stream_put(queue), self._run)

    def stream(
        self,
        queue: str,
        *,
        group: str = DEFAULT_GROUP,
        ahead: int | None = None,
        visibility_s: float | None = None,
    ) -> Consumer[Message[T]]:
        """Messages of a log queue's group as they come, at most `ahead` of them waiting here. Use it with `with`."""
        from capellini.client.async_streams import StreamConsumer
        from capellini.client.sync_streams import Consumer

        def make(holder: object) -> StreamConsumer[Message[T]]:
            of = self._inner
            parts = (of._service, queue, group, of._codec, Message, ahead, visibility_s, of._clock, of._chance, holder)
            made = StreamConsumer(*parts)
            of._streams.add(made)
            return made

        return Consumer(make, self._run)

    def messages(
        self, queue: str, *, count: int = 1, visibility_s: float | None = None
    ) -> Generator[Message[T], None, None]:
        """Messages without end, `count` fetched at a time; ack each yourself. Waits for messages, and for the node.
        When the loop is left, what was fetched and not handed out goes back."""
        inner = self._inner

        async def take() -> list[Message[T]]:
            once = functools.partial(inner._take, _unpack, self, queue, count, POLL_S, visibility_s)
            return await steady(once, inner._clock, inner._chance, POLL_S)()

        async def give_back(messages: list[Message[T]]) -> None:
            inner._return(queue, messages)

        left: deque[Message[T]] = deque()
        try:
            while True:
                left.extend(self._run(take()))
                while left:
                    yield left.popleft()
        finally:
            if left:
                with contextlib.suppress(Unavailable, RuntimeError):  # closed, or this runs in the client's own thread
                    self._thread.begin(give_back(list(left)))  # not waited for: the program may be ending

    def consume(
        self,
        queue: str,
        handler: Callable[[Message[T]], object],
        *,
        concurrency: int = 1,
        visibility_s: float | None = None,
        count: int | None = None,
        idle_s: float | None = None,
        stop: threading.Event | None = None,
    ) -> int:
        """Runs `handler` on each message in threads, `concurrency` at a time; how many were handled and acked.

        While a handler runs its message stays hidden (heartbeats). A handler that returns has its message acked;
        one that raises has it offered again after a growing delay. Ends after `count` messages, after `idle_s`
        without any, when `stop` is set, at Ctrl-C, or when a handler calls `sys.exit`; what runs then is finished
        first. A node that is away is waited for.
        """
        plan = Plan(queue, concurrency, visibility_s, count, idle_s)
        ending = asyncio.Event()
        ended: list[BaseException] = []  # by a handler: not for the client's own loop, which it would end
        with ThreadPoolExecutor(max(1, concurrency), "capellini-consume") as threads:

            async def handle(message: Message[T]) -> None:
                failure = await asyncio.get_running_loop().run_in_executor(threads, _failure, handler, message)
                if isinstance(failure, Exception):
                    raise failure
                if isinstance(failure, SystemExit | KeyboardInterrupt):
                    ended.append(failure)
                    raise StopConsuming
                if failure is not None:
                    raise RuntimeError(f"the handler raised {failure!r}") from failure

            work = self._thread.begin(self._inner._consume(_unpack, self, handle, plan, ending))
            try:
                while stop is not None and not work.done():
                    if stop.wait(STOP_LOOK_S):
                        break
                if stop is not None:
                    self._thread.tell(ending.set)
                acked = work.result()
                if ended:
                    raise ended[0]
                return acked
            except CancelledError:
                raise Unavailable("this client was closed meanwhile") from None
            except KeyboardInterrupt:
                self._thread.tell(ending.set)
                work.result()
                raise

    def close(self) -> None:
        """Finishes what is under way, then ends all connections."""
        if self._closed:
            return
        self._closed = True
        _open.discard(self)
        if self._thread.alive:
            try:
                self._run(self._inner.close())
            finally:
                self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


CLOSE_WITHIN_S = 15.0  # of a client that was left open when its process ends
STOP_LOOK_S = 0.1  # how often a consumer that runs in threads looks whether it is to stop
_open: weakref.WeakSet[Client[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A folder that this process owns is handed over in good order when it ends. What hangs must not keep it alive: all
    that was confirmed is durable."""
    for client in list(_open):
        if not client._thread.alive:
            continue
        try:
            client._thread.run(client._inner.close(), CLOSE_WITHIN_S)
        except Exception as error:  # of this one: the others are still to be closed
            log.warning("a client that was left open could not be closed as its process ended: %s", error)
