"""Who reads an extent for a group: rows taken by compare-and-set, as in `assignments`, one partition per extent.

    log_owners (queue, generation, extent) ▸ reader     node, incarnation, epoch, token       static: dropped

A reader is a group in one version of it. A row is taken when nobody has it, when its owner's incarnation is over, or by
the very node that has it, under a new epoch each time: deliveries are numbered from 1 in each epoch. Dropping the
extent drops the partition and leaves `dropped`, on the condition that nothing was taken since it was looked at; every
taking expects `dropped` to be absent. So nobody becomes the owner of what is gone.

Who should take it: the extent's writer while it lives, since it has the newest blocks in memory; else the live node
that the extent's hash likes best.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from capellini.model.errors import Overloaded
from capellini.queues.assignments import Owned, liking, owned_of
from capellini.queues.lease import Watcher
from capellini.queues.log.extents import Extent
from capellini.queues.log.place import LogPlace
from capellini.queues.trail import TOKEN, backoff_s, follow, new_name, settle_named, text_of
from capellini.store.interface import Cas, Change, Key, Outcome, Slice, Value, settle
from capellini.store.schema import LOG_OWNERS

PAGE: Final = 1_000
DROP_ATTEMPTS: Final = 5
DROPPED_TTL_S: Final = 8 * 86_400  # longer than any owner's lease, and than anybody's memory of the extent


class Rows(msgspec.Struct, frozen=True):
    owners: dict[str, Owned]  # by reader
    dropped: bool


def wanted_owner(extent: Extent, reader: str, me: tuple[str, str], watcher: Watcher, live: Iterable[str]) -> str:
    """The node that should read this extent for that group. `me`: node and incarnation of this node."""
    writer = (extent.node, extent.incarnation)
    if writer == me or (extent.node != me[0] and watcher.incarnation(extent.node) == extent.incarnation):
        return extent.node
    return max({*live, me[0]}, key=lambda node: liking(extent.name + reader, node))


class OwnerRows:
    def __init__(self, place: LogPlace, watcher: Watcher) -> None:
        self._place, self._watcher = place, watcher

    def _partition(self, extent: str) -> Key:
        return (*self._place.partition, extent)

    async def read(self, extent: str) -> Rows:
        """All readers of an extent, as a quorum has them now."""
        found: dict[str, Owned] = {}
        dropped = False
        after: Key | None = None
        while True:
            page = await self._place.store.read(Slice(LOG_OWNERS, self._partition(extent), after=after, limit=PAGE))
            dropped = dropped or text_of(page.static, "dropped") is not None
            found.update((str(row.key[0]), owned_of(str(row.key[0]), row.values)) for row in page.rows)
            if not page.more:
                return Rows(found, dropped)
            after = page.rows[-1].key

    async def owner(self, extent: str, reader: str) -> Owned:
        page = await self._place.store.read(Slice(LOG_OWNERS, self._partition(extent), start=(reader,), limit=1))
        return owned_of(reader, page.rows[0].values if page.rows and page.rows[0].key == (reader,) else {})

    def mine(self, owned: Owned) -> bool:
        lease = self._place.lease
        return (owned.node, owned.incarnation) == (lease.node, lease.incarnation)

    async def take(self, extent: str, reader: str) -> Owned | None:
        """As it is now: this node's, under a new epoch, or another's. None: the extent is gone, or somebody was
        faster. Raises Unavailable without a valid lease."""
        lease = self._place.lease
        lease.require()
        seen = await self.owner(extent, reader)
        if seen.node and not self.mine(seen):
            if not await self._watcher.is_over(seen.node, seen.incarnation):
                return seen
            self._place.guards["extent of a dead owner taken"] += 1
        lease.require()
        taken = await self._write(extent, seen, lease.node, lease.incarnation, seen.epoch + 1)
        lease.require()  # it may have ended while this was written; then others may take it
        return taken

    async def give_up(self, extent: str, reader: str, epoch: int) -> None:
        """Others may take it at once. Stop acting on it before."""
        seen = await self.owner(extent, reader)
        if self.mine(seen) and seen.epoch == epoch:
            await self._write(extent, seen, "", "", seen.epoch)

    async def _write(self, extent: str, seen: Owned, node: str, incarnation: str, epoch: int) -> Owned | None:
        place = self._place
        name = new_name(place.random)
        token = follow(seen.token, name)
        values: dict[str, Value] = {"node": node, "incarnation": incarnation, "epoch": epoch, TOKEN: token}
        changes = (
            Change((seen.item,), {TOKEN: seen.token}, values),
            Change(None, {"dropped": None}, {"dropped": None}),
        )
        cas = Cas(LOG_OWNERS, self._partition(extent), changes)
        outcome = await settle_named(place.store, place.clock, cas, (seen.item,), seen.token, name)
        if not outcome.applied:
            place.guards["taking refused"] += 1
            return None
        return Owned(seen.item, node, incarnation, epoch, token)

    async def drop(self, extent: str) -> list[str]:
        """Nobody can own it from now on; the readers that there were. Whoever reads it finds out at its next write of
        a row here, or from the list of extents: what it still confirms concerns messages that are gone."""
        place = self._place
        for attempt in range(DROP_ATTEMPTS):
            await place.clock.sleep(backoff_s(attempt, place.random))
            rows = await self.read(extent)
            if rows.dropped:
                return sorted(rows.owners)
            change = Change(None, {"dropped": None}, {"dropped": new_name(place.random)})
            cas = Cas(LOG_OWNERS, self._partition(extent), (change,), drop=True, ttl_s=DROPPED_TTL_S)
            outcome = await settle(place.store, cas, _is_dropped, place.clock.sleep)
            if outcome.applied or _is_dropped(outcome):
                return sorted(rows.owners)
        raise Overloaded(f"extent {extent} changes too often: nothing was dropped, try again")


def _is_dropped(outcome: Outcome) -> bool:
    return text_of(outcome.rows.get(None, {}), "dropped") is not None
