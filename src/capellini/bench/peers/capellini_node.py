"""Our own node: `capellini serve` on a folder, and its client for asyncio over TCP."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from capellini.bench.peers.peer import Server, accepts, free_port
from capellini.client.connecting import connect_async

VISIBILITY_S: Final = 600.0  # nothing comes back by itself while it is measured
WAIT_S: Final = 0.2
MAIN: Final = "from capellini.cli.main import main; main()"


class Capellini(Server):
    name = "capellini_node"
    says = "capellini serve on a folder, fsync before every answer, AsyncClient over HTTP"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.store = f"rocks:{folder / 'store'}"
        self.more: tuple[str, ...] = ()  # settings

    def start(self) -> None:
        self.port = free_port()
        arguments = ["--store", self.store, "--listen", f"127.0.0.1:{self.port}", *self.more]
        self.spawn([sys.executable, "-c", MAIN, "serve", *arguments, "--log-level", "warning"])
        self.until(lambda: accepts(self.port))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fresh(self, queue: str) -> None:
        async def create() -> None:
            async with connect_async(self.address) as client:
                await client.create_queue(queue)

        asyncio.run(create())
