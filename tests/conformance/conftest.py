"""The stands: each store, with the loop its tests run on."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.harness import Harness, Stand, Test
from tests.conformance.tables import TABLES

from capellini.model.address import CassandraAddress
from capellini.model.clock import RealClock
from capellini.store.interface import Store

TEST_TIMEOUT_S = 120.0  # a test that hangs says so, instead of the whole run


class RealStand:
    """One open store on one loop, for all tests."""

    def __init__(self, kind: str, clock: RealClock | None = None) -> None:
        self.kind = kind
        self.clock = clock or RealClock()
        self.runner = asyncio.Runner()
        self.opened: list[Store] = []
        self.shared: Store | None = None

    async def open(self) -> Store:
        raise NotImplementedError

    async def another(self) -> Store:
        store = await self.open()
        self.opened.append(store)
        await store.prepare(TABLES)
        return store

    def run(self, test: Test) -> None:
        async def body() -> None:
            if self.shared is None:
                self.shared = await self.another()
            async with asyncio.timeout(TEST_TIMEOUT_S):
                await test(Harness(self.kind, self.shared, self.clock, self.another))

        self.runner.run(body())

    def end(self) -> None:
        async def close() -> None:
            for store in self.opened:
                await store.close()

        self.runner.run(close())
        self.runner.close()


class RocksStand(RealStand):
    def __init__(self, folder: Path) -> None:
        super().__init__("rocks")
        self.folder = folder
        self.numbers = itertools.count(1)

    async def open(self) -> Store:
        from capellini.store.rocks import RocksStore

        return await RocksStore.open(self.folder / str(next(self.numbers)), create=True, clock=self.clock)


class CassandraStand(RealStand):
    def __init__(self, hosts: str) -> None:
        super().__init__("cassandra")
        keyspace = f"conform_{secrets.token_hex(4)}"
        self.address = CassandraAddress(tuple(hosts.split(",")), keyspace, replication="3", timeout_s=10.0)

    async def open(self) -> Store:
        from capellini.store.cassandra import CassandraStore

        return await CassandraStore.open(self.address)


@pytest.fixture(
    scope="session",
    params=["rocks", "simulated", pytest.param("cassandra", marks=pytest.mark.cassandra)],
)
def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    match request.param:
        case "simulated":
            from tests.conformance.simulated import SimulatedStand

            yield SimulatedStand()
        case "rocks":
            rocks = RocksStand(tmp_path_factory.mktemp("rocks"))
            yield rocks
            rocks.end()
        case _:
            cassandra = CassandraStand(request.getfixturevalue("cassandra_address"))
            yield cassandra
            cassandra.end()
