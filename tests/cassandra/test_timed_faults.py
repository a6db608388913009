"""A timed queue on three nodes and three Cassandra nodes, messages due over the whole run; one of ours is killed, one
paused beyond its lease. All are delivered, none early, and how long takeovers took is told."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.flow import Flow, told, until
from tests.timed_flow import TimedFlow
from tests.trouble import BEYOND_LEASE_S, nodes_on

from capellini.local.cluster import LocalCluster
from capellini.proof.history import Violation

pytestmark = [pytest.mark.cassandra, pytest.mark.slow]

Tell = Callable[[str, object], None]


async def troubled(flow: TimedFlow, chance: random.Random, tell: Tell, at_once: bool) -> None:
    """One is killed and comes back; another is paused beyond its lease; one after the other, or at once."""
    first, second = chance.sample(flow.servers, 2)
    both: set[str] = set()

    async def kill() -> None:
        took_s = await flow.taken_from(first, first.strike, both if at_once else set())
        tell("takeover_after_a_kill_s", round(took_s, 2))
        first.start()
        await first.up()

    async def pause() -> None:
        began_s = time.monotonic()
        took_s = await flow.taken_from(second, second.pause, both if at_once else set())
        tell("takeover_after_a_pause_s", round(took_s, 2))
        await asyncio.sleep(max(0.0, BEYOND_LEASE_S - (time.monotonic() - began_s)))
        both.discard(second.name)  # from now on it may work what the killed one held
        second.resume()

    await flow.answers(30)
    if at_once:
        await asyncio.gather(kill(), pause())
    else:
        await kill()
        await pause()
    await flow.answers(30)
    await until(lambda: all(flow.held_by(server.name) for server in flow.servers), "all nodes hold shards again")


async def run(flow: TimedFlow, tell: Tell, at_once: bool) -> list[Violation]:
    chance = random.Random(f"timed/{flow.chance.random()}")

    async def faults(_: Flow) -> None:
        await troubled(flow, chance, tell, at_once)

    return await flow.run(faults)


@pytest.mark.long
async def test_ten_thousand_messages_and_trouble_again_and_again_lose_nothing(
    broken_cluster: LocalCluster, fresh_keyspace: str, tmp_path: Path, record_property: Tell
) -> None:
    for seed in (2, 3, 4):
        servers = nodes_on(broken_cluster, f"{fresh_keyspace}_{seed}"[:48], tmp_path)
        flow = TimedFlow(servers, seed, 10_000, due_within_s=60.0)
        violations = await run(flow, record_property, at_once=seed == 2)
        assert not violations, f"seed {seed}: {told(flow, violations)}"
