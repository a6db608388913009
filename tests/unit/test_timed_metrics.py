"""What a node tells Prometheus of the shards it holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from capellini.api.server import Server
from capellini.api.serving import timed_metrics
from capellini.model.message import NewMessage
from capellini.node.node import Node
from capellini.node.settings import Settings

DEADLINE_S = 30.0


async def test_lateness_lag_takeovers_and_ticks_are_told(tmp_path: Path) -> None:
    node = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}", listen="127.0.0.1:0"))
    server = Server(node.service, timed=timed_metrics(node))
    host, port = await server.listen("127.0.0.1", 0)
    try:
        await node.service.create("later", "timed", {"shards": 2})
        await node.service.put("later", [NewMessage(b"x", due=1e9), NewMessage(b"far", delay_s=1e6)])
        async with asyncio.timeout(DEADLINE_S):
            while not await node.service.get("later", 1, 5.0):
                continue
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as http:
            text = (await http.get("/metrics")).text
    finally:
        await server.close(1.0)
        await node.close()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("capellini_timed_"))
    # it was due years before it was put: late from its put on
    assert 0 <= float(values['capellini_timed_lateness_seconds{quantile="0.99"}']) < 1e6
    assert float(values['capellini_timed_shard_lag_seconds{queue="later",shard="0"}']) >= 0
    assert float(values["capellini_timed_shards_held"]) == float(values["capellini_timed_takeovers_total"]) == 2
    assert float(values["capellini_timed_emergency_stops_total"]) == float(values["capellini_timed_ticks_total"]) == 0
    held = [float(count) for name, count in values.items() if 'state="in_flight"' in name]
    assert sum(held) == 1
