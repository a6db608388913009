"""Redis Streams with a consumer group, fsync before every answer, by redis-py.

    put   XADD, a pipeline of them
    get   XREADGROUP COUNT n, which blocks for a moment when there is nothing
    ack   XACK and XDEL of all, in one pipeline

XDEL is not needed for delivery; without it the stream would keep every message for ever, which a queue does not. With
several groups nobody knows when an entry is done with, so that there it stays (trimming is left out, which is faster).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis

from capellini.bench.peers.peer import Got, Lane, Server, accepts, find, free_port, said

GROUP: Final = "group"
BLOCK_MS: Final = 100


class Redis(Server):
    name = "redis_streams"
    label = "Redis Streams"
    says = "Redis Streams, appendfsync always, pipelines of XADD, XREADGROUP, XACK + XDEL in one pipeline, redis-py"
    lacks: Mapping[str, str] = {"delays": "entries of a stream are there at once"}
    about_per_s = 8_000
    port = 0

    def start(self) -> None:
        program = find("redis-server", "redis-server")
        self.port = self.port or free_port()
        settings = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder), "save": ""}
        settings |= {"appendonly": "yes", "appendfsync": "always", "daemonize": "no"}
        self.spawn([program, *(part for name, value in settings.items() for part in (f"--{name}", value))])
        self.until(self._answers)

    def _answers(self) -> bool:
        if not accepts(self.port):
            return False
        client: Any = redis.Redis.from_url(self.address)
        try:
            client.ping()
        except redis.exceptions.BusyLoadingError:
            return False
        finally:
            client.close()
        return True

    def version(self) -> str:
        return said(find("redis-server", "redis-server"), "--version").partition("v=")[2].split()[0]

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def fresh(self, queue: str) -> None:
        self.fresh_groups(queue, [GROUP])

    def fresh_groups(self, queue: str, groups: Sequence[str]) -> None:
        client: Any = redis.Redis.from_url(self.address)
        for group in groups:
            client.xgroup_create(queue, group, id="0", mkstream=True)
        client.close()


class RedisLane(Lane):
    def __init__(self, address: str, queue: str, groups: Sequence[str] = ()) -> None:
        self._client: Any = redis.Redis.from_url(address)
        self._queue = queue
        self._group, self._alone = (groups[0], False) if groups else (GROUP, True)
        self._consumer = str(self._client.client_id())

    def put(self, bodies: list[bytes], delay_s: float = 0.0) -> None:
        if len(bodies) == 1:
            self._client.xadd(self._queue, {"b": bodies[0]})
            return
        pipeline = self._client.pipeline(transaction=False)
        for body in bodies:
            pipeline.xadd(self._queue, {"b": body})
        pipeline.execute()

    def get(self, most: int) -> list[Got]:
        found = self._client.xreadgroup(self._group, self._consumer, {self._queue: ">"}, count=most, block=BLOCK_MS)
        if not found:
            return []
        streams = found.items() if isinstance(found, dict) else found
        return [(entry[1][b"b"], entry[0]) for _, entries in streams for entry in _flat(entries)]

    def ack(self, handles: list[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xack(self._queue, self._group, *handles)
        if self._alone:
            pipeline.xdel(self._queue, *handles)
        pipeline.execute()

    def close(self) -> None:
        self._client.close()


def _flat(entries: Any) -> Any:
    """With the newer protocol the entries of a stream come in one list more."""
    return entries[0] if entries and isinstance(entries[0], list) and isinstance(entries[0][0], tuple) else entries
