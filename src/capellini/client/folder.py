"""A folder shared by processes: the first to open it owns the store and serves the others through a Unix socket in it.

             ┌─ the lock is free ──▶ own: store, broker, server on folder/node.sock
    call ────┤
             └─ it is in use ──────▶ join: requests to folder/node.sock
                                        └─ the connection is gone ──▶ the next attempt begins at the top

Who owns the folder is decided by the store's lock alone, which ends with its process, however that ends. So there
is nothing to elect: when an owner ends, the calls of the others fail as any call to a node that went away, and are
repeated or not by the rules of `patient`; the first repetition that finds the lock free owns the folder from then
on. A `capellini serve` on the folder is an owner like any other. An owner serves as long as its client is open and
its event loop runs: a loop that is blocked blocks the others too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from capellini.api.server import Server
from capellini.client.own import OwnNode
from capellini.client.reaching import Home, Lost, Place, Unreachable
from capellini.client.relay import Relay
from capellini.client.remote import RemoteService
from capellini.client.sockets import SocketPath
from capellini.client.transport import Transport
from capellini.model.address import RocksAddress
from capellini.model.errors import InUse, Unavailable
from capellini.model.service import Service

R = TypeVar("R")
GRACE_S: Final = 5.0  # for the others' requests under way when an owner leaves


class _Owner:
    """The store is ours, and the others are served."""

    def __init__(self, node: OwnNode, server: Server, socket: SocketPath) -> None:
        self.service: Service = node.service
        self._node, self._server, self._socket = node, server, socket

    @classmethod
    async def open(cls, address: RocksAddress) -> _Owner:
        """Raises InUse when another process owns the folder."""
        node = await OwnNode.open(address)
        socket = SocketPath(Path(address.folder))
        try:
            server = Server(node.service, store_counts=lambda: node.store.counts)
            await server.listen_unix(socket.path)
        except BaseException:
            socket.close()
            await node.close()
            raise
        return cls(node, server, socket)

    async def close(self) -> None:
        try:
            await self._server.close(GRACE_S)
        finally:
            self._socket.close()
            await self._node.close()


class _Guest:
    """Another process owns the store; its server is ours to ask."""

    def __init__(self, address: RocksAddress, max_connections: int, request_timeout_s: float) -> None:
        self._socket = SocketPath(Path(address.folder))
        transport = Transport(
            Place(unix=str(self._socket.path)),
            max_connections=max_connections,
            request_timeout_s=request_timeout_s,
            channel=True,
        )
        self.service: Service = RemoteService(transport)

    async def close(self) -> None:
        await self.service.close()
        self._socket.close()


class FolderService(Relay):
    def __init__(self, address: RocksAddress, max_connections: int, request_timeout_s: float) -> None:
        self._address = RocksAddress(os.path.abspath(address.folder))  # a program may go elsewhere before it owns it
        self._connections, self._timeout_s = max_connections, request_timeout_s
        self._owner: _Owner | None = None
        self._guest: _Guest | None = None
        self._joined = False  # as a guest, and no sign that the owner is gone
        self._in_use = ""  # by whom
        self._changing = asyncio.Lock()
        self._closed = False
        self._home = Home()

    async def call(self, operation: str, do: Callable[[Service], Awaitable[R]]) -> R:
        self._home.check()
        if self._owner is not None:
            return await do(self._owner.service)
        guest = await self._open()
        if guest is None:
            return await self.call(operation, do)
        try:
            return await do(guest.service)
        except Lost:
            self._joined = False  # the next call looks who owns the folder now
            raise
        except Unreachable as error:
            self._joined = False
            raise Unreachable(f"{self._in_use}; its socket does not answer: {error.says}", retry_after_s=0.0) from error

    async def _open(self) -> _Guest | None:
        """Own the folder (None), or join its owner. One task at a time looks; the others take its result."""
        if self._joined and self._guest is not None:
            return self._guest
        async with self._changing:
            if self._closed:
                raise Unavailable("this client is closed")
            if self._owner is not None:
                return None
            if not self._joined:
                try:
                    self._owner = await _Owner.open(self._address)
                except InUse as error:
                    self._joined = True
                    self._in_use = error.says
            guest = self._guest
            if self._owner is not None:
                self._guest = None
                if guest is not None:
                    await guest.close()  # what is still under way there was lost with its owner
                return None
            if guest is None:
                guest = self._guest = _Guest(self._address, self._connections, self._timeout_s)
            return guest

    async def close(self) -> None:
        self._home.check()
        async with self._changing:
            self._closed = True
            if self._guest is not None:
                await self._guest.close()
            if self._owner is not None:
                await self._owner.close()
            self._guest = self._owner = None
            self._joined = False
