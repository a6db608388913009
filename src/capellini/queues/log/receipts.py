"""Receipts as text, for callers that take single messages: a parcel's proof, and the message's number in it.

MessagePack [generation, extent, reader, epoch, delivery, first, count, code, number]      as URL-safe base64

Who has a parcel and not its queue's generation makes receipts with generation 0: then the code alone tells.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Final

import msgspec

from capellini.model.errors import Invalid
from capellini.model.log import LogParcel, Settle

MOST_CHARS: Final = 1_000  # names of extents and groups are bounded, and so is this


class Receipt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    generation: int
    extent: str
    reader: str
    epoch: int
    delivery: int
    first: int
    count: int
    code: bytes
    number: int

    def settle(self, verb: str, value_ms: int | None = None) -> Settle:
        return Settle(
            self.extent, self.reader, self.epoch, self.delivery, self.first, self.count, self.code, verb,
            [(self.number, 1)], value_ms,
        )  # fmt: skip


_RECEIPT: Final = msgspec.msgpack.Decoder(Receipt)
_OF_NINE: Final = b"\x99"  # MessagePack: an array of nine
_encode: Final = msgspec.msgpack.Encoder().encode


def receipts_of(generation: int, of: LogParcel | Settle) -> Iterator[str]:
    """Of each message of a delivery. All but the number is written once: three bytes are four characters."""
    shared = (generation, of.extent, of.reader, of.epoch, of.delivery, of.first, of.count, of.code)
    alike = _OF_NINE + b"".join(map(_encode, shared))
    cut = len(alike) // 3 * 3
    start, rest = urlsafe_b64encode(alike[:cut]).decode(), alike[cut:]
    for number in range(of.first, of.first + of.count):
        yield start + urlsafe_b64encode(rest + _encode(number)).rstrip(b"=").decode()


def parse(text: str) -> Receipt:
    """Raises Invalid when it cannot be one. The code is checked by the queue, which knows the secret."""
    try:
        if len(text) > MOST_CHARS:
            raise ValueError("too long")
        receipt = _RECEIPT.decode(urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
        if not receipt.first <= receipt.number < receipt.first + receipt.count < 1 << 62:
            raise ValueError("not in its parcel")
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise Invalid("this is not a receipt: use the one that came with the message") from None
    return receipt
