"""Time and chance are passed in, never called.

`now_s` is wall time (what due times and put times are measured in, and may jump); `elapsed_s` never jumps and does not
stand still while the machine is suspended (what deadlines and leases are measured in). A simulated run passes a clock
of its own.
"""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float:
        """Wall time, seconds since 1970."""

    def elapsed_s(self) -> float:
        """A time that only rises, from an arbitrary start."""

    async def sleep(self, seconds: float) -> None:
        """Let others run for so long."""


class RealClock:
    # Without a frame of Python: a request asks for the time some twenty times.
    now_s = staticmethod(time.time)
    elapsed_s = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


Chance = random.Random


def skew_of(asked_s: float, told_s: float, answered_s: float) -> float:
    """How far another clock surely is ahead of ours (behind: below 0), which told its time at some moment between two
    of ours. However long that took, nothing is made of it."""
    if told_s > answered_s:
        return told_s - answered_s
    return min(0.0, told_s - asked_s)
