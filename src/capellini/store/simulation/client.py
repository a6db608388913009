"""A simulated client: a process with a clock of its own, tasks of its own, and one open store.

It can be paused (none of its tasks runs meanwhile, its clocks go on) and it can crash (none of them ever runs again;
what it sent is on its way all the same).
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from capellini.store.simulated import SimulatedStore
from capellini.store.simulation.loop import OWNER, VirtualLoop
from capellini.store.simulation.network import answer

if TYPE_CHECKING:
    from capellini.store.simulation.world import World

T = TypeVar("T")


class SimulatedClock:
    """Virtual time, as one machine measures it: wall time is off by `offset_s`, durations by a factor."""

    def __init__(self, loop: VirtualLoop, epoch_s: float, offset_s: float, rate: float) -> None:
        self._loop = loop
        self._epoch_s = epoch_s
        self._rate = rate
        self.offset_s = offset_s

    def now_s(self) -> float:
        return self._epoch_s + self._loop._now_s + self.offset_s

    def elapsed_s(self) -> float:
        return self._loop._now_s * self._rate

    async def sleep(self, seconds: float) -> None:
        if self._loop.closing:
            raise asyncio.CancelledError("the run is over")
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        loop = self._loop
        future: asyncio.Future[None] = asyncio.Future(loop=loop)
        loop.at(loop._now_s + seconds / self._rate, answer, future, None)
        await future

    def step(self, seconds: float) -> None:
        """The wall clock jumps."""
        self.offset_s += seconds


class SimulatedClient:
    def __init__(self, world: World, name: str, dc: str, clock: SimulatedClock) -> None:
        self.world = world
        self.name = name
        self.dc = dc
        self.clock = clock
        self.random = random.Random(f"{world.seed}/{name}/{len(world.clients)}")
        self.owner = world.loop.owner(name)
        self.store = SimulatedStore(self)
        self.last_stamp_us = 0
        self._calmed = 0

    @property
    def crashed(self) -> bool:
        return self.owner.dead

    def spawn(self, coro: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Start a task of this client; tasks it starts are the client's too."""
        if self.owner.dead:
            coro.close()
            raise RuntimeError(f"client {self.name} has crashed: make a new one")
        context = contextvars.copy_context()
        context.run(OWNER.set, self.owner)
        return self.world.loop.create_task(coro, name=name or self.name, context=context)

    def pause(self, seconds: float) -> None:
        self.world.faults["client_pause"] += 1
        self.world.loop.hold(self.owner)
        self.world.loop.at(self.world.loop.time() + seconds, self._go_on, self._calmed)

    def _go_on(self, calmed: int) -> None:
        if calmed == self._calmed:  # else that pause was ended before
            self.world.loop.release(self.owner)

    def go_on(self) -> None:
        """End all pauses."""
        self._calmed += 1
        while self.owner.holds and not self.owner.dead:
            self.world.loop.release(self.owner)

    def crash(self) -> None:
        if not self.owner.dead:
            self.world.faults["client_crash"] += 1
            self.world.loop.kill(self.owner)

    def stamp_us(self) -> int:
        """A timestamp for a plain write: this client's wall clock, made to rise."""
        stamp_us = int(self.clock.now_s() * 1e6)
        if stamp_us <= self.last_stamp_us:
            stamp_us = self.last_stamp_us + 1
        self.last_stamp_us = stamp_us
        return stamp_us
