"""Whole lives of messages, put + get + ack, through a broker in this process.

    blocks   one worker: put a block, get as many, ack them, again      what a batch costs when nothing else helps
    singles  so many workers, each with one message at a time           what grouping saves when there is a crowd
    apart    a producer and a consumer for each of some brokers         what nodes cost each other

All return when everything they put was acked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from capellini.model.errors import Overloaded
from capellini.model.message import Entry, NewMessage
from capellini.model.service import ParcelAck, Problem, Service

BODY: Final = b"x" * 100
WAIT_S: Final = 2.0  # of a get; an empty answer is asked again
VISIBILITY_S: Final = 600.0  # nothing comes back by itself while it is counted


def entries_of(count: int) -> bytes:
    """A block of so many messages, as producers send it."""
    return msgspec.msgpack.encode([Entry(BODY)] * count)


async def blocks(broker: Service, queue: str, messages: int, batch: int) -> None:
    entries = entries_of(batch)
    for _ in range(0, messages, batch):
        await broker.put_block(queue, entries)
        await consumed(broker, queue, batch, batch)


async def filled(broker: Service, queue: str, messages: int, batch: int) -> None:
    """Puts alone."""
    entries = entries_of(batch)
    for _ in range(0, messages, batch):
        await broker.put_block(queue, entries)


async def consumed(broker: Service, queue: str, messages: int, batch: int) -> None:
    """Gets and acks alone."""
    left = messages
    while left:
        left -= await _take_and_ack(broker, queue, min(batch, left))


async def singles(broker: Service, queue: str, messages: int, workers: int) -> None:
    begun = 0

    async def worker() -> None:
        nonlocal begun
        while begun < messages:
            begun += 1
            (put,) = await broker.put(queue, [NewMessage(BODY)])
            if isinstance(put, Problem):
                raise put.raised()
            found = await broker.get(queue, 1, WAIT_S, VISIBILITY_S)
            while not found:  # its own may have gone to another worker, whose message is then on its way
                found = await broker.get(queue, 1, WAIT_S, VISIBILITY_S)
            (done,) = await broker.ack(queue, [found[0].receipt])
            if isinstance(done, Problem):
                raise done.raised()

    await asyncio.gather(*(worker() for _ in range(workers)))


async def apart(brokers: Sequence[Service], queue: str, messages: int, batch: int) -> None:
    entries = entries_of(batch)
    begun = acked = 0

    async def produce(broker: Service) -> None:
        nonlocal begun
        while begun < messages:
            begun += batch
            while True:
                try:
                    await broker.put_block(queue, entries)
                    break
                except Overloaded:  # surely not put: again, as a patient client does
                    continue

    async def consume(broker: Service) -> None:
        nonlocal acked
        while acked < messages:
            count = await _take_and_ack(broker, queue, batch)  # not `acked += await ...`: others add meanwhile
            acked += count

    await asyncio.gather(*(produce(one) for one in brokers), *(consume(one) for one in brokers))


async def _take_and_ack(broker: Service, queue: str, most: int) -> int:
    parcels = await broker.take(queue, most, WAIT_S, VISIBILITY_S)
    if not parcels:
        return 0
    acks = [ParcelAck(p.generation, p.first, p.count, p.version, p.code, [(0, p.count)]) for p in parcels]
    done = await broker.ack_parcels(queue, acks)
    acked = sum(count for ranges in done for _, count in ranges)
    if acked != sum(parcel.count for parcel in parcels):
        raise RuntimeError(f"of {sum(parcel.count for parcel in parcels)} messages {acked} could be acked")
    return acked
