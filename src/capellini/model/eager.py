"""Coroutines that are begun at once: without a task, as far as they do not wait.

    begun(work) ──▶ runs now ──┬─▶ over: its result, and no task was needed
                               └─▶ waits for something: `Going`, the rest of it, for whoever makes a task of that

A call that finds all it needs in memory is over before a task for it would have had its first turn. What is begun so
runs in whatever called it: until its first wait it has no task of its own, and nobody can cancel it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Going(Coroutine[Any, Any, T], Generic[T]):
    """A coroutine that was begun and waits. To be made a task of, or awaited, once."""

    __slots__ = ("_told", "_waits", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], waits: Any) -> None:
        self._work, self._waits, self._told = work, waits, False
        if waits is not None:  # a future, marked as one whose waiter is about to be known: that is later here,
            waits._asyncio_future_blocking = False  # and others may want to wait for it until then

    def send(self, value: Any) -> Any:
        if self._told:
            return self._work.send(value)
        self._told = True
        if self._waits is not None:
            self._waits._asyncio_future_blocking = True
        return self._waits

    def throw(self, *error: Any) -> Any:
        self._told = True
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[Any], Any] = self.send
        given: Any = None
        while True:
            try:
                waits = step(given)
            except StopIteration as over:
                result: T = over.value
                return result
            try:
                step, given = self.send, (yield waits)
            except BaseException as error:
                step, given = self.throw, error


def begun(work: Coroutine[Any, Any, T], context: Context | None = None) -> T | Going[T]:
    """Its result, if it waits for nothing; else the rest of it. Raises what it raises until then. `context`: where it
    runs, also later."""
    try:
        waits = work.send(None) if context is None else context.run(work.send, None)
    except StopIteration as over:
        result: T = over.value
        return result
    return Going(work, waits)
