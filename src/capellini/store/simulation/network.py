"""Who reaches whom, when, and who believes whom to be up.

A message takes a delay from a table that was drawn from the seed (most are short, a few take ten times as long; looking
up is quick). So does the way of a write to all replicas and back while nothing is wrong: some hundred ways are drawn as
they are needed, and taken again and again. A cut link or a server that is down takes a message for good; a paused
server reads it when it goes on. That a server is gone is noticed only after a while: until then requests are sent to it
in vain.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from capellini.store.interface import Key, Level, Table
from capellini.store.simulation.cells import NEVER
from capellini.store.simulation.loop import VirtualLoop
from capellini.store.simulation.replica import Partition, Replica, bits_of

MEAN_DELAY_S: Final = 0.0005  # one way, with what the server does: a write is some 2 ms, a compare-and-set some 4
FAR_S: Final = 0.030  # more, between data centres
NOTICED_S: Final = 2.0  # until a server that is gone is believed to be
CLIENT_TIMEOUT_S: Final = 5.0  # when a client gives up on an answer: longer than the servers' own time-outs
SLOW_MOST_S: Final = 1.5
SLOW_TOGETHER: Final = 0.25  # how many messages of a request are slow when one is
DELAYS: Final = 1024  # in the table: ten random bits find one
WAYS: Final = 256  # eight random bits: more than a short run takes, few enough that most were drawn before


Seat = tuple[int, str, Key]  # where a partition comes in a list of all: by token, and what tells apart those of one


class Way(msgspec.Struct, frozen=True, gc=False):
    """From a coordinator to all replicas and back, in seconds after it sends."""

    arrivals_s: tuple[float, ...]  # by place
    acked_s: float  # enough of those that count have answered


class Scope(msgspec.Struct, frozen=True):
    """What a level needs in a data centre."""

    places: tuple[int, ...]  # of the replicas that count
    need: int  # how many of them must answer
    far_s: tuple[float, ...]  # how much farther each replica is, by place
    ways: list[Way | None]  # drawn so far
    messages: int  # that a write sends


class Placement:
    """The replicas of some partitions, and which of them each level needs."""

    __slots__ = ("_far_s", "_scopes", "replicas")

    def __init__(self, replicas: tuple[Replica, ...], dcs: tuple[str, ...], far_s: float) -> None:
        self.replicas = replicas
        self._scopes: dict[tuple[str, str], Scope] = {}  # by the level's value: that hashes quickly
        self._far_s = {
            dc: tuple(0.0 if replica.dc == dc else far_s for replica in replicas) for dc in dcs
        }  # how much farther each is from a data centre

    def scope(self, level: Level, dc: str) -> Scope:
        found = self._scopes.get((level._value_, dc))
        if found is None:
            local = level in (Level.LOCAL_ONE, Level.LOCAL_QUORUM, Level.LOCAL_SERIAL)
            places = tuple(at for at, replica in enumerate(self.replicas) if not local or replica.dc == dc)
            match level:
                case Level.ONE | Level.LOCAL_ONE:
                    need = 1
                case Level.ALL:
                    need = len(places)
                case _:
                    need = len(places) // 2 + 1
            messages = 2 + 2 * len(self.replicas)
            found = Scope(places, need, self._far_s[dc], [None] * WAYS, messages)
            self._scopes[level._value_, dc] = found
        return found


class Network:
    def __init__(self, loop: VirtualLoop, chance: random.Random, replicas: tuple[Replica, ...], slow: float) -> None:
        self.loop = loop
        self.random = chance
        self.replicas = replicas
        self.dcs = tuple(dict.fromkeys(replica.dc for replica in replicas))
        self.near = {dc: [replica for replica in replicas if replica.dc == dc] for dc in self.dcs}
        self.far_s = FAR_S if len(self.dcs) > 1 else 0.0
        self.slow = slow
        self.cuts: dict[tuple[str, str], float] = {}  # since when
        self.troubled = False  # something is down, paused or cut: look closely
        spread = [MEAN_DELAY_S * (0.4 + 0.4 * chance.expovariate(1)) for _ in range(DELAYS)]
        self.table = [each * (10 if at % 64 == 0 else 1) for at, each in enumerate(spread)]
        self.trips = [there + back for there, back in zip(self.table, reversed(self.table), strict=True)]
        self._turned: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}

    def delay(self) -> float:
        if self.slow and self.random.random() < self.slow:
            return self.random.uniform(0.01, SLOW_MOST_S)
        return self.table[self.random.getrandbits(10)]

    def round_trip(self) -> float:
        trip_s = self.trips[self.random.getrandbits(10)]
        if self.slow and self.random.random() < 2 * self.slow:
            return trip_s + self.random.uniform(0.01, SLOW_MOST_S)
        return trip_s

    def some(self, places: Sequence[int], need: int) -> Sequence[int]:
        """Any `need` of them."""
        if need >= len(places):
            return places
        first = int(self.random.random() * len(places))
        turned = (*places[first:], *places[:first])
        return turned[:need]

    def contact(self, places: Sequence[int], need: int) -> int:
        """Bits: any `need` of them."""
        asked = tuple(places), need
        turned = self._turned.get(asked)
        if turned is None:
            twice = (*places, *places)
            several = len(places) if need < len(places) else 1
            turned = tuple(bits_of(twice[first : first + min(need, len(places))]) for first in range(several))
            self._turned[asked] = turned
        return turned[0] if len(turned) == 1 else turned[int(self.random.random() * len(turned))]

    # ---- links

    def is_cut(self, one: str, other: str) -> bool:
        return bool(self.cuts) and (min(one, other), max(one, other)) in self.cuts

    def reaches(self, one: str, replica: Replica) -> bool:
        return replica.up and (one == replica.name or not self.is_cut(one, replica.name))

    def believes(self, one: str, replica: Replica) -> bool:
        """Whether `one` takes the replica to be up."""
        noticed_s = self.loop.time() - NOTICED_S
        if not replica.up and replica.down_since_s <= noticed_s:
            return False
        since_s = self.cuts.get((min(one, replica.name), max(one, replica.name))) if self.cuts else None
        return since_s is None or since_s > noticed_s or one == replica.name

    def look(self) -> None:
        """Something changed: is anything wrong now?"""
        now_s = self.loop.time()
        self.troubled = bool(self.cuts) or any(not each.up or each.paused_until_s > now_s for each in self.replicas)

    # ---- messages

    def arrival(self, one: str, one_dc: str, replica: Replica, sent_s: float) -> float:
        """When a message reaches a replica; NEVER if it does not."""
        if not self.reaches(one, replica):
            return NEVER
        at_s = sent_s + self.delay() + (self.far_s if one_dc != replica.dc else 0.0)
        return at_s if replica.paused_until_s <= at_s else replica.paused_until_s + self.delay()

    def arrivals(self, coordinator: Replica, partition: Partition, sent_s: float) -> list[float]:
        """Message by message."""
        return [self.arrival(coordinator.name, coordinator.dc, replica, sent_s) for replica in partition.replicas]

    def way(self, scope: Scope) -> Way:
        """How a write goes while nothing is wrong."""
        number = self.random.getrandbits(8)
        return scope.ways[number] or self._draw(scope, number)

    def _draw(self, scope: Scope, number: int) -> Way:
        table, getrandbits = self.table, self.random.getrandbits
        arrivals_s = tuple([table[getrandbits(10)] + more_s for more_s in scope.far_s])
        acks = [arrivals_s[place] + table[getrandbits(10)] + scope.far_s[place] for place in scope.places]
        way = scope.ways[number] = Way(arrivals_s, sorted(acks)[scope.need - 1])
        return way

    def some_slow(self, messages: int) -> bool:
        """Whether any of so many messages is slow; then `slowly` is how to send them."""
        return bool(self.slow) and self.random.random() < self.slow * messages

    @contextmanager
    def slowly(self) -> Iterator[None]:
        slow, self.slow = self.slow, SLOW_TOGETHER
        try:
            yield
        finally:
            self.slow = slow

    def answering(self, coordinator: Replica, partition: Partition, places: Sequence[int]) -> Sequence[int]:
        """Which replicas would answer the coordinator now."""
        if not self.troubled:
            return places
        now_s = self.loop.time()
        if not coordinator.up:
            return ()
        replicas = partition.replicas
        return [
            place
            for place in places
            if replicas[place].paused_until_s <= now_s and self.reaches(coordinator.name, replicas[place])
        ]

    def believed(self, coordinator: Replica, partition: Partition, places: Sequence[int]) -> int:
        return sum(self.believes(coordinator.name, partition.replicas[place]) for place in places)

    def coordinator(self, name: str, dc: str) -> Replica | None:
        """Whom a client asks: any server of its data centre that it takes to be up."""
        near = self.near[dc]
        if self.troubled:
            near = [replica for replica in near if self.believes(name, replica)]
            if not near:
                return None
        return near[int(self.random.random() * len(near))]


def token(table: Table, key: Key) -> int:
    """A key's place in the ring: the same in every process."""
    return zlib.crc32(repr((table.name, key)).encode())


def seat_of(table: Table, key: Key) -> Seat:
    return token(table, key), repr(key), key


def answer(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
