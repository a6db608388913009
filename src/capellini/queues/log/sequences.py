"""Sequences of producers: which extent each is bound to, and how far it had come in one that is sealed.

    log_producers (queue, generation, producer + home)     extent, before (its last sequence before that extent), token

A chunk names its producer and a sequence that rises by one. An extent's writer takes chunks only of producers that are
bound to it, and knows their last sequences in memory: so it knows a chunk that came before. A producer is bound to
another extent only when the old one is sealed: then what it has there is settled for good, and the new row's `before`
says it. Both by compare-and-set, so that two nodes never take chunks of one producer.

How far a producer came in a sealed extent is in the memory of who wrote it; others read it off the blocks: every
chunk's header names it. What was found is stored beside the blocks, together with the end it was found for.
"""

from __future__ import annotations

from typing import Final

import msgspec

from capellini.model.chunks import NO_PRODUCER, heads_of
from capellini.model.errors import Unavailable
from capellini.queues.log.extents import Extent
from capellini.queues.log.place import LogPlace
from capellini.queues.log.rows import partition_of, read_blocks
from capellini.queues.trail import TOKEN, follow, new_name, settle_named, text_of
from capellini.store.interface import Batch, Cas, Change, Key, Slice, Value
from capellini.store.schema import LOG_BLOCKS, LOG_PRODUCERS

MAX_PRODUCERS: Final = 65_536  # of one extent: at more it is sealed, so that what is known of them stays small
READ_BYTES: Final = 4 * 1024 * 1024  # at a time
BOUND_TTL_S: Final = 7 * 86_400  # beyond twice the retention: a producer that is silent for longer begins anew
KEY: Final[Key] = ()  # the table has one row per partition


class Bound(msgspec.Struct, frozen=True):
    """Where a producer is bound to. `extent` empty: nowhere yet."""

    extent: str = ""
    before: int = 0
    token: str | None = None


class _Found(msgspec.Struct, frozen=True, array_like=True):
    end: int  # of the extent, when they were read
    size: int  # bytes of all blocks up to it
    last: dict[bytes, int]


def _partition(place: LogPlace, producer: bytes) -> Key:
    return (*place.partition, producer + place.home.encode())


async def read_bound(place: LogPlace, producer: bytes) -> Bound:
    page = await place.store.read(Slice(LOG_PRODUCERS, _partition(place, producer), limit=1))
    values: dict[str, Value] = page.rows[0].values if page.rows else {}
    before = values.get("before")
    return Bound(text_of(values, "extent") or "", before if isinstance(before, int) else 0, text_of(values, TOKEN))


async def bind(place: LogPlace, producer: bytes, seen: Bound, extent: str, before: int) -> bool:
    """False: it was bound by another meanwhile. Raises Unavailable, or Unknown."""
    name = new_name(place.random)
    values: dict[str, Value] = {"extent": extent, "before": before, TOKEN: follow(seen.token, name)}
    cas = Cas(
        LOG_PRODUCERS,
        _partition(place, producer),
        (Change(KEY, {TOKEN: seen.token}, values),),
        ttl_s=2 * int(place.options.retention_s) + BOUND_TTL_S,
        sync=not place.store.alone,  # one log: durable with the first chunk that is taken
    )
    return (await settle_named(place.store, place.clock, cas, KEY, seen.token, name)).applied


async def store_sequences(place: LogPlace, extent: Extent, size: int, last: dict[bytes, int]) -> None:
    """Beside the blocks of a sealed extent. Who reads it compares the end: two sealers may have found different ones,
    and only one of them was first."""
    if not last or extent.end is None:
        return
    record = msgspec.msgpack.encode(_Found(extent.end, size, last))
    stamp_us = None if place.store.alone else extent.opened_ms * 1000 + extent.end
    partition = partition_of(place, extent.name)
    await place.store.write(
        Batch(LOG_BLOCKS, partition, static={"sequences": record}, timestamp_us=stamp_us, frees=True)
    )


async def recover(place: LogPlace, extent: Extent) -> tuple[int, dict[bytes, int]]:
    """Size and last sequences of a sealed extent, read off its blocks unless somebody did before."""
    assert extent.end is not None
    page = await place.store.read(Slice(LOG_BLOCKS, partition_of(place, extent.name), limit=0, columns=("sequences",)))
    record = page.static.get("sequences")
    if isinstance(record, bytes):
        found = msgspec.msgpack.decode(record, type=_Found)
        if found.end == extent.end:
            return found.size, found.last
    place.guards["sequences read off the blocks"] += 1
    size, last = await _scan(place, extent.name, extent.end)
    await store_sequences(place, extent, size, last)
    return size, last


async def _scan(place: LogPlace, extent: str, end: int) -> tuple[int, dict[bytes, int]]:
    last: dict[bytes, int] = {}
    at = size = 0
    while at < end:
        blocks = [block for block in await read_blocks(place, extent, at, READ_BYTES) if at <= block.first < end]
        if not any(block.count for block in blocks):
            raise Unavailable(f"extent {extent} cannot be read from message {at} on: try again")
        for block in blocks:
            size += len(block.chunks)
            for head in heads_of(block.chunks):
                if head.producer != NO_PRODUCER:
                    last[head.producer] = head.sequence
        at = blocks[-1].end
    return size, last
