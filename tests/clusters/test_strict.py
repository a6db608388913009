"""A Cassandra that wants TLS and passwords, and gives rights: a node of its own, and what it says to whom."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import acsylla
import msgspec
import pytest
from tests import refusals

from capellini.local import config, jars, processes, tls
from capellini.local.cluster import LocalCluster
from capellini.model.address import CassandraAddress
from capellini.model.errors import CannotOpen
from capellini.store.cassandra import CassandraStore
from capellini.store.interface import Batch, Slice
from capellini.store.schema import BUCKETS, TABLES

pytestmark = [pytest.mark.cassandra, pytest.mark.slow, pytest.mark.long]  # a second cluster beside the shared one

SECRET = "wrong-secret"


@pytest.fixture(scope="module")
def strict() -> Iterator[LocalCluster]:
    cluster = LocalCluster(f"strict-{os.getpid()}")
    try:
        cluster.up(nodes=1, tls=True, passwords=True, owner=processes.identify(os.getpid()))
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def owner(strict: LocalCluster) -> CassandraAddress:
    """As its first user."""
    user, password = config.FIRST_USER
    return CassandraAddress(
        (strict.contact_points(),), "rights", username=user, password=password, timeout_s=10.0, ssl=True,
        ssl_ca=str(strict.ca_file),
    )  # fmt: skip


def serve(cluster: LocalCluster, **settings: str) -> subprocess.CompletedProcess[str]:
    """A node that cannot start there: what it said."""
    user, password = config.FIRST_USER
    asked = {
        "CONTACT_POINTS": cluster.contact_points(), "USERNAME": user, "PASSWORD": password, "USE_SSL": "true",
        "SSL_CA": str(cluster.ca_file), **settings,
    }  # fmt: skip
    environ = {f"CAPELLINI_{name}": value for name, value in asked.items() if value}
    return refusals.serve(cwd=cluster.folder, **environ)


def one_sentence(done: subprocess.CompletedProcess[str], says: str) -> None:
    refusals.one_sentence(done, says)
    assert SECRET not in done.stderr


# ---- TLS


async def test_a_store_speaks_tls_with_a_password(owner: CassandraAddress) -> None:
    address = msgspec.structs.replace(owner, keyspace="encrypted")
    store = await CassandraStore.open(address)
    try:
        await store.prepare(TABLES)
        await store.check()
        await store.write(Batch(BUCKETS, ("jobs", 1, 0), (((0,), {"count": 1, "delayed": False, "block": b"x"}),)))
        assert [row.values["block"] for row in (await store.read(Slice(BUCKETS, ("jobs", 1, 0)))).rows] == [b"x"]
    finally:
        await store.close()


def test_a_certificate_of_somebody_else_is_not_trusted(strict: LocalCluster, tmp_path: Path) -> None:
    tls.make(tmp_path, ["127.0.0.1"], jars.find_java())
    one_sentence(serve(strict, SSL_CA=str(tls.ca_of(tmp_path))), "cannot be trusted")


def test_a_file_that_holds_no_certificate_is_named(strict: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("hello")
    one_sentence(serve(strict, SSL_CA=str(tmp_path / "ca.pem")), "holds no certificate")
    one_sentence(serve(strict, SSL_CA=str(tmp_path / "none.pem")), "cannot be read")
    one_sentence(serve(strict, SSL_CA=""), "no ssl_ca=FILE")


def test_a_client_that_speaks_no_tls_is_told_so(strict: LocalCluster) -> None:
    one_sentence(serve(strict, USE_SSL="", SSL_CA=""), "if it speaks TLS, say ssl=true")


# ---- passwords and rights


def test_a_wrong_password_or_none_is_told(strict: LocalCluster) -> None:
    one_sentence(serve(strict, PASSWORD=SECRET), "does not let user 'cassandra' in")
    one_sentence(serve(strict, USERNAME="", PASSWORD=""), "check the user and password")


async def command(address: CassandraAddress, *texts: str) -> list[list[object]]:
    """Statements of an administrator; the rows of the last."""
    store = await CassandraStore.open(address)
    try:
        for text in texts:
            rows = await store._session._inner.execute(acsylla.create_statement(text, timeout=30.0))
        return [row.as_list() for row in rows]
    finally:
        await store.close()


async def said_to(address: CassandraAddress) -> str:
    async def opened() -> None:
        store = await CassandraStore.open(address)
        try:
            await store.prepare(TABLES)
        finally:
            await store.close()

    with pytest.raises(CannotOpen) as raised:
        await opened()
    return raised.value.says


async def test_missing_rights_are_named_until_they_are_given(strict: LocalCluster, owner: CassandraAddress) -> None:
    await command(owner, "CREATE ROLE guest WITH PASSWORD = 'guest' AND LOGIN = true")
    guest = msgspec.structs.replace(owner, username="guest", password="guest")
    one_sentence(serve(strict, USERNAME="guest", PASSWORD="guest", KEYSPACE="rights"), "may not create keyspace rights")
    there = await command(owner, "SELECT keyspace_name FROM system_schema.keyspaces")
    assert ["rights"] not in there

    store = await CassandraStore.open(owner)
    await store.prepare(TABLES)
    await store.close()
    assert "cannot be read" in await said_to(guest)
    await command(owner, "GRANT SELECT ON KEYSPACE rights TO guest")
    assert "grant SELECT and MODIFY" in await said_to(guest)
    reader = await CassandraStore.open(guest)  # enough for whoever only reads
    await reader.prepare(TABLES, create=False, writes=False)
    assert not (await reader.read(Slice(BUCKETS, ("jobs", 1, 0)))).rows
    await reader.close()
    await command(owner, "GRANT MODIFY ON KEYSPACE rights TO guest")
    allowed = await CassandraStore.open(guest)
    await allowed.prepare(TABLES)
    await allowed.check()
    await allowed.close()
