"""The extents of a queue: the list of them, and the changes of it.

    log_extents (queue, generation, home) ▸ extent     state open|sealed, end (of a sealed one), record (JSON), token
                                          static       first: names below are dropped;  last: opened last;  chain: plan

                 open (listed before anything is confirmed in it)
    (none) ─────▶ open ──seal(end)──▶ sealed ──drop──▶ dropped, expires
                    └── cp: seal(end) and the opening of its successor are one compare-and-set: a chain

All of it changes by compare-and-set: of two who seal, one is first, and its end is the end for all. Who opens expects
`first` as it knows it and writes `last`; who raises `first` expects `last` as it saw it. So no extent is ever opened
below `first`, where nobody would see it, whatever the clocks say. Who clears an ended generation first writes ENDED
there: a node that has not heard of the end opens nothing any more that nobody would clear.

What fails, and what then happens
- The answer to an opening is lost for good: the name is not used. If it is on the list later it is sealed as empty, by
  its node while that lives, by any after.
- The answer to a sealing is lost for good: nobody knows the end yet. Whoever seals next finds it sealed, or seals it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from capellini.model.errors import Overloaded, Unavailable
from capellini.queues.log import names
from capellini.queues.log.place import LogPlace
from capellini.queues.trail import TOKEN, backoff_s, follow, names_of, new_name, settle_named, text_of
from capellini.store.interface import ABSENT, Cas, Change, Key, Level, Outcome, Slice, Value, settle
from capellini.store.schema import LOG_EXTENTS

ALL_HOMES: Final = "-"  # the key of the one list where there is one home for all
OPEN: Final = "open"
SEALED: Final = "sealed"
DROPPED: Final = "dropped"
PAGE: Final = 1_000
ATTEMPTS: Final = 10  # of a change; each is lost only to somebody whose change was made
ENDED: Final = "~"  # as `first`: above every name
ENDED_TTL_S: Final = 8 * 86_400  # longer than any node takes the generation for a living one
DROPPED_TTL_S: Final = 86_400  # a dropped extent stays on the list for a day, for whoever wonders

Make = Callable[[], "Awaitable[Extent]"]  # names an extent that is to be opened


class Extent(msgspec.Struct, frozen=True):
    name: str
    home: str
    node: str  # its one writer
    incarnation: str
    state: str
    end: int | None  # how many messages it has, once sealed
    level: str  # quorum, all: of its blocks
    opened_ms: int
    sealed_ms: int | None
    bytes: int | None  # once sealed; None: not known
    after: str  # of a chain: the one before
    token: str | None

    @property
    def sealed(self) -> bool:
        return self.state == SEALED


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    level: str = "quorum"
    opened_ms: int = 0
    sealed_ms: int | None = None
    bytes: int | None = None
    after: str = ""


def extent_of(home: str, name: str, values: dict[str, Value]) -> Extent | None:
    """The row as it was read; None: there is none (any more)."""
    state, record, end = text_of(values, "state"), text_of(values, "record"), values.get("end")
    if state not in (OPEN, SEALED) or record is None:
        return None
    node, incarnation = names.writer_of(name)
    said = msgspec.json.decode(record, type=_Record)
    return Extent(
        name,
        home,
        node,
        incarnation,
        state,
        end if isinstance(end, int) else None,
        said.level,
        said.opened_ms,
        said.sealed_ms,
        said.bytes,
        said.after,
        text_of(values, TOKEN),
    )


def row_of(extent: Extent) -> dict[str, Value]:
    record = _Record(extent.level, extent.opened_ms, extent.sealed_ms, extent.bytes, extent.after)
    values: dict[str, Value] = {"state": extent.state, "record": msgspec.json.encode(record).decode()}
    if extent.end is not None:
        values["end"] = extent.end
    return {**values, TOKEN: extent.token}


class Extents:
    """The list as this node knows it: all homes, changed in its own only."""

    def __init__(self, place: LogPlace) -> None:
        self._place = place
        self._known: dict[str, Extent] = {}
        self._first: dict[str, str | None] = {}  # by home
        self._last: str | None = None  # of this node's home
        self._number = 0
        self.plan: str | None = None  # what the manager wants, as it was read
        self.looked = False
        self.seals = 0  # by this node
        self.on_change: list[Callable[[], None]] = []

    # -- asking -------------------------------------------------------------------------------------------------------

    def known(self) -> list[Extent]:
        """By name, as of the last look; this node's own changes are in it at once."""
        return [self._known[name] for name in sorted(self._known)]

    def get(self, name: str) -> Extent | None:
        return self._known.get(name)

    def passed(self, name: str) -> bool:
        """Is it below where all lists begin? Then it is dropped, whichever home it was of."""
        return all(name < (self._first.get(home) or "") for home in self._place.homes)

    @property
    def last(self) -> Extent | None:
        """Of a chain: its end, as far as this node knows."""
        return self._known.get(self._last) if self._last else None

    async def look(self) -> list[Extent]:
        """Read the list."""
        changed = False
        for home in self._place.homes:
            changed |= await self._look_at(home)
        self.looked = True
        if changed:
            self._tell()
        return self.known()

    async def _look_at(self, home: str) -> bool:
        before = {name: extent for name, extent in self._known.items() if extent.home == home}
        found, static = await self._read(home)
        first = self._first[home] = max(_kept(static), self._first.get(home) or "") or None
        if home == self._place.home:
            self.plan = text_of(static, "chain")
            self._saw_last(text_of(static, "last"))
        changed = False
        for name in sorted({*before, *found}):
            changed |= self._learn(name, found.get(name), before.get(name), first)
        return changed

    async def nothing_abroad(self) -> bool:
        """Do all replicas agree that no other home has an extent? Raises Unavailable when one does not answer."""
        for home in self._place.homes:
            if home != self._place.home and (await self._read(home, Level.ALL))[0]:
                return False
        return True

    async def _read(self, home: str, level: Level = Level.QUORUM) -> tuple[dict[str, Extent], dict[str, Value]]:
        """The static values are those of the first page: older than all rows, or of the same time."""
        found: dict[str, Extent] = {}
        first, after = self._first.get(home), None
        static: dict[str, Value] | None = None
        while True:
            start: Key | None = (first,) if first and after is None else None
            page = await self._place.store.read(
                Slice(LOG_EXTENTS, self._partition(home), start=start, after=after, limit=PAGE, level=level)
            )
            static = page.static if static is None else static
            for row in page.rows:
                extent = extent_of(home, str(row.key[0]), row.values)
                if extent is not None:
                    found[extent.name] = extent
            if not page.more:
                return found, static
            after = page.rows[-1].key

    def _learn(self, name: str, read: Extent | None, before: Extent | None, first: str | None) -> bool:
        """What a look showed of one extent. What this node did meanwhile is newer than what was read."""
        now = self._known.get(name)
        if now != before:
            return False
        if read is not None and first is not None and name < first:
            read = None
        if read is None:
            return self._known.pop(name, None) is not None
        if now == read or (now is not None and now.sealed and not read.sealed):
            return False
        self._known[name] = read
        return True

    def _saw_last(self, last: str | None) -> None:
        """A chain only grows; of extents side by side the last says nothing but that one was opened."""
        if last and (self._last is None or not self._place.chained or last > self._last):
            self._last = last

    def _partition(self, home: str) -> Key:
        return (*self._place.partition, home or ALL_HOMES)

    def _keep(self, *extents: Extent) -> None:
        for extent in extents:
            self._known[extent.name] = extent
        self._tell()

    def _tell(self) -> None:
        for call in self.on_change:
            call()

    # -- opening ------------------------------------------------------------------------------------------------------

    def fresh(self) -> Extent:
        """An extent that this node could open now: above all it has ever seen, so that names sort by opening. Where it
        lies, and at which level, is for `placing` to say."""
        place = self._place
        self._number += 1
        newest = max([names.opened_of(name) for name in self._known], default=0)
        first = self._first.get(place.home)
        floor = max(newest, names.opened_of(first) if first else 0)
        opened = floor + 1 if place.chained else max(place.now_ms(), floor)
        if first and not place.chained:
            opened = max(opened, names.opened_of(first) + 1)
        lease = place.lease
        name = names.make(opened, 0, self._number, lease.node, lease.incarnation)
        return Extent(
            name, place.home, lease.node, lease.incarnation, OPEN, None, place.options.level, place.now_ms(), None,
            None, "", None,
        )  # fmt: skip

    async def open(self, make: Make) -> Extent:
        """List a new one: `make` names it, again if `first` rose meanwhile. Of a chain only its very first. Raises
        Unavailable, or Unknown: then it may be on the list some time."""
        if not self.looked:
            await self.look()
        for attempt in range(ATTEMPTS):
            await self._place.clock.sleep(backoff_s(attempt, self._place.random))
            wanted = await make()
            expect: dict[str, Value] = {"first": self._first.get(wanted.home)}
            if self._place.chained:
                expect["last"] = None
            opened = await self._list(wanted, expect, ())
            if opened is not None:
                return opened
            if self._place.chained and self._last is not None:
                raise Unavailable("another node has begun the chain: try again", retry_after_s=0.05)
        raise Overloaded("the list of extents changes too often: nothing was changed, try again")

    async def open_next(self, before: Extent, end: int, size: int | None, make: Make) -> Extent | None:
        """Of a chain: seal its last extent and open the next, in one round. None: it is not the last any more, or not
        open; look again. Raises Unavailable, or Unknown."""
        wanted = msgspec.structs.replace(await make(), after=before.name)
        sealed = self._sealed(before, end, size)
        expect: dict[str, Value] = {"first": self._first.get(wanted.home), "last": before.name}
        change = Change((before.name,), {TOKEN: before.token, "state": OPEN}, row_of(sealed))
        opened = await self._list(wanted, expect, (change,))
        if opened is not None:
            self.seals += 1
            self._keep(sealed)
        return opened

    async def _list(self, wanted: Extent, expect: dict[str, Value], more: tuple[Change, ...]) -> Extent | None:
        """None: refused. That the row of this very name is there says that it was not."""
        place = self._place
        name = new_name(place.random)
        extent = msgspec.structs.replace(wanted, token=follow(None, name))
        row, static = (extent.name,), Change(None, expect, {"last": extent.name})
        cas = Cas(LOG_EXTENTS, self._partition(extent.home), (Change(row, ABSENT, row_of(extent)), static, *more))

        def mine(outcome: Outcome) -> bool:
            return name in names_of(text_of(outcome.rows.get(row, {}), TOKEN))

        outcome = await settle(place.store, cas, mine, place.clock.sleep)
        if not outcome.applied:
            place.guards["opening refused"] += 1
            static_now = outcome.rows.get(None, {})
            if text_of(static_now, "first") == ENDED:
                raise Unavailable("this queue was deleted or purged: nothing was changed, try again")
            self._first[extent.home] = text_of(static_now, "first") or self._first.get(extent.home)
            self._saw_last(text_of(static_now, "last"))
            return None
        self._saw_last(extent.name)
        if extent.name not in self._known:  # else others of this node have seen it, and perhaps what became of it
            self._keep(extent)
        return extent

    # -- sealing ------------------------------------------------------------------------------------------------------

    def _sealed(self, extent: Extent, end: int, size: int | None) -> Extent:
        name = new_name(self._place.random)
        return msgspec.structs.replace(
            extent,
            state=SEALED,
            end=end,
            bytes=size,
            sealed_ms=self._place.now_ms(),
            token=follow(extent.token, name),
        )

    async def seal(self, extent: Extent, end: int, size: int | None = None) -> Extent:
        """As it is sealed now: with this end, or with that of whoever was first. `end`: no message from there on was
        or will be confirmed. Raises Unavailable, or Unknown."""
        for attempt in range(ATTEMPTS):
            await self._place.clock.sleep(backoff_s(attempt, self._place.random))
            sealed = self._sealed(extent, end, size)
            assert sealed.token is not None
            change = Change((extent.name,), {TOKEN: extent.token, "state": OPEN}, row_of(sealed))
            now = await self._change(extent, change, names_of(sealed.token)[0])
            if now is None:
                self.seals += 1
                self._keep(sealed)
                return sealed
            if now.sealed:
                self._place.guards["sealed by another first"] += 1
                self._keep(now)
                return now
            extent = now
        raise Overloaded(f"extent {extent.name} changes too often: it was not sealed, try again")

    async def measured(self, extent: Extent, size: int) -> None:
        """The size of a sealed extent, found later. Refused: somebody else has said something; fine."""
        name = new_name(self._place.random)
        after = msgspec.structs.replace(extent, bytes=size, token=follow(extent.token, name))
        change = Change((extent.name,), {TOKEN: extent.token, "state": SEALED}, row_of(after))
        if await self._change(extent, change, name) is None:
            self._keep(after)

    async def _change(self, extent: Extent, change: Change, name: str, ttl_s: int | None = None) -> Extent | None:
        """None: done. Else the extent as it is. Raises Unavailable when it is on the list no more."""
        place = self._place
        cas = Cas(LOG_EXTENTS, self._partition(extent.home), (change,), ttl_s=ttl_s)
        outcome = await settle_named(place.store, place.clock, cas, change.key, extent.token, name)
        if outcome.applied:
            return None
        now = extent_of(extent.home, extent.name, outcome.rows.get(change.key, {}))
        if now is None:
            self._known.pop(extent.name, None)
            raise Unavailable(f"extent {extent.name} was dropped")
        return now

    # -- dropping -----------------------------------------------------------------------------------------------------

    async def drop(self, extent: Extent) -> None:
        """Off the list: after everything else of a sealed extent was dropped. Its row expires; nobody sees it."""
        name = new_name(self._place.random)
        values = {**row_of(extent), "state": DROPPED, TOKEN: follow(extent.token, name)}
        change = Change((extent.name,), {TOKEN: extent.token, "state": SEALED}, values)
        now = await self._change(extent, change, name, DROPPED_TTL_S) if extent.name in self._known else None
        if now is not None:
            self._keep(now)
            raise Overloaded(f"extent {extent.name} has changed: try again")
        self._known.pop(extent.name, None)
        self._tell()

    async def raise_first(self) -> None:
        """Lists begin at the oldest extent that is kept: expired rows before it are never read."""
        place = self._place
        found, static = await self._read(place.home)
        seen, last = text_of(static, "first"), text_of(static, "last")
        if not found or last is None or (seen or "") >= min(found):
            return
        first = min(found)
        change = Change(None, {"first": seen, "last": last}, {"first": first})
        cas = Cas(LOG_EXTENTS, self._partition(place.home), (change,))
        outcome = await settle(
            place.store, cas, lambda now: (text_of(now.rows.get(None, {}), "first") or "") >= first, place.clock.sleep
        )
        if outcome.applied:
            self._first[place.home] = first
        else:
            place.guards["first not raised"] += 1

    async def end(self) -> None:
        """Of an ended generation: nothing is opened any more, by whomever. Raises StoreError."""
        place = self._place
        for attempt in range(ATTEMPTS):
            await place.clock.sleep(backoff_s(attempt, place.random))
            _, static = await self._read(place.home)
            if text_of(static, "first") == ENDED:
                return
            expect: dict[str, Value] = {"first": text_of(static, "first"), "last": text_of(static, "last")}
            change = Change(None, expect, {"first": ENDED})
            cas = Cas(LOG_EXTENTS, self._partition(place.home), (change,), ttl_s=ENDED_TTL_S)
            outcome = await settle(
                place.store, cas, lambda now: text_of(now.rows.get(None, {}), "first") == ENDED, place.clock.sleep
            )
            if outcome.applied:
                return
        raise Overloaded("the list of extents changes too often: it was not ended, try again")

    # -- the plan -----------------------------------------------------------------------------------------------------

    async def set_plan(self, plan: str) -> bool:
        """What the manager wants, for all nodes. False: another has said something since this one looked."""
        place = self._place
        cas = Cas(LOG_EXTENTS, self._partition(place.home), (Change(None, {"chain": self.plan}, {"chain": plan}),))
        outcome = await settle(
            place.store, cas, lambda now: text_of(now.rows.get(None, {}), "chain") == plan, place.clock.sleep
        )
        if outcome.applied:
            self.plan = plan
        return outcome.applied


def _kept(static: dict[str, Value]) -> str:
    """The oldest name that is kept. What is on the list of an ended generation is still to be cleared."""
    first = text_of(static, "first") or ""
    return "" if first == ENDED else first


def open_of(extents: Sequence[Extent], node: str, incarnation: str) -> list[Extent]:
    """Those that this incarnation writes."""
    return [e for e in extents if e.state == OPEN and (e.node, e.incarnation) == (node, incarnation)]
