"""Leases and assignments: two owners at once are impossible, whatever is paused, skewed or lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from tests.simulation.slowness import slow

from capellini.model.errors import Conflict, StoreError, Unavailable
from capellini.queues import lease as leases
from capellini.queues.assignments import TAKES_PER_TURN, Assignments, fair_share, plan_of
from capellini.queues.lease import (
    HOLDER_LIFE,
    OVER_TTL_S,
    ROW_LIFE,
    Holder,
    Lease,
    LeaseRow,
    Row,
    Watcher,
    change_lease,
    heard,
    patience_s,
    read_lease,
)
from capellini.store.schema import LEASES, TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

T = TypeVar("T")
SEEDS = range(10)


class Node:
    """A client with a lease, a watcher and one scope of assignments."""

    def __init__(self, client: SimulatedClient, scope: str = "repair") -> None:
        self.client = client
        self.lost: list[str] = []
        store, clock, chance = client.store, client.clock, client.random
        self.lease = Lease(store, clock, chance, client.name, f"http://{client.name}", on_lost=self.lost.append)
        self.watcher = Watcher(store, clock, chance)
        self.assignments = Assignments(store, clock, chance, self.lease, self.watcher, scope)

    async def start(self, alone: bool = False) -> None:
        await self.client.spawn(self.lease.start(alone))

    async def take_over(self) -> None:
        await self.watcher.look()
        for node in self.watcher.silent():
            await self.watcher.end(node)


async def nodes_of(world: World, *names: str) -> list[Node]:
    nodes = [Node(world.client(name)) for name in names]
    await nodes[0].client.store.prepare(TABLES)
    return nodes


def simulate(main: Coroutine[Any, Any, T], seed: int = 0) -> T:
    return run(main, seed=seed)


def test_a_lease_that_beats_stays_valid_and_one_that_left_is_taken_at_once() -> None:
    async def main() -> None:
        world = World()
        a, b = await nodes_of(world, "a", "b")
        await a.start()
        await b.start()
        assert await a.assignments.take("x") == 1
        await b.client.clock.sleep(120)
        assert a.lease.valid() and a.lost == []
        assert await b.assignments.take("x") is None
        await a.client.spawn(a.lease.stop())
        assert not a.lease.valid()
        assert await b.assignments.take("x") == 2
        with pytest.raises(Unavailable):
            await a.assignments.take("y")

    simulate(main())


def test_a_paused_holder_is_invalid_when_it_goes_on_and_was_fenced() -> None:
    async def main() -> None:
        world = World()
        a, b = await nodes_of(world, "a", "b")
        await a.start()
        await b.start()
        assert await a.assignments.take("x") == 1
        world.loop.hold(a.client.owner)  # nothing of it runs; its clock goes on
        await b.watcher.look()
        await b.client.clock.sleep(9)
        await b.take_over()
        assert await b.assignments.take("x") is None  # too early: only the beat's time is known
        await b.client.clock.sleep(5)
        assert not a.lease.valid()  # before any task of it has run
        await b.take_over()
        assert b.watcher.ended == 1
        assert await b.assignments.take("x") == 2
        world.loop.release(a.client.owner)
        await b.client.clock.sleep(5)
        assert a.lost and not a.lease.valid()
        row = await read_lease(b.client.store, "a")
        assert row is not None and row.state is Row.ENDED
        await a.start()  # a new incarnation, without the old one's assignments
        assert a.lease.valid()
        assert await a.assignments.take("x") is None
        assert not a.assignments.mine(await a.assignments.owner("x"))

    simulate(main())


def test_a_holder_cut_off_from_the_store_stops_in_time() -> None:
    async def main() -> None:
        world = World()
        a, b = await nodes_of(world, "a", "b")
        await a.start()
        for replica in world.replicas:
            world.cut("a", replica.name)
        start_s = world.loop.time()
        while not a.lost:
            assert world.loop.time() < start_s + 60
            await b.client.clock.sleep(0.1)
        assert a.lost == ["no beat was confirmed in time"]
        assert world.loop.time() - start_s <= a.lease.lease_s + 0.2
        assert not a.lease.valid()

    simulate(main())


def test_a_lease_counts_from_the_sending_of_its_beat() -> None:
    async def main() -> None:
        world = World()
        (a,) = await nodes_of(world, "a")
        await a.start()
        with slow(a.client.store, "compare_and_set", after_s=4):
            await a.client.clock.sleep(30)
            assert a.lease.valid()
            assert a.lease.valid_until_s - a.client.clock.elapsed_s() < a.lease.lease_s - 4

    simulate(main())


def test_what_was_taken_while_the_lease_ended_is_not_used() -> None:
    async def main() -> None:
        world = World()
        (a,) = await nodes_of(world, "a")
        await a.start()
        with slow(a.client.store, "compare_and_set", after_s=20), pytest.raises(Unavailable):
            await a.client.spawn(a.assignments.take("x"))
        owned = await a.assignments.owner("x")
        assert owned.epoch == 1 and not a.assignments.mine(owned)

    simulate(main())


def test_a_beat_whose_answer_was_lost_for_good_is_no_fence() -> None:
    async def main() -> None:
        world = World()
        client = world.client("a")
        await client.store.prepare(TABLES)
        lost: list[str] = []
        lease = Lease(client.store, client.clock, client.random, "a", lease_s=60, on_lost=lost.append)
        await client.spawn(lease.start())
        with slow(client.store, "compare_and_set", lost=True):
            await client.clock.sleep(20)  # longer than a lost answer is asked for
        await client.clock.sleep(200)
        assert lost == [] and lease.valid()

    simulate(main())


def test_a_watcher_does_not_end_who_beats_between_its_look_and_its_ending() -> None:
    async def main() -> None:
        world = World()
        a, b = await nodes_of(world, "a", "b")
        await a.start()
        await b.watcher.look()
        await b.client.clock.sleep(patience_s(10) + 1)  # `a` beats, and `b` does not look
        assert b.watcher.silent() == ["a"]
        assert not await b.watcher.end("a")
        assert a.lease.valid() and b.watcher.live() == ["a"]

    simulate(main())


def test_a_second_process_under_the_same_name_is_refused_and_a_restarted_one_waits() -> None:
    async def main() -> None:
        world = World()
        (a,) = await nodes_of(world, "a")
        await a.start()
        double = world.client("a2")
        other = Lease(double.store, double.clock, double.random, "a")
        with pytest.raises(Conflict):
            await double.spawn(other.start())
        old = a.lease.incarnation
        a.client.crash()
        start_s = world.loop.time()
        await double.spawn(other.start())
        assert other.valid() and other.incarnation != old
        assert world.loop.time() - start_s >= other.lease_s
        assert await Watcher(double.store, double.clock, double.random).is_over("a", old)

    simulate(main())


def test_the_row_of_a_node_that_is_over_goes_and_what_it_owned_can_be_taken() -> None:
    async def main() -> None:
        world = World()
        a, b, c = await nodes_of(world, "a", "b", "c")
        await a.start()
        assert await a.assignments.take("x") == 1
        old = a.lease.incarnation
        await b.watcher.look()
        a.client.crash()
        await b.client.clock.sleep(patience_s(10) + 5)
        await b.watcher.look()
        await b.client.clock.sleep(patience_s(10) + 5)
        await b.take_over()
        assert await read_lease(b.client.store, "a") is not None
        await b.client.clock.sleep(OVER_TTL_S + 60)
        assert await c.client.store.partitions(LEASES) == []
        assert await c.watcher.is_over("a", old)
        await c.start()
        assert await c.assignments.take("x") == 2

    simulate(main())


def test_of_a_data_centre_nothing_is_concluded_from_a_row_that_is_not_there() -> None:
    async def main() -> None:
        world = World()
        (a,) = await nodes_of(world, "a")
        watcher = Watcher(a.client.store, a.client.clock, a.client.random, home="dc1")
        assert not await watcher.is_over("b", "some")

    simulate(main())


def test_alone_with_the_store_a_restart_waits_for_nobody() -> None:
    async def main() -> None:
        world = World()
        (a,) = await nodes_of(world, "a")
        await a.start()
        a.client.crash()
        again = Node(world.client("a"))
        start_s = world.loop.time()
        await again.start(alone=True)
        assert again.lease.valid() and world.loop.time() - start_s < 1

    simulate(main())


def test_alone_with_the_store_a_lease_does_not_run_out() -> None:
    async def main() -> None:
        world = World()
        (a,) = await nodes_of(world, "a")
        await a.start(alone=True)
        with slow(a.client.store, "compare_and_set", after_s=20):
            for _ in range(30):
                await a.client.clock.sleep(2)
                assert a.lease.valid()
        await a.client.clock.sleep(60)
        assert a.lease.valid() and a.lost == []
        await a.client.spawn(a.lease.stop())
        assert not a.lease.valid()

    simulate(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_never_two_owners_who_both_may_act(seed: int) -> None:
    """Nodes are paused, cut off, skewed and lose answers, while each goes for the same items. At every moment at
    most one of those who think they own an item has a valid lease, and epochs only rise."""
    changes = 0

    async def main() -> None:
        nonlocal changes
        faults = Faults(
            lost_answer=0.03,
            lost_request=0.03,
            limbo_cas=0.02,
            late_cas=0.01,
            late_most_s=40,
            slow=0.05,
            skew_s=300,  # wall clocks are of no use here
            drift=0.02,
            client_pause_every_s=8,
            client_pause_most_s=30,
            cut_every_s=20,
            cut_most_s=20,
        )
        world = World(faults=faults)
        nodes = await nodes_of(world, "a", "b", "c")
        believed: dict[str, dict[str, tuple[str, int]]] = {node.client.name: {} for node in nodes}
        epochs: dict[str, int] = {}
        troubles: Counter[str] = Counter()

        async def live(node: Node) -> None:
            nonlocal changes
            mine = believed[node.client.name]
            while True:
                try:
                    if node.lease.phase is not Holder.HOLDING:
                        mine.clear()
                        await node.lease.start()
                    await node.take_over()
                    for item in ("x", "y"):
                        epoch = await node.assignments.take(item)
                        if epoch is None:
                            mine.pop(item, None)
                        elif mine.get(item) != (node.lease.incarnation, epoch):
                            assert epoch > epochs.get(item, 0)
                            epochs[item] = epoch
                            mine[item] = (node.lease.incarnation, epoch)
                            changes += 1
                except (StoreError, Conflict) as error:  # what the faults are for: the next turn tries again
                    troubles[error.name] += 1
                await node.client.clock.sleep(2)

        for node in nodes:
            node.client.spawn(live(node))
        for _ in range(3_000):
            await asyncio.sleep(0.1)
            for item in ("x", "y"):
                acting = [
                    node.client.name
                    for node in nodes
                    if node.lease.valid()
                    and (held := believed[node.client.name].get(item))
                    and held[0] == node.lease.incarnation
                ]
                assert len(acting) <= 1, (world.loop.time(), item, acting)
        assert troubles

    simulate(main(), seed)
    assert changes > 4  # owners did change


def test_fifty_nodes_that_start_together_share_evenly_without_a_storm() -> None:
    async def main() -> None:
        world = World()
        nodes = await nodes_of(world, *(f"n{at:02}" for at in range(50)))
        await asyncio.gather(*(node.start() for node in nodes))
        items = [f"q{at}" for at in range(200)]
        owned: dict[str, str] = {}

        async def share(node: Node) -> None:
            for _ in range(3):
                await node.watcher.look()
                taken, _ = await node.assignments.turn(items)
                for item in taken:
                    assert item not in owned
                    owned[item] = node.client.name
                await node.client.clock.sleep(node.client.random.uniform(1, 3))

        await asyncio.gather(*(node.client.spawn(share(node)) for node in nodes))
        assert sorted(owned) == sorted(items)
        counts = [list(owned.values()).count(node.client.name) for node in nodes]
        assert set(counts) == {4}
        attempts = sum(node.assignments.attempts for node in nodes)
        assert attempts <= 2 * len(items)
        assert max(node.assignments.attempts for node in nodes) <= TAKES_PER_TURN

    simulate(main())


def test_who_has_too_much_gives_some_up_and_a_newcomer_takes_it() -> None:
    async def main() -> None:
        world = World()
        a, b = await nodes_of(world, "a", "b")
        await a.start()
        items = [f"q{at}" for at in range(8)]
        await a.watcher.look()
        taken, give = await a.assignments.turn(items)
        assert len(taken) == 8 and give == ()
        await b.start()
        await a.watcher.look()
        taken, give = await a.assignments.turn(items)
        assert taken == {} and len(give) == 4
        for item in give:
            assert await a.assignments.give_up(item)
            assert not await b.assignments.give_up(item)
        await b.watcher.look()
        taken, _ = await b.assignments.turn(items)
        assert taken == dict.fromkeys(give, 2)
        assert {owned.node for owned in (await a.assignments.list()).values()} == {"a", "b"}

    simulate(main())


@pytest.mark.parametrize(
    ("items", "live", "owners"),
    [(10, "abc", ""), (10, "abc", "aaaaaaaaaa"), (7, "ab", "ccccccc"), (3, "abcdef", "aab"), (5, "a", "bbbbb")],
)
def test_shares_are_fair_and_move_as_little_as_can_be(items: int, live: str, owners: str) -> None:
    names = [f"i{at}" for at in range(items)]
    now = dict(zip(names, owners, strict=False))
    plan = fair_share(names, live, now)
    assert sorted(plan) == names
    counts = [list(plan.values()).count(node) for node in live]
    assert max(counts) - min(counts) <= 1
    for node in live:
        held = [item for item in names if now.get(item) == node]
        kept = [item for item in held if plan[item] == node]
        assert len(kept) == min(len(held), list(plan.values()).count(node))
        mine = plan_of(node, names, live, now)
        assert set(mine.give_up) == set(held) - set(kept)
        assert all(now.get(item) not in set(live) for item in mine.take)


def _event(before: LeaseRow | None, after: LeaseRow) -> str:
    if before is None or before.incarnation != after.incarnation:
        return "begin"
    if before.state is after.state:
        return "beat" if after.beat > before.beat else "nothing"
    return {Row.LEFT: "leave", Row.ENDED: "end"}.get(after.state, "came back")


def test_rows_change_as_their_life_says_and_in_no_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[tuple[Row | None, str], Row] = {}

    async def noted(*how: Any) -> bool:
        done, (before, after) = await change_lease(*how), how[3:5]
        if done:
            seen[before.state if before else None, _event(before, after)] = after.state
        return done

    monkeypatch.setattr(leases, "change_lease", noted)

    async def main() -> None:
        world = World()
        a, b = await nodes_of(world, "a", "b")
        for end in ("leaves", "dies", "is ended", "leaves"):
            await a.start()
            await b.client.clock.sleep(10)
            if end == "leaves":
                await a.client.spawn(a.lease.stop())
            a.client.crash()
            while end == "is ended" and not b.watcher.ended:
                await b.take_over()
                await b.client.clock.sleep(3)
            a = Node(world.client("a"))

    simulate(main())
    assert seen == ROW_LIFE


def test_the_life_cycles_have_no_way_back_for_an_incarnation() -> None:
    assert {after for (before, event), after in HOLDER_LIFE.items() if before is Holder.LOST} == {Holder.HOLDING}
    assert {event for (before, event) in HOLDER_LIFE if before is Holder.LOST} == {"claimed"}
    assert heard(True, 9.9, 10.0) == "beaten"
    assert heard(True, 10.0, 10.0) == "late"
    assert heard(False, 1.0, 10.0) == "fenced"
