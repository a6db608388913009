"""Whose updates were not written is told why, and whether it helps to send them again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.counter_world import counters_of, in_world

from capellini.counters.states.registry import Registry
from capellini.counters.states.total import Sum
from capellini.model.errors import CapelliniError, Invalid, TooLarge, Unavailable, Unknown
from capellini.store.interface import MAX_VALUE_BYTES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.world import World


class Huge(Sum):
    kind = "huge"

    def encode(self) -> bytes:
        return bytes(MAX_VALUE_BYTES + 1)


def failing(client: SimulatedClient, *errors: CapelliniError) -> None:
    """The first mutator's writes end with the first of them, and so on; later ones with the last."""
    met: dict[Any, CapelliniError] = {}

    async def write(batch: Any) -> None:
        key = batch.rows[0][0]
        raise met.setdefault(key, errors[min(len(met), len(errors) - 1)])

    client.store.write = write  # type: ignore[method-assign]


@pytest.mark.parametrize("error", [Unavailable("no replica answers"), Unknown("the answer was lost")])
def test_who_is_told_that_updates_failed_is_told_why(error: CapelliniError) -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client)
        await counters.add("n")
        failing(client, error)
        with pytest.raises(type(error), match=error.says):
            await counters.add("n")
        await counters.add_many([("n", 1)])
        with pytest.raises(type(error), match=f"not confirmed: n; .*{error.says}"):
            await counters.flush()

    in_world(test)


def test_a_state_that_no_store_takes_is_refused_and_not_put_off() -> None:
    async def test(world: World) -> None:
        counters = counters_of(world.client("a"), registry=Registry(more=[Huge]))
        with pytest.raises(TooLarge, match=f"do not count: .*{MAX_VALUE_BYTES}"):
            await counters.update("huge", [1], "huge")

    in_world(test)


def test_of_a_state_that_failed_at_one_update_the_others_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(state: Sum, value: Any) -> None:
        raise KeyError("what nobody expected")

    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client)
        await counters.add("n")
        writing = asyncio.create_task(counters.add("n"))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(counters.add("n"))
        await asyncio.sleep(0)
        monkeypatch.setattr(Sum, "apply", apply)
        with pytest.raises(Invalid):
            await counters.add("n")
        with pytest.raises(Unavailable, match="what nobody expected"):
            await asyncio.gather(writing, waiting)

    in_world(test)


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ([Invalid("no"), Invalid("no")], Invalid),
        ([Unavailable("away"), Unknown("lost")], Unknown),
        ([Invalid("no"), Unknown("lost")], Unknown),
    ],
)
def test_a_call_in_parts_is_told_what_is_true_of_all_of_it(
    errors: list[CapelliniError], told: type[CapelliniError]
) -> None:
    async def test(world: World) -> None:
        client = world.client("a")
        counters = counters_of(client)
        await counters.update("words", ["x"], "set")
        failing(client, *errors)
        with pytest.raises(told):
            await counters.update("words", [f"{at:06}".ljust(400, "x") for at in range(2_000)], "set")

    in_world(test)
