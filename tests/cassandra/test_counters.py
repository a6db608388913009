"""Counters on a real cluster of three: several processes count while a server is killed, and totals are exact."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from capellini.counters.collecting import batch_of
from capellini.counters.reading import read_tally
from capellini.counters.service import Counters
from capellini.counters.states.registry import Registry
from capellini.local.cluster import LocalCluster
from capellini.model.address import CassandraAddress
from capellini.model.clock import RealClock
from capellini.model.counters import queue_counter
from capellini.model.errors import Invalid
from capellini.model.message import NewMessage
from capellini.node.config import times_of
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.proof.counting import Ledger
from capellini.store.interface import Level, Slice
from capellini.store.opening import open_store
from capellini.store.schema import COUNTERS

pytestmark = [pytest.mark.cassandra, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
CALLS = 150  # of each process
HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
DEADLINE_S = 240.0


class Shifted(RealClock):
    """A clock that is days behind: its mutators have long expired for everybody else."""

    def now_s(self) -> float:
        return super().now_s() - 3 * DAY_S


def address(host: str, keyspace: str) -> CassandraAddress:
    return CassandraAddress(tuple(host.split(",")), keyspace, replication="3")


async def test_processes_count_exactly_while_a_server_is_killed(
    broken_cluster: LocalCluster, cassandra_address: str, shared_keyspace: str
) -> None:
    store = await open_store(address(cassandra_address, shared_keyspace))
    where = f"cassandra://{cassandra_address}/{shared_keyspace}?replication=3"
    module = "tests.cassandra.counter_child"
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, where, name, str(CALLS), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        for name in ("a", "b", "c")
    ]
    calls = 0
    killed = False

    async def follow(child: asyncio.subprocess.Process) -> dict[str, list[str]]:
        nonlocal calls, killed
        assert child.stdout is not None
        async for line in child.stdout:
            if line.startswith(b"{"):
                assert await child.wait() == 0
                return json.loads(line)  # type: ignore[no-any-return]
            calls += 1
            if calls > CALLS and not killed:
                killed = True
                await asyncio.to_thread(broken_cluster.kill, 2)
        raise AssertionError(f"a process ended with {await child.wait()} and no report")

    try:
        async with asyncio.timeout(DEADLINE_S):
            fates = await asyncio.gather(*(follow(child) for child in children))
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
    assert killed
    counters = Counters(store, RealClock(), random.Random(), registry=Registry(more=[Ledger]))
    counted = Counter((await counters.read("ledger")).value)
    confirmed = {id for fate in fates for id in fate["confirmed"]}
    doubtful = {id for fate in fates for id in (*fate["unknown"], *fate["failed"])}
    assert len(confirmed) > CALLS and max(counted.values()) == 1
    assert confirmed <= set(counted) <= confirmed | doubtful
    total = (await counters.read("total")).value
    assert len(confirmed) <= total <= len(confirmed | doubtful)
    print(  # what a run with -s can be quoted by
        f"{len(children)} processes, server 2 killed after {CALLS} calls: {len(confirmed)} updates confirmed, "
        f"{len(doubtful)} in doubt; counted {sum(counted.values())}, none twice; total {total}"
    )
    await counters.close()
    await store.close()


async def test_statistics_of_a_queue_add_up_over_nodes_and_restarts_and_go_with_it(
    cassandra_cluster: LocalCluster, cassandra_address: str, shared_keyspace: str
) -> None:
    def settings(name: str) -> Settings:
        return Settings(store=f"cassandra://{cassandra_address}/{shared_keyspace}?replication=3", node=name)

    nodes = [await Node.open(settings(name)) for name in ("one", "two")]
    first, second = (node.service for node in nodes)
    await first.create("counted")
    for broker, count in ((first, 30), (second, 12)):
        await broker.put("counted", [NewMessage(b"x")] * count)
        receipts = [each.receipt for each in await broker.get("counted", count)]
        assert len(receipts) == count
        await broker.ack("counted", receipts)
    await nodes[1].close()
    found = await first.statistics("counted")
    assert (found.puts, found.deliveries, found.acks, found.producers) == (42, 42, 42, 2)
    assert "puts" not in found.exact and found.delivered_after_s
    await nodes[0].close()
    again = await Node.open(settings("one"))
    assert (await again.service.statistics("counted")).puts == 42
    await again.service.delete("counted")
    async with asyncio.timeout(DEADLINE_S):
        while (await again.store.read(Slice(COUNTERS, (queue_counter("counted", 1),)))).rows:
            await asyncio.sleep(0.5)
    await again.service.create("counted")
    assert (await again.service.statistics("counted")).puts == 0
    await again.close()


async def test_a_grace_below_the_hint_window_of_the_cluster_is_refused(
    cassandra_cluster: LocalCluster, cassandra_address: str, shared_keyspace: str
) -> None:
    store = f"cassandra://{cassandra_address}/{shared_keyspace}"
    settings = Settings(store=store, node="one", counter_grace_s=HOUR_S, counter_max_skew_s=1.0)
    assert times_of(settings).grace_s == HOUR_S  # good for a folder
    with pytest.raises(Invalid, match="max_hint_window, 10800"):
        await Node.open(settings)


async def test_shards_are_collected_and_repeated_batches_change_nothing(
    cassandra_cluster: LocalCluster, cassandra_address: str, shared_keyspace: str
) -> None:
    store = await open_store(address(cassandra_address, shared_keyspace))
    for at in range(30):
        await Counters(store, Shifted(), random.Random()).add("old", at)
    counters = Counters(store, RealClock(), random.Random())
    await counters.add("old", 1_000)
    wanted = sum(range(30)) + 1_000
    assert (await counters.read("old")).value == wanted  # which also has them collected, in the background
    done = await counters.collect("old")
    tally = await read_tally(store, "old", Level.ALL)
    await store.write(batch_of("old", tally.packed, tally.through_us))
    page = await store.read(Slice(COUNTERS, ("old",)))
    assert len(page.rows) == 2 and done.deferred in ("", "others are collecting it")
    fresh = await Counters(store, RealClock(), random.Random()).read("old")
    assert (fresh.value, fresh.shards) == (wanted, 1)
    await counters.close()
    await store.close()
