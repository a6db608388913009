"""What a node tells Prometheus of log queues: how far groups are behind, and what it writes and reads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from tests.unit.log_world import crash, put, simulated, until
from tests.unit.test_work_repair import Ahead

import capellini
from capellini.api import queue_metrics
from capellini.api.log_metrics import figures_of
from capellini.api.server import Server
from capellini.api.serving import log_metrics
from capellini.model.errors import Full
from capellini.model.message import NewMessage
from capellini.model.service import Problem
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.store.simulation.loop import run

OLD_S = 200.0  # far longer than the test takes


async def told(address: str) -> dict[str, float]:
    async with httpx.AsyncClient(base_url=address) as http:
        text = (await http.get("/metrics")).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("capellini_")]
    assert len({name for name, _ in lines}) == len(lines), "a sample that comes twice is no answer for Prometheus"
    return {name: float(value) for name, value in lines}


async def test_lags_extents_seals_and_streams_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_metrics, "FRESH_S", 0.0)
    clock = Ahead()
    node = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}", listen="127.0.0.1:0"), clock=clock)
    server = Server(node.service, log_queues=log_metrics(node))
    host, port = await server.listen("127.0.0.1", 0)
    address = f"http://{host}:{port}"
    service, groups = node.service, node.service.log
    try:
        await service.create("feed", "log", {"max_bytes": 4_000})
        for name in ("one", "two"):
            await groups.create_group("feed", name)
        await service.put("feed", [NewMessage(b"%d" % number) for number in range(5)])
        clock.passed_s += OLD_S
        got = await service.get("feed@one", 3, 5.0)
        await service.ack("feed@one", [got[0].receipt])
        values = await told(address)
        for group, state, count in (("one", "ready", 2), ("one", "in_flight", 2), ("two", "ready", 5)):
            assert values[f'capellini_group_messages{{group="{group}",queue="feed",state="{state}"}}'] == count
        for group in ("one", "two"):
            assert OLD_S <= values[f'capellini_group_oldest_age_seconds{{group="{group}",queue="feed"}}'] < 2 * OLD_S
        assert values['capellini_log_extents_open{queue="feed"}'] == values['capellini_log_extents{queue="feed"}'] == 1
        assert values['capellini_log_bytes{queue="feed"}'] > 5
        assert values['capellini_log_extents_read{queue="feed"}'] >= 1
        assert values['capellini_log_takeovers_total{queue="feed"}'] >= 1
        assert values['capellini_log_seals_total{queue="feed"}'] == values["capellini_log_puts_refused_total"] == 0
        assert values["capellini_log_emergency_stops_total"] == values["capellini_log_extents_dropped_total"] == 0
        assert values['capellini_streams{side="put"}'] == values['capellini_streams{side="get"}'] == 0

        (refused,) = await service.put("feed", [NewMessage(b"x" * 3_900)])
        assert isinstance(refused, Problem) and refused.error == Full.name
        async with capellini.connect_async(address) as client, client.stream("feed", group="two") as consumer:
            async with asyncio.timeout(30):
                await consumer.batch()
            values = await told(address)
            assert values["capellini_log_puts_refused_total"] == values['capellini_streams{side="get"}'] == 1
            assert values['capellini_streams{side="put"}'] == 0

        await service.purge("feed")
        await service.put("feed", [NewMessage(b"of the next generation")])
        assert (await told(address))['capellini_log_extents{queue="feed"}'] == 1
    finally:
        await server.close(1.0)
        await node.close()


@pytest.mark.parametrize("mode", ["ap", "cp"])
def test_the_extent_of_a_dead_writer_counts_as_sealed_by_who_sealed_it(mode: str) -> None:
    async def work() -> None:
        _, nodes = await simulated("ab", mode=mode)
        b = nodes["b"]
        await put(nodes["a"], [b"1"])
        crash(nodes["a"], nodes)
        extents = (await b.queue()).extents

        async def sealed() -> bool:
            return any(extent.sealed for extent in extents.known())

        await until(b.clock, sealed)
        (figures,) = figures_of(b.keeper).queues
        assert figures.seals == 1

    run(work(), 1)


def test_an_extent_that_its_own_writer_sealed_counts_once() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = nodes["a"]
        await put(node, [b"1"])
        queue = await node.queue()
        await node.keeper.stop()
        assert [extent.sealed for extent in await queue.extents.look()] == [True]
        await node.turn()
        (figures,) = figures_of(node.keeper).queues
        assert figures.seals == 1

    run(work(), 1)
