"""Packed bucket state against versions by row: the measurement behind `docs/decisions/0002-packed-bucket-state.md`.

    python -m capellini.bench.claims [--cassandra]

The same work twice, interleaved: messages of one bucket are claimed and acked in batches of 100. By row: each message
has a cell with its version, and a claim is one conditional batch of 100 rows. Packed: the states of all messages are
one cell, and a claim is one conditional write of it. Both are one Paxos round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from capellini.local.cluster import LocalCluster
from capellini.model.address import CassandraAddress
from capellini.model.clock import RealClock
from capellini.queues.work.bucket import NEVER_MS, Offer, Proof, acked, claim
from capellini.queues.work.runs import Runs, encode
from capellini.store.cassandra import CassandraStore
from capellini.store.interface import ABSENT, Cas, Change, Column, Key, Store, Table, Type
from capellini.store.rocks import RocksStore

BUCKET: Final = 1_000
BATCH: Final = 100
TURNS: Final = 6

BY_ROW: Final = Table(
    name="claims_by_row",
    doc="Versions by row, for a measurement.",
    partition=(Column("bucket", Type.INT),),
    clustering=(Column("id", Type.INT),),
    columns=(Column("version", Type.INT), Column("at", Type.INT)),
    conditional=frozenset(("version", "at")),
)
PACKED: Final = Table(
    name="claims_packed",
    doc="Packed state, for a measurement.",
    partition=(Column("bucket", Type.INT),),
    clustering=(Column("id", Type.INT),),
    columns=(Column("body", Type.BLOB),),
    statics=(Column("state", Type.BLOB), Column("token", Type.INT)),
    conditional=frozenset(("state", "token")),
)


async def by_row(store: Store, bucket: int) -> int:
    """Claim and ack every message of a bucket; the bytes of state written."""
    partition: Key = (bucket,)
    for first in range(0, BUCKET, BATCH):
        ids = range(first, first + BATCH)
        claims = tuple(Change((id,), ABSENT, {"version": 1, "at": 30_000}) for id in ids)
        acks = tuple(Change((id,), {"version": 1}, {"version": -1, "at": 0}) for id in ids)
        for changes in (claims, acks):
            assert (await store.compare_and_set(Cas(BY_ROW, partition, changes))).applied
    return BUCKET * 2 * 24  # id, version and time of each row, twice


async def packed(store: Store, bucket: int) -> int:
    partition: Key = (bucket,)
    runs: Runs = ()
    token: int | None = None
    written = 0
    for first in range(0, BUCKET, BATCH):
        offers = [Offer(first, first + BATCH, 0, NEVER_MS)]
        for step in ("claim", "ack"):
            if step == "claim":
                runs, _ = claim(runs, offers, BATCH, 0, 30_000, 0)
            else:
                runs, _ = acked(runs, Proof(first, first + BATCH, 1))
            state = encode(runs)
            change = Change(None, {"token": token}, {"state": state, "token": (token or 0) + 1})
            assert (await store.compare_and_set(Cas(PACKED, partition, (change,)))).applied
            token = (token or 0) + 1
            written += len(state)
    return written


async def compare(store: Store) -> dict[str, float]:
    await store.prepare((BY_ROW, PACKED))
    ways: dict[str, Callable[[Store, int], Awaitable[int]]] = {"by_row": by_row, "packed": packed}
    taken_s = dict.fromkeys(ways, 0.0)
    written = dict.fromkeys(ways, 0)
    for turn in range(TURNS + 1):
        for name, way in ways.items():
            began_s = time.perf_counter()
            state_bytes = await way(store, turn)
            if turn:  # the first is to warm up
                taken_s[name] += time.perf_counter() - began_s
                written[name] += state_bytes
    messages = TURNS * BUCKET
    return {
        "by_row_us_per_message": taken_s["by_row"] / messages * 1e6,
        "packed_us_per_message": taken_s["packed"] / messages * 1e6,
        "packed_is_faster_by": taken_s["by_row"] / taken_s["packed"],
        "by_row_state_bytes_per_message": written["by_row"] / messages,
        "packed_state_bytes_per_message": written["packed"] / messages,
    }


async def on_rocks() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        store = await RocksStore.open(Path(folder) / "data", clock=RealClock())
        try:
            return await compare(store)
        finally:
            await store.close()


async def on_cassandra() -> dict[str, float]:
    cluster = LocalCluster("claims")
    cluster.up(nodes=1, jvm="full")
    try:
        store = await CassandraStore.open(CassandraAddress((cluster.contact_points().split(",")[0],), "claims"))
        try:
            return await compare(store)
        finally:
            await store.close()
    finally:
        cluster.down()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cassandra", action="store_true", help="also on a local cluster of one node")
    found = {"rocks": asyncio.run(on_rocks())}
    if parser.parse_args().cassandra:
        found["cassandra"] = asyncio.run(on_cassandra())
    for store, figures in found.items():
        print(json.dumps({"store": store, **{name: round(value, 3) for name, value in figures.items()}}))


if __name__ == "__main__":
    main()
