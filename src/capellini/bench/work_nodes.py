"""Many nodes on one queue, in simulation: the same clients per node, virtual time, three replicas, no faults.

Each node has producers and consumers in closed loops, so that what limits is what the nodes do to each other:
compare-and-sets on the same rows cost each other time, as on a real cluster.
"""

from __future__ import annotations

import random
from typing import Final

import msgspec

from capellini.model.errors import Overloaded
from capellini.model.message import Entry
from capellini.model.service import ParcelAck
from capellini.node.broker import Broker
from capellini.store.schema import TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

PRODUCERS: Final = 4  # per node
CONSUMERS: Final = 4
BATCH: Final = 10
QUEUE: Final = "shared"


class Work(msgspec.Struct):
    put: int = 0
    acked: int = 0
    rounds: int = 0
    refused: int = 0


def speedup(nodes: int, virtual_s: float, seed: int) -> tuple[float, dict[str, Work]]:
    """How much more is put, delivered and acked by so many nodes than by one."""
    alone, together = _measure(1, virtual_s, seed), _measure(nodes, virtual_s, seed)
    return together.acked / alone.acked, {"one": alone, "many": together}


def _measure(nodes: int, virtual_s: float, seed: int) -> Work:
    return run(_main(nodes, virtual_s), seed)


async def _main(nodes: int, virtual_s: float) -> Work:
    world = World()
    work = Work()
    entries = msgspec.msgpack.encode([Entry(b"x" * 100)] * BATCH)
    brokers: list[tuple[SimulatedClient, Broker]] = []
    for number in range(nodes):
        client = world.client(f"node{number}")
        if number == 0:
            await client.store.prepare(TABLES)
        brokers.append((client, Broker(client.store, client.clock, random.Random(number), f"node{number}")))
    await brokers[0][0].spawn(brokers[0][1].create(QUEUE))
    end_s = world.loop.time() + virtual_s

    async def produce(broker: Broker) -> None:
        while world.loop.time() < end_s:
            try:
                await broker.put_block(QUEUE, entries)
            except Overloaded:  # as a patient client does
                work.refused += 1
                continue
            work.put += BATCH

    async def consume(broker: Broker) -> None:
        while world.loop.time() < end_s:
            parcels = await broker.take(QUEUE, BATCH, wait_s=1.0)
            acks = [ParcelAck(p.generation, p.first, p.count, p.version, p.code, [(0, p.count)]) for p in parcels]
            if acks:
                done = await broker.ack_parcels(QUEUE, acks)
                work.acked += sum(count for ranges in done for _, count in ranges)

    tasks = [client.spawn(produce(broker)) for client, broker in brokers for _ in range(PRODUCERS)]
    tasks += [client.spawn(consume(broker)) for client, broker in brokers for _ in range(CONSUMERS)]
    for task in tasks:
        await task
    work.rounds = sum(client.store.counts.rounds for client, _ in brokers)
    return work
