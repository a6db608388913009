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

from capellini.model.errors import Unavailable, Unknown
from capellini.store.interface import Cas, Page, Slice
from capellini.store.simulation.cells import NEVER, Delta, cells_of
from capellini.store.simulation.replica import Mutation, Partition, Replica, bits_of
from capellini.store.simulation.view import judge, page_of

if TYPE_CHECKING:
    from capellini.store.simulation.client import SimulatedClient
    from capellini.store.simulation.world import World

CONTENTION_TIMEOUT_S: Final = 1.8  # Cassandra's cas_contention_timeout
BACKOFF_S: Final = 0.002  # per contender: the more there are, the longer each waits before its next ballot
MOST_BACKOFFS: Final = 16
SET_BACK: Final = 0.3  # how often a newcomer's ballot takes the promise from the one under way, which then tries again


class Round:
    """One compare-and-set or serial read on its way through Paxos."""

    __slots__ = ("asks", "client", "coordinator", "deadline_s", "fate", "future", "set_back_s", "since_s")

    def __init__(
        self,
        asks: Cas | Slice,
        client: SimulatedClient,
        coordinator: Replica,
        future: asyncio.Future[Any] | None,
        deadline_s: float,
        fate: str | None = None,
    ) -> None:
        self.asks = asks
        self.client = client
        self.coordinator = coordinator
        self.future = future  # None: nobody waits any more
        self.deadline_s = deadline_s
        self.fate = fate
        self.since_s = 0.0
        self.set_back_s = 0.0


class Paxos:
    """The rounds of one partition in one scope."""

    __slots__ = ("ballot_us", "current", "limbo", "need", "partition", "places", "turns", "waiting", "world")

    def __init__(self, world: World, partition: Partition, places: tuple[int, ...], need: int) -> None:
        self.world = world
        self.partition = partition
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
        round.since_s = world.loop.time()
        if self.current is None:
            self._begin(round, sent_s)
            return
        world.contention += 1
        self.waiting.append(round)
        if world.random.random() < SET_BACK:
            self.current.set_back_s += 2 * world.network.delay()

    def _begin(self, round: Round, wait_s: float) -> None:
        self.current = round
        world = self.world
        far_s = world.network.far_s if len(self.places) == len(self.partition.replicas) else 0.0
        trip_s = world.network.round_trip() + 2 * far_s
        if isinstance(round.asks, Cas):
            trip_s += world.network.round_trip() + 2 * far_s
        world.loop.at(world.loop.time() + wait_s + trip_s, self._decide, round)

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
        now_s = world.loop.time()
        if round.coordinator.paused_until_s > now_s:  # it begins again when it goes on; others do not wait for it
            self._lose(round)
            world.later("late_cas", self.submit, round, at_s=round.coordinator.paused_until_s)
            return
        answering = world.network.answering(round.coordinator, partition, self.places)
        if len(answering) < self.need:
            self._too_few(round)
            return
        contacted = bits_of(world.network.some(answering, self.need))
        self.turns += 1
        self._settle_limbo(contacted, now_s)
        wall_s = world.wall_s(round.coordinator)
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
        delta = delta_of(asks, partition, self.ballot_us, wall_s)
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
        now_s = world.loop.time()
        arrivals = world.network.arrivals(round.coordinator, partition, now_s)
        partition.add(Mutation(delta, arrivals, contacted), world.unsynced_s, now_s)
        acks = sorted(arrivals[place] for place in self.places)
        done_s = acks[self.need - 1] + world.network.delay()
        if done_s > now_s + CONTENTION_TIMEOUT_S or round.fate == "lost_answer":
            world.faults["lost_answer_applied"] += 1
            self._lose(round)
        else:
            self._answer(round, outcome, done_s)

    def _propose_late(self, round: Round, delta: Delta, turn: int) -> None:
        world = self.world
        answering = world.network.answering(round.coordinator, self.partition, self.places)
        if self.turns != turn or self.limbo is not None or len(answering) < self.need:
            world.faults["late_cas_superseded"] += 1
            return
        world.faults["late_cas_applied"] += 1
        self.turns += 1
        round.future = None
        self._commit(round, delta, bits_of(world.network.some(answering, self.need)), None)

    def _settle_limbo(self, contacted: int, now_s: float) -> None:
        limbo, self.limbo = self.limbo, None
        if limbo is None:
            return
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


def delta_of(cas: Cas, partition: Partition, ballot_us: int, wall_s: float) -> Delta:
    expires_s = NEVER if cas.ttl_s is None else wall_s + cas.ttl_s
    order = partition.ordering.order
    rows = []
    static = None
    for change in cas.changes:
        cells = cells_of(change.values, ballot_us, expires_s)
        if change.key is None:
            static = cells
        else:
            rows.append((order(change.key), cells))
    return Delta(rows, static, ballot_us - 1 if cas.drop else 0)
