"""Passwords and rights: a node of its own that asks for them."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator

import acsylla
import msgspec
import pytest

from capellini.local import cluster as local
from capellini.local import config, processes
from capellini.model.address import CassandraAddress
from capellini.model.errors import CannotOpen
from capellini.store.cassandra import CassandraStore
from capellini.store.schema import TABLES

pytestmark = [pytest.mark.cassandra, pytest.mark.long]

START_S = 180.0  # roles are made some time after the node answers


@pytest.fixture(scope="module")
def strict_address() -> Iterator[CassandraAddress]:
    """One node with PasswordAuthenticator and CassandraAuthorizer, as its first user."""
    with pytest.MonkeyPatch.context() as patch:
        plain = config.cassandra_yaml

        def strict(node: config.NodeConfig) -> str:
            text = plain(node).replace("AllowAllAuthenticator", "PasswordAuthenticator")
            return text.replace("AllowAllAuthorizer", "CassandraAuthorizer")

        def listens(address: str, *_: object) -> None:
            with socket.create_connection((address, config.CQL_PORT), timeout=2):
                return

        patch.setattr(config, "cassandra_yaml", strict)
        patch.setattr(local, "check_alone", listens)
        patch.setattr(local, "check_whole", listens)
        cluster = local.LocalCluster(f"rights-{os.getpid()}")
        try:
            cluster.up(nodes=1, owner=processes.identify(os.getpid()))
            address = CassandraAddress(
                (cluster.contact_points(),), "rights", username="cassandra", password="cassandra", timeout_s=10.0
            )
            wait_for_roles(address)
            yield address
        finally:
            cluster.down()


def wait_for_roles(address: CassandraAddress) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            asyncio.run(command(address, "SELECT role FROM system_auth.roles"))
            return
        except CannotOpen:
            assert time.monotonic() < deadline_s, "the first user was not made in time"
            time.sleep(1)


async def command(address: CassandraAddress, *texts: str) -> None:
    store = await CassandraStore.open(address)
    try:
        for text in texts:
            await store._session._inner.execute(acsylla.create_statement(text, timeout=30.0))
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
    assert "wrong-secret" not in raised.value.says
    return raised.value.says


async def test_who_may_do_what_is_said_in_one_sentence(strict_address: CassandraAddress) -> None:
    wrong = msgspec.structs.replace(strict_address, password="wrong-secret")
    assert "does not let user 'cassandra' in" in await said_to(wrong)
    nobody = msgspec.structs.replace(strict_address, username=None, password=None)
    assert "user and password" in await said_to(nobody)

    await command(strict_address, "CREATE ROLE guest WITH PASSWORD = 'guest' AND LOGIN = true")
    guest = msgspec.structs.replace(strict_address, username="guest", password="guest")
    assert "'guest' may not create keyspace rights" in await said_to(guest)

    owner = await CassandraStore.open(strict_address)
    await owner.prepare(TABLES)
    await owner.close()
    assert "cannot be read" in await said_to(guest)
    await command(strict_address, "GRANT SELECT ON KEYSPACE rights TO guest")
    assert "grant SELECT and MODIFY" in await said_to(guest)
    await command(strict_address, "GRANT MODIFY ON KEYSPACE rights TO guest")

    allowed = await CassandraStore.open(guest)
    await allowed.prepare(TABLES)
    await allowed.check()
    await allowed.close()
