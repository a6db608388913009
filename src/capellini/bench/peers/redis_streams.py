"""Redis Streams with a consumer group, fsync before every answer, by redis-py.

    put   XADD, a pipeline of them
    get   XREADGROUP COUNT n, which blocks for a moment when there is nothing
    ack   XACK and XDEL of all, in one pipeline

XDEL is not needed for delivery; without it the stream would keep every message for ever, which a queue does not.
"""

from __future__ import annotations

from typing import Any, Final

import redis

from capellini.bench.peers.peer import Lane, Server, accepts, find, free_port

GROUP: Final = "group"
BLOCK_MS: Final = 100


class Redis(Server):
    name = "redis_streams"
    says = "Redis Streams, appendfsync always, pipelines of XADD, XREADGROUP, XACK + XDEL in one pipeline, redis-py"

    def start(self) -> None:
        program = find("redis-server", "redis-server")
        self.port = free_port()
        settings = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder), "save": ""}
        settings |= {"appendonly": "yes", "appendfsync": "always", "daemonize": "no"}
        self.spawn([program, *(part for name, value in settings.items() for part in (f"--{name}", value))])
        self.until(lambda: accepts(self.port))

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def fresh(self, queue: str) -> None:
        client: Any = redis.Redis.from_url(self.address)
        client.xgroup_create(queue, GROUP, id="0", mkstream=True)
        client.close()


class RedisLane(Lane):
    def __init__(self, address: str, queue: str) -> None:
        self._client: Any = redis.Redis.from_url(address)
        self._queue = queue
        self._consumer = str(self._client.client_id())

    def put(self, bodies: list[bytes]) -> None:
        if len(bodies) == 1:
            self._client.xadd(self._queue, {"b": bodies[0]})
            return
        pipeline = self._client.pipeline(transaction=False)
        for body in bodies:
            pipeline.xadd(self._queue, {"b": body})
        pipeline.execute()

    def get(self, most: int) -> list[bytes]:
        found = self._client.xreadgroup(GROUP, self._consumer, {self._queue: ">"}, count=most, block=BLOCK_MS)
        if not found:
            return []
        streams = found.items() if isinstance(found, dict) else found
        return [entry[0] for _, entries in streams for entry in _flat(entries)]

    def ack(self, handles: list[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xack(self._queue, GROUP, *handles)
        pipeline.xdel(self._queue, *handles)
        pipeline.execute()

    def close(self) -> None:
        self._client.close()


def _flat(entries: Any) -> Any:
    """With the newer protocol the entries of a stream come in one list more."""
    return entries[0] if entries and isinstance(entries[0], list) and isinstance(entries[0][0], tuple) else entries
