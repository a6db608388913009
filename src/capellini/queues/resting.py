"""Waiting for whatever comes first: one of several things, a nudge, or a time."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from capellini.model.clock import Clock

LEAST_S: Final = 0.001  # less may be nothing on a clock of its own rate, and would be waited for again and again


async def rest(clock: Clock, nudge: asyncio.Event, seconds: float) -> None:
    """Until the nudge is set, at most so long."""
    if nudge.is_set():
        return
    loop = asyncio.get_running_loop()
    sleeping = loop.create_task(clock.sleep(max(seconds, LEAST_S)))
    waking = loop.create_task(nudge.wait())
    try:
        await first_of(sleeping, waking)
    finally:
        sleeping.cancel()
        waking.cancel()


async def first_of(*futures: asyncio.Future[Any], within_s: float | None = None) -> None:
    """Until one of them is done, at most so long on the loop's clock. What `asyncio.wait` does, without the sets and
    looks at each that cost more than the waiting."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end(*_: object) -> None:
        if not over.done():
            over.set_result(None)

    timer = None if within_s is None else loop.call_later(within_s, end)
    for future in futures:
        future.add_done_callback(end)
    try:
        await over
    finally:
        if timer is not None:
            timer.cancel()
        for future in futures:
            future.remove_done_callback(end)
