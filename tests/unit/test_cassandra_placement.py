"""The ring is read anew now and then, by one for all, and nobody waits for it for long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.unit.test_cassandra_schema import ADDRESS, HurriedClock

from capellini.model.errors import Unavailable
from capellini.store import cassandra_placement
from capellini.store.cassandra_health import Health
from capellini.store.cassandra_placement import RING_S, Placement
from capellini.store.cassandra_session import Rows, Session
from capellini.store.interface import Level, Value
from capellini.store.ring import MURMUR
from capellini.store.schema import LOG_BLOCKS

PLACE = ("q", 1, "extent")


class Cluster(Session):
    """Of one server, which has the name it has now; it answers when it is let."""

    def __init__(self, clock: HurriedClock) -> None:
        super().__init__(ADDRESS, clock, None, "dc", {"dc": ["10.0.0.1"]})
        self.name = "10.0.0.1"
        self.lets = asyncio.Event()
        self.lets.set()
        self.questions = 0

    async def members(self) -> Rows:
        self.questions += 1
        await self.lets.wait()
        return [[self.name, "dc", "rack", ["0"], MURMUR]]

    async def read(self, text: str, parameters: Sequence[Value], level: Level, limit: int | None = None) -> Rows:
        return [[{"class": "SimpleStrategy", "replication_factor": "1"}]]


@pytest.fixture
def clock() -> HurriedClock:
    return HurriedClock()


@pytest.fixture
def cluster(clock: HurriedClock) -> Cluster:
    return Cluster(clock)


@pytest.fixture
async def placement(cluster: Cluster, clock: HurriedClock, monkeypatch: pytest.MonkeyPatch) -> Placement:
    async def nobody(self: object, hosts: object) -> set[str]:
        return set()

    monkeypatch.setattr(Health, "answering", nobody)
    made = Placement(cluster, clock)
    await made.read()
    return made


async def names(placement: Placement) -> list[str]:
    return [one.name for one in await placement.replicas(LOG_BLOCKS, PLACE)]


async def test_the_ring_is_read_again_after_a_while(
    placement: Placement, cluster: Cluster, clock: HurriedClock
) -> None:
    cluster.name = "10.0.0.2"
    assert await names(placement) == ["10.0.0.1"]
    clock.slept_s += RING_S
    assert await names(placement) == ["10.0.0.2"]
    assert cluster.questions == 2


async def test_a_cluster_that_hangs_is_asked_once_and_what_was_known_is_told_meanwhile(
    placement: Placement, cluster: Cluster, clock: HurriedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cassandra_placement, "PATIENCE_S", 0.0)
    cluster.name = "10.0.0.2"
    cluster.lets.clear()
    clock.slept_s += RING_S
    async with asyncio.timeout(30):
        told = await asyncio.gather(*(names(placement) for _ in range(5)))
    assert told == [["10.0.0.1"]] * 5
    assert cluster.questions == 2
    closing = asyncio.get_running_loop().create_task(cluster._idle.wait())
    cluster.lets.set()
    await closing
    assert await names(placement) == ["10.0.0.2"]
    assert cluster.questions == 2


async def test_a_ring_that_cannot_be_read_stays_as_it_was(
    placement: Placement, cluster: Cluster, clock: HurriedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent() -> Rows:
        raise Unavailable("no host answers")

    monkeypatch.setattr(cluster, "members", silent)
    clock.slept_s += RING_S
    assert await names(placement) == ["10.0.0.1"]
