"""Looking at a log queue: how far its groups are, its extents, and messages that are not finished. Nothing is changed.

extents read here ──▶ their owners' desks: exact
read elsewhere    ──▶ that node is asked for the same
read by nobody    ──▶ what the store has: cursors and blocks; what was in flight is not known, so not exact

How far an open extent is, its writer alone knows: if another node writes it, that node is asked, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec

from capellini.model import chunks
from capellini.model.errors import CapelliniError, Invalid, StoreError
from capellini.model.log import ExtentView, GroupLag, GroupOptions
from capellini.model.message import Peeked, page_full
from capellini.queues.assignments import Owned
from capellini.queues.log.cursors import read_cursor
from capellini.queues.log.desk import Desk
from capellini.queues.log.extents import Extent, Extents
from capellini.queues.log.groups import Group, Groups, wants
from capellini.queues.log.pages import Pages
from capellini.queues.log.parcels import Cutter
from capellini.queues.log.peers import Call
from capellini.queues.log.place import LogPlace
from capellini.queues.log.readers import Readers
from capellini.queues.log.reading import Reading
from capellini.queues.log.views import View

PEEK_BYTES: Final = 1024 * 1024  # read at a time
PEEK_AHEAD: Final = 10_000  # messages of one extent that a peek looks at: a group may want few of them

NOBODY: Final = Group("", 0, 0, GroupOptions(), 0)  # a group that is none: it has finished nothing


class Place(msgspec.Struct, frozen=True, order=True):
    """Where a message is; as text its id."""

    extent: str
    number: int

    def __str__(self) -> str:
        return f"{self.extent}:{self.number}"


class Written(msgspec.Struct, frozen=True, array_like=True):
    """How far an extent is that is open at the node that says so."""

    extent: str
    end: int | None  # messages that are confirmed
    bytes: int | None
    says: str  # what else is to be said of it


def place_of(id: str) -> Place:
    """Raises Invalid."""
    extent, colon, number = id.rpartition(":")
    if not colon or not extent or not number.isascii() or not number.isdigit() or len(number) > 18:
        raise Invalid(f"{id[:120]!r} is not the id of a message of a log queue")
    return Place(extent, int(number))


class Looking:
    def __init__(self, place: LogPlace, extents: Extents, groups: Groups, readers: Readers, call: Call) -> None:
        self._place, self._extents, self._groups, self._readers = place, extents, groups, readers
        self._call = call
        self.told: Callable[[str], str] = lambda _: ""  # what else is to be said of an extent

    # How far a group is

    async def views_here(self, group: Group) -> list[View]:
        return [await owner.view() for owner in self._readers.here(group)]

    async def views(self, group: Group) -> tuple[list[View], bool]:
        """Of all extents that the group has not finished; and whether their owners said so."""
        found = {view.extent: view for view in await self.views_here(group)}
        left = [extent for extent in await self._unfinished(group) if extent.name not in found]
        nodes: dict[str, set[str]] = {}
        for extent in left:
            owned = await self._readers.rows.owner(extent.name, group.reader)
            if owned.node and owned.node != self._place.node:
                nodes.setdefault(owned.node, set()).add(extent.name)
        for node, names in sorted(nodes.items()):
            for view in await self._views_of(node, group):
                if view.extent in names:
                    found[view.extent] = view
        exact = True
        for extent in left:
            if extent.name not in found:
                found[extent.name], sure = await self._stored_view(extent, group)
                exact = exact and sure
        return [found[name] for name in sorted(found)], exact

    async def _views_of(self, node: str, group: Group) -> list[View]:
        try:
            return msgspec.msgpack.decode(await self._call(node, "views", [group.name]), type=list[View])
        except StoreError:
            return []  # what the store says is told instead

    async def _unfinished(self, group: Group) -> list[Extent]:
        return [one for one in self._extents.known() if not await self._readers.has_finished(one, group)]

    async def _stored_view(self, extent: Extent, group: Group) -> tuple[View, bool]:
        """What the store says. Exact where nobody has begun with it: then nothing is in flight."""
        stored, pages, reading = await self._stored(extent, group)
        top = max(reading.top(), pages.next)
        oldest_ms = await reading.put_ms_of(pages.next) if pages.next < top else None
        epoch = -1 if stored is None else stored
        view = View(
            extent.name, group.reader, epoch, pages.next, pages.next, top - pages.next, 0, 0, oldest_ms
        )  # fmt: skip
        return view, stored is None

    async def _stored(self, extent: Extent, group: Group) -> tuple[int | None, Pages, Reading]:
        """The epoch of the last owner (None: there was none), what it had finished, and the extent's blocks."""
        reading = self._readers.reading(extent.name)
        stored = await read_cursor(self._place, extent.name, group.reader)
        await reading.look(0 if stored is None else stored.next)
        if stored is not None:
            return stored.epoch, Pages.decode(stored.head, stored.pages), reading
        start = await reading.first_since(group.start_ms) if group.start_ms else 0
        return None, Pages(start), reading

    async def lag(self, group: Group) -> GroupLag:
        views, exact = await self.views(group)
        oldest_ms = min((view.oldest_ms for view in views if view.oldest_ms is not None), default=None)
        return GroupLag(
            ready=sum(view.ready for view in views),
            in_flight=sum(view.in_flight for view in views),
            delayed=sum(view.waiting for view in views),
            oldest_age_s=None if oldest_ms is None else max(0, self._place.now_ms() - oldest_ms) / 1000,
            exact=exact,
        )

    # Extents

    async def extents(self, replicas: Callable[[str], Awaitable[tuple[str, ...]]]) -> list[ExtentView]:
        """As they are listed, with what is known of their readers."""
        known = await self._extents.look()
        groups = await self._groups.all()
        views = {(view.extent, group.name): view for group in groups for view in (await self.views(group))[0]}
        written = {one.extent: one for one in await self._written([one for one in known if not one.sealed])}
        found: list[ExtentView] = []
        for extent in known:
            owners = (await self._readers.rows.read(extent.name)).owners
            readers: dict[str, dict[str, Any]] = {}
            remarks: list[str] = []
            for group in groups:
                owned, view = owners.get(group.reader), views.get((extent.name, group.name))
                readers[group.name] = _reader(extent, owned, view)
                if view is not None and view.says:
                    remarks.append(f"{group.name}: {view.says}")
            now = written.get(extent.name) or Written(extent.name, extent.end, extent.bytes, _unsaid(extent))
            found.append(self._view(extent, now, readers, remarks, await replicas(extent.name)))
        return found

    def written_here(self) -> list[Written]:
        writers = [self._readers.writer(extent.name) for extent in self._extents.known()]
        return [
            Written(one.extent.name, one.confirmed, one.bytes, self.told(one.extent.name))
            for one in writers
            if one is not None
        ]

    async def _written(self, open_now: list[Extent]) -> list[Written]:
        """As their writers say, if they do."""
        found = self.written_here()
        here = {one.extent for one in found}
        for node in sorted({extent.node for extent in open_now if extent.name not in here} - {self._place.node}):
            found += await self._written_at(node)
        return found

    async def _written_at(self, node: str) -> list[Written]:
        try:
            return msgspec.msgpack.decode(await self._call(node, "written", []), type=list[Written])
        except CapelliniError:
            return []  # that it does not say so is told instead

    def _view(
        self,
        extent: Extent,
        now: Written,
        readers: dict[str, dict[str, Any]],
        remarks: list[str],
        replicas: tuple[str, ...],
    ) -> ExtentView:
        return ExtentView(
            queue=self._place.name,
            extent=extent.name,
            home=extent.home,
            state=extent.state,
            node=extent.node,
            incarnation=extent.incarnation,
            level=extent.level,
            replicas=replicas,
            opened_at=extent.opened_ms / 1000,
            sealed_at=None if extent.sealed_ms is None else extent.sealed_ms / 1000,
            end=now.end,
            bytes=now.bytes,
            readers=readers,
            says="; ".join(filter(None, (_says(extent, self._place.options.level), now.says, *remarks))),
        )

    # Messages

    async def peek(self, group: Group, count: int, after: Place | None) -> list[Peeked]:
        """What the group has not finished, by extent and number, the oldest extents first. No further than it takes: a
        group may be a thousand extents behind."""
        found: list[Peeked] = []
        asked: dict[str, list[Peeked]] = {}  # by node
        for extent in self._extents.known():
            if page_full(found, count):
                break
            if after is not None and extent.name < after.extent:
                continue
            if not await self._readers.has_finished(extent, group):
                found += await self._peek_in(extent, group, count - len(found), after, asked)
        return _page(found, count)

    async def _peek_in(
        self, extent: Extent, group: Group, count: int, after: Place | None, asked: dict[str, list[Peeked]]
    ) -> list[Peeked]:
        owner = self._readers.owners.get((extent.name, group.reader))
        if owner is not None and owner.acts():
            return await self._shown(group, owner.reading, owner.desk.pages, owner.desk, count, after)
        node = (await self._readers.rows.owner(extent.name, group.reader)).node
        if node and node != self._place.node:
            if node not in asked:  # with all that it reads, the oldest first
                asked[node] = await self._peek_at(node, group, count, after)
            if found := [one for one in asked[node] if place_of(one.id).extent == extent.name]:
                return found
        _, pages, reading = await self._stored(extent, group)
        return await self._shown(group, reading, pages, None, count, after)

    async def peek_all(self, count: int, after: Place | None) -> list[Peeked]:
        """All that is kept, for nobody: by extent and number, the oldest extents first."""
        found: list[Peeked] = []
        for extent in self._extents.known():
            if after is not None and extent.name < after.extent:
                continue
            reading = self._readers.reading(extent.name)
            at = 0 if after is None or extent.name != after.extent else after.number + 1
            await reading.look(at)
            found += await self._shown(NOBODY, reading, Pages(at), None, count - len(found), None)
            if page_full(found, count):
                break
        return _page(found, count)

    async def _peek_at(self, node: str, group: Group, count: int, after: Place | None) -> list[Peeked]:
        try:
            data = await self._call(node, "peek", [group.name, count, "" if after is None else str(after)])
            return msgspec.msgpack.decode(data, type=list[Peeked])
        except StoreError:
            return []  # the store says what there is, if not who has it

    async def peek_here(self, group: Group, count: int, after: Place | None) -> list[Peeked]:
        found: list[Peeked] = []
        for owner in sorted(self._readers.here(group), key=lambda one: one.extent):
            if len(found) < count:
                desk = owner.desk
                found += await self._shown(group, owner.reading, desk.pages, desk, count - len(found), after)
        return _page(found, count)

    async def _shown(
        self, group: Group, reading: Reading, pages: Pages, desk: Desk | None, count: int, after: Place | None
    ) -> list[Peeked]:
        at, top = pages.next, reading.top()
        if after is not None:
            if reading.extent < after.extent:
                return []
            if reading.extent == after.extent:
                at = max(at, after.number + 1)
        wanted, cutter, found = wants(self._place, group.options), Cutter(), list[Peeked]()
        end = min(top, at + PEEK_AHEAD)
        told, now_ms = _told(desk, pages, at, end), self._place.now_ms()
        while at < end and not page_full(found, count):
            blocks = await reading.read(at, PEEK_BYTES)
            if not blocks:
                break
            for block in blocks:
                first, stop = max(at, block.first), min(end, block.end)
                for piece in cutter.pieces(block, first, stop, group.name, wanted.filter, PEEK_BYTES, False):
                    if piece.data is None or block.put_ms < group.start_ms:
                        continue
                    for number, body, attributes in _messages(piece.first, piece.data):
                        if number not in pages and not page_full(found, count):
                            fresh = (number, number + 1, 0, block.put_ms + wanted.delay_ms, False)
                            place, put_ms = Place(reading.extent, number), block.put_ms
                            of = _of(told, number) or fresh
                            found.append(_peeked(place, body, attributes or {}, put_ms, of, now_ms))
                at = max(at, stop)
        return found


def _reader(extent: Extent, owned: Owned | None, view: View | None) -> dict[str, Any]:
    """What is told of one group's reading of an extent."""
    said: dict[str, Any] = {"owner": owned.node if owned is not None else "", "epoch": owned.epoch if owned else 0}
    if view is None:
        return {**said, "next": extent.end, "ready": 0, "in_flight": 0, "waiting": 0, "finished": True}
    return {
        **said,
        "next": view.next,
        "ready": view.ready,
        "in_flight": view.in_flight,
        "waiting": view.waiting,
        "finished": False,
    }


def _unsaid(extent: Extent) -> str:
    """Why it is not known how far an extent is."""
    return "" if extent.sealed else f"node {extent.node} does not say how far it is: it is away, or just sealing it"


def _says(extent: Extent, wanted: str) -> str:
    if not extent.sealed and wanted == "all" and extent.level != wanted:
        return "confirmed by a quorum: not all replicas were up when it was opened"
    return ""


def _messages(first: int, data: bytes) -> Iterable[tuple[int, bytes, dict[str, str] | None]]:
    number = first
    for head in chunks.heads_of(data):
        for body, attributes in zip(chunks.bodies_of(data, head), chunks.attributes_of(data, head), strict=True):
            yield number, body, attributes
            number += 1


Told = tuple[int, int, int, int, bool]  # first, end, deliveries, at_ms, in flight


def _told(desk: Desk | None, pages: Pages, low: int, high: int) -> list[Told]:
    """What is known of the numbers low .. high-1 that were delivered, by number. Without a desk: what is durable."""
    if desk is None:
        found = [(one.first, one.end, one.deliveries, one.at_ms, False) for one in pages.open(low, high)]
    else:
        found = [(*one, False) for one in desk.standing.stands()]
        for flight in desk.flights.values():
            found += [(first, end, flight.deliveries, until_ms, True) for first, end, until_ms in flight.left]
    return sorted(one for one in found if one[0] < high and one[1] > low and (one[2] or one[3]))


def _of(told: list[Told], number: int) -> Told | None:
    at = bisect_right(told, number, key=lambda one: one[0]) - 1
    return told[at] if at >= 0 and number < told[at][1] else None


def _peeked(place: Place, body: bytes, attributes: dict[str, str], put_ms: int, told: Told, now_ms: int) -> Peeked:
    _, _, deliveries, at_ms, flies = told
    state = "in_flight" if flies else "delayed" if at_ms > now_ms else "ready"
    return Peeked(str(place), state, body, attributes, put_ms / 1000, deliveries, (at_ms or put_ms) / 1000)


def _page(found: list[Peeked], count: int) -> list[Peeked]:
    shown: list[Peeked] = []
    for one in found:
        if page_full(shown, count):
            break
        shown.append(one)
    return shown
