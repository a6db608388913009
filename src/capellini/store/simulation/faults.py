"""What can go wrong, how often, and the hand that does it.

Chances are per request; `..._every_s` are mean times between two faults of a kind in the whole world (0: never). All
chance comes from the world's seed. Everything that happened is counted by kind in `world.faults`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from capellini.store.simulation.replica import Replica

if TYPE_CHECKING:
    from capellini.store.simulation.client import SimulatedClock
    from capellini.store.simulation.world import World


class Faults(msgspec.Struct, frozen=True):
    lost_answer: float = 0.0  # done, but nobody hears of it
    lost_request: float = 0.0  # not done, and nobody hears of it
    late_write: float = 0.0  # a plain write lands later
    late_cas: float = 0.0  # a compare-and-set is begun later
    stall_cas: float = 0.0  # a compare-and-set that was promised proposes later
    limbo_cas: float = 0.0  # too few accept it: the next round decides
    refused: float = 0.0  # an honest refusal
    slow: float = 0.0  # a message takes much longer
    split_read: float = 0.0  # a read's replicas are asked at different times
    late_least_s: float = 1.0
    late_most_s: float = 7_200.0
    page_rows: int = 5_000  # a larger slice is read in pages, between which the partition changes
    skew_s: float = 0.0  # wall clocks differ from the true time by up to this
    drift: float = 0.0  # and durations are measured wrong by up to this share
    step_every_s: float = 0.0  # a wall clock jumps, within the skew
    crash_every_s: float = 0.0
    crash_most_s: float = 60.0
    crash_at_once: int = 1  # replicas down at the same time
    cut_every_s: float = 0.0
    cut_most_s: float = 30.0
    pause_every_s: float = 0.0  # a replica, with the requests it coordinates
    pause_most_s: float = 10.0
    client_pause_every_s: float = 0.0
    client_pause_most_s: float = 20.0
    hint_lost: float = 0.0
    hint_late: float = 0.0
    hint_least_s: float = 0.1
    hint_most_s: float = 5.0
    coordinator_stamps: bool = False  # plain writes are stamped by the coordinator's clock instead of the writer's
    periodic: bool = False  # the commit log is synced every 10 s: a crash loses what it had not synced

    @classmethod
    def none(cls) -> Faults:
        return cls()

    @classmethod
    def some(cls, chance: random.Random) -> Faults:
        """A mix that differs from run to run, synced commit logs always: what a store can do that keeps its word."""

        def upto(most: float) -> float:
            return chance.random() * most if chance.random() < 0.7 else 0.0

        def every(least_s: float, most_s: float) -> float:
            return chance.uniform(least_s, most_s) if chance.random() < 0.6 else 0.0

        return cls(
            lost_answer=upto(0.02),
            lost_request=upto(0.02),
            late_write=upto(0.02),
            late_cas=upto(0.02),
            stall_cas=upto(0.01),
            limbo_cas=upto(0.01),
            refused=upto(0.01),
            slow=upto(0.02),
            split_read=upto(0.05),
            late_most_s=chance.choice((10.0, 120.0, 7_200.0)),
            page_rows=chance.choice((3, 50, 5_000)),
            skew_s=chance.choice((0.0, 0.05, 0.25)),
            drift=chance.choice((0.0, 1e-4)),
            step_every_s=every(20.0, 200.0),
            crash_every_s=every(30.0, 300.0),
            crash_at_once=chance.choice((1, 1, 2)),
            cut_every_s=every(20.0, 200.0),
            pause_every_s=every(20.0, 200.0),
            client_pause_every_s=every(20.0, 200.0),
            hint_lost=upto(0.1),
            hint_late=upto(0.1),
            coordinator_stamps=chance.random() < 0.3,
        )

    def of_requests(self) -> bool:
        """Whether any single request can go wrong by chance."""
        return any(
            (self.lost_answer, self.lost_request, self.late_write, self.late_cas, self.stall_cas, self.limbo_cas,
             self.refused, self.slow, self.split_read, self.coordinator_stamps)
        )  # fmt: skip

    def writes(self) -> tuple[tuple[float, str], ...]:
        return (
            (self.lost_answer, "lost_answer"),
            (self.lost_request, "lost_request"),
            (self.late_write, "late_write"),
            (self.refused, "refused"),
        )

    def reads(self) -> tuple[tuple[float, str], ...]:
        return ((self.lost_answer + self.lost_request, "lost_read"), (self.split_read, "split_read"))

    def rounds(self) -> tuple[tuple[float, str], ...]:
        return (
            (self.lost_answer, "lost_answer"),
            (self.lost_request, "lost_request"),
            (self.late_cas, "late_cas"),
            (self.stall_cas, "stall_cas"),
            (self.limbo_cas, "limbo_cas"),
            (self.refused, "refused"),
        )


class Hand:
    """Does faults to the world, each kind at its own rate, until told to stop."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world = world
        self.faults = faults
        self.stopped = False
        for every_s, act in (
            (faults.crash_every_s, self._crash),
            (faults.cut_every_s, self._cut),
            (faults.pause_every_s, self._pause),
            (faults.client_pause_every_s, self._pause_client),
            (faults.step_every_s, self._step),
        ):
            if every_s > 0:
                self._again(every_s, act)

    def _again(self, every_s: float, act: Callable[[], None]) -> None:
        wait_s = self.world.random.expovariate(1 / every_s)
        self.world.loop.at_idle(self.world.loop.time() + wait_s, self._act, every_s, act)

    def _act(self, every_s: float, act: Callable[[], None]) -> None:
        if not self.stopped:
            act()
            self._again(every_s, act)

    def _one(self) -> Replica:
        return self.world.random.choice(self.world.replicas)

    def _crash(self) -> None:
        world = self.world
        if sum(not replica.up for replica in world.replicas) >= self.faults.crash_at_once:
            return
        replica = self._one()
        if replica.up:
            world.crash(replica)
            back_s = world.loop.time() + world.random.uniform(0.1, self.faults.crash_most_s)
            world.loop.at_idle(back_s, world.restart, replica)

    def _cut(self) -> None:
        world = self.world
        names = [replica.name for replica in world.replicas]
        one = world.random.choice(names)
        other = world.random.choice([name for name in names + world.client_names() if name != one])
        world.cut(one, other)
        world.loop.at_idle(
            world.loop.time() + world.random.uniform(0.1, self.faults.cut_most_s), world.heal, one, other
        )

    def _pause(self) -> None:
        self.world.pause(self._one(), self.world.random.uniform(0.05, self.faults.pause_most_s))

    def _pause_client(self) -> None:
        clients = self.world.living()
        if clients:
            client = self.world.random.choice(clients)
            client.pause(self.world.random.uniform(0.05, self.faults.client_pause_most_s))

    def _step(self) -> None:
        world, most_s = self.world, self.faults.skew_s
        clocks: list[Replica | SimulatedClock] = [*world.replicas, *(client.clock for client in world.living())]
        clock = world.random.choice(clocks)
        clock.offset_s = world.random.uniform(-most_s, most_s)
        world.faults["clock_step"] += 1
