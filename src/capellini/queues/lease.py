"""The lease: a node's right to act, and how others end it.

One row per node: (node) ▸ incarnation, beat, state, address, token. While it is live it never expires. The holder
raises the beat by compare-and-set on time. Nobody compares wall clocks: each side measures durations, on its own clock.

    holder    beat n sent ────────────── lease_s ──────────────▶ invalid by its own clock (stops at once)
                 └▶ applied somewhere in between
    watcher          └▶ seen at last here ───────── lease_s + margin_s ─────────▶ may end that incarnation
                        (counted from the ANSWER that first showed beat n; the holder counts from the SENDING of its
                        first attempt: so the watcher's time always ends later, if clock rates differ by less than the
                        margin)

Ending is a compare-and-set on the very row that was seen unchanged: had the holder beaten meanwhile, it is refused.
An ended incarnation can never beat again (fenced), so "over" is for good, and what it owned may be taken
(`assignments`).

Life of a row (`ROW_LIFE`)                        Life of a holder (`HOLDER_LIFE`)

    (none) ─begin─▶ live ─beat─▶ live                idle ─claimed─▶ holding ─beaten─▶ holding
    live ─leave─▶ left       its node stopped        holding ─late─▶ lost     no beat confirmed in time
    live ─end─▶ ended        another node said so    holding ─fenced─▶ lost   another node ended it
    left, ended ─begin─▶ live, a new incarnation     holding ─stop─▶ stopped
    live ─begin─▶ live, a new incarnation of a       lost, stopped ─claimed─▶ holding, a new incarnation
                  name whose old one was waited out
    left, ended ─OVER_TTL_S─▶ (none)

So names that are used once (one per container, say) do not pile up. Who is named somewhere and has no row is over: an
incarnation has its row before it owns anything, and the row goes only when it is over. In `home_leases` rows stay,
since one that is not there may only not have arrived yet from its data centre.

What fails, and what then happens
- The process is paused beyond its lease: `valid()` is false the moment it goes on, before any task has run. It never
  becomes true again for that incarnation, even if nobody ended it.
- A beat's answer is lost: the beat is repeated with its token until it is known; the time counts from the first
  sending.
- A node starts while an earlier incarnation of its name is live: it waits that one out like any other watcher, unless
  it is told that nobody else can have the store open. If the other one beats, the start is refused.
- Where nobody else can have the store open there is nobody to end a lease either: it does not run out. A process that
  was paused, or a machine that slept, goes on with what it holds.
"""

from __future__ import annotations

import asyncio
import enum
import math
import random
from collections.abc import Callable
from typing import Final

import msgspec

from capellini.model.clock import Clock
from capellini.model.errors import Conflict, Overloaded, StoreError, Unavailable
from capellini.queues.trail import TOKEN, backoff_s, follow, new_name, settle_named, text_of
from capellini.store.interface import Cas, Change, Key, Slice, Store, Table, Value
from capellini.store.schema import HOME_LEASES, LEASES

LEASE_S: Final = 10.0  # how long a node may act after sending a beat; a dead one is noticed soon after
BEAT_S: Final = 3.0  # three chances within a lease
MARGIN: Final = 0.1  # of the lease: clock rates may differ by so much, far more than honest clocks do
LATE_ROUNDS: Final = 6  # rows of nodes that are over are read at every sixth look only: they seldom come back
OVER_TTL_S: Final = 8 * 86_400  # as long as any process may be paused and then go on
CLAIM_ATTEMPTS: Final = 5  # at starting; each is lost only to somebody who changed the row
KEY: Final = ()  # the table has one row per partition


class Row(enum.StrEnum):
    LIVE = "live"
    LEFT = "left"
    ENDED = "ended"


class Holder(enum.StrEnum):
    IDLE = "idle"
    HOLDING = "holding"
    LOST = "lost"
    STOPPED = "stopped"


ROW_LIFE: Final[dict[tuple[Row | None, str], Row]] = {
    (None, "begin"): Row.LIVE,
    (Row.LEFT, "begin"): Row.LIVE,
    (Row.ENDED, "begin"): Row.LIVE,
    (Row.LIVE, "begin"): Row.LIVE,
    (Row.LIVE, "beat"): Row.LIVE,
    (Row.LIVE, "leave"): Row.LEFT,
    (Row.LIVE, "end"): Row.ENDED,
}
HOLDER_LIFE: Final[dict[tuple[Holder, str], Holder]] = {
    (Holder.IDLE, "claimed"): Holder.HOLDING,
    (Holder.LOST, "claimed"): Holder.HOLDING,
    (Holder.STOPPED, "claimed"): Holder.HOLDING,
    (Holder.HOLDING, "beaten"): Holder.HOLDING,
    (Holder.HOLDING, "late"): Holder.LOST,
    (Holder.HOLDING, "fenced"): Holder.LOST,
    (Holder.HOLDING, "stop"): Holder.STOPPED,
}


class LeaseRow(msgspec.Struct, frozen=True):
    node: str
    incarnation: str
    beat: int
    state: Row
    address: str
    token: str | None


def lease_row(node: str, values: dict[str, Value]) -> LeaseRow | None:
    """The row as it was read; None: there is none."""
    incarnation, beat, state = text_of(values, "incarnation"), values.get("beat"), text_of(values, "state")
    if incarnation is None or state is None or not isinstance(beat, int):
        return None
    return LeaseRow(node, incarnation, beat, Row(state), text_of(values, "address") or "", text_of(values, TOKEN))


def heard(applied: bool, answered_s: float, valid_until_s: float) -> str:
    """What a beat's answer means to the holder. An answer after the lease's end comes too late, whatever it says."""
    if not applied:
        return "fenced"
    return "beaten" if answered_s < valid_until_s else "late"


def patience_s(lease_s: float) -> float:
    """How long a beat must stand still, on a watcher's clock, before its incarnation may be ended."""
    return lease_s * (1 + MARGIN)


def _place(node: str, home: str) -> tuple[Table, Key]:
    """Where the row of a node lies. `home`: its lease in that data centre; empty: the one for all."""
    return (HOME_LEASES, (home, node)) if home else (LEASES, (node,))


async def read_lease(store: Store, node: str, home: str = "") -> LeaseRow | None:
    page = await store.read(Slice(*_place(node, home), limit=1))
    return lease_row(node, page.rows[0].values) if page.rows else None


async def change_lease(
    store: Store,
    clock: Clock,
    name: str,
    before: LeaseRow | None,
    after: LeaseRow,
    home: str = "",
) -> bool:
    """Compare-and-set on the row as it was seen. False: it has changed since."""
    trail = before.token if before else None
    values: dict[str, Value] = {
        "incarnation": after.incarnation,
        "beat": after.beat,
        "state": after.state.value,
        "address": after.address,
        TOKEN: follow(trail, name),
    }
    over = after.state is not Row.LIVE and not home
    beat = before is not None and (before.incarnation, before.state) == (after.incarnation, after.state)
    cas = Cas(
        *_place(after.node, home),
        (Change(KEY, {TOKEN: trail}, values),),
        ttl_s=OVER_TTL_S if over else None,
        sync=not (beat and store.alone),  # nobody waits for it there, and an idle node leaves the disk alone
    )
    return (await settle_named(store, clock, cas, KEY, trail, name)).applied


class Lease:
    """This node's lease. `on_lost(why)` is called once per incarnation that was lost: stop owning at once.
    `home`: the data centre that it holds in, whose view `store` is; empty: everywhere.

    What a holder confirms must have become durable while `valid()`: ask after the write, before the confirmation."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: random.Random,
        node: str,
        address: str = "",
        *,
        lease_s: float = LEASE_S,
        beat_s: float = BEAT_S,
        on_lost: Callable[[str], None] | None = None,
        home: str = "",
    ) -> None:
        self._store, self._clock, self._random = store, clock, random
        self.home = home
        self.node, self.address = node, address
        self.lease_s, self._beat_s = lease_s, beat_s
        self.on_lost = on_lost
        self.phase = Holder.IDLE
        self.why_lost = ""
        self._row: LeaseRow | None = None
        self._valid_until_s = 0.0
        self._alone = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def incarnation(self) -> str:
        """Empty before the first start."""
        return self._row.incarnation if self._row else ""

    @property
    def valid_until_s(self) -> float:
        """On this node's elapsed clock."""
        return self._valid_until_s

    def valid(self) -> bool:
        return self.phase is Holder.HOLDING and (self._alone or self._clock.elapsed_s() < self._valid_until_s)

    def require(self) -> None:
        """Raises Unavailable when this node must not act."""
        if not self.valid():
            raise Unavailable(f"node {self.node} has no valid lease: try another node, or again soon")

    async def start(self, alone: bool = False) -> None:
        """Begin a new incarnation. `alone`: no other process can have this store open, so that an earlier incarnation
        of this name is surely gone, and nobody can end this one. Raises Conflict when another process runs under this
        name."""
        self._alone = alone
        incarnation = new_name(self._random)
        gone = {incarnation}  # what this process began and has stopped for good
        if self.phase in (Holder.LOST, Holder.STOPPED):
            gone.add(self.incarnation)
        for attempt in range(CLAIM_ATTEMPTS):
            if attempt:  # the one before may have begun without our knowing, and may have been ended since
                incarnation = new_name(self._random)
                gone.add(incarnation)
            await self._clock.sleep(backoff_s(attempt, self._random))
            before = await read_lease(self._store, self.node, self.home)
            if before and before.state is Row.LIVE and not alone and before.incarnation not in gone:
                await self._wait_out(before)
            sent_s = self._clock.elapsed_s()
            after = LeaseRow(self.node, incarnation, 1, Row.LIVE, self.address, None)
            if await self._write(before, after) and (alone or self._clock.elapsed_s() < sent_s + self.lease_s):
                self._valid_until_s = sent_s + self.lease_s
                self._move("claimed")
                loop = asyncio.get_running_loop()
                self._tasks = [loop.create_task(self._beats())]
                if not alone:
                    self._tasks.append(loop.create_task(self._stop_in_time()))
                return
        raise Overloaded(f"the lease of node {self.node} could not be had: does another process use this name?")

    async def stop(self) -> None:
        """Leave: others may take over at once. What was not beaten in time is left to the watchers."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.phase is not Holder.HOLDING:
            return
        self._move("stop")
        if self._row is not None:
            await self._write(self._row, msgspec.structs.replace(self._row, state=Row.LEFT))

    async def _wait_out(self, before: LeaseRow) -> None:
        await self._clock.sleep(patience_s(self.lease_s))
        now = await read_lease(self._store, self.node, self.home)
        if now is not None and now.state is Row.LIVE and now.token != before.token:
            raise Conflict(f"another process runs as node {self.node}: give each node a name of its own")

    async def _write(self, before: LeaseRow | None, after: LeaseRow) -> bool:
        name = new_name(self._random)
        if not await change_lease(self._store, self._clock, name, before, after, self.home):
            return False
        self._row = msgspec.structs.replace(after, token=follow(before.token if before else None, name))
        return True

    async def _beats(self) -> None:
        failed = False
        sent_s = self._clock.elapsed_s()
        while self._row is not None and self._holding():
            pause_s = self._beat_s * self._random.uniform(0.8, 1.0)  # nodes do not beat in step
            next_s = sent_s + (pause_s / 4 if failed else pause_s)  # a slow answer does not delay the next beat
            await self._clock.sleep(max(0.0, next_s - self._clock.elapsed_s()))
            sent_s = self._clock.elapsed_s()
            after = msgspec.structs.replace(self._row, beat=self._row.beat + 1)
            try:
                applied = await self._write(self._row, after) or not await self._fenced()
            except StoreError:
                failed = True  # not done, or not known: as long as the lease lasts there is another beat
                continue
            news = heard(applied, self._clock.elapsed_s(), math.inf if self._alone else self._valid_until_s)
            failed = applied and self._row.beat != after.beat  # an earlier beat was there: this one is still to come
            if failed or not self._holding():
                continue
            self._move(news)
            if news == "beaten":
                self._valid_until_s = sent_s + self.lease_s
            else:
                self._lose("another node ended it" if news == "fenced" else "its beat was confirmed too late")

    async def _fenced(self) -> bool:
        """A beat was refused: because this incarnation is over, or because a beat whose answer was lost is there?"""
        row = await read_lease(self._store, self.node, self.home)
        if row is None or row.incarnation != self.incarnation or row.state is not Row.LIVE:
            return True
        self._row = row
        return False

    def _holding(self) -> bool:
        return self.phase is Holder.HOLDING

    async def _stop_in_time(self) -> None:
        """A beat may hang for longer than the lease: this does not wait for it."""
        while (left_s := self._valid_until_s - self._clock.elapsed_s()) > 0:
            await self._clock.sleep(left_s)
        if self._holding():
            self._move("late")
            self._lose("no beat was confirmed in time")

    def _move(self, event: str) -> None:
        self.phase = HOLDER_LIFE[self.phase, event]

    def _lose(self, why: str) -> None:
        self.why_lost = why
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        if self.on_lost is not None:
            self.on_lost(why)


class Sighting(msgspec.Struct, frozen=True):
    row: LeaseRow
    since_s: float  # on the watcher's clock: when the answer came that first showed this row as it is


def sighted(before: Sighting | None, row: LeaseRow, answered_s: float) -> Sighting:
    """An unchanged row keeps the time it was first seen at."""
    return before if before is not None and before.row == row else Sighting(row, answered_s)


class Watcher:
    """What this node knows of all leases (of one data centre, if `home` names it). `look()` every few seconds, then
    `end()` who has been silent for too long."""

    def __init__(
        self, store: Store, clock: Clock, random: random.Random, *, lease_s: float = LEASE_S, home: str = ""
    ) -> None:
        self._store, self._clock, self._random = store, clock, random
        self._lease_s, self._home = lease_s, home
        self._sightings: dict[str, Sighting] = {}
        self._over: set[tuple[str, str]] = set()  # for good: incarnations never come back
        self._looks = 0
        self.ended = 0  # incarnations that this watcher ended

    async def look(self) -> None:
        """Read the leases of all nodes."""
        after = None
        while True:
            page = await self._store.partitions(HOME_LEASES if self._home else LEASES, after=after)
            for *home, name in page:
                node = str(name)
                seen = self._sightings.get(node)
                if home != ([self._home] if self._home else []):
                    continue
                if seen is None or seen.row.state is Row.LIVE or self._looks % LATE_ROUNDS == 0:
                    await self.look_at(node)
            if not page:
                break
            after = page[-1]
        self._looks += 1

    async def look_at(self, node: str) -> LeaseRow | None:
        row = await read_lease(self._store, node, self._home)
        if row is None:
            self._sightings.pop(node, None)
        else:
            self._sightings[node] = sighted(self._sightings.get(node), row, self._clock.elapsed_s())
            if row.state is not Row.LIVE:
                self._over.add((node, row.incarnation))
        return row

    def live(self) -> list[str]:
        """Nodes whose last known row is live and not silent for too long, by name."""
        silent = set(self.silent())
        return sorted(n for n, s in self._sightings.items() if s.row.state is Row.LIVE and n not in silent)

    def incarnation(self, node: str) -> str:
        """The one that lives; empty: none, or not known."""
        seen = self._sightings.get(node)
        return seen.row.incarnation if seen and seen.row.state is Row.LIVE else ""

    def address(self, node: str) -> str:
        """Where its requests go; empty: not known."""
        seen = self._sightings.get(node)
        return seen.row.address if seen and seen.row.state is Row.LIVE else ""

    def silent(self) -> list[str]:
        """Nodes whose incarnation may be ended."""
        due_s = self._clock.elapsed_s() - patience_s(self._lease_s)
        return sorted(n for n, s in self._sightings.items() if s.row.state is Row.LIVE and s.since_s < due_s)

    async def end(self, node: str) -> bool:
        """End the silent incarnation of `node`: it never beats again. False: it is not silent, or has beaten
        meanwhile."""
        seen = self._sightings.get(node)
        if seen is None or node not in self.silent():
            return False
        name = new_name(self._random)
        row = msgspec.structs.replace(seen.row, state=Row.ENDED, token=follow(seen.row.token, name))
        if not await change_lease(self._store, self._clock, name, seen.row, row, self._home):
            await self.look_at(node)
            return False
        self._sightings[node] = Sighting(row, self._clock.elapsed_s())
        self._over.add((node, row.incarnation))
        self.ended += 1
        return True

    async def is_over(self, node: str, incarnation: str) -> bool:
        """Can that incarnation never act again? Asked after its name was read: a lease row with another incarnation
        is then a later one, since an incarnation has its row before it owns anything."""
        if (node, incarnation) in self._over:
            return True
        row = await self.look_at(node)
        over = not self._home if row is None else row.incarnation != incarnation or row.state is not Row.LIVE
        if over:
            self._over.add((node, incarnation))
        return over
