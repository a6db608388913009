"""Replicas: servers that keep partitions and coordinate requests for each other.

A write is one *mutation* with the time at which it reaches each replica. Nobody copies rows about: what a replica has
at a time is all that reached it by then. Three stages, so that nothing is kept longer than it differs:

    pending   on its way: some replica has it not yet, or not yet synced
    behind    it will not reach some replicas by itself (they were down, or cut off): merged per set of those
    agreed    every replica has it

A read of some replicas is the merge of agreed, of what is behind elsewhere, and of what reached any of them.
Hints bring what is behind to a replica that came back; a quorum read repairs what it sees; a crash turns what was on
its way into something missed, and with a periodic commit log also what was not synced yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from capellini.store.interface import Key, Table
from capellini.store.simulation.cells import NEVER, Delta, Ordering, State

if TYPE_CHECKING:
    from capellini.store.simulation.network import Placement
    from capellini.store.simulation.paxos import Paxos

FOLD_AT: Final = 16  # mutations pending: more than are usually on their way
EPOCH_S: Final = 1_700_000_000.0  # the wall time at which every run begins
PERIOD_S: Final = 10.0  # how long a periodic commit log leaves writes unsynced, at most


class Replica:
    """One server. `number` is its place in the world."""

    __slots__ = ("dc", "down_since_s", "name", "number", "offset_s", "paused_until_s", "up")

    def __init__(self, number: int, name: str, dc: str) -> None:
        self.number = number
        self.name = name
        self.dc = dc
        self.up = True
        self.down_since_s = -NEVER
        self.paused_until_s = -NEVER
        self.offset_s = 0.0  # how far its wall clock is ahead


class Mutation(msgspec.Struct, gc=False):
    """A write and when it is where. `arrivals` and `accepted` are by place in the partition's list of replicas."""

    delta: Delta
    arrivals: list[float]
    accepted: int = 0  # bits: replicas whose Paxos state has it, whether it was committed there or not
    settled_s: float = 0.0  # when nothing more happens to it by itself

    def there(self, now_s: float) -> int:
        """Bits: where it has arrived."""
        bits, bit = 0, 1
        for arrival in self.arrivals:
            if arrival <= now_s:
                bits |= bit
            bit <<= 1
        return bits

    def missed(self) -> int:
        """Bits: where it will not arrive by itself."""
        return sum(1 << place for place, arrival in enumerate(self.arrivals) if arrival == NEVER)


class Partition:
    """One partition on all its replicas."""

    __slots__ = (
        "_fold_at",
        "agreed",
        "behind",
        "everywhere",
        "key",
        "ordering",
        "paxos",
        "pending",
        "placement",
        "places",
        "replicas",
        "table",
    )

    def __init__(self, table: Table, key: Key, placement: Placement, ordering: Ordering) -> None:
        self.table = table
        self.key = key
        self.placement = placement
        self.replicas = replicas = placement.replicas
        self.ordering = ordering
        self.places = {replica.number: place for place, replica in enumerate(replicas)}
        self.everywhere = (1 << len(replicas)) - 1
        self.agreed = State()
        self.behind: dict[int, State] = {}  # by the bits of those who lack it
        self.pending: list[Mutation] = []
        self._fold_at = FOLD_AT
        self.paxos: dict[str | None, Paxos] = {}  # by scope: None is all of the world

    def add(self, mutation: Mutation, unsynced_s: float, now_s: float) -> None:
        last_s = max(mutation.arrivals)
        if last_s == NEVER:
            self._time(mutation, unsynced_s)
        else:
            mutation.settled_s = last_s + unsynced_s
        pending = self.pending
        pending.append(mutation)
        if len(pending) > self._fold_at:  # written, but never read
            self.fold(now_s)
            self._fold_at = 2 * len(self.pending) + FOLD_AT

    def _time(self, mutation: Mutation, unsynced_s: float) -> None:
        last_s = max(mutation.arrivals)
        if last_s == NEVER:
            last_s = max((at for at in mutation.arrivals if at != NEVER), default=0.0)
        mutation.settled_s = last_s + unsynced_s

    def fold(self, now_s: float) -> None:
        """Move what has settled from pending to agreed or behind."""
        kept = []
        for mutation in self.pending:
            if mutation.settled_s > now_s:
                kept.append(mutation)
                continue
            if NEVER not in mutation.arrivals:
                self.agreed.absorb(mutation.delta)
                continue
            missed = mutation.missed()
            if missed & mutation.accepted:
                kept.append(mutation)  # Paxos still has it where it was not committed
            elif missed != self.everywhere:  # else it is lost: nobody ever had it, or nobody has it any more
                self._lag(missed, mutation.delta)
        self.pending = kept

    def _lag(self, missed: int, delta: Delta | State) -> None:
        if not missed:
            self.agreed.absorb(delta)
            return
        state = self.behind.get(missed)
        if state is None:
            state = self.behind[missed] = State()
        state.absorb(delta)

    def seen(self, contacted: int, now_s: float, serial: bool = False) -> list[Delta | State]:
        """All that any of the contacted replicas has. Serial: also what their Paxos state has, then committed there."""
        if self.pending:
            self.fold(now_s)
        found: list[Delta | State] = [self.agreed]
        if not self.pending and not self.behind:
            return found
        found += [state for missed, state in self.behind.items() if contacted & ~missed]
        for mutation in self.pending:
            there = mutation.there(now_s)
            if serial and mutation.accepted & contacted & ~there:
                self._arrive(mutation, contacted, now_s)
                there |= contacted
            if there & contacted:
                found.append(mutation.delta)
        return found

    def repair(self, contacted: int, quorum: int, now_s: float) -> None:
        """What a read of these saw on some of them is on all of them before it is answered."""
        for mutation in self.pending:
            there = mutation.there(now_s)
            if there & contacted and contacted & ~there:
                self._arrive(mutation, contacted, now_s)
        for missed in [bits for bits in self.behind if bits & contacted and contacted & ~bits]:
            if (self.everywhere & ~missed).bit_count() < quorum:  # else every quorum sees it anyway
                self._lag(missed & ~contacted, self.behind.pop(missed))

    def _arrive(self, mutation: Mutation, places: int, now_s: float) -> None:
        arrivals = mutation.arrivals
        mutation.arrivals = [min(at, now_s) if places >> place & 1 else at for place, at in enumerate(arrivals)]
        self._time(mutation, 0.0)

    # ---- what happens to a replica

    def lose(self, place: int, now_s: float, unsynced_s: float) -> int:
        """The replica crashed: what was on its way is missed, and what it had not synced; how many of the latter."""
        lost, bit = 0, 1 << place
        for mutation in self.pending:
            at = mutation.arrivals[place]
            if at > now_s - unsynced_s and at != NEVER:
                lost += at <= now_s
                mutation.arrivals[place] = NEVER
                if unsynced_s:
                    mutation.accepted &= ~bit
                self._time(mutation, unsynced_s)
        return lost

    def stall(self, place: int, now_s: float, until_s: float) -> None:
        """The replica stands still: what is on its way is read when it goes on."""
        for mutation in self.pending:
            if now_s < mutation.arrivals[place] < until_s:
                mutation.arrivals[place] = until_s
                self._time(mutation, max(0.0, mutation.settled_s - until_s))

    def hasten(self, now_s: float) -> None:
        """What is on its way anywhere is there."""
        for mutation in self.pending:
            mutation.arrivals = [at if at == NEVER else min(at, now_s) for at in mutation.arrivals]
            self._time(mutation, 0.0)

    def lagging(self, place: int) -> bool:
        bit = 1 << place
        return any(bits & bit for bits in self.behind) or any(m.arrivals[place] == NEVER for m in self.pending)

    def hint(self, place: int, now_s: float) -> None:
        """What the replica missed arrives."""
        bit = 1 << place
        for mutation in self.pending:
            if mutation.arrivals[place] == NEVER and mutation.there(now_s):
                mutation.arrivals[place] = now_s
                self._time(mutation, 0.0)
        for missed in [bits for bits in self.behind if bits & bit]:
            self._lag(missed & ~bit, self.behind.pop(missed))


def bits_of(places: Iterable[int]) -> int:
    bits = 0
    for place in places:
        bits |= 1 << place
    return bits
