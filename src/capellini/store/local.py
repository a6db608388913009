"""One data centre's view of a store: the same operations, at levels that its own replicas can answer.

    quorum ─▶ local quorum      serial ─▶ local serial      one ─▶ local one      all stays all

`LocalStore`. Both sides of a cut go on with it. So its compare-and-sets are linear within the data centre only: whoever
uses this view puts the data centre's name into every partition key that it changes so, and no other data centre changes
that partition. Reading another one's partitions is fine: what is seen may be old, as far as the replicas here are
behind.

`Nearby`. For what all data centres share and seldom change, like the list of queues: the whole store's answer, and only
when that does not come what the replicas here have.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from capellini.model.clock import Clock
from capellini.model.errors import Unavailable
from capellini.store.interface import Batch, Cas, Counts, Key, Level, Outcome, Page, Replica, Slice, Store, Table
from capellini.store.schema import QUEUES

PATIENCE_S: Final = 0.5  # far above what an answer takes while all is well
ALONE_S: Final = 2.0  # so long the replicas here are asked at once after the others did not answer
REALM: Final[Key] = ("all",)
LOCAL: Final = {
    Level.ONE: Level.LOCAL_ONE,
    Level.QUORUM: Level.LOCAL_QUORUM,
    Level.SERIAL: Level.LOCAL_SERIAL,
}


def local(level: Level) -> Level:
    return LOCAL.get(level, level)


class LocalStore(Store):
    """`store` belongs to whoever opened it, and is closed there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.atomic_bytes = store.atomic_bytes
        self.alone = store.alone

    @property
    def home(self) -> str:  # type: ignore[override]
        return self._store.home

    @property
    def homes(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._store.homes

    @property
    def counts(self) -> Counts:  # type: ignore[override]  # one count for both views
        return self._store.counts

    async def prepare(self, tables: tuple[Table, ...], create: bool = True) -> None:
        await self._store.prepare(tables, create)

    async def read(self, slice: Slice) -> Page:
        return await self._store.read(msgspec.structs.replace(slice, level=local(slice.level)))

    async def write(self, batch: Batch) -> None:
        await self._store.write(msgspec.structs.replace(batch, level=local(batch.level)))

    async def compare_and_set(self, cas: Cas) -> Outcome:
        return await self._store.compare_and_set(msgspec.structs.replace(cas, level=local(cas.level)))

    async def drop(
        self, table: Table, partition: Key, level: Level = Level.QUORUM, timestamp_us: int | None = None
    ) -> None:
        await self._store.drop(table, partition, local(level), timestamp_us)

    async def partitions(
        self, table: Table, limit: int = 1_000, after: Key | None = None, level: Level = Level.QUORUM
    ) -> list[Key]:
        return await self._store.partitions(table, limit, after, local(level))

    async def replicas(self, table: Table, partition: Key) -> tuple[Replica, ...]:
        return await self._store.replicas(table, partition)

    async def sync(self) -> None:
        await self._store.sync()

    async def skew_s(self) -> float:
        return await self._store.skew_s()

    async def check(self) -> None:
        """A read that this data centre's replicas can answer."""
        await self.read(Slice(QUEUES, REALM, limit=1))

    async def close(self) -> None:
        return None


class Nearby:
    """Reads of one store, that go on when its data centre is cut off."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._local = LocalStore(store)
        self._alone_until_s = 0.0

    async def read(self, slice: Slice) -> tuple[Page, bool]:
        """And whether it is the whole store's answer: else it may be old. Raises Unavailable."""
        if not self._store.home:
            return await self._store.read(slice), True
        if self._clock.elapsed_s() >= self._alone_until_s:
            page = await self._asked(slice)
            if page is not None:
                return page, True
        return await self._local.read(slice), False

    async def _asked(self, slice: Slice) -> Page | None:
        """None: there is no answer in time."""
        asked = asyncio.ensure_future(self._store.read(slice))
        patience = asyncio.ensure_future(self._clock.sleep(PATIENCE_S))
        try:
            await asyncio.wait({asked, patience}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
        except Unavailable:
            pass
        finally:
            patience.cancel()
            asked.cancel()
        self._alone_until_s = self._clock.elapsed_s() + ALONE_S
        return None
