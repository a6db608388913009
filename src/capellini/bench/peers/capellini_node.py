"""Our own node: `capellini serve` on a folder, and its client for asyncio over TCP.

work queue     everything but what follows
timed queue    delayed messages
log queue      fan-out: one append, each group reads it by itself
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from capellini.bench.peers.peer import AsyncLane, Got, Server, accepts, free_port
from capellini.client.aio import AsyncClient
from capellini.client.connecting import connect_async
from capellini.model.message import NewMessage
from capellini.model.service import Problem

VISIBILITY_S: Final = 600.0  # nothing comes back by itself while it is measured
WAIT_S: Final = 0.2
MAIN: Final = "from capellini.cli.main import main; main()"


class Capellini(Server):
    name = "capellini_node"
    label = "Capellini"
    says = "capellini serve on a folder, fsync before every answer, AsyncClient over HTTP"
    about_per_s = 60_000
    port = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.store = f"rocks:{folder / 'store'}"
        self.more: tuple[str, ...] = ()  # settings

    def start(self) -> None:
        self.port = self.port or free_port()
        arguments = ["--store", self.store, "--listen", f"127.0.0.1:{self.port}", *self.more]
        # Compiled once and kept, as an installed program is, whatever this shell says.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.spawn([sys.executable, "-c", MAIN, "serve", *arguments, "--log-level", "warning"], env=environment)
        self.until(lambda: accepts(self.port))

    def version(self) -> str:
        return version("capellini")

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fresh(self, queue: str) -> None:
        self._create(queue, "work")

    def fresh_delayed(self, queue: str, delay_s: float) -> None:
        self._create(queue, "timed")

    def _create(self, queue: str, kind: str) -> None:
        async def create() -> None:
            async with connect_async(self.address) as client:
                await client.create_queue(queue, kind)

        asyncio.run(create())


class CapelliniFolder(Capellini):
    """Without a node: the process that opens the folder works it."""

    label = "Capellini (embedded)"
    says = "no server: AsyncClient on a folder, fsync before every answer"
    lacks: Mapping[str, str] = {"recovery": "it has no process of its own"}
    embedded = True

    def start(self) -> None:
        """There is nothing to start."""

    @property
    def address(self) -> str:
        return self.store


class CapelliniLane(AsyncLane):
    """Tasks share a client, and with it one connection."""

    def __init__(self, client: AsyncClient[bytes], queue: str) -> None:
        self._client = client
        self._queue = queue

    @classmethod
    async def open(
        cls, address: str, queue: str, count: int, groups: Sequence[str] = (), gets: bool = True, batch: int = 1
    ) -> list[AsyncLane]:
        client = connect_async(address)
        await client.show_queue(queue)  # connected
        return [cls(client, queue) for _ in range(count)]

    async def put(self, bodies: list[bytes], delay_s: float = 0.0) -> None:
        if delay_s:
            due_s = time.time() + delay_s
            checked(await self._client.put_many(self._queue, [NewMessage(body, due=due_s) for body in bodies]))
        else:
            checked(await self._client.put_many(self._queue, bodies))

    async def get(self, most: int) -> list[Got]:
        found = await self._client.get(self._queue, most, wait_s=WAIT_S, visibility_s=VISIBILITY_S)
        return [(each.raw, each) for each in found]

    async def ack(self, handles: list[Any]) -> None:
        checked(await self._client.ack_many(self._queue, handles))

    async def close(self) -> None:
        await self._client.close()


def checked(results: Sequence[object]) -> None:
    for result in results:
        if isinstance(result, Problem):
            raise result.raised()
