"""The stand of the simulated store: each test in a world of its own, without faults, in virtual time."""

from __future__ import annotations

import itertools

from tests.conformance.harness import Harness, Test
from tests.conformance.tables import TABLES

from capellini.store.interface import Store
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World


class SimulatedStand:
    kind = "simulated"

    def run(self, test: Test) -> None:
        run(in_world(test))


async def in_world(test: Test, faults: Faults | None = None) -> None:
    world = World(faults=faults or Faults.none())
    client = world.client("first")
    numbers = itertools.count(1)

    async def another() -> Store:
        store = world.client(f"another-{next(numbers)}").store
        await store.prepare(TABLES)
        return store

    await client.store.prepare(TABLES)
    await client.spawn(test(Harness("simulated", client.store, client.clock, another)))
