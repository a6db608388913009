"""Where rows come from: one way to read them, whatever is behind it.

    rocks:FOLDER       the folder itself, as a second reader: nobody needs to stop, and nobody is in the way
    cassandra://…      the cluster, partition by partition; data centre and consistency are in the address
    http://…           a running node, which hands out rows as they are stored (POST /v1/rows/TABLE)

Tasks read what they need and decode it themselves: a node that is asked copies bytes and makes no object per message.
`reads_per_s` bounds how often one task asks, so that a live cluster does not feel it.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote, urlsplit

import msgspec

from capellini.model.address import CassandraAddress, NodeAddress, RocksAddress, parse
from capellini.model.clock import Clock, RealClock
from capellini.model.errors import NotFound, Unavailable, from_name
from capellini.model.options import OPTIONS, WorkOptions
from capellini.queues.catalog import row_of
from capellini.queues.ending import REALM
from capellini.store.folder import DATA_FOLDER, check_there
from capellini.store.interface import Page, Slice
from capellini.store.pages import decode_page, encode_slice
from capellini.store.schema import (
    ASSIGNMENTS,
    BUCKETS,
    COUNTER_NAMES,
    COUNTERS,
    LOG_BLOCKS,
    LOG_EXTENTS,
    MONOTON,
    POINTERS,
    QUEUES,
    TIMED_PARTS,
    TIMED_RECORDS,
    TIMED_ROWS,
    TIMED_SHARDS,
)

READ_TABLES: Final = (
    QUEUES, BUCKETS, MONOTON, POINTERS, COUNTERS, COUNTER_NAMES, TIMED_ROWS, TIMED_PARTS, TIMED_SHARDS, TIMED_RECORDS,
    LOG_EXTENTS, LOG_BLOCKS, ASSIGNMENTS,
)  # fmt: skip
HTTP_WITHIN_S: Final = 60.0
PAGE_BYTES: Final = 4 * 1024 * 1024  # about; large enough that asking costs nothing, small enough to keep several
# A cluster has several nodes, and each several cores. Few small requests at a time cost it a half more than these do.
ABREAST: Final = 8
CLUSTER_PAGE_BYTES: Final = 8 * 1024 * 1024


# What is looked at before a cluster is read: its tables and data centres, when a queue is looked up; the data centres,
# when it is planned what is read; nothing, by tasks. Each takes the cluster longer than many a read.
Look = Literal["tables", "homes", "nothing"]
TABLES: Final = "tables"
HOMES: Final = "homes"
NOTHING: Final = "nothing"


class Rows(Protocol):
    """All that a reader needs of a store."""

    async def read(self, slice: Slice) -> Page: ...


class Record(msgspec.Struct, frozen=True):
    """A queue as it is now."""

    name: str
    kind: str
    generation: int
    options: WorkOptions


class Reach(msgspec.Struct, frozen=True):
    rows: Rows
    node: str = ""  # the URL of a node, if it is one
    homes: tuple[str, ...] = ()  # data centres that hold copies, where that is known
    alone: bool = False  # it is a folder: what is in it was written by one process
    abreast: int = 1  # so many partitions are worth reading at a time
    page_bytes: int = PAGE_BYTES  # that are worth asking for at once

    async def record(self, name: str) -> Record:
        """Raises NotFound."""
        if self.node:
            return await asyncio.to_thread(_shown, self.node, name)
        page = await self.rows.read(Slice(QUEUES, REALM, start=(name,), limit=1))
        for row in page.rows:
            found = row_of(name, row.values) if row.key == (name,) else None
            if found is not None and found.live:
                return Record(name, found.record.kind, found.generation, found.record.options)
        raise NotFound(f"there is no queue {name}")

    async def asked(self, path: str) -> Any:
        """What a node says to a GET. Raises what the node said."""
        return await asyncio.to_thread(_asked, self.node, path)


class Paced:
    """At most so many reads per second. Each has a moment of its own before it waits for it: several that are asked for
    at a time do not go together."""

    def __init__(self, rows: Rows, reads_per_s: float, clock: Clock | None = None) -> None:
        self._rows = rows
        self._pause_s = 1 / reads_per_s
        self._clock = clock or RealClock()
        self._next_s = 0.0

    async def read(self, slice: Slice) -> Page:
        now_s = self._clock.elapsed_s()
        mine_s = max(now_s, self._next_s)
        self._next_s = mine_s + self._pause_s
        if mine_s > now_s:
            await self._clock.sleep(mine_s - now_s)
        return await self._rows.read(slice)


class NodeRows:
    """Rows of a running node. One connection; asked again once when a kept one was closed meanwhile."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._connection: http.client.HTTPConnection | None = None

    async def read(self, slice: Slice) -> Page:
        return decode_page(slice.table, self._post(f"/v1/rows/{slice.table.name}", encode_slice(slice)))

    def _post(self, path: str, body: bytes) -> bytes:
        for again in (True, False):
            connection = self._connection or _connected(self._url.geturl())
            self._connection = connection
            try:
                connection.request("POST", path, body, {"Content-Type": "application/msgpack"})
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._connection = None
                if again:
                    continue
                raise Unavailable(f"no answer from {self._url.geturl()}: {error}") from error
            if answer.status != 200:
                raise _refused(data, answer.status)
            return data
        raise AssertionError("both attempts end above")


def _connected(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=HTTP_WITHIN_S)


def _refused(data: bytes, status: int) -> Exception:
    try:
        decode = msgspec.json.decode if data[:1] == b"{" else msgspec.msgpack.decode
        said: dict[str, Any] = decode(data)
        return from_name(str(said.get("error", "")), str(said.get("says", status)))
    except (msgspec.MsgspecError, AttributeError):
        return Unavailable(f"the node answered {status}")


def _asked(url: str, path: str) -> Any:
    connection = _connected(url)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        data = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"no connection to {url}: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise _refused(data, answer.status)
    return msgspec.json.decode(data)


def _shown(url: str, name: str) -> Record:
    said = _asked(url, queue_path(name))
    options = msgspec.convert(said["options"], OPTIONS[said["kind"]])
    return Record(said["name"], said["kind"], said["generation"], options)


def queue_path(name: str, rest: str = "") -> str:
    return f"/v1/queues/{quote(name, safe='')}{rest}"


# Names, sizes and times of change.
Files = frozenset[tuple[str, int, int]]
OF_ROWS: Final = ("CURRENT", "MANIFEST")
WITH_ROWS: Final = (".log", ".sst")


def files_of(at: str) -> Files | None:
    """What the rows of a folder are in: each write adds to one of these files. None: it is no folder."""
    address = parse(at)
    if not isinstance(address, RocksAddress):
        return None
    check_there(Path(address.folder))
    found = []
    with os.scandir(Path(address.folder) / DATA_FOLDER) as entries:
        for entry in entries:
            if not entry.name.startswith(OF_ROWS) and not entry.name.endswith(WITH_ROWS):
                continue  # RocksDB's own notes, which whoever looks adds to
            with suppress(FileNotFoundError):  # it went meanwhile: then it is not in it
                about = entry.stat()
                found.append((entry.name, about.st_size, about.st_mtime_ns))
    return frozenset(found)


@asynccontextmanager
async def reached(at: str, reads_per_s: float | None = None, *, look: Look = TABLES) -> AsyncIterator[Reach]:
    """Raises CannotOpen, Unavailable or Invalid when there is nothing to be read at that address. `look`: what of a
    cluster is looked at first."""
    address = parse(at)
    match address:
        case NodeAddress():
            yield Reach(_paced(NodeRows(address.url), reads_per_s), address.url)
        case RocksAddress():
            from capellini.store.rocks import RocksStore

            check_there(Path(address.folder))
            with tempfile.TemporaryDirectory(prefix="capellini-reader-") as scratch:
                folder = await RocksStore.open_secondary(Path(address.folder), Path(scratch), clock=RealClock())
                try:
                    await folder.prepare(READ_TABLES, create=False)
                    yield Reach(_paced(folder, reads_per_s), alone=True)
                finally:
                    await folder.close()
        case CassandraAddress():
            from capellini.store.cassandra import CassandraStore

            store = await CassandraStore.open(address)
            try:
                if look == TABLES:
                    await store.prepare(READ_TABLES, create=False, writes=False)
                elif look == HOMES:
                    await store.find_homes()
                paced = _paced(store, reads_per_s)
                yield Reach(paced, homes=store.homes, abreast=ABREAST, page_bytes=CLUSTER_PAGE_BYTES)
            finally:
                await store.close()


def _paced(rows: Rows, reads_per_s: float | None) -> Rows:
    return rows if not reads_per_s else Paced(rows, reads_per_s)
