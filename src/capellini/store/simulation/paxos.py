"""Compare-and-set: one at a time per partition, decided by a quorum, and slow when many want it at once.

    submit ──▶ prepare and read ──▶ propose: decided here, on what a quorum has ──▶ commit to the replicas ──▶ answer
                   │                    ├─ stalled: proposes much later, if no other ballot came meanwhile
                   │                    └─ accepted by too few: the next round finishes it, or never sees it
                   └─ another is under way: wait, back off, set each other back; too long: the answer is lost

Each decision gets a ballot: the coordinator's time, but always above the last one of the partition. Its cells carry
the ballot as timestamp, so that decisions win over each other in their order whatever the clocks say. A decision that a
quorum accepted is seen by each later one even if it was committed nowhere yet, since two quorums share a replica.

A scope (the world, or one data centre) is linear by itself only: mixing scopes on one partition is as wrong here as on
a real cluster.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capellini.model.errors import Unavailable, Unknown
from capellini.store.interface import Cas, Level, Page, Slice
from capellini.store.simulation.cells import NEVER, Delta, delta_of_cas
from capellini.store.simulation.network import answer
from capellini.store.simulation.replica import EPOCH_S, Mutation, Partition, Replica, bits_of
from capellini.store.simulation.view import judge, page_of

if TYPE_CHECKING:
    from capellini.store.simulation.client import SimulatedClient
    from capellini.store.simulation.world import World

CONTENTION_TIMEOUT_S: Final = 1.8  # Cassandra's cas_contention_timeout
BACKOFF_S: Final = 0.002  # per contender: the more there are, the longer each waits before its next ballot
MOST_BACKOFFS: Final = 16
SET_BACK: Final = 0.3  # how often a newcomer's ballot takes the promise from the one under way, which then tries again


class Round(msgspec.Struct, eq=False):
    """One compare-and-set or serial read on its way through Paxos."""

    asks: Cas | Slice
    client: SimulatedClient
    coordinator: Replica
    future: asyncio.Future[Any] | None  # None: nobody waits any more
    deadline_s: float
    fate: str | None = None
    since_s: float = 0.0
    set_back_s: float = 0.0


class Paxos:
    """The rounds of one partition in one scope."""

    __slots__ = ("ballot_us", "current", "level", "limbo", "need", "partition", "places", "turns", "waiting", "world")

    def __init__(self, world: World, partition: Partition, level: Level, places: tuple[int, ...], need: int) -> None:
        self.world = world
        self.partition = partition
        self.level = level
        self.places = places
        self.need = need
        self.ballot_us = 0
        self.turns = 0
        self.current: Round | None = None
        self.waiting: list[Round] = []
        self.limbo: Mutation | None = None  # accepted by too few to be decided

    # ---- taking turns

    def submit(self, round: Round, sent_s: float = 0.0) -> None:
        """`sent_s`: what the way to the coordinator takes."""
        world = self.world
        round.since_s = world.loop._now_s
        if self.current is None:
            self._begin(round, sent_s)
            return
        world.contention += 1
        self.waiting.append(round)
        if world.random.random() < SET_BACK:
            self.current.set_back_s += 2 * world.network.delay()

    def _begin(self, round: Round, wait_s: float) -> None:
        self.current = round
        network, loop = self.world.network, self.world.loop
        if network.far_s and len(self.places) == len(self.partition.replicas):
            wait_s += 4 * network.far_s if isinstance(round.asks, Cas) else 2 * network.far_s
        if network.slow:
            wait_s += network.round_trip()
            if isinstance(round.asks, Cas):
                wait_s += network.round_trip()
        else:
            bits = network.random.getrandbits(20)
            wait_s += network.trips[bits & 1023]
            if isinstance(round.asks, Cas):
                wait_s += network.trips[bits >> 10]
        loop.at(loop._now_s + wait_s, self._decide, round)

    def _decide(self, round: Round) -> None:
        world = self.world
        if round.set_back_s:
            back_s, round.set_back_s = round.set_back_s, 0.0
            world.loop.at(world.loop.time() + back_s, self._decide, round)
            return
        self.current = None
        try:
            self._turn(round)
        finally:
            if self.waiting:
                self._next()

    def _next(self) -> None:
        world, waiting = self.world, self.waiting
        now_s = world.loop.time()
        for round in [each for each in waiting if now_s - each.since_s > CONTENTION_TIMEOUT_S]:
            waiting.remove(round)
            world.faults["contention_timeout"] += 1
            self._fail(round, Unknown("too many compare-and-sets on one partition at once: this one timed out"))
        if waiting:
            chosen = waiting.pop(int(world.random.random() * len(waiting)))
            self._begin(chosen, world.random.random() * BACKOFF_S * min(len(waiting) + 1, MOST_BACKOFFS))

    # ---- a decision

    def _turn(self, round: Round) -> None:
        world, partition = self.world, self.partition
        network, now_s = world.network, world.loop._now_s
        if round.coordinator.paused_until_s > now_s:  # it begins again when it goes on; others do not wait for it
            self._lose(round)
            world.later("late_cas", self.submit, round, at_s=round.coordinator.paused_until_s)
            return
        answering = network.answering(round.coordinator, partition, self.places) if network.troubled else self.places
        if len(answering) < self.need:
            self._too_few(round)
            return
        contacted = network.contact(answering, self.need)
        self.turns += 1
        if self.limbo is not None:
            self._settle_limbo(self.limbo, contacted, now_s)
        wall_s = EPOCH_S + now_s + round.coordinator.offset_s
        self.ballot_us = max(int(wall_s * 1e6), self.ballot_us + 2)  # a drop takes the number below its own
        parts = partition.seen(contacted, now_s, serial=True)
        asks = round.asks
        if isinstance(asks, Slice):
            self._answer(round, page_of(parts, asks, partition.ordering, wall_s), now_s)
            return
        outcome = judge(parts, asks, partition.ordering, wall_s)
        if not outcome.applied:
            self._answer(round, outcome, now_s)
            return
        delta = delta_of_cas(asks, partition.ordering, self.ballot_us, wall_s)
        if round.fate == "stall_cas":
            world.later("late_cas", self._propose_late, round, delta, self.turns)
            self._lose(round)
        elif round.fate == "limbo_cas" and self.need > 1:
            world.faults["limbo_cas"] += 1
            self.limbo = Mutation(delta, [NEVER] * len(partition.replicas), bits_of(world.network.some(answering, 1)))
            self._lose(round)
        else:
            self._commit(round, delta, contacted, outcome)

    def _too_few(self, round: Round) -> None:
        """No quorum answered the first message: nothing was proposed. The client knows so only if refused at once."""
        world = self.world
        known = world.network.believed(round.coordinator, self.partition, self.places)
        if known < self.need:
            world.faults["unavailable"] += 1
            self._fail(round, Unavailable(f"{known} of the {self.need} replicas that are needed are up"))
        else:
            world.faults["lost_answer_not_applied"] += 1
            self._lose(round)

    def _commit(self, round: Round, delta: Delta, contacted: int, outcome: object) -> None:
        world, partition = self.world, self.partition
        network, now_s = world.network, world.loop._now_s
        scope = partition.placement.scope(self.level, round.coordinator.dc)
        if network.troubled:
            arrivals, done_s = self._send(round.coordinator, now_s)
        elif network.some_slow(scope.messages):
            with network.slowly():
                arrivals, done_s = self._send(round.coordinator, now_s)
        else:
            way = network.way(scope)
            arrivals = [now_s + each_s for each_s in way.arrivals_s]
            done_s = now_s + way.acked_s
        partition.add(Mutation(delta, arrivals, contacted), world.unsynced_s, now_s)
        if done_s > now_s + CONTENTION_TIMEOUT_S or round.fate == "lost_answer":
            world.faults["lost_answer_applied"] += 1
            self._lose(round)
        else:
            self._answer(round, outcome, done_s)

    def _send(self, coordinator: Replica, now_s: float) -> tuple[list[float], float]:
        """When a decision reaches each replica, message by message, and when the coordinator knows of enough."""
        network = self.world.network
        arrivals = network.arrivals(coordinator, self.partition, now_s)
        return arrivals, sorted([arrivals[place] for place in self.places])[self.need - 1] + network.delay()

    def _propose_late(self, round: Round, delta: Delta, turn: int) -> None:
        world = self.world
        answering = world.network.answering(round.coordinator, self.partition, self.places)
        if self.turns != turn or self.limbo is not None or len(answering) < self.need:
            world.faults["late_cas_superseded"] += 1
            return
        world.faults["late_cas_applied"] += 1
        self.turns += 1
        round.future = None
        self._commit(round, delta, world.network.contact(answering, self.need), None)

    def _settle_limbo(self, limbo: Mutation, contacted: int, now_s: float) -> None:
        self.limbo = None
        if not limbo.accepted & contacted:
            self.world.faults["limbo_cas_void"] += 1
            return
        self.world.faults["limbo_cas_finished"] += 1
        arrivals = [now_s if contacted >> place & 1 else NEVER for place in range(len(self.partition.replicas))]
        self.partition.add(Mutation(limbo.delta, arrivals, contacted), self.world.unsynced_s, now_s)

    # ---- answers

    def _answer(self, round: Round, result: Page | object, done_s: float) -> None:
        if round.future is None:
            return
        network = self.world.network
        if round.fate is None and not network.troubled and not network.slow:  # the usual way, with fewer steps
            at_s = done_s + network.table[network.random.getrandbits(10)]
            if at_s <= round.deadline_s:
                self.world.loop.at(at_s, answer, round.future, result)
                return
        if round.fate == "lost_answer":
            self.world.faults["lost_answer_not_applied" if isinstance(round.asks, Cas) else "lost_read"] += 1
            self._lose(round)
            return
        self.world.deliver(round.client, round.coordinator, round.future, result, done_s, round.deadline_s)

    def _fail(self, round: Round, error: Exception) -> None:
        if round.future is not None:
            world = self.world
            world.deliver(round.client, round.coordinator, round.future, error, world.loop.time(), round.deadline_s)

    def _lose(self, round: Round) -> None:
        if round.future is not None:
            self.world.lose_answer(round.future, round.deadline_s)
