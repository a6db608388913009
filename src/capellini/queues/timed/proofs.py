"""Receipts of timed queues: the same form as those of work queues, one message each.

    first = shard (16 bits) │ offset (48 bits)        version = epoch (20 bits) │ delivery (12 bits)

Only the holder of that epoch knows what an offset is, so a receipt is stale with its holder. Counts go round: a
receipt would have to be a million holders, or 4096 deliveries, old to be taken for a new one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from capellini.model.errors import Invalid
from capellini.model.receipts import code_of, parse_receipt, receipts_of

OFFSET_BITS: Final = 48
DELIVERY_BITS: Final = 12
EPOCH_BITS: Final = 20


class Proof(msgspec.Struct, frozen=True, array_like=True):
    shard: int
    offset: int
    epoch: int
    delivery: int


def lower(number: int, bits: int) -> int:
    return number & (1 << bits) - 1


def receipt_of(secret: bytes, generation: int, proof: Proof) -> str:
    first = proof.shard << OFFSET_BITS | proof.offset
    version = lower(proof.epoch, EPOCH_BITS) << DELIVERY_BITS | lower(proof.delivery, DELIVERY_BITS)
    code = code_of(secret, generation, first, 1, version)
    return receipts_of(generation, first, 1, version, code)[0]


def proof_of(secret: bytes, generation: int, text: str) -> Proof | None:
    """None: of another generation, so stale. Raises Invalid for what is no receipt of this queue."""
    receipt = parse_receipt(text)
    if receipt.generation != generation:
        return None
    if receipt.code != code_of(secret, generation, receipt.first, receipt.count, receipt.version):
        raise Invalid("the receipt is not of this queue, or was altered")
    shard, offset = receipt.first >> OFFSET_BITS, lower(receipt.first, OFFSET_BITS)
    return Proof(shard, offset, receipt.version >> DELIVERY_BITS, lower(receipt.version, DELIVERY_BITS))
