"""How one test runs on every store.

    @every_store
    async def test_something(h: Harness) -> None: ...

becomes a test with the fixture `stand`, which is one store by name. A stand knows how coroutines run there: on a real
loop that lives as long as the tests (rocks, cassandra: opening once keeps the suite quick), or in virtual time, each
test in a world of its own (simulated). Tests share tables, never partitions: `h.key()` is a fresh one each time.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol
from uuid import UUID, uuid4

from capellini.model.clock import Clock
from capellini.store.interface import ABSENT, Batch, Cas, Change, Key, Level, Outcome, Page, Slice, Store, Table, Value

WAIT_S = 60.0  # long past any time to live in these tests, on a busy machine
POLL_S = 0.05

_numbers = itertools.count(1)
_run = uuid4().hex[:12]  # a cluster may outlive a run of the tests


class Harness:
    """An open store, with what tests do all the time."""

    def __init__(self, kind: str, store: Store, clock: Clock, another: Callable[[], Awaitable[Store]]) -> None:
        self.kind = kind
        self.store = store
        self.clock = clock
        self.another = another  # one more open store, with the tables

    def key(self) -> str:
        return f"{_run}-{next(_numbers)}"

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        deadline = self.clock.elapsed_s() + WAIT_S
        while not await holds():
            assert self.clock.elapsed_s() < deadline, f"{what}: not so after {WAIT_S} s"
            await self.clock.sleep(POLL_S)

    async def read(self, table: Table, p: str, **how: Any) -> Page:
        return await self.store.read(Slice(table, (p,), **how))

    async def keys(self, table: Table, p: str, **how: Any) -> list[Key]:
        return [row.key for row in (await self.read(table, p, **how)).rows]

    async def rows(self, table: Table, p: str, **how: Any) -> dict[Key, dict[str, Value]]:
        return {row.key: row.values for row in (await self.read(table, p, **how)).rows}

    async def static(self, table: Table, p: str) -> dict[str, Value]:
        return (await self.read(table, p, limit=0)).static

    async def put(self, table: Table, p: str, rows: dict[Key, dict[str, Value]], **how: Any) -> None:
        await self.store.write(Batch(table, (p,), tuple(rows.items()), **how))

    async def cas(self, table: Table, p: str, *changes: Change, **how: Any) -> Outcome:
        return await self.store.compare_and_set(Cas(table, (p,), changes, **how))

    async def make(self, table: Table, p: str, *rows: tuple[Key, dict[str, Value]]) -> None:
        """Conditional rows that were not there."""
        made = await self.cas(table, p, *(Change(key, ABSENT, values) for key, values in rows))
        assert made.applied


def timeuuid(ticks: int, low: int = 0) -> UUID:
    """A UUID of version 1 with that time and that lower half."""
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | 1 << 12 | (ticks >> 48 & 0xFFF)
    return UUID(int=high << 64 | (low & (1 << 62) - 1) | 1 << 63)


SERIAL = Level.SERIAL
Test = Callable[[Harness], Coroutine[Any, Any, None]]


class Stand(Protocol):
    kind: str

    def run(self, test: Test) -> None:
        """Run it to its end on a harness."""


def every_store(test: Test) -> Callable[[Stand], None]:
    """Turn an async test of a harness into a plain one of a stand."""

    def run(stand: Stand) -> None:
        stand.run(test)

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run
