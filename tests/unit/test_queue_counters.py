"""Statistics of queues are counters: right across nodes, there after a restart, gone with their generation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from tests.unit.counter_world import in_world
from tests.unit.memory_service import MemoryService

from capellini.api.queue_metrics import KEPT_S, QueueMetrics
from capellini.api.server import Server
from capellini.client.connecting import connect_async
from capellini.counters.states.queue import Activity, QueueTotals
from capellini.model.counters import Update, queue_counter
from capellini.model.errors import Invalid, NotFound, Unavailable
from capellini.model.message import NewMessage
from capellini.model.producers import PRODUCER
from capellini.model.service import NackItem, Problem, Statistics
from capellini.node import statistics as counting
from capellini.node.broker import Broker
from capellini.node.counting import CounterKeeper
from capellini.node.maintenance import Maintenance
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.node.statistics import CountedEvents, Since
from capellini.store.interface import Batch, Slice
from capellini.store.schema import COUNTER_NAMES, COUNTERS
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.world import World

SUMS = ("puts", "deliveries", "redeliveries", "acks", "nacks", "dead_letters")


def sums(found: Statistics) -> dict[str, int]:
    return {name: getattr(found, name) for name in SUMS if getattr(found, name)}


class Simulated:
    """A node of a simulated world, with counters; nothing runs in the background unless it is told to."""

    def __init__(self, client: SimulatedClient) -> None:
        events = CountedEvents(client.clock)
        self.broker = Broker(client.store, client.clock, client.random, client.name, events)
        self.keeper = CounterKeeper(self.broker, client.random)
        self.maintenance = Maintenance(client.store, client.clock, client.random, self.broker)


async def lived(broker: Broker, queue: str, count: int) -> None:
    """So many messages are put, got and acked."""
    await broker.put(queue, [NewMessage(b"x" * 10)] * count)
    found = await broker.get(queue, count)
    await broker.ack(queue, [each.receipt for each in found])


async def test_totals_say_what_happened(node: Node) -> None:
    broker = node.service
    await broker.create("letters")
    await broker.create("jobs", options={"delivery_limit": 2, "dead_letters": "letters"})
    assert sums(await broker.statistics("jobs")) == {}
    await lived(broker, "jobs", 5)
    await broker.put("jobs", [NewMessage(b"again", key="k")])
    await broker.put("jobs", [NewMessage(b"again", key="k")])  # a duplicate is no put
    for _ in range(2):
        (one,) = await broker.get("jobs")
        await broker.nack("jobs", [NackItem(one.receipt, 0.0)])
    assert await broker.get("jobs") == []  # it has died
    async with asyncio.timeout(20):
        while not (await broker.statistics("jobs")).dead_letters:
            await asyncio.sleep(0.02)
    found = await broker.statistics("jobs")
    assert sums(found) == {"puts": 6, "deliveries": 7, "redeliveries": 1, "acks": 5, "nacks": 2, "dead_letters": 1}
    assert found.producers == 1 and found.bytes_put > 55
    assert set(SUMS) < set(found.exact) and "producers" not in found.exact
    assert 0 <= found.delivered_after_s["0.5"] <= found.delivered_after_s["1"] < 60
    assert 0 <= found.acked_after_s["0.5"] < 60
    assert (await broker.statistics("letters")).puts == 1


async def test_what_was_being_written_at_the_end_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(store=f"rocks:{tmp_path / 'store'}", events="none")
    node = await Node.open(settings)
    statistics, update = node._keeper.statistics, node._keeper.counters.update
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(name: str, updates: Sequence[object], kind: str) -> None:
        begun.set()
        await go_on.wait()
        await update(name, updates, kind)

    monkeypatch.setattr(node._keeper.counters, "update", slow)
    await node.service.create("jobs")
    await node.service.put("jobs", [NewMessage(b"x")] * 7)
    async with asyncio.timeout(20):
        await begun.wait()
        stopping = asyncio.create_task(statistics.stop())
        await asyncio.sleep(0)  # it is told to stop
        go_on.set()
        await stopping
    await node.close()
    again = await Node.open(settings)
    assert (await again.service.statistics("jobs")).puts == 7
    await again.close()


async def test_blocks_and_parcels_count_as_messages_do(node: Node) -> None:
    async with _served(node) as address, connect_async(address) as one, connect_async(address) as other:
        await one.create_queue("jobs")
        await one.put_many("jobs", [b"x"] * 30)
        await other.put_many("jobs", [b"x"] * 10)
        taken = await one.get("jobs", 40)
        await one.ack_many("jobs", taken[:25])
        async with httpx.AsyncClient(base_url=address) as stranger:
            for _ in range(2):
                headers = {"content-type": "application/octet-stream"}
                await stranger.post("/v1/queues/jobs/messages", content=b"y", headers=headers)
        found = await other.statistics("jobs")
    assert sums(found) == {"puts": 42, "deliveries": 40, "acks": 25}
    assert found.producers == 3  # two clients by their own ids, and whoever asks from that address


class _served:
    def __init__(self, node: Node) -> None:
        self._server = Server(node.service, store_counts=lambda: node.store.counts)

    async def __aenter__(self) -> str:
        await self._server.listen("127.0.0.1", 0)
        return self._server.addresses[0]

    async def __aexit__(self, *error: object) -> None:
        await self._server.close(1.0)


async def test_totals_survive_a_restart(tmp_path: Path) -> None:
    settings = Settings(store=f"rocks:{tmp_path / 'store'}", listen="127.0.0.1:0")
    for round in range(1, 4):
        node = await Node.open(settings)
        await node.service.create("jobs")
        await lived(node.service, "jobs", 7)
        await node.close()
        node = await Node.open(settings)
        assert sums(await node.service.statistics("jobs")) == dict.fromkeys(("puts", "deliveries", "acks"), 7 * round)
        await node.close()


def test_nodes_add_up_and_a_second_at_most_is_missing() -> None:
    async def test(world: World) -> None:
        one, other = (Simulated(world.client(name)) for name in ("one", "other"))
        await one.broker.create("jobs")
        await lived(one.broker, "jobs", 20)
        PRODUCER.set("somebody")
        await lived(other.broker, "jobs", 30)
        PRODUCER.set("")
        early = await one.broker.statistics("jobs")
        assert sums(early) == {"puts": 20, "deliveries": 20, "acks": 20}  # the other has not flushed
        assert "puts" not in early.exact
        other.keeper.start()
        await asyncio.sleep(counting.FLUSH_S * 1.5)
        await other.keeper.stop()
        found = await one.broker.statistics("jobs")
        assert sums(found) == {"puts": 50, "deliveries": 50, "acks": 50} and found.producers == 2

    in_world(test)


def test_a_second_of_work_is_one_write_and_no_round() -> None:
    async def test(world: World) -> None:
        node = Simulated(world.client("one"))
        await node.broker.create("jobs")
        for _ in range(10):
            await lived(node.broker, "jobs", 10)
        counts = node.broker.store.counts
        writes, rounds, requests = counts.writes, counts.rounds, counts.requests
        assert await node.keeper.statistics.flush() == 1
        assert (counts.writes - writes, counts.rounds - rounds, counts.requests - requests) == (1, 0, 1)
        assert await node.keeper.statistics.flush() == 0  # nothing happened since
        assert counts.requests - requests == 1

    in_world(test)


@pytest.mark.parametrize("end", ["delete", "purge"])
def test_statistics_go_with_their_generation(end: str) -> None:
    async def test(world: World) -> None:
        node, late = Simulated(world.client("one")), Simulated(world.client("late"))
        store = node.broker.store
        await node.broker.create("jobs")
        await lived(node.broker, "jobs", 20)
        await lived(late.broker, "jobs", 5)
        await node.keeper.statistics.flush()
        first = (await store.read(Slice(COUNTERS, (queue_counter("jobs", 1),)))).rows
        assert len(first) == 1
        await getattr(node.broker, end)("jobs")
        node.maintenance.start()
        async with asyncio.timeout(120):
            while (await store.read(Slice(COUNTERS, (queue_counter("jobs", 1),)))).rows:
                await asyncio.sleep(0.5)
        await late.keeper.statistics.flush()  # long after: it does not come back
        assert not (await store.read(Slice(COUNTERS, (queue_counter("jobs", 1),)))).rows
        if end == "delete":
            await node.broker.create("jobs")
        assert sums(await node.broker.statistics("jobs")) == {}
        await lived(node.broker, "jobs", 3)
        assert (await node.broker.statistics("jobs")).puts == 3
        await node.maintenance.stop()

    in_world(test)


async def test_a_flush_that_waits_for_another_writes_nothing_of_a_generation_that_is_over(tmp_path: Path) -> None:
    node = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}", events="none"))
    statistics, counters = node._keeper.statistics, node._keeper.counters
    begun, go_on, update = asyncio.Event(), asyncio.Event(), counters.update

    async def slow(name: str, updates: Sequence[object], kind: str) -> None:
        begun.set()
        await go_on.wait()
        await update(name, updates, kind)

    await statistics._background.stop()
    counters.update = slow  # type: ignore[method-assign, assignment]
    statistics.put("jobs", 1, 5, 50)
    first = statistics._begun(("jobs", 1))
    async with asyncio.timeout(20):
        await begun.wait()
        statistics.put("jobs", 1, 5, 50)
        second = statistics._begun(("jobs", 1))
        await asyncio.sleep(0)  # it waits for its turn
        go_on.set()
        await asyncio.sleep(0)
        await statistics.clear("jobs", 1)
        await asyncio.gather(first, second)
    assert not (await node.store.read(Slice(COUNTERS, (queue_counter("jobs", 1),)))).rows
    await node.close()


def test_deliveries_that_others_ack_are_not_remembered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST_HELD", 10)
    monkeypatch.setattr(counting, "MOST_HELD_IN_ALL", 50)

    async def test(world: World) -> None:
        node = Simulated(world.client("one"))
        statistics = node.keeper.statistics
        for queue in range(20):
            await node.broker.create(f"jobs-{queue:02}")
            for _ in range(12):
                await node.broker.put(f"jobs-{queue:02}", [NewMessage(b"x")])
                await node.broker.get(f"jobs-{queue:02}")  # acked elsewhere, or never
        await statistics.flush()
        held = {name: len(since.held) for (name, _), since in statistics._queues.items()}
        assert sum(held.values()) <= 50
        assert held["jobs-19"] == 10  # the last used have theirs

    in_world(test)


def test_producers_that_cannot_be_written_are_not_gathered_without_end() -> None:
    since = Since()
    for turn in range(5):
        since.sums["puts"] += 1
        since.producers.update(f"{turn}-{at}" for at in range(counting.MOST_PRODUCERS - len(since.producers)))
        activity = since.taken()
        assert activity is not None
        since.producers.update(f"new-{turn}-{at}" for at in range(counting.MOST_PRODUCERS))
        since.give_back(activity)
        assert len(since.producers) == counting.MOST_PRODUCERS


def test_a_store_that_takes_no_writes_can_still_be_read() -> None:
    async def test(world: World) -> None:
        node = Simulated(world.client("one"))
        await node.broker.create("jobs")
        await lived(node.broker, "jobs", 4)
        assert (await node.broker.statistics("jobs")).puts == 4
        await lived(node.broker, "jobs", 3)
        write, stuck = node.broker.store.write, asyncio.Event()

        async def stuck_write(batch: Batch) -> None:
            await stuck.wait()
            await write(batch)

        node.broker.store.write = stuck_write  # type: ignore[method-assign]
        assert (await node.broker.statistics("jobs")).puts == 4
        stuck.set()
        await node.keeper.stop()
        assert (await Simulated(world.client("other")).broker.statistics("jobs")).puts == 7

    in_world(test)


def test_what_could_not_be_written_is_in_the_next_flush() -> None:
    async def test(world: World) -> None:
        node = Simulated(world.client("one"))
        await node.broker.create("jobs")
        await lived(node.broker, "jobs", 4)
        counters = node.keeper.counters
        update = counters.update

        async def away(*_: object) -> None:
            raise Unavailable("the store is away")

        counters.update = away  # type: ignore[assignment]
        assert await node.keeper.statistics.flush() == 0
        counters.update = update  # type: ignore[method-assign]
        await lived(node.broker, "jobs", 2)
        assert sums(await node.broker.statistics("jobs")) == {"puts": 6, "deliveries": 6, "acks": 6}

    in_world(test)


async def test_statistics_are_listed_only_when_asked_for_and_nobody_else_writes_them(node: Node) -> None:
    broker = node.service
    counters = broker.counters
    assert counters is not None
    for name in ("a", "b", "b2"):
        await broker.create(name)
        await lived(broker, name, 1)
        await broker.statistics(name)
    await counters.add("mine")
    assert [one.name for one in await counters.listed()] == ["mine"]
    assert [one.name for one in await counters.listed("queue:")] == ["queue:a:1", "queue:b:1", "queue:b2:1"]
    assert [one.name for one in await counters.listed("queue:b", "queue:b:1")] == ["queue:b2:1"]
    assert [one.name for one in await counters.listed("queue:b:")] == ["queue:b:1"]
    shelves = [await node.store.read(Slice(COUNTER_NAMES, (shelf,))) for shelf in range(8)]
    assert [row.key[0] for page in shelves for row in page.rows] == ["mine"]
    reading = await counters.read("queue:a:1", sketch=True)
    assert (reading.kind, reading.value["puts"], reading.sketch) == ("queue", 1, None)
    with pytest.raises(NotFound):
        await counters.read("queue:nothing:1")
    for update in (Update("queue:a:1"), Update("queue:a:1", {"sums": {"puts": 5}}, "queue"), Update("x", 1, "queue")):
        (result,) = await counters.update_many([update])
        assert isinstance(result, Problem) and result.error == "invalid"
        with pytest.raises(Invalid):
            await counters.update(update.counter, [update.value], update.kind)
    assert (await counters.read("queue:a:1")).value["puts"] == 1


async def test_lengths_and_totals_are_metrics(node: Node) -> None:
    async with _served(node) as address, httpx.AsyncClient(base_url=address) as http:
        await node.service.create("jobs")
        await node.service.put("jobs", [NewMessage(b"x")] * 5)
        await node.service.get("jobs", 2)
        text = (await http.get("/metrics")).text
    assert 'capellini_queue_messages{queue="jobs",state="ready"} 3.0' in text
    assert 'capellini_queue_messages{queue="jobs",state="in_flight"} 2.0' in text
    assert 'capellini_queue_puts_total{queue="jobs"} 5.0' in text
    assert 'capellini_queue_deliveries_total{queue="jobs"} 2.0' in text
    assert "capellini_queues_shown 1.0" in text


async def test_a_scrape_does_not_hang_on_the_store_and_looks_seldom() -> None:
    service, now_s = MemoryService(), 100.0
    looked = 0

    async def statistics(name: str) -> Statistics:
        nonlocal looked
        looked += 1
        return await MemoryService.statistics(service, name)

    service.statistics = statistics  # type: ignore[method-assign]
    await service.create("jobs")
    metrics = QueueMetrics(service, lambda: now_s)
    for _ in range(3):
        await metrics.look()
    assert looked == 1

    def shown() -> float:
        (family,) = [each for each in metrics.collect() if each.name == "capellini_queues_shown"]
        return float(family.samples[0].value)

    assert shown() == 1
    now_s += KEPT_S + 1
    service.fails = Unavailable("the store is away")
    assert shown() == 0  # too old to be told
    await metrics.look()
    assert shown() == 0
    await metrics.close()


def test_a_state_of_a_queue_merges_sums_and_sketches() -> None:
    parts = []
    for at in range(3):
        part = QueueTotals()
        part.apply(Activity({"puts": 10 + at}, (f"p{at}", "shared"), (0.5, 1.0), (2.0,)))
        parts.append(QueueTotals.decode(part.encode(), 1))
    whole = QueueTotals()
    for part in random.Random(1).sample(parts, 3):
        whole.merge(part)
    value = whole.value()
    assert value["puts"] == 33 and value["acks"] == 0
    assert round(value["producers"]["estimate"]) == 4
    assert value["delivered_after_s"]["count"] == 6 and value["acked_after_s"]["quantiles"]["0.5"] == 2.0
