"""PostgreSQL as a queue, with SKIP LOCKED: what pgmq does, by psycopg.

    put   INSERT ... SELECT unnest(bodies)                                   one statement, one commit
    get   UPDATE ... WHERE id IN (SELECT ... FOR UPDATE SKIP LOCKED LIMIT n) RETURNING
    ack   DELETE ... WHERE id = ANY(ids)

Two layouts, and the faster one counts: `indexed` as pgmq has it, with an index on the time at which a message can be
had; `hot` without it and with room on each page, so that a get updates rows in place and touches no index. Tables are
logged, fsync and synchronous_commit are on. Fan-out is a table for each group, all written by one statement.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psycopg

from capellini.bench.peers.peer import Got, Lane, Missing, Server, accepts, find, free_port, said

USER: Final = "postgres"  # it refuses to run as root
PLACES: Final = tuple(str(each) for each in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))
SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "listen_addresses": "127.0.0.1",
    "max_connections": "100",
}
LAYOUTS: Final = {
    "indexed": (
        "CREATE TABLE {0} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, reads int NOT NULL DEFAULT 0,"
        " put_at timestamptz NOT NULL DEFAULT now(), visible_at timestamptz NOT NULL, body bytea)",
        "CREATE INDEX ON {0} (visible_at ASC)",
    ),
    "hot": (
        "CREATE TABLE {0} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, reads int NOT NULL DEFAULT 0,"
        " put_at timestamptz NOT NULL DEFAULT now(), visible_at timestamptz NOT NULL, body bytea)"
        " WITH (fillfactor = 45)",
    ),
}
EMPTY_REST_S: Final = 0.002  # there is nothing to wait at: between two looks at an empty table
PUT: Final = "INSERT INTO {0} (visible_at, body) SELECT clock_timestamp() + %(after)b, unnest(%(bodies)b::bytea[])"
GET: Final = (
    "WITH found AS (SELECT id FROM {0} WHERE visible_at <= clock_timestamp() ORDER BY id LIMIT %b"
    " FOR UPDATE SKIP LOCKED)"
    " UPDATE {0} m SET visible_at = clock_timestamp() + interval '600 s', reads = reads + 1"
    " FROM found WHERE m.id = found.id RETURNING m.id, m.reads, m.put_at, m.body"
)
ACK: Final = "DELETE FROM {0} WHERE id = ANY(%b)"


class Postgres(Server):
    name = "postgres"
    label = "PostgreSQL"
    says = "PostgreSQL, SKIP LOCKED as pgmq, logged tables, synchronous_commit on, psycopg with binary parameters"
    layouts = tuple(LAYOUTS)
    about_per_s = 20_000
    port = 0

    def start(self) -> None:
        initdb, postgres = find("initdb", "postgresql", PLACES), find("postgres", "postgresql", PLACES)
        owner = _owner()
        self.port = self.port or free_port()
        data = self.folder / "data"
        if not data.exists():
            self._make(initdb, data, owner)
        settings = {**SETTINGS, "port": str(self.port), "unix_socket_directories": str(self.folder)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.spawn([postgres, "-D", str(data), *options], cwd=self.folder, **owner)
        self.until(self._answers)

    def _make(self, initdb: str, data: Path, owner: dict[str, Any]) -> None:
        if owner:
            for each in (self.folder, *self.folder.parents):
                if each == Path("/tmp") or each.stat().st_uid != 0:
                    break
                each.chmod(each.stat().st_mode | 0o011)  # its user has to pass through
            os.chown(self.folder, owner["user"], owner["group"])
        made = subprocess.run(
            [initdb, "-D", str(data), "-U", USER, "-A", "trust", "--no-sync"], cwd=self.folder, capture_output=True,
            **owner,
        )  # fmt: skip
        if made.returncode:
            raise Missing(f"initdb failed: {made.stderr.decode(errors='replace').strip()}")

    def _answers(self) -> bool:
        if not accepts(self.port):
            return False
        try:
            psycopg.connect(self.address).close()
        except psycopg.OperationalError:  # it is starting up
            return False
        return True

    def version(self) -> str:
        return said(find("postgres", "postgresql", PLACES), "--version").split()[2]

    @property
    def address(self) -> str:
        return f"host=127.0.0.1 port={self.port} user={USER} dbname=postgres"

    def fresh(self, queue: str) -> None:
        """The layout is what stands before the underscore."""
        with psycopg.connect(self.address, autocommit=True) as connection:
            for text in LAYOUTS[queue.partition("_")[0]]:
                connection.execute(text.format(queue).encode())

    def fresh_groups(self, queue: str, groups: Sequence[str]) -> None:
        for group in groups:
            self.fresh(f"{queue}_{group}")


def _owner() -> dict[str, Any]:
    """As whom to run it, for subprocess."""
    if os.geteuid() != 0:
        return {}
    try:
        found = pwd.getpwnam(USER)
    except KeyError:
        raise Missing(f"PostgreSQL does not run as root, and there is no user {USER}") from None
    return {"user": found.pw_uid, "group": found.pw_gid}


class PostgresLane(Lane):
    def __init__(self, address: str, queue: str, groups: Sequence[str] = ()) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        self._cursor = self._connection.cursor(binary=True)
        tables = [f"{queue}_{group}" for group in groups] or [queue]
        self._put, self._get, self._ack = (text.format(tables[0]).encode() for text in (PUT, GET, ACK))
        if len(tables) > 1:
            self._put = _put_to_all(tables)

    def put(self, bodies: list[bytes], delay_s: float = 0.0) -> None:
        self._cursor.execute(self._put, {"after": timedelta(seconds=delay_s), "bodies": bodies}, prepare=True)

    def get(self, most: int) -> list[Got]:
        found = [(row[3], row[0]) for row in self._cursor.execute(self._get, (most,), prepare=True).fetchall()]
        if not found:
            time.sleep(EMPTY_REST_S)
        return found

    def ack(self, handles: list[int]) -> None:
        self._cursor.execute(self._ack, (handles,), prepare=True)

    def close(self) -> None:
        self._connection.close()


def _put_to_all(tables: Sequence[str]) -> bytes:
    """One statement, one commit: the bodies go over the wire once."""
    *others, last = tables
    parts = ", ".join(f"into_{table} AS ({PUT.format(table)})" for table in others)
    return f"WITH {parts} {PUT.format(last)}".encode()
