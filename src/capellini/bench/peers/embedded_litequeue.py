"""litequeue: a table of SQLite in the callers' own processes. No server; what it uses, its callers use.

    put   a transaction of puts, synced
    get   pop, one transaction each: there is nothing else
    ack   a transaction of `done`, synced

Its connection is set to sync at each commit, which it does not by itself, but for pops: what they write is synced with
the next ack. Done messages stay in the table (pruning is left out, which is faster).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from litequeue import LiteQueue

from capellini.bench.peers.peer import Got, Lane, Server

EMPTY_REST_S: Final = 0.002  # there is nothing to wait at
LONG_GET_S: Final = 0.2  # then what was popped is enough
LOCK_WITHIN_S: Final = 60.0  # SQLite has one writer; the others try again until then


class Litequeue(Server):
    name = "embedded_litequeue"
    label = "litequeue (embedded)"
    says = "litequeue on SQLite (WAL, synchronous FULL for puts and acks), batches in one transaction, pops one by one"
    lacks: Mapping[str, str] = {
        "delays": "it has no delay", "groups": "a message goes to one consumer",
        "backlog": "a pop sorts all messages that wait: 100 a second with 50,000", "recovery": "it has no process",
    }  # fmt: skip
    about_per_s = 2_000
    embedded = True

    def start(self) -> None:
        """There is nothing to start."""

    def version(self) -> str:
        return version("litequeue")

    @property
    def address(self) -> str:
        return str(self.folder)

    def fresh(self, queue: str) -> None:
        _open(self.address, queue).conn.close()


def _open(address: str, queue: str) -> Any:
    connection = sqlite3.connect(f"{address}/{queue}.db", timeout=LOCK_WITHIN_S, check_same_thread=False)
    return LiteQueue(connection)


class LitequeueLane(Lane):
    def __init__(self, address: str, queue: str, groups: Sequence[str] = ()) -> None:
        self._queue = _open(address, queue)
        self._synced(True)

    def _synced(self, wanted: bool) -> None:
        self._queue.conn.execute(f"PRAGMA synchronous = {'FULL' if wanted else 'NORMAL'}")

    def put(self, bodies: list[bytes], delay_s: float = 0.0) -> None:
        with self._queue.transaction(mode="IMMEDIATE"):
            for body in bodies:
                self._queue.put(body)

    def get(self, most: int) -> list[Got]:
        found: list[Got] = []
        self._synced(False)
        until_s = time.monotonic() + LONG_GET_S
        while len(found) < most and time.monotonic() < until_s and (message := self._queue.pop()) is not None:
            found.append((message.data, message.message_id))
        self._synced(True)
        if not found:
            time.sleep(EMPTY_REST_S)
        return found

    def ack(self, handles: list[str]) -> None:
        with self._queue.transaction(mode="IMMEDIATE"):
            for message_id in handles:
                self._queue.done(message_id)

    def close(self) -> None:
        self._queue.conn.close()
