"""Queues come and go: creation, change, pause, purge and deletion by several nodes at once, and what a cache may
show."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import pytest
from tests.simulation.slowness import slow

from capellini.model.errors import Conflict, Invalid, NotFound, Paused, StoreError, Unavailable
from capellini.queues.catalog import CACHE_S, SETTLE_S, Catalog, CatalogRow, QueueRecord, row_of
from capellini.queues.cell import Cell
from capellini.store.interface import Slice, Value
from capellini.store.schema import LEFT, MONOTON, TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

T = TypeVar("T")
SEEDS = range(10)


def catalog_of(client: SimulatedClient) -> Catalog:
    return Catalog(client.store, client.clock, client.random)


async def catalogs_of(world: World, *names: str) -> list[Catalog]:
    clients = [world.client(name) for name in names]
    await clients[0].store.prepare(TABLES)
    return [catalog_of(client) for client in clients]


def simulate(main: Coroutine[Any, Any, T], seed: int = 0) -> T:
    return run(main, seed=seed)


def test_creating_the_same_again_is_fine_and_other_options_are_a_conflict() -> None:
    async def main() -> None:
        a, b = await catalogs_of(World(), "a", "b")
        first = await a.create("jobs", options={"visibility_s": 5})
        assert await b.create("jobs", options={"visibility_s": 5.0}) == first
        assert (first.generation, len(first.secret_bytes)) == (1, 16)
        with pytest.raises(Conflict, match="other options"):
            await b.create("jobs")
        with pytest.raises(Conflict, match="exists as a work queue"):
            await b.create("jobs", "timed")
        with pytest.raises(Invalid):
            await b.create("no/slash")
        assert await b.show("jobs") == first == await b.live("jobs")

    simulate(main())


def test_each_creation_and_each_purge_is_a_new_generation_with_a_new_secret() -> None:
    async def main() -> None:
        (a,) = await catalogs_of(World(), "a")
        records = [await a.create("jobs", options={"bucket_size": 10})]
        records.append(await a.purge("jobs"))
        await a.delete("jobs")
        with pytest.raises(NotFound):
            await a.show("jobs")
        with pytest.raises(NotFound):
            await a.delete("jobs")
        records.append(await a.create("jobs"))
        assert [record.generation for record in records] == [1, 2, 3]
        assert len({record.secret for record in records}) == 3
        assert records[1].options == records[0].options

    simulate(main())


def test_queues_are_listed_by_name_in_pages() -> None:
    async def main() -> None:
        (a,) = await catalogs_of(World(), "a")
        for name in ("b2", "a1", "b1", "c", "b3"):
            await a.create(name)
        await a.delete("b2")
        assert [each.name for each in await a.queues()] == ["a1", "b1", "b3", "c"]
        assert [each.name for each in await a.queues(prefix="b")] == ["b1", "b3"]
        assert [each.name for each in await a.queues(after="a1", limit=2)] == ["b1", "b3"]
        assert [each.name for each in await a.queues(prefix="b", after="b1")] == ["b3"]

    simulate(main())


def test_deleted_queues_are_passed_over_without_decoding_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows stay for ever, and every node reads all rows every second."""
    decoded: list[str] = []

    def noted(name: str, values: Mapping[str, Value]) -> CatalogRow | None:
        decoded.append(name)
        return row_of(name, values)

    async def main() -> None:
        (a,) = await catalogs_of(World(), "a")
        for name in ("gone", "feed", "jobs"):
            await a.create(name, "work" if name == "jobs" else "log")
        await a.delete("gone")
        monkeypatch.setattr("capellini.queues.catalog.row_of", noted)
        assert [each.name for each in await a.queues()] == ["feed", "jobs"]
        assert [each.name for each in (await a.logs())[0]] == ["feed"]
        assert sorted(await a._rows()) == ["feed", "jobs"]
        assert decoded == ["feed", "jobs"] * 3

    simulate(main())


def test_racing_creations_agree_on_one_queue_and_racing_deletions_end_it_once() -> None:
    async def main() -> None:
        catalogs = await catalogs_of(World(), *"abcde")
        created = await asyncio.gather(*(catalog.create("jobs") for catalog in catalogs))
        assert len({record.secret for record in created}) == 1
        ended = await asyncio.gather(*(catalog.delete("jobs") for catalog in catalogs), return_exceptions=True)
        assert Counter(type(each).__name__ for each in ended) == {"NoneType": 1, "NotFound": 4}
        assert (await catalogs[0].create("jobs")).generation == 2

    simulate(main())


def test_changes_keep_to_what_can_change() -> None:
    async def main() -> None:
        a, b = await catalogs_of(World(), "a", "b")
        await a.create("jobs")
        await b.live("jobs")
        await a.change("jobs", {"visibility_s": 7})
        assert (await b.live("jobs")).options.visibility_s == 7
        with pytest.raises(Conflict, match="bucket_size"):
            await a.change("jobs", {"bucket_size": 20})
        with pytest.raises(NotFound):
            await a.change("none", {})
        assert (await a.show("jobs")).options.bucket_size == 1_000

    simulate(main())


def test_dead_letters_need_a_living_target_and_make_no_circle() -> None:
    async def main() -> None:
        (a,) = await catalogs_of(World(), "a")
        with pytest.raises(Conflict, match="does not exist"):
            await a.create("jobs", options={"dead_letters": "dead"})
        with pytest.raises(Conflict, match="come back"):
            await a.create("jobs", options={"dead_letters": "jobs"})
        await a.create("dead")
        await a.create("jobs", options={"dead_letters": "dead"})
        with pytest.raises(Conflict, match="dead → jobs → dead"):
            await a.change("dead", {"dead_letters": "jobs"})
        with pytest.raises(Conflict, match="dead letters of jobs go to dead"):
            await a.delete("dead")
        assert (await a.purge("dead")).generation == 2
        await a.delete("jobs")
        await a.delete("dead")
        assert await a.queues() == []

    simulate(main())


def test_a_target_that_is_deleted_meanwhile_is_noticed() -> None:
    async def main() -> None:
        world = World()
        a, b = await catalogs_of(world, "a", "b")
        await a.create("jobs")
        await a.create("dead")
        with slow(world.clients[1].store, "compare_and_set", before_s=5):
            naming = world.clients[1].spawn(b.change("jobs", {"dead_letters": "dead"}))
            await asyncio.sleep(1)
        await a.delete("dead")
        with pytest.raises(Conflict, match="does not exist"):
            await naming
        assert (await a.show("jobs")).options.dead_letters == ""

    simulate(main())


def test_a_queue_that_is_named_while_it_is_deleted_stays() -> None:
    async def main() -> None:
        world = World()
        a, b = await catalogs_of(world, "a", "b")
        await a.create("jobs")
        await a.create("dead")
        with slow(world.clients[1].store, "compare_and_set", before_s=5):
            deleting = world.clients[1].spawn(b.delete("dead"))
            await asyncio.sleep(1)
        await a.change("jobs", {"dead_letters": "dead"})
        with pytest.raises(Conflict, match="dead letters of jobs go to dead"):
            await deleting
        assert (await a.show("dead")).generation == 1

    simulate(main())


def test_two_halves_of_a_circle_that_are_closed_at_once_do_not_become_one() -> None:
    async def main() -> None:
        world = World()
        a, b = await catalogs_of(world, "a", "b")
        for name in "BDAC":
            await a.create(f"q{name}", options={"dead_letters": {"A": "qB", "C": "qD"}.get(name, "")})
        with slow(world.clients[1].store, "compare_and_set", before_s=5):
            closing = world.clients[1].spawn(b.change("qB", {"dead_letters": "qC"}))
            await asyncio.sleep(1)
        await a.change("qD", {"dead_letters": "qA"})
        with pytest.raises(Conflict, match="come back"):
            await closing

    simulate(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_races_leave_no_queue_without_its_dead_letters_and_no_circle(seed: int) -> None:
    async def main() -> None:
        world = World(faults=Faults(slow=0.3))
        catalogs = await catalogs_of(world, *"abcd")
        names = ["q0", "q1", "q2", "q3"]
        for name in names:
            await catalogs[0].create(name)

        async def disturb(at: int) -> None:
            chance = world.clients[at].random
            for _ in range(6):
                name, target = chance.sample(names, 2)
                try:
                    if chance.random() < 0.3:
                        await catalogs[at].delete(name)
                        await catalogs[at].create(name)
                    else:
                        await catalogs[at].change(name, {"dead_letters": target})
                except (Conflict, NotFound, StoreError) as error:
                    refused[error.name] += 1

        refused: Counter[str] = Counter()
        await asyncio.gather(*(world.clients[at].spawn(disturb(at)) for at in range(4)))
        living = {record.name: record.options.dead_letters for record in await catalogs[0].queues()}
        assert refused["conflict"]
        for name, target in living.items():
            way = [name]
            while target:
                assert target in living, (name, target)
                assert target not in way, way
                way.append(target)
                target = living[target]

    simulate(main(), seed)


def test_a_hit_costs_nothing_and_those_who_wait_share_one_read() -> None:
    async def main() -> None:
        world = World()
        a, b = await catalogs_of(world, "a", "b")
        await a.create("jobs")
        reads = world.clients[1].store.counts
        before = reads.requests
        await asyncio.gather(*(b.live("jobs") for _ in range(50)))
        await b.live("jobs")
        assert reads.requests - before == 1
        await world.clients[1].clock.sleep(CACHE_S)
        await b.live("jobs")
        assert reads.requests - before == 2

    simulate(main())


def test_a_read_that_hangs_does_not_answer_for_what_starts_later() -> None:
    async def main() -> None:
        world = World()
        a, b = await catalogs_of(world, "a", "b")
        await a.create("jobs")
        with slow(world.clients[1].store, "read", after_s=10):
            old = asyncio.ensure_future(b.live("jobs"))
            await asyncio.sleep(0.1)
        await a.pause("jobs", puts=True)
        assert (await b.live("jobs")).puts_paused
        assert not (await old).puts_paused  # it had started before
        assert (await b.live("jobs")).puts_paused

    simulate(main())


def test_a_queue_is_found_at_once_on_all_nodes_when_its_creation_returned() -> None:
    async def main() -> None:
        world = World()
        a, b = await catalogs_of(world, "a", "b")
        with slow(world.clients[1].store, "read", after_s=0.4):
            early = asyncio.ensure_future(b.live("jobs"))
            await asyncio.sleep(0.1)
        await a.create("jobs")
        assert (await b.live("jobs")).generation == 1  # although it shares the read that found nothing
        with pytest.raises(NotFound):
            await early

    simulate(main())


def test_one_who_stops_waiting_does_not_end_the_shared_read() -> None:
    async def main() -> None:
        a, b = await catalogs_of(World(), "a", "b")
        await a.create("jobs")
        waiting = [asyncio.ensure_future(b.live("jobs")) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert isinstance(done[1], QueueRecord)

    simulate(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_what_starts_after_a_call_returned_never_uses_the_older_record(seed: int) -> None:
    """One node pauses, resumes, purges, deletes and creates; the others ask all the time, and are paused now and
    then."""
    cached = 0

    async def main() -> None:
        nonlocal cached
        world = World(faults=Faults(slow=0.2, drift=0.01, client_pause_every_s=3, client_pause_most_s=4))
        boss, *others = await catalogs_of(world, *"abc")
        await boss.create("jobs")
        in_force: tuple[int, bool] = (1, False)  # the least generation, and whether puts are surely paused
        asked = 0
        over = False

        async def ask(catalog: Catalog, client: SimulatedClient) -> None:
            nonlocal asked
            while not over:
                generation, paused = in_force
                try:
                    record = await catalog.live("jobs")
                except (NotFound, Unavailable):
                    record = None
                if record is not None:
                    asked += 1
                    assert record.generation >= generation
                    assert record.puts_paused or not paused or in_force != (generation, paused)
                await client.clock.sleep(client.random.uniform(0, 0.2))

        asking = [client.spawn(ask(each, client)) for each, client in zip(others, world.clients[1:], strict=True)]

        async def rule() -> None:
            nonlocal in_force
            for _ in range(6):
                await boss.pause("jobs", puts=True)
                in_force = (in_force[0], True)
                await world.clients[0].clock.sleep(1)
                in_force = (in_force[0], False)
                await boss.pause("jobs", puts=False)
                record = await boss.purge("jobs")
                in_force = (record.generation, False)
                await boss.delete("jobs")
                in_force = (record.generation + 1, False)
                await boss.create("jobs")

        await world.clients[0].spawn(rule())
        over = True
        await asyncio.gather(*asking)
        requests = sum(client.store.counts.requests for client in world.clients[1:])
        cached = asked - requests

    simulate(main(), seed)
    assert cached > 0  # the cache did answer


def test_paused_queues_say_so() -> None:
    async def main() -> None:
        (a,) = await catalogs_of(World(), "a")
        await a.create("jobs")
        record = await a.pause("jobs", puts=True)
        with pytest.raises(Paused):
            record.require_puts()
        record.require_gets()
        record = await a.pause("jobs", puts=False, gets=True)
        record.require_puts()
        with pytest.raises(Paused):
            record.require_gets()
        assert record.info().gets_paused

    simulate(main())


def _next(client: SimulatedClient, generation: int) -> Cell[tuple[int, bool]]:
    def decode(values: dict[str, Value]) -> tuple[int, bool]:
        value = values.get("next")
        return (value if isinstance(value, int) else 0, values.get("state") == "closed")

    return Cell(
        client.store,
        client.clock,
        client.random,
        MONOTON,
        ("jobs", generation),
        (),
        ("next", "state"),
        decode,
        lambda state: {"next": state[0], "state": "closed" if state[1] else None},
    )


def _reserve(state: tuple[int, bool]) -> tuple[tuple[int, bool], int | None]:
    return (state, None) if state[1] else ((state[0] + 1, False), state[0])


@pytest.mark.parametrize("used", [True, False])
def test_no_ids_are_reserved_in_a_generation_that_is_over(used: bool) -> None:
    async def main() -> None:
        world = World()
        (a,) = await catalogs_of(world, "a")
        await a.create("jobs")
        cell = _next(world.clients[0], 1)
        if used:
            assert await cell.change(_reserve) == 0
        else:
            await cell.read()  # remembers that there is no row
        await a.purge("jobs")
        assert await cell.change(_reserve) is None
        assert await _next(world.clients[0], 2).change(_reserve) == 0

    simulate(main())


def test_what_is_left_is_named_once_it_is_over_everywhere_and_until_it_is_cleared() -> None:
    async def main() -> None:
        world = World()
        a, b = await catalogs_of(world, "a", "b")
        await a.create("jobs")
        await a.purge("jobs")
        await a.delete("jobs")
        assert await b.leftovers() == []  # just heard of them
        await world.clients[1].clock.sleep(SETTLE_S)
        assert await b.leftovers() == [("jobs", 1, 1_000), ("jobs", 2, 1_000)]
        await b.cleared("jobs", 1)
        await a.cleared("jobs", 1)
        assert await b.leftovers() == [("jobs", 2, 1_000)]
        await world.clients[1].clock.sleep(200_000)
        page = await world.clients[1].store.read(Slice(LEFT, ("all",)))
        assert [row.key for row in page.rows] == [("jobs", 2)]

    simulate(main())


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_anywhere_in_a_deletion_leaves_a_live_queue_or_one_that_is_cleared(seed: int) -> None:
    ends: Counter[str] = Counter()

    async def crashing(at: int) -> None:
        world = World()
        a, b = await catalogs_of(world, "a", "b")
        await a.create("jobs")
        world.clients[0].spawn(a.delete("jobs"))
        await asyncio.sleep(world.random.uniform(at * 0.002, (at + 1) * 0.002))  # from at once to after all of it
        world.clients[0].crash()
        await asyncio.sleep(5)
        left = await b.leftovers()
        await world.clients[1].clock.sleep(SETTLE_S)
        left = await b.leftovers()
        cell = _next(world.clients[1], 1)
        try:
            await b.show("jobs")
            ends["lives"] += 1
            assert left == []
            assert await cell.change(_reserve) == 0
            await b.delete("jobs")
        except NotFound:
            ends["over"] += 1
            assert left == [("jobs", 1, 1_000)]
        assert await cell.change(_reserve) is None

    for at in range(10):
        simulate(crashing(at), seed * 10 + at)
    assert ends["lives"] and ends["over"], ends
