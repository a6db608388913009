"""What is wrong with a store or a node, found out from outside: nothing is changed, nothing has to be running here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from capellini import __version__
from capellini.model.address import Address, CassandraAddress, NodeAddress, RocksAddress, parse
from capellini.model.clock import RealClock, skew_of
from capellini.model.errors import CapelliniError, StoreError
from capellini.node import checks
from capellini.node.asking import ask_node
from capellini.node.checks import Finding, State

SKEW_ASKS: Final = 6  # coordinators take turns: enough to meet those of a small cluster


async def examine(address: str | Address) -> list[Finding]:
    """Findings, the most basic first; what cannot be asked is a finding too. Raises Invalid for what is no address."""
    match parse(address) if isinstance(address, str) else address:
        case RocksAddress() as rocks:
            return await asyncio.to_thread(_folder, Path(rocks.folder))
        case CassandraAddress() as cassandra:
            return await _cassandra(cassandra)
        case NodeAddress() as node:
            return await asyncio.to_thread(_node, node)


# ---- a folder


def _folder(folder: Path) -> list[Finding]:
    from capellini.store import folder as folders

    try:
        there = folders.exists(folder)
    except CapelliniError as error:
        return [Finding("folder", "bad", error.says, "run as the user who made it, or correct the address")]
    if not there:
        return [Finding("folder", "warn", f"{folder} does not exist yet", "it is made when something is stored")]
    if not folder.is_dir():
        return [Finding("folder", "bad", f"{folder} is a file", "give a folder")]
    findings = [Finding("folder", "ok", f"{folder} is there")]
    writable = os.access(folder, os.R_OK | os.W_OK | os.X_OK)
    if writable:
        findings.append(Finding("writable", "ok", "this user may write"))
    else:
        findings.append(Finding("writable", "bad", "this user may not write", f"chown or chmod {folder}"))
    try:
        found = folders.read_format(folder)
        says = "nothing was stored yet" if found is None else f"format {found}; this version writes {folders.FORMAT}"
        findings.append(Finding("format", "ok", says))
        if found is not None and writable:  # to look into tables RocksDB must be let in
            findings.append(_tables(folder, served=_lock(folder / folders.LOCK_FILE).says.startswith("process")))
    except CapelliniError as error:
        findings.append(Finding("format", "bad", error.says))
    findings.append(_lock(folder / folders.LOCK_FILE))
    findings.append(checks.room(folders.free_bytes(folder)))
    findings.append(_last_write(folder))
    return findings


def _tables(folder: Path, served: bool) -> Finding:
    """Opened beside whoever serves it: RocksDB looks whether all files are there, and as long as they should be."""
    from capellini.store.rocks.database import Database

    try:
        with tempfile.TemporaryDirectory(prefix="capellini-doctor-") as scratch:
            database = Database(folder, False, Path(scratch))
            try:
                database.load()
            finally:
                database.close()
    except CapelliniError as error:
        if served:  # whose files may have gone while they were looked at
            return Finding("tables", "warn", error.says, "look again")
        return Finding("tables", "bad", error.says)
    return Finding("tables", "ok", "they can be opened")


def _lock(path: Path) -> Finding:
    """Who holds the lock, by the kernel's list: trying the lock could keep a process that starts just now from it."""
    try:
        inode = path.stat().st_ino
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return Finding("lock", "ok", "nobody is known to have the folder open")
    for line in locks:
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return Finding("lock", "ok", f"process {fields[4]} serves the folder")
    return Finding("lock", "ok", "nobody has the folder open")


def _last_write(folder: Path) -> Finding:
    times = []
    for each in folder.rglob("*"):
        with contextlib.suppress(OSError):  # RocksDB removes files while we look
            found = each.stat()
            if stat.S_ISREG(found.st_mode):
                times.append(found.st_mtime)
    if not times:
        return Finding("last write", "ok", "nothing was written yet, or it is not for this user to see")
    return Finding("last write", "ok", f"{max(0.0, RealClock().now_s() - max(times)):,.0f} s ago")


# ---- Cassandra


async def _cassandra(address: CassandraAddress) -> list[Finding]:
    from capellini.store.cassandra_session import Session

    clock = RealClock()
    try:
        session = await Session.connect(address, clock)
    except CapelliniError as error:
        return [Finding("reachable", "bad", error.says, "start the cluster, or correct the address")]
    try:
        hosts = sum(map(len, session.dcs.values()))
        findings = [Finding("reachable", "ok", f"{address} answers; {hosts} nodes in {', '.join(sorted(session.dcs))}")]
        for name, look in (
            ("nodes", _nodes), ("versions", _versions), ("replication", _replication), ("settings", _settings),
            ("clocks", _skew), ("schema", _schema),
        ):  # fmt: skip
            findings += await _looked(name, look, session)
        return findings
    finally:
        await session.close()


async def _looked(name: str, look: Callable[[Any], Awaitable[list[Finding]]], session: Any) -> list[Finding]:
    from capellini.store.cassandra_session import NoRights

    try:
        return await look(session)
    except NoRights as error:  # it does not pass by itself, and nodes need the tables
        state: State = "bad" if name == "schema" else "warn"
        return [Finding(name, state, error.says, "grant it: nodes need SELECT and MODIFY on the keyspace")]
    except StoreError as error:
        return [Finding(name, "warn", f"could not be asked: {error.says}", "look again when the cluster is well")]


async def _read(session: Any, text: str, *parameters: str) -> list[list[Any]]:
    from capellini.store.interface import Level

    found: list[list[Any]] = await session.read(text, list(parameters), Level.ONE)
    return found


async def _nodes(session: Any) -> list[Finding]:
    from capellini.store.cassandra_health import Health

    hosts = sorted(host for some in session.dcs.values() for host in some)
    return [checks.answering(hosts, await Health(session.address, RealClock()).answering(hosts))]


async def _versions(session: Any) -> list[Finding]:
    local, peers = await session.asked(  # of one host: its peers are all but itself
        ("SELECT release_version FROM system.local", "SELECT release_version FROM system.peers_v2")
    )
    return [checks.versions([str(row[0]) for row in (*local, *peers)])]


async def _replication(session: Any) -> list[Finding]:
    text = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?"
    rows = await _read(session, text, session.address.keyspace)
    nodes = {dc: len(hosts) for dc, hosts in session.dcs.items()}
    return [checks.replication(dict(rows[0][0]) if rows else None, nodes)]


async def _settings(session: Any) -> list[Finding]:
    told = await session.each("SELECT name, value FROM system_views.settings")  # each knows its own file only
    found = {host: {str(name): str(value) for name, value in rows} for host, rows in told.items()}
    return [
        checks.worst({host: judged(settings) for host, settings in found.items()})
        for judged in (checks.commitlog, checks.paxos)
    ]


async def _skew(session: Any) -> list[Finding]:
    clock, found = RealClock(), []
    for _ in range(SKEW_ASKS):
        began_s = clock.now_s()
        at = (await _read(session, "SELECT toTimestamp(now()) FROM system.local"))[0][0].timestamp()
        found.append(skew_of(began_s, at, clock.now_s()))
    return [checks.skew(found)]


async def _schema(session: Any) -> list[Finding]:
    from capellini.store import cql
    from capellini.store.cassandra_schema import version_of
    from capellini.store.schema import SCHEMA_VERSION, TABLES

    version = await version_of(session)
    text = "SELECT column_name, kind, type FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?"
    missing, wrong = [], []
    for table in TABLES:
        rows = await _read(session, text, session.address.keyspace, table.name)
        if not rows:
            missing.append(table.name)
        else:
            found = {str(name): (str(kind), str(type)) for name, kind, type in rows}
            wrong += [f"{table.name}: {fault}" for fault in cql.faults(table, found)]
    return [checks.schema(missing, wrong, version, SCHEMA_VERSION)]


# ---- a node


def _node(address: NodeAddress) -> list[Finding]:
    try:
        _, health = ask_node(str(address), "GET", "/health", "node")
        status, ready = ask_node(str(address), "GET", "/ready", "ready")
        _, version = ask_node(str(address), "GET", "/version", "version")
    except CapelliniError as error:
        return [Finding("reachable", "bad", error.says, "start it with `capellini serve`, or correct the address")]
    findings = [Finding("reachable", "ok", f"{address} answers as node {health.get('node') or 'without a name'}")]
    reasons = "; ".join(ready.get("reasons", []))
    if status == 200 and reasons:
        findings.append(Finding("ready", "warn", f"the node takes work, but {reasons}", "see to the reason"))
    elif status == 200:
        findings.append(Finding("ready", "ok", "the node takes work"))
    else:
        reasons = reasons or "it does not say why"
        findings.append(Finding("ready", "bad", f"the node takes no work: {reasons}", "see to the reason"))
    findings.append(checks.version_skew(__version__, str(version.get("version"))))
    findings.append(checks.skew([float(ready.get("skew_s", 0.0))]))
    return findings
