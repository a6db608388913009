"""The forms of requests and answers: JSON, MessagePack, and the bare body of one message.

A body is bytes. JSON has no bytes, so that a message in it has `body` (text, sent as UTF-8) or `body_base64`; answers
have `body` when the bytes are UTF-8, else `body_base64`. MessagePack carries bytes in `body`.

Everything is decoded strictly by type: unknown fields and numbers out of range are refused, naming the field. Of a
batch that does not decode as a whole, each item is decoded by itself, so that good items work beside bad ones; that
second look costs only those who err.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Generic, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, Meta, UnsetType

from capellini.api.exchange import JSON, MSGPACK, OCTETS, Request, Response
from capellini.model.errors import Invalid, TooLarge
from capellini.model.message import (
    MAX_ATTRIBUTES,
    MAX_BATCH,
    MAX_KEY_CHARS,
    MAX_VISIBILITY_S,
    MAX_WAIT_S,
    Delivery,
    NewMessage,
    Peeked,
)
from capellini.model.producers import HEADER
from capellini.model.service import ExtendItem, NackItem, Problem
from capellini.model.timed import MAX_DUE_S

PACKED: Final = frozenset((MSGPACK, b"application/x-msgpack", b"application/vnd.msgpack"))
_Q: Final = re.compile(rb";\s*q=([01](?:\.\d{0,3})?)\s*(?:;|$)")
_PLACE: Final = re.compile(r"\$\[(\d+)\]")
MAX_NAME_CHARS: Final = 100  # of a queue, see model.options.NAME
MAX_ID_CHARS: Final = 200  # of a log queue's message: its extent's name has that of a node
MAX_RECEIPT_CHARS: Final = 1_000  # of a log queue's: it names an extent and a group
T = TypeVar("T")

Attributes = Annotated[dict[str, str], Meta(max_length=MAX_ATTRIBUTES)]
Delay = Annotated[float, Meta(ge=0, le=MAX_DUE_S)]  # a work queue takes less, and says so
DueTime = Annotated[datetime, Meta(tz=True)] | float  # RFC 3339 with a zone, or seconds since 1970
Key = Annotated[str, Meta(min_length=1, max_length=MAX_KEY_CHARS)]
Visibility = Annotated[float, Meta(ge=0, le=MAX_VISIBILITY_S)]
Wait = Annotated[float, Meta(ge=0, le=MAX_WAIT_S)]
Count = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
ReceiptText = Annotated[str, Meta(max_length=MAX_RECEIPT_CHARS)]
Start = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
Id = Annotated[str, Meta(max_length=MAX_ID_CHARS)]


class UnsupportedMedia(Exception):
    """The request's Content-Type is not one that this route takes."""


# ---- what requests carry


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to put, in JSON: its body is text in `body`, or any bytes in `body_base64`."""

    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    attributes: Attributes = {}
    delay_s: Delay = 0.0
    key: Key | None = None
    due: DueTime | None = None


class PackedMessage(NewMessage, frozen=True, forbid_unknown_fields=True):
    """A message to put, in MessagePack: its body is bytes."""

    attributes: Attributes = msgspec.field(default_factory=dict)
    delay_s: Delay = 0.0
    key: Key | None = None
    due: DueTime | None = None


class Puts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: Annotated[list[Message], Meta(max_length=MAX_BATCH)]


class PackedPuts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: Annotated[list[PackedMessage], Meta(max_length=MAX_BATCH)]


class LoosePuts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: list[msgspec.Raw]


class RawPut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Query of a put of one bare body."""

    delay_s: Delay = 0.0
    key: Key | None = None
    due: DueTime | None = None


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a call that takes nothing."""


class Get(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: Count = 1
    wait_s: Wait = 0.0
    visibility_s: Visibility | None = None


class Take(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=100_000)]
    wait_s: Wait = 0.0
    visibility_s: Visibility | None = None


class Acks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    receipts: Annotated[list[ReceiptText], Meta(max_length=MAX_BATCH)]


class LooseAcks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    receipts: list[msgspec.Raw]


class Nack(NackItem, frozen=True, forbid_unknown_fields=True):
    receipt: ReceiptText
    delay_s: Visibility | None = None


class Nacks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[Nack], Meta(max_length=MAX_BATCH)]


class Extend(ExtendItem, frozen=True, forbid_unknown_fields=True):
    receipt: ReceiptText
    visibility_s: Visibility


class Extends(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[Extend], Meta(max_length=MAX_BATCH)]


class LooseItems(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: list[msgspec.Raw]


# ---- what answers carry


class Delivered(msgspec.Struct, frozen=True, omit_defaults=True):
    """A delivery in JSON. It has `body` when that is UTF-8, else `body_base64`."""

    id: str
    receipt: str
    attributes: dict[str, str]
    put_at: float
    deliveries: int
    visible_at: float
    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET


class Seen(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message as it is now, in JSON."""

    id: str
    state: str
    attributes: dict[str, str]
    put_at: float
    deliveries: int
    visible_at: float | None = None
    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    origin: str = ""


def json_delivery(each: Delivery) -> Delivered:
    text, raw = text_or_bytes(each.body)
    return Delivered(each.id, each.receipt, each.attributes, each.put_at, each.deliveries, each.visible_at, text, raw)


def json_peeked(each: Peeked) -> Seen:
    text, raw = text_or_bytes(each.body)
    return Seen(
        each.id, each.state, each.attributes, each.put_at, each.deliveries, each.visible_at, text, raw, each.origin
    )


def text_or_bytes(body: bytes) -> tuple[str | UnsetType, bytes | UnsetType]:
    try:
        return body.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, body


# ---- decoding


def packed(request: Request) -> bool:
    """Is the answer to be MessagePack? As Accept says; without a word there, like the request."""
    accept = request.headers.get(b"accept")
    if accept is not None:
        is_packed, is_json = b"msgpack" in accept, b"json" in accept
        if is_packed and is_json and b"q=" in accept:
            return _liking(accept, b"msgpack") >= _liking(accept, b"json")
        if is_packed or is_json:
            return is_packed
    return media(request) in PACKED


def _liking(accept: bytes, name: bytes) -> float:
    """How much a form is liked among several: its q, 0 to 1."""
    said = [each.lower() for each in accept.split(b",") if name in each]
    found = [_Q.search(each) for each in said]
    return max(float(each[1]) if each else 1.0 for each in found)


def media(request: Request) -> bytes:
    """The content type without its parameters; JSON when none was sent."""
    text = request.headers.get(b"content-type")
    if text is None or text == JSON:
        return JSON
    if text == MSGPACK:
        return MSGPACK
    return text.partition(b";")[0].strip().lower()


class Form(Generic[T]):
    """Decoders of one type, by content type."""

    def __init__(self, type: type[T]) -> None:
        self.type = type
        self._json: msgspec.json.Decoder[T] = msgspec.json.Decoder(type)
        self._packed: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(type)

    def read(self, request: Request) -> T:
        """Raises Invalid (naming the field) or UnsupportedMedia. An empty body stands for no fields."""
        kind = media(request)
        if kind == JSON:
            return self.parse(request.body or b"{}", False)
        if kind in PACKED:
            return self.parse(request.body or b"\x80", True)
        raise UnsupportedMedia(kind.decode("latin-1"))

    def parse(self, data: bytes | msgspec.Raw, is_packed: bool) -> T:
        try:
            return (self._packed if is_packed else self._json).decode(data)
        except msgspec.ValidationError as error:
            raise Invalid(f"the request is not as it should be: {self._named(str(error))}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            name = "MessagePack" if is_packed else "JSON"
            lone = None if is_packed else _LONE_SURROGATE.search(bytes(data))
            says = f"{lone[0].decode()} is half of a character: send such bytes as body_base64" if lone else error
            raise Malformed(f"the request is not {name} as it should be: {says}") from None

    def _named(self, says: str) -> str:
        """Fields of what travels as an array have numbers on the wire; people know them by name."""
        config = getattr(self.type, "__struct_config__", None)
        if config is None or not config.array_like:
            return says
        fields: tuple[str, ...] = self.type.__struct_fields__  # type: ignore[attr-defined]
        return _PLACE.sub(lambda found: f"$.{fields[int(found[1])]}", says, 1)


class Malformed(Invalid):
    """Not even JSON or MessagePack: no item can be had from it. `name` stays "invalid"."""


def items_of(request: Request, loose: Form[Any], item: Form[T], most: int = MAX_BATCH) -> list[T | Problem]:
    """One by one, after the whole did not decode: what each item is, or why it is none. `loose` has one field, a list
    of Raw."""
    is_packed = media(request) in PACKED
    raws: Sequence[msgspec.Raw] = getattr(loose.read(request), loose.type.__struct_fields__[0])
    if len(raws) > most:
        raise TooLarge(f"a call has at most {most} items, not {len(raws)}")
    found: list[T | Problem] = []
    for raw in raws:
        try:
            found.append(item.parse(raw, is_packed))
        except Invalid as error:
            found.append(Problem.of(error))
    return found


def new_message(message: Message) -> NewMessage | Problem:
    text, raw = message.body, message.body_base64
    if text is not UNSET and raw is UNSET:
        return NewMessage(text.encode(), message.attributes, message.delay_s, message.key, message.due)
    if raw is not UNSET and text is UNSET:
        return NewMessage(raw, message.attributes, message.delay_s, message.key, message.due)
    return Problem("invalid", "a message has either body (text) or body_base64 (bytes)")


def query_of(request: Request, type: type[T]) -> T:
    """The query as a struct: unknown and repeated parameters are refused, numbers are read."""
    if not request.query:
        return type()
    try:
        pairs = parse_qsl(request.query.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        raise Invalid("the query of the address is not as it should be: use NAME=VALUE&NAME=VALUE") from None
    values = dict(pairs)
    if len(values) != len(pairs):
        raise Invalid("a parameter of the query is given twice: give each once")
    try:
        return msgspec.convert(values, type, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"the query of the address is not as it should be: {error}") from None


# A first half without its second, or a second without its first: the decoder says "truncated", or nothing useful.
_LONE_SURROGATE: Final = re.compile(
    rb"(?<!\\)\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})(?<!\\)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_ATTRIBUTE: Final = b"capellini-attribute-"
_RAW_HEADERS: Final = {b"capellini-delay-s": "delay_s", b"capellini-key": "key", b"capellini-due": "due"}
_PRODUCER: Final = HEADER.encode()
_UNSAID: Final = RawPut()


def raw_message(request: Request) -> NewMessage:
    """One message from a bare body: attributes, delay and key are headers (or query parameters)."""
    query = query_of(request, RawPut)
    headers = request.headers
    attributes: dict[str, str] = {}
    extra: dict[str, str] = {}
    for name, value in headers.items():
        if name.startswith(_ATTRIBUTE):
            attributes[_header_text(name[len(_ATTRIBUTE) :])] = _header_text(value)
        elif name in _RAW_HEADERS:
            extra[_RAW_HEADERS[name]] = _header_text(value)
        elif name.startswith(b"capellini-") and name != _PRODUCER:  # not dropped: the message would be another one
            known = ", ".join([*(each.decode() for each in _RAW_HEADERS), "capellini-attribute-NAME"])
            raise Invalid(f"{_header_text(name)} is not a header of a message: there are {known}")
    if twice := [name for name in extra if getattr(query, name) != getattr(_UNSAID, name)]:
        raise Invalid(f"{twice[0]} is given in the query and as a header: give it once")
    if extra:
        try:
            query = msgspec.convert({**msgspec.structs.asdict(query), **extra}, RawPut, strict=False)
        except msgspec.ValidationError as error:
            raise Invalid(f"a Capellini header is not as it should be: {error}") from None
    return NewMessage(request.body, attributes, query.delay_s, query.key, query.due)


def check_batch(request: Request) -> None:
    """Raises Invalid for what is said of a bare body and would be dropped here: in a batch each message says it."""
    for name in request.headers:
        if name.startswith(b"capellini-") and name != _PRODUCER:
            raise Invalid(f"{_header_text(name)} is for a bare body: in a batch it is a field of each message")
    if request.query:
        name = request.query.partition(b"=")[0][:60]
        raise Invalid(f"{_header_text(name)} in the query is for a bare body: in a batch it is a field of each message")


def _header_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Invalid("a Capellini header is not UTF-8") from None


# ---- encoding

_json_encode = msgspec.json.Encoder().encode
_packed_encode = msgspec.msgpack.Encoder().encode


def answer(request: Request, value: Any, status: int = 200) -> Response:
    if packed(request):
        with contextlib.suppress(OverflowError):  # MessagePack ends at 64 bits, a counter does not: JSON then
            return Response(status, _packed_encode(value), MSGPACK)
    return Response(status, _json_encode(value))


def packed_answer(value: Any) -> Response:
    return Response(200, _packed_encode(value), MSGPACK)


def is_raw(request: Request) -> bool:
    return media(request) == OCTETS
