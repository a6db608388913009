"""A timed queue on three nodes and three Cassandra nodes, messages due over the whole run; one of ours is killed, one
paused beyond its lease. All are delivered, none early, and how long takeovers took is told."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from tests.flow import Flow, Server, told, until

from capellini import CapelliniError, connect_async
from capellini.local.cluster import LocalCluster
from capellini.model.timed import ShardView
from capellini.proof.history import Violation
from capellini.proof.timed_checkers import check_timed
from capellini.queues.lease import LEASE_S, patience_s
from capellini.queues.timed.proofs import DELIVERY_BITS

pytestmark = [pytest.mark.cassandra, pytest.mark.slow]
BEYOND_LEASE_S: Final = patience_s(LEASE_S) + 2.0  # of a paused node: the others end its lease meanwhile
SHARDS: Final = 6

Tell = Callable[[str, object], None]


class TimedFlow(Flow):
    """With an eye on who holds which shard."""

    def __init__(self, servers: list[Server], seed: int, least: int, due_within_s: float) -> None:
        super().__init__(
            servers, seed, least, visibility_s=6.0, pause_s=0.05, most_delay_s=due_within_s, kind="timed",
            options={"shards": SHARDS},
        )  # fmt: skip
        self.history.epoch_bits = DELIVERY_BITS
        self.views: dict[int, ShardView] = {}

    async def look(self) -> None:
        """Ask any node that answers for the shards."""
        for server in self.servers:
            if not server.running:
                continue
            client, asked_s = connect_async(server.url, patience_s=0.0, request_timeout_s=3.0), self._now_s()
            try:
                views = {view.shard: view for view in await client.shards(self.queue)}
            except CapelliniError:
                continue
            finally:
                await client.close()
            changed = (one.epoch != views[shard].epoch for shard, one in self.views.items() if shard in views)
            self.looked(asked_s, any(changed))
            self.views = views
            return

    def held_by(self, name: str) -> set[int]:
        return {shard for shard, view in self.views.items() if view.holder == name}

    def worked(self, shards: set[int], without: set[str]) -> bool:
        """Has each of these another holder now?"""
        views = [self.views[shard] for shard in shards if shard in self.views]
        return len(views) == len(shards) and all(v.holder not in {"", *without} and v.state == "started" for v in views)

    async def taken_from(self, troubled: Server, act: Callable[[], None], gone: set[str]) -> float:
        """How long it takes until others work what this node held when that was done to it. `gone`: all that are in
        trouble."""
        name = troubled.name
        await until(lambda: bool(self.held_by(name)), f"{name} holds shards")
        gone.add(name)
        shards, began_s = self.held_by(name), time.monotonic()
        act()
        await until(lambda: self.worked(shards, gone), f"others work the shards of {name}")
        return time.monotonic() - began_s


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

    return check_timed(flow.history, await flow.run(faults))


def nodes_on(cluster: LocalCluster, keyspace: str, logs: Path) -> list[Server]:
    store = f"cassandra://{cluster.contact_points()}/{keyspace}?replication=3"
    return [Server(f"n{number}", store, logs, supervised=True) for number in (1, 2, 3)]


async def test_a_killed_and_a_paused_node_lose_nothing(
    broken_cluster: LocalCluster, fresh_keyspace: str, tmp_path: Path, record_property: Tell
) -> None:
    flow = TimedFlow(nodes_on(broken_cluster, fresh_keyspace, tmp_path), 1, 1_000, due_within_s=5.0)
    violations = await run(flow, record_property, at_once=True)
    assert not violations, told(flow, violations)
    assert flow.put >= 1_000 and flow.history.taken_over_s, "the run was to show more than that"


@pytest.mark.long
async def test_ten_thousand_messages_and_trouble_again_and_again_lose_nothing(
    broken_cluster: LocalCluster, fresh_keyspace: str, tmp_path: Path, record_property: Tell
) -> None:
    for seed in (2, 3, 4):
        servers = nodes_on(broken_cluster, f"{fresh_keyspace}_{seed}"[:48], tmp_path)
        flow = TimedFlow(servers, seed, 10_000, due_within_s=60.0)
        violations = await run(flow, record_property, at_once=seed == 2)
        assert not violations, f"seed {seed}: {told(flow, violations)}"
