"""One simulated run of counters: days pass, and everything goes wrong that may; a pure function of its seed.

turbulence (days)                                   calm        collected           years later
processes update, read, collect; they crash, are │  all reads │ two days on, all  │ tombstones are gone, every batch
culled, sleep for days; clocks differ and step;  │  exact     │ collect: no shard │ ever sent is sent again, in any
replicas are down for hours; batches are sent    │            │ is left, reads    │ order: reads exact, collect,
again; at storms all collect and read at once    │            │ exact             │ reads exact
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from typing import Any, Final

import msgspec

from capellini.counters.service import Counters
from capellini.counters.shards import TALLY_KEY, Tally, tally_of
from capellini.counters.states.registry import Registry
from capellini.counters.times import Times
from capellini.model.counters import Update
from capellini.model.errors import CapelliniError, StoreError, Unknown
from capellini.model.service import Problem
from capellini.proof.counting import DIGITS, CounterCall, Ledger, counts_of, exact, update_of
from capellini.proof.history import Violation
from capellini.proof.suites import Result
from capellini.store.interface import Batch, Slice
from capellini.store.schema import COUNTERS, TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import CALM_S, World

HOUR_S: Final = 3_600.0
DAY_S: Final = 24 * HOUR_S
YEARS_S: Final = 2 * 365 * DAY_S
SETTLED_S: Final = 60.0  # after the end of all faults, until calls that met them are over
REPLAY_WITHIN_S: Final = 2 * HOUR_S  # a shard's write that is sent again comes within the hint window
SLEEPS: Final = 0.004  # of all updates, and of all writes: the process sleeps in the middle
SLEEP_S: Final = (20 * HOUR_S, 60 * HOUR_S)
MOST_UPDATES: Final = 250  # of one counter: every read looks at all of them
TIMES: Final = Times()
REGISTRY: Final = Registry(more=[Ledger])


class Plan(msgspec.Struct, frozen=True):
    processes: int
    days: float
    counters: dict[str, str]  # kind by name
    faults: Faults
    memory_bytes: int
    every_s: float  # between two calls of a process
    crash_every_s: float  # of processes
    storm_every_s: float
    quiet: bool  # only at storms there are reads and collections, so that there is much to collect
    wild: bool  # one more process, whose clock is days off, collects too


def plan_of(seed: int) -> Plan:
    chance = random.Random(f"counters/{seed}")

    def upto(most: float) -> float:
        return chance.random() * most if chance.random() < 0.7 else 0.0

    def every(least_h: float, most_h: float) -> float:
        return chance.uniform(least_h, most_h) * HOUR_S if chance.random() < 0.7 else 0.0

    page_rows = chance.choice((3, 3, 3, 10, 5_000))
    kinds = [chance.choice(("ledger", "ledger", "sum", "set")) for _ in range(chance.choice((1, 2, 3)))]
    faults = Faults(
        lost_answer=upto(0.08),
        lost_request=upto(0.05),
        late_write=upto(0.06),
        refused=upto(0.08),
        slow=upto(0.1),
        split_read=upto(0.2),
        late_most_s=2 * HOUR_S,
        page_rows=page_rows,
        skew_s=chance.choice((0.0, 60.0, 3_000.0, 3_000.0)),
        drift=chance.choice((0.0, 1e-4)),
        step_every_s=every(0.2, 3),
        crash_every_s=every(2, 20),
        crash_most_s=chance.choice((60.0, 3 * HOUR_S)),
        crash_at_once=chance.choice((1, 1, 2)),
        cut_every_s=every(2, 20),
        cut_most_s=HOUR_S,
        pause_every_s=every(2, 20),
        pause_most_s=120.0,
        client_pause_every_s=every(4, 30),
        client_pause_most_s=chance.choice((60.0, 30 * HOUR_S, 70 * HOUR_S)),
        hint_lost=chance.choice((0.0, 0.3, 1.0)),
        hint_late=upto(0.2),
    )
    return Plan(
        processes=chance.choice((2, 3, 4)),
        days=chance.uniform(3.0, 5.0),
        counters={f"{kind}{at}": kind for at, kind in enumerate(kinds)},
        faults=Faults.none() if chance.random() < 0.05 else faults,
        memory_bytes=chance.choice((800, 800, 1_600, 10**6)),
        every_s=chance.uniform(1_500.0, 4_000.0) * (3 if page_rows < 10 else 1),  # small pages take long to simulate
        crash_every_s=every(6, 30),
        storm_every_s=chance.uniform(2.0, 8.0) * HOUR_S,
        quiet=chance.random() < 0.5,
        wild=chance.random() < 0.3,
    )


def simulate(seed: int) -> Result:
    return run(_run(seed), seed)


async def _run(seed: int) -> Result:
    plan = plan_of(seed)
    world = World(faults=plan.faults)
    work = _Run(plan, world, random.Random(f"counting/{seed}"))
    world.loop.call_exception_handler = lambda context: work.broken.append(str(context))  # type: ignore[method-assign]
    await world.client("setup").store.prepare(TABLES)
    await work.turbulence()
    await work.calm()
    await work.collected()
    await work.years_later()
    violations = exact(work.calls) + work.violations
    violations += [Violation(7, "a process", f"failed inside: {says}") for says in work.broken]
    return Result(
        seed=seed,
        violations=violations,
        virtual_s=world.loop.time(),
        messages=sum(len(call.ids) for call in work.calls),
        faults=dict(world.faults),
        guards=dict(work.guards()),
        history=[call.line() for call in work.calls],
    )


class _Process:
    """One process with counters of its own, which makes calls until it crashes or time is up."""

    def __init__(self, run: _Run, name: str, memory_bytes: int) -> None:
        self.run = run
        self.client: SimulatedClient = run.world.client(name)
        self.chance = random.Random(f"{run.world.seed}/{name}/{len(run.processes)}")
        run.record(self.client)
        self.counters = Counters(
            self.client.store,
            self.client.clock,
            self.client.random,
            TIMES,
            registry=REGISTRY,
            memory_bytes=memory_bytes,
        )

    async def work(self, end_s: float) -> None:
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / self.run.plan.every_s))
            if self.run.now_s >= end_s:
                return
            for _ in range(self.chance.choice((1, 1, 2, 4))):
                task = asyncio.ensure_future(self._one())
                if self.chance.random() < 0.5:
                    await task

    async def _one(self) -> None:
        counter = self.chance.choice(list(self.run.plan.counters))
        drawn = self.chance.random()
        if drawn < 0.6 or (self.run.plan.quiet and self.run.now_s > 2 * DAY_S):
            await self.update(counter)
        elif drawn < 0.85:
            await self.read(counter)
        elif drawn < 0.93:
            await self.collect(counter)
        else:
            await self._call(CounterCall(self.client.name, "sweep", "", self.run.now_s), self.counters.sweep())

    async def update(self, counter: str) -> None:
        run, kind = self.run, self.run.plan.counters[counter]
        ids = run.new_ids(counter, self.chance.choice((1, 1, 2, 5)))
        if not ids:
            return
        if run.turbulent and self.chance.random() < SLEEPS:
            self.client.pause(self.chance.uniform(*SLEEP_S))  # what is begun now goes on when it wakes
        call = CounterCall(self.client.name, "update", counter, run.now_s, ids)
        sent = [update_of(kind, id) for id in ids]
        drawn = self.chance.random()
        if kind == "sum" and drawn < 0.4:
            await self._call(call, self._loosely(counter, sent))
        elif drawn < 0.7:
            await self._call(call, self.counters.update(counter, sent, kind))
        else:
            await self._call(call, self._together(counter, kind, sent))

    async def _loosely(self, counter: str, sent: list[Any]) -> None:
        await self.counters.add_many([(counter, value) for value in sent])
        await self.counters.flush()

    async def _together(self, counter: str, kind: str, sent: list[Any]) -> None:
        results = await self.counters.update_many([Update(counter, value, kind) for value in sent])
        for one in results:
            if isinstance(one, Problem):
                raise one.raised()

    async def read(self, counter: str) -> None:
        call = CounterCall(self.client.name, "read", counter, self.run.now_s)
        reading = await self._call(call, self.counters.read(counter))
        if reading is not None:
            call.counts = counts_of(reading.kind, counter, reading.value)
            call.says = f"{reading.shards} shards, through {reading.through:.0f}"

    async def collect(self, counter: str) -> int:
        call = CounterCall(self.client.name, "collect", counter, self.run.now_s)
        done = await self._call(call, self.counters.collect(counter))
        if done is None:
            return 0
        call.says = f"{done.shards} shards, through {done.through:.0f}, {done.starts} starts {done.deferred}"
        return int(done.shards)

    async def _call(self, call: CounterCall, asked: Awaitable[Any]) -> Any:
        self.run.calls.append(call)
        try:
            answer = await asked
        except CapelliniError as error:
            call.ended_s, call.error, call.says = self.run.now_s, error.name, error.says
            return None
        call.ended_s = self.run.now_s
        return answer


class _Run:
    def __init__(self, plan: Plan, world: World, chance: random.Random) -> None:
        self.plan = plan
        self.world = world
        self.chance = chance
        self.calls: list[CounterCall] = []
        self.violations: list[Violation] = []
        self.broken: list[str] = []
        self.processes: list[_Process] = []
        self.turbulent = plan.faults != Faults.none()
        self._sent: list[tuple[float, Batch]] = []  # every batch that was, or may have been, done
        self._next: Counter[str] = Counter()

    @property
    def now_s(self) -> float:
        return self.world.loop.time()

    def new_ids(self, counter: str, count: int) -> tuple[str, ...]:
        first = self._next[counter]
        most = DIGITS if self.plan.counters[counter] == "sum" else MOST_UPDATES
        last = min(first + count, most)
        self._next[counter] = last
        return tuple(f"{counter}.{at}" for at in range(first, last))

    def record(self, client: SimulatedClient) -> None:
        """Remember what this client writes to counters, for sending it again."""
        write = client.store.write

        async def recorded(batch: Batch) -> None:
            began_s = self.now_s
            if self.turbulent and self.chance.random() < SLEEPS:
                sleep_s = self.chance.uniform(*SLEEP_S)
                client.pause(sleep_s)  # it is sent, and the answer waits until it wakes
                if int(sleep_s) % 2:
                    await asyncio.sleep(0)  # or it is sent only then, with the timestamp it was given before
            try:
                await write(batch)
            except Unknown:
                self._keep(began_s, batch)
                raise
            self._keep(began_s, batch)

        client.store.write = recorded  # type: ignore[method-assign]

    def _keep(self, began_s: float, batch: Batch) -> None:
        if batch.table is COUNTERS:
            self._sent.append((began_s, batch))

    def guards(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for process in self.processes:
            found.update(process.counters.guards)
        return found

    def _start(self, name: str, end_s: float) -> _Process:
        process = _Process(self, name, self.plan.memory_bytes)
        self.processes.append(process)
        process.client.spawn(process.work(end_s))
        return process

    async def turbulence(self) -> None:
        end_s = self.now_s + self.plan.days * DAY_S
        living = [self._start(f"p{at}", end_s) for at in range(self.plan.processes)]
        trouble = [self._crash(living, end_s), self._storms(living, end_s), self._replay(end_s)]
        if self.plan.wild:
            trouble.append(self._wild(end_s))
        await asyncio.gather(*trouble)
        await asyncio.sleep(max(0.0, end_s - self.now_s))

    async def _crash(self, living: list[_Process], end_s: float) -> None:
        while self.plan.crash_every_s and self.now_s < end_s:
            await asyncio.sleep(self.chance.expovariate(1 / self.plan.crash_every_s))
            at = self.chance.randrange(len(living))
            living[at].client.crash()
            living[at] = self._start(f"q{len(self.processes)}", end_s)

    async def _storms(self, living: list[_Process], end_s: float) -> None:
        """All processes collect and read one counter at the same time."""
        while self.now_s < end_s:
            await asyncio.sleep(self.chance.expovariate(1 / self.plan.storm_every_s))
            counter = self.chance.choice(list(self.plan.counters))
            for process in living:
                for act in (process.collect, process.read, process.collect, process.read):
                    process.client.spawn(_after(self.chance.uniform(0, 0.03), act, counter))

    async def _replay(self, end_s: float) -> None:
        """Batches are sent again: those of collectors however old, those of shards while hints may bring them."""
        client = self.world.client("replay")
        while self.now_s < end_s:
            await asyncio.sleep(self.chance.expovariate(1 / (2 * HOUR_S)))
            old = [
                batch
                for sent_s, batch in self._sent
                if not batch.rows or batch.rows[0][0] == TALLY_KEY or sent_s > self.now_s - REPLAY_WITHIN_S
            ]
            for batch in self.chance.sample(old, min(3, len(old))):
                await self._send_again(client, batch)

    async def _send_again(self, client: SimulatedClient, batch: Batch) -> None:
        try:
            await client.spawn(client.store.write(batch))
        except StoreError:
            self.world.faults["replay_failed"] += 1
        else:
            self.world.faults["replay"] += 1

    async def _wild(self, end_s: float) -> None:
        """A collector whose clock is days off."""
        process = _Process(self, "wild", 10**6)
        self.processes.append(process)
        while self.now_s < end_s:
            await asyncio.sleep(self.chance.expovariate(1 / (4 * HOUR_S)))
            process.client.clock.offset_s = self.chance.choice((-3 * DAY_S, 3 * DAY_S))
            process.client.spawn(process.collect(self.chance.choice(list(self.plan.counters))))

    # ---- when all is well again

    async def _look(self, process: _Process) -> None:
        for counter in self.plan.counters:
            if self._next[counter]:
                await process.client.spawn(process.read(counter))

    async def calm(self) -> None:
        self.turbulent = False
        self.world.calm()
        await asyncio.sleep(CALM_S + SETTLED_S)
        await self._look(self._fresh("calm"))

    def _fresh(self, name: str) -> _Process:
        process = _Process(self, name, 10**6)
        process.client.clock.offset_s = 0.0
        self.processes.append(process)
        return process

    async def collected(self) -> None:
        """Two days on everything is final. Two collectors at a time, and then no shard is left."""
        await asyncio.sleep(TIMES.life_s + TIMES.grace_s + 2 * TIMES.max_skew_s)
        one, other = self._fresh("c1"), self._fresh("c2")
        for counter in self.plan.counters:
            if self._next[counter]:
                await asyncio.gather(*(each.client.spawn(each.collect(counter)) for each in (one, other, one)))
                await one.client.spawn(one.collect(counter))
                left, tally = await self._rows(one, counter)
                if left:
                    says = f"{left} shards are left after collecting, tally through {tally.through_us}"
                    self.violations.append(Violation(7, counter, says))
        await self._look(other)

    async def _rows(self, process: _Process, counter: str) -> tuple[int, Tally]:
        page = await process.client.spawn(process.client.store.read(Slice(COUNTERS, (counter,))))
        shards = [row for row in page.rows if row.key != TALLY_KEY]
        tally = [row for row in page.rows if row.key == TALLY_KEY]
        return len(shards), tally_of(tally[0] if tally else None, counter)

    async def years_later(self) -> None:
        """Tombstones are long gone, and all that was ever sent is sent again."""
        await asyncio.sleep(YEARS_S)
        for (table, _), partition in self.world.partitions.items():
            if table == COUNTERS.name:
                partition.fold(self.now_s)
                partition.agreed.cleared.clear()
        client = self.world.client("years")
        again = [batch for _, batch in self._sent]
        self.chance.shuffle(again)
        for batch in again[:400]:
            await self._send_again(client, batch)
        reader = self._fresh("late")
        await self._look(reader)
        for counter in self.plan.counters:
            if self._next[counter]:
                await reader.client.spawn(reader.collect(counter))
        await self._look(reader)


async def _after(wait_s: float, act: Any, counter: str) -> None:
    await asyncio.sleep(wait_s)
    await act(counter)
