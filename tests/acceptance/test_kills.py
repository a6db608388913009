"""A node on a folder, killed again and again under load: nothing confirmed is lost, nothing acked comes again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.flow import Flow, Server, told


async def killed(folder: Path, seed: int, times: int, least: int) -> None:
    server = Server("n1", f"rocks:{folder / 'data'}", folder)
    flow = Flow([server], seed, least)
    chance = flow.chance

    async def kills(flow: Flow) -> None:
        for _ in range(times):
            await flow.answers(chance.randint(1, 150))
            await asyncio.sleep(chance.uniform(0.0, 0.05))
            await server.kill()
            server.start()
            if chance.random() < 0.2:  # also while it recovers
                await asyncio.sleep(chance.uniform(0.0, 1.0))
                await server.kill()
                server.start()
            await server.up()

    violations = await flow.run(kills)
    assert not violations, told(flow, violations)
    assert flow.put >= least and flow.stale, "the run was to show more than that"


@pytest.mark.slow
async def test_ten_kills_lose_nothing(tmp_path: Path) -> None:
    await killed(tmp_path, seed=1, times=10, least=3_000)


@pytest.mark.long
@pytest.mark.slow
async def test_a_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    await killed(tmp_path, seed=2, times=100, least=30_000)
