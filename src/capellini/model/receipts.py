"""Receipts: proof of one delivery, opaque and tamper-evident, with one authentication code per parcel, not per message.

A parcel is a run of ids of one version under one code (see `service.Parcel`). A message's receipt names its parcel and
its place in it, so that any node that knows the queue's secret can check it alone:

    generation 4 B | first 8 B | count 2 B | index 2 B | version 4 B | code 8 B      as URL-safe base64, 38 characters
"""

from __future__ import annotations

import binascii
import hashlib
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

import msgspec

from capellini.model.errors import Invalid

_FORM: Final = struct.Struct(">IQHHI8s")
_PARCEL: Final = struct.Struct(">IQHI")
_TEXT_CHARS: Final = 38
CODE_BYTES: Final = 8


class Receipt(msgspec.Struct, frozen=True):
    generation: int
    first: int
    count: int
    index: int
    version: int
    code: bytes

    @property
    def id(self) -> int:
        return self.first + self.index


def code_of(secret: bytes, generation: int, first: int, count: int, version: int) -> bytes:
    """The parcel's authentication code."""
    return hashlib.blake2b(_PARCEL.pack(generation, first, count, version), key=secret, digest_size=CODE_BYTES).digest()


def receipts_of(generation: int, first: int, count: int, version: int, code: bytes) -> list[str]:
    """The receipts of all messages of a parcel."""
    return [
        urlsafe_b64encode(_FORM.pack(generation, first, count, index, version, code))[:_TEXT_CHARS].decode()
        for index in range(count)
    ]


def parse_receipt(text: str) -> Receipt:
    """Raises Invalid when it cannot be one. The code is checked by the queue, which knows the secret."""
    if len(text) != _TEXT_CHARS:
        raise Invalid("this is not a receipt: use the one that came with the message")
    try:
        receipt = Receipt(*_FORM.unpack(urlsafe_b64decode(text + "==")))
    except (binascii.Error, ValueError, struct.error):
        raise Invalid("this is not a receipt: use the one that came with the message") from None
    if receipt.index >= receipt.count:
        raise Invalid("this is not a receipt: use the one that came with the message")
    return receipt
