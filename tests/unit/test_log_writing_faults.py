"""Writers under everything that can go wrong: what was confirmed is there, once, in its producer's order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from tests.unit.log_writers import LogNode, all_of, everything

from capellini.model.errors import Conflict, Invalid, StoreError
from capellini.store.schema import TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

NODES = ("a", "b", "c")
CHUNKS = 25
SEEDS = 12
MANY_SEEDS = 500


class Cluster:
    """Three nodes that crash, pause and come back."""

    def __init__(self, world: World, mode: str, level: str) -> None:
        self.world, self.mode, self.level = world, mode, level
        self.nodes: dict[str, LogNode] = {}
        self.guards: Counter[str] = Counter()
        self.clients: dict[str, SimulatedClient] = {}

    async def begin(self, name: str) -> None:
        client = self.world.client(name)
        node = LogNode(
            client.store, client.clock, client.random, name, None, lease_s=3.0, mode=self.mode, level=self.level,
            extent_bytes=65_536,
        )  # fmt: skip
        node.guards = node.place.guards = self.guards
        node.nodes, node.client = self.nodes, client
        self.clients[name] = client
        client.spawn(self._live(name, node))

    async def _live(self, name: str, node: LogNode) -> None:
        while True:
            try:
                if not node.lease.valid():
                    self.nodes.pop(name, None)
                    await node.lease.start()
                    self.nodes[name] = node
                await node.turn()
            except (StoreError, Conflict):
                self.guards["turn put off"] += 1
            await node.clock.sleep(0.5)

    def crash(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.clients[name].crash()


async def produce(cluster: Cluster, number: int, chance: random.Random, confirmed: list[bytes]) -> None:
    """Chunks in order, several under way; what failed is sent again, to whichever node."""
    world = cluster.world
    client = world.client(f"p{number}")
    producer = chance.randbytes(16)

    async def send(sequence: int, body: bytes) -> bool:
        node = cluster.nodes.get(chance.choice(NODES))
        if node is None:
            return False
        try:
            await cluster.clients[node.place.node].spawn(node.put(body, producer=producer, sequence=sequence))
        except (StoreError, Invalid):
            return False
        except RuntimeError:  # it crashed
            return False
        confirmed.append(body)
        return True

    async def work() -> None:
        for sequence in range(1, CHUNKS + 1):
            body = b"%d/%03d/" % (number, sequence) + b"x" * chance.choice((10, 4_000))
            while True:
                task = client.spawn(send(sequence, body))
                await client.clock.sleep(chance.uniform(0, 0.3))
                for _ in range(40):
                    if task.done():
                        break
                    await client.clock.sleep(0.5)
                if task.done() and task.result():
                    break

    await client.spawn(work())


async def trial(seed: int, mode: str, level: str, guards: Counter[str]) -> None:
    chance = random.Random(f"{seed}/{mode}/{level}")
    world = World(faults=Faults.some(chance), replicas=chance.choice((3, 5)))
    cluster = Cluster(world, mode, level)
    cluster.guards = guards
    await world.client("setup").store.prepare(TABLES)
    for name in NODES:
        await cluster.begin(name)
    confirmed: list[bytes] = []
    judge = world.client("judge")
    tasks = [judge.spawn(produce(cluster, number, random.Random(f"{seed}/{number}"), confirmed)) for number in range(3)]
    for _ in range(4):
        await judge.clock.sleep(chance.uniform(1, 8))
        name = chance.choice(NODES)
        if chance.random() < 0.5:
            cluster.crash(name)
            await cluster.begin(name)
        else:
            cluster.clients[name].pause(chance.uniform(1, 10))
    world.calm()
    for task in tasks:
        await task
    for name in NODES:
        cluster.crash(name)
    last = LogNode(judge.store, judge.clock, judge.random, "judge", mode=mode)
    last.guards = last.place.guards = guards
    await last.start()
    for _ in range(20):
        await judge.clock.sleep(2)
        await last.turn()
    found = await everything(last)
    assert all(extent.sealed for extent in last.extents.known()[: -1 if mode == "cp" else None])
    check_found(found, confirmed, mode)


def check_found(extents: Mapping[str, list[bytes]], confirmed: list[bytes], mode: str) -> None:
    """All that was confirmed, once; in order within each extent, and of a chain in order throughout."""
    found = all_of(extents)
    assert sorted(found) == sorted(set(found)), "a chunk is there twice"
    assert set(confirmed) <= set(found), "a confirmed chunk is lost"
    for number in range(3):
        mine = b"%d/" % number
        for part in [found] if mode == "cp" else list(extents.values()):
            sequences = [body for body in part if body.startswith(mine)]
            assert sequences == sorted(sequences), "a producer's chunks are not in order"
        assert sum(body.startswith(mine) for body in found) == CHUNKS


def trials(seeds: int, mode: str, level: str) -> Counter[str]:
    guards: Counter[str] = Counter()
    for seed in range(seeds):
        try:
            run(trial(seed, mode, level, guards), seed)
        except BaseException:
            print(f"seed {seed}, mode {mode}, level {level}")
            raise
    return guards


@pytest.mark.slow
@pytest.mark.parametrize("level", ["quorum", "all"])
@pytest.mark.parametrize("mode", ["ap", "cp"])
def test_confirmed_chunks_are_there_once_and_in_order(mode: str, level: str) -> None:
    guards = trials(SEEDS, mode, level)
    for guard in ("producer bound again", "chunk came again", "unconfirmed tail kept"):
        assert guards[guard] > 0, guard
    if level == "quorum":
        assert guards["block written again after a lost answer"] > 0


@pytest.mark.long
@pytest.mark.parametrize("level", ["quorum", "all"])
@pytest.mark.parametrize("mode", ["ap", "cp"])
def test_confirmed_chunks_are_there_once_and_in_order_in_many_runs(mode: str, level: str) -> None:
    guards = trials(MANY_SEEDS, mode, level)
    assert guards["seal short of the last block"] > 0
