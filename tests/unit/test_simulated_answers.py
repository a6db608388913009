"""Answers of the simulated store: lost, refused, late, in pages, and held up by others."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.simulated_world import CELL, ROWS, P, make, many, number, row, step, until, value

from capellini.model.errors import Unavailable, Unknown
from capellini.store.interface import (
    Batch,
    Cas,
    Change,
    Key,
    Level,
    Outcome,
    Slice,
    settle,
)
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run

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
