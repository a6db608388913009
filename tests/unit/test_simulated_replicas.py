"""Replicas of the simulated store: what each level shows, and what crashes, hints and pauses do to them."""

from __future__ import annotations

import pytest
from tests.unit.simulated_world import ROWS, P, make, many, number, row, step, value

from capellini.model.errors import Unavailable, Unknown
from capellini.store.interface import (
    Level,
    Slice,
)
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run

# ---- levels


def test_level_one_returns_stale_data_and_quorum_does_not() -> None:
    async def main() -> tuple[bool, bool]:
        _world, client = await make()
        stale_one = stale_quorum = False
        for turn in range(1, 200):
            await client.store.write(row(0, turn))
            stale_one |= await value(client.store, level=Level.ONE) != turn
            stale_quorum |= await value(client.store) != turn
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
        for turn in range(1, 300):
            try:
                await client.store.write(row(0, turn))
                confirmed = turn
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
