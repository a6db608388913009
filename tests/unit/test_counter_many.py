"""Many counters and large calls: what is remembered is bounded, and what can share a write does."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from tests.unit.counter_world import counters_of, in_world, shards

from capellini.counters import names
from capellini.counters.mutators import Fleet
from capellini.counters.states.interface import MAX_TEXT_BYTES
from capellini.counters.states.total import Sum
from capellini.counters.times import Times
from capellini.model.clock import RealClock
from capellini.model.counters import MOST_AT_ONCE, Counted, Update
from capellini.model.errors import Conflict, Invalid, NotFound, Unavailable, Unknown
from capellini.model.service import Problem
from capellini.store.simulation.world import World


def words(count: int) -> list[str]:
    return [f"{at:06}".ljust(MAX_TEXT_BYTES, "x") for at in range(count)]


def test_names_that_readers_make_up_are_not_remembered() -> None:
    async def test(world: World) -> None:
        counters = counters_of(world.client("a"))
        for at in range(100):
            with pytest.raises(NotFound):
                await counters.read(f"queue:made-up-{at}:1")
        await counters.add("n")
        await counters.read("n")
        assert not counters._through_us

    in_world(test)


def test_of_very_many_counters_the_last_used_names_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MOST_KNOWN", 10)

    async def test(world: World) -> None:
        counters = counters_of(world.client("a"))
        for _ in range(2):
            for at in range(30):
                await counters.add(f"n{at}")
        await counters.update_many([Update(f"n{at}") for at in range(30)])
        await counters.add_many([(f"n{at}", 1) for at in range(30)])
        await counters.flush()
        assert [(await counters.read(f"n{at}")).value for at in range(30)] == [4] * 30
        assert len(counters._names.known) == 10
        with pytest.raises(Conflict):
            await counters.update("n0", ["x"], "set")

    in_world(test)


def test_updates_of_which_the_state_could_not_be_fixed_do_not_count_and_it_is_said() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters, asked = counters_of(client), client.store.compare_and_set

        async def lost(cas: Any) -> Any:
            await asked(cas)
            raise Unknown("no answer")

        client.store.compare_and_set = lost  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await counters.add("n")
        results = await counters.update_many([Update("n"), Update("m")])
        assert [one.error for one in results if isinstance(one, Problem)] == ["unavailable"] * 2
        client.store.compare_and_set = asked  # type: ignore[method-assign]
        await counters.add("n")
        assert (await counters.read("n")).value == 1

    in_world(test)


def test_first_updates_of_many_counters_share_rounds() -> None:
    async def test(world: World) -> None:
        client, other = world.client("a"), counters_of(world.client("b"))
        counters = counters_of(client)
        await other.update("n7", ["x"], "set")
        await other.add("n8", 5)
        wanted = [Update(f"n{at}") for at in range(1_000)]
        wanted += [Update("n9", "x", "set"), Update("bad name"), Update("new", "x", "sum"), Update("queue:jobs:1")]
        before = client.store.counts.rounds
        results = await counters.update_many(wanted)
        assert client.store.counts.rounds - before < 30
        errors = {at: one.error for at, one in enumerate(results) if isinstance(one, Problem)}
        assert errors == {7: "conflict", 1000: "conflict", 1001: "invalid", 1002: "invalid", 1003: "invalid"}
        before = client.store.counts.rounds
        await counters.add_many([(f"m{at}", 2) for at in range(1_000)])
        await counters.flush()
        assert client.store.counts.rounds - before < 30
        assert [(await other.read(name)).value for name in ("n0", "n7", "n8", "m999")] == [1, ["x"], 6, 2]
        with pytest.raises(NotFound):
            await other.read("new")  # nothing that is right was sent to it
        with pytest.raises(Conflict):
            await counters.add_many([("fresh", 1), ("n7", 1)])

    in_world(test)


def test_a_store_that_is_away_is_asked_for_new_names_once_a_shelf() -> None:
    async def test(world: World) -> None:
        client, asked = world.client("a"), []
        counters = counters_of(client)

        async def away(cas: Any) -> Any:
            asked.append(cas.partition)
            raise Unavailable("away")

        client.store.compare_and_set = away  # type: ignore[method-assign]
        began_s, wanted = client.clock.elapsed_s(), [Update(f"n{at}") for at in range(5_000)]
        results = await counters.update_many(wanted)
        assert [one.error for one in results if isinstance(one, Problem)] == ["unavailable"] * len(wanted)
        assert len(asked) == names.SHELVES and client.clock.elapsed_s() - began_s < 1

    in_world(test)


def test_of_many_new_names_those_whose_answer_is_lost_are_mine() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters, asked, lost = counters_of(client), client.store.compare_and_set, set()

        async def losing(cas: Any) -> Any:
            outcome = await asked(cas)
            if cas.partition not in lost:
                lost.add(cas.partition)
                raise Unknown("no answer")
            return outcome

        client.store.compare_and_set = losing  # type: ignore[method-assign]
        results = await counters.update_many([Update(f"n{at}") for at in range(100)])
        assert lost and all(isinstance(one, Counted) for one in results)

    in_world(test)


@pytest.mark.parametrize("kind", ["set", "frequent", "add_remove_set"])
def test_the_largest_call_counts_however_large_its_texts(kind: str) -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client)
        sent: list[Any] = words(MOST_AT_ONCE)
        if kind == "add_remove_set":
            sent = [{"add": one} for one in sent]
        await counters.update("one", sent, kind)
        results = await counters.update_many([Update("many", one, kind) for one in sent])
        assert all(isinstance(one, Counted) for one in results)
        for name in ("one", "many"):
            value = (await counters.read(name)).value
            assert (value["weight"] if kind == "frequent" else len(value)) == MOST_AT_ONCE
            assert max(len(row.values["state"]) for row in await shards(client, name)) < 4 * 1024 * 1024
        with pytest.raises(Invalid, match="at most 10000"):
            await counters.update("one", [*sent, sent[0]], kind)

    in_world(test)


def test_a_call_of_which_a_part_counts_is_unknown() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters, write = counters_of(client), client.store.write
        refused: set[Any] = set()

        async def some(batch: Any) -> None:
            key = batch.rows[0][0]
            if not refused or key in refused:
                refused.add(key)
                raise Unavailable("no")
            await write(batch)

        client.store.write = some  # type: ignore[method-assign]
        with pytest.raises(Unknown, match="a part"):
            await counters.update("words", words(3_000), "set")
        refused.clear()
        results = await counters.update_many([Update("more", one, "set") for one in words(2_000)])
        errors = [one.error if isinstance(one, Problem) else "" for one in results]
        assert errors == ["unavailable"] * 1_000 + [""] * 1_000
        assert (await counters.read("more")).value == words(2_000)[1_000:]

    in_world(test)


def test_making_room_looks_only_at_those_that_go() -> None:
    fleet = Fleet(RealClock(), random.Random(1), Times(), 0)
    for at in range(20_000):
        mutator, _ = fleet.make(f"n{at}", Sum)
        fleet.used(mutator)
    fleet._memory_bytes = fleet.bytes - 1
    tracemalloc.start()
    try:
        gone = fleet.cull()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert gone == 1 and fleet.find("n0") is None and fleet.find("n1") is not None
    assert peak < 20_000  # bytes: no list of all there are
