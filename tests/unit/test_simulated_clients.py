"""Clients of the simulated store: their clocks, pauses and crashes, and the end of all faults."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.unit.simulated_world import CELL, ROWS, P, make, many, number, row, step, value

from capellini.model.errors import CannotOpen, Invalid, Unavailable
from capellini.store.interface import (
    ABSENT,
    Batch,
    Cas,
    Change,
    Level,
    Slice,
)
from capellini.store.simulation.busy import busy
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

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
