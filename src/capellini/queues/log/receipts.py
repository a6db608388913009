"""Receipts as text, for callers that take single messages: a parcel's proof, and the message's number in it.

MessagePack [generation, extent, reader, epoch, delivery, first, count, code, number]      as URL-safe base64
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


def receipts_of(generation: int, parcel: LogParcel) -> Iterator[str]:
    """Of each message of a parcel."""
    for number in range(parcel.first, parcel.first + parcel.count):
        receipt = Receipt(
            generation, parcel.extent, parcel.reader, parcel.epoch, parcel.delivery, parcel.first, parcel.count,
            parcel.code, number,
        )  # fmt: skip
        yield urlsafe_b64encode(msgspec.msgpack.encode(receipt)).rstrip(b"=").decode()


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
