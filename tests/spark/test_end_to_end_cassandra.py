"""From queues on real Cassandra, with faults, into the archive and the audit: all that was confirmed is there, and the
journal says that nothing was lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.flow import Server

from capellini import Client, connect
from capellini.local.cluster import LocalCluster
from capellini.model.errors import CapelliniError
from capellini.model.service import Problem
from capellini.pipeline.audit.job import Options, audit
from capellini.pipeline.jobs.archive import Archive, archive, read_archive
from capellini.pipeline.journal.columns import read_journal
from capellini.pipeline.source.data import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.cassandra, pytest.mark.spark, pytest.mark.long]
QUEUES = {"jobs": "work", "later": "timed", "events": "log"}
BATCHES, BATCH = 30, 20
DEADLINE_S = 240.0


class Flowing:
    """Puts through one node, gets and acks through another, for each queue, until all that was confirmed came."""

    def __init__(self, put_at: str, get_at: str) -> None:
        self._put_at, self._get_at = put_at, get_at
        self.confirmed: dict[str, set[bytes]] = {queue: set() for queue in QUEUES}
        self._seen: dict[str, set[bytes]] = {queue: set() for queue in QUEUES}
        self.batches = 0
        self._ended = threading.Event()

    def put(self) -> None:
        with connect(self._put_at, patience_s=60.0) as client:
            for batch in range(BATCHES):
                bodies = [b"%d/%d" % (batch, number) for number in range(BATCH)]
                for queue in QUEUES:
                    self._put(client, queue, bodies)
                self.batches += 1
                time.sleep(0.05)
        self._ended.set()

    def _put(self, client: Client[bytes], queue: str, bodies: list[bytes]) -> None:
        try:
            results = client.put_many(queue, bodies)
        except CapelliniError:
            return  # not confirmed: it may be there or not
        self.confirmed[queue] |= {
            body for body, result in zip(bodies, results, strict=True) if not isinstance(result, Problem)
        }

    def get(self, queue: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        with connect(self._get_at, patience_s=60.0) as client:
            while time.monotonic() < deadline_s:
                try:
                    messages = client.get(queue, 100, wait_s=1.0)
                    if messages:
                        client.ack_many(queue, messages)
                except CapelliniError:
                    continue  # it comes again
                self._seen[queue] |= {message.raw for message in messages}
                if self._ended.is_set() and not messages and self._seen[queue] >= self.confirmed[queue]:
                    return

    def missing(self) -> dict[str, set[bytes]]:
        return {queue: self.confirmed[queue] - self._seen[queue] for queue in QUEUES}


@contextmanager
def two_nodes(store: str, logs: Path) -> Iterator[tuple[Server, Server]]:
    servers = Server("n1", store, logs, supervised=True), Server("n2", store, logs, supervised=True)
    try:
        for server in servers:
            server.start()
            asyncio.run(server.up())
        yield servers
    finally:
        for server in servers:
            asyncio.run(server.kill())


def stopped(servers: tuple[Server, Server]) -> None:
    """As they should be, so that their journals are closed."""
    for server in servers:
        server.leave()
    deadline_s = time.monotonic() + DEADLINE_S
    while any(server.running for server in servers):
        assert time.monotonic() < deadline_s, "a node does not end"
        time.sleep(0.05)


def table(spark: SparkSession, at: str, **options: str) -> DataFrame:
    return spark.read.format("capellini").options(at=at, **options).load()


def test_what_was_confirmed_under_faults_is_archived_and_the_journal_accuses_nobody(
    spark: SparkSession, broken_cluster: LocalCluster, fresh_keyspace: str, tmp_path: Path
) -> None:
    place = f"cassandra://{broken_cluster.contact_points()}/{fresh_keyspace}"
    with two_nodes(f"{place}?replication=3", tmp_path) as servers:
        first, second = servers
        with connect(second.url, patience_s=60.0) as client:
            for queue, kind in QUEUES.items():
                client.create_queue(queue, kind, visibility_s=5.0)
        flow = Flowing(first.url, second.url)
        threads = [threading.Thread(target=flow.put)]
        threads += [threading.Thread(target=flow.get, args=(queue,)) for queue in QUEUES]
        for thread in threads:
            thread.start()
        wait_for(flow, BATCHES // 3)
        broken_cluster.kill(3)
        wait_for(flow, BATCHES // 2)
        first.strike()
        first.start()
        asyncio.run(first.up())
        for thread in threads:
            thread.join()
        assert not any(flow.missing().values())
        assert all(len(bodies) > BATCH for bodies in flow.confirmed.values())
        written_twice(spark, place, second.url)
        stopped(servers)
    at = f"{place}?level=local_quorum"
    kept = Archive(at, "events", str(tmp_path / "kept"), str(tmp_path / "state"), reads_per_s=500.0)
    assert archive(spark, kept).rows >= len(flow.confirmed["events"])
    archived = read_archive(spark, kept.path)
    assert {bytes(row["body"]) for row in archived.select("body").collect()} >= flow.confirmed["events"]
    assert archived.count() == archived.select("extent", "number").distinct().count()
    assert [table(spark, at, queue=queue).count() for queue in ("jobs", "later")] == [0, 0]
    summary, findings = audit(read_journal(spark, at), Options(drained=frozenset(QUEUES)))
    assert summary.broken == 0, findings.collect()
    assert summary.lives >= sum(map(len, flow.confirmed.values()))
    assert summary.windows, "a node was killed, and the journal does not know"


def written_twice(spark: SparkSession, place: str, node: str) -> None:
    """Straight into Cassandra, under one name: it is there once. A log queue's node does the writing."""
    register(spark)
    rows = spark.range(0, 50, 1, 2).selectExpr("concat('from spark ', id) AS body")
    with connect(node) as client:
        for kind in ("work", "log"):
            client.create_queue(f"into-{kind}", kind)
            for _ in range(2):
                options = {"at": place, "queue": f"into-{kind}", "job": "once"}
                rows.write.format("capellini").options(**options).mode("append").save()
            assert table(spark, place, queue=f"into-{kind}").count() == 50


def wait_for(flow: Flowing, batches: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while flow.batches < batches:
        assert time.monotonic() < deadline_s, "nothing is put"
        time.sleep(0.02)
