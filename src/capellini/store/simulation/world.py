"""The world of a simulated run: replicas, clients, links, clocks, and what goes wrong with them, all from one seed.

async def main() -> None:
    world = World(faults=Faults(lost_answer=0.01))
    client = world.client("a")
    await client.store.prepare(TABLES)
    await client.spawn(work(client.store, client.clock, client.random))
    world.calm()

run(main(), seed=7)
"""

from __future__ import annotations

import asyncio
import random
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from capellini.model.errors import Unknown
from capellini.store.interface import Key, Table
from capellini.store.simulation.cells import NEVER, Ordering
from capellini.store.simulation.client import SimulatedClient, SimulatedClock
from capellini.store.simulation.faults import Faults, Hand
from capellini.store.simulation.loop import VirtualLoop
from capellini.store.simulation.network import Network, Placement, Seat, answer, fail, seat_of, token
from capellini.store.simulation.replica import EPOCH_S as EPOCH_S
from capellini.store.simulation.replica import PERIOD_S, Partition, Replica

CALM_S: Final = 2.0  # within this all that is late has landed once a world is calm
REPLICATION: Final = 3

Fates = tuple[tuple[float, str], ...]  # how likely each is


class World:
    """Made inside a run (`loop.run`), whose seed it takes unless given another."""

    def __init__(
        self,
        seed: int | None = None,
        *,
        faults: Faults | None = None,
        replicas: int | Mapping[str, int] = 3,
        replication: int = REPLICATION,
        trace: bool = False,
    ) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            raise RuntimeError("a simulated world lives in a virtual loop: use capellini.store.simulation.loop.run")
        self.loop = loop
        self.seed = loop.seed if seed is None else seed
        self.random = random.Random(self.seed)
        self.profile = faults or Faults.none()
        self.faults: Counter[str] = Counter()
        self.contention = 0  # how often a compare-and-set found another under way
        self.trace: list[tuple[Any, ...]] | None = [] if trace else None
        self.tables: dict[str, Table] = {}
        self.clients: list[SimulatedClient] = []
        self.partitions: dict[tuple[str, Key], Partition] = {}
        self.rings: defaultdict[str, list[Seat]] = defaultdict(list)  # by table: all partitions there are, in order
        per_dc = {"dc1": replicas} if isinstance(replicas, int) else dict(replicas)
        names = [(f"{dc}-{at + 1}", dc) for dc, many in per_dc.items() for at in range(many)]
        self.replicas = tuple(Replica(number, name, dc) for number, (name, dc) in enumerate(names))
        for replica in self.replicas:
            replica.offset_s = self._skew()
        self.network = Network(loop, self.random, self.replicas, self.profile.slow)
        self._replication = replication
        self._placements: dict[tuple[int, ...], Placement] = {}
        self._orderings: dict[str, Ordering] = {}
        self._late: dict[int, tuple[Callable[..., None], tuple[Any, ...]]] = {}
        self._late_number = 0
        self.unsynced_s = PERIOD_S if self.profile.periodic else 0.0
        self.risky = self.profile.of_requests()  # single requests can go wrong
        self._fates = self.profile.writes(), self.profile.rounds(), self.profile.reads()
        self._fates_of = self.profile
        self._hand = Hand(self, self.profile)

    # ---- who and what there is

    def client(self, name: str, dc: str | None = None) -> SimulatedClient:
        """One more client. A name may be used again once the one that had it has crashed."""
        if any(each.name == name and not each.crashed for each in self.clients):
            raise RuntimeError(f"client {name} is still running")
        rate = 1.0 + self.random.uniform(-1, 1) * self.profile.drift
        clock = SimulatedClock(self.loop, EPOCH_S, self._skew(), rate)
        client = SimulatedClient(self, name, dc or self.network.dcs[0], clock)
        self.clients.append(client)
        return client

    def living(self) -> list[SimulatedClient]:
        return [client for client in self.clients if not client.crashed]

    def client_names(self) -> list[str]:
        return [client.name for client in self.living()]

    def _skew(self) -> float:
        if not self.profile.skew_s:
            return 0.0
        self.faults["skew"] += 1
        return self.random.uniform(-self.profile.skew_s, self.profile.skew_s)

    def wall_s(self, replica: Replica) -> float:
        return EPOCH_S + self.loop._now_s + replica.offset_s

    def partition(self, table: Table, key: Key) -> Partition:
        found = self.partitions.get((table.name, key))
        if found is None:
            ordering = self._orderings.get(table.name)
            if ordering is None:
                ordering = self._orderings[table.name] = Ordering(table)
            found = self.partitions[table.name, key] = Partition(table, key, self.placement(table, key), ordering)
            insort(self.rings[table.name], seat_of(table, key))
        return found

    def placement(self, table: Table, key: Key) -> Placement:
        """In each data centre the replicas that follow the key's place in the ring."""
        ring = token(table, key)
        numbers: list[int] = []
        for near in self.network.near.values():
            count = min(self._replication, len(near))
            numbers += [near[(ring + at) % len(near)].number for at in range(count)]
        chosen = tuple(sorted(numbers))
        found = self._placements.get(chosen)
        if found is None:
            replicas = tuple(self.replicas[number] for number in chosen)
            found = self._placements[chosen] = Placement(replicas, self.network.dcs, self.network.far_s)
        return found

    # ---- what is late

    @property
    def late(self) -> int:
        """Writes and compare-and-sets that may still land."""
        return len(self._late)

    def later(self, kind: str, event: Callable[..., None], *args: Any, at_s: float | None = None) -> None:
        """Let something happen much later (log-uniform in the profile's range), or at that time."""
        self.faults[kind] += 1
        if self._hand.stopped:  # drawn before the calm
            at_s = self.loop.time() + self.random.uniform(0, CALM_S)
        elif at_s is None:
            least_s, most_s = self.profile.late_least_s, self.profile.late_most_s
            at_s = self.loop.time() + least_s * (most_s / least_s) ** self.random.random()
        self._late_number += 1
        self._late[self._late_number] = event, args
        self.loop.at(at_s, self._land, self._late_number)

    def _land(self, number: int) -> None:
        found = self._late.pop(number, None)  # None: it was brought forward
        if found is not None:
            event, args = found
            event(*args)

    def fates(self) -> tuple[Fates, Fates, Fates]:
        """What can become of a write, a round and a read, by the profile of now."""
        profile = self.profile
        if profile is not self._fates_of:
            self._fates = profile.writes(), profile.rounds(), profile.reads()
            self._fates_of = profile
        return self._fates

    # ---- answers

    def deliver(
        self,
        client: SimulatedClient,
        coordinator: Replica,
        future: asyncio.Future[Any],
        result: object,
        sent_s: float,
        deadline_s: float,
    ) -> None:
        """An answer or error on its way from a coordinator to a client."""
        at_s = sent_s + self.network.delay()
        if at_s > deadline_s:
            self.lose_answer(future, deadline_s)
        elif self.network.troubled:
            self.loop.at(at_s, self._deliver_if_linked, client, coordinator, future, result, deadline_s)
        elif isinstance(result, Exception):
            self.loop.at(at_s, fail, future, result)
        else:
            self.loop.at(at_s, answer, future, result)

    def _deliver_if_linked(
        self,
        client: SimulatedClient,
        coordinator: Replica,
        future: asyncio.Future[Any],
        result: object,
        deadline_s: float,
    ) -> None:
        if coordinator.paused_until_s > self.loop.time():
            self.deliver(client, coordinator, future, result, coordinator.paused_until_s, deadline_s)
        elif not self.network.reaches(client.name, coordinator):
            self.faults["lost_answer"] += 1
            self.lose_answer(future, deadline_s)
        elif isinstance(result, Exception):
            fail(future, result)
        else:
            answer(future, result)

    def lose_answer(self, future: asyncio.Future[Any], deadline_s: float) -> None:
        error = Unknown("no answer from the store in time: it may have been done, or may yet be done")
        self.loop.at(max(deadline_s, self.loop.time()), fail, future, error)

    # ---- what happens to replicas and links

    def crash(self, replica: Replica) -> None:
        """The server dies; what it had not synced is lost (periodic commit log only)."""
        if not replica.up:
            return
        self.faults["replica_crash"] += 1
        now_s = self.loop.time()
        replica.up = False
        replica.down_since_s = now_s
        replica.paused_until_s = -NEVER
        unsynced_s = self.random.uniform(0, self.unsynced_s)
        for partition in self._of(replica):
            lost = partition.lose(partition.places[replica.number], now_s, unsynced_s)
            self.faults["replica_lost_unsynced"] += lost
        self.network.look()

    def restart(self, replica: Replica) -> None:
        if not replica.up:
            replica.up = True
            self.network.look()
            self._hint(replica)

    def pause(self, replica: Replica, seconds: float) -> None:
        """The server stands still, with all it coordinates, and then goes on as if nothing had been."""
        if not replica.up:
            return
        self.faults["coordinator_pause"] += 1
        now_s = self.loop.time()
        replica.paused_until_s = max(replica.paused_until_s, now_s + seconds)
        for partition in self._of(replica):
            partition.stall(partition.places[replica.number], now_s, replica.paused_until_s)
        self.network.look()
        self.loop.at_idle(replica.paused_until_s, self.network.look)

    def cut(self, one: str, other: str) -> None:
        """No message passes between the two (replicas or clients, by name) until healed."""
        self.faults["cut"] += 1
        self.network.cuts.setdefault((min(one, other), max(one, other)), self.loop.time())
        self.network.look()

    def heal(self, one: str, other: str) -> None:
        if self.network.cuts.pop((min(one, other), max(one, other)), None) is not None:
            self.network.look()
            for replica in self.replicas:
                if replica.name in (one, other):
                    self._hint(replica)

    def _of(self, replica: Replica) -> list[Partition]:
        return [each for each in self.partitions.values() if replica.number in each.places]

    def _hint(self, replica: Replica) -> None:
        """The replica is back: others send it what it missed, sooner or later, or never."""
        profile, now_s = self.profile, self.loop.time()
        for partition in self._of(replica):
            place = partition.places[replica.number]
            if not partition.lagging(place):
                continue
            chance = self.random.random()
            if chance < profile.hint_lost:
                self.faults["lost_hint"] += 1
            elif chance < profile.hint_lost + profile.hint_late:
                self.later("late_hint", self._hinted, replica, partition)
            else:
                self.faults["hint"] += 1
                wait_s = self.random.uniform(profile.hint_least_s, profile.hint_most_s)
                self.loop.at(now_s + wait_s, self._hinted, replica, partition)

    def _hinted(self, replica: Replica, partition: Partition) -> None:
        if replica.up:
            partition.fold(self.loop.time())
            partition.hint(partition.places[replica.number], self.loop.time())

    # ---- the end of all faults

    def calm(self) -> None:
        """End all faults: everything is up, linked and repaired, and what is late lands within `CALM_S`. Clocks stay as
        far apart as they are."""
        self._hand.stopped = True
        self.profile = Faults(
            page_rows=self.profile.page_rows,
            coordinator_stamps=self.profile.coordinator_stamps,
            periodic=self.profile.periodic,
        )
        self.risky = self.profile.of_requests()
        self.network.slow = 0.0
        now_s = self.loop.time()
        for one, other in list(self.network.cuts):
            self.heal(one, other)
        for replica in self.replicas:
            replica.up = True
            replica.paused_until_s = -NEVER
        self.network.look()
        for client in self.living():
            client.go_on()
        waiting, self._late = list(self._late.values()), {}
        for event, args in waiting:
            self._late_number += 1
            self._late[self._late_number] = event, args
            self.loop.at(now_s + self.random.uniform(0, CALM_S), self._land, self._late_number)
        for partition in self.partitions.values():
            partition.hasten(now_s)
            partition.fold(now_s)
            for place in range(len(partition.replicas)):
                partition.hint(place, now_s)

    def note(self, *what: Any) -> None:
        if self.trace is not None:
            self.trace.append((self.loop.time(), *what))
