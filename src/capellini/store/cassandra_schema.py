"""Make sure that the keyspace and its tables are there, are ours, and may be used.

    keyspace there? ──no──▶ create ─┐
      │ yes                         ▼
      └──▶ version row: newer ──▶ CannotOpen      older ──▶ the steps between, one by one
                        same, or none yet ──▶ each table: create, or compare column by column ──▶ write the version

The version row is changed by compare-and-set, after the step it stands for: two nodes that start at once may both take
a step, and one may die halfway, so steps are harmless to repeat (`IF NOT EXISTS`). Every sentence here is for a person
who has to do something about it.

Nodes tell each other of a change, and until they have, one that does not know a table refuses what concerns it
("INCOMPATIBLE_SCHEMA", "does not exist"); nodes that have just started do so for a while. So nothing is changed before
they agree, nothing is used before they agree again, and what fails all the same is repeated, each time from the top.

A table that two coordinators create at once would be two tables, each known to some of the nodes: Cassandra gives each
an id of its own (CASSANDRA-9424). All of a data centre go by way of one host, but when that one is away for some of us
it is not one. So the id is given: that of the version table follows from when the keyspace was made, those of the
others from that id, and whoever creates a table creates the same. After the keyspace was dropped and made anew, ids are
others: nothing of the old tables is in them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final
from uuid import NAMESPACE_OID, UUID, uuid5

from capellini.model.clock import Clock
from capellini.model.errors import CannotOpen, StoreError, Unavailable
from capellini.store import cql
from capellini.store.cassandra_session import NoRights, Session
from capellini.store.interface import Level, Table, Type, Value
from capellini.store.schema import SCHEMA_VERSION

AGREEMENT_S: Final = 90.0  # nodes tell each other of a change within seconds; what was lost they ask for every minute
ALL_AGREE_S: Final = 5.0  # so long all of them are waited for; then a majority does: one that is down tells old news
POLL_S: Final = 0.2
USUAL_COPIES: Final = 3
OURS: Final = "capellini"  # the key of the version row

# The statements that lead from a version to the next, `{keyspace}` filled in; each harmless to repeat.
MIGRATIONS: Final[Mapping[int, tuple[str, ...]]] = {}
PAUSES_S: Final = (0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0)  # between attempts: as long as a node takes to come back
log: Final = logging.getLogger("capellini.store")


async def ensure(session: Session, tables: tuple[Table, ...], create: bool, clock: Clock, writes: bool = True) -> None:
    """Raises CannotOpen with what to do. A cluster that is away for a moment, or whose nodes do not agree yet, as when
    they have just started or several nodes of ours make the same tables at once, is asked again for a while."""
    for pause_s in (*PAUSES_S, None):
        try:
            return await _ensure(session, tables, create, clock, writes)
        except NoRights as error:
            rights = "SELECT and MODIFY" if writes else "SELECT"
            raise CannotOpen(
                f"the tables of keyspace {session.address.keyspace} cannot be read or changed by user "
                f"{session.address.username!r}: grant {rights} on the keyspace ({error.says})"
            ) from error
        except StoreError as error:
            if pause_s is None:
                raise CannotOpen(
                    f"{session.address} answers, but does not work: {error.says}; see `nodetool describecluster`, "
                    f"and try again when its nodes agree"
                ) from error
            await clock.sleep(pause_s)


async def _ensure(session: Session, tables: tuple[Table, ...], create: bool, clock: Clock, writes: bool) -> None:
    await _agreement(session, clock)
    await _ensure_keyspace(session, create)
    await _agreement(session, clock)  # somebody else may have made it this moment
    version = await version_of(session)
    if version is not None and version > SCHEMA_VERSION:
        raise CannotOpen(
            f"keyspace {session.address.keyspace} has tables of version {version}, and this is a Capellini for "
            f"version {SCHEMA_VERSION}: use a newer one, or another keyspace"
        )
    if version is not None and version < SCHEMA_VERSION:
        await _migrate(session, version, create)
    await _ensure_tables(session, (cql.VERSIONS, *tables), create, clock)
    await _agreement(session, clock)
    if version is None:
        await _set_version(session, None, SCHEMA_VERSION)
    if session.address.username and writes:
        await _probe(session, (cql.VERSIONS, *tables))


async def _ensure_keyspace(session: Session, create: bool) -> None:
    keyspace = session.address.keyspace
    known = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?"
    if await session.read(known, [keyspace], Level.ONE):
        return
    if not create:
        raise CannotOpen(f"keyspace {keyspace} does not exist at {session.address}: create it, or let Capellini do it")
    replication = session.address.replication or usual_replication(len(session.dcs[session.dc]))
    copies = cql.replication_map(replication, session.dc)
    for dc, count in copies.items():
        if count > len(session.dcs.get(dc, ())):
            raise CannotOpen(
                f"replication {replication} wants {count} nodes in data centre {dc!r}, which has "
                f"{len(session.dcs.get(dc, ()))}: name another number in the address (replication=...)"
            )
    await session.change_schema(cql.create_keyspace(keyspace, copies), f"create keyspace {keyspace}")


def usual_replication(nodes: int) -> str:
    """Copies where nobody said how many: with three the loss of a node loses and stops nothing."""
    return str(max(1, min(USUAL_COPIES, nodes)))


async def _ensure_tables(session: Session, tables: tuple[Table, ...], create: bool, clock: Clock) -> None:
    """The version table first, since the ids of the others follow from its id. Those all at a time: after each change
    the driver waits a second or so until every node tells of it, and one such wait does for all. They go through one
    coordinator, which makes one table after the other."""
    root, there = await _root(session)
    if not there:
        await _ensure_table(session, cql.VERSIONS, create, root)
        await _agreement(session, clock)
    done = await asyncio.gather(
        *(_ensure_table(session, table, create, uuid5(root, table.name)) for table in tables), return_exceptions=True
    )
    for failed in done:
        if failed is not None:
            raise failed


async def _root(session: Session) -> tuple[UUID, bool]:
    """The id of the version table, and whether it is there. If not, it follows from when the keyspace was made: so says
    its row until the first table is created, which changes it. One host is asked, and first for the time: where that
    is a later one, the table is there, too."""
    where = f"WHERE keyspace_name = '{session.address.keyspace}'"
    times, ids = await session.asked(
        (
            f"SELECT writetime(durable_writes) FROM system_schema.keyspaces {where}",
            f"SELECT id FROM system_schema.tables {where} AND table_name = '{cql.VERSIONS.name}'",
        )
    )
    if ids:
        return UUID(str(ids[0][0])), True
    if not times:
        raise Unavailable(f"a node does not know keyspace {session.address.keyspace} yet")
    return root_id(session.address.keyspace, times[0][0]), False


def root_id(keyspace: str, made_us: int) -> UUID:
    return uuid5(NAMESPACE_OID, f"capellini/{keyspace}/{made_us}")


async def _ensure_table(session: Session, table: Table, create: bool, id: UUID) -> None:
    keyspace = session.address.keyspace
    found = await _columns(session, table)
    if not found:
        if not create:
            raise CannotOpen(f"table {keyspace}.{table.name} does not exist: create it, or let Capellini do it")
        text = cql.create_table(keyspace, table, id)
        await session.change_schema(text, f"create tables in keyspace {keyspace}")
    elif wrong := cql.faults(table, found):
        raise CannotOpen(
            f"table {keyspace}.{table.name} is not Capellini's, or was changed by hand: {'; '.join(wrong)}"
        )


async def _columns(session: Session, table: Table) -> dict[str, tuple[str, str]]:
    text = "SELECT column_name, kind, type FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?"
    rows = await session.read(text, [session.address.keyspace, table.name], Level.ONE)
    return {name: (kind, type) for name, kind, type in rows}


async def _agreement(session: Session, clock: Clock) -> None:
    """Wait until all nodes have the same schema; after a while a majority will do: a node that is down keeps its last
    version in the list, and learns when it is up. One host is asked for its own and its peers': the peers of another
    one would have the first twice, and the other not at all. Raises CannotOpen."""
    started_s, told = clock.elapsed_s(), False
    while True:
        local, peers = await session.asked(
            ("SELECT schema_version FROM system.local", "SELECT schema_version FROM system.peers_v2")
        )
        versions = [str(row[0]) for row in (*local, *peers)]
        agreed, waited_s = versions.count(versions[0]), clock.elapsed_s() - started_s
        if agreed == len(versions) or (waited_s > ALL_AGREE_S and 2 * agreed > len(versions)):
            return
        if not told and waited_s > ALL_AGREE_S:
            told = True
            log.warning(
                "waiting for the nodes of %s to agree on the schema, for %g s at most", session.address, AGREEMENT_S
            )
        if waited_s > AGREEMENT_S:
            raise CannotOpen(f"the nodes of {session.address} disagree on the schema: see `nodetool describecluster`")
        await clock.sleep(POLL_S)


# ---- versions


async def version_of(session: Session) -> int | None:
    """Of the tables that are there; None while there is no version row. Raises CannotOpen without the right to read
    it."""
    if not await _columns(session, cql.VERSIONS):
        return None
    text = f"SELECT version FROM {cql.place(session.address.keyspace, cql.VERSIONS)} WHERE name = ?"
    try:
        rows = await session.read(text, [OURS], Level.SERIAL)
    except Unavailable:
        raise  # for a moment, perhaps
    except StoreError as error:
        raise CannotOpen(f"the tables of keyspace {session.address.keyspace} cannot be read: {error.says}") from error
    return rows[0][0] if rows else None


async def _set_version(session: Session, before: int | None, after: int) -> None:
    """Refused means that another node has done it: then it is done."""
    text = cql.update_if(session.address.keyspace, cql.VERSIONS, ("version",), False, ("version",))
    await session.compare_and_set([(await session.prepare(text), [0, after, OURS, before])], Level.SERIAL)


async def _migrate(session: Session, version: int, create: bool) -> None:
    keyspace = session.address.keyspace
    for step in range(version, SCHEMA_VERSION):
        if step not in MIGRATIONS or not create:
            advice = "let it change the tables" if step in MIGRATIONS else "use another keyspace, that one is unknown"
            raise CannotOpen(
                f"keyspace {keyspace} has tables of version {version}, and this is a Capellini for version "
                f"{SCHEMA_VERSION}: {advice}"
            )
        for statement in MIGRATIONS[step]:
            await session.change_schema(statement.format(keyspace=cql.quoted(keyspace)), "change its tables")
        await _set_version(session, step, step + 1)


# ---- rights


async def _probe(session: Session, tables: tuple[Table, ...]) -> None:
    """A compare-and-set that is always refused, on each table: it needs the rights to read and to write. Raises
    NoRights, among others."""
    for table in tables:
        column = cql.quoted((table.statics or table.columns)[0].name)
        key = table.partition if table.statics else (*table.partition, *table.clustering)
        text = (
            f"UPDATE {cql.place(session.address.keyspace, table)} SET {column} = null WHERE {cql.equal(key)} "
            f"IF {column} != null AND {column} = null"
        )
        prepared = await session.prepare(text)
        await session.compare_and_set([(prepared, [_SAMPLE[each.type] for each in key])], Level.SERIAL)


_SAMPLE: Final[Mapping[Type, Value]] = {
    Type.TEXT: OURS,
    Type.BLOB: OURS.encode(),
    Type.INT: 0,
    Type.TIMEUUID: UUID("00000000-0000-1000-8000-000000000000"),
}
