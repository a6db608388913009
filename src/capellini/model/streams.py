"""The frames of streams of log queues: one binary WebSocket message each: a MessagePack array, its name first.

    producer ──▶ node    ["put", number, chunk]                       number: the producer's own, for the answer
    node ──▶ producer    ["confirmed", number, extent, first, count, duplicate]
                         ["refused", number, error, says, retry after (seconds) or nil]

    consumer ──▶ node    ["credit", messages, bytes or nil]           so many more may come; nil: bytes do not matter
                         ["settle", number, [item, …]]                item: `model.log.Settle`
                         ["stop"]                                     nothing more is to come
    node ──▶ consumer    ["deliver", parcel]                          `model.log.LogParcel`, its chunks as they were put
                         ["settled", number, [result, …]]             `model.log.Settled`, one for each item
                         ["stopped"]                                  nothing more will come

    node ──▶ both        ["reconnect", reason, [address, …]]          elsewhere if an address is named, else here later

What is wrong with a frame closes the stream with a code and a reason; what is wrong with a chunk refuses that chunk.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from capellini.model.chunks import MAX_CHUNK_BYTES
from capellini.model.errors import Invalid
from capellini.model.log import LogParcel, Settle, Settled
from capellini.model.message import MAX_DELAY_S, MAX_VISIBILITY_S

MAX_FRAME_BYTES: Final = MAX_CHUNK_BYTES + 65_536  # from a producer: the largest chunk and what is around it
MAX_ASKED_BYTES: Final = 2 * 1024 * 1024  # from a consumer: as many ranges as there may be
MAX_TOLD_BYTES: Final = 64 * 1024 * 1024  # from a node: a parcel is far smaller
MAX_CREDIT: Final = 1_000_000  # messages that a consumer may be ready for: more is a mistake
MAX_CREDIT_BYTES: Final = 1 << 40
MAX_SETTLES: Final = 1_000  # items in one frame
MAX_RANGES: Final = 65_536  # in the items of one frame together: a delivery of which each other message is acked

Number = Annotated[int, Meta(ge=0)]
T = TypeVar("T")


class PutChunk(msgspec.Struct, frozen=True, array_like=True, tag="put", forbid_unknown_fields=True, gc=False):
    number: Number
    chunk: bytes


class Confirmed(msgspec.Struct, frozen=True, array_like=True, tag="confirmed", gc=False):
    number: Number
    extent: str
    first: int
    count: int
    duplicate: bool = False


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused", gc=False):
    number: Number
    error: str  # CapelliniError.name
    says: str
    retry_after_s: float | None = None


class Reconnect(msgspec.Struct, frozen=True, array_like=True, tag="reconnect"):
    reason: str
    addresses: list[str]  # HOST:PORT


class Credit(msgspec.Struct, frozen=True, array_like=True, tag="credit", forbid_unknown_fields=True, gc=False):
    messages: int
    bytes: int | None = None


class SettleItems(msgspec.Struct, frozen=True, array_like=True, tag="settle", forbid_unknown_fields=True):
    number: Number
    items: Annotated[list[Settle], Meta(max_length=MAX_SETTLES)]


class Deliver(msgspec.Struct, frozen=True, array_like=True, tag="deliver"):
    parcel: LogParcel


class SettledItems(msgspec.Struct, frozen=True, array_like=True, tag="settled"):
    number: Number
    results: list[Settled]


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop", forbid_unknown_fields=True):
    pass


class Stopped(msgspec.Struct, frozen=True, array_like=True, tag="stopped"):
    pass


FromConsumer = Credit | SettleItems | Stop
ToProducer = Confirmed | Refused | Reconnect
ToConsumer = Deliver | SettledItems | Stopped | Reconnect

encode: Final = msgspec.msgpack.Encoder().encode
FROM_PRODUCER: Final = msgspec.msgpack.Decoder(PutChunk)
FROM_CONSUMER: Final[msgspec.msgpack.Decoder[FromConsumer]] = msgspec.msgpack.Decoder(FromConsumer)
TO_PRODUCER: Final[msgspec.msgpack.Decoder[ToProducer]] = msgspec.msgpack.Decoder(ToProducer)
TO_CONSUMER: Final[msgspec.msgpack.Decoder[ToConsumer]] = msgspec.msgpack.Decoder(ToConsumer)


def decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes | bytearray) -> T:
    """Raises Invalid for what is no frame."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"this is no frame of this stream: {error}") from None


def checked_items(frame: SettleItems) -> list[Settle]:
    """Raises Invalid: what is named must be a part of what was delivered."""
    ranges = 0
    for item in frame.items:
        ranges += len(item.ranges)
        if item.verb not in VERBS:
            raise Invalid(f"{item.verb[:40]!r} is not one of {', '.join(VERBS)}")
        if item.verb == "extend" and item.value_ms is None:
            raise Invalid("extend says for how long, in milliseconds")
        if item.value_ms is not None and item.value_ms < 0:
            raise Invalid(f"{item.verb} for {item.value_ms} ms: that is below zero")
        most_ms = _MOST_MS.get(item.verb)
        if most_ms is not None and (item.value_ms or 0) > most_ms:
            raise Invalid(f"{item.verb} for {item.value_ms} ms: at most for {most_ms}")
        end = item.first + item.count
        for first, count in item.ranges:
            if count < 1 or first < item.first or first + count > end:
                raise Invalid(f"{count} messages from {first} are not of a delivery of {item.count} from {item.first}")
    if ranges > MAX_RANGES:
        raise Invalid(f"a frame settles at most {MAX_RANGES} ranges, not {ranges}")
    return frame.items


_MOST_MS: Final = {"nack": int(MAX_DELAY_S * 1000), "extend": int(MAX_VISIBILITY_S * 1000)}
VERBS: Final = ("ack", "nack", "extend", "release")  # release: nobody has seen it; it does not count as delivered
