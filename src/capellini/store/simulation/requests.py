"""The way of a request: from a client to a coordinator, from there to the replicas, and back.

The fate of a request is drawn when it is sent, and costs few events: a write is one mutation with its arrival times and
one event for the answer; a read is one event that reads and answers; a compare-and-set is one event that decides and
one that answers. When nothing is wrong in the world and nothing can go wrong by chance, the short way is taken; else
every message is looked at.

    refused          Unavailable: nothing was sent to any replica, now or later
    lost request     Unknown: nothing happens
    lost answer      Unknown: it happened
    late             Unknown: it happens later
    too few acks     Unknown: some replicas have it, and hints may bring it to the others
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from capellini.model.errors import Unavailable
from capellini.store.interface import Cas, Level, Slice
from capellini.store.simulation.cells import NEVER, Delta
from capellini.store.simulation.network import CLIENT_TIMEOUT_S, answer, fail
from capellini.store.simulation.paxos import Paxos, Round
from capellini.store.simulation.replica import Mutation, Partition, Replica, bits_of
from capellini.store.simulation.view import bounds_of, page_of, static_cells, within

if TYPE_CHECKING:
    from capellini.store.simulation.client import SimulatedClient
    from capellini.store.simulation.world import World

WRITE_TIMEOUT_S: Final = 2.0  # how long a coordinator waits for replicas
READ_TIMEOUT_S: Final = 2.0

Make = Callable[[int, float], Delta]  # from a timestamp and the coordinator's wall time


def refuse(world: World, future: asyncio.Future[Any], says: str) -> asyncio.Future[Any]:
    """An honest refusal, after a short way."""
    world.faults["unavailable"] += 1
    world.loop.at(world.loop.time() + 2 * world.network.delay(), fail, future, Unavailable(says))
    return future


def _fate(world: World, fates: tuple[tuple[float, str], ...]) -> str | None:
    drawn = world.random.random()
    for chance, fate in fates:
        drawn -= chance
        if drawn < 0:
            return fate
    return None


# ---- plain writes


def write(
    client: SimulatedClient, partition: Partition, make: Make, level: Level, stamp_us: int | None
) -> asyncio.Future[None]:
    world = client.world
    network = world.network
    if world.risky or network.troubled:
        return _write_carefully(client, partition, make, level, stamp_us)
    loop = world.loop
    future: asyncio.Future[None] = loop.create_future()
    near = network.near[client.dc]
    placement = partition.placement
    places, need = placement.scope(level, client.dc)
    count = len(partition.replicas)
    bits = world.random.getrandbits(20 * count + 30)
    table = network.table
    coordinator = near[(bits >> 20 * count + 20) % len(near)]
    sent_s = loop._now_s + table[bits >> 20 * count & 1023]
    arrivals = []
    for more_s in placement.far_s[client.dc]:
        arrivals.append(sent_s + table[bits & 1023] + more_s)
        bits >>= 10
    acks = []
    for place in places:
        acks.append(
            2 * arrivals[place] - sent_s if arrivals[place] - sent_s > 0.01 else arrivals[place] + table[bits & 1023]
        )
        bits >>= 10
    acks.sort()
    delta = make(client.stamp_us() if stamp_us is None else stamp_us, world.wall_s(coordinator))
    mutation = Mutation(delta, arrivals)
    partition.add(mutation, world.unsynced_s, loop._now_s)
    loop.at(
        acks[need - 1] + table[bits & 1023],
        _written,
        world,
        client,
        coordinator,
        future,
        mutation,
        places,
        need,
    )
    return future


def _written(
    world: World,
    client: SimulatedClient,
    coordinator: Replica,
    future: asyncio.Future[None],
    mutation: Mutation,
    places: tuple[int, ...],
    need: int,
) -> None:
    if not world.network.troubled:
        answer(future, None)
        return
    now_s = world.loop.time()
    arrived = sum(mutation.arrivals[place] <= now_s for place in places)
    if arrived < need or not world.network.reaches(client.name, coordinator):
        world.faults["lost_answer_applied"] += 1  # something broke while it was under way
        world.lose_answer(future, now_s + WRITE_TIMEOUT_S)
    elif coordinator.paused_until_s > now_s:
        world.deliver(client, coordinator, future, None, coordinator.paused_until_s, now_s + CLIENT_TIMEOUT_S)
    else:
        answer(future, None)


def _write_carefully(
    client: SimulatedClient, partition: Partition, make: Make, level: Level, stamp_us: int | None
) -> asyncio.Future[None]:
    world = client.world
    network, profile, loop = world.network, world.profile, world.loop
    future: asyncio.Future[None] = loop.create_future()
    deadline_s = loop.time() + CLIENT_TIMEOUT_S
    coordinator = network.coordinator(client.name, client.dc)
    if coordinator is None:
        return refuse(world, future, "no server of the store can be reached")
    if stamp_us is None and not profile.coordinator_stamps:
        stamp_us = client.stamp_us()
    fate = _fate(world, profile.writes())
    if fate == "refused":
        return refuse(world, future, "the store has too much to do")
    if fate == "late_write":
        world.later("late_write", _land, world, coordinator, partition, make, stamp_us)
        world.lose_answer(future, deadline_s)
        return future
    there_s = network.arrival(client.name, client.dc, coordinator, loop.time())
    if fate == "lost_request" or there_s == NEVER:
        world.faults["lost_answer_not_applied"] += 1
        world.lose_answer(future, deadline_s)
        return future
    places, need = partition.placement.scope(level, client.dc)
    known = network.believed(coordinator, partition, places)
    if known < need:
        return refuse(world, future, f"{known} of the {need} replicas that are needed are up")
    if there_s > deadline_s:  # the coordinator stands still, and will read it when it goes on
        world.later("late_write", _land, world, coordinator, partition, make, stamp_us, at_s=there_s)
        world.lose_answer(future, deadline_s)
        return future
    mutation = _send(world, coordinator, partition, make, stamp_us, there_s)
    done_s = sorted(mutation.arrivals[place] for place in places)[need - 1] + network.delay()
    if fate == "lost_answer" or done_s > min(deadline_s, there_s + WRITE_TIMEOUT_S):
        world.faults["lost_answer_applied"] += 1
        world.lose_answer(future, min(deadline_s, there_s + WRITE_TIMEOUT_S + network.delay()))
    else:
        loop.at(done_s + network.delay(), _written, world, client, coordinator, future, mutation, places, need)
    return future


def _send(
    world: World, coordinator: Replica, partition: Partition, make: Make, stamp_us: int | None, at_s: float
) -> Mutation:
    wall_s = world.wall_s(coordinator)
    arrivals = world.network.arrivals(coordinator, partition, at_s)
    mutation = Mutation(make(int(wall_s * 1e6) if stamp_us is None else stamp_us, wall_s), arrivals)
    if any(at != NEVER for at in arrivals):
        partition.add(mutation, world.unsynced_s, world.loop.time())
    return mutation


def _land(world: World, coordinator: Replica, partition: Partition, make: Make, stamp_us: int | None) -> None:
    """A late write reaches its coordinator, or one that was handed its work, at last."""
    if not coordinator.up:
        up = [replica for replica in world.replicas if replica.up]
        if not up:
            world.faults["late_write_lost"] += 1
            return
        coordinator = world.random.choice(up)
    _send(world, coordinator, partition, make, stamp_us, world.loop.time())


# ---- reads


def read(client: SimulatedClient, partition: Partition, slice: Slice) -> asyncio.Future[Any]:
    world = client.world
    network, loop = world.network, world.loop
    if world.risky or network.troubled:
        return _read_carefully(client, partition, slice)
    future: asyncio.Future[Any] = loop.create_future()
    near = network.near[client.dc]
    bits = world.random.getrandbits(50)
    table = network.table
    coordinator = near[(bits >> 40) % len(near)]
    at_s = (
        loop._now_s
        + table[bits & 1023]
        + table[bits >> 10 & 1023]
        + table[bits >> 20 & 1023]
        + table[bits >> 30 & 1023]
    )
    places, need = partition.placement.scope(slice.level, client.dc)
    if network.far_s and need > len(network.near[client.dc]) // 2 + 1:
        at_s += 2 * network.far_s
    loop.at(at_s, _read_now, world, coordinator, partition, slice, places, need, future)
    return future


def _read_now(
    world: World,
    coordinator: Replica,
    partition: Partition,
    slice: Slice,
    places: tuple[int, ...],
    need: int,
    future: asyncio.Future[Any],
) -> None:
    if future.done():
        return
    wall_s = world.wall_s(coordinator)
    if not partition.pending and not partition.behind:
        future.set_result(page_of((partition.agreed,), slice, partition.ordering, wall_s))
        return
    now_s = world.loop.time()
    answering = world.network.answering(coordinator, partition, places)
    if len(answering) < need:
        future.set_exception(Unavailable("too few replicas answered a read"))
        return
    contacted = bits_of(world.network.some(answering, need))
    parts = partition.seen(contacted, now_s)
    future.set_result(page_of(parts, slice, partition.ordering, wall_s))
    if need > 1:
        partition.repair(contacted, len(partition.replicas) // 2 + 1, now_s)


def _read_carefully(client: SimulatedClient, partition: Partition, slice: Slice) -> asyncio.Future[Any]:
    world = client.world
    network, profile, loop = world.network, world.profile, world.loop
    future: asyncio.Future[Any] = loop.create_future()
    coordinator = network.coordinator(client.name, client.dc)
    if coordinator is None:
        return refuse(world, future, "no server of the store can be reached")
    there_s = network.arrival(client.name, client.dc, coordinator, loop.time())
    lost = world.random.random() < profile.lost_answer + profile.lost_request
    if lost or there_s > loop.time() + READ_TIMEOUT_S:
        world.faults["lost_read"] += 1
        loop.at(loop.time() + READ_TIMEOUT_S, fail, future, Unavailable("a read was not answered in time"))
        return future
    places, need = partition.placement.scope(slice.level, client.dc)
    at_s = there_s + network.delay() + network.delay()
    if need > 1 and world.random.random() < profile.split_read:
        world.faults["split_read"] += 1
        loop.at(at_s, _read_first, world, coordinator, partition, slice, places, need, future)
    else:
        loop.at(at_s, _read_now, world, coordinator, partition, slice, places, need, future)
    return future


def _read_first(
    world: World,
    coordinator: Replica,
    partition: Partition,
    slice: Slice,
    places: tuple[int, ...],
    need: int,
    future: asyncio.Future[Any],
) -> None:
    """One replica is read now, the others later: together they may show a later write without an earlier one."""
    answering = world.network.answering(coordinator, partition, places)
    if len(answering) < need:
        fail(future, Unavailable("too few replicas answered a read"))
        return
    first, *others = world.network.some(answering, need)
    parts = partition.seen(1 << first, world.loop.time())
    rows = within(parts, bounds_of(slice, partition.ordering))
    early = Delta(
        list(rows.items()),
        static_cells(parts),
        max(part.dropped_us for part in parts),
        tuple(cleared for part in parts for cleared in part.cleared),
    )
    wait_s = world.random.uniform(0.001, READ_TIMEOUT_S / 2)
    world.loop.at(
        world.loop.time() + wait_s,
        _read_rest,
        world,
        coordinator,
        partition,
        slice,
        early,
        1 << first,
        bits_of(others),
        future,
    )


def _read_rest(
    world: World,
    coordinator: Replica,
    partition: Partition,
    slice: Slice,
    early: Delta,
    first: int,
    others: int,
    future: asyncio.Future[Any],
) -> None:
    now_s = world.loop.time()
    parts = [*partition.seen(others, now_s), early]
    answer(future, page_of(parts, slice, partition.ordering, world.wall_s(coordinator)))
    partition.repair(others | first, len(partition.replicas) // 2 + 1, now_s)


# ---- rounds of Paxos


def serial(client: SimulatedClient, partition: Partition, asks: Cas | Slice) -> asyncio.Future[Any]:
    """A compare-and-set or a serial read."""
    world = client.world
    loop, network = world.loop, world.network
    future: asyncio.Future[Any] = loop.create_future()
    now_s = loop._now_s
    deadline_s = now_s + CLIENT_TIMEOUT_S
    paxos = _paxos(client, partition, asks.level)
    if not world.risky and not network.troubled:
        near = network.near[client.dc]
        coordinator = near[int(world.random.random() * len(near))]
        paxos.submit(Round(asks, client, coordinator, future, deadline_s), network.delay())
        return future
    chosen = network.coordinator(client.name, client.dc)
    if chosen is None:
        return refuse(world, future, "no server of the store can be reached")
    fate = _fate(world, world.profile.rounds())
    if fate == "refused":
        return refuse(world, future, "the store has too much to do")
    round = Round(asks, client, chosen, future, deadline_s, fate)
    there_s = network.arrival(client.name, client.dc, chosen, now_s)
    if fate == "lost_request" or there_s == NEVER:
        world.faults["lost_answer_not_applied"] += 1
        world.lose_answer(future, deadline_s)
    elif isinstance(asks, Cas) and (fate == "late_cas" or there_s > deadline_s):
        round.future, round.fate = None, None
        world.later("late_cas", paxos.submit, round, at_s=None if fate == "late_cas" else there_s)
        world.lose_answer(future, deadline_s)
    elif there_s > deadline_s:
        world.lose_answer(future, deadline_s)
    elif network.troubled:
        loop.at(there_s, _begin, world, paxos, round)
    else:
        paxos.submit(round, there_s - now_s)
    return future


def _begin(world: World, paxos: Paxos, round: Round) -> None:
    """At the coordinator: too few replicas known to be up is an honest refusal."""
    known = world.network.believed(round.coordinator, paxos.partition, paxos.places)
    if not round.coordinator.up:
        world.faults["lost_answer_not_applied"] += 1
        if round.future is not None:
            world.lose_answer(round.future, round.deadline_s)
    elif known < paxos.need and round.future is not None:
        refuse(world, round.future, f"{known} of the {paxos.need} replicas that are needed are up")
    else:
        paxos.submit(round)


def _paxos(client: SimulatedClient, partition: Partition, level: Level) -> Paxos:
    scope = client.dc if level is Level.LOCAL_SERIAL else None
    found = partition.paxos.get(scope)
    if found is None:
        places, need = partition.placement.scope(level, client.dc)
        found = partition.paxos[scope] = Paxos(client.world, partition, places, need)
    return found
