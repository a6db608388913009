"""Bodies are bytes; a codec turns what a program has into bytes, and back.

"bytes"  as they are        "str"  UTF-8 text        "json"  anything JSON can say
or an object of one's own with `encode` and `decode`
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec

from capellini.model.errors import Invalid

T = TypeVar("T")


@runtime_checkable
class Codec(Protocol[T]):
    def encode(self, body: T, /) -> bytes:
        """The bytes to put."""

    def decode(self, raw: bytes, /) -> T:
        """What `encode` was given."""


class StrCodec:
    def encode(self, body: str, /) -> bytes:
        if not isinstance(body, str):
            raise Invalid(f"the client's codec is str: the body is text, not {type(body).__name__}")
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise Invalid(f"the body cannot be written as UTF-8: {error}") from None

    def decode(self, raw: bytes, /) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise Invalid(f"the body is not UTF-8 text ({error}): read `raw`, or connect with codec='bytes'") from None


class JsonCodec:
    def encode(self, body: Any, /) -> bytes:
        try:
            raw = msgspec.json.encode(body)
            if b"null" in raw and _not_finite(msgspec.to_builtins(body)):
                raise ValueError("it holds nan or an infinity")  # JSON has no word for them: null would arrive
            return raw
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise Invalid(f"the body cannot be written as JSON: {error}") from None

    def decode(self, raw: bytes, /) -> Any:
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid(f"the body is not JSON ({error}): read `raw`, or connect with codec='bytes'") from None


def _not_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_not_finite, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_not_finite, value))
    return False


_BY_NAME: Final[dict[str, Codec[Any] | None]] = {"bytes": None, "str": StrCodec(), "json": JsonCodec()}


def codec_of(chosen: str | Codec[Any]) -> Codec[Any] | None:
    """None stands for bytes as they are: the fastest path asks no codec."""
    if isinstance(chosen, str):
        if chosen not in _BY_NAME:
            raise Invalid(f"{chosen!r} is not a codec: use {', '.join(_BY_NAME)}, or an object with encode and decode")
        return _BY_NAME[chosen]
    if not isinstance(chosen, Codec):
        raise Invalid("a codec of your own has the methods encode and decode")
    return chosen


def raw_bodies(codec: Codec[Any] | None, bodies: Sequence[Any]) -> Sequence[bytes]:
    """The bytes of each. Raises Invalid."""
    if isinstance(bodies, str | bytes | bytearray | memoryview):
        raise Invalid(f"give a list of bodies, not one {type(bodies).__name__}")
    if codec is None and set(map(type, bodies)) == {bytes}:
        return bodies
    return [raw_body(codec, body) for body in bodies]


def raw_body(codec: Codec[Any] | None, body: Any) -> bytes:
    """The bytes of a body. Raises Invalid, naming what to give instead."""
    raw = body if codec is None else codec.encode(body)
    if type(raw) is bytes:
        return raw
    if isinstance(raw, bytearray | memoryview):
        return bytes(raw)
    if codec is None:
        raise Invalid(f"the body is bytes, not {type(raw).__name__}: encode it, or connect with codec='str' or 'json'")
    raise Invalid(f"the codec's encode gave {type(raw).__name__}: it has to give bytes")
