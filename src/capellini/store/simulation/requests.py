"""The way of a request: from a client to a coordinator, from there to the replicas, and back.

The fate of a request is drawn when it is sent, and costs few events: a write is one mutation with its arrival times and
one event for the answer; a read is one event that reads and answers; a compare-and-set is one event that decides and
one that answers. When nothing is wrong in the world and the request was not drawn to go wrong, the short way is taken;
else every message is looked at.

    refused          Unavailable: nothing was sent to any replica, now or later
    lost request     Unknown: nothing happens
    lost answer      Unknown: it happened
    late             Unknown: it happens later
    too few acks     Unknown: some replicas have it, and hints may bring it to the others
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from capellini.model.errors import Unavailable
from capellini.store.interface import Batch, Cas, Level, Slice
from capellini.store.simulation.cells import NEVER, Delta, delta_of_batch
from capellini.store.simulation.network import CLIENT_TIMEOUT_S, Scope, answer, fail
from capellini.store.simulation.paxos import Paxos, Round
from capellini.store.simulation.replica import EPOCH_S, Mutation, Partition, Replica, bits_of
from capellini.store.simulation.view import bounds_of, page_of, static_cells, within

if TYPE_CHECKING:
    from capellini.store.simulation.client import SimulatedClient
    from capellini.store.simulation.world import World

WRITE_TIMEOUT_S: Final = 2.0  # how long a coordinator waits for replicas
READ_TIMEOUT_S: Final = 2.0
READ_MESSAGES: Final = 4  # to the coordinator, to a replica, and back

Fates = tuple[tuple[float, str], ...]
What = Batch | None  # None: the partition is dropped


def refuse(world: World, future: asyncio.Future[Any], says: str) -> asyncio.Future[Any]:
    """An honest refusal, after a short way."""
    world.faults["unavailable"] += 1
    world.loop.at(world.loop.time() + 2 * world.network.delay(), fail, future, Unavailable(says))
    return future


def _fate(world: World, fates: Fates) -> str | None:
    drawn = world.random.random()
    for chance, fate in fates:
        drawn -= chance
        if drawn < 0:
            return fate
    return None


# ---- plain writes


def write(
    client: SimulatedClient, partition: Partition, what: What, level: Level, stamp_us: int | None
) -> asyncio.Future[None]:
    world, dc = client.world, client.dc
    network, loop = world.network, world.loop
    scope = partition.placement.scope(level, dc)
    future: asyncio.Future[None] = asyncio.Future(loop=loop)
    if world.risky or network.troubled:
        fate = _fate(world, world.fates()[0])
        if fate is not None or network.troubled:
            _write_carefully(client, partition, what, scope, stamp_us, future, fate)
            return future
        if network.some_slow(scope.messages):
            with network.slowly():
                _write_carefully(client, partition, what, scope, stamp_us, future, None)
            return future
    near, table = network.near[dc], network.table
    bits = world.random.getrandbits(30)
    coordinator = near[(bits >> 20) % len(near)]
    now_s = loop._now_s
    sent_s = now_s + table[bits & 1023]
    way = network.way(scope)
    wall_s = EPOCH_S + now_s + coordinator.offset_s
    if stamp_us is None:
        stamp_us = int(wall_s * 1e6) if world.profile.coordinator_stamps else client.stamp_us()
    mutation = Mutation(_delta(what, partition, stamp_us, wall_s), [sent_s + each_s for each_s in way.arrivals_s])
    partition.add(mutation, world.unsynced_s, now_s)
    answered_s = sent_s + way.acked_s + table[bits >> 10 & 1023]
    loop.at(answered_s, _written, world, client, coordinator, future, mutation, scope)
    return future


def _delta(what: What, partition: Partition, stamp_us: int, wall_s: float) -> Delta:
    if what is None:
        return Delta([], None, stamp_us)
    return delta_of_batch(what, partition.ordering, stamp_us, wall_s)


def _written(
    world: World,
    client: SimulatedClient,
    coordinator: Replica,
    future: asyncio.Future[None],
    mutation: Mutation,
    scope: Scope,
) -> None:
    if not world.network.troubled:
        if not future.done():
            future.set_result(None)
        return
    now_s = world.loop.time()
    arrived = sum(mutation.arrivals[place] <= now_s for place in scope.places)
    if arrived < scope.need or not world.network.reaches(client.name, coordinator):
        world.faults["lost_answer_applied"] += 1  # something broke while it was under way
        world.lose_answer(future, now_s + WRITE_TIMEOUT_S)
    elif coordinator.paused_until_s > now_s:
        world.deliver(client, coordinator, future, None, coordinator.paused_until_s, now_s + CLIENT_TIMEOUT_S)
    else:
        answer(future, None)


def _write_carefully(
    client: SimulatedClient,
    partition: Partition,
    what: What,
    scope: Scope,
    stamp_us: int | None,
    future: asyncio.Future[None],
    fate: str | None,
) -> None:
    world = client.world
    network, loop = world.network, world.loop
    deadline_s = loop.time() + CLIENT_TIMEOUT_S
    coordinator = network.coordinator(client.name, client.dc)
    if coordinator is None:
        refuse(world, future, "no server of the store can be reached")
        return
    if stamp_us is None and not world.profile.coordinator_stamps:
        stamp_us = client.stamp_us()
    if fate == "refused":
        refuse(world, future, "the store has too much to do")
        return
    if fate == "late_write":
        world.later("late_write", _land, world, coordinator, partition, what, stamp_us)
        world.lose_answer(future, deadline_s)
        return
    there_s = network.arrival(client.name, client.dc, coordinator, loop.time())
    if fate == "lost_request" or there_s == NEVER:
        world.faults["lost_answer_not_applied"] += 1
        world.lose_answer(future, deadline_s)
        return
    places, need = scope.places, scope.need
    known = network.believed(coordinator, partition, places)
    if known < need:
        refuse(world, future, f"{known} of the {need} replicas that are needed are up")
        return
    if there_s > deadline_s:  # the coordinator stands still, and will read it when it goes on
        world.later("late_write", _land, world, coordinator, partition, what, stamp_us, at_s=there_s)
        world.lose_answer(future, deadline_s)
        return
    mutation = _send(world, coordinator, partition, what, stamp_us, there_s)
    done_s = sorted([mutation.arrivals[place] for place in places])[need - 1] + network.delay()
    if fate == "lost_answer" or done_s > min(deadline_s, there_s + WRITE_TIMEOUT_S):
        world.faults["lost_answer_applied"] += 1
        world.lose_answer(future, min(deadline_s, there_s + WRITE_TIMEOUT_S + network.delay()))
    else:
        loop.at(done_s + network.delay(), _written, world, client, coordinator, future, mutation, scope)


def _send(
    world: World, coordinator: Replica, partition: Partition, what: What, stamp_us: int | None, at_s: float
) -> Mutation:
    wall_s = world.wall_s(coordinator)
    arrivals = world.network.arrivals(coordinator, partition, at_s)
    stamp_us = int(wall_s * 1e6) if stamp_us is None else stamp_us
    mutation = Mutation(_delta(what, partition, stamp_us, wall_s), arrivals)
    if min(arrivals) != NEVER:
        partition.add(mutation, world.unsynced_s, world.loop.time())
    return mutation


def _land(world: World, coordinator: Replica, partition: Partition, what: What, stamp_us: int | None) -> None:
    """A late write reaches its coordinator, or one that was handed its work, at last."""
    if not coordinator.up:
        up = [replica for replica in world.replicas if replica.up]
        if not up:
            world.faults["late_write_lost"] += 1
            return
        coordinator = world.random.choice(up)
    _send(world, coordinator, partition, what, stamp_us, world.loop.time())


# ---- reads


def read(client: SimulatedClient, partition: Partition, slice: Slice) -> asyncio.Future[Any]:
    world = client.world
    network, loop = world.network, world.loop
    scope = partition.placement.scope(slice.level, client.dc)
    future: asyncio.Future[Any] = asyncio.Future(loop=loop)
    if world.risky or network.troubled:
        fate = _fate(world, world.fates()[2])
        if fate is not None or network.troubled:
            _read_carefully(client, partition, slice, scope, future, fate)
            return future
        if network.some_slow(READ_MESSAGES):
            with network.slowly():
                _read_carefully(client, partition, slice, scope, future, None)
            return future
    near, trips = network.near[client.dc], network.trips
    bits = world.random.getrandbits(30)
    coordinator = near[(bits >> 20) % len(near)]
    at_s = loop._now_s + trips[bits & 1023] + trips[bits >> 10 & 1023]
    if network.far_s and scope.need > len(near) // 2 + 1:
        at_s += 2 * network.far_s
    loop.at(at_s, _read_now, world, coordinator, partition, slice, scope, future)
    return future


def _read_now(
    world: World,
    coordinator: Replica,
    partition: Partition,
    slice: Slice,
    scope: Scope,
    future: asyncio.Future[Any],
) -> None:
    if future.done():
        return
    now_s = world.loop._now_s
    wall_s = EPOCH_S + now_s + coordinator.offset_s
    network, need = world.network, scope.need
    # Whoever is asked has the same; where data centres are cut from each other it counts all the same that too few are.
    if not partition.pending and not partition.behind and not (network.far_s and network.troubled):
        future.set_result(page_of((partition.agreed,), slice, partition.ordering, wall_s))
        return
    answering = network.answering(coordinator, partition, scope.places) if network.troubled else scope.places
    if len(answering) < need:
        future.set_exception(Unavailable("too few replicas answered a read"))
        return
    contacted = network.contact(answering, need)
    parts = partition.seen(contacted, now_s)
    future.set_result(page_of(parts, slice, partition.ordering, wall_s))
    if need > 1 and (partition.pending or partition.behind):
        partition.repair(contacted, len(partition.replicas) // 2 + 1, now_s)


def _read_carefully(
    client: SimulatedClient,
    partition: Partition,
    slice: Slice,
    scope: Scope,
    future: asyncio.Future[Any],
    fate: str | None,
) -> None:
    world = client.world
    network, loop = world.network, world.loop
    coordinator = network.coordinator(client.name, client.dc)
    if coordinator is None:
        refuse(world, future, "no server of the store can be reached")
        return
    there_s = network.arrival(client.name, client.dc, coordinator, loop.time())
    if fate == "lost_read" or there_s > loop.time() + READ_TIMEOUT_S:
        world.faults["lost_read"] += 1
        loop.at(loop.time() + READ_TIMEOUT_S, fail, future, Unavailable("a read was not answered in time"))
        return
    at_s = there_s + network.delay() + network.delay()
    if fate == "split_read" and scope.need > 1:
        world.faults["split_read"] += 1
        loop.at(at_s, _read_first, world, coordinator, partition, slice, scope, future)
    else:
        loop.at(at_s, _read_now, world, coordinator, partition, slice, scope, future)


def _read_first(
    world: World,
    coordinator: Replica,
    partition: Partition,
    slice: Slice,
    scope: Scope,
    future: asyncio.Future[Any],
) -> None:
    """One replica is read now, the others later: together they may show a later write without an earlier one."""
    answering = world.network.answering(coordinator, partition, scope.places)
    if len(answering) < scope.need:
        fail(future, Unavailable("too few replicas answered a read"))
        return
    first, *others = world.network.some(answering, scope.need)
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
    future: asyncio.Future[Any] = asyncio.Future(loop=loop)
    now_s = loop._now_s
    deadline_s = now_s + CLIENT_TIMEOUT_S
    paxos = partition.paxos.get(client.dc if asks.level is Level.LOCAL_SERIAL else None)
    if paxos is None:
        paxos = _paxos(client, partition, asks.level)
    fate = _fate(world, world.fates()[1]) if world.risky else None
    if fate is None and not network.troubled:
        near = network.near[client.dc]
        bits = world.random.getrandbits(20)
        coordinator = near[(bits >> 10) % len(near)]
        paxos.submit(Round(asks, client, coordinator, future, deadline_s), network.table[bits & 1023])
        return future
    chosen = network.coordinator(client.name, client.dc)
    if chosen is None:
        return refuse(world, future, "no server of the store can be reached")
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
    scope = partition.placement.scope(level, client.dc)
    made = Paxos(client.world, partition, level, scope.places, scope.need)
    partition.paxos[client.dc if level is Level.LOCAL_SERIAL else None] = made
    return made
