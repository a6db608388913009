"""The fast lane, seen from the client: puts become blocks, acks become ranges of parcels, each batched per queue.

A block is put as a whole or not at all; if the node refuses one because of one message in it, the messages are put
one by one in a plain put, so that the good ones work beside the bad one. Acks of messages from the same parcel are
merged: a thousand messages fetched together are acked by one range.

Blocks and parcels are of work queues. A queue of another kind refuses them as WrongKind: then the plain calls are
used, and that is remembered (`Kinds`), so that it costs one request in vain now and then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from capellini.client.batch import Batcher
from capellini.client.messages import Held, Origin
from capellini.client.patient import PatientService
from capellini.model.clock import Clock
from capellini.model.errors import CapelliniError, Invalid, Stale, Unknown, WrongKind
from capellini.model.log import AT, check_place
from capellini.model.message import NewMessage, attributes_problem
from capellini.model.service import Done, ParcelAck, Problem, Put, QueueInfo
from capellini.model.timed import MAX_DUE_S

Item = tuple[bytes, dict[str, str] | None, int]  # body, attributes, delay_ms: as in `model.message.Entry`
I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

PLAIN_FOR_S: Final = 60.0  # a queue that was refused the fast lane is not offered it again for so long
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
            check_place(queue)
            if len(self._batchers) >= MAX_BATCHERS:
                self._batchers = {name: each for name, each in self._batchers.items() if each.busy}
            batcher = self._batchers[queue] = Batcher(lambda items: self._send(queue, items))
        return batcher

    async def close(self) -> None:
        for batcher in list(self._batchers.values()):
            await batcher.close()


class Kinds:
    """Which queues take plain calls only, as far as this client knows. Forgotten after a while: a queue may have been
    deleted and made anew as another kind, and plain calls work on every kind."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._plain_until_s: dict[str, float] = {}

    def plain(self, queue: str) -> bool:
        if AT in queue:
            return True  # only log queues have groups
        until_s = self._plain_until_s.get(queue)
        if until_s is None:
            return False
        if self._clock.elapsed_s() >= until_s:
            del self._plain_until_s[queue]
            return False
        return True

    def is_plain(self, queue: str) -> None:
        if len(self._plain_until_s) >= MAX_BATCHERS:
            self._plain_until_s.clear()
        self._plain_until_s[queue] = self._clock.elapsed_s() + PLAIN_FOR_S

    def learn(self, info: QueueInfo) -> QueueInfo:
        if info.kind == "work":
            self._plain_until_s.pop(info.name, None)
        else:
            self.is_plain(info.name)
        return info


class Puts:
    def __init__(self, service: PatientService, kinds: Kinds) -> None:
        self._service = service
        self._kinds = kinds
        self._plain: _PerQueue[Item, Put | Problem] = _PerQueue(self._block)
        self._single: _PerQueue[NewMessage, Put | Problem] = _PerQueue(self._one_by_one)
        self._unkeyed: _PerQueue[NewMessage, Put | Problem] = _PerQueue(self._one_by_one)

    async def plain(self, queue: str, items: list[Item], sizes: list[int]) -> list[Put | Problem]:
        """Messages without a key."""
        return await self._plain.of(queue).submit(items, sizes)

    async def mixed(self, queue: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        """Keyed puts may be repeated freely, others not: they never share a request."""
        results: list[Put | Problem | None] = [wrong(message) for message in messages]
        good = [at for at, problem in enumerate(results) if problem is None]
        whole = self._kinds.plain(queue) or any(message.due is not None for message in messages)
        blocks = [] if whole else [index for index in good if messages[index].key is None]
        items = [as_item(messages[index]) for index in blocks]  # first: a wrong delay is said before anything is put
        for lane, keyed in ((self._single, True), (self._unkeyed, False)):
            chosen = [at for at in good if (messages[at].key is not None) == keyed and (keyed or whole)]
            if chosen:
                some = [messages[index] for index in chosen]
                sizes = [item_bytes(message.body, message.attributes) for message in some]
                for index, result in zip(chosen, await lane.of(queue).submit(some, sizes), strict=True):
                    results[index] = result
        if blocks:
            sizes = [item_bytes(item[0], item[1]) for item in items]
            for index, result in zip(blocks, await self.plain(queue, items, sizes), strict=True):
                results[index] = result
        return results  # type: ignore[return-value]  # all are filled now

    async def _block(self, queue: str, items: list[Item]) -> list[Put | Problem]:
        if self._kinds.plain(queue):
            return await self._one_by_one(queue, [as_message(item) for item in items])
        try:
            runs = await self._service.put_block(queue, msgspec.msgpack.encode(items))
        except Invalid as error:
            if isinstance(error, WrongKind):
                self._kinds.is_plain(queue)
            elif len(items) == 1:
                return [Problem.of(error)]
            return await self._one_by_one(queue, [as_message(item) for item in items])
        except CapelliniError as error:
            return [Problem.of(error)] * len(items)
        return [put for first, count in runs for put in map(Put, map(str, range(first, first + count)))]

    async def _one_by_one(self, queue: str, messages: list[NewMessage]) -> list[Put | Problem]:
        try:
            return await self._service.put(queue, messages)
        except CapelliniError as error:
            return [Problem.of(error)] * len(messages)

    async def close(self) -> None:
        await self._plain.close()
        await self._single.close()
        await self._unkeyed.close()


def checked(attributes: Mapping[str, str] | None) -> dict[str, str] | None:
    """Raises Invalid: what is wrong is said here, and not to others whose messages would be in the same request."""
    if not attributes:
        return None
    if problem := attributes_problem(attributes):
        raise Invalid(problem)
    return dict(attributes)


def wrong(message: NewMessage) -> Problem | None:
    """What keeps this message from being sent."""
    says = "the body is bytes" if type(message.body) is not bytes else attributes_problem(message.attributes or {})
    return Problem(Invalid.name, says) if says else None


def as_message(item: Item) -> NewMessage:
    body, attributes, delay_ms = item
    return NewMessage(body, attributes or {}, delay_ms / 1000)


def as_item(message: NewMessage) -> Item:
    return (message.body, message.attributes or None, delay_ms(message.delay_s))


def delay_ms(delay_s: float) -> int:
    """Raises Invalid when out of range."""
    if not isinstance(delay_s, int | float):
        raise Invalid(f"delay_s is a number of seconds, not {delay_s!r}")
    if not 0 <= delay_s <= MAX_DUE_S:  # a work queue takes less, and says so
        raise Invalid(f"delay_s goes from 0 to {MAX_DUE_S:.15g}, not {delay_s!r}")
    return round(delay_s * 1000)


class Acks:
    def __init__(self, service: PatientService) -> None:
        self._service = service
        self._lanes: _PerQueue[Held[Any] | str, Done | Problem] = _PerQueue(self._send)

    async def ack(self, queue: str, messages: Sequence[Held[Any] | str]) -> list[Done | Problem]:
        for origin in set(_origins(messages)):
            if origin is not None and origin.queue != queue:
                raise Invalid(f"this message is of the queue {origin.queue!r}, not of {queue!r}")
        return await self._lanes.of(queue).submit(messages)

    async def _send(self, queue: str, messages: list[Held[Any] | str]) -> list[Done | Problem]:
        results: list[Done | Problem] = [_DONE] * len(messages)
        origins = _origins(messages)
        parcels: dict[Origin, Sequence[int]] = {}  # to the places of its messages
        single: list[int] = []
        if (first := origins[0]) is not None and first.parcel is not None and origins.count(first) == len(origins):
            parcels[first] = range(len(origins))  # one parcel, the usual case
        else:
            single = _sorted_out(origins, parcels)
        if parcels:
            await self._parcels(queue, messages, parcels, results)
        if single:
            texts = [_receipt(messages[place]) for place in single]
            for place, answer in zip(single, await self._receipts(queue, texts), strict=True):
                results[place] = answer
        return results

    async def _receipts(self, queue: str, texts: list[str]) -> list[Done | Problem]:
        try:
            return await self._service.ack(queue, texts)
        except CapelliniError as error:
            return [Problem.of(error)] * len(texts)

    async def _parcels(
        self,
        queue: str,
        messages: list[Held[Any] | str],
        parcels: dict[Origin, Sequence[int]],
        results: list[Done | Problem],
    ) -> None:
        indexes = {origin: [messages[place]._index for place in places] for origin, places in parcels.items()}  # type: ignore[union-attr]
        acks = [_parcel_ack(origin, of) for origin, of in indexes.items()]
        try:
            answers, doubtful = await self._service.settle_acks(queue, acks)
        except CapelliniError as error:
            problem, answers = Problem.of(error), [[] for _ in acks]
        else:
            problem = _DOUBTFUL if doubtful else _STALE
        for origin, asked, done in zip(parcels, acks, answers, strict=True):
            if done != asked.ranges:
                good = _covered(done)
                for place, index in zip(parcels[origin], indexes[origin], strict=True):
                    if index not in good:
                        results[place] = problem

    async def close(self) -> None:
        await self._lanes.close()


def _origins(messages: Sequence[Held[Any] | str]) -> list[Origin | None]:
    """Of each message; None: it is a receipt."""
    return [getattr(message, "_origin", None) for message in messages]


def _sorted_out(origins: list[Origin | None], parcels: dict[Origin, Sequence[int]]) -> list[int]:
    """The places of each parcel's messages go to `parcels`; those that are acked by their receipts are left."""
    places: dict[Origin, list[int]] = {}
    single: list[int] = []
    for place, origin in enumerate(origins):
        if origin is not None and origin.parcel is not None:
            places.setdefault(origin, []).append(place)
        else:
            single.append(place)
    parcels.update(places)
    return single


def _receipt(message: Held[Any] | str) -> str:
    return message if isinstance(message, str) else message.receipt


def _covered(ranges: Sequence[tuple[int, int]]) -> set[int]:
    return {index for offset, count in ranges for index in range(offset, offset + count)}


def _parcel_ack(origin: Origin, indexes: list[int]) -> ParcelAck:
    parcel = origin.parcel
    assert parcel is not None
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
