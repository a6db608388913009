"""Homes: how data centres that are cut from each other each go on with a log queue of mode `ap`.

    list of extents, owners, producers, leases of home A    changed by nodes of A only, at local serial and local quorum
                                                 of home B  …by nodes of B only
    groups, the list of queues                              changed by a majority of all; read as far as is known here

Every partition that is changed so has its home in its key, or a name that only nodes of one home give (an extent's). So
there is one serial level per partition for good, and what local replicas agree on is the truth about it. Each node has
a second lease, at its home: the one for all data centres cannot be beaten by a minority.

    put         into extents of this node's home, confirmed by the home's replicas
    get         from the owners of extents, which are nodes of the extents' home: here, or in another data centre that
                can be reached. While it is cut off its extents wait; nothing of theirs is taken over

Of other homes this node knows what its own replicas have: lists that may be a little old, and leases. It never decides
that an incarnation of another home is over.
"""

from __future__ import annotations

from collections.abc import Callable

from capellini.model.clock import Chance, Clock
from capellini.model.errors import Unavailable
from capellini.queues.assignments import liking
from capellini.queues.lease import BEAT_S, LEASE_S, Lease, Watcher
from capellini.queues.log.extents import Extent
from capellini.store.interface import Store
from capellini.store.local import LocalStore


class Home:
    """This node's data centre, and what it knows of the others. Made only where `store.homes` names some: whoever makes
    it starts `lease`, and calls `look` every few seconds."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Chance,
        node: str,
        *,
        lease_s: float = LEASE_S,
        beat_s: float = BEAT_S,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._whole, self._clock, self._random, self._lease_s = store, clock, random, lease_s
        self.name = store.home
        self.store = LocalStore(store)
        self.lease = Lease(
            self.store, clock, random, node, lease_s=lease_s, beat_s=beat_s, on_lost=on_lost, home=self.name
        )
        self.watcher = self._watching(self.name)
        self._abroad: dict[str, Watcher] = {}

    def _watching(self, home: str) -> Watcher:
        return Watcher(self.store, self._clock, self._random, lease_s=self._lease_s, home=home)

    def require(self) -> None:
        """Raises Unavailable where local levels mean nothing."""
        if not self.name:
            raise Unavailable(
                f"this data centre holds no copies: log queues of mode ap need a node in one of "
                f"{', '.join(self._whole.homes)}"
            )

    async def look(self) -> None:
        """At the leases of all homes; who is silent in this one is ended. Raises StoreError."""
        if not self.name:
            return
        await self.watcher.look()
        for node in self.watcher.silent():
            if node != self.lease.node:
                await self.watcher.end(node)
        for home in self._whole.homes:
            if home != self.name:
                await self.abroad(home).look()

    def abroad(self, home: str) -> Watcher:
        """Who lives in another home, as far as is known here. Only to be looked at."""
        found = self._abroad.get(home)
        if found is None:
            found = self._abroad[home] = self._watching(home)
        return found

    def address(self, node: str) -> str:
        """Where a node of any home is reached; empty: not known."""
        found = (watcher.address(node) for watcher in (self.watcher, *self._abroad.values()))
        return next((address for address in found if address), "")


def reader_abroad(extent: Extent, reader: str, watcher: Watcher) -> str:
    """The node that reads an extent of another home for a group, as its own nodes choose it (`owners`); empty: nobody
    seems to live there."""
    live = watcher.live()
    if extent.node in live and watcher.incarnation(extent.node) == extent.incarnation:
        return extent.node
    return max(live, key=lambda node: liking(extent.name + reader, node), default="")
