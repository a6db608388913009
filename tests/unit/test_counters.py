"""Counters on the simulated store, where a day passes at once, and on the embedded one."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.counter_world import DAY_S, HOUR_S, counters_of, in_world, shards

from capellini.counters import reading
from capellini.counters.mutators import left_us, may_confirm, next_stamp, takes_updates
from capellini.counters.service import Counters
from capellini.counters.shards import (
    STATE,
    Shard,
    Tally,
    pack,
    unpack,
)
from capellini.counters.states.interface import Damaged
from capellini.counters.states.total import Sum
from capellini.counters.times import Times, check_times
from capellini.model.clock import RealClock
from capellini.model.counters import Counted, Update, check_name
from capellini.model.errors import Conflict, Invalid, NotFound, Unavailable, Unknown
from capellini.model.service import Problem
from capellini.store.opening import open_store
from capellini.store.simulation.world import World

# ---- decisions


def test_a_mutator_takes_updates_until_its_last_hour() -> None:
    times = Times()
    born_us, expires_us = 0, times.life_us
    assert takes_updates(left_us(expires_us, born_us, 0, 0, times), times)
    assert takes_updates(left_us(expires_us, expires_us - times.last_us, 0, 0, times), times)
    assert not takes_updates(left_us(expires_us, expires_us - times.last_us + 1, 0, 0, times), times)
    slept = left_us(expires_us, born_us, 0, 2 * DAY_S, times)  # the wall clock went back meanwhile
    assert not takes_updates(slept, times) and not may_confirm(slept)


def test_timestamps_rise_and_stay_below_expiry() -> None:
    assert next_stamp(0, 100, 1_000) == 100
    assert next_stamp(100, 100, 1_000) == 101
    assert next_stamp(500, 100, 1_000) == 501  # the clock went back
    assert next_stamp(998, 2_000, 1_000) is None
    assert next_stamp(999, 0, 1_000) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"last_s": 5.0}, "last_s"),
        ({"life_s": 3_700.0}, "life_s"),
        ({"grace_s": 10_800.0}, "max_hint_window"),
        ({"max_skew_s": 50_000.0}, "max_skew_s"),
        ({"hint_window_s": 80_000.0}, "grace_s"),
        ({"life_s": float("nan")}, "life_s"),
        ({"grace_s": -1.0}, "grace_s"),
    ],
)
def test_times_that_do_not_go_together_are_refused(change: dict[str, float], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        check_times(msgspec.structs.replace(Times(), **change))


def test_a_mutators_shard_counts_once_and_not_if_the_tally_has_it() -> None:
    def cell(value: int) -> bytes:
        return pack(Sum(value))

    tally = Tally(100, pack(Sum(1_000), 100))
    rows = [Shard(99, "a", cell(1)), Shard(100, "b", cell(2)), Shard(100, "b", cell(3)), Shard(150, "c", cell(4))]
    seen = reading.counted(tally, rows)
    assert reading.merged(seen, Sum, "n").value() == 1_007
    assert (seen.ignored, reading.expired(seen, 150)) == (1, 1)


@pytest.mark.parametrize("place", range(14))
def test_a_damaged_cell_is_noticed_wherever_it_is(place: int) -> None:
    cell = bytearray(pack(Sum(12_345), 7))
    assert unpack(bytes(cell)).through_us == 7
    cell[place] ^= 0x10
    with pytest.raises(Damaged):
        unpack(bytes(cell))


@pytest.mark.parametrize("name", ["", "a/b", ".x", "x" * 201, "ü", "a b", None, 5])
def test_bad_names_are_refused(name: Any) -> None:
    with pytest.raises(Invalid):
        check_name(name)


# ---- updating and reading


def test_an_update_is_counted_by_whoever_reads() -> None:
    async def test(world: World) -> None:
        a, b = counters_of(world.client("a")), counters_of(world.client("b"))
        await a.add("visits", 5)
        await b.add("visits", -2)
        await b.update("people", ["ann", "bob", "ann"], "set")
        assert (await a.read("visits")).value == 3
        assert (await a.read("people")).value == ["ann", "bob"]
        assert [(one.name, one.kind) for one in await b.listed()] == [("people", "set"), ("visits", "sum")]
        assert [one.name for one in await b.listed(prefix="v")] == ["visits"]
        assert [one.name for one in await b.listed(after="people")] == ["visits"]
        with pytest.raises(NotFound):
            await a.read("nothing")

    in_world(test)


def test_updates_never_read_and_many_share_a_write() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client)
        await counters.add("n")
        before = msgspec.structs.replace(client.store.counts)
        await asyncio.gather(*(counters.add("n", at) for at in range(1_000)))
        assert client.store.counts.reads == before.reads
        assert client.store.counts.writes - before.writes <= 2
        assert (await counters.read("n")).value == 1 + sum(range(1_000))

    in_world(test)


def test_reading_a_counter_of_many_shards_is_one_read() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        for _ in range(40):
            await counters_of(client).add("n")
        before = client.store.counts.reads
        counters = counters_of(client)
        await counters.add("n")
        assert (await counters.read("n")).shards == 41
        assert client.store.counts.reads - before == 1

    in_world(test)


def test_a_batch_takes_the_good_and_names_the_bad() -> None:
    async def test(world: World) -> None:
        counters = counters_of(world.client("a"))
        await counters.update("names", ["x"], "set")
        results = await counters.update_many(
            [
                Update("n", 1),
                Update("n", "two"),
                Update("n", 2**63),
                Update("bad name", 1),
                Update("names", 1),  # a sum for a set
                Update("names", "y", "set"),
                Update("m", 1, "no such kind"),
                Update("n", 4),
                Update("low", 2.5, "min"),
                Update("low", float("nan"), "min"),
            ]
        )
        errors = [one.error if isinstance(one, Problem) else "" for one in results]
        assert errors == ["", "invalid", "invalid", "invalid", "conflict", "", "invalid", "", "", "invalid"]
        assert isinstance(results[0], Counted)
        read = await counters.read_many(["n", "names", "low", "none"])
        values = [one.error if isinstance(one, Problem) else one.value for one in read]
        assert values == [5, ["x", "y"], 2.5, "not_found"]
        with pytest.raises(Conflict):
            await counters.add("names")
        with pytest.raises(Invalid):
            await counters.update("n", [1, "x"])
        assert (await counters.read("n")).value == 5

    in_world(test)


def test_many_additions_are_durable_on_flush() -> None:
    async def test(world: World) -> None:
        a, b = counters_of(world.client("a")), counters_of(world.client("b"))
        assert await a.add_many(("n" if at % 2 else "m", at) for at in range(1_000)) == 1_000
        await a.flush()
        assert (await b.read("n")).value + (await b.read("m")).value == sum(range(1_000))
        with pytest.raises(Invalid):
            await a.add_many([("n", 1), ("n", "x")])  # type: ignore[list-item]
        for bad in ([("n",)], [5], [("n", 1, 2)], [(["n"], 1)], [("n", 2**63)], [("n", True)], [("bad name", 1)]):
            with pytest.raises(Invalid):
                await a.add_many(bad)  # type: ignore[arg-type]
        await a.close()
        assert (await b.read("n")).value == sum(range(1, 1_000, 2))
        assert a.figures().updates == 1_000

    in_world(test)


def test_theta_counters_intersect() -> None:
    async def test(world: World) -> None:
        counters = counters_of(world.client("a"))
        await counters.update("left", [f"e{at}" for at in range(300)], "theta")
        await counters.update("right", [f"e{at}" for at in range(200, 500)], "theta")
        await counters.add("n")
        assert (await counters.intersection(["left", "right"]))["estimate"] == 100
        assert (await counters.read("left", sketch=True)).sketch
        with pytest.raises(Invalid):
            await counters.intersection(["left", "n"])

    in_world(test)


# ---- the life of a mutator


def test_a_mutator_in_its_last_hour_is_followed_by_a_new_one() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client)
        await counters.add("n", 1)
        await client.clock.sleep(22.9 * HOUR_S)
        await counters.add("n", 2)
        assert len(await shards(client, "n")) == 1
        await client.clock.sleep(0.2 * HOUR_S)
        await counters.add("n", 4)
        assert len(await shards(client, "n")) == 2
        assert counters.guards["update_refused_by_old_mutator"] == 1
        assert (await counters.read("n")).value == 7

    in_world(test)


def test_culled_mutators_lose_nothing() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client, memory_bytes=5_000)
        for at in range(100):
            await counters.add(f"n{at % 20}", at)
        figures = counters.figures()
        assert figures.culled > 50 and figures.memory_bytes <= 5_000
        values = [(await counters.read(f"n{at}")).value for at in range(20)]
        assert values == [sum(range(at, 100, 20)) for at in range(20)]
        await counters.add_many((f"loose{at}", 1) for at in range(50))  # more than memory takes: it waits
        assert counters.figures().memory_bytes <= 5_000
        await counters.flush()
        assert (await counters.read("loose49")).value == 1

    in_world(test)


def test_a_large_state_is_spread_over_mutators() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client)
        for first in range(0, 1_000, 100):
            await counters.update("names", [f"{at:04}" * 250 for at in range(first, first + 100)], "set")
        found = await shards(client, "names")
        assert len(found) > 2 and max(len(row.values[STATE]) for row in found) < 500_000
        assert len((await counters.read("names")).value) == 1_000

    in_world(test)


def test_what_cannot_be_written_never_counts_and_says_so() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client)
        await counters.add("n", 1)
        for replica in world.replicas[:2]:
            world.crash(replica)
        await client.clock.sleep(5.0)  # until it is known
        with pytest.raises(Unavailable):
            await counters.add("n", 2)
        await counters.add_many([("n", 4)])
        with pytest.raises(Unavailable):
            await counters.flush()
        world.calm()
        await client.clock.sleep(5.0)
        await counters.add("n", 8)
        assert (await counters.read("n")).value == 9

    in_world(test)


def test_who_flushes_is_not_told_that_nothing_counts_when_another_confirmed_some_of_it() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client)
        await counters.add("bad", 8)
        await counters.add_many([("good", 1)])
        await counters.add("good", 2)  # confirms both
        for replica in world.replicas[:2]:
            world.crash(replica)
        await client.clock.sleep(5.0)
        await asyncio.create_task(counters.add_many([("bad", 4)]))  # by one that never asks
        with pytest.raises(Unknown, match="not confirmed: bad"):
            await counters.flush()
        world.calm()
        await client.clock.sleep(5.0)
        assert ((await counters.read("good")).value, (await counters.read("bad")).value) == (3, 8)

    in_world(test)


def test_every_task_that_added_is_told_what_was_not_written() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client)
        await counters.add("n", 1)
        for replica in world.replicas[:2]:
            world.crash(replica)
        await client.clock.sleep(5.0)
        slow = asyncio.Event()

        async def one(wait: bool) -> str:
            await counters.add_many([("n", 2)])
            if wait:
                await slow.wait()  # until the mutator is long dead, and the other was told
            try:
                await counters.flush()
            except Unavailable:
                return "told"
            return "confirmed"

        late = asyncio.create_task(one(True))
        assert await asyncio.gather(one(False), one(False)) == ["told", "told"]
        slow.set()
        assert await late == "told"
        await counters.flush()  # there is nothing else to tell
        world.calm()
        await client.clock.sleep(5.0)
        assert await asyncio.create_task(one(False)) == "confirmed"
        assert (await counters.read("n")).value == 3

    in_world(test)


def test_what_may_have_been_written_is_unknown() -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client)
        await counters.add("n", 1)
        for replica in world.replicas[:2]:
            world.crash(replica)
        with pytest.raises(Unknown):
            await counters.add("n", 2)
        world.calm()
        await client.clock.sleep(5.0)
        assert (await counters.read("n")).value in (1, 3)

    in_world(test)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), asyncio.CancelledError()], ids=["bug", "cancelled"])
def test_a_write_that_ends_in_no_error_of_the_store_may_have_been_done(error: BaseException) -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters, write = counters_of(client), client.store.write
        asyncio.get_running_loop().call_exception_handler = lambda context: None  # type: ignore[method-assign]

        async def odd(batch: Any) -> None:
            await write(batch)
            raise error

        client.store.write = odd  # type: ignore[method-assign]
        with pytest.raises(Unknown):
            await counters.add("n")
        client.store.write = write  # type: ignore[method-assign]
        assert (await counters.read("n")).value == 1

    in_world(test)


def test_a_mutator_that_wakes_after_days_confirms_nothing() -> None:
    async def test(world: World) -> None:
        a, b = world.client("a"), world.client("b")
        sleeper = counters_of(a)
        await sleeper.add("n", 1)
        writes = a.store.counts.writes
        call = a.spawn(sleeper.add("n", 2))
        while a.store.counts.writes == writes:
            await asyncio.sleep(0)
        a.pause(3 * DAY_S)
        await b.clock.sleep(2.5 * DAY_S)
        assert (await counters_of(b).collect("n")).shards == 1
        with pytest.raises(Unknown):
            await call
        assert sleeper.guards["confirmation_after_expiry_refused"] == 1
        await sleeper.add("n", 4)
        assert (await sleeper.read("n")).value in (5, 7)

    in_world(test)


# ---- the embedded store


async def test_counters_survive_a_restart_in_a_folder(tmp_path: Path) -> None:
    for turn in range(1, 4):
        store = await open_store(_address(tmp_path))
        counters = Counters(store, RealClock(), random.Random())
        await asyncio.gather(*(counters.add("n") for _ in range(100)))
        await counters.update("seen", [f"e{turn}"], "hll")
        assert (await counters.read("n")).value == 100 * turn
        assert round((await counters.read("seen")).value["estimate"]) == turn
        await counters.close()
        await store.close()


async def test_closed_counters_say_so(tmp_path: Path) -> None:
    store = await open_store(_address(tmp_path))
    counters = Counters(store, RealClock(), random.Random())
    await counters.close()
    with pytest.raises(Unavailable):
        await counters.add("n")
    await store.close()


def _address(folder: Path) -> Any:
    from capellini.model.address import RocksAddress

    return RocksAddress(str(folder / "store"))
