"""What handlers work with: the service, the gate, the figures, and the long polls that can be woken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from capellini.api.gate import Gate
from capellini.api.metrics import Metrics
from capellini.model.service import Service

Drain = Callable[[bool], Awaitable[None]]
Peer = Callable[[str, str, bytes], Awaitable[bytes]]  # queue, operation, envelope: what another node asks


class Signalled(Protocol):
    """A stream, as far as it can be told to leave."""

    def signal(self, reason: str) -> None: ...


class Context:
    def __init__(
        self,
        service: Service,
        gate: Gate,
        metrics: Metrics,
        drain: Drain,
        node_name: str = "",
        peer: Peer | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.service = service
        self.gate = gate
        self.metrics = metrics
        self.drain = drain
        self.node_name = node_name
        self.peer = peer
        self.now_s = now_s  # wall time
        self.document = b""  # OpenAPI
        self.streams: set[Signalled] = set()
        self.waiting: set[asyncio.Task[object]] = set()  # long polls
        self.woken: set[asyncio.Task[object]] = set()  # ... that are to answer with nothing, now

    def signal(self, reason: str) -> None:
        """Streams are to go on elsewhere."""
        for stream in tuple(self.streams):
            stream.signal(reason)

    def wake(self) -> None:
        """Long polls answer at once, and streams leave."""
        self.signal("this node is draining")
        for task in self.waiting:
            self.end_wait(task)

    def end_wait(self, task: asyncio.Task[object]) -> None:
        if task not in self.woken:
            self.woken.add(task)
            task.cancel()
