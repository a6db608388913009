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
from capellini.proof.counting import Ledger
from capellini.store.interface import Level, Slice
from capellini.store.opening import open_store
from capellini.store.schema import COUNTERS

pytestmark = [pytest.mark.cassandra, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
CALLS = 150  # of each process
DAY_S = 86_400.0
DEADLINE_S = 240.0


class Shifted(RealClock):
    """A clock that is days behind: its mutators have long expired for everybody else."""

    def now_s(self) -> float:
        return super().now_s() - 3 * DAY_S


def address(host: str, keyspace: str) -> CassandraAddress:
    return CassandraAddress(tuple(host.split(",")), keyspace, replication="3")


async def test_processes_count_exactly_while_a_server_is_killed(
    broken_cluster: LocalCluster, cassandra_address: str, fresh_keyspace: str
) -> None:
    store = await open_store(address(cassandra_address, fresh_keyspace))
    where = f"cassandra://{cassandra_address}/{fresh_keyspace}?replication=3"
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
    await counters.close()
    await store.close()


async def test_shards_are_collected_and_repeated_batches_change_nothing(
    cassandra_cluster: LocalCluster, cassandra_address: str, fresh_keyspace: str
) -> None:
    store = await open_store(address(cassandra_address, fresh_keyspace))
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
