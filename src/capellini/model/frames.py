"""The frames of a channel: one connection that carries many calls at a time, answered in any order.

    length (4 bytes, big endian) ┊ MessagePack array

    call     [id, "POST /v1/queues/jobs/blocks/put", body]      id: above 0, not in use on this channel
             [id, "", b""]                                      the caller of that id went away: a wait is given up
    answer   [id, status, body, retry after (seconds) or nil, media type, empty for MessagePack]
             [0, 0, b"", nil, ""]                                   the node is leaving: no new calls on this channel

Calls, bodies and statuses are those of HTTP with MessagePack both ways, without its heads: a channel exists to spare
a busy client and node the parsing, and a connection for each call that waits.
"""

from __future__ import annotations

import struct
from asyncio import WriteTransport
from typing import Final

import msgspec

from capellini.model.errors import Invalid, TooLarge

UPGRADE: Final = "capellini-channel"  # the name under which a connection is asked to become one
PATH: Final = "/v1/channel"
GIVE_UP: Final = ""
LEAVING_ID: Final = 0
LARGE_BYTES: Final = 65_536  # a body from here on is sent as it lies, and not copied into its frame before
_LENGTH: Final = struct.Struct(">I")
_ARRAY_OF_NONE, _BYTES_32 = 0x90, b"\xc6"  # MessagePack's heads: a short array, and bytes whose length has 32 bits


class Call(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    id: int
    call: str  # method and target
    body: bytes = b""


class Answer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    id: int
    status: int
    body: bytes = b""
    retry_after_s: float | None = None
    media: str = ""  # of the body, where it is not MessagePack


LEAVING: Final = Answer(LEAVING_ID, 0)
_encode: Final = msgspec.msgpack.Encoder().encode


def frame_of(content: Call | Answer) -> bytes:
    encoded = _encode(content)
    return _LENGTH.pack(len(encoded)) + encoded


def send(content: Call | Answer, transport: WriteTransport) -> None:
    """Writes a frame: a large body as it lies, between what goes before and behind it."""
    if len(content.body) < LARGE_BYTES:
        transport.write(frame_of(content))
        return
    id, what, body, *others = fields = msgspec.structs.astuple(content)
    head = bytes((_ARRAY_OF_NONE + len(fields),)) + _encode(id) + _encode(what) + _BYTES_32 + _LENGTH.pack(len(body))
    rest = b"".join(map(_encode, others))
    transport.writelines((_LENGTH.pack(len(head) + len(body) + len(rest)) + head, body, rest))


class Splitter:
    """Cuts what arrives into frames. What is missing of a frame is waited for; a frame that would be too long is
    refused by its first four bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pieces: list[bytes] = []  # of a frame that is not whole
        self._have = 0
        self._need = 0  # before it is worth a look

    @property
    def have(self) -> int:
        """Bytes of a frame that is not whole."""
        return self._have

    @property
    def partial(self) -> bool:
        return self._have > 0

    def forget(self) -> None:
        """What is missing will not come."""
        self._pieces = []
        self._have = self._need = 0

    def feed(self, data: bytes) -> list[memoryview]:
        """The frames that are whole now, without their lengths. Raises TooLarge."""
        if self._pieces:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._pieces)
            self._pieces = []
        frames: list[memoryview] = []
        view, at, end, need = memoryview(data), 0, len(data), _LENGTH.size
        while end - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, at)
            if length > self._most:
                raise TooLarge(f"a frame has at most {self._most} bytes, not {length}")
            need = _LENGTH.size + length
            if at + need > end:
                break
            frames.append(view[at + _LENGTH.size : at + need])
            at += need
            need = _LENGTH.size
        self._have, self._need = end - at, need
        if at < end:
            self._pieces.append(data[at:])
        return frames


_CALLS: Final = msgspec.msgpack.Decoder(Call)
_ANSWERS: Final = msgspec.msgpack.Decoder(Answer)


def call_of(frame: memoryview) -> Call:
    """Raises Invalid."""
    try:
        return _CALLS.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"this is no call: {error}") from None


def answer_of(frame: memoryview) -> Answer:
    """Raises Invalid."""
    try:
        return _ANSWERS.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"this is no answer: {error}") from None
