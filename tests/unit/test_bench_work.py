"""The parts of `capellini bench work`: each does real work, at a small size."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from capellini.bench import driving, figures, usage, work, work_cassandra, work_cost, work_lives, work_peers
from capellini.bench.driver import Tally
from capellini.bench.peers import peer, postgres, redis_streams
from capellini.bench.peers.capellini_node import Capellini
from capellini.model.clock import RealClock
from capellini.node.broker import Broker
from capellini.store.rocks import RocksStore
from capellini.store.schema import TABLES

pytestmark = pytest.mark.slow


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    store = await RocksStore.open(tmp_path / "store", create=True, clock=RealClock())
    await store.prepare(TABLES)
    made = Broker(store, RealClock(), random.Random(1))
    await made.create("lives")
    yield made
    await made.close()
    await store.close()


def test_every_figure_of_the_suite_belongs_to_one_part() -> None:
    for name in figures.names("work"):
        assert sum(name.startswith(prefixes) for prefixes in work.PARTS.values()) == 1


def test_every_figure_on_cassandra_has_a_workload() -> None:
    for name in figures.names("work", "cassandra"):
        assert any(work_cassandra._needs(name, each.name) for each in work_cassandra.WORKLOADS)


def test_rounds_are_judged_by_the_larger_of_both_counts() -> None:
    workload = next(each for each in work_cassandra.WORKLOADS if each.name == "b100")
    life = work_cassandra.Life(workload, 20_000, rounds=700, requests=1_500, rounds_share=1.2, requests_share=1.5)
    rounds = work_cassandra._figure("work.cassandra.b100.rounds", {"b100": life})
    requests = work_cassandra._figure("work.cassandra.b100.requests", {"b100": life})
    assert rounds.value == pytest.approx(0.042) and not rounds.holds
    assert requests.value == pytest.approx(0.075)
    life.rounds_share = 0.9
    assert work_cassandra._figure("work.cassandra.b100.rounds", {"b100": life}).value == pytest.approx(0.035)


@pytest.mark.parametrize("way", ["blocks", "singles", "apart"])
async def test_whole_lives_leave_an_empty_queue(broker: Broker, way: str) -> None:
    if way == "blocks":
        await work_lives.blocks(broker, "lives", 300, 100)
    elif way == "singles":
        await work_lives.singles(broker, "lives", 300, 8)
    else:
        await work_lives.apart([broker, broker, broker], "lives", 300, 50)
    pointers = await broker.pointers("lives")
    assert pointers.next_id == 300
    assert await broker.take("lives", 100) == []
    statistics = await broker.statistics("lives")
    assert (statistics.ready, statistics.in_flight) == (0, 0)


@pytest.mark.parametrize("consumed", [True, False])
async def test_old_and_new_queues_are_compared_by_requests_and_cpu(consumed: bool) -> None:
    scale = work_cost.Scale(consumed=3_000, unread=3_000, turns=2, messages=1_000)
    value, detail = await work_cost._compare(scale, 3_000, consumed)
    worse = max(float(str(detail["requests_ratio"])), float(str(detail["cpu_ratio"])))
    assert value == pytest.approx(worse, abs=0.001) and value > 0
    assert 0.02 < float(str(detail["requests_per_message_new"])) < 0.2


def test_cpu_of_a_process_includes_its_children() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\nprint('done', flush=True)\n"
    parent += "sys.stdin.readline()"
    process = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    assert usage.cpu_s(process.pid) >= 0.28
    process.communicate("\n")
    assert usage.cpu_s(process.pid) == 0
    assert usage.memory_mb() > 10


def test_consumers_count_in_places_of_their_own(tmp_path: Path) -> None:
    Tally.make(tmp_path / "acked", 3)
    one, other = Tally(tmp_path / "acked"), Tally(tmp_path / "acked")
    one.add(0, 5)
    other.add(2, 7)
    one.add(0, 1)
    assert one.total() == other.total() == 13


@pytest.mark.parametrize("shape", [driving.B100, driving.C32])
def test_our_node_is_driven_from_other_processes(tmp_path: Path, shape: driving.Shape) -> None:
    server = Capellini(tmp_path)
    server.start()
    try:
        run = driving.drive(server, "driven", shape, 4_000)  # many ticks of the system clock
    finally:
        server.stop()
    assert run.messages == 4_000 and run.took_s > 0 and run.per_s > 0
    assert run.server_cpu_s >= 0 and run.client_cpu_s > 0  # the kernel counts the server in hundredths


def test_a_driver_that_fails_says_why(tmp_path: Path) -> None:
    class Elsewhere(Capellini):
        name = "redis_streams"  # its lane finds no Redis there
        address = "redis://127.0.0.1:1/0"

    server = Elsewhere(tmp_path)
    server.start()
    try:
        server.fresh = lambda queue: None  # type: ignore[method-assign]
        with pytest.raises(driving.DriverFailed, match="refused"):
            driving.drive(server, "driven", driving.B100, 400)
    finally:
        server.stop()


def test_a_server_that_cannot_be_had_leaves_its_figure_without_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    with pytest.raises(peer.Missing, match="only root"):
        peer.find("no-such-server", "no-such-package")


def test_both_layouts_of_postgres_have_the_columns_the_statements_use() -> None:
    for statements in postgres.LAYOUTS.values():
        assert all(column in statements[0] for column in ("id", "reads", "put_at", "visible_at", "body"))
        assert "UNLOGGED" not in statements[0].upper()
    assert postgres.SETTINGS["synchronous_commit"] == postgres.SETTINGS["fsync"] == "on"


def test_entries_of_both_redis_protocols_are_read() -> None:
    entries = [(b"1-0", {b"b": b"x"}), (b"2-0", {b"b": b"y"})]
    assert redis_streams._flat(entries) == redis_streams._flat([entries]) == entries
    assert redis_streams._flat([]) == []


def test_ratios_are_the_median_of_the_turns() -> None:
    ours = [driving.Run(1_000, took_s, 0.02, 0.01, 50) for took_s in (0.1, 0.2, 0.4)]
    theirs = [driving.Run(1_000, 0.6, 0.01, 0.01, 50)] * 3
    server = postgres.Postgres(Path())
    figure = work_peers._figure(work_peers.VS_POSTGRES, server, ours, theirs, {"hot": 1.0})
    assert figure.value == pytest.approx(3.0) and figure.holds
    assert work_peers._figure(work_peers.CPU_VS_REDIS, server, ours, theirs, {}).value == pytest.approx(2.0)
