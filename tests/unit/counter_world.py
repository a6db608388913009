"""A simulated world with the tables made, for tests of counters: a day passes at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from capellini.counters.service import Counters
from capellini.counters.shards import TALLY_KEY
from capellini.store.interface import Slice
from capellini.store.schema import COUNTERS, TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S


def in_world(test: Callable[[World], Awaitable[None]], faults: Faults | None = None, seed: int = 1) -> None:
    async def main() -> None:
        world = World(faults=faults)
        await world.client("setup").store.prepare(TABLES)
        await test(world)

    run(main(), seed)


def counters_of(client: SimulatedClient, **more: Any) -> Counters:
    return Counters(client.store, client.clock, client.random, **more)


async def shards(client: SimulatedClient, name: str) -> list[Any]:
    page = await client.store.read(Slice(COUNTERS, (name,)))
    return [row for row in page.rows if row.key != TALLY_KEY]
