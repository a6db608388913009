"""A state of somebody's own that does not do as the interface says: it harms its own counter, and no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.counter_world import DAY_S, counters_of, in_world, shards

from capellini.counters.shards import DamagedShard
from capellini.counters.states.interface import Stamp, State
from capellini.counters.states.registry import Registry
from capellini.counters.states.total import Sum
from capellini.model.counters import Counted, Update
from capellini.model.errors import Invalid, Unavailable
from capellini.model.service import Problem
from capellini.store.simulation.world import World


class Odd(Sum):
    kind = "odd"


def fails(*_: Any) -> Any:
    raise KeyError("what nobody expected")


REGISTRY = Registry(more=[Odd])


@pytest.mark.parametrize("what", ["decode", "merge", "value"])
def test_a_state_that_fails_when_it_is_read_keeps_no_other_counter_back(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        counters = counters_of(world.client("a"), registry=REGISTRY)
        await counters.update("odd", [1], "odd")
        await counters.add("n", 5)
        monkeypatch.setattr(Odd, what, classmethod(fails) if what == "decode" else fails)
        odd, good = await counters.read_many(["odd", "n"])
        assert isinstance(odd, Problem) and "what nobody expected" in odd.says and "odd" in odd.says
        assert not isinstance(good, Problem) and good.value == 5
        with pytest.raises(DamagedShard):
            await counters.read("odd")

    in_world(test)


@pytest.mark.parametrize("what", ["decode", "merge", "encode"])
def test_a_state_that_fails_when_it_is_collected_stops_no_sweep(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client, registry=REGISTRY)
        await counters.update("a-odd", [1], "odd")
        await counters.add("b", 5)
        await client.clock.sleep(2 * DAY_S + 60)
        monkeypatch.setattr(Odd, what, classmethod(fails) if what == "decode" else fails)
        gone = 0
        for _ in range(4):
            gone += await counters.sweep()
        deferred = await counters.collect("a-odd")
        assert "what nobody expected" in deferred.deferred and deferred.shards == 0
        monkeypatch.undo()
        assert gone == 1 and not await shards(client, "b")
        assert (await counters.read("a-odd")).value == 1 and (await counters.read("b")).value == 5

    in_world(test)


def test_an_update_that_its_state_fails_at_is_refused_and_the_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(cls: type[Odd], update: object, stamp: Stamp) -> Any:
        return {1: 1}[update]  # type: ignore[index]

    monkeypatch.setattr(Odd, "check", classmethod(check))

    async def test(world: World) -> None:
        counters = counters_of(world.client("a"), registry=REGISTRY)
        wanted = [Update("n", 5), Update("odd", 1, "odd"), Update("odd", "x", "odd"), Update("m", 2)]
        results = await counters.update_many(wanted)
        assert [isinstance(one, Counted) for one in results] == [True, True, False, True]
        with pytest.raises(Invalid, match="'x' is no update of odd"):
            await counters.update("odd", [1, "x"], "odd")
        assert [(await counters.read(name)).value for name in ("n", "odd", "m")] == [5, 1, 2]

    in_world(test)


@pytest.mark.parametrize("refused", [False, True], ids=["written", "refused"])
def test_a_call_that_its_state_fails_in_counts_not_even_in_part(refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(self: Odd, checked: int) -> None:
        if checked == 13:
            raise KeyError("what nobody expected")
        self.total += checked

    monkeypatch.setattr(Odd, "apply", apply)

    async def test(world: World) -> None:
        client = world.client("a")
        counters, write, under_way, go_on = (
            counters_of(client, registry=REGISTRY),
            client.store.write,
            [],
            asyncio.Event(),
        )

        async def slow(batch: Any) -> None:
            under_way.append(batch)
            await go_on.wait()
            if refused and len(under_way) == 1:
                raise Unavailable("no")
            await write(batch)

        await counters.update("odd", [1], "odd")
        client.store.write = slow  # type: ignore[method-assign]
        other = asyncio.ensure_future(counters.update("odd", [2], "odd"))
        while not under_way:
            await asyncio.sleep(0)
        with pytest.raises(Invalid, match="what nobody expected"):
            await counters.update("odd", [100, 13, 100], "odd")
        results = await asyncio.gather(
            counters.update_many([Update("odd", 200, "odd"), Update("odd", 13, "odd"), Update("n", 5)]),
            _set_soon(go_on),
        )
        assert [isinstance(one, Counted) for one in results[0]] == [False, False, True]
        if refused:
            with pytest.raises(Unavailable):
                await other
        else:
            await other
        await counters.update("odd", [4], "odd")
        assert (await counters.read("odd")).value == (5 if refused else 7)
        assert (await counters.read("n")).value == 5

    in_world(test)


async def _set_soon(event: asyncio.Event) -> None:
    event.set()


class Lacking(State):
    kind = "lacking"
    takes = "nothing"


def test_a_state_that_lacks_something_is_not_taken() -> None:
    with pytest.raises(TypeError, match="apply, check, decode, encode, merge, value"):
        Registry(more=[Lacking])  # type: ignore[type-abstract]
