"""What a node tells Prometheus of the shards it holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from tests.unit.test_work_repair import Ahead

from capellini.api.server import Server
from capellini.api.serving import timed_metrics
from capellini.model.message import NewMessage
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.queues.timed import holder
from capellini.queues.timed.horizon import IDLE_ALONE_S

DEADLINE_S = 30.0
LAG_S = 200.0  # far longer than the test takes


async def told(server: Server) -> dict[str, float]:
    host, port = await server.listen("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as http:
        text = (await http.get("/metrics")).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("capellini_timed_")]
    return {name: float(value) for name, value in lines}


async def test_lateness_takeovers_and_ticks_are_told(tmp_path: Path) -> None:
    node = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}", listen="127.0.0.1:0"))
    server = Server(node.service, timed=timed_metrics(node))
    try:
        await node.service.create("later", "timed", {"shards": 2})
        await node.service.put("later", [NewMessage(b"x", due=1e9), NewMessage(b"far", delay_s=1e6)])
        async with asyncio.timeout(DEADLINE_S):
            while not await node.service.get("later", 1, 5.0):
                continue
        values = await told(server)
    finally:
        await server.close(1.0)
        await node.close()
    # it was due years before it was put: late from its put on
    assert 0 <= values['capellini_timed_lateness_seconds{quantile="0.99"}'] < 1e6
    assert values["capellini_timed_shards_held"] == values["capellini_timed_takeovers_total"] == 2
    assert values["capellini_timed_emergency_stops_total"] == values["capellini_timed_ticks_total"] == 0
    assert sum(count for name, count in values.items() if 'state="in_flight"' in name) == 1


async def test_a_shard_that_reads_nothing_since_nobody_takes_what_it_read_lags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, "ROOM_ROWS", 1)
    clock = Ahead()
    node = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}", listen="127.0.0.1:0"), clock=clock)
    server = Server(node.service, timed=timed_metrics(node))
    try:
        await node.service.create("later", "timed", {"shards": 1})
        await node.service.put("later", [NewMessage(b"x")])
        async with asyncio.timeout(DEADLINE_S):
            while not (await node.service.statistics("later")).ready:
                await asyncio.sleep(0.05)
        clock.passed_s += LAG_S
        values = await told(server)
    finally:
        await server.close(1.0)
        await node.close()
    lag_s = values['capellini_timed_shard_lag_seconds{queue="later",shard="0"}']
    assert LAG_S - IDLE_ALONE_S <= lag_s < 2 * LAG_S
