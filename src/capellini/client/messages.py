"""A delivered message in the hands of its consumer.

A get answers with parcels: runs of messages under one authentication code. Each entry of a parcel is decoded
straight into a message object; what all of a parcel share is kept once, in its `Origin`, and ids and receipts are
made only when asked for. So a message costs one object, whatever the rate.

    Parcel (wire) ──▶ Origin ◀── Held, Held, Held ...    each with its index in the parcel

Log queues answer with parcels of chunks, see `batches`. Timed queues answer with deliveries, one by one; those of one
answer share an Origin that keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import repeat
from typing import Any, Generic, TypeVar

import msgspec

from capellini.client.codecs import Codec
from capellini.model.chunks import attributes_of, bodies_of, heads_of
from capellini.model.message import Delivery
from capellini.model.receipts import receipts_of
from capellini.model.service import Parcel

T = TypeVar("T")
H = TypeVar("H", bound="Held[Any]")


class Origin:
    """What all messages of one parcel share."""

    block: bytes | None = None  # of a log queue: its messages, until they are made

    def __init__(self, queue: str, parcel: Parcel | None, client: Any, codec: Codec[Any] | None) -> None:
        self.queue = queue
        self.parcel = parcel
        self.client = client
        self.codec = codec

    @cached_property
    def receipts(self) -> list[str]:
        parcel = self._whole
        return receipts_of(parcel.generation, parcel.first, parcel.count, parcel.version, parcel.code)

    @property
    def _whole(self) -> Parcel:
        assert self.parcel is not None
        return self.parcel

    @property
    def entries(self) -> msgspec.Raw:
        return self._whole.entries

    def id(self, index: int) -> str:
        return str(self._whole.first + index)

    def deliveries(self, index: int) -> int:
        return self._whole.version

    def put_at(self, index: int) -> float:
        return self._whole.put_at_ms / 1000

    def visible_at(self, index: int) -> float:
        return self._whole.visible_at_ms / 1000


class Deliveries(Origin):
    """What a queue without parcels handed out in one answer."""

    def __init__(self, queue: str, found: list[Delivery], client: Any, codec: Codec[Any] | None) -> None:
        super().__init__(queue, None, client, codec)
        self.found = found

    @cached_property
    def receipts(self) -> list[str]:
        return [each.receipt for each in self.found]

    def id(self, index: int) -> str:
        return self.found[index].id

    def deliveries(self, index: int) -> int:
        return self.found[index].deliveries

    def put_at(self, index: int) -> float:
        return self.found[index].put_at

    def visible_at(self, index: int) -> float:
        return self.found[index].visible_at


class Held(msgspec.Struct, Generic[T], array_like=True, gc=False, eq=False):
    """The first three fields are those of `model.message.Entry`, as decoded; the others are filled in right after."""

    raw: bytes  # the body as it was put
    _attributes: dict[str, str] | None = None
    _delay_ms: int = 0
    _origin: Any = None
    _index: Any = 0
    _body: Any = None

    @property
    def body(self) -> T:
        """The body, decoded by the client's codec at the first use. Raises Invalid if the codec cannot read it."""
        codec = self._origin.codec
        if codec is None:
            return self.raw  # type: ignore[return-value]  # bytes is T when there is no codec
        if self._body is None:
            self._body = codec.decode(self.raw)
        return self._body  # type: ignore[no-any-return]

    @property
    def queue(self) -> str:
        return self._origin.queue  # type: ignore[no-any-return]

    @property
    def id(self) -> str:
        return self._origin.id(self._index)  # type: ignore[no-any-return]

    @property
    def receipt(self) -> str:
        """Proof of this delivery, as text: any process may ack with it."""
        return self._origin.receipts[self._index]  # type: ignore[no-any-return]

    @property
    def attributes(self) -> dict[str, str]:
        if self._attributes is None:
            self._attributes = {}
        return self._attributes

    @property
    def deliveries(self) -> int:
        """How often it was delivered, this one included."""
        return self._origin.deliveries(self._index)  # type: ignore[no-any-return]

    @property
    def put_at(self) -> float:
        """Seconds since 1970."""
        return self._origin.put_at(self._index)  # type: ignore[no-any-return]

    @property
    def visible_at(self) -> float:
        """When it is offered to others, unless acked, nacked or extended before: as it was at the delivery."""
        return self._origin.visible_at(self._index)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<message {self.id} of {self.queue!r}, {len(self.raw)} bytes, delivery {self.deliveries}>"


class Message(Held[T], array_like=True, gc=False, eq=False):
    """A delivered message. Ack it when its work is done; else it is offered again when its visibility ends."""

    def ack(self) -> None:
        """Done for good. Raises Stale if the delivery is no longer valid, Unknown if the answer was lost."""
        self._origin.client.ack(self._origin.queue, self)

    def nack(self, delay_s: float | None = None) -> None:
        """Give it back, to be offered after `delay_s` (None: as the queue's options say)."""
        self._origin.client.nack(self._origin.queue, self, delay_s)

    def extend(self, visibility_s: float) -> float | None:
        """Keep it hidden for so long from now on; until when."""
        done: float | None = self._origin.client.extend(self._origin.queue, self, visibility_s)
        return done


class AsyncMessage(Held[T], array_like=True, gc=False, eq=False):
    """A delivered message. Ack it when its work is done; else it is offered again when its visibility ends."""

    async def ack(self) -> None:
        """Done for good. Raises Stale if the delivery is no longer valid, Unknown if the answer was lost."""
        await self._origin.client.ack(self._origin.queue, self)

    async def nack(self, delay_s: float | None = None) -> None:
        """Give it back, to be offered after `delay_s` (None: as the queue's options say)."""
        await self._origin.client.nack(self._origin.queue, self, delay_s)

    async def extend(self, visibility_s: float) -> float | None:
        """Keep it hidden for so long from now on; until when."""
        done: float | None = await self._origin.client.extend(self._origin.queue, self, visibility_s)
        return done


def unpacker(kind: type[H]) -> Callable[[Origin], list[H]]:
    """How to make the messages of a parcel, as objects of this class."""
    decode: Callable[[msgspec.Raw], list[H]] = msgspec.msgpack.Decoder(list[kind]).decode  # type: ignore[valid-type]

    def unpack(origin: Origin) -> list[H]:
        if origin.block is not None:
            block, origin.block = origin.block, None
            return unpack_chunks(kind, origin, block)
        if isinstance(origin, Deliveries):
            messages = [kind(each.body, each.attributes or None) for each in origin.found]
        else:
            messages = decode(origin.entries)
        for index, message in enumerate(messages):
            message._origin = origin
            message._index = index
            message._body = None
        return messages

    return unpack


def unpack_chunks(kind: type[H], origin: Origin, block: bytes) -> list[H]:
    """The messages of a parcel of chunks, as objects of this class."""
    messages: list[H] = []
    for head in heads_of(block):
        start, bodies = len(messages), bodies_of(block, head)
        if head.flags:
            pairs = zip(bodies, attributes_of(block, head), strict=True)
            messages += [kind(body, given, 0, origin, at) for at, (body, given) in enumerate(pairs, start)]
        else:
            numbers = range(start, start + len(bodies))
            messages += map(kind, bodies, repeat(None), repeat(0), repeat(origin), numbers)  # the fastest of the loops
    return messages
