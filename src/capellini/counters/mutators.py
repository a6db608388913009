"""Mutators: <mutator id, state, expires at>. One takes the updates of one counter in one process, and never reads.

    born ──updates──▶ taking ──less than last_s left──▶ refuses and dies; the next update makes a new one
                        │ └──culled, least recently used first──▶ dies; all it confirmed is in its shard
                        └──its writes failed for too long──▶ dies; what it had not confirmed is not, and is said so

Its shard is always written whole, with a timestamp of its own that only rises and stays below `expires at`: repeating
or reordering writes changes nothing. Time is judged by both clocks, wall time and elapsed time, whichever says later:
one that jumps back, or slept for days, gives nobody a longer life.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

from capellini.counters.states.interface import Stamp, State
from capellini.counters.times import Times
from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError

ID_BITS: Final = 96  # of chance: no two mutators of a counter are the same
OVERHEAD_BYTES: Final = 700  # a mutator without its state
ROLL_BYTES: Final = 262_144  # a larger state is not written again and again: a new mutator takes over


class Mutator:
    __slots__ = (
        "adders", "applied", "born_elapsed_s", "dead", "expires_us", "gathered", "id", "kind", "loose", "lost", "name",
        "size", "stamp_us", "state", "task", "waiting", "weight", "why", "written",
    )  # fmt: skip

    def __init__(self, name: str, kind: type[State], id: str, now_us: int, elapsed_s: float, times: Times) -> None:
        self.name = name
        self.kind = kind
        self.id = id
        self.state = kind()
        self.born_elapsed_s = elapsed_s
        self.expires_us = now_us + times.life_us
        self.stamp_us = 0  # of its last write
        self.applied = 0  # updates taken
        self.written = 0  # ... of which so many are confirmed
        self.loose = 0  # ... and so many of the others nobody waits for: `flush` answers for them
        self.adders: set[asyncio.Task[Any]] = set()  # the tasks that made those
        self.lost = False  # a write since the last confirmed one may have been done
        self.dead = False
        self.why: CapelliniError | None = None  # it died, for those who are told
        self.gathered = 0  # callers that the last write had
        self.size = 0  # in memory, as the fleet counts it
        self.weight = 0  # of its state, as stored
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.task: asyncio.Task[None] | None = None

    @property
    def dirty(self) -> bool:
        return self.applied > self.written


# ---- decisions


def left_us(expires_us: int, now_us: int, born_elapsed_s: float, elapsed_s: float, times: Times) -> int:
    """How long a mutator has still to live, by the clock that says less."""
    return min(expires_us - now_us, times.life_us - int((elapsed_s - born_elapsed_s) * 1e6))


def takes_updates(left: int, times: Times) -> bool:
    return left >= times.last_us


def may_confirm(left: int) -> bool:
    """What was written is confirmed only before the mutator expires: later a collector may have passed."""
    return left > 0


def next_stamp(stamp_us: int, now_us: int, expires_us: int) -> int | None:
    """The timestamp of the next write: above the last, below expiry. None: there is none left."""
    stamp = max(stamp_us + 1, now_us)
    return stamp if stamp < expires_us else None


# ---- all mutators of a process


class Fleet:
    """At most one taking mutator per counter, least recently used first, within a limit of memory."""

    def __init__(self, clock: Clock, random: Chance, times: Times, memory_bytes: int) -> None:
        self._clock = clock
        self._random = random
        self._times = times
        self._memory_bytes = memory_bytes
        self._taking: OrderedDict[str, Mutator] = OrderedDict()
        self._bytes = 0
        self._stamp_us = 0

    def __len__(self) -> int:
        return len(self._taking)

    def __iter__(self) -> Iterator[Mutator]:
        return iter(self._taking.values())

    @property
    def full(self) -> bool:
        return self._bytes > self._memory_bytes

    @property
    def bytes(self) -> int:
        return self._bytes

    def now_us(self) -> int:
        return int(self._clock.now_s() * 1e6)

    def left_us(self, mutator: Mutator) -> int:
        return left_us(mutator.expires_us, self.now_us(), mutator.born_elapsed_s, self._clock.elapsed_s(), self._times)

    def find(self, name: str) -> Mutator | None:
        """The one that takes updates of this counter now. One that refuses is not it."""
        found = self._taking.get(name)
        if found is None or found.dead or found.weight > ROLL_BYTES:
            return None
        return found if takes_updates(self.left_us(found), self._times) else None

    def make(self, name: str, kind: type[State]) -> tuple[Mutator, Mutator | None]:
        """A new one, and the one it replaces."""
        before = self.remove(name)
        id = f"{self._random.getrandbits(ID_BITS):024x}"
        made = Mutator(name, kind, id, self.now_us(), self._clock.elapsed_s(), self._times)
        self._taking[name] = made
        return made, before

    def clear(self) -> None:
        """All are confirmed, and nobody updates any more. (The library of sketches complains about those that there are
        when Python ends.)"""
        self._taking.clear()
        self._bytes = 0

    def stamp(self, mutator: Mutator) -> Stamp:
        """When an update is made: rises with each, also if the clock does not."""
        self._stamp_us = max(self.now_us(), self._stamp_us + 1)
        return Stamp(self._stamp_us, mutator.id)

    def used(self, mutator: Mutator) -> None:
        """It has taken updates: it is the most recent one, and may have grown."""
        if self._taking.get(mutator.name) is mutator:
            self._taking.move_to_end(mutator.name)
            mutator.weight = mutator.state.weight()
            size = OVERHEAD_BYTES + mutator.state.memory()
            self._bytes += size - mutator.size
            mutator.size = size

    def remove(self, name: str, only: Mutator | None = None) -> Mutator | None:
        found = self._taking.get(name)
        if found is None or (only is not None and found is not only):
            return None
        del self._taking[name]
        self._bytes -= found.size
        return found

    def cull(self) -> int:
        """While memory is short, the least recently used go, of those that have nothing unconfirmed. How many."""
        if not self.full:
            return 0
        idle, short = [], self._bytes - self._memory_bytes
        for each in self._taking.values():  # no copy of all that there are: this may come with every update
            if short <= 0:
                break
            if not each.dirty and each.task is None:
                idle.append(each)
                short -= each.size
        for mutator in idle:
            self.remove(mutator.name)
            mutator.dead = True
        return len(idle)
