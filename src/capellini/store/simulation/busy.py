"""A world with busy clients, to measure how fast the simulation is.

Each client goes round: write ten rows of two columns, read ten rows, compare-and-set a row. It begins one of these
about every 180 ms: with eight of them some 44 operations in a second, a little more than the nodes of a simulated work
queue ask of the store together, maintenance included (34). Clients have partitions of their own for rows, a new one
every hundred batches, and every two of them share one row, so that some compare-and-sets meet.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from capellini.model.errors import Unavailable, Unknown
from capellini.store.interface import Batch, Cas, Change, Column, Level, Slice, Table, Type, Value
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

CLIENTS: Final = 8
ROWS: Final = 10
READ_ROWS: Final = 10
BATCHES: Final = 100  # per partition
THINK_LEAST_S: Final = 0.12  # between two operations; with what one takes, their beginnings are some 180 ms apart
THINK_MOST_S: Final = 0.225

ROWS_TABLE: Final = Table(
    name="busy_rows",
    doc="Rows of busy clients.",
    partition=(Column("client", Type.TEXT), Column("run", Type.INT)),
    clustering=(Column("at", Type.INT),),
    columns=(Column("count", Type.INT), Column("block", Type.BLOB)),
)
SHARED_TABLE: Final = Table(
    name="busy_shared",
    doc="Rows that two busy clients share.",
    partition=(Column("name", Type.TEXT),),
    columns=(Column("next", Type.INT), Column("token", Type.TEXT)),
    conditional=frozenset(("next", "token")),
)


class Busy(msgspec.Struct, frozen=True):
    virtual_s: float
    real_s: float  # of this thread: what a shared machine gave to others meanwhile says nothing of the simulation
    wall_s: float
    operations: int
    failed: int
    faults: dict[str, int]

    @property
    def speed(self) -> float:
        """Virtual seconds per real second."""
        return self.virtual_s / self.real_s


async def busy(world: World, virtual_s: float, clients: int = CLIENTS) -> tuple[int, int]:
    """Keep that many clients busy for so long; how many operations were done, and how many failed."""
    made = [world.client(f"busy-{number}") for number in range(clients)]
    await made[0].store.prepare((ROWS_TABLE, SHARED_TABLE))
    end_s = world.loop.time() + virtual_s
    tasks = [client.spawn(_go_round(client, number, end_s)) for number, client in enumerate(made)]
    done = [await task for task in tasks]
    return sum(operations for operations, _ in done), sum(failed for _, failed in done)


async def _go_round(client: SimulatedClient, number: int, end_s: float) -> tuple[int, int]:
    store, clock, chance = client.store, client.clock, client.random
    block = bytes(100)
    written: list[dict[str, Value]] = [{"count": at, "block": block} for at in range(ROWS)]  # the store copies
    shared = (f"shared-{number // 2}",)
    batch_number, seen, failed, operations = 0, None, 0, 0
    while client.world.loop.time() < end_s:
        place = (client.name, batch_number // BATCHES)
        first = batch_number % BATCHES * ROWS
        for turn in range(3):
            operations += 1
            try:
                if turn == 0:
                    keys = zip(range(first, first + ROWS))  # one alone: tuples of one number
                    await store.write(Batch(ROWS_TABLE, place, tuple(zip(keys, written, strict=True))))
                elif turn == 1:
                    await store.read(Slice(ROWS_TABLE, place, start=(max(0, first - ROWS),), limit=READ_ROWS))
                else:
                    raised = (seen or 0) + 1
                    values: dict[str, Value] = {"next": raised, "token": f"{client.name}/{batch_number}"}
                    cas = Cas(SHARED_TABLE, shared, (Change((), {"next": seen}, values),), level=Level.SERIAL)
                    outcome = await store.compare_and_set(cas)
                    now = raised if outcome.applied else outcome.rows.get((), {}).get("next")
                    seen = now if isinstance(now, int) else None
            except (Unavailable, Unknown):
                failed += 1
            await clock.sleep(chance.uniform(THINK_LEAST_S, THINK_MOST_S))
        batch_number += 1
    return operations, failed


def measure(virtual_s: float, seed: int = 1, faults: Faults | None = None) -> Busy:
    """How fast a busy world runs on this machine."""

    async def main() -> tuple[int, int, dict[str, int]]:
        world = World(faults=faults)
        operations, failed = await busy(world, virtual_s)
        return operations, failed, dict(world.faults)

    began_s, wall_s = time.thread_time(), time.perf_counter()
    operations, failed, happened = run(main(), seed)
    took_s, wall_s = time.thread_time() - began_s, time.perf_counter() - wall_s
    return Busy(virtual_s, took_s, wall_s, operations, failed, happened)
