"""No server: the library drives the store itself, with a broker in this process.

Work queues need nothing more: they are connectionless, and what a broker keeps in memory is only what makes it
fast. Any number of processes and nodes may do so on one keyspace at the same time. Timed and log queues need nodes that
own their shards and extents, and can be reached: on Cassandra `capellini serve`, in a folder whoever owns it.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from capellini.client.peers import HttpPeers
from capellini.client.reaching import Home
from capellini.client.relay import Relay
from capellini.model.address import CassandraAddress, RocksAddress
from capellini.model.clock import RealClock
from capellini.model.errors import Unavailable
from capellini.model.service import Service
from capellini.node.broker import Broker
from capellini.node.counting import CounterKeeper
from capellini.node.kinds import Kinds
from capellini.node.maintenance import Maintenance
from capellini.node.peering import Peering
from capellini.node.statistics import CountedEvents
from capellini.store.interface import Store
from capellini.store.opening import open_store

R = TypeVar("R")
MAINTAIN_AFTER_S: Final = 60.0  # on Cassandra: a lease row stays for good, and is not for a process that is gone soon


class OwnNode:
    """An open store with its broker and, for those that live long enough, maintenance."""

    def __init__(self, store: Store, broker: Broker, maintenance: Maintenance) -> None:
        self.store = store
        self._maintenance = maintenance
        peers = None if store.alone else HttpPeers(Peering(store, broker.clock, broker.random, maintenance.watcher))
        self._kinds = Kinds(broker, maintenance, peers, holds=store.alone)  # others cannot reach us here
        self.service = self._kinds.service
        self._keeper = CounterKeeper(broker, random.Random())
        self._keeper.start()
        self._maintaining = False
        self._later: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, address: CassandraAddress | RocksAddress) -> OwnNode:
        """Raises CannotOpen (InUse: another process has the folder), or Unavailable."""
        clock, chance = RealClock(), random.Random()
        store = await open_store(address, clock=clock)
        alone = isinstance(address, RocksAddress)
        name = "folder" if alone else f"client-{secrets.token_hex(6)}"
        broker = Broker(store, clock, chance, name, CountedEvents(clock))
        node = cls(store, broker, Maintenance(store, clock, chance, broker, alone=alone))
        node._kinds.start()
        if alone:
            node._maintain()
        else:
            node._later = asyncio.get_running_loop().call_later(MAINTAIN_AFTER_S, node._maintain)
        return node

    def _maintain(self) -> None:
        self._maintaining = True
        self._maintenance.start()
        self._keeper.start_sweeping()

    async def close(self) -> None:
        if self._later is not None:
            self._later.cancel()
        try:
            await self._kinds.stop()
            await self._maintenance.rest()
            await self.service.close()
            await self._kinds.finish()
            if self._maintaining:
                await self._maintenance.stop()
            await self._keeper.stop()  # last: what was finished just now counts as well
        finally:
            await self.store.close()


class OwnService(Relay):
    """Opens at the first call; a store that cannot be reached is tried again by the next."""

    def __init__(self, address: CassandraAddress) -> None:
        self._address = address
        self._node: OwnNode | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._home = Home()

    async def call(self, operation: str, do: Callable[[Service], Awaitable[R]]) -> R:
        self._home.check()
        return await do((self._node or await self._open()).service)

    async def _open(self) -> OwnNode:
        async with self._opening:
            if self._closed:
                raise Unavailable("this client is closed")
            if self._node is None:
                self._node = await OwnNode.open(self._address)
            return self._node

    async def close(self) -> None:
        async with self._opening:
            self._closed = True
            if self._node is not None:
                await self._node.close()
                self._node = None
