"""Batches: what a stream delivered together, in the hands of its consumer.

    parcel (wire) ──▶ StreamOrigin ◀── message, message, message …     only if somebody looks at single messages
                          ▲
                        Batch ──▶ bodies                               sliced out of the chunks, nothing else

A program that works on bodies and acks the batch makes no object per message but its body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

from capellini.client.codecs import Codec
from capellini.client.messages import Held, Origin, unpack_chunks
from capellini.model.chunks import bodies_of, heads_of
from capellini.model.errors import Invalid
from capellini.model.log import LogParcel, Settle
from capellini.queues.log.receipts import receipts_of

H = TypeVar("H", bound=Held[Any])
Index = int
Ranges = list[tuple[int, int]]
UNSAID = 0  # the generation in a receipt: a parcel does not tell


class StreamOrigin(Origin):
    """What all messages of one delivery share: what names it, without its messages."""

    def __init__(self, queue: str, parcel: LogParcel, client: Any, codec: Codec[Any] | None) -> None:
        super().__init__(queue, None, client, codec)
        of = parcel
        self._of = (of.extent, of.reader, of.epoch, of.delivery, of.first, of.count, of.code)
        self.first, self.count = parcel.first, parcel.count
        self._extent, self._deliveries = parcel.extent, parcel.deliveries
        self._put_ms, self._visible_ms = parcel.put_ms, parcel.visible_ms

    def settles(self, verb: str, ranges: Ranges | None, value_ms: int | None = None) -> Settle:
        """`ranges`: of indexes; None: all."""
        numbers = [(self.first, self.count)] if ranges is None else [(self.first + at, n) for at, n in ranges]
        return Settle(*self._of, verb, numbers, value_ms)

    def missing(self, asked: Ranges, done: Ranges) -> set[Index]:
        left = {number for first, count in asked for number in range(first, first + count)}
        for first, count in done:
            left.difference_update(range(first, first + count))
        return {number - self.first for number in left}

    @property
    def receipts(self) -> list[str]:
        raise Invalid("a message of a stream is acked by its own methods, or by its stream's")

    def id(self, index: int) -> str:
        return f"{self._extent}:{self.first + index}"

    def deliveries(self, index: int) -> int:
        return self._deliveries

    def put_at(self, index: int) -> float:
        return self._put_ms / 1000

    def visible_at(self, index: int) -> float:
        return self._visible_ms / 1000


class PulledOrigin(StreamOrigin):
    """The same of a get: any process may ack its messages, by their receipts."""

    def __init__(self, queue: str, parcel: LogParcel, client: Any, codec: Codec[Any] | None) -> None:
        super().__init__(queue, parcel, client, codec)
        self.block = parcel.chunks

    @cached_property
    def receipts(self) -> list[str]:
        return list(receipts_of(UNSAID, self.settles("ack", None)))


class Batch(Sequence[H], Generic[H]):
    """Messages that were delivered together. Subclasses add how they are acked."""

    def __init__(
        self, queue: str, parcels: list[LogParcel], holder: Any, codec: Codec[Any] | None, kind: type[H]
    ) -> None:
        self.origins = [StreamOrigin(queue, parcel, holder, codec) for parcel in parcels]
        self._blocks = [parcel.chunks for parcel in parcels]
        self._count = sum([parcel.count for parcel in parcels])
        self._holder, self._codec, self._kind = holder, codec, kind
        self._messages: list[H] | None = None

    @property
    def raws(self) -> list[bytes]:
        """The bodies as they were put."""
        if self._messages is not None:
            return [message.raw for message in self._messages]
        return [raw for block in self._blocks for head in heads_of(block) for raw in bodies_of(block, head)]

    @property
    def bodies(self) -> list[Any]:
        """The bodies, decoded by the client's codec. Raises Invalid if it cannot read one."""
        codec = self._codec
        return self.raws if codec is None else [codec.decode(raw) for raw in self.raws]

    @property
    def messages(self) -> list[H]:
        if self._messages is None:
            self._messages = [
                message
                for origin, block in zip(self.origins, self._blocks, strict=True)
                for message in unpack_chunks(self._kind, origin, block)
            ]
            self._blocks = []
        return self._messages

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[H]:
        return iter(self.messages)

    @overload
    def __getitem__(self, index: int) -> H: ...
    @overload
    def __getitem__(self, index: slice) -> list[H]: ...
    def __getitem__(self, index: int | slice) -> H | list[H]:
        return self.messages[index]
