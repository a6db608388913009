"""Streams of log queues for asyncio: `AsyncClient.stream_put` and `AsyncClient.stream` make them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from capellini.client.batches import Batch, StreamOrigin
from capellini.client.chunking import pieces_of
from capellini.client.codecs import Codec, raw_bodies
from capellini.client.messages import Held
from capellini.client.patient import PatientService
from capellini.client.producing import Sending
from capellini.client.streaming import AHEAD, Bad, Receiving, Wanted
from capellini.client.streams import GetLane, GetOpening, PutLane, PutOpening, open_get, open_put
from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError, Invalid, Stale
from capellini.model.log import Appended, LogParcel
from capellini.model.message import MAX_DELAY_S, MAX_VISIBILITY_S, whole_ms
from capellini.model.service import Done, Problem, Service

T = TypeVar("T")
H = TypeVar("H", bound=Held[Any])
_DONE = Done()
_STALE = "the delivery is no longer valid: it was acked or nacked before, or its visibility ended"


def id_of(appended: Appended) -> str:
    """Empty: it was there before, and where is not known any more."""
    return f"{appended.extent}:{appended.first}" if appended.extent else ""


class AsyncProducer(Generic[T]):
    """Puts through one stream, in order. Use it with `async with`; safe for any number of tasks of one event loop."""

    def __init__(
        self, service: PatientService, queue: str, codec: Codec[T] | None, clock: Clock, chance: Chance
    ) -> None:
        opening = PutOpening(queue)

        async def lane(behind: Service, elsewhere: Sequence[str]) -> PutLane:
            return await open_put(behind, opening, elsewhere)

        self.queue = queue
        self._codec = codec
        self._sending = Sending(service, lane, clock, chance)

    async def put(self, body: T, *, attributes: Mapping[str, str] | None = None) -> str:
        """Its id, when it is durable. What several tasks put at the same time travels together."""
        return id_of(await await_one(await self.send_many([body], attributes=attributes)))

    async def put_many(self, bodies: Sequence[T], *, attributes: Mapping[str, str] | None = None) -> list[Appended]:
        """Their places, when all are durable: runs of numbers of an extent. They are put in parts of some thousands: if
        one is refused, its error is raised when the others are done."""
        futures = await self.send_many(bodies, attributes=attributes)
        if len(futures) > 1:
            await asyncio.wait(futures)
        return [await future for future in futures]

    async def send(self, body: T, *, attributes: Mapping[str, str] | None = None) -> asyncio.Future[Appended]:
        """Waits only while too much is under way; the future is done when it is durable."""
        (future,) = await self.send_many([body], attributes=attributes)
        return future

    async def send_many(
        self, bodies: Sequence[T], *, attributes: Mapping[str, str] | None = None
    ) -> list[asyncio.Future[Appended]]:
        """The same for many: a future for each part that travels together."""
        pieces = pieces_of(raw_bodies(self._codec, bodies), attributes)
        await self._sending.take(pieces)
        return [piece.done for piece in pieces]

    async def flush(self) -> None:
        """Returns when nothing is under way."""
        await self._sending.flush()

    async def close(self) -> None:
        """Waits for what is under way."""
        await self._sending.close()

    async def __aenter__(self) -> Self:
        await self._sending.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def await_one(futures: list[asyncio.Future[Appended]]) -> Appended:
    (future,) = futures
    return await future


class AsyncBatch(Batch[H]):
    """Messages that were delivered together."""

    async def ack(self) -> None:
        """All of them are done. Raises Stale if some were not valid any more, Unknown if that is not known."""
        await self._holder.settle_all(self, "ack")

    async def nack(self, delay_s: float | None = None) -> None:
        """Give all of them back."""
        await self._holder.settle_all(self, "nack", delay_ms(delay_s))

    async def extend(self, visibility_s: float) -> None:
        """Keep all of them hidden for so long from now on."""
        await self._holder.settle_all(self, "extend", visibility_ms(visibility_s))


class StreamConsumer(Generic[H]):
    """What the consumers for asyncio and for threads share. `holder` is whom messages and batches ask to ack them:
    itself, unless given; `batch_kind` what it hands out."""

    def __init__(
        self,
        service: PatientService,
        queue: str,
        group: str,
        codec: Codec[Any] | None,
        kind: type[H],
        ahead: int | None,
        visibility_s: float | None,
        clock: Clock,
        chance: Chance,
        holder: object = None,
    ) -> None:
        if visibility_s is not None:
            visibility_ms(visibility_s)
        self.queue, self.group = queue, group
        self._codec, self._kind, self._holder = codec, kind, holder or self
        self.left: deque[H] = deque()  # of a batch that was handed out one by one
        self.receiving = Receiving(service, AHEAD if ahead is None else ahead, clock, chance)
        self._opening = GetOpening(queue, group, visibility_s, self.receiving.deliver)

    async def open(self) -> None:
        async def lane(behind: Service, elsewhere: Sequence[str]) -> GetLane:
            return await open_get(behind, self._opening, elsewhere)

        await self.receiving.open(lane)

    async def close(self) -> None:
        """What was not handed out goes back; acks under way are finished."""
        left = wanted_of(self.left)
        self.left.clear()
        await self.receiving.close(left)

    async def parcels(self, wait_s: float | None) -> list[LogParcel]:
        return await self.receiving.parcels(wait_s)

    def parts(self, parcels: list[LogParcel]) -> tuple[str, list[LogParcel], object, Codec[Any] | None, type[H]]:
        """What a batch is made of."""
        return self.queue, parcels, self._holder, self._codec, self._kind

    async def settle_all(self, batch: Batch[H], verb: str, value_ms: int | None = None) -> None:
        bad = await self.receiving.settle(dict.fromkeys(batch.origins), verb, value_ms)
        if bad:
            raise _worst(batch, bad)

    async def ack_many(self, messages: Sequence[Held[Any]]) -> list[Done | Problem]:
        """A result for each, in order."""
        return await self._settle(messages, "ack", None)

    async def nack_many(self, messages: Sequence[Held[Any]], delay_s: float | None = None) -> list[Done | Problem]:
        return await self._settle(messages, "nack", delay_ms(delay_s))

    async def extend_many(self, messages: Sequence[Held[Any]], visibility_s: float) -> list[Done | Problem]:
        return await self._settle(messages, "extend", visibility_ms(visibility_s))

    async def _settle(self, messages: Sequence[Held[Any]], verb: str, value_ms: int | None) -> list[Done | Problem]:
        if not messages:
            return []
        wanted: Wanted
        if isinstance(messages, Batch):
            wanted = dict.fromkeys(messages.origins)
        else:
            wanted = wanted_of(messages)
        bad = await self.receiving.settle(wanted, verb, value_ms)
        if not bad:
            return [_DONE] * len(messages)
        return [_result(bad.get(message._origin), message._index) for message in messages]


def wanted_of(messages: Iterable[Held[Any]]) -> Wanted:
    found: dict[StreamOrigin, list[int]] = {}
    origin: StreamOrigin | None = None
    for message in messages:
        if message._origin is not origin:
            if not isinstance(message._origin, StreamOrigin):
                raise Invalid("this message is not of a stream: ack it with the client that it came from")
            origin = message._origin
            indexes = found.setdefault(origin, [])
        indexes.append(message._index)
    return {**found}


def _result(found: CapelliniError | set[int] | None, index: int) -> Done | Problem:
    if found is None:
        return _DONE
    if isinstance(found, set):
        return Problem(Stale.name, _STALE) if index in found else _DONE
    return Problem.of(found)


def _worst(batch: Batch[H], bad: Bad) -> CapelliniError:
    """What is to be known of a batch of which not all was settled: an error first, since that is in doubt."""
    for found in bad.values():
        if not isinstance(found, set):
            return found.again()
    stale = sum([len(found) for found in bad.values() if isinstance(found, set)])
    return Stale(f"of {stale} of {len(batch)} messages {_STALE}")


def delay_ms(delay_s: float | None) -> int | None:
    if delay_s is not None and not 0 <= delay_s <= MAX_DELAY_S:
        raise Invalid(f"delay_s goes from 0 to {MAX_DELAY_S:.15g}, not {delay_s!r}")
    return None if delay_s is None else whole_ms(delay_s)


def visibility_ms(visibility_s: float) -> int:
    if not 0.1 <= visibility_s <= MAX_VISIBILITY_S:
        raise Invalid(f"visibility_s goes from 0.1 to {MAX_VISIBILITY_S:.15g}, not {visibility_s!r}")
    return whole_ms(visibility_s)


def raised(results: list[Done | Problem]) -> None:
    for result in results:
        if isinstance(result, Problem):
            raise result.raised()


class AsyncConsumer(StreamConsumer[H]):
    """Messages of a group, as they come. Use it with `async with`."""

    def __aiter__(self) -> AsyncIterator[H]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[H]:
        """One by one, without end; ack each. Waits for messages, and for the node."""
        while True:
            while self.left:
                yield self.left.popleft()
            self.left.extend(await self.batch())

    async def batches(self) -> AsyncIterator[AsyncBatch[H]]:
        """The same, as many together as are here: the fastest way."""
        while True:
            yield await self.batch()

    async def batch(self, wait_s: float | None = None) -> AsyncBatch[H]:
        """What is here; else waits for it, for ever, or for so long: then it is empty."""
        return AsyncBatch(*self.parts(await self.parcels(wait_s)))

    async def ack(self, queue: str, message: Held[Any]) -> None:
        raised(await self.ack_many([message]))

    async def nack(self, queue: str, message: Held[Any], delay_s: float | None = None) -> None:
        raised(await self.nack_many([message], delay_s))

    async def extend(self, queue: str, message: Held[Any], visibility_s: float) -> float | None:
        raised(await self.extend_many([message], visibility_s))
        return None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
