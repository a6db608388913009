"""The simulated store: as unkind as a real cluster, and the same each time."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from capellini.model.errors import CannotOpen, Invalid, Unavailable, Unknown
from capellini.store.interface import (
    ABSENT,
    Batch,
    Cas,
    Change,
    Column,
    Key,
    Level,
    Outcome,
    Slice,
    Store,
    Table,
    Type,
    Value,
    settle,
)
from capellini.store.simulation.busy import busy, measure
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import Deadlock, Livelock, run
from capellini.store.simulation.world import World

ROWS = Table(
    name="rows",
    doc="Plain rows.",
    partition=(Column("p", Type.TEXT),),
    clustering=(Column("k", Type.INT),),
    columns=(Column("v", Type.INT),),
    listable=True,
)
CELL = Table(
    name="cell",
    doc="One conditional row.",
    partition=(Column("p", Type.TEXT),),
    columns=(Column("n", Type.INT), Column("token", Type.TEXT)),
    conditional=frozenset(("n", "token")),
)
P: Key = ("p",)


async def make(**how: Any) -> tuple[World, SimulatedClient]:
    world = World(**how)
    client = world.client("a")
    await client.store.prepare((ROWS, CELL))
    return world, client


def row(k: int, v: int, **how: Any) -> Batch:
    return Batch(ROWS, P, (((k,), {"v": v}),), **how)


async def value(store: Store, k: int = 0, level: Level = Level.QUORUM) -> Value:
    page = await store.read(Slice(ROWS, P, start=(k,), limit=1, level=level))
    return page.rows[0].values["v"] if page.rows else None


def step(old: int | None, new: int, token: str = "", level: Level = Level.SERIAL) -> Cas:
    return Cas(CELL, P, (Change((), {"n": old}, {"n": new, "token": token or str(new)}),), level=level)


async def number(store: Store) -> Value:
    page = await store.read(Slice(CELL, P, level=Level.SERIAL))
    return page.rows[0].values["n"] if page.rows else None


async def until(client: SimulatedClient, holds: Callable[[], Awaitable[bool]], most_s: float = 600.0) -> None:
    end_s = client.clock.elapsed_s() + most_s
    while not await holds():
        assert client.clock.elapsed_s() < end_s
        await client.clock.sleep(0.01)


def many(test: Callable[[], Coroutine[Any, Any, Any]], seeds: int = 20) -> list[Any]:
    return [run(test(), seed) for seed in range(seeds)]


# ---- the loop


def test_virtual_time_passes_without_waiting_and_in_order() -> None:
    async def main() -> list[tuple[float, str]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[float, str]] = []

        async def one(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((loop.time(), name))

        async with asyncio.TaskGroup() as group:
            for name, seconds in (("day", 86_400.0), ("hour", 3_600.0), ("also an hour", 3_600.0)):
                group.create_task(one(name, seconds))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        seen.append((loop.time(), "timeout"))
        return seen

    assert run(main()) == [(3_600.0, "hour"), (3_600.0, "also an hour"), (86_400.0, "day"), (86_405.0, "timeout")]


def test_a_deadlock_is_an_error_that_says_who_waits() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        World(faults=Faults(crash_every_s=10.0))  # faults alone keep nothing going
        await asyncio.gather(asyncio.create_task(forever(), name="the stuck one"))

    with pytest.raises(Deadlock, match="the stuck one"):
        run(main())


def test_a_loop_in_which_no_time_passes_is_an_error() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        run(main())


def test_what_is_left_at_the_end_is_unwound_before_run_returns() -> None:
    ended: list[str] = []

    async def linger(name: str) -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append(name)

    async def main() -> list[str]:
        _world, client = await make()
        tasks = [client.spawn(linger("dead")), asyncio.create_task(linger("alive"))]
        await client.clock.sleep(1)
        client.crash()
        await asyncio.sleep(1)
        assert not any(task.done() for task in tasks)
        return list(ended)

    assert run(main()) == []
    assert sorted(ended) == ["alive", "dead"]


# ---- a run is its seed


def traced(seed: int, faults: Faults) -> tuple[list[tuple[Any, ...]], dict[str, int], float]:
    async def main() -> tuple[list[tuple[Any, ...]], dict[str, int], float]:
        world = World(faults=faults, trace=True)
        await busy(world, 60.0, clients=4)
        assert world.trace is not None
        return world.trace, dict(world.faults), world.loop.time()

    return run(main(), seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_runs_with_one_seed_are_equal_and_others_are_not(seed: int) -> None:
    faults = Faults.some(random.Random(seed))
    assert traced(seed, faults) == traced(seed, faults)
    assert traced(seed, faults)[0] != traced(seed + 100, faults)[0]


DIGEST = """
import random, zlib
from capellini.store.simulation.busy import busy
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

async def main():
    world = World(faults=Faults.some(random.Random(6)), trace=True)
    await busy(world, 30.0, clients=3)
    return zlib.crc32(repr((world.trace, sorted(world.faults.items()))).encode())

print(run(main(), 6))
"""


def test_a_run_does_not_depend_on_how_python_hashes() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1 and digests.pop().strip().isdigit()


def test_a_busy_world_does_its_work() -> None:
    done = measure(30.0, seed=5)
    assert 8 * 30 / 0.20 < done.operations < 8 * 30 / 0.16 and done.failed == 0 and done.faults == {}


# ---- levels


def test_level_one_returns_stale_data_and_quorum_does_not() -> None:
    async def main() -> tuple[bool, bool]:
        _world, client = await make()
        stale_one = stale_quorum = False
        for number in range(1, 200):
            await client.store.write(row(0, number))
            stale_one |= await value(client.store, level=Level.ONE) != number
            stale_quorum |= await value(client.store) != number
        return stale_one, stale_quorum

    found = many(main, 5)
    assert any(stale_one for stale_one, _ in found)
    assert not any(stale_quorum for _, stale_quorum in found)
    assert found == many(main, 5)


def test_a_confirmed_quorum_write_is_seen_by_quorum_reads_whatever_fails() -> None:
    async def main() -> int:
        faults = Faults(
            lost_answer=0.02, lost_request=0.02, refused=0.02, slow=0.05, split_read=0.2, crash_every_s=15,
            cut_every_s=10, pause_every_s=10, hint_lost=0.5, skew_s=0.0,
        )  # fmt: skip
        world, client = await make(faults=faults)
        confirmed = 0
        for number in range(1, 300):
            try:
                await client.store.write(row(0, number))
                confirmed = number
            except (Unknown, Unavailable):
                pass  # it may be there or not
            try:
                seen = await value(client.store)
            except Unavailable:
                continue
            assert (seen is None and confirmed == 0) or (isinstance(seen, int) and seen >= confirmed)
            await client.clock.sleep(0.2)
        assert world.faults["replica_crash"] and world.faults["cut"] and world.faults["split_read"]
        return confirmed

    assert all(confirmed > 100 for confirmed in many(main, 10))


def test_local_quorums_go_on_on_both_sides_of_a_cut_and_meet_after_it() -> None:
    async def main() -> None:
        world, client = await make(replicas={"east": 3, "west": 3})
        other = world.client("b", dc="west")
        for one in world.replicas[:3]:
            for two in world.replicas[3:]:
                world.cut(one.name, two.name)
        await client.clock.sleep(5)
        await client.store.write(row(1, 1, level=Level.LOCAL_QUORUM))
        await other.store.write(row(2, 2, level=Level.LOCAL_QUORUM))
        with pytest.raises(Unavailable):
            await client.store.write(row(3, 3))
        assert (await client.store.compare_and_set(step(None, 1, level=Level.LOCAL_SERIAL))).applied
        with pytest.raises(Unavailable):
            await other.store.compare_and_set(step(None, 9))
        mine = await client.store.read(Slice(ROWS, P, level=Level.LOCAL_QUORUM))
        theirs = await other.store.read(Slice(ROWS, P, level=Level.LOCAL_QUORUM))
        assert [each.key for each in mine.rows] == [(1,)] and [each.key for each in theirs.rows] == [(2,)]
        world.calm()
        for each in (client, other):
            page = await each.store.read(Slice(ROWS, P, level=Level.LOCAL_ONE))
            assert [each.key for each in page.rows] == [(1,), (2,)]

    many(main, 3)


# ---- lost, refused and late


def test_lost_answers_are_sometimes_applied_and_sometimes_not() -> None:
    async def main() -> tuple[int, int]:
        world, client = await make(faults=Faults(lost_answer=0.3, lost_request=0.3))
        unknown: list[int] = []
        for k in range(60):
            try:
                await client.store.write(row(k, k))
            except Unknown:
                unknown.append(k)
        world.calm()
        there = [await value(client.store, k) == k for k in unknown]
        applied, lost = sum(there), len(there) - sum(there)
        assert client.store.counts.unknown == len(unknown)
        assert world.faults["lost_answer_applied"] and world.faults["lost_answer_not_applied"]
        return applied, lost

    for applied, lost in many(main, 3):
        assert applied and lost


def test_a_late_write_lands_with_its_old_timestamp_unless_something_newer_is_there() -> None:
    async def main() -> None:
        world, client = await make(faults=Faults(late_write=1.0))
        for k in range(20):
            with pytest.raises(Unknown):
                await client.store.write(row(k, 1))
        assert world.late and world.faults["late_write"] == 20
        late = world.late
        world.profile = Faults.none()
        await client.store.write(row(0, 2))
        world.calm()
        assert world.late == late

        async def landed() -> bool:
            return world.late == 0

        await until(client, landed, 5)
        assert await value(client.store, 0) == 2
        assert [await value(client.store, k) for k in range(1, 20)] == [1] * 19

    many(main, 5)


def test_a_late_compare_and_set_never_overtakes() -> None:
    """Each step expects the one before: what is late or in limbo may fill a gap at its turn, never undo a later one."""

    async def main() -> tuple[int, ...]:
        faults = Faults(
            late_cas=0.15, stall_cas=0.15, limbo_cas=0.15, lost_answer=0.1, late_least_s=0.1, late_most_s=60
        )  # fmt: skip
        world, client = await make(faults=faults, replicas=3)
        at, reached = None, 0
        for number_ in range(1, 120):
            try:
                outcome = await client.store.compare_and_set(step(at, number_))
            except Unknown:
                await client.clock.sleep(client.random.uniform(0, 20))
                continue
            seen = number_ if outcome.applied else outcome.rows[()]["n"]
            assert isinstance(seen, int) and seen >= reached
            at = reached = seen
        world.calm()
        await client.clock.sleep(5)
        last = await number(client.store)
        assert world.late == 0 and isinstance(last, int) and last >= reached
        kinds = ("late_cas_applied", "late_cas_superseded", "limbo_cas_finished", "limbo_cas_void", "late_cas")
        return tuple(world.faults[kind] for kind in kinds)

    reached = [sum(column) for column in zip(*many(main, 20), strict=True)]
    assert all(reached), reached


def test_settle_resolves_lost_answers_and_counts_each_step_once() -> None:
    """Each client has a row of its own: a token that another overwrote would show no more."""

    async def add(client: SimulatedClient) -> None:
        at: int | None = None
        for turn in range(12):
            token = f"{client.name}/{turn}"
            change = Change((), {"n": at}, {"n": turn + 1, "token": token})

            def mine(outcome: Outcome, token: str = token) -> bool:
                return outcome.rows.get((), {}).get("token") == token

            while True:
                try:
                    outcome = await settle(client.store, Cas(CELL, (client.name,), (change,)), mine, client.clock.sleep)
                except (Unavailable, Unknown):
                    continue
                assert outcome.applied, turn
                at = turn + 1
                break

    async def main() -> int:
        faults = Faults(
            late_cas=0.05, stall_cas=0.05, limbo_cas=0.1, lost_answer=0.1, lost_request=0.05, late_most_s=30
        )  # fmt: skip
        world, _ = await make(faults=faults)
        clients = [world.client(f"adder-{at}") for at in range(3)]
        await asyncio.gather(*(client.spawn(add(client)) for client in clients))
        world.calm()
        await clients[0].clock.sleep(5)
        for client in clients:
            page = await client.store.read(Slice(CELL, (client.name,), level=Level.SERIAL))
            assert page.rows[0].values == {"n": 12, "token": f"{client.name}/11"}
        return sum(client.store.counts.unknown for client in clients)

    assert all(many(main, 10))


def test_unavailable_means_that_nothing_was_or_will_be_applied() -> None:
    async def main() -> int:
        faults = Faults(refused=0.1, late_write=0.1, crash_every_s=5, crash_at_once=2, cut_every_s=5, pause_every_s=10)
        world, client = await make(faults=faults)
        refused: list[int] = []
        for k in range(200):
            try:
                await client.store.write(row(k, k))
            except Unavailable:
                refused.append(k)
            except Unknown:
                pass  # it may be there or not
            await client.clock.sleep(0.1)
        world.calm()
        await client.clock.sleep(5)
        assert world.late == 0
        assert [await value(client.store, k) == k for k in refused] == [False] * len(refused)
        return len(refused)

    assert sum(many(main, 5)) > 50


# ---- replicas


def test_hints_reach_a_replica_that_was_down() -> None:
    async def main() -> None:
        world, client = await make()
        world.crash(world.replicas[0])
        await client.clock.sleep(5)
        for k in range(5):
            await client.store.write(row(k, k))
        with pytest.raises(Unavailable):
            await client.store.write(row(9, 9, level=Level.ALL))
        world.restart(world.replicas[0])
        world.crash(world.replicas[1])
        world.crash(world.replicas[2])
        await client.clock.sleep(2.5)
        missed = [await value(client.store, k, Level.ONE) for k in range(5)]
        await client.clock.sleep(10)
        assert [await value(client.store, k, Level.ONE) for k in range(5)] == list(range(5))
        assert world.faults["hint"] == 1 and missed in ([None] * 5, list(range(5)))

    many(main, 5)


def test_a_replica_that_is_behind_shows_old_data_at_level_one_until_it_is_repaired() -> None:
    async def main() -> None:
        world, client = await make(faults=Faults(hint_lost=1.0))
        await client.store.write(row(0, 1))
        await client.clock.sleep(1)
        world.crash(world.replicas[0])
        await client.clock.sleep(5)
        await client.store.write(row(0, 2))
        world.restart(world.replicas[0])
        await client.clock.sleep(100)
        seen = {await value(client.store, 0, Level.ONE) for _ in range(50)}
        assert seen == {1, 2} and world.faults["lost_hint"] == 1
        world.calm()
        assert {await value(client.store, 0, Level.ONE) for _ in range(50)} == {2}

    many(main, 5)


def test_a_periodic_commit_log_loses_confirmed_writes_and_a_synced_one_does_not() -> None:
    async def main(periodic: bool) -> tuple[bool, int]:
        world, client = await make(faults=Faults(periodic=periodic))
        await client.store.write(row(0, 1))
        await client.store.compare_and_set(step(None, 1))
        await client.clock.sleep(0.5)
        for replica in world.replicas:
            world.crash(replica)
            world.restart(replica)
        lost = await value(client.store) is None or await number(client.store) is None
        return lost, world.faults["replica_lost_unsynced"]

    kept = [run(main(False), seed) for seed in range(10)]
    assert kept == [(False, 0)] * 10
    risked = [run(main(True), seed) for seed in range(10)]
    assert any(lost for lost, _ in risked) and all(count for lost, count in risked if lost)


def test_a_paused_replica_is_slow_and_forgets_nothing() -> None:
    async def main() -> None:
        world, client = await make()
        for replica in world.replicas:
            world.pause(replica, 3.0)
        began_s = client.clock.elapsed_s()
        try:
            await client.store.write(row(0, 1))
        except Unknown:
            assert client.clock.elapsed_s() - began_s > 1
        await client.clock.sleep(5)
        assert await value(client.store) == 1
        for replica in world.replicas:
            world.pause(replica, 60.0)
        with pytest.raises(Unknown):
            await client.store.write(row(0, 2))
        assert world.late == 1
        await client.clock.sleep(60)
        assert world.late == 0 and await value(client.store) == 2

    many(main, 5)


# ---- timestamps and clocks


def test_a_fast_clock_wins_plain_writes_and_loses_compare_and_sets() -> None:
    async def main() -> None:
        world, slow = await make()
        fast = world.client("fast")
        fast.clock.step(100.0)
        await fast.store.write(row(0, 1))
        await slow.store.write(row(0, 2))
        assert await value(slow.store) == 1
        world.replicas[0].offset_s = 50.0  # a coordinator ahead of the others
        for at in range(30):
            client = (slow, fast)[at % 2]
            assert (await client.store.compare_and_set(step(at or None, at + 1))).applied
        assert await number(slow.store) == 30
        skews = {round(await slow.store.skew_s()) for _ in range(20)}
        assert skews == {0, 50} and -101 < await fast.store.skew_s() < -49

    many(main, 3)


def test_skew_and_steps_stay_within_their_bound_and_elapsed_time_never_jumps() -> None:
    async def main() -> None:
        world, client = await make(faults=Faults(skew_s=0.25, step_every_s=5, drift=1e-4))
        others = [world.client(f"c{at}") for at in range(3)]
        last_s = client.clock.elapsed_s()
        offsets = set()
        for _ in range(100):
            await client.clock.sleep(1)
            assert abs(client.clock.elapsed_s() - last_s - 1) < 1e-6
            last_s = client.clock.elapsed_s()
            offsets |= {each.clock.offset_s for each in others}
            assert all(abs(each.clock.now_s() - client.clock.now_s()) <= 0.5 for each in others)
        assert world.faults["clock_step"] > 5 and len(offsets) > 3

    many(main, 3)


# ---- pages, contention


def test_pages_of_one_slice_are_no_snapshot() -> None:
    async def main() -> bool:
        _world, client = await make(faults=Faults(page_rows=5))
        await client.store.write(Batch(ROWS, P, tuple(((k,), {"v": 0}) for k in range(100))))

        async def rewrite() -> None:
            for turn in range(1, 20):
                await client.store.write(Batch(ROWS, P, tuple(((k,), {"v": turn}) for k in range(100))))

        task = client.spawn(rewrite())
        mixed = False
        while not task.done():
            page = await client.store.read(Slice(ROWS, P, limit=60))
            assert [each.key for each in page.rows] == [(k,) for k in range(60)] and page.more
            mixed |= len({each.values["v"] for each in page.rows}) > 1
        return mixed

    assert all(many(main, 3))


def test_compare_and_sets_on_one_partition_hold_each_other_up() -> None:
    async def rate(nodes: int, shared: bool) -> float:
        world, _ = await make()

        async def fight(client: SimulatedClient, place: Key) -> None:
            for at in range(20):
                await client.store.compare_and_set(
                    Cas(CELL, place, (Change((), {"n": -1}, {"n": at}),))  # refused: a round all the same
                )

        clients = [world.client(f"n{at}") for at in range(nodes)]
        places = ["p" if shared else str(at) for at in range(nodes)]
        began_s = world.loop.time()
        await asyncio.gather(*(c.spawn(fight(c, (place,))) for c, place in zip(clients, places, strict=True)))
        assert (world.contention > 0) is shared
        return nodes * 20 / (world.loop.time() - began_s)

    alone, apart, together = run(rate(1, False)), run(rate(8, False)), run(rate(8, True))
    assert apart > 4 * alone and together < apart / 8


def test_heavy_contention_times_out() -> None:
    async def main() -> None:
        world, client = await make()
        await client.store.compare_and_set(step(None, 0))
        fights = [client.store.compare_and_set(step(0, at)) for at in range(1, 300)]
        ended = await asyncio.gather(*fights, return_exceptions=True)
        lost = sum(isinstance(end, Unknown) for end in ended)
        assert sum(isinstance(end, Outcome) and end.applied for end in ended) == 1
        assert lost == world.faults["contention_timeout"] > 0

    run(main())


# ---- clients


def test_a_paused_client_does_nothing_meanwhile_and_its_clock_goes_on() -> None:
    async def main() -> None:
        _world, client = await make()
        ticks: list[float] = []

        async def tick() -> None:
            while True:
                await client.clock.sleep(0.1)
                ticks.append(client.clock.elapsed_s())

        async def parent() -> None:
            await asyncio.gather(tick(), asyncio.create_task(tick()))

        client.spawn(parent())
        await asyncio.sleep(1.05)
        client.pause(10)
        before = len(ticks)
        await asyncio.sleep(9.9)
        assert len(ticks) == before == 20
        await asyncio.sleep(1)
        assert len(ticks) > before and ticks[before] == pytest.approx(11.05)

    run(main())


def test_a_crashed_client_never_runs_again_but_what_it_sent_arrives() -> None:
    async def main() -> None:
        world, client = await make()
        done: list[str] = []

        async def work() -> None:
            try:
                await client.store.write(row(0, 1))
                done.append("confirmed")
            finally:
                done.append("unwound")

        client.spawn(work())
        await asyncio.sleep(0)
        client.crash()
        again = world.client("a")
        await asyncio.sleep(10)
        assert done == [] and await value(again.store) == 1
        with pytest.raises(RuntimeError):
            client.spawn(work())

    run(main())


# ---- the end of faults, and the rest


def test_calm_ends_all_faults() -> None:
    async def main() -> int:
        world, client = await make(faults=Faults.some(random.Random(asyncio.get_running_loop().time())))
        await busy(world, 60, clients=3)
        world.crash(world.replicas[0])
        world.cut(world.replicas[1].name, client.name)
        client.pause(1_000)
        world.calm()
        happened = dict(world.faults)
        await asyncio.sleep(3)
        assert world.late == 0
        for k in range(50):
            await client.spawn(client.store.write(row(k, k, level=Level.ALL)))
            assert await value(client.store, k, Level.ALL) == k
        await asyncio.sleep(10_000)
        ended = ("late_cas_", "limbo_cas_")  # how what was begun before the calm turned out: no new faults
        later = {kind: count for kind, count in world.faults.items() if not kind.startswith(ended)}
        assert later == {kind: happened[kind] for kind in later}
        return sum(happened.values())

    assert all(many(main, 5))


def test_tables_must_be_prepared_and_a_closed_store_refuses() -> None:
    async def main() -> None:
        world = World()
        store = world.client("a").store
        with pytest.raises(CannotOpen):
            await store.prepare((ROWS,), create=False)
        with pytest.raises(Invalid):
            await store.write(row(0, 1))
        await store.prepare((ROWS,))
        await store.prepare((ROWS,), create=False)
        await store.write(row(0, 1))
        await store.check()
        await store.close()
        with pytest.raises(Unavailable):
            await store.write(row(0, 1))

    run(main())


def test_counts_tell_requests_rounds_and_rows() -> None:
    async def main() -> None:
        _, client = await make()
        await client.store.write(Batch(ROWS, P, tuple(((k,), {"v": k}) for k in range(10))))
        await client.store.compare_and_set(Cas(CELL, P, (Change((), ABSENT, {"n": 1}),)))
        await client.store.read(Slice(CELL, P, level=Level.SERIAL))
        await client.store.read(Slice(ROWS, P))
        counts = client.store.counts
        assert (counts.requests, counts.statements, counts.rounds, counts.reads, counts.writes) == (4, 13, 2, 2, 2)

    run(main())
