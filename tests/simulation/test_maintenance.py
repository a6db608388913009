"""Maintenance in a simulated world: what queues and nodes leave behind goes, and a name is used by one node only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from capellini.model.errors import CapelliniError, Conflict, Unavailable
from capellini.model.message import NewMessage
from capellini.node import maintenance
from capellini.node.broker import Broker
from capellini.node.maintenance import LEFTOVERS, Maintenance
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.queues.catalog import QueueRecord
from capellini.queues.lease import OVER_TTL_S
from capellini.store.interface import Slice, Table
from capellini.store.schema import ASSIGNMENTS, BUCKETS, LEASES, MONOTON, POINTERS, TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World


def simulate(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await test(World())

    run(main(), seed=1)


class Served:
    """A broker with its maintenance, as a node named `name`."""

    def __init__(self, client: SimulatedClient, name: str) -> None:
        self.client = client
        self.broker = Broker(client.store, client.clock, client.random, name)
        self.maintenance = Maintenance(client.store, client.clock, client.random, self.broker)

    async def start(self) -> None:
        async def begin() -> None:
            self.maintenance.start()

        await self.client.spawn(begin())


async def until(client: SimulatedClient, holds: Callable[[], bool], most_s: float = 120.0) -> None:
    end_s = client.clock.elapsed_s() + most_s
    while not holds():
        assert client.clock.elapsed_s() < end_s, "it did not happen in time"
        await client.clock.sleep(0.5)


async def rows(client: SimulatedClient, table: Table, *partition: str | int) -> int:
    page = await client.store.read(Slice(table, partition))
    return len(page.rows) + bool(page.static)


def test_who_ends_a_silent_node_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        first, second = (Served(world.client(client), client) for client in ("a", "b"))
        await first.client.store.prepare(TABLES)
        for served in (first, second):
            await served.start()
            await until(served.client, served.maintenance.lease.valid)
        await second.client.clock.sleep(10.0)
        first.client.crash()
        await until(second.client, lambda: second.maintenance.watcher.ended > 0)
        assert "node a did not renew its lease" in caplog.text

    simulate(test)


def test_a_queue_that_fails_unexpectedly_holds_back_no_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        node = Served(world.client("a"), "n1")
        broker = node.broker
        repaired: list[str] = []

        def opened(record: QueueRecord, opens: Any = broker.opened) -> Any:
            repaired.append(record.name)
            assert record.name != "bad", "a row that nobody can read"
            return opens(record)

        def old(name: str, generation: int, size: int, opens: Any = broker.old_generation) -> Any:
            assert name != "bad", "a row that nobody can read"
            return opens(name, generation, size)

        monkeypatch.setattr(broker, "opened", opened)
        monkeypatch.setattr(broker, "old_generation", old)
        await node.client.store.prepare(TABLES)
        for name in ("bad", "good"):
            await broker.create(name)
        await node.start()
        await until(node.client, lambda: "good" in repaired)
        assert repaired.count("bad") == 1  # and not at every turn
        for name in ("bad", "good"):
            await broker.delete(name)
        with caplog.at_level(logging.INFO, "capellini.maintenance"):
            await until(node.client, lambda: "generation 1 of good left is cleared" in caplog.text, 600)
        assert "repair of bad failed" in caplog.text
        assert "generation 1 of bad cannot be cleared now" in caplog.text

    simulate(test)


@pytest.mark.parametrize("error", [Unavailable("no replica has it"), Conflict("changed meanwhile")])
def test_a_generation_that_cannot_be_cleared_holds_back_no_other_and_is_said(
    error: CapelliniError, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        node = Served(world.client("a"), "n1")
        broker = node.broker

        def old(name: str, generation: int, size: int, opens: Any = broker.old_generation) -> Any:
            if name == "bad":
                raise error
            return opens(name, generation, size)

        monkeypatch.setattr(broker, "old_generation", old)
        await node.client.store.prepare(TABLES)
        for name in ("bad", "good"):
            await broker.create(name)
            await broker.delete(name)
        await node.start()
        with caplog.at_level(logging.INFO, "capellini.maintenance"):
            await until(node.client, lambda: "generation 1 of good left is cleared" in caplog.text, 600)
        await node.client.clock.sleep(200.0)
        says = f"generation 1 of bad cannot be cleared now, but in 60 s: {error.says}"
        assert 3 <= caplog.text.count(says) <= 6
        assert node.maintenance.doubled is None

    simulate(test)


def test_a_second_node_of_one_name_is_not_ready_until_the_first_is_gone() -> None:
    async def test(world: World) -> None:
        first, second = (Served(world.client(client), "same") for client in ("a", "b"))
        await first.client.store.prepare(TABLES)
        await first.start()
        await until(first.client, first.maintenance.lease.valid)
        await second.start()
        await until(second.client, lambda: second.maintenance.doubled is not None)
        node = Node(Settings(), second.client.store, second.broker, second.maintenance, second.client.clock)
        await node.look()
        assert not node.condition.ready
        assert node.condition.reasons == ["another process runs as node same: give each node a name of its own"]
        await first.client.spawn(first.maintenance.stop())
        await until(second.client, second.maintenance.lease.valid)
        await node.look()
        assert node.condition.ready

    simulate(test)


def test_a_few_assignments_of_deleted_queues_stay_since_their_tombstones_would_cost_more() -> None:
    async def test(world: World) -> None:
        node = Served(world.client("a"), "n1")
        await node.client.store.prepare(TABLES)
        await node.broker.create("jobs")
        await node.start()
        await until(node.client, lambda: "queue:jobs" in node.maintenance.owned)
        await node.broker.delete("jobs")
        await until(node.client, lambda: node.maintenance.owned == {LEFTOVERS})
        await node.client.clock.sleep(30)
        assert set(await node.maintenance.assignments.list()) == {"queue:jobs", LEFTOVERS}
        await node.broker.create("jobs")
        await until(node.client, lambda: "queue:jobs" in node.maintenance.owned)

    simulate(test)


def test_a_deleted_queue_leaves_no_row_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "GONE_MOST", 0)

    async def test(world: World) -> None:
        node = Served(world.client("a"), "n1")
        client, broker = node.client, node.broker
        await client.store.prepare(TABLES)
        await broker.create("jobs")
        await broker.create("kept")
        await broker.put("jobs", [NewMessage(b"x")])
        (got,) = await broker.get("jobs")
        await broker.ack("jobs", [got.receipt])
        await node.start()
        await until(client, lambda: node.maintenance.owned >= {"queue:jobs", "queue:kept", LEFTOVERS})
        await broker.delete("jobs")
        await until(client, lambda: node.maintenance.owned == {"queue:kept", LEFTOVERS})
        assert await rows(client, ASSIGNMENTS, "repair") == 2
        assert await rows(client, MONOTON, "jobs", 1) == 1  # closed, for whoever slept through it
        await client.clock.sleep(30)
        assert await broker.catalog.leftovers() == []
        await client.spawn(node.maintenance.stop())
        await client.clock.sleep(OVER_TTL_S + 60)
        for table in (MONOTON, POINTERS):
            assert await rows(client, table, "jobs", 1) == 0, table.name
        assert await rows(client, BUCKETS, "jobs", 1, 0) == 0
        assert await client.store.partitions(LEASES) == []  # it left, long ago

    simulate(test)


def test_assignments_of_deleted_queues_go_also_when_their_owner_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "GONE_MOST", 0)

    async def test(world: World) -> None:
        dead, living = (Served(world.client(name), name) for name in ("a", "b"))
        await dead.client.store.prepare(TABLES)
        await dead.broker.create("jobs")
        await dead.start()
        await until(dead.client, lambda: "queue:jobs" in dead.maintenance.owned)
        dead.client.crash()
        await living.broker.delete("jobs")
        await living.start()
        await until(living.client, lambda: LEFTOVERS in living.maintenance.owned)
        await living.client.clock.sleep(10)
        assert list(await living.maintenance.assignments.list()) == [LEFTOVERS]

    simulate(test)
