"""Two tables in a simulated world, and the shortest ways to use them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from capellini.store.interface import (
    Batch,
    Cas,
    Change,
    Column,
    Key,
    Level,
    Slice,
    Store,
    Table,
    Type,
    Value,
)
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

ROWS = Table(
    name="rows",
    doc="Plain rows.",
    partition=(Column("p", Type.TEXT),),
    clustering=(Column("k", Type.INT),),
    columns=(Column("v", Type.INT),),
    listable=True,
)
CELL = Table(
    name="cell",
    doc="One conditional row.",
    partition=(Column("p", Type.TEXT),),
    columns=(Column("n", Type.INT), Column("token", Type.TEXT)),
    conditional=frozenset(("n", "token")),
)
P: Key = ("p",)


async def make(**how: Any) -> tuple[World, SimulatedClient]:
    world = World(**how)
    client = world.client("a")
    await client.store.prepare((ROWS, CELL))
    return world, client


def row(k: int, v: int, **how: Any) -> Batch:
    return Batch(ROWS, P, (((k,), {"v": v}),), **how)


async def value(store: Store, k: int = 0, level: Level = Level.QUORUM) -> Value:
    page = await store.read(Slice(ROWS, P, start=(k,), limit=1, level=level))
    return page.rows[0].values["v"] if page.rows else None


def step(old: int | None, new: int, token: str = "", level: Level = Level.SERIAL) -> Cas:
    return Cas(CELL, P, (Change((), {"n": old}, {"n": new, "token": token or str(new)}),), level=level)


async def number(store: Store) -> Value:
    page = await store.read(Slice(CELL, P, level=Level.SERIAL))
    return page.rows[0].values["n"] if page.rows else None


async def until(client: SimulatedClient, holds: Callable[[], Awaitable[bool]], most_s: float = 600.0) -> None:
    end_s = client.clock.elapsed_s() + most_s
    while not await holds():
        assert client.clock.elapsed_s() < end_s
        await client.clock.sleep(0.01)


def many(test: Callable[[], Coroutine[Any, Any, Any]], seeds: int = 20) -> list[Any]:
    return [run(test(), seed) for seed in range(seeds)]
