"""The simulation's event loop: time that passes at once, and runs that are their seeds."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from typing import Any

import pytest
from tests.unit.simulated_world import make

from capellini.store.simulation.busy import busy, measure
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import Deadlock, Livelock, run
from capellini.store.simulation.world import World

# ---- the loop


def test_virtual_time_passes_without_waiting_and_in_order() -> None:
    async def main() -> list[tuple[float, str]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[float, str]] = []

        async def one(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((loop.time(), name))

        async with asyncio.TaskGroup() as group:
            for name, seconds in (("day", 86_400.0), ("hour", 3_600.0), ("also an hour", 3_600.0)):
                group.create_task(one(name, seconds))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        seen.append((loop.time(), "timeout"))
        return seen

    assert run(main()) == [(3_600.0, "hour"), (3_600.0, "also an hour"), (86_400.0, "day"), (86_405.0, "timeout")]


def test_a_deadlock_is_an_error_that_says_who_waits() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        World(faults=Faults(crash_every_s=10.0))  # faults alone keep nothing going
        await asyncio.gather(asyncio.create_task(forever(), name="the stuck one"))

    with pytest.raises(Deadlock, match="the stuck one"):
        run(main())


def test_a_loop_in_which_no_time_passes_is_an_error() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        run(main())


def test_what_is_left_at_the_end_is_unwound_before_run_returns() -> None:
    ended: list[str] = []

    async def linger(name: str) -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append(name)

    async def main() -> list[str]:
        _world, client = await make()
        tasks = [client.spawn(linger("dead")), asyncio.create_task(linger("alive"))]
        await client.clock.sleep(1)
        client.crash()
        await asyncio.sleep(1)
        assert not any(task.done() for task in tasks)
        return list(ended)

    assert run(main()) == []
    assert sorted(ended) == ["alive", "dead"]


# ---- a run is its seed


def traced(seed: int, faults: Faults) -> tuple[list[tuple[Any, ...]], dict[str, int], float]:
    async def main() -> tuple[list[tuple[Any, ...]], dict[str, int], float]:
        world = World(faults=faults, trace=True)
        await busy(world, 60.0, clients=4)
        assert world.trace is not None
        return world.trace, dict(world.faults), world.loop.time()

    return run(main(), seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_runs_with_one_seed_are_equal_and_others_are_not(seed: int) -> None:
    faults = Faults.some(random.Random(seed))
    assert traced(seed, faults) == traced(seed, faults)
    assert traced(seed, faults)[0] != traced(seed + 100, faults)[0]


DIGEST = """
import random, zlib
from capellini.store.simulation.busy import busy
from capellini.store.simulation.faults import Faults
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

async def main():
    world = World(faults=Faults.some(random.Random(6)), trace=True)
    await busy(world, 30.0, clients=3)
    return zlib.crc32(repr((world.trace, sorted(world.faults.items()))).encode())

print(run(main(), 6))
"""


def test_a_run_does_not_depend_on_how_python_hashes() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1 and digests.pop().strip().isdigit()


def test_a_busy_world_does_its_work() -> None:
    done = measure(30.0, seed=5)
    assert 8 * 30 / 0.20 < done.operations < 8 * 30 / 0.16 and done.failed == 0 and done.faults == {}
