"""A server: listens on a port, on a Unix socket, or on both, and ends gracefully.

The end, in order: no new connections; long polls answer with nothing; what was begun is finished and answered, each
connection then closed; what is not done after the grace is cut off.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry

from capellini.api.application import ANY_HOST, Application
from capellini.api.context import Context, Drain, Peer
from capellini.api.counters import CounterMetrics
from capellini.api.gate import Gate
from capellini.api.http import connection_factory
from capellini.api.journal_metrics import JournalMetrics
from capellini.api.limits import Limits
from capellini.api.log_metrics import LogMetrics
from capellini.api.metrics import Metrics
from capellini.api.openapi import document
from capellini.api.queue_metrics import QueueMetrics
from capellini.api.routes import ROUTES
from capellini.api.streams import ConsumerStream
from capellini.api.timed_metrics import TimedMetrics
from capellini.model.errors import CannotOpen, InUse
from capellini.model.service import Service
from capellini.node.condition import GOOD, Condition
from capellini.store import forks
from capellini.store.interface import Counts

log = logging.getLogger("capellini.api")

TICK_S: Final = 0.5  # how exact time-outs are
BACKLOG: Final = 1_024
GRACE_S: Final = 10.0


class Server:
    """`listen` and `listen_unix`, any number of times, then `close`."""

    def __init__(
        self,
        service: Service,
        *,
        limits: Limits | None = None,
        registry: CollectorRegistry | None = None,
        store_counts: Callable[[], Counts] | None = None,
        drain: Drain | None = None,
        node_name: str = "",
        hosts: frozenset[str] = frozenset(),
        peer: Peer | None = None,
        timed: TimedMetrics | None = None,
        journal: JournalMetrics | None = None,
        log_queues: LogMetrics | None = None,
    ) -> None:
        """`drain` is what POST /v1/drain calls; without one the server drains itself."""
        limits = limits or Limits()
        self.gate = Gate(limits)
        self._metrics = Metrics(
            self.gate, registry, store_counts, lambda: len(self._application.connections), self._open_streams
        )
        self._metrics.registry.register(CounterMetrics(service))
        self._queue_metrics = QueueMetrics(service, time.monotonic)
        self._metrics.registry.register(self._queue_metrics)
        self._metrics.looks.append(self._queue_metrics.look)
        if timed is not None:
            self._metrics.registry.register(timed)
            self._metrics.looks.append(timed.look)
        if journal is not None:
            self._metrics.registry.register(journal)
        if log_queues is not None:
            self._metrics.registry.register(log_queues)
        self._context = Context(service, self.gate, self._metrics, drain or self._drain_itself, node_name, peer)
        self._context.document = msgspec.json.encode(document(ROUTES))
        self._application = Application(self._context, limits, hosts)
        self._listeners: list[asyncio.AbstractServer] = []
        self._files: list[int] = []  # of Unix sockets
        self._sockets: list[Path] = []
        self._ticker: asyncio.TimerHandle | None = None
        self.addresses: list[str] = []

    def _open_streams(self) -> dict[str, int]:
        getting = sum(isinstance(stream, ConsumerStream) for stream in self._context.streams)
        return {"put": len(self._context.streams) - getting, "get": getting}

    @property
    def registry(self) -> CollectorRegistry:
        return self._metrics.registry

    # ---- listening

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Returns where (a port of 0 picks a free one). Raises InUse or CannotOpen."""
        return await self.listen_on(await bound(host, port), host)

    async def listen_on(self, sockets: Sequence[socket.socket], host: str) -> tuple[str, int]:
        """The same with sockets that are bound already."""
        loop = asyncio.get_running_loop()
        self._start_ticking(loop)
        if not is_loopback(host):
            self._application.hosts |= {ANY_HOST}
        factory = connection_factory(self._application, loop)
        for each in sockets:
            try:
                listener = await loop.create_server(factory, sock=each, backlog=BACKLOG)
            except OSError as error:
                raise _cannot_listen(f"{host}:{each.getsockname()[1]}", error) from None
            self._listeners.append(listener)
        found = sockets[0].getsockname()
        shown = f"[{found[0]}]" if ":" in found[0] else found[0]
        self.addresses.append(f"http://{shown}:{found[1]}")
        return str(found[0]), int(found[1])

    async def listen_unix(self, path: Path) -> None:
        """A socket that only this user may use. One that a dead process left is replaced."""
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(_remove_dead_socket, path)
        found = _bound_unix(path)
        try:
            factory = connection_factory(self._application, loop)
            listener = await loop.create_unix_server(factory, sock=found, backlog=BACKLOG)
        except BaseException:
            found.close()
            raise
        self._start_ticking(loop)
        self._listeners.append(listener)
        self._files += [each.fileno() for each in listener.sockets]
        for file in self._files:
            forks.close_in_children(file)
        forks.ask_in_children(self._connected)
        self._sockets.append(path)
        self.addresses.append(f"unix:{path}")

    def _connected(self) -> list[int]:
        """The files of connections."""
        transports = [each._transport for each in self._application.connections]
        sockets = [each.get_extra_info("socket") for each in transports if not each.is_closing()]
        return [each.fileno() for each in sockets if each is not None]

    def _start_ticking(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._ticker is None:
            self._tick(loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._application.tick(loop.time(), time.time())
        self._ticker = loop.call_later(TICK_S, self._tick, loop)

    # ---- ending

    def see(self, condition: Condition) -> None:
        """What condition the node is in now: the gate goes by it, and long polls of a draining node end."""
        self.gate.condition = condition if condition != GOOD else GOOD  # the gate's fast path knows GOOD by identity
        if condition.draining:
            self._context.wake()

    async def _drain_itself(self, draining: bool) -> None:
        self.see(msgspec.structs.replace(self.gate.condition, draining=draining))

    async def close(self, grace_s: float = GRACE_S) -> None:
        """Returns when all connections are closed."""
        for file in self._files:
            forks.forget(file)
        forks.forget_asking(self._connected)
        for listener in self._listeners:
            listener.close()
        self.see(msgspec.structs.replace(self.gate.condition, draining=True))
        for connection in tuple(self._application.connections):
            connection.close_soon()
        tasks = {each.ended for each in self._application.connections if each.ended is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            if late:
                log.warning("%d connections were cut off after %g s", len(late), grace_s)
        for connection in tuple(self._application.connections):
            connection.abort()
        if tasks:
            await asyncio.wait(tasks)
        await self._queue_metrics.close()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for path in self._sockets:
            path.unlink(missing_ok=True)


async def bound(host: str, port: int) -> list[socket.socket]:
    """The right to listen there, and nobody is listened to yet: who binds first can still refuse to start. One socket
    per address that the host has. Raises InUse or CannotOpen."""
    try:
        places = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise _cannot_listen(f"{host}:{port}", error) from None
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(places):
        one = socket.socket(family, kind, protocol)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.setblocking(False)
            one.bind(address)
        except OSError as error:
            one.close()
            if error.errno != errno.EADDRNOTAVAIL:  # a name may have addresses that this machine does not
                failure = error
                break
            failure = failure or error
        else:
            sockets.append(one)
    if failure is not None and (not sockets or failure.errno != errno.EADDRNOTAVAIL):
        for each in sockets:
            each.close()
        raise _cannot_listen(f"{host}:{port}", failure)
    return sockets


def is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _cannot_listen(where: str, error: OSError) -> CannotOpen:
    if error.errno == errno.EADDRINUSE or "in use" in str(error):
        return InUse(f"cannot listen on {where}: something else does already; choose another with --listen")
    return CannotOpen(f"cannot listen on {where}: {error.strerror or error}")


def _bound_unix(path: Path) -> socket.socket:
    """For this user alone before anybody can connect: that begins when it listens. (Not by a umask: that is the whole
    process's, and other threads make files meanwhile.) Raises CannotOpen."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(str(path))
        os.chmod(path, 0o600)
    except OSError as error:
        found.close()
        raise _cannot_listen(str(path), error) from None
    found.setblocking(False)
    return found


def _remove_dead_socket(path: Path) -> None:
    """Raises InUse when a living process listens there."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise CannotOpen(f"cannot listen on {path}: a file is in the way")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise InUse(f"cannot listen on {path}: another process does already")
