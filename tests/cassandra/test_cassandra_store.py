"""The Cassandra store on a real cluster: what the common suite cannot see, since it knows no rounds and no nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.refusals import one_sentence, serve

from capellini.local.cluster import LocalCluster
from capellini.model.address import CassandraAddress
from capellini.model.errors import CannotOpen, TooLarge, Unavailable, Unknown
from capellini.store import cql
from capellini.store.cassandra import CassandraStore
from capellini.store.interface import ABSENT, Batch, Cas, Change, Column, Level, Slice, Table, Type

pytestmark = pytest.mark.cassandra

BUCKETS = Table(
    name="buckets",
    doc="Blocks beside a conditional static row.",
    partition=(Column("queue", Type.TEXT), Column("bucket", Type.INT)),
    clustering=(Column("first", Type.INT),),
    columns=(Column("block", Type.BLOB),),
    statics=(Column("state", Type.BLOB), Column("token", Type.TEXT), Column("dropped", Type.BLOB)),
    conditional=frozenset({"state", "token", "dropped"}),
)
CLAIMS = Table(
    name="claims",
    doc="Conditional rows.",
    partition=(Column("queue", Type.TEXT),),
    clustering=(Column("id", Type.INT),),
    columns=(Column("state", Type.TEXT), Column("flag", Type.BOOL), Column("token", Type.TEXT)),
    conditional=frozenset({"state", "flag", "token"}),
)
TABLES = (BUCKETS, CLAIMS)


@pytest.fixture(scope="module")
def address(cassandra_address: str, fresh_keyspace: str) -> CassandraAddress:
    return CassandraAddress(tuple(cassandra_address.split(",")), fresh_keyspace, replication="3", timeout_s=20.0)


@pytest.fixture
async def store(address: CassandraAddress) -> AsyncIterator[CassandraStore]:
    opened = await CassandraStore.open(address)
    await opened.prepare(TABLES)
    yield opened
    await opened.close()


async def test_every_node_of_the_data_centre_is_known(store: CassandraStore, address: CassandraAddress) -> None:
    assert store._session.hosts == sorted(address.hosts)


async def test_a_refused_condition_on_the_token_shows_the_state_in_one_round(store: CassandraStore) -> None:
    def cas(token: str | None) -> Cas:
        return Cas(BUCKETS, ("shown", 1), (Change(None, {"token": token}, {"state": b"new", "token": "t2"}),))

    made = await store.compare_and_set(
        Cas(BUCKETS, ("shown", 1), (Change(None, {"token": None}, {"state": b"old", "token": "t1"}),))
    )
    assert made.applied
    before = msgspec.structs.replace(store.counts)
    refused = await store.compare_and_set(cas("other"))
    assert not refused.applied
    assert refused.rows == {None: {"state": b"old", "token": "t1"}}
    assert store.counts.rounds == before.rounds + 1
    assert store.counts.requests == before.requests + 1


async def test_a_refused_batch_shows_whole_rows_of_every_type_in_one_round(store: CassandraStore) -> None:
    await store.compare_and_set(
        Cas(CLAIMS, ("whole",), (Change((1,), ABSENT, {"state": "a", "flag": True, "token": "t"}),))
    )
    rounds = store.counts.rounds
    refused = await store.compare_and_set(
        Cas(
            CLAIMS,
            ("whole",),
            (Change((1,), {"token": "t"}, {"token": "u"}), Change((2,), {"token": "never"}, {"token": "u"})),
        )
    )
    assert refused.rows == {(1,): {"state": "a", "flag": True, "token": "t"}}
    assert store.counts.rounds == rounds + 1


async def test_a_conditional_drop_leaves_its_marker_and_nothing_else(store: CassandraStore) -> None:
    place = ("dropped", 1)
    await store.write(Batch(BUCKETS, place, tuple(((at,), {"block": b"x"}) for at in range(5))))
    await store.compare_and_set(Cas(BUCKETS, place, (Change(None, {"token": None}, {"state": b"s", "token": "t"}),)))

    def drop(token: str) -> Cas:
        return Cas(BUCKETS, place, (Change(None, {"token": token}, {"token": "end", "dropped": b"m"}),), drop=True)

    refused = await store.compare_and_set(drop("other"))
    assert (refused.applied, refused.rows) == (False, {None: {"state": b"s", "token": "t"}})
    assert len((await store.read(Slice(BUCKETS, place))).rows) == 5
    rounds = store.counts.rounds
    assert (await store.compare_and_set(drop("t"))).applied
    assert store.counts.rounds == rounds + 1
    page = await store.read(Slice(BUCKETS, place, level=Level.SERIAL))
    assert (page.rows, page.static) == ([], {"token": "end", "dropped": b"m"})


async def test_200_rows_change_in_one_round_past_the_limit_of_other_batches(store: CassandraStore) -> None:
    long = "x" * 1_000  # 200 KB in all: four times what a batch over several partitions may have
    changes = tuple(Change((at,), ABSENT, {"state": long, "token": f"t{at}"}) for at in range(200))
    before = msgspec.structs.replace(store.counts)
    assert (await store.compare_and_set(Cas(CLAIMS, ("many",), changes))).applied
    assert (store.counts.rounds, store.counts.requests) == (before.rounds + 1, before.requests + 1)
    refused = await store.compare_and_set(Cas(CLAIMS, ("many",), changes))
    assert not refused.applied
    assert len(refused.rows) == 200


async def test_times_to_live_reach_the_cells_of_both_kinds_of_writes(store: CassandraStore) -> None:
    await store.write(Batch(BUCKETS, ("ttl", 1), (((1,), {"block": b"x"}),), ttl_s=1_000))
    await store.write(Batch(BUCKETS, ("ttl", 1), (((2,), {"block": b"x"}),)))
    await store.compare_and_set(Cas(CLAIMS, ("ttl",), (Change((1,), ABSENT, {"token": "t"}),), ttl_s=2_000))
    keyspace = store._session.address.keyspace
    blocks = await store._session.read(
        f"SELECT TTL(block) FROM {cql.place(keyspace, BUCKETS)} WHERE queue = 'ttl' AND bucket = 1", [], Level.QUORUM
    )
    assert 900 < blocks[0][0] <= 1_000
    assert blocks[1][0] is None
    tokens = await store._session.read(
        f"SELECT TTL(\"token\") FROM {cql.place(keyspace, CLAIMS)} WHERE queue = 'ttl'", [], Level.QUORUM
    )
    assert 1_900 < tokens[0][0] <= 2_000


async def test_explicit_timestamps_order_writes_and_drops(store: CassandraStore) -> None:
    place = ("times", 1)

    async def put(value: bytes, timestamp_us: int) -> None:
        await store.write(Batch(BUCKETS, place, (((1,), {"block": value}),), timestamp_us=timestamp_us))

    await put(b"later", 200)
    await put(b"earlier", 100)
    await store.drop(BUCKETS, place, timestamp_us=150)
    assert [row.values for row in (await store.read(Slice(BUCKETS, place))).rows] == [{"block": b"later"}]
    await store.drop(BUCKETS, place, timestamp_us=250)
    assert (await store.read(Slice(BUCKETS, place))).rows == []


async def test_a_large_write_is_cut_by_bytes(store: CassandraStore) -> None:
    block = b"x" * 200_000
    before = msgspec.structs.replace(store.counts)
    await store.write(Batch(BUCKETS, ("large", 1), tuple(((at,), {"block": block}) for at in range(12))))
    parts = store.counts.requests - before.requests - (store.counts.retries - before.retries)
    assert parts == 3  # 2.4 MB, at most 1 MiB each
    assert store.counts.bytes_written - before.bytes_written > 2_400_000
    assert len((await store.read(Slice(BUCKETS, ("large", 1)))).rows) == 12


async def test_what_the_cluster_takes_not_at_all_is_too_large(store: CassandraStore) -> None:
    """The test cluster has commit log segments of 8 MiB, so that 4 MiB is the most."""
    with pytest.raises(TooLarge):
        await store.write(Batch(BUCKETS, ("larger", 1), (((1,), {"block": b"x" * 5_000_000}),)))
    assert (await store.read(Slice(BUCKETS, ("larger", 1)))).rows == []


async def test_a_hung_coordinator_makes_compare_and_sets_unknown_and_nothing_else(
    broken_cluster: LocalCluster, address: CassandraAddress
) -> None:
    # A coordinator that reads from the hung server asks another one 2.5 s later, where a table is new.
    store = await CassandraStore.open(msgspec.structs.replace(address, timeout_s=5.0))
    try:
        await store.prepare(TABLES)
        await store.write(Batch(BUCKETS, ("hung", 0), (((1,), {"block": b"x"}),)))
        await store.compare_and_set(Cas(CLAIMS, ("hung",), (Change((0,), ABSENT, {"token": "t"}),)))
        broken_cluster.pause(2)

        async def attempt(number: int) -> bool:
            await store.write(Batch(BUCKETS, ("hung", number), (((1,), {"block": b"x"}),)))
            assert (await store.read(Slice(BUCKETS, ("hung", number)))).rows
            try:
                await store.compare_and_set(Cas(CLAIMS, (f"hung{number}",), (Change((1,), ABSENT, {"token": "t"}),)))
            except Unknown:
                return True
            return False

        lost = await asyncio.gather(*(attempt(number) for number in range(1, 31)))
        assert any(lost)
        assert not all(lost)
        assert store.counts.unknown == sum(lost)
        assert store.counts.retries > 0
    finally:
        broken_cluster.resume(2, wait=False)
        await store.close()


# ---- opening


async def refusal(address: CassandraAddress, create: bool = True) -> str:
    async def opened() -> None:
        store = await CassandraStore.open(address)
        try:
            await store.prepare(TABLES, create=create)
        finally:
            await store.close()

    with pytest.raises(CannotOpen) as raised:
        await opened()
    return raised.value.says


async def test_nobody_at_the_address_is_said(address: CassandraAddress) -> None:
    said = await refusal(msgspec.structs.replace(address, hosts=("127.0.99.1",), timeout_s=2.0))
    assert "no Cassandra answers at cassandra://127.0.99.1:9042/" in said


async def test_a_data_centre_that_is_not_there_is_said(address: CassandraAddress) -> None:
    said = await refusal(msgspec.structs.replace(address, dc="elsewhere"))
    assert "there is no data centre 'elsewhere'" in said
    assert "dc1" in said


async def test_tls_without_a_certificate_or_a_server_that_speaks_it_is_said(
    address: CassandraAddress, tmp_path: object
) -> None:
    assert "ssl_ca=FILE" in await refusal(msgspec.structs.replace(address, ssl=True))
    missing = f"{tmp_path}/none.pem"
    assert "cannot be read" in await refusal(msgspec.structs.replace(address, ssl_ca=missing))


async def test_a_keyspace_that_may_not_be_created_is_said(address: CassandraAddress) -> None:
    said = await refusal(msgspec.structs.replace(address, keyspace="not_there"), create=False)
    assert "keyspace not_there does not exist" in said


async def test_more_copies_than_nodes_are_refused(address: CassandraAddress) -> None:
    said = await refusal(msgspec.structs.replace(address, keyspace="not_there", replication="dc1:5"))
    assert "wants 5 nodes in data centre 'dc1', which has 3" in said


async def test_tables_of_another_version_or_another_shape_are_refused(
    store: CassandraStore, address: CassandraAddress, tmp_path: Path
) -> None:
    place = cql.place(address.keyspace, cql.VERSIONS)
    set_version = await store._session.prepare(f"UPDATE {place} SET version = ? WHERE name = 'capellini' IF EXISTS")
    await store._session.compare_and_set([(set_version, [99])], Level.SERIAL)
    try:
        assert "has tables of version 99" in await refusal(address)
        hosts = ",".join(address.hosts)
        done = await asyncio.to_thread(
            serve, cwd=tmp_path, CAPELLINI_CONTACT_POINTS=hosts, CAPELLINI_KEYSPACE=address.keyspace
        )
        one_sentence(done, "use a newer one, or another keyspace")
        await store._session.compare_and_set([(set_version, [0])], Level.SERIAL)
        assert "has tables of version 0" in await refusal(address)
    finally:
        await store._session.compare_and_set([(set_version, [1])], Level.SERIAL)
    other = msgspec.structs.replace(CLAIMS, columns=(*CLAIMS.columns, Column("extra", Type.INT)))
    with pytest.raises(CannotOpen, match="extra bigint is missing"):
        await store.prepare((other,))
    await store.prepare(TABLES)


async def test_check_and_skew_ask_the_cluster(store: CassandraStore) -> None:
    await store.check()
    assert abs(await store.skew_s()) < 60  # one machine, one clock: only waiting in line can part them
    await store.close()
    with pytest.raises(Unavailable):
        await store.check()


async def test_stores_that_open_an_empty_keyspace_at_once_share_its_tables(address: CassandraAddress) -> None:
    fresh = msgspec.structs.replace(address, keyspace=f"{address.keyspace[:40]}_two")
    stores = await asyncio.gather(*(CassandraStore.open(fresh) for _ in range(3)))
    for number, store in enumerate(stores):  # each by way of another node, as when the first does not answer them all
        hosts = store._session.hosts
        store._session.hosts = hosts[number:] + hosts[:number]
    try:
        await asyncio.gather(*(store.prepare((CLAIMS,)) for store in stores))
        for number, store in enumerate(stores):
            cas = Cas(CLAIMS, ("one",), (Change((1,), ABSENT, {"token": f"{number}"}),))
            outcome = await store.compare_and_set(cas)
            assert outcome.applied is (number == 0)
    finally:
        await asyncio.gather(*(store.close() for store in stores))
