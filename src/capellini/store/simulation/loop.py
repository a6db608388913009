"""An event loop with virtual time: what takes hours runs in seconds, and always the same way.

    ready callbacks ──(none left)──▶ jump to the next timer ──▶ its callback is ready ──▶ ...

There is no selector, no thread and no wall clock. Callbacks run in the order they were scheduled; timers of one
instant in the order they were set. So a run depends on nothing but its code and the chance it was given.

Callbacks have an owner: the simulated client whose task scheduled them (it travels in the context, so that children of
a task belong to its owner too). An owner can be *held* (its callbacks are kept, in order, until it goes on) or *dead*
(they are kept for ever, unrun). Events of the world itself (`at`) have no owner: a message that was sent arrives even
if its sender died.

What fails: nothing left to run while the main task waits is a `Deadlock`; an endless loop in one instant a `Livelock`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

MAX_STEPS_PER_INSTANT: Final = 300_000  # no honest program runs so many callbacks while no time passes
COLLECT_EVERY: Final = 50_000  # a run makes millions of small objects, few of them in cycles
MAX_BURIAL_STEPS: Final = 100_000  # what unwinding cancelled tasks may take at the end of a run
log = logging.getLogger(__name__)


class Deadlock(RuntimeError):
    """Nothing is left that could ever run, and the main task is not done."""


class Livelock(RuntimeError):
    """Callbacks keep scheduling callbacks while virtual time stands still."""


class Owner:
    """Whose callbacks these are."""

    __slots__ = ("dead", "held", "holds", "name", "stopped")

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.stopped = False  # dead, or held
        self.holds = 0  # how many pauses are on; its callbacks run only at 0
        self.held: list[Handle] = []


OWNER: ContextVar[Owner | None] = ContextVar("capellini_simulated_owner", default=None)


class Handle(msgspec.Struct):
    """A callback that can be cancelled, as asyncio's own but lighter: millions of them are made."""

    _callback: Callable[..., object]
    _args: tuple[Any, ...]
    _context: Context
    _cancelled: bool = False

    def cancel(self) -> None:
        self._cancelled = True
        self._args = ()

    def cancelled(self) -> bool:
        return self._cancelled


class VirtualLoop(asyncio.AbstractEventLoop):
    """One run. `seed` is only kept for whoever builds a world in it."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.closing = False  # the main task is done: what still runs is being unwound
        self.restless = 0  # how many owners are held or dead: 0 spares the look at each callback's owner
        self._now_s = 0.0
        self._ready: deque[Handle] = deque()
        self._heap: list[tuple[float, int, Any, tuple[Any, ...] | None]] = []
        self._sequence = 0
        self._daemons = 0
        self._running = False
        self._closed = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 1_000
        self._owners: list[Owner] = []

    # ---- time and callbacks

    def time(self) -> float:
        return self._now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, copy_context() if context is None else context)
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (self._now_s + delay, sequence, handle, None))
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, copy_context() if context is None else context)
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (when, sequence, handle, None))
        return handle

    def at(self, when: float, event: Callable[..., object], *args: Any) -> None:
        """An event of the world: it has no owner and cannot be cancelled."""
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (when, sequence, event, args))

    def at_idle(self, when: float, event: Callable[..., object], *args: Any) -> None:
        """Like `at`, for events that alone keep nothing going: a run with only such events left is a deadlock."""
        self._daemons += 1
        self.at(when, self._idle_event, event, args)

    def _idle_event(self, event: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._daemons -= 1
        event(*args)

    # ---- owners

    def owner(self, name: str) -> Owner:
        owner = Owner(name)
        self._owners.append(owner)
        return owner

    def hold(self, owner: Owner) -> None:
        if not owner.dead:
            owner.holds += 1
            owner.stopped = True
            self.restless += owner.holds == 1

    def release(self, owner: Owner) -> None:
        if owner.dead or owner.holds == 0:
            return
        owner.holds -= 1
        if owner.holds == 0:
            self.restless -= 1
            owner.stopped = False
            self._ready.extend(owner.held)
            owner.held.clear()

    def kill(self, owner: Owner) -> None:
        if not owner.dead:
            self.restless += owner.holds == 0
            owner.dead = owner.stopped = True

    # ---- what asyncio asks of a loop

    get_debug = staticmethod(bool)  # False, without a frame of Python: each future asks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)  # held here: an abandoned task must not be unwound by the garbage collector
        if len(self._tasks) > self._prune_at:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._prune_at = 2 * len(self._tasks) + 1_000
        return task

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        log.error("%s", context.get("message"), exc_info=context.get("exception"))

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("a simulated run has no threads")

    def run_in_executor(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("a simulated run has no threads: what it runs must not use an executor")

    async def shutdown_asyncgens(self) -> None:
        return None

    # ---- running

    def run_until_complete(self, future: Any) -> Any:
        if self._running or events._get_running_loop() is not None:
            raise RuntimeError("a virtual loop cannot run inside another loop")
        self._running = True
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finish_generator)
        events._set_running_loop(self)
        try:
            main = asyncio.ensure_future(future, loop=self)
            self._turn(main)
            return main.result()
        finally:
            try:
                self._bury()
            finally:
                events._set_running_loop(None)
                sys.set_asyncgen_hooks(*hooks)
                self._running = False

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._heap.clear()
        self._tasks.clear()

    def _turn(self, main: asyncio.Future[Any]) -> None:
        heap, ready, pop = self._heap, self._ready, heappop
        steps = 0
        while True:
            while ready:
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                context = handle._context
                if self.restless and (owner := context.get(OWNER)) is not None and owner.stopped:
                    owner.held.append(handle)  # kept for later
                    continue
                context.run(handle._callback, *handle._args)
                steps += 1
                if steps > MAX_STEPS_PER_INSTANT:
                    raise Livelock(f"over {MAX_STEPS_PER_INSTANT} callbacks at {self._now_s:.6f} s; last: {handle!r}")
            if main.done():
                return
            if len(heap) <= self._daemons:
                raise Deadlock(self._stuck())
            when, _, event, args = pop(heap)
            if when > self._now_s:
                self._now_s = when
                steps = 0
            if args is not None:
                event(*args)
            elif not event._cancelled:
                ready.append(event)

    def _stuck(self) -> str:
        waiting = [task for task in self._tasks if not task.done()]
        names = ", ".join(f"{task.get_name()} ({_place(task)})" for task in waiting[:20])
        return f"at {self._now_s:.6f} s nothing is left that could run; {len(waiting)} tasks wait: {names}"

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if self._running and not self.closing:
            self.create_task(generator.aclose())

    def _bury(self) -> None:
        """Unwind what is left, the dead included: no `finally` shall run later, when the garbage collector likes."""
        self.closing = True
        self.restless = 0
        left = [task for task in self._tasks if not task.done()]
        for owner in self._owners:
            owner.dead, owner.stopped, owner.holds = False, False, 0
            self._ready.extend(owner.held)
            owner.held.clear()
        for task in left:
            task.cancel()
        for _ in range(MAX_BURIAL_STEPS):
            if self._ready:
                handle = self._ready.popleft()
                if not handle._cancelled:
                    handle._context.run(handle._callback, *handle._args)
            elif not self._heap or all(task.done() for task in left):
                break
            else:
                when, _, event, args = heappop(self._heap)
                self._now_s = max(when, self._now_s)
                if args is None and not event._cancelled:
                    self._ready.append(event)
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            elif not task.cancelled() and task in left:
                task.exception()  # unwinding may fail; the run itself is over


def _place(task: asyncio.Task[Any]) -> str:
    coro: Any = task.get_coro()
    frame = getattr(coro, "cr_frame", None)
    while (inner := getattr(coro, "cr_await", None)) is not None and getattr(inner, "cr_frame", None) is not None:
        coro, frame = inner, inner.cr_frame
    name = getattr(coro, "__qualname__", "?")
    return f"{name}, line {frame.f_lineno}" if frame is not None else name


def run(main: Coroutine[Any, Any, T], seed: int = 0) -> T:
    """Run a coroutine in virtual time. All it starts is unwound before this returns."""
    loop = VirtualLoop(seed)  # type: ignore[abstract]  # sockets, processes and signals have no place here
    thresholds = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, *thresholds[1:])
    try:
        result: T = loop.run_until_complete(main)
        return result
    finally:
        gc.set_threshold(*thresholds)
        loop.close()
