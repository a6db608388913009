"""Messages on their way in and out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final

import msgspec

from capellini.model.errors import Invalid, TooLarge

MAX_ATTRIBUTES: Final = 32
MAX_ATTRIBUTE_BYTES: Final = 16_384  # names and values of one message together
MAX_KEY_CHARS: Final = 256
MAX_DELAY_S: Final = 31_536_000.0  # a year; what waits longer belongs into a timed queue
MAX_BATCH: Final = 1_000  # messages, receipts or items in one call
MAX_WAIT_S: Final = 60.0  # of a long poll
MAX_VISIBILITY_S: Final = 43_200.0
MAX_PAGE_BYTES: Final = 16 * 1024 * 1024  # of bodies in one look at messages: it ends there, and goes on by `after`


def whole_ms(seconds: float) -> int:
    """In whole milliseconds, never fewer: what waits so long is not early. (A tenth is 100 of them, not 101.)"""
    return math.ceil(round(seconds * 1000, 6))


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    body: bytes
    attributes: dict[str, str] = {}
    delay_s: float = 0.0
    key: str | None = None  # idempotency key: adds nothing twice within the queue's window
    due: datetime | float | None = None  # timed queues: when it may be delivered (with a zone, or seconds since 1970)


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in a block, on the wire and in the store alike: MessagePack [body, attributes or nil, delay_ms,
    origin].

    `origin` is there only for what was moved: where it came from ("queue/generation/id"), for dead letters and their
    way back.
    """

    body: bytes
    attributes: dict[str, str] | None = None
    delay_ms: int = 0
    origin: str | None = None


DelayMs = Annotated[int, msgspec.Meta(ge=0, le=int(MAX_DELAY_S * 1000))]


class NewEntry(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """An entry as a caller may send it: no origin."""

    body: bytes
    attributes: dict[str, str] | None = None
    delay_ms: DelayMs = 0
    origin: None = None


class Delivery(msgspec.Struct, frozen=True):
    id: str
    receipt: str
    body: bytes
    attributes: dict[str, str]
    put_at: float  # seconds since 1970
    deliveries: int  # this one included
    visible_at: float  # when it is offered again unless acked, nacked or extended


class Peeked(msgspec.Struct, frozen=True):
    """A message as it is now, without taking it."""

    id: str
    state: str  # ready, in_flight, delayed
    body: bytes
    attributes: dict[str, str]
    put_at: float
    deliveries: int
    visible_at: float | None = None
    origin: str = ""  # of a dead letter: queue/generation/id that it had


def page_full(found: Sequence[Peeked], count: int) -> bool:
    """Did a look end because it had so many, or so many bytes? Then there may be more, after the last of them."""
    return len(found) >= count or sum(len(each.body) for each in found) >= MAX_PAGE_BYTES


def message_bytes(message: NewMessage) -> int:
    """Of body and attributes, about."""
    return len(message.body) + sum([len(name) + len(value) for name, value in message.attributes.items()])


def attributes_problem(attributes: Mapping[str, str]) -> str | None:
    if len(attributes) > MAX_ATTRIBUTES:
        return f"a message has at most {MAX_ATTRIBUTES} attributes, not {len(attributes)}"
    try:
        size = sum(len(name.encode()) + len(value.encode()) for name, value in attributes.items())
    except (AttributeError, UnicodeEncodeError):  # of a number, say, or half of a surrogate pair
        return "attributes are a map of text to text"
    if size > MAX_ATTRIBUTE_BYTES:
        return f"attributes of a message take at most {MAX_ATTRIBUTE_BYTES} bytes together, not {size}"
    if "" in attributes:
        return "an attribute needs a name"
    return None


def check_message(message: NewMessage, body_limit: int) -> None:
    """Raises Invalid or TooLarge, saying what is wrong with this message."""
    if len(message.body) > body_limit:
        raise TooLarge(f"the body has {len(message.body)} bytes; this queue takes at most {body_limit}")
    if message.attributes and (problem := attributes_problem(message.attributes)):
        raise Invalid(problem)
    if message.due is not None:
        raise Invalid("due is for timed queues: use delay_s, or create the queue with kind timed")
    if not 0 <= message.delay_s <= MAX_DELAY_S:
        raise Invalid(f"delay_s goes from 0 to {MAX_DELAY_S:.15g}, not {message.delay_s!r}")
    if message.key is not None and not 1 <= len(message.key) <= MAX_KEY_CHARS:
        raise Invalid(f"key has 1 to {MAX_KEY_CHARS} characters, not {len(message.key)}")
