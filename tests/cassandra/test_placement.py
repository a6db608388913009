"""Where partitions lie: what is computed here is what the cluster does."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator

import pytest

from capellini.local.cluster import LocalCluster
from capellini.model.address import CassandraAddress
from capellini.model.errors import StoreError
from capellini.store import cql
from capellini.store.cassandra import CassandraStore
from capellini.store.interface import Batch, Column, Key, Level, Table, Type
from capellini.store.ring import key_bytes, token_of

pytestmark = pytest.mark.cassandra

KEYS = 400
PLACES = Table(
    name="places",
    doc="Keys of every type.",
    partition=(
        Column("text", Type.TEXT),
        Column("number", Type.INT),
        Column("bytes", Type.BLOB),
        Column("time", Type.TIMEUUID),
    ),
    columns=(Column("value", Type.INT),),
)
ALONE = Table(
    name="alone",
    doc="A key of one column.",
    partition=(Column("text", Type.TEXT),),
    columns=(Column("value", Type.INT),),
)


@pytest.fixture
async def store(cassandra_address: str, fresh_keyspace: str) -> AsyncIterator[CassandraStore]:
    address = CassandraAddress(tuple(cassandra_address.split(",")), fresh_keyspace, replication="1", timeout_s=5.0)
    opened = await CassandraStore.open(address)
    await opened.prepare((PLACES, ALONE))
    yield opened
    await opened.close()


def some_key(chance: random.Random) -> Key:
    text = "".join(chance.choice("aZ-é中😀") for _ in range(chance.randrange(1, 20)))
    time = uuid.UUID(fields=(chance.getrandbits(32), chance.getrandbits(16), 0x1000, 0x80, 0, chance.getrandbits(48)))
    return text, chance.randrange(-(1 << 63), 1 << 63), chance.randbytes(chance.randrange(1, 40)), time


async def told(store: CassandraStore, table: Table, key: Key) -> int:
    """The token that Cassandra computes: it does so for rows that are there only."""
    await store.write(Batch(table, key, (((), {"value": 1}),)))
    names = cql.names(table.partition)
    where = f"FROM {cql.place(store._keyspace, table)} WHERE {cql.equal(table.partition)}"
    rows = await store._session.read(f"SELECT token({names}) {where}", list(key), Level.QUORUM)
    return int(rows[0][0])


async def test_tokens_are_those_that_cassandra_computes(store: CassandraStore) -> None:
    chance = random.Random(11)
    keys = [some_key(chance) for _ in range(KEYS)]
    tokens = await asyncio.gather(*(told(store, PLACES, key) for key in keys))
    assert tokens == [token_of(key_bytes(PLACES.partition, key)) for key in keys]
    alone = [(some_key(chance)[0],) for _ in range(50)]
    tokens = await asyncio.gather(*(told(store, ALONE, key) for key in alone))
    assert tokens == [token_of(key_bytes(ALONE.partition, key)) for key in alone]


async def test_every_partition_has_a_replica_and_all_are_up(store: CassandraStore) -> None:
    found = [await store.replicas(ALONE, (f"k{number}",)) for number in range(60)]
    assert {len(replicas) for replicas in found} == {1}
    assert {one.name for replicas in found for one in replicas} == set(store._session.hosts)
    assert all(one.up and one.dc == store.home for replicas in found for one in replicas)
    assert store.homes == (store.home,)


@pytest.mark.slow
async def test_what_lies_on_a_server_that_hangs_is_known_and_is_all_that_fails(
    store: CassandraStore, broken_cluster: LocalCluster
) -> None:
    keys = [(f"k{number}",) for number in range(36)]
    address = broken_cluster.status()[2].address
    there = {key for key in keys if (await store.replicas(ALONE, key))[0].name == address}
    assert 0 < len(there) < len(keys)
    for key in keys:  # what is to be prepared is
        await store.write(Batch(ALONE, key, (((), {"value": 0}),)))
    broken_cluster.pause(3)

    async def fails(key: Key) -> bool:
        try:
            await store.write(Batch(ALONE, key, (((), {"value": 1}),), level=Level.ONE, once=True))
        except StoreError:
            return True
        return False

    failed = await asyncio.gather(*(fails(key) for key in keys))
    assert {key for key, bad in zip(keys, failed, strict=True) if bad} == there
    for key in keys:
        (replica,) = await store.replicas(ALONE, key)
        assert replica.up == (key not in there)
