"""The fast lane, seen from the client: puts become blocks, acks become ranges of parcels, each batched per queue.

A block is put as a whole or not at all; if the node refuses one because of one message in it, the messages are put
one by one in a plain put, so that the good ones work beside the bad one. Acks of messages from the same parcel are
merged: a thousand messages fetched together are acked by one range.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from capellini.client.batch import Batcher
from capellini.client.messages import Held, Origin
from capellini.client.patient import PatientService
from capellini.model.errors import CapelliniError, Invalid, Stale, Unknown
from capellini.model.message import MAX_DELAY_S, NewMessage
from capellini.model.options import check_name
from capellini.model.service import Done, ParcelAck, Problem, Put

Item = tuple[bytes, dict[str, str] | None, int]  # body, attributes, delay_ms: as in `model.message.Entry`
I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

MAX_BATCHERS: Final = 1_024  # of queues used lately; idle ones beyond are forgotten
ITEM_BYTES: Final = 16  # around a body on the wire, at most
_DONE: Final = Done()
_STALE: Final = Problem(
    Stale.name, "the delivery is no longer valid: the message was acked, nacked or purged, or its visibility ended"
)
_DOUBTFUL: Final = Problem(
    Unknown.name, "an answer was lost, and now the delivery is not valid: it may have been acked by that attempt"
)


def item_bytes(body: bytes, attributes: dict[str, str] | None) -> int:
    """About what it takes on the wire."""
    if attributes is None:
        return len(body) + ITEM_BYTES
    around = sum(len(name) + len(str(value)) + ITEM_BYTES for name, value in attributes.items())
    return len(body) + ITEM_BYTES + around


class _PerQueue(Generic[I, R]):
    """A batcher for each queue in use."""

    def __init__(self, send: Callable[[str, list[I]], Awaitable[list[R]]]) -> None:
        self._send = send
        self._batchers: dict[str, Batcher[I, R]] = {}

    def of(self, queue: str) -> Batcher[I, R]:
        batcher = self._batchers.get(queue)
        if batcher is None:
            check_name(queue)
            if len(self._batchers) >= MAX_BATCHERS:
                self._batchers = {name: each for name, each in self._batchers.items() if each.busy}
            batcher = self._batchers[queue] = Batcher(lambda items: self._send(queue, items))
        return batcher

    async def close(self) -> None:
        for batcher in list(self._batchers.values()):
            await batcher.close()


class Puts:
    def __init__(self, service: PatientService) -> None:
        self._service = service
        self._plain: _PerQueue[Item, Put | Problem] = _PerQueue(self._block)
        self._single: _PerQueue[NewMessage, Put | Problem] = _PerQueue(self._one_by_one)

    async def plain(self, queue: str, items: list[Item], sizes: list[int]) -> list[Put | Problem]:
        """Messages without a key."""
        return await self._plain.of(queue).submit(items, sizes)

    async def mixed(self, queue: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        """Keyed puts may be repeated freely, others not: they never share a request."""
        results: list[Put | Problem | None] = [None] * len(messages)
        plain = [index for index, message in enumerate(messages) if message.key is None]
        items = [as_item(messages[index]) for index in plain]  # first: a wrong delay is said before anything is put
        keyed = [index for index, message in enumerate(messages) if message.key is not None]
        if keyed:
            chosen = [messages[index] for index in keyed]
            sizes = [item_bytes(message.body, message.attributes) for message in chosen]
            for index, result in zip(keyed, await self._single.of(queue).submit(chosen, sizes), strict=True):
                results[index] = result
        if plain:
            sizes = [item_bytes(item[0], item[1]) for item in items]
            for index, result in zip(plain, await self.plain(queue, items, sizes), strict=True):
                results[index] = result
        return results  # type: ignore[return-value]  # all are filled now

    async def _block(self, queue: str, items: list[Item]) -> list[Put | Problem]:
        try:
            runs = await self._service.put_block(queue, msgspec.msgpack.encode(items))
        except Invalid as error:
            if len(items) == 1:
                return [Problem.of(error)]
            return await self._one_by_one(queue, [NewMessage(raw, more or {}, ms / 1000) for raw, more, ms in items])
        except CapelliniError as error:
            return [Problem.of(error)] * len(items)
        return [Put(str(id)) for first, count in runs for id in range(first, first + count)]

    async def _one_by_one(self, queue: str, messages: list[NewMessage]) -> list[Put | Problem]:
        try:
            return await self._service.put(queue, messages)
        except CapelliniError as error:
            return [Problem.of(error)] * len(messages)

    async def close(self) -> None:
        await self._plain.close()
        await self._single.close()


def as_item(message: NewMessage) -> Item:
    return (message.body, message.attributes or None, delay_ms(message.delay_s))


def delay_ms(delay_s: float) -> int:
    """Raises Invalid when out of range."""
    if not 0 <= delay_s <= MAX_DELAY_S:
        raise Invalid(f"delay_s goes from 0 to {MAX_DELAY_S:g}, not {delay_s!r}")
    return round(delay_s * 1000)


class Acks:
    def __init__(self, service: PatientService) -> None:
        self._service = service
        self._lanes: _PerQueue[Held[Any] | str, Done | Problem] = _PerQueue(self._send)

    async def ack(self, queue: str, messages: Sequence[Held[Any] | str]) -> list[Done | Problem]:
        for message in messages:
            if not isinstance(message, str) and message._origin.queue != queue:
                raise Invalid(f"this message is of the queue {message.queue!r}, not of {queue!r}")
        return await self._lanes.of(queue).submit(messages)

    async def _send(self, queue: str, messages: list[Held[Any] | str]) -> list[Done | Problem]:
        texts = [message for message in messages if isinstance(message, str)]
        results: list[Done | Problem] = [_DONE] * len(messages)
        if len(texts) < len(messages):
            await self._parcels(queue, messages, results)
        if texts:
            answers = await self._receipts(queue, texts)
            places = (index for index, message in enumerate(messages) if isinstance(message, str))
            for index, answer in zip(places, answers, strict=True):
                results[index] = answer
        return results

    async def _receipts(self, queue: str, texts: list[str]) -> list[Done | Problem]:
        try:
            return await self._service.ack(queue, texts)
        except CapelliniError as error:
            return [Problem.of(error)] * len(texts)

    async def _parcels(self, queue: str, messages: list[Held[Any] | str], results: list[Done | Problem]) -> None:
        origins: dict[Origin, list[int]] = {}  # to the indexes of its messages in the parcel
        for message in messages:
            if not isinstance(message, str):
                origins.setdefault(message._origin, []).append(message._index)
        acks = [_parcel_ack(origin, indexes) for origin, indexes in origins.items()]
        try:
            answers, doubtful = await self._service.settle_acks(queue, acks)
        except CapelliniError as error:
            bad: dict[Origin, set[int]] = {origin: set() for origin in origins}
            problem = Problem.of(error)
        else:
            bad = {
                origin: _covered(done)
                for origin, asked, done in zip(origins, acks, answers, strict=True)
                if done != asked.ranges
            }
            problem = _DOUBTFUL if doubtful else _STALE
        if not bad:
            return
        for place, message in enumerate(messages):
            if not isinstance(message, str) and message._origin in bad and message._index not in bad[message._origin]:
                results[place] = problem

    async def close(self) -> None:
        await self._lanes.close()


def _covered(ranges: Sequence[tuple[int, int]]) -> set[int]:
    return {index for offset, count in ranges for index in range(offset, offset + count)}


def _parcel_ack(origin: Origin, indexes: list[int]) -> ParcelAck:
    parcel = origin.parcel
    ranges = ranges_of(indexes)
    return ParcelAck(parcel.generation, parcel.first, parcel.count, parcel.version, parcel.code, ranges)


def ranges_of(indexes: list[int]) -> list[tuple[int, int]]:
    """Indexes as ranges (offset, count), in order, each index once."""
    if len(indexes) > 1 and indexes == list(range(indexes[0], indexes[0] + len(indexes))):
        return [(indexes[0], len(indexes))]  # a whole run in order, the usual case
    ranges: list[tuple[int, int]] = []
    start = end = -1
    for index in sorted(set(indexes)):
        if index != end:
            if end > start:
                ranges.append((start, end - start))
            start = index
        end = index + 1
    ranges.append((start, end - start))
    return ranges
