"""A simulated world with the tables made, for tests of counters: a day passes at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from capellini.store.schema import TABLES
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World


def in_world(test: Callable[[World], Awaitable[None]], faults: Faults | None = None, seed: int = 1) -> None:
    async def main() -> None:
        world = World(faults=faults)
        await world.client("setup").store.prepare(TABLES)
        await test(world)

    run(main(), seed)
