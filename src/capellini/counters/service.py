"""Counters, as everybody uses them: add, update, read, list, collect.

    add, update ──▶ names (which state) ──▶ mutator (in memory) ──▶ group commit ──▶ shard
    read        ──▶ one slice: tally and shards ──▶ merged       ──▶ more than one expired? collect, in the background
    sweep       ──▶ counters by name, each collected if something in it is due

An update returns when it is durable. `add_many` does not wait: what it took is durable when `flush` returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from capellini.counters import collecting, reading
from capellini.counters.committing import Committer, never_counts
from capellini.counters.mutators import Fleet, Mutator
from capellini.counters.names import Names, keep, of_queue
from capellini.counters.shards import failing
from capellini.counters.states.distinct import Theta
from capellini.counters.states.interface import LEAST_INT, MOST_INT, Stamp, State, shown, whole_number
from capellini.counters.states.registry import Registry
from capellini.counters.states.total import Sum
from capellini.counters.times import Times, check_times
from capellini.model.clock import Chance, Clock
from capellini.model.counters import (
    MOST_AT_ONCE,
    MOST_INTERSECTED,
    Collected,
    Counted,
    CounterFigures,
    CounterService,
    Named,
    Reading,
    Update,
    check_listing,
    check_name,
    updates_in,
)
from capellini.model.errors import CapelliniError, Invalid, NotFound, StoreError, Unavailable, Unknown
from capellini.model.service import Problem
from capellini.store.interface import Store
from capellini.store.schema import COUNTERS

MEMORY_BYTES: Final = 64 * 1024 * 1024  # of mutators; beyond it the least recently used go
READS_AT_ONCE: Final = 32
SWEEP_NAMES: Final = 200  # looked at in one sweep
PIECE: Final = 1_000  # updates taken by one mutator in a row: with the largest texts, far below what a cell may have
log: Final = logging.getLogger("capellini.counters")

Listing = Callable[[str, str, int], Awaitable[list[Named]]]  # prefix, after, limit


class Counters(CounterService):
    """Safe for any number of tasks of one event loop; any number of processes may use the same counters."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Chance,
        times: Times | None = None,
        *,
        registry: Registry | None = None,
        memory_bytes: int = MEMORY_BYTES,
        queues: Listing | None = None,
    ) -> None:
        """`queues` lists the statistics of queues, which have no names of their own in the store."""
        self._store = store
        self._clock = clock
        self.times = check_times(times or Times())
        self.registry = registry or Registry()
        self.guards: Counter[str] = Counter()
        self._figures = CounterFigures()
        self._names = Names(store, clock, random)
        self._fleet = Fleet(clock, random, self.times, memory_bytes)
        self._committer = Committer(store, clock, random, self._fleet, self.guards)
        self._through_us: dict[str, int] = {}  # the highest seen, by counter
        self._collecting: dict[str, asyncio.Task[Collected]] = {}
        self._queues = queues
        self._sweeps: list[Listing] = [self._names.listed, *([queues] if queues is not None else [])]  # taken in turn
        self._swept = ""  # where the next sweep goes on
        self._closed = False

    # ---- updates

    async def add(self, name: str, value: int = 1) -> None:
        """Add to a sum. Durable when it returns."""
        await self.update(name, [value], Sum.kind)

    async def update(self, name: str, updates: Sequence[object], kind: str = Sum.kind) -> None:
        """All of them or, when one is wrong, none. Durable when it returns. Raises Invalid, Conflict, Unavailable (they
        do not count) or Unknown (they may)."""
        self._check_open()
        updates = updates_in(updates)
        _check_count(updates)
        state = self.registry.state(kind)
        check_name(name)
        for one in updates:
            _checked(state, one)
        if updates:
            await self._names.fix(name, kind)
            confirmed = self._applied(name, state, updates)
            await (confirmed[0] if len(confirmed) == 1 else _all_of(confirmed))
            self._relieve()

    async def update_many(self, updates: Sequence[Update]) -> list[Counted | Problem]:
        """One result each, in order; bad ones do not keep good ones from counting. Durable when it returns."""
        self._check_open()
        _check_count(updates)
        results: list[Counted | Problem] = [_COUNTED] * len(updates)
        groups: dict[tuple[str, str], list[int]] = {}
        for at, one in enumerate(updates):
            try:
                groups.setdefault((one.counter, one.kind), []).append(at)
            except TypeError:
                self._refuse([at], Invalid(f"an update names a counter and a kind, not {shown(one)}"), results)
        good = self._good(updates, groups, results)
        known = self._names.known
        new = {name: kind for name, kind in reversed(good) if name not in known}  # of two kinds, the first
        failed = await self._names.fix_new(new) if len(new) > 1 else {}
        waiting: list[tuple[asyncio.Future[None], list[int]]] = []
        for (name, kind), places in good.items():
            try:
                if name in failed and name not in known:
                    raise failed[name]
                if known.get(name) != kind:
                    await self._names.fix(name, kind)
                waiting += self._take(name, self.registry.state(kind), updates, places)
            except CapelliniError as error:
                self._refuse(places, error, results)
        for confirmed, places in waiting:
            try:
                await confirmed
            except CapelliniError as error:
                self._refuse(places, error, results)
        self._relieve()
        return results

    def _good(
        self,
        updates: Sequence[Update],
        groups: dict[tuple[str, str], list[int]],
        results: list[Counted | Problem],
    ) -> dict[tuple[str, str], list[int]]:
        """Those of each counter that are right in themselves; the others are refused."""
        found = {}
        for (name, kind), places in groups.items():
            try:
                state = self.registry.state(kind)
                check_name(name)
            except Invalid as error:
                self._refuse(places, error, results)
                continue
            for at in places:
                value = updates[at].value
                if state is not Sum or type(value) is not int or not LEAST_INT <= value <= MOST_INT:
                    self._refuse_one(at, state, value, results)  # nearly always a sum: without a call each
            if good := [at for at in places if results[at] is _COUNTED]:
                found[name, kind] = good
        return found

    def _take(
        self, name: str, state: type[State], updates: Sequence[Update], places: list[int]
    ) -> list[tuple[asyncio.Future[None], list[int]]]:
        """Those of one counter; the futures of their confirmations, and which they are."""
        if state is not Sum:
            confirmed = self._applied(name, state, [updates[at].value for at in places])
            return [(each, places[at * PIECE : (at + 1) * PIECE]) for at, each in enumerate(confirmed)]
        mutator = self._mutator(name, state)
        mutator.state.apply(sum([updates[at].value for at in places]))
        self._took(mutator, len(places))
        return [(self._committer.confirmed(mutator), places)]

    def _refuse_one(self, at: int, state: type[State], value: object, results: list[Counted | Problem]) -> None:
        try:
            _checked(state, value)
        except Invalid as error:
            self._refuse([at], error, results)

    def _refuse(self, places: list[int], error: CapelliniError, results: list[Counted | Problem]) -> None:
        if isinstance(error, Invalid):
            self._figures.refused += len(places)
        problem = Problem.of(error)
        for at in places:
            if results[at] is _COUNTED:
                results[at] = problem

    async def add_many(self, updates: Iterable[tuple[str, int]]) -> int:
        """Add to sums, without waiting: durable when `flush` returns. All of them or, when one is wrong, none."""
        self._check_open()
        items = updates if isinstance(updates, list) else list(updates)
        totals = _totals(items)
        new = [name for name in totals if self._names.known.get(name) != Sum.kind]
        if len(new) > 1:
            for error in (await self._names.fix_new({check_name(name): Sum.kind for name in new})).values():
                raise error
        for name in new:
            await self._names.fix(check_name(name), Sum.kind)
        task = _this_task()
        for name, total in totals.items():
            mutator = self._mutator(name, Sum)
            mutator.state.apply(total)
            mutator.loose += 1
            mutator.adders.add(task)
            self._took(mutator, 1)
        self._figures.updates += len(items) - len(totals)
        self._relieve()
        if self._fleet.full:  # all that is there is unconfirmed: whoever adds waits
            await self._confirm_all()
            self._relieve()
        return len(items)

    async def flush(self) -> None:
        """All that `add_many` took is durable, or an error says which counters are not: Unavailable when none of it
        counts, else Unknown. Each task that added is told of its own; what nobody was told of yet, whoever asks."""
        good = await self._confirm_all()
        task = _this_task()
        failed, partly = self._committer.failures(task), self._committer.some_confirmed(task)
        if failed:
            names = sorted(failed)
            says = f"not confirmed: {', '.join(names[:20])}; {failed[names[0]].says}"
            if good or partly or not all(map(never_counts, failed.values())):
                raise Unknown(f"updates of some counters may not count; {says}")
            raise Unavailable(f"updates could not be written, and do not count; {says}")

    async def _confirm_all(self) -> int:
        waiting = [self._committer.confirmed(mutator) for mutator in self._committer.unconfirmed()]
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, CapelliniError):
                raise answer
        return sum(answer is None for answer in answers)

    def _applied(self, name: str, state: type[State], updates: Sequence[object]) -> list[asyncio.Future[None]]:
        """Taken, a piece at a time: where they are large, a new mutator goes on. Confirmed when each piece is."""
        found: list[asyncio.Future[None]] = []
        for at in range(0, len(updates), PIECE):
            mutator = self._mutator(name, state)
            piece = updates[at : at + PIECE]
            try:
                for one in piece:
                    mutator.state.apply(state.check(one, self._fleet.stamp(mutator)))
            except Exception as error:  # a state of somebody's own: it may have half of them
                says = f"the state {state.kind} of counter {name} failed at an update: {error!r}"
                self._committer.spoiled(mutator, Unavailable(says))
                raise (Unknown if found else Invalid)(says) from error
            self._took(mutator, len(piece))
            found.append(self._committer.confirmed(mutator))
        return found

    def _took(self, mutator: Mutator, count: int) -> None:
        mutator.applied += count
        self._figures.updates += count
        self._fleet.used(mutator)

    def _mutator(self, name: str, state: type[State]) -> Mutator:
        """One that takes updates now: the one there is, or a new one."""
        found = self._fleet.find(name)
        if found is not None:
            return found
        made, before = self._fleet.make(name, state)
        self._figures.mutators += 1
        if before is not None and not before.dead:
            self.guards["update_refused_by_old_mutator"] += 1
            if before.dirty:
                self._committer.begin(before)
            else:
                before.dead = True
        return made

    def _relieve(self) -> None:
        gone = self._fleet.cull()
        if gone:
            self._figures.culled += gone
            self.guards["culled"] += gone

    # ---- reading

    async def read(self, name: str, sketch: bool = False) -> Reading:
        """Raises NotFound, Invalid (a state that is not installed), StoreError (a stored state is damaged)."""
        self._check_open()
        state, seen, total = await self._total(name)
        if of_queue(name) and not seen.shards and not seen.tally.packed:
            raise NotFound(f"there are no statistics {name}: nothing happened in that queue yet")
        found = reading.expired(seen, self._cutoff_us())
        if found > 1:
            self._collect_later(name)
        with failing(state, name):
            raw, value = total.sketch() if sketch else None, total.value()
        shards = len(seen.shards)
        return Reading(name, state.kind, value, shards, found, seen.tally.through_us / 1e6, raw)

    async def _total(self, name: str) -> tuple[type[State], reading.Seen, State]:
        state = await self._state_of(name)
        seen = await reading.look(self._store, name, self._through_us.get(name, 0))
        self._figures.reads += 1
        self._saw(name, seen.tally.through_us)
        if seen.ignored:
            self.guards["collected_shard_ignored"] += 1
        return state, seen, reading.merged(seen, state, name)

    def _saw(self, name: str, through_us: int) -> None:
        """Kept where there is something to keep: whoever reads may make up names."""
        if through_us > self._through_us.get(name, 0):
            keep(self._through_us, name, through_us)

    async def _state_of(self, name: str) -> type[State]:
        kind = await self._names.kind_of(check_name(name))
        if kind is None:
            raise NotFound(f"there is no counter {name}: it begins with its first update")
        return self.registry.state(kind)

    async def read_many(self, names: Sequence[str], sketch: bool = False) -> list[Reading | Problem]:
        """One result each, in order: one that cannot be read keeps none of the others back."""
        self._check_open()
        if len(names) > MOST_AT_ONCE:
            raise Invalid(f"at most {MOST_AT_ONCE} counters are read in one call, not {len(names)}")
        turns = asyncio.Semaphore(READS_AT_ONCE)

        async def one(name: str) -> Reading | Problem:
            async with turns:
                try:
                    return await self.read(name, sketch)
                except CapelliniError as error:
                    return Problem.of(error)

        return list(await asyncio.gather(*(one(name) for name in names)))

    async def intersection(self, names: Sequence[str]) -> dict[str, float]:
        """How many different elements all of these theta counters have seen."""
        self._check_open()
        if not 2 <= len(names) <= MOST_INTERSECTED:
            raise Invalid(f"2 to {MOST_INTERSECTED} theta counters are intersected, not {len(names)}")
        totals = []
        for name in names:
            state, _, total = await self._total(name)
            if not isinstance(total, Theta):
                raise Invalid(f"counter {name} is a {state.kind}: only theta counters can be intersected")
            totals.append(total)
        found = totals[0]
        for total in totals[1:]:
            found = found.intersect(total)
        return found.value()

    async def listed(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[Named]:
        """By name; statistics of queues only if the prefix says so."""
        self._check_open()
        check_listing(prefix, after, limit)
        if of_queue(prefix):
            return [] if self._queues is None else await self._queues(prefix, after, limit)
        return await self._names.listed(prefix, after, limit)

    async def drop(self, name: str) -> None:
        """All of it goes, for good. Only for a name that is never used again, such as that of a generation that is
        over: where others may still write, the drop is from the future, so that nothing late survives it."""
        self._check_open()
        mutator = self._fleet.remove(name)
        if mutator is not None:
            mutator.dead = True
            if mutator.task is not None:
                await asyncio.wait({mutator.task})
        self._through_us.pop(name, None)
        later_us = None if self._store.alone else self._fleet.now_us() + self.times.life_us
        await self._store.drop(COUNTERS, (check_name(name),), timestamp_us=later_us)

    # ---- collecting

    async def collect(self, name: str) -> Collected:
        """Merge what is final into the tally. Never raises what the store says: see `Collected.deferred`."""
        self._check_open()
        state = await self._state_of(name)
        return await self._collect(name, state)

    async def _collect(self, name: str, state: type[State]) -> Collected:
        done = await collecting.collect(self._store, self._clock, name, state, self.times, self.guards)
        figures = self._figures
        figures.collections += 1
        figures.collected_shards += done.shards
        if done.deferred:
            figures.deferred += 1
            figures.deferred_why = f"{name}: {done.deferred}"
            log.info("collecting counter %s is deferred: %s", name, done.deferred)
        return done

    def _collect_later(self, name: str) -> None:
        if name in self._collecting or self._closed:
            return
        task = asyncio.get_running_loop().create_task(self.collect(name))
        self._collecting[name] = task
        task.add_done_callback(lambda done: self._collected(name, done))

    def _collected(self, name: str, task: asyncio.Task[Collected]) -> None:
        self._collecting.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("collecting counter %s failed: %s", name, error)

    async def sweep(self, limit: int = SWEEP_NAMES) -> int:
        """Look at the next counters by name, and collect those where something is due. How many shards went."""
        self._check_open()
        names = await self._sweeps[0]("", self._swept, limit)
        self._swept = names[-1].name if len(names) == limit else ""
        if not self._swept:
            self._sweeps.append(self._sweeps.pop(0))
        gone = 0
        for one in names:
            now_us = int(self._clock.now_s() * 1e6)
            try:
                if await collecting.due(self._store, one.name, self._through_us.get(one.name, 0), self.times, now_us):
                    gone += (await self._collect(one.name, self.registry.state(one.kind))).shards
            except (StoreError, Invalid) as error:  # a state that is not installed here, or a store that is away
                log.info("sweeping counter %s goes on later: %s", one.name, error)
        return gone

    def _cutoff_us(self) -> int:
        return collecting.cutoff_us(int(self._clock.now_s() * 1e6), self.times)

    # ---- the rest

    def figures(self) -> CounterFigures:
        return msgspec.structs.replace(
            self._figures,
            writes=self._committer.writes,
            taking=len(self._fleet),
            memory_bytes=self._fleet.bytes,
        )

    async def close(self) -> None:
        """Confirm what was taken. Raises as `flush` does."""
        self._closed = True
        tasks = list(self._collecting.values())
        for task in tasks:
            task.cancel()  # a collection that stops anywhere does no harm
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.flush()
        self._fleet.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("these counters are closed")


def _totals(items: list[tuple[str, int]]) -> dict[str, int]:
    """By counter. A million a second come through here: what can be looked at all at once is."""
    totals: defaultdict[str, int] = defaultdict(int)
    try:
        values = [value for _, value in items]
        if values and (set(map(type, values)) != {int} or min(values) < LEAST_INT or max(values) > MOST_INT):
            for value in values:
                whole_number(value, Sum.kind)
        for name, value in items:
            totals[name] += value
    except (TypeError, ValueError):
        raise Invalid("an update to add is a pair: the name of a counter, and a whole number") from None
    return totals


def _check_count(updates: Sequence[object]) -> None:
    if len(updates) > MOST_AT_ONCE:
        raise Invalid(f"at most {MOST_AT_ONCE} updates go in one call, not {len(updates)}")


def _checked(state: type[State], update: object) -> None:
    """Raises Invalid, also for what a state of somebody's own did not expect."""
    try:
        state.check(update, _NO_STAMP)
    except CapelliniError:
        raise
    except Exception as error:
        raise Invalid(f"{shown(update)} is no update of {state.kind}: {error!r}") from error


async def _all_of(confirmed: list[asyncio.Future[None]]) -> None:
    """A call's updates went to several mutators: raises what is true of all of them together."""
    answers = await asyncio.gather(*confirmed, return_exceptions=True)
    errors = sorted((answer for answer in answers if answer is not None), key=never_counts)  # what is unsure first
    if errors and (len(errors) == len(answers) or not never_counts(errors[0])):
        raise errors[0]
    if errors:
        raise Unknown(f"a part of the updates counts, and a part does not: {errors[0]}")


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # coroutines run in tasks
    return task


_COUNTED: Final = Counted()
_NO_STAMP: Final = Stamp(1, "")
