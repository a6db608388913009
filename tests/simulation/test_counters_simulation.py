"""Promise 7 in simulated days: seeds hold, every guard decides, every planted bug is found, and what clocks may do."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.simulation import verdicts
from tests.simulation.counter_plants import plants
from tests.simulation.planting import Plant

from capellini.counters.service import Counters
from capellini.counters.times import Times
from capellini.proof.counting import CounterCall, counts_of, exact, update_of
from capellini.store.schema import TABLES
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

SEEDS = range(1, 61)
HOUR_S = 3_600.0
GUARDS = {
    "collected",
    "collected_shard_ignored",
    "collection_deferred",
    "collection_deferred_clock",
    "collection_deferred_unknown",
    "confirmation_after_expiry_refused",
    "write_after_expiry_refused",
    "culled",
    "leftovers_cleared",
    "mutator_died_unknown",
    "mutator_died_unwritten",
    "tally_changed",
    "update_refused_by_old_mutator",
    "write_repeated",
}


@pytest.mark.slow
def test_counters_are_exact_and_every_guard_decides() -> None:
    guards: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in SEEDS:
        result = verdicts.undisturbed("counters", seed)
        assert not result.violations, f"capellini simulate counters --seed {seed}: {result.violations[:3]}"
        guards.update(result.guards)
        faults.update(result.faults)
    assert set(guards) >= GUARDS, sorted(GUARDS - set(guards))
    assert {"client_crash", "client_pause", "clock_step", "replica_crash", "late_write", "replay"} <= set(faults)


@pytest.mark.slow
@pytest.mark.parametrize("plant", plants.plants, ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    verdicts.it_is_found(plants, plant)


def test_a_run_is_a_function_of_its_seed() -> None:
    verdicts.it_is_a_function_of_its_seed("counters", 10)


# ---- what clocks may do


def lost_with(behind_s: float) -> int:
    """A mutator whose clock is behind by so much; others collect by theirs. How many confirmed additions were lost."""

    async def main() -> int:
        world = World()
        await world.client("setup").store.prepare(TABLES)
        slow, other = world.client("slow"), world.client("other")
        slow.clock.offset_s = -behind_s
        times = Times()
        counters = Counters(slow.store, slow.clock, slow.random, times)
        collector = Counters(other.store, other.clock, other.random, times)
        for _ in range(100):
            await counters.add("n")
            await asyncio.sleep(HOUR_S)
            await collector.collect("n")
        return 100 - int((await collector.read("n")).value)

    return run(main(), 1)


@pytest.mark.parametrize("behind_h", [0.0, 2.0, 12.0, 23.0])
def test_nothing_is_lost_while_clocks_are_within_the_margin(behind_h: float) -> None:
    assert lost_with(behind_h * HOUR_S) == 0


def test_beyond_the_margin_confirmed_updates_are_lost() -> None:
    """Not a promise but its limit: a mutator more than the grace behind writes shards that were final to others."""
    assert lost_with(30 * HOUR_S) > 0


# ---- the checker itself


def call(op: str, began_s: float, ended_s: float | None, **more: object) -> CounterCall:
    return CounterCall("p", op, "n", began_s, ended_s=ended_s, **more)  # type: ignore[arg-type]


def test_the_checker_accuses_what_no_order_explains() -> None:
    sent = [call("update", 0, 1, ids=("n.0",)), call("update", 0, None, ids=("n.1",))]
    failed = call("update", 0, 1, ids=("n.2",), error="unavailable")
    doubtful = call("update", 0, 1, ids=("n.3",), error="unknown")

    def says(*reads: dict[str, int]) -> list[str]:
        made = [call("read", 2 + at, 2.5 + at, counts=counts) for at, counts in enumerate(reads)]
        return [violation.says for violation in exact([*sent, failed, doubtful, *made])]

    assert says({"n.0": 1}) == says({"n.0": 1, "n.1": 1, "n.3": 1}) == []
    assert "lacks it" in says({})[0]
    assert "2 times" in says({"n.0": 2})[0]
    assert "failed" in says({"n.0": 1, "n.2": 1})[0]
    assert "nobody" in says({"n.0": 1, "n.9": 1})[0]
    assert "earlier read" in says({"n.0": 1, "n.1": 1}, {"n.0": 1})[0]


def test_a_sum_tells_how_often_each_update_was_counted() -> None:
    updates = [update_of("sum", f"n.{at}") for at in (0, 3, 3, 30)]
    total = sum(value for value in updates if isinstance(value, int))
    assert counts_of("sum", "n", total) == {"n.0": 1, "n.3": 2, "n.30": 1}
