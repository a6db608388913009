"""Group commit: many updates, one write of the latest state.

    update ─▶ state ─▶ waits ─┐
    update ─▶ state ─▶ waits ─┼─▶ one write of the whole state ─▶ all confirmed     (meanwhile others gather)
    update ─▶ state ─▶ waits ─┘

One write of a mutator is under way at a time. A write that failed is repeated, with the state as it is by then, until
patience ends; then the mutator dies and never writes again. So its waiters can be told the truth, and why: Unknown if a
write may have been done, Unavailable if surely none was, in which case their updates will never count and can be
repeated. A state that no store takes is Invalid: repeating it is pointless.

Loose updates have no waiter; `flush` answers for them, to each task that made some, and to the next one that asks. One
answer would not do: of two tasks whose updates died with one mutator, the second would take its own for confirmed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final
from weakref import WeakSet

from capellini.counters.mutators import Fleet, Mutator, may_confirm, next_stamp
from capellini.counters.shards import STATE, pack
from capellini.counters.times import PATIENCE_S
from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError, Invalid, StoreError, Unavailable, Unknown, from_name
from capellini.store.interface import Batch, Store
from capellini.store.schema import COUNTERS

PAUSE_S: Final = 0.05  # before a write is repeated, then doubled, with jitter
MOST_PAUSE_S: Final = 2.0
MOST_FAILURES: Final = 1_000  # kept for tasks that add and never ask; the oldest go
GATHER_S: Final = 0.004  # how long a write waits for others, when the last one had gathered several


class Failure:
    """Loose updates of a counter that were not confirmed. `adders`: tasks that made some and are not told; one that
    has ended needs not be."""

    __slots__ = ("adders", "error", "name", "told")

    def __init__(self, name: str, error: CapelliniError, adders: WeakSet[Any]) -> None:
        self.name = name
        self.error = error
        self.adders = adders
        self.told = False


class Committer:
    def __init__(self, store: Store, clock: Clock, random: Chance, fleet: Fleet, guards: Counter[str]) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self._fleet = fleet
        self._guards = guards
        self.writes = 0
        self._failures: list[Failure] = []
        self._partly: WeakSet[Any] = WeakSet()  # tasks of whose loose updates some were confirmed since they last asked
        self._busy: set[Mutator] = set()  # with a write under way, also those that take no updates any more

    def confirmed(self, mutator: Mutator) -> asyncio.Future[None]:
        """Done when all that the mutator has taken so far is durable."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_heard)
        if mutator.dead:
            future.set_exception(self._gone(mutator))
            return future
        mutator.waiting.append((mutator.applied, future))
        self.begin(mutator)
        return future

    def begin(self, mutator: Mutator) -> None:
        if mutator.task is None and not mutator.dead:
            self._busy.add(mutator)
            mutator.task = asyncio.get_running_loop().create_task(self._run(mutator))

    def spoiled(self, mutator: Mutator, why: CapelliniError) -> None:
        """Its state may hold half a call: nothing more is written of it, and who waits for more is told."""
        mutator.dead, mutator.why = True, why
        self._fleet.remove(mutator.name, only=mutator)
        if mutator.task is None:
            self._answer(mutator)

    def unconfirmed(self) -> list[Mutator]:
        return [*(one for one in self._fleet if one.dirty and one not in self._busy), *self._busy]

    async def _run(self, mutator: Mutator) -> None:
        try:
            while mutator.dirty and not mutator.dead:
                if mutator.gathered > 1:  # a crowd: who waits a moment shares a write; a lone caller never waits
                    await self._clock.sleep(GATHER_S)
                mutator.gathered = len(mutator.waiting)
                await self._write(mutator)
                self._answer(mutator)
        except BaseException as error:
            self._die(mutator, error)
            if not isinstance(error, CapelliniError):
                raise
        finally:
            mutator.task = None
            self._busy.discard(mutator)
            self._answer(mutator)

    async def _write(self, mutator: Mutator) -> None:
        """Once the latest state, repeated until it is confirmed. Raises StoreError when patience ends."""
        fleet, clock = self._fleet, self._clock
        give_up_s = clock.elapsed_s() + PATIENCE_S
        pause_s = PAUSE_S
        while True:
            if mutator.dead:
                raise Unavailable(f"a mutator of counter {mutator.name} was given up before its updates were written")
            taken = mutator.applied
            stamp_us = next_stamp(mutator.stamp_us, fleet.now_us(), mutator.expires_us)
            if stamp_us is None or not may_confirm(fleet.left_us(mutator)):
                self._guards["write_after_expiry_refused"] += 1
                raise Unavailable(f"a mutator of counter {mutator.name} expired before its updates were written")
            mutator.stamp_us = stamp_us
            row = ((mutator.expires_us, mutator.id), {STATE: pack(mutator.state)})
            self.writes += 1
            try:
                await self._store.write(Batch(COUNTERS, (mutator.name,), (row,), timestamp_us=stamp_us))
            except StoreError as error:
                mutator.lost = mutator.lost or not isinstance(error, Unavailable)
                self._guards["write_repeated"] += 1
                if clock.elapsed_s() + pause_s > give_up_s:
                    raise
            except CapelliniError:  # refused before it was sent
                raise
            except BaseException:  # cancelled on its way, or nobody knows where it failed
                mutator.lost = True
                raise
            else:
                if not may_confirm(fleet.left_us(mutator)):
                    self._guards["confirmation_after_expiry_refused"] += 1
                    mutator.lost = True
                    raise Unknown(f"a mutator of counter {mutator.name} expired while its updates were written")
                mutator.written = taken
                mutator.lost = False
                self._partly |= mutator.adders
                mutator.loose = min(mutator.loose, mutator.applied - taken)
                if not mutator.loose:
                    mutator.adders.clear()
                return
            await clock.sleep(self._random.uniform(pause_s / 2, pause_s))
            pause_s = min(2 * pause_s, MOST_PAUSE_S)

    def _answer(self, mutator: Mutator) -> None:
        kept = []
        for wanted, future in mutator.waiting:
            if future.done():
                continue
            if wanted <= mutator.written:
                future.set_result(None)
            elif mutator.dead:
                future.set_exception(self._gone(mutator))
            else:
                kept.append((wanted, future))
        mutator.waiting = kept

    def _die(self, mutator: Mutator, error: BaseException) -> None:
        mutator.dead = True
        if mutator.why is None:  # again: without the traceback, which holds all that was there
            mutator.why = error.again() if isinstance(error, CapelliniError) else CapelliniError(repr(error))
        self._fleet.remove(mutator.name, only=mutator)
        self._guards["mutator_died_unknown" if mutator.lost else "mutator_died_unwritten"] += 1
        if mutator.loose or not isinstance(error, CapelliniError):
            failure = Failure(mutator.name, self._gone(mutator), WeakSet(mutator.adders))
            self._failures = [*self._failures[1 - MOST_FAILURES :], failure]

    def failures(self, task: asyncio.Task[Any]) -> dict[str, CapelliniError]:
        """By counter: loose updates that were not confirmed, of which nobody was told yet, or not this task that made
        some of them."""
        found = {one.name: one.error for one in self._failures if not one.told or task in one.adders}
        for one in self._failures:
            one.told = True
            one.adders.discard(task)
        self._failures = [one for one in self._failures if one.adders]
        return found

    def some_confirmed(self, task: asyncio.Task[Any]) -> bool:
        """Some of its loose updates were, since it last asked, perhaps by a write that another began."""
        found = task in self._partly
        self._partly.discard(task)
        return found

    def _gone(self, mutator: Mutator) -> CapelliniError:
        why = f": {mutator.why.says}" if mutator.why is not None else ""
        if mutator.lost:
            return Unknown(f"updates of counter {mutator.name} were not confirmed, and may count, or not{why}")
        says = f"updates of counter {mutator.name} could not be written, and do not count{why}"
        return from_name(mutator.why.name, says) if isinstance(mutator.why, Invalid) else Unavailable(says)


def never_counts(error: object) -> bool:
    """Updates that failed so surely do not, and never will."""
    return isinstance(error, (Unavailable, Invalid))


def _heard(future: asyncio.Future[None]) -> None:
    """Its caller may have gone away: then nobody else asks how it ended."""
    if not future.cancelled():
        future.exception()
