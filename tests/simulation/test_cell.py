"""One row, many who change it: grouped compare-and-set on the simulated store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from capellini.model.errors import Invalid, StoreError, Unknown
from capellini.queues.cell import Cell
from capellini.queues.trail import NAMES, follow, was_mine
from capellini.store.interface import Cas, Change, Slice, Value
from capellini.store.schema import BUCKETS, MONOTON, TABLES
from capellini.store.simulation.client import SimulatedClient
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

T = TypeVar("T")
SEEDS = range(12)
PARTITION = ("q", 1)


class Number(int):
    """A state with an identity of its own, so that "the same object" means "unchanged"."""


def decode(values: dict[str, Value]) -> Number:
    value = values.get("next")
    return Number(value if isinstance(value, int) else 0)


def encode(state: Number) -> dict[str, Value]:
    return {"next": int(state)}


def cell_of(client: SimulatedClient, **how: Any) -> Cell[Number]:
    store, clock, chance = client.store, client.clock, client.random
    return Cell(store, clock, chance, MONOTON, PARTITION, (), ("next",), decode, encode, **how)


def add(count: int) -> Any:
    return lambda state: (Number(state + count), (int(state), count))


def look(state: Number) -> tuple[Number, int]:
    return state, int(state)


def refuse(state: Number) -> tuple[Number, int]:
    raise Invalid(f"not at {int(state)}")


async def world_of(*names: str, faults: Faults | None = None) -> tuple[World, list[SimulatedClient]]:
    world = World()
    clients = [world.client(name) for name in names]
    await clients[0].store.prepare(TABLES)
    if faults is not None:
        world.profile = faults
        world.risky = faults.of_requests()
    return world, clients


def simulate(main: Coroutine[Any, Any, T], seed: int = 0) -> T:
    return run(main, seed=seed)


def test_an_uncontended_change_is_one_request_and_a_stale_one_costs_one_more() -> None:
    async def main() -> None:
        _, (a, b) = await world_of("a", "b")
        one, two = cell_of(a), cell_of(b)
        await one.change(add(1))  # reads first: nothing was known
        before = a.store.counts.requests
        assert await one.change(add(1)) == (1, 1)
        assert a.store.counts.requests - before == 1
        assert await two.change(add(1)) == (2, 1)
        before = a.store.counts.requests
        assert await one.change(add(1)) == (3, 1)
        assert a.store.counts.requests - before == 2
        assert one.retries == 1

    simulate(main())


def test_commands_that_wait_share_one_compare_and_set_and_get_answers_of_their_own() -> None:
    async def main() -> None:
        _, (a,) = await world_of("a")
        cell = cell_of(a)
        await cell.read()
        before = a.store.counts.requests
        answers = await asyncio.gather(*(cell.change(add(1)) for _ in range(100)))
        assert a.store.counts.requests - before == 1
        assert answers == [(at, 1) for at in range(100)]

    simulate(main())


def test_a_command_that_raises_concerns_its_caller_alone() -> None:
    async def main() -> None:
        _, (a,) = await world_of("a")
        cell = cell_of(a)
        answers = await asyncio.gather(
            cell.change(add(1)), cell.change(refuse), cell.change(add(1)), return_exceptions=True
        )
        assert (answers[0], answers[2]) == ((0, 1), (1, 1))
        assert isinstance(answers[1], Invalid) and answers[1].says == "not at 1"

    simulate(main())


def test_an_answer_that_changes_nothing_is_never_made_from_an_old_memory() -> None:
    async def main() -> None:
        _, (a, b) = await world_of("a", "b")
        one, two = cell_of(a), cell_of(b)
        await one.change(add(1))
        await two.change(add(1))
        assert await one.change(look, fresh=False) == 1
        assert await one.change(look) == 2
        await two.change(add(1))
        with pytest.raises(Invalid, match="not at 3"):
            await one.change(refuse)

    simulate(main())


def test_cancelling_one_caller_leaves_the_batch_alone() -> None:
    async def main() -> None:
        _, (a,) = await world_of("a")
        cell = cell_of(a)
        await cell.read()
        tasks = [asyncio.ensure_future(cell.change(add(1))) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks[0].cancel()  # the group is on its way
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert done[1:] == [(1, 1), (2, 1)]
        assert await cell.read() == 3

    simulate(main())


def test_the_guard_refuses_what_another_node_has_closed() -> None:
    async def main() -> None:
        _, (a, b) = await world_of("a", "b")

        def guard(values: dict[str, Value]) -> None:
            if values.get("state") == "closed":
                raise Invalid("closed")

        cell = cell_of(a, guard=guard)
        await cell.change(add(1))
        page = await b.store.read(Slice(MONOTON, PARTITION, limit=1))
        token = page.rows[0].values["token"]
        assert isinstance(token, str)
        change = Change((), {"token": token}, {"state": "closed", "token": follow(token, "x")})
        assert (await b.store.compare_and_set(Cas(MONOTON, PARTITION, (change,)))).applied
        for _ in range(2):
            with pytest.raises(Invalid, match="closed"):
                await cell.change(add(1))
        assert decode((await b.store.read(Slice(MONOTON, PARTITION, limit=1))).rows[0].values) == 1

    simulate(main())


def test_a_static_row_with_a_marker_is_not_changed_by_one_who_remembers_nothing_there() -> None:
    async def main() -> None:
        _, (a, b) = await world_of("a", "b")
        partition = ("q", 1, 0)

        def bucket(client: SimulatedClient) -> Cell[bytes]:
            return Cell(
                client.store,
                client.clock,
                client.random,
                BUCKETS,
                partition,
                None,
                ("state",),
                lambda values: bytes(values.get("state") or b""),  # type: ignore[arg-type]
                lambda state: {"state": state},
                guard=_no_marker,
                absent=("dropped",),
            )

        cell = bucket(a)
        await cell.read()
        marker = Change(None, {"token": None}, {"dropped": b"x"})
        assert (await b.store.compare_and_set(Cas(BUCKETS, partition, (marker,), drop=True))).applied
        with pytest.raises(Invalid, match="dropped"):
            await cell.change(lambda state: (state + b"1", None))
        assert (await b.store.read(Slice(BUCKETS, partition, limit=0))).static == {"dropped": b"x"}

    simulate(main())


def _no_marker(values: dict[str, Value]) -> None:
    if "dropped" in values:
        raise Invalid("dropped")


@pytest.mark.parametrize("seed", SEEDS)
def test_every_confirmed_change_is_there_once_whatever_answers_are_lost(seed: int) -> None:
    """Three nodes reserve runs of numbers. Confirmed runs never overlap, and what was refused is not there."""
    resolved: dict[str, int] = {}

    async def main() -> None:
        faults = Faults(lost_answer=0.1, lost_request=0.1, limbo_cas=0.05, refused=0.05, late_cas=0.02, late_most_s=20)
        world, clients = await world_of("a", "b", "c", faults=faults)
        confirmed: list[tuple[int, int]] = []
        unsure = 0

        async def reserve(client: SimulatedClient) -> None:
            nonlocal unsure
            cell = cell_of(client)
            for _ in range(15):
                for answer in await asyncio.gather(*(cell.change(add(n)) for n in (1, 2)), return_exceptions=True):
                    if isinstance(answer, Unknown):
                        unsure += 3  # at most so many numbers
                    elif isinstance(answer, StoreError):
                        continue
                    else:
                        assert isinstance(answer, tuple), answer
                        confirmed.append(answer)
            for how, count in cell.resolved.items():
                resolved[how] = resolved.get(how, 0) + count

        await asyncio.gather(*(client.spawn(reserve(client)) for client in clients))
        world.calm()
        await clients[0].clock.sleep(10)
        last = int(await cell_of(clients[0]).read())
        taken = [number for first, count in confirmed for number in range(first, first + count)]
        assert len(taken) == len(set(taken))
        assert len(taken) <= last <= len(taken) + unsure

    simulate(main(), seed)
    assert resolved.get("done", 0) + resolved.get("not_done", 0) > 0


def test_many_nodes_at_one_row_all_come_through() -> None:
    async def main() -> None:
        _, clients = await world_of(*(f"n{at}" for at in range(12)))
        cells = [cell_of(client) for client in clients]
        await asyncio.gather(*(client.spawn(_ten(cell)) for client, cell in zip(clients, cells, strict=True)))
        assert await cells[0].read() == 120
        assert 0 < sum(cell.retries for cell in cells) < 12 * 10 * 12

    async def _ten(cell: Cell[Number]) -> None:
        for _ in range(10):
            await cell.change(add(1))

    simulate(main())


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        ("b,a", "me,b,a", True),
        ("b,a", "y,x,me,b", True),
        ("b,a", "x,b,a", False),
        ("b,a", "z,y,x", None),
        ("b,a", "b,a", None),
        ("b,a", None, None),
        (None, "x", False),
        (None, "me", True),
        (None, None, None),
        (None, ",".join("abcdefgh"[:NAMES]), None),
    ],
)
def test_a_trail_tells_whose_change_was_applied(before: str | None, now: str | None, verdict: bool | None) -> None:
    assert was_mine(before, "me", now) is verdict
