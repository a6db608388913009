"""A node and its API together, from start to the signal to stop, and gracefully to the end.

    the port is bound ──▶ the store is opened ──▶ listening       what cannot be served is not even opened
    SIGTERM, SIGINT ──▶ unready, long polls answered ──▶ (drain_s: acks still come) ──▶ no new connections,
    what was begun is finished ──▶ maintenance gives its lease back ──▶ the store is closed

A second signal ends the process at once. So does, in good order, a store that cannot go on (an fsync failed: nobody
knows what the disk has): whoever watches over the process starts it anew, and what was confirmed is read from the disk.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from capellini.api.journal_metrics import JournalMetrics
from capellini.api.limits import Limits
from capellini.api.log_metrics import LogMetrics, figures_of
from capellini.api.server import Server, bound, is_loopback
from capellini.api.timed_metrics import TimedFigures, TimedMetrics
from capellini.model.address import RocksAddress
from capellini.model.errors import StoreError, Unavailable
from capellini.node.config import address_of, announced, hosts_of, listen_of, name_of
from capellini.node.node import Node, PeersOf
from capellini.node.settings import Settings

log = logging.getLogger("capellini.node")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def limits_of(settings: Settings) -> Limits:
    return Limits(
        max_requests=settings.max_requests,
        max_waiting=settings.max_waiting,
        max_bytes=settings.max_bytes,
        max_connections=settings.max_connections,
        max_body=settings.max_body,
    )


def timed_metrics(node: Node) -> TimedMetrics:
    keeper, schedules = node.kinds.timed.keeper, node.service.schedules

    def figures() -> TimedFigures:
        return TimedFigures(keeper.late_ms, keeper.takeovers, keeper.emergency_stops, schedules.ticks_put)

    return TimedMetrics(figures, keeper.views)


def log_metrics(node: Node) -> LogMetrics:
    return LogMetrics(lambda: figures_of(node.kinds.log.keeper))


def journal_metrics(node: Node) -> JournalMetrics | None:
    """None: this node tells nothing."""
    journal = node.kinds.journal
    return None if journal is None else JournalMetrics(lambda: journal.figures)


async def serve(
    settings: Settings,
    announce: Callable[[list[str]], None],
    folder_socket: Callable[[Path], Path] | None = None,
    stop: asyncio.Event | None = None,
    peers_of: PeersOf | None = None,
) -> None:
    """Runs until a signal, or until `stop`. `announce` is told where it listens; `folder_socket` names the Unix socket
    for those who share the folder of an embedded store; `peers_of` says how other nodes are reached. Raises Unavailable
    when the store cannot go on."""
    stop = stop or asyncio.Event()
    host, port = listen_of(settings)
    sockets = await bound(host, port)
    try:
        node = await Node.open(settings, peers_of=peers_of, begin=False)
    except BaseException:
        for each in sockets:
            each.close()
        raise
    server = Server(
        node.service,
        limits=limits_of(settings),
        store_counts=lambda: node.store.counts,
        drain=node.drain,
        node_name=name_of(settings),
        peer=node.serve_peer,
        timed=timed_metrics(node),
        journal=journal_metrics(node),
        log_queues=log_metrics(node),
        hosts=hosts_of(settings),
    )
    try:
        address = address_of(settings)
        _, port = await server.listen_on(sockets, host)
        node.begin(announced(settings, port))
        if folder_socket is not None and isinstance(address, RocksAddress):
            await server.listen_unix(folder_socket(Path(address.folder)))
        node.subscribe(server.see)
        node.subscribe(lambda _: stop.set() if node.store.broken else None)
        _on_signal(stop)
        announce(server.addresses)
        if not is_loopback(host):
            log.warning("whoever can reach %s can use it: let only those in who may", settings.listen)
        log.info("serving %s on %s", address, ", ".join(server.addresses))
        await stop.wait()
        log.info("stopping")
        await node.drain()
        if settings.drain_s and not node.store.broken:
            await asyncio.sleep(settings.drain_s)
    finally:
        await server.close(settings.shutdown_s)
        await _closed(node)
    if node.store.broken:
        raise Unavailable(f"{node.store.broken}. The node has ended; what was confirmed is on the disk")
    log.info("stopped")


async def _closed(node: Node) -> None:
    """What cannot be given back any more is taken over by others, or at the next start."""
    try:
        await node.close()
    except StoreError:
        if not node.store.broken:
            raise


def _on_signal(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def heard() -> None:
        stop.set()
        for each in _SIGNALS:
            loop.remove_signal_handler(each)  # the next one has its usual effect

    for each in _SIGNALS:
        loop.add_signal_handler(each, heard)
