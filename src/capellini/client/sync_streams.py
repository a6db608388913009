"""Streams of log queues for programs without asyncio: the same, each call waiting for its answer.

Calls run on the event loop of the client's own thread. What costs time is done once for many messages there: put and
get them by the hundreds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from capellini.client.async_streams import AsyncProducer, StreamConsumer, delay_ms, raised, visibility_ms
from capellini.client.batches import Batch
from capellini.client.messages import Held
from capellini.model.errors import Unknown
from capellini.model.log import Appended
from capellini.model.service import Done, Problem

T = TypeVar("T")
H = TypeVar("H", bound=Held[Any])
R = TypeVar("R")
LOOK_S = 0.5  # how often a thread that waits for messages looks whether it was interrupted
Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Producer(Generic[T]):
    """Puts through one stream, in order. Use it with `with`; safe for any number of threads."""

    def __init__(self, inner: Callable[[], AsyncProducer[T]], run: Run) -> None:
        self._run = run
        self._inner: AsyncProducer[T] = run(_made(inner))

    def put(self, body: T, *, attributes: Mapping[str, str] | None = None) -> str:
        """Its id, when it is durable."""
        found: str = self._run(self._inner.put(body, attributes=attributes))
        return found

    def put_many(self, bodies: Sequence[T], *, attributes: Mapping[str, str] | None = None) -> list[Appended]:
        """Their places, when all are durable: runs of numbers of an extent. They are put in parts of some thousands: if
        one is refused, its error is raised when the others are done."""
        found: list[Appended] = self._run(self._inner.put_many(bodies, attributes=attributes))
        return found

    def send(self, body: T, *, attributes: Mapping[str, str] | None = None) -> Future[Appended]:
        """Waits only while too much is under way; the future is done when it is durable."""
        (future,) = self.send_many([body], attributes=attributes)
        return future

    def send_many(self, bodies: Sequence[T], *, attributes: Mapping[str, str] | None = None) -> list[Future[Appended]]:
        """The same for many: a future for each part that travels together."""

        async def sent() -> list[Future[Appended]]:
            return [_told(done) for done in await self._inner.send_many(bodies, attributes=attributes)]

        found: list[Future[Appended]] = self._run(sent())
        return found

    def flush(self) -> None:
        """Returns when nothing is under way."""
        self._run(self._inner.flush())

    def close(self) -> None:
        """Waits for what is under way."""
        self._run(self._inner.close())

    def __enter__(self) -> Self:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _told(done: asyncio.Future[Appended]) -> Future[Appended]:
    """The same future for other threads."""
    told: Future[Appended] = Future()
    done.add_done_callback(partial(_tell, told))
    return told


def _tell(told: Future[Appended], done: asyncio.Future[Appended]) -> None:
    if not told.set_running_or_notify_cancel():
        return
    if done.cancelled():
        told.set_exception(Unknown("this client was closed meanwhile: it may have been done"))
    elif (error := done.exception()) is not None:
        told.set_exception(error)
    else:
        told.set_result(done.result())


class MessageBatch(Batch[H]):
    """Messages that were delivered together."""

    def ack(self) -> None:
        """All of them are done. Raises Stale if some were not valid any more, Unknown if that is not known."""
        self._holder.settle_all(self, "ack")

    def nack(self, delay_s: float | None = None) -> None:
        """Give all of them back."""
        self._holder.settle_all(self, "nack", delay_ms(delay_s))

    def extend(self, visibility_s: float) -> None:
        """Keep all of them hidden for so long from now on."""
        self._holder.settle_all(self, "extend", visibility_ms(visibility_s))


class Consumer(Generic[H]):
    """Messages of a group, as they come. Use it with `with`."""

    def __init__(self, inner: Callable[[object], StreamConsumer[H]], run: Run) -> None:
        """`inner` is given whom messages ask to ack them."""
        self._run = run
        self._inner: StreamConsumer[H] = run(_made(lambda: inner(self)))

    def __iter__(self) -> Iterator[H]:
        """One by one, without end; ack each."""
        left = self._inner.left
        while True:
            while left:
                yield left.popleft()
            left.extend(self.batch(LOOK_S))

    def batches(self) -> Iterator[MessageBatch[H]]:
        """The same, as many together as are here: the fastest way."""
        while True:
            if batch := self.batch(LOOK_S):
                yield batch

    def batch(self, wait_s: float | None = None) -> MessageBatch[H]:
        """What is here; else waits for it, for ever, or for so long: then it is empty."""
        return MessageBatch(*self._inner.parts(self._run(self._inner.parcels(wait_s))))

    def settle_all(self, batch: Batch[H], verb: str, value_ms: int | None = None) -> None:
        self._run(self._inner.settle_all(batch, verb, value_ms))

    def ack_many(self, messages: Sequence[Held[Any]]) -> list[Done | Problem]:
        """A result for each, in order."""
        found: list[Done | Problem] = self._run(self._inner.ack_many(messages))
        return found

    def nack_many(self, messages: Sequence[Held[Any]], delay_s: float | None = None) -> list[Done | Problem]:
        found: list[Done | Problem] = self._run(self._inner.nack_many(messages, delay_s))
        return found

    def extend_many(self, messages: Sequence[Held[Any]], visibility_s: float) -> list[Done | Problem]:
        found: list[Done | Problem] = self._run(self._inner.extend_many(messages, visibility_s))
        return found

    def ack(self, queue: str, message: Held[Any]) -> None:
        raised(self.ack_many([message]))

    def nack(self, queue: str, message: Held[Any], delay_s: float | None = None) -> None:
        raised(self.nack_many([message], delay_s))

    def extend(self, queue: str, message: Held[Any], visibility_s: float) -> float | None:
        raised(self.extend_many([message], visibility_s))
        return None

    def close(self) -> None:
        """What was not handed out goes back; acks under way are finished."""
        self._run(self._inner.close())

    def __enter__(self) -> Self:
        self._run(self._inner.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _made(make: Callable[[], R]) -> R:
    """On the client's own event loop, which its events belong to."""
    return make()
