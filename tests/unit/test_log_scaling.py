"""How many extents a queue has open, and where: the decision, and nodes that follow it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from tests.unit.log_writers import LogNode, all_of, everything, node_in, simulate

from capellini.model.errors import Unavailable
from capellini.queues.log.extents import OPEN
from capellini.queues.log.scaling import (
    CALM_S,
    FULL_BYTES_S,
    FULL_PER_S,
    HIGH,
    LOW,
    SCALE_S,
    Load,
    Meter,
    Plan,
    Scaling,
    needed,
    plan_of,
    planned,
    spread,
)
from capellini.store.simulation.world import World


def test_a_share_is_of_messages_or_of_bytes_whichever_is_more() -> None:
    assert Load("x", FULL_PER_S / 2, FULL_BYTES_S / 4).share == 0.5
    assert Load("x", FULL_PER_S / 4, FULL_BYTES_S / 2).share == 0.5


def test_rates_follow_what_comes_and_forget_what_is_gone() -> None:
    meter = Meter()
    for second in range(40):
        meter.sample([("a", 1_000 * second, 5_000 * second), ("b", 7, 7)], float(second))
    rates = {load.extent: load for load in meter.loads()}
    assert rates["a"].per_s == pytest.approx(1_000, rel=0.01) and rates["a"].bytes_per_s == pytest.approx(
        5_000, rel=0.01
    )
    assert rates["b"].per_s == 0
    meter.sample([("b", 7, 7)], 40.0)
    assert [load.extent for load in meter.loads()] == ["b"]


def test_more_at_once_fewer_only_after_a_calm_while() -> None:
    assert needed(HIGH * 2 + 0.01, 2, 0.0) == 3
    assert needed(HIGH * 2, 2, CALM_S) == 2
    assert needed(LOW * 2, 4, CALM_S - 1) == 4
    assert needed(LOW * 2, 4, CALM_S) == 2
    assert needed(0.0, 3, CALM_S) == 0


def test_a_load_that_stands_still_moves_nothing() -> None:
    for tenths in range(1, 200):
        total = tenths / 10
        count = max(1, needed(total, 0, 0.0))
        assert needed(total, count, 10 * CALM_S) == count


def test_extents_are_spread_over_the_nodes_that_live() -> None:
    assert spread(7, {"a": 5.0}, "abc", {}) == {"a": 3, "b": 2, "c": 2}
    assert spread(2, {"c": 0.1, "b": 0.2, "a": 0.05}, "abc", {}) == {"a": 0, "b": 1, "c": 1}
    assert spread(1, {}, "abc", {"b": 1}) == {"a": 0, "b": 1, "c": 0}


def test_a_node_that_joins_gets_its_part_and_one_that_leaves_is_not_counted() -> None:
    before = planned({"a": 1.6, "b": 1.6}, "ab", 8, {}, 0.0)
    assert before == {"a": 2, "b": 2}
    assert planned({"a": 1.6, "b": 1.6}, "abc", 8, before, 0.0) == {"a": 2, "b": 1, "c": 1}
    assert planned({"a": 3.2}, "a", 8, before, 0.0) == {"a": 4}


def test_every_node_that_takes_puts_has_one_as_far_as_the_limit_goes() -> None:
    shares = {node: 0.01 * (place + 1) for place, node in enumerate("abcd")}
    assert planned(shares, "abcde", 8, {}, 0.0) == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert planned(shares, "abcde", 2, {}, 0.0) == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 0}


def test_the_limit_holds_whatever_comes() -> None:
    chance = random.Random(5)
    before: dict[str, int] = {}
    for _ in range(300):
        live = chance.sample("abcdefgh", chance.randrange(1, 8))
        limit = chance.randrange(1, 12)
        shares = {node: chance.choice((0.0, 0.01, 0.5, 3.0)) for node in live}
        before = planned(shares, live, limit, before, chance.choice((0.0, CALM_S)))
        assert sum(before.values()) <= limit and set(before) <= set(live)
        assert not before or max(before.values()) >= 1


def test_where_nobody_puts_nothing_is_planned() -> None:
    assert planned({"a": 0.0}, "ab", 8, {}, 0.0) == {}
    assert planned({"a": 0.0}, "ab", 8, {"a": 2}, CALM_S) == {}
    assert planned({"a": 0.0}, "ab", 8, {"a": 2}, 0.0) == {"a": 1, "b": 1}
    assert plan_of(None) == Plan()


# -- nodes ------------------------------------------------------------------------------------------------------------


class Scaled:
    """Nodes that take their turns, with a scaling each."""

    def __init__(self, world: World, nodes: dict[str, LogNode]) -> None:
        self.world, self.nodes = world, nodes
        self.scalings: dict[str, Scaling] = {}

    async def add(self, name: str, **options: Any) -> LogNode:
        node = await node_in(self.world, name, self.nodes, **options)
        self.scalings[name] = Scaling(node.place, node.extents, node.writers, node.watcher, self._call)
        return node

    async def _call(self, node: str, operation: str, arguments: list[Any]) -> bytes:
        if node not in self.scalings:
            raise Unavailable(f"node {node} is gone")
        assert (operation, arguments) == ("load", [])
        return msgspec.msgpack.encode(self.scalings[node].loads())

    async def turns(self, seconds: float, **puts: int) -> None:
        """Time goes by; so many messages are put at each node in a second."""
        for _ in range(int(seconds)):
            for name, count in puts.items():
                for _ in range(4):
                    await self.nodes[name].put(*([b"x"] * (count // 4)))
            for name, node in self.nodes.items():
                await node.turn()
                await self.scalings[name].turn()
            await asyncio.sleep(1)

    def open(self) -> dict[str, int]:
        any_node = next(iter(self.nodes.values()))
        extents = [extent for extent in any_node.extents.known() if extent.state == OPEN]
        return {name: sum(extent.node == name for extent in extents) for name in self.nodes}


def test_extents_come_with_the_load_and_go_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capellini.queues.log.scaling.FULL_PER_S", 1_000.0)

    async def main() -> None:
        scaled = Scaled(World(), {})
        for name in "abc":
            await scaled.add(name, extents_most=6)
        await scaled.turns(3, a=100)
        assert scaled.open() == {"a": 1, "b": 0, "c": 0}
        await scaled.turns(40, a=3_000)
        assert scaled.open() == {"a": 2, "b": 1, "c": 1}  # three full ones are 3.75 at the most that each should take
        assert scaled.nodes["a"].extents.plan is not None
        assert plan_of(scaled.nodes["b"].extents.plan).limit == 6
        await scaled.turns(CALM_S + 10 * SCALE_S, a=100)
        assert scaled.open()["a"] == 1 and sum(scaled.open().values()) == 1
        found = all_of(await everything(scaled.nodes["a"]))
        assert len(found) == 3 * 100 + 40 * 3_000 + int(CALM_S + 10 * SCALE_S) * 100

    simulate(main())


def test_nodes_beyond_the_limit_send_their_puts_on_and_take_them_when_the_other_is_gone() -> None:
    async def main() -> None:
        scaled = Scaled(World(), {})
        for name in "abc":
            await scaled.add(name, extents_most=2, lease_s=3.0)
        await scaled.turns(20, a=400, b=200, c=40)
        assert scaled.open() == {"a": 1, "b": 1, "c": 0}
        c = scaled.nodes["c"]
        assert c.guards["put sent on: there are extents enough"] > 0
        await asyncio.gather(
            *(c.put(b"%d" % number, producer=bytes(16 * [7]), sequence=number) for number in range(1, 30))
        )
        for name in "ab":
            await scaled.nodes.pop(name).lease.stop()
            scaled.scalings.pop(name)
        assert (await c.put(b"alone")).extent.split("-")[2] == "c"
        assert c.guards["put taken here: the other node did not"] > 0
        for number in range(30, 33):
            with_patience = 0
            while True:
                try:
                    await c.put(b"%d" % number, producer=bytes(16 * [7]), sequence=number)
                    break
                except Unavailable:
                    with_patience += 1
                    assert with_patience < 20
                    await c.clock.sleep(1)
        await scaled.turns(8)
        found = [body for body in all_of(await everything(c)) if body.isdigit()]
        assert [int(body) for body in found] == list(range(1, 33))

    simulate(main())


def test_an_extent_that_nobody_uses_is_sealed() -> None:
    async def main() -> None:
        scaled = Scaled(World(), {})
        await scaled.add("a")
        await scaled.turns(12, a=100)
        assert scaled.open() == {"a": 1}
        await scaled.turns(400)
        assert scaled.open() == {"a": 0}
        await scaled.turns(1, a=100)
        assert len(all_of(await everything(scaled.nodes["a"]))) == 1_300

    simulate(main())
