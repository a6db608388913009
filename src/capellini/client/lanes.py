"""The fast lane, seen from the client: puts become blocks, acks become ranges of parcels, each batched per queue.

A block is put as a whole or not at all; if the node refuses one because of one message in it, the messages are put
one by one in a plain put, so that the good ones work beside the bad one. Acks of messages from the same parcel are
merged: a thousand messages fetched together are acked by one range.

Blocks and parcels are of work queues. Log queues have chunks instead (`model.chunks`), and the same is done with those.
Timed queues have neither: they use the plain calls. A queue of another kind refuses a lane as WrongKind; then the next
one is tried, and that is remembered (`Kinds`), so that it costs a request or two in vain now and then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

from capellini.client.batch import Batcher
from capellini.client.batches import PulledOrigin, StreamOrigin
from capellini.client.codecs import Codec
from capellini.client.groups import RelayedLog, has_log
from capellini.client.messages import Deliveries, Held, Origin
from capellini.client.patient import STALE_SAYS, PatientService
from capellini.model import chunks
from capellini.model.clock import Clock
from capellini.model.errors import CapelliniError, Invalid, Stale, Unknown, WrongKind
from capellini.model.log import AT, Appended, Settled, check_place, split_name
from capellini.model.message import NewMessage, attributes_problem, whole_ms
from capellini.model.service import Done, ParcelAck, Problem, Put, QueueInfo
from capellini.model.timed import MAX_DUE_S

Item = tuple[bytes, dict[str, str] | None, int]  # body, attributes, delay_ms: as in `model.message.Entry`
I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

PLAIN_FOR_S: Final = 60.0  # a queue that was refused the fast lane is not offered it again for so long
MAX_BATCHERS: Final = 1_024  # of queues used lately; idle ones beyond are forgotten
ITEM_BYTES: Final = 16  # around a body on the wire, at most
GET_BYTES: Final = 4 * 1024 * 1024  # of one get of a log queue
CHUNK_BYTES: Final = 1024 * 1024  # of one chunk: a block of a log queue
BLOCKS: Final = "blocks"  # of work queues
CHUNKS: Final = "chunks"  # of log queues
PLAIN: Final = "plain"  # of all
_DONE: Final = Done()
_ATTRIBUTES: Final = itemgetter(1)  # of an Item
_DELAY: Final = itemgetter(2)
_STALE: Final = Problem(Stale.name, STALE_SAYS)
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
    """Which lane queues take, as far as this client knows. Forgotten after a while: a queue may have been deleted and
    made anew as another kind, and plain calls work on every kind."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[str, float]] = {}  # lane, and until when that is believed

    def lane(self, queue: str) -> str:
        lane, until_s = self._known.get(queue) or (CHUNKS if AT in queue else BLOCKS, 0.0)
        if until_s and self._clock.elapsed_s() >= until_s:
            del self._known[queue]
            return self.lane(queue)
        return lane

    def plain(self, queue: str) -> bool:
        return self.lane(queue) == PLAIN

    def refused(self, queue: str, lane: str, has_log: bool) -> None:
        """The queue is of another kind than was thought. It is not asked of which: a side of a cut that takes puts may
        not know. `has_log`: there are log queues at all."""
        self._learn(queue, CHUNKS if lane == BLOCKS and has_log else PLAIN)

    def _learn(self, queue: str, lane: str) -> None:
        if len(self._known) >= MAX_BATCHERS:
            self._known.clear()
        self._known[queue] = lane, self._clock.elapsed_s() + PLAIN_FOR_S

    def learn(self, info: QueueInfo) -> QueueInfo:
        if info.kind == "work":
            self._known.pop(info.name, None)
        else:
            self._learn(info.name, CHUNKS if info.kind == "log" else PLAIN)
        return info


class Puts:
    def __init__(self, service: PatientService, kinds: Kinds) -> None:
        self._service = service
        self._log = RelayedLog(service)
        self._kinds = kinds
        self._plain: _PerQueue[Item, Put | Problem] = _PerQueue(self._block)
        self._single: _PerQueue[NewMessage, Put | Problem] = _PerQueue(self._one_by_one)
        self._unkeyed: _PerQueue[NewMessage, Put | Problem] = _PerQueue(self._one_by_one)

    async def plain(self, queue: str, items: list[Item], sizes: list[int]) -> list[Put | Problem]:
        """Messages without a key."""
        return await self._plain.of(queue).submit(items, sizes)

    async def mixed(self, queue: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        """Keyed puts may be repeated freely, others not: they never share a request."""
        messages = list(messages)  # as of now, whatever is done to the caller's list meanwhile
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
        lane = self._kinds.lane(queue)
        if lane == PLAIN or (lane == CHUNKS and any(map(_DELAY, items))):  # a chunk knows no delay
            return await self._one_by_one(queue, [as_message(item) for item in items])
        try:
            if lane == CHUNKS:
                return await self._chunks(queue, items)
            runs = await self._service.put_block(queue, msgspec.msgpack.encode(items))
        except WrongKind:
            self._kinds.refused(queue, lane, has_log(self._service.behind))
            return await self._block(queue, items)
        except Invalid as error:
            if len(items) == 1:
                return [Problem.of(error)]
            return await self._one_by_one(queue, [as_message(item) for item in items])
        except CapelliniError as error:
            return [Problem.of(error)] * len(items)
        return [put for first, count in runs for put in map(Put, map(str, range(first, first + count)))]

    async def _chunks(self, queue: str, items: list[Item]) -> list[Put | Problem]:
        """One chunk, or as many as it takes, one after the other. Raises Invalid when the only one is refused."""
        if AT in queue:
            return await self._one_by_one(queue, [as_message(item) for item in items])  # which says what is wrong
        runs = chunks.cut([item_bytes(item[0], item[1]) for item in items], CHUNK_BYTES)
        results: list[Put | Problem] = []
        for start, end in runs:
            some = items[start:end]
            attributes = [item[1] for item in some] if any(map(_ATTRIBUTES, some)) else None
            try:
                done = await self._log.append(queue, _packed([item[0] for item in some], attributes))
            except Invalid as error:
                if len(runs) == 1 or isinstance(error, WrongKind):
                    raise
                results += await self._one_by_one(queue, [as_message(item) for item in some])
            except CapelliniError as error:
                if len(runs) == 1:
                    raise
                results += [Problem.of(error)] * len(some)
            else:
                results += _puts_of(done)
        return results

    async def _one_by_one(self, queue: str, messages: list[NewMessage]) -> list[Put | Problem]:
        try:
            return await self._service.put(queue, messages)
        except CapelliniError as error:
            return [Problem.of(error)] * len(messages)

    async def close(self) -> None:
        await self._plain.close()
        await self._single.close()
        await self._unkeyed.close()


def _packed(bodies: list[bytes], attributes: list[dict[str, str] | None] | None) -> bytes:
    """Raises Invalid for attributes that cannot be sent at all."""
    try:
        return chunks.pack(bodies, attributes)
    except (TypeError, ValueError) as error:
        raise Invalid(f"attributes are a map of text to text: {error}") from None


def _puts_of(done: Appended) -> list[Put | Problem]:
    return [Put(f"{done.extent}:{number}") for number in range(done.first, done.first + done.count)]


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
    says = says or _settings_problem(message)
    return Problem(Invalid.name, says) if says else None


def _settings_problem(message: NewMessage) -> str | None:
    key: object = message.key
    delay_s: object = message.delay_s
    due: object = message.due
    if key is not None and not (isinstance(key, str) and _is_utf8(key)):
        return f"key is text, not {key!r}"
    if not isinstance(delay_s, int | float):
        return f"delay_s is a number of seconds, not {delay_s!r}"
    if due is not None and not isinstance(due, datetime | int | float):
        return f"due is a datetime with a zone, or seconds since 1970; not {due!r}"
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
    return whole_ms(delay_s)


class Takes:
    """Gets, by the lane of their queue."""

    def __init__(self, service: PatientService, kinds: Kinds) -> None:
        self._service, self._kinds = service, kinds
        self._log = RelayedLog(service)

    async def take(
        self,
        queue: str,
        holder: object,
        codec: Codec[Any] | None,
        count: int,
        wait_s: float,
        visibility_s: float | None,
    ) -> Sequence[Origin]:
        """Raises WrongKind: if the queue's lane is another one now, ask again."""
        lane = self._kinds.lane(queue)
        try:
            if lane == BLOCKS:
                parcels = await self._service.take(queue, count, wait_s, visibility_s)
                return [Origin(queue, parcel, holder, codec) for parcel in parcels]
            if lane == CHUNKS:
                pulled = await self._log.pull(*split_name(queue), count, GET_BYTES, wait_s, visibility_s)
                return [PulledOrigin(queue, parcel, holder, codec) for parcel in pulled]
        except WrongKind:
            if AT not in queue:  # only log queues have groups
                self._kinds.refused(queue, lane, has_log(self._service.behind))
            raise
        found = await self._service.get(queue, count, wait_s, visibility_s)
        return [Deliveries(queue, found, holder, codec)] if found else []


class Acks:
    def __init__(self, service: PatientService) -> None:
        self._service = service
        self._lanes: _PerQueue[Held[Any] | str, Done | Problem] = _PerQueue(self._send)

    async def ack(self, queue: str, messages: Sequence[Held[Any] | str]) -> list[Done | Problem]:
        messages = list(messages)  # they may wait for others: what is done to the caller's list meanwhile is its own
        for origin in set(origins := _origins(messages)):
            if origin is None:  # what cannot be sent is said here, and not to others whose acks share the request
                for message, of in zip(messages, origins, strict=True):
                    _ = of or receipt_of(message)
            elif origin.queue != queue:
                raise Invalid(f"this message is of the queue {origin.queue!r}, not of {queue!r}")
            elif type(origin) is StreamOrigin:
                raise Invalid("a message of a stream is acked by its own methods, or by its stream's")
        return await self._lanes.of(queue).submit(messages)

    async def _send(self, queue: str, messages: list[Held[Any] | str]) -> list[Done | Problem]:
        results: list[Done | Problem] = [_DONE] * len(messages)
        if not {type(getattr(message, "_origin", None)) for message in messages} - {PulledOrigin}:
            await self._pulled(queue, messages, results)
            return results
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
            texts = [receipt_of(messages[place]) for place in single]
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

    async def _pulled(self, queue: str, messages: Sequence[Any], results: list[Done | Problem]) -> None:
        """Messages of a log queue: as ranges of their deliveries."""
        origins: dict[PulledOrigin, list[int]] = {}  # to the indexes of its messages in the parcel
        for message in messages:
            origins.setdefault(message._origin, []).append(message._index)
        items = [origin.settles("ack", ranges_of(indexes)) for origin, indexes in origins.items()]
        bad: dict[PulledOrigin, tuple[set[int], Problem]] = {}
        try:
            answers: Sequence[Settled | Problem] = await self._service.settle(*split_name(queue), items)
        except CapelliniError as error:
            answers = [Problem.of(error)] * len(items)
        for (origin, indexes), item, answer in zip(origins.items(), items, answers, strict=True):
            if isinstance(answer, Problem):
                bad[origin] = set(indexes), answer
            elif answer.ranges != item.ranges:
                bad[origin] = origin.missing(item.ranges, answer.ranges), _STALE
        for place, message in enumerate(messages if bad else ()):
            missing, problem = bad.get(message._origin, (set[int](), _STALE))
            if message._index in missing:
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


def receipt_of(message: Held[Any] | str) -> str:
    """Raises Invalid."""
    if isinstance(message, Held):
        return message.receipt
    if not isinstance(message, str):
        raise Invalid(f"give a message, or its receipt as text; not {type(message).__name__}")
    if not message.isascii():
        raise Invalid("this is not a receipt: use the one that came with the message")
    return message


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
