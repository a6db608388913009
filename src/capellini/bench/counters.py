"""Counters: how fast they take updates, and what that costs the store.

    counters.add_many_per_s                  sums in this process, in a folder, flushed (fsynced) after each round
    counters.api_per_s                       batches over HTTP to a node of its own process, each durable when answered
    counters.cassandra.requests_per_update   batches from several tasks on one node; all requests of the run by updates
    counters.reads_per_read_1000_shards      reads of the store for one read of a counter that a thousand mutators wrote

Every run ends with reading the totals: a figure of updates that were not counted would be worth nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from capellini.bench.figures import Detail, Figure, judge, names, unmeasured
from capellini.client.connecting import connect_async
from capellini.counters.service import Counters
from capellini.local import processes
from capellini.local.cluster import LocalCluster
from capellini.local.errors import ClusterError
from capellini.model.address import CassandraAddress, RocksAddress
from capellini.model.clock import RealClock
from capellini.model.counters import CounterService, Update
from capellini.model.service import Problem
from capellini.store.interface import Store
from capellini.store.opening import open_store

NAMES: Final = 100  # counters that updates are spread over
FEW: Final = 20  # ... and fewer, to compare: each counter in a batch is a write of its own
CHUNK: Final = 10_000  # updates in one add_many
ROUNDS: Final = 5
BATCH: Final = 1_000  # updates in one request
TASKS: Final = 8
SHARDS: Final = 1_000
SINGLES: Final = 200
KEYSPACE: Final = "capellini_bench_counters"
STARTED_WITHIN_S: Final = 30.0


async def run(quick: bool, only: str | None) -> AsyncIterator[Figure]:
    """The figures that `only` picks."""
    parts = {
        "counters.add_many_per_s": _add_many,
        "counters.api_per_s": _api,
        "counters.cassandra.requests_per_update": _cassandra,
        "counters.reads_per_read_1000_shards": _reads,
    }
    for name in names("counters", only):
        yield await parts[name](name, quick)


async def _folder(folder: str) -> tuple[Store, Counters]:
    store = await open_store(RocksAddress(str(Path(folder) / "store")))
    return store, Counters(store, RealClock(), random.Random())


async def _checked(counters: CounterService, counted: Sequence[str], wanted: int) -> None:
    total = sum(one.value for one in await counters.read_many(counted) if not isinstance(one, Problem))
    if total != wanted:
        raise RuntimeError(f"{wanted} was added, and {total} was counted")


async def _add_many(name: str, quick: bool) -> Figure:
    updates = 500_000 if quick else 2_000_000
    chance = random.Random(1)
    items = [(f"n{chance.randrange(NAMES)}", chance.randrange(1_000)) for _ in range(updates)]
    chunks = [items[at : at + CHUNK] for at in range(0, updates, CHUNK)]
    rates = []
    with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
        store, counters = await _folder(folder)
        cpu_rates = []
        for _ in range(ROUNDS):
            began_s, cpu_s = time.perf_counter(), time.process_time()
            for chunk in chunks:
                await counters.add_many(chunk)
            await counters.flush()
            rates.append(updates / (time.perf_counter() - began_s))
            cpu_rates.append(updates / (time.process_time() - cpu_s))
        single_s = await _single_adds(counters)
        await _checked(counters, [f"n{at}" for at in range(NAMES)], ROUNDS * sum(value for _, value in items))
        await counters.close()
        await store.close()
    detail: Detail = {
        "updates": updates,
        "counters": NAMES,
        "per_s_of_processor_time": round(median(cpu_rates)),
        "single_add_ms": round(single_s * 1e3, 3),
    }
    return judge(name, median(rates), detail)


async def _single_adds(counters: Counters) -> float:
    """What one `add` takes that waits until it is durable, with nobody else there to share the write with."""
    times_s = []
    for _ in range(SINGLES):
        began_s = time.perf_counter()
        await counters.add("single")
        times_s.append(time.perf_counter() - began_s)
    return median(times_s)


# ---- through the API


async def _api(name: str, quick: bool) -> Figure:
    batches = 400 if quick else 2_000
    with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
        server = _started(folder)
        try:
            address = await asyncio.wait_for(asyncio.to_thread(_address, server), STARTED_WITHIN_S)
            few, _ = await _send(address, batches, FEW)
            rate, detail = await _send(address, batches, NAMES)
            detail[f"per_s_with_{FEW}_counters"] = round(few)
        finally:
            server.terminate()
            await asyncio.to_thread(server.wait)
    return judge(name, rate, detail)


def _started(folder: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "capellini.cli.main", "serve", "--listen", "127.0.0.1:0"]
    store = ["--store", f"rocks:{folder}/store"]
    return subprocess.Popen([*command, *store], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def _address(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    line = server.stdout.readline()
    if "http://" not in line:
        raise RuntimeError(f"the node did not start: {line!r}")
    return next(word for word in line.split() if word.startswith("http://")).rstrip(",")


async def _send(address: str, batches: int, count: int) -> tuple[float, Detail]:
    chance = random.Random(2)
    counted = [f"of-{count}.{at}" for at in range(count)]
    batch = [Update(chance.choice(counted), chance.randrange(1_000)) for _ in range(BATCH)]
    async with connect_async(address) as client:
        await client.counters.update_many(batch)  # names are known from here on

        async def task(count: int) -> None:
            for _ in range(count):
                for result in await client.counters.update_many(batch):
                    if isinstance(result, Problem):
                        raise result.raised()

        began_s = time.perf_counter()
        await asyncio.gather(*(task(batches // TASKS) for _ in range(TASKS)))
        took_s = time.perf_counter() - began_s
        sent = batches // TASKS * TASKS
        wanted = (sent + 1) * sum(int(one.value) for one in batch)
        await _checked(client.counters, counted, wanted)
    return sent * BATCH / took_s, {"batches": sent, "updates_each": BATCH, "tasks": TASKS, "counters": count}


# ---- on Cassandra


async def _cassandra(name: str, quick: bool) -> Figure:
    cluster = LocalCluster(f"bench-{os.getpid()}")
    try:
        await asyncio.to_thread(cluster.up, 1, owner=processes.identify(os.getpid()))
        return await _requests(name, cluster.contact_points(), quick)
    except ClusterError as error:
        return unmeasured(name, f"no cluster could be started: {error}")
    finally:
        await asyncio.to_thread(cluster.down)


async def _requests(name: str, host: str, quick: bool) -> Figure:
    updates = 20_000 if quick else 200_000
    store = await open_store(CassandraAddress((host,), KEYSPACE))
    counters = Counters(store, RealClock(), random.Random())
    counted = [f"n{at}" for at in range(4)]
    before = store.counts.requests

    async def task(number: int) -> None:
        for at in range(number, updates, TASKS * 250):
            batch = [Update(counted[place % 4]) for place in range(at, min(updates, at + TASKS * 250), TASKS)]
            for result in await counters.update_many(batch):
                if isinstance(result, Problem):
                    raise result.raised()

    began_s = time.perf_counter()
    await asyncio.gather(*(task(number) for number in range(TASKS)))
    took_s = time.perf_counter() - began_s
    requests = store.counts.requests - before
    await _checked(counters, counted, updates)
    await counters.close()
    await store.close()
    detail: Detail = {"updates": updates, "requests": requests, "updates_per_s": round(updates / took_s)}
    return judge(name, requests / updates, detail)


async def _reads(name: str, quick: bool) -> Figure:
    with tempfile.TemporaryDirectory(prefix="capellini-bench-") as folder:
        store, counters = await _folder(folder)
        for _ in range(SHARDS):  # a mutator each
            await Counters(store, RealClock(), random.Random()).add("n")
        await counters.add("n")
        times_s: list[float] = []
        before = store.counts.reads
        reads = 5 if quick else 50
        found: Any = None
        for _ in range(reads):
            began_s = time.perf_counter()
            found = await counters.read("n")
            times_s.append(time.perf_counter() - began_s)
        per_read = (store.counts.reads - before) / reads
        if found.value != SHARDS + 1 or found.shards != SHARDS + 1:
            raise RuntimeError(f"{SHARDS + 1} was added, and {found.value} was counted")
        await counters.close()
        await store.close()
    return judge(name, per_read, {"shards": SHARDS + 1, "read_ms": round(median(times_s) * 1e3, 2)})
