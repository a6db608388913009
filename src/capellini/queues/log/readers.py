"""The owners that this node has of one queue's extents: who should be taken, who has finished, who must stop.

    for each group:  extents that it has not finished ──▶ should this node read them? ──▶ take the row ──▶ Owner.begin
                     (of an ordered queue: only the first of them)

Nothing is taken from a living owner. So who may have taken a row without hearing of it, or failed to begin, must go on
trying: nobody else does. What a group has finished of a sealed extent is finished for good, and remembered here in one
bit; its owner stops. Of what others read the store is asked whether it is finished by now: at each look of LOOKS of
them, the others are taken to be as they were. So a group that is a thousand extents behind costs what one does that is
sixteen behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from capellini.model.errors import StoreError, Unavailable
from capellini.model.log import LogParcel
from capellini.queues.lease import Watcher
from capellini.queues.log.cursors import read_cursor
from capellini.queues.log.extents import Extent, Extents
from capellini.queues.log.groups import Group, Groups, Wants, wants
from capellini.queues.log.homes import reader_abroad
from capellini.queues.log.owner import MakeQueue, Owner
from capellini.queues.log.owners import OwnerRows, wanted_owner
from capellini.queues.log.place import LogPlace
from capellini.queues.log.reading import Reading, Shelf
from capellini.queues.log.writing import Writer, Writers
from capellini.queues.work.letters import PutMoved

AGAIN_S: Final = 0.5  # what another owns, or nobody could take, is looked at again after
TAKES: Final = 16  # extents that a group takes at a time; more with the next look
LOOKS: Final = 16  # extents read elsewhere of which a look asks once more whether the group has finished them

Of = tuple[str, str]  # extent, reader


class Readers:
    def __init__(
        self,
        place: LogPlace,
        extents: Extents,
        writers: Writers,
        watcher: Watcher,
        groups: Groups,
        shelf: Shelf,
        put_moved: PutMoved,
        make_queue: MakeQueue,
        nudge: Callable[[], None],
    ) -> None:
        self._place, self._extents, self._writers, self._watcher = place, extents, writers, watcher
        self._groups, self._shelf = groups, shelf
        self._put_moved, self._make_queue, self._nudge = put_moved, make_queue, nudge
        self.rows = OwnerRows(place, watcher)
        self.owners: dict[Of, Owner] = {}
        self.finished: set[Of] = set()
        self._left: dict[str, dict[str, None]] = {}  # by reader: extents it had not finished, the longest ago first
        self.dropping_from = ""  # retention goes on at this extent
        self._elsewhere: dict[Of, str] = {}
        self._asked: set[Of] = set()  # rows that this incarnation may have, whether it heard so or not
        self._looked_s: dict[str, float] = {}  # by reader
        self._looking: dict[str, asyncio.Future[None]] = {}  # by reader: a look is under way
        self._taking: dict[Of, asyncio.Task[None]] = {}
        self._turn = 0
        self.takeovers = 0
        self._leaving = False  # nothing is taken or handed out any more
        extents.on_change.append(self._looked_s.clear)

    # What there is to read

    def writer(self, extent: str) -> Writer | None:
        """If it is written here."""
        return self._writers.writer(extent)

    def reading(self, extent: str) -> Reading:
        return Reading(self._place, self._extents, self._writers, self._shelf, extent)

    async def active(self, group: Group) -> list[Extent]:
        """Extents that the group has not finished; of an ordered queue the first of them only."""
        found: list[Extent] = []
        left = set(list(self._left.get(group.reader, ()))[LOOKS:]) if not self._place.options.ordered else set()
        for extent in self._extents.known():
            passed = extent.name in left and (extent.name, group.reader) not in self.owners
            if not passed and await self.has_finished(extent, group):
                continue
            found.append(extent)
            if self._place.options.ordered:
                break
        return found

    async def has_finished(self, extent: Extent, group: Group) -> bool:
        of = (extent.name, group.reader)
        if of in self.finished:
            return True
        if not extent.sealed:
            return False
        owner = self.owners.get(of)
        if owner is not None and owner.acts():
            if not owner.finished:
                return False
            await owner.flush()
            self._let_go(of)
        else:
            stored = await read_cursor(self._place, extent.name, group.reader) if extent.end else None
            left = self._left.setdefault(group.reader, {})
            left.pop(extent.name, None)
            if extent.end and (stored is None or stored.next < extent.end):
                left[extent.name] = None
                return False
        self.finished.add(of)
        return True

    def _let_go(self, of: Of) -> None:
        owner = self.owners.pop(of, None)
        if owner is not None:
            owner.stop()

    def _should(self, extent: Extent, group: Group) -> str:
        place = self._place
        if extent.home != place.home:
            return reader_abroad(extent, group.reader, place.abroad(extent.home)) if place.abroad else ""
        me = (place.lease.node, place.lease.incarnation)
        return wanted_owner(extent, group.reader, me, self._watcher, self._watcher.live())

    # Taking

    async def ensure(self, group: Group) -> None:
        """Take what this node should read for the group, now and then, and whenever the extents change."""
        if self._leaving:
            return
        now_s = self._place.clock.elapsed_s()
        if (looking := self._looking.get(group.reader)) is not None:
            if not self.here(group):  # else what is here can be had meanwhile
                await asyncio.shield(looking)
            return
        done = self._place.chained and any(owner.finished for owner in self.here(group))  # the chain's next one waits
        if not done and now_s - self._looked_s.get(group.reader, -1e9) < AGAIN_S:
            return
        self._looked_s[group.reader] = now_s
        looking = self._looking[group.reader] = asyncio.get_running_loop().create_future()
        try:
            await self._look(group)
        finally:
            del self._looking[group.reader]
            looking.set_result(None)

    async def _look(self, group: Group) -> None:
        wanted: list[Of] = []
        for extent in await self.active(group):
            of = (extent.name, group.reader)
            if (owner := self.owners.get(of)) is not None and owner.acts():
                continue
            node = self._should(extent, group)
            mine = node == self._place.node or of in self._asked
            if mine and extent.home == self._place.home and self._place.lease.valid():
                wanted.append(of)
            else:
                self._elsewhere[of] = node
        if len(wanted) > TAKES:
            self._looked_s.pop(group.reader, None)  # the rest comes at once
        await asyncio.gather(*[self._take_once(of, group) for of in wanted[:TAKES]])

    async def _take_once(self, of: Of, group: Group) -> None:
        task = self._taking.get(of)
        if task is None:
            task = self._taking[of] = asyncio.get_running_loop().create_task(self._take(of, group))
            task.add_done_callback(lambda _: self._taking.pop(of, None))
        await asyncio.shield(task)

    async def _take(self, of: Of, group: Group) -> None:
        place, (extent, reader) = self._place, of
        self._asked.add(of)
        try:
            owned = await self.rows.take(extent, reader)
            if owned is None or not self.rows.mine(owned):
                self._asked.discard(of)
                self._elsewhere[of] = owned.node if owned is not None else ""
                return
            wanted = self._wants(group.name, group)
            owner = Owner(
                place, self.reading(extent), group, owned.epoch, wanted, self._put_moved, self._make_queue,
                self._nudge,
            )  # fmt: skip
            await owner.begin()
        except StoreError:
            self._asked.add(of)  # forgotten with the lease that it was asked under; the row may be the next one's
            place.guards["extent not taken yet"] += 1
            return
        if (
            self._leaving
            or not place.lease.valid()
            or (owned.node, owned.incarnation) != (place.node, place.lease.incarnation)
        ):
            owner.stop()
            return
        self._let_go(of)
        self.owners[of] = owner
        self._elsewhere.pop(of, None)
        self.takeovers += 1
        place.guards["extent taken over" if owned.epoch > 1 else "extent taken first"] += 1
        self._nudge()

    def _wants(self, name: str, group: Group) -> Callable[[], Wants]:
        """As the group is known now."""

        place, seen = self._place, (self._place.options, group.options)
        made = wants(place, group.options)

        def now() -> Wants:
            nonlocal seen, made
            options = place.options, (self._groups.get(name) or group).options
            if options[0] is not seen[0] or options[1] is not seen[1]:
                seen, made = options, wants(place, options[1])
            return made

        return now

    # Handing out

    def here(self, group: Group) -> list[Owner]:
        return [o for (_, reader), o in self.owners.items() if reader == group.reader and o.acts()]

    def nodes(self, group: Group) -> set[str]:
        """Other nodes that read for the group, as far as is known."""
        found = {node for (_, reader), node in self._elsewhere.items() if reader == group.reader}
        return found - {"", self._place.node}

    async def take(self, group: Group, count: int, most_bytes: int, visibility_ms: int | None) -> list[LogParcel]:
        """From the extents read here."""
        if self._leaving:
            return []
        await self.ensure(group)
        owners = sorted(self.here(group), key=lambda owner: owner.extent)
        self._turn += 1
        parcels: list[LogParcel] = []
        for place in range(len(owners)):
            owner = owners[(self._turn + place) % len(owners)]  # each extent is the first one at some time
            if not owner.acts():
                continue
            try:
                found = await owner.take(count, most_bytes, visibility_ms)
            except Unavailable:
                self._place.guards["extent passed over"] += 1
                continue
            parcels += found
            count -= sum(parcel.count for parcel in found)
            most_bytes -= sum(len(parcel.chunks) for parcel in found)
            if count <= 0 or most_bytes <= 0:
                break
        return parcels

    def next_ms(self, group: Group) -> int | None:
        times = [at_ms for owner in self.here(group) if (at_ms := owner.next_ms()) is not None]
        return min(times, default=None)

    async def where(self, extent: str, reader: str) -> str:
        """Who reads it, as the store says now; empty: nobody."""
        owned = await self.rows.owner(extent, reader)
        self._elsewhere[extent, reader] = owned.node
        return owned.node

    def believe(self, parcels: Sequence[LogParcel], node: str) -> None:
        """They came from there: their acks go there, too, though this data centre may not have heard of the extent."""
        self._elsewhere.update(((parcel.extent, parcel.reader), node) for parcel in parcels)

    def believed(self, extent: str, reader: str) -> str:
        return self._elsewhere.get((extent, reader), "")

    # Upkeep

    async def turn(self) -> None:
        """Stop what is not to be read any more, take what should be, let go of what is finished."""
        groups = await self._groups.all()
        readers = {group.reader for group in groups}
        extents = {extent.name for extent in self._extents.known()}
        for of, owner in list(self.owners.items()):
            if of[1] not in readers or of[0] not in extents or not owner.acts():
                self._place.guards["owner stopped"] += 1
                self._let_go(of)
            else:
                owner.roll()
        self.finished = {of for of in self.finished if of[0] in extents and of[1] in readers}
        self._elsewhere = {of: node for of, node in self._elsewhere.items() if of[0] in extents and of[1] in readers}
        self._asked = {of for of in self._asked if of[0] in extents and of[1] in readers}
        self._left = {
            reader: {extent: None for extent in left if extent in extents}
            for reader, left in self._left.items()
            if reader in readers
        }
        for group in groups:
            await self.ensure(group)
        if any(owner.desk.ready for owner in self.owners.values()):
            self._nudge()

    def abandon(self) -> None:
        """The lease is lost: hand out nothing, confirm nothing, from this moment on."""
        for of in list(self.owners):
            self._let_go(of)
        self._looked_s.clear()
        self._elsewhere.clear()
        self._asked.clear()

    async def give_up(self) -> None:
        """Others may take all of it at once. An owner that still confirms acks stays the only one here: another under
        the next epoch would have read what is finished before."""
        self._leaving = True
        for (extent, reader), owner in list(self.owners.items()):
            try:
                await owner.flush()
                owner.stop()
                await owner.ended()
                await self.rows.give_up(extent, reader, owner.epoch)
            except StoreError:
                self._place.guards["extent not given up"] += 1  # others wait until the lease is over
            finally:
                owner.stop()
        self.owners.clear()
