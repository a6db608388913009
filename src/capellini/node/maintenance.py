"""What a node does beside serving: beats its lease, repairs the queues that are assigned to it, clears what deleted
queues left.

    every TURN_S: look at the leases ──▶ end those that are silent ──▶ take a fair share of the queues ──▶ repair each
    of them
                  what is left of deleted generations is cleared by whoever owns the item "leftovers"

A queue in which nothing is to be done is looked at less often. What nobody expected in one queue (a bug, a row that
nobody can read) is logged and tried again later; it holds back no other queue. Neither does a generation that the
store does not let be cleared. Nothing here is needed for correctness: a node that stalls in the middle does no harm
when it wakes, since every step is a compare-and-set on the bucket's own state.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, runtime_checkable

from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError, Conflict, StoreError
from capellini.model.log import AT
from capellini.node.background import Background
from capellini.node.broker import KIND, Broker
from capellini.queues.assignments import Assignments
from capellini.queues.catalog import QueueRecord
from capellini.queues.cell import Cell
from capellini.queues.lease import Lease, Watcher
from capellini.queues.work.place import Gone
from capellini.queues.work.pointers import Pointers
from capellini.store.interface import Store

TURN_S: Final = 1.0
LOOK_TURNS: Final = 3  # leases and shares are looked at every so many turns
IDLE_S: Final = 8.0  # between two looks at a queue in which nothing is to be done
FORGETS_PER_TURN: Final = 16  # assignments of queues that are deleted
GONE_MOST: Final = 200  # of them stay: a row that goes leaves tombstones for days, and all are read every few seconds
FAILED_S: Final = 60.0  # before what failed unexpectedly is tried again: an error that stays must not fill the log
CONFLICT_S: Final = 10.0  # before this name is tried again
SWEEP_S: Final = 20.0  # between two sweeps of expired rows, for stores that do not do it themselves
SWEEP_ROWS: Final = 2_000
LEFTOVERS: Final = "leftovers"  # an item beside the queues' names; a queue's item begins with "queue:"
log: Final = logging.getLogger("capellini.maintenance")


@runtime_checkable
class Sweeps(Protocol):
    """A store that removes expired rows when asked."""

    async def sweep(self, limit: int) -> object: ...


class Maintenance:
    """`alone`: no other process can have this store open."""

    def __init__(
        self, store: Store, clock: Clock, random: Chance, broker: Broker, *, address: str = "", alone: bool = False
    ) -> None:
        self._store = store
        self._sweeps = store if isinstance(store, Sweeps) else None
        self._clock = clock
        self._random = random
        self._broker = broker
        self._alone = alone
        self.lease = Lease(store, clock, random, broker.node_name, address)
        self.watcher = Watcher(store, clock, random)
        self.assignments = Assignments(store, clock, random, self.lease, self.watcher, "repair")
        self.owned: set[str] = set()
        self.doubled: str | None = None  # another process has this node's name: it says so
        self._records: dict[str, QueueRecord] = {}
        self._read_s = 0.0  # when they were asked for
        self._next_s: dict[str, float] = {}
        self._rested: dict[str, tuple[Cell[Pointers], Pointers | None]] = {}  # its list, and how that was then
        self._uncleared_s: dict[tuple[str, int], float] = {}  # generations that failed, until then
        self._swept_s = 0.0
        self._background = Background(self._turns)
        self.clear_others: list[Callable[[str, int], Awaitable[bool]]] = []  # kinds without buckets add theirs
        broker.views.repaired_by = self._repaired_by

    def start(self) -> None:
        self._background.start()

    async def rest(self) -> None:
        """No more turns; the lease is still held."""
        await self._background.stop()

    async def stop(self) -> None:
        """Give everything back: others may take over at once."""
        await self.rest()
        try:
            await self.lease.stop()
        except StoreError as error:
            log.info("the lease was not given back: %s", error)

    async def _repaired_by(self, name: str) -> str | None:
        return (await self.assignments.owner(f"queue:{name}")).node or None

    async def _turns(self) -> None:
        turn = 0
        while True:
            try:
                if not self.lease.valid():
                    self.owned.clear()
                    await self.lease.start(alone=self._alone)
                    self.doubled = None
                if turn % LOOK_TURNS == 0:
                    await self._share()
                await self._repair()
                if LEFTOVERS in self.owned and turn % LOOK_TURNS == 0:
                    await self._clear()
                await self._sweep()
            except Conflict as error:
                log.error("%s", error)
                self.doubled = error.says
                await self._clock.sleep(CONFLICT_S)
            except CapelliniError as error:
                log.debug("maintenance goes on later: %s", error)
            turn += 1
            await self._clock.sleep(self._random.uniform(TURN_S * 0.8, TURN_S * 1.2))

    async def _share(self) -> None:
        """Which queues are this node's to repair?"""
        await self.watcher.look()
        for node in self.watcher.silent():
            if node != self.lease.node and await self.watcher.end(node):
                log.warning("node %s did not renew its lease: it was ended, and others take over what it held", node)
        self._read_s, queues = self._clock.elapsed_s(), await self._all_queues()
        self._records = {f"queue:{record.name}": record for record in queues if record.kind == KIND}
        self._next_s = {item: at_s for item, at_s in self._next_s.items() if item in self._records}
        self._rested = {item: rested for item, rested in self._rested.items() if item in self._records}
        taken, give_up = await self.assignments.turn([*self._records, LEFTOVERS])
        self.owned |= set(taken)
        for item in give_up:
            self.owned.discard(item)
            await self.assignments.give_up(item)
        changed = taken or give_up or not self._store.alone  # others take some meanwhile
        rows = await self.assignments.list() if changed else self.assignments.rows
        self.owned = {item for item, row in rows.items() if self.assignments.mine(row)}
        gone = [item for item in rows if item != LEFTOVERS and item not in self._records]
        going = [item for item in gone[GONE_MOST:] if item in self.owned or LEFTOVERS in self.owned]
        self.owned.difference_update(gone)
        for item in going[:FORGETS_PER_TURN]:
            await self.assignments.forget(item)

    async def _all_queues(self) -> Sequence[QueueRecord]:
        if self._store.alone:
            return await self._broker.catalog.all()
        records: list[QueueRecord] = []
        while page := await self._broker.catalog.queues(after=records[-1].name if records else ""):
            records += page
        return records

    async def _repair(self) -> None:
        now_s = self._clock.elapsed_s()
        for item in sorted(self.owned):
            record = self._records.get(item)
            if record is None or not self._has_its_turn(item, now_s) or not self.lease.valid():
                continue
            try:
                queue = self._broker.opened(record, self._read_s)
                await queue.repair.step()
                self._rested[item] = (queue.place.pointers, queue.place.pointers.seen)
                self._next_s[item] = now_s + (IDLE_S if queue.repair.rests(IDLE_S) else 0.0)
            except Gone:
                continue
            except StoreError as error:
                log.debug("repair of %s goes on later: %s", record.name, error)
            except Exception:
                log.exception("repair of %s failed, and is tried again in %g s", record.name, FAILED_S)
                self._next_s[item] = now_s + FAILED_S

    def _has_its_turn(self, item: str, now_s: float) -> bool:
        """Its time has come, or its list is another than when it was left to rest."""
        if self._next_s.get(item, 0.0) <= now_s:
            return True
        pointers, rested = self._rested.get(item, (None, None))
        return self._store.alone and pointers is not None and pointers.seen != rested

    async def _clear(self) -> None:
        now_s = self._clock.elapsed_s()
        self._uncleared_s = {left: at_s for left, at_s in self._uncleared_s.items() if at_s > now_s}
        for name, generation, bucket_size in await self._broker.catalog.leftovers():
            if (name, generation) in self._uncleared_s:
                continue
            try:
                if await self._cleared(name, generation, bucket_size):
                    if not name.endswith(AT):  # groups have none
                        await self._broker.clear_statistics(name, generation)
                    await self._broker.catalog.cleared(name, generation)
                    log.info("what generation %d of %s left is cleared", generation, name)
            except CapelliniError as error:
                says = "generation %d of %s cannot be cleared now, but in %g s: %s"
                log.warning(says, generation, name, FAILED_S, error.says)
                self._uncleared_s[name, generation] = now_s + FAILED_S
            except Exception:
                log.exception("generation %d of %s cannot be cleared now, but in %g s", generation, name, FAILED_S)
                self._uncleared_s[name, generation] = now_s + FAILED_S

    async def _cleared(self, name: str, generation: int, bucket_size: int) -> bool:
        if bucket_size:
            return await self._broker.old_generation(name, generation, bucket_size).repair.clear()
        return bool(self.clear_others) and all([await clear(name, generation) for clear in self.clear_others])

    async def _sweep(self) -> None:
        now_s = self._clock.elapsed_s()
        if self._sweeps is not None and now_s - self._swept_s >= SWEEP_S:
            self._swept_s = now_s
            await self._sweeps.sweep(SWEEP_ROWS)
