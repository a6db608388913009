"""Between deliveries and what proves them: parcels with their codes, and the holds that receipts prove."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from capellini.model.errors import Invalid, Stale
from capellini.model.receipts import Receipt, code_of, parse_receipt
from capellini.model.service import Done, Parcel, Problem
from capellini.queues.catalog import QueueRecord
from capellini.queues.work.place import Place
from capellini.queues.work.queue import Held
from capellini.queues.work.reading import Taken

STALE: Final = Problem(Stale.name, "the receipt is of an earlier delivery, or the message is gone")


def parcel_of(generation: int, secret: bytes, taken: Taken) -> Parcel:
    block = taken.block
    entries = block.part(taken.first, taken.first + taken.count)
    code = code_of(secret, generation, taken.first, taken.count, taken.version)
    return Parcel(
        generation, taken.first, taken.count, taken.version, code, block.put_at_ms, taken.until_ms, msgspec.Raw(entries)
    )


def held_by(
    receipts: Sequence[str], record: QueueRecord, place: Place
) -> tuple[list[Held], list[Done | Problem | None], list[int]]:
    """The holds that these receipts prove, a problem for each that proves none, and the place of each hold among the
    receipts."""
    held: list[Held] = []
    results: list[Done | Problem | None] = [None] * len(receipts)
    places: list[int] = []
    codes: dict[tuple[int, int, int], bytes] = {}
    for index, text in enumerate(receipts):
        try:
            receipt = parse_receipt(text)
        except Invalid as error:
            results[index] = Problem.of(error)
            continue
        if receipt.generation != record.generation:
            results[index] = STALE
        elif receipt.code != _code(codes, place, receipt):
            results[index] = Problem(Invalid.name, "the receipt is not of this queue, or was altered")
        else:
            held.append(Held(receipt.id, 1, receipt.version))
            places.append(index)
    return held, results, places


def _code(codes: dict[tuple[int, int, int], bytes], place: Place, receipt: Receipt) -> bytes:
    key = (receipt.first, receipt.count, receipt.version)
    code = codes.get(key)
    if code is None:
        code = codes[key] = code_of(place.secret, receipt.generation, *key)
    return code
