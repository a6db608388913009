"""Waiting for a time or a nudge, whichever comes first."""

from __future__ import annotations

import asyncio
from typing import Final

from capellini.model.clock import Clock

LEAST_S: Final = 0.001  # less may be nothing on a clock of its own rate, and would be waited for again and again


async def rest(clock: Clock, nudge: asyncio.Event, seconds: float) -> None:
    """Until the nudge is set, at most so long."""
    if nudge.is_set():
        return
    loop = asyncio.get_running_loop()
    over = loop.create_future()  # by hand: `asyncio.wait` costs more than all that is waited for here

    def end(_: object) -> None:
        if not over.done():
            over.set_result(None)

    both = loop.create_task(clock.sleep(max(seconds, LEAST_S))), loop.create_task(nudge.wait())
    for one in both:
        one.add_done_callback(end)
    try:
        await over
    finally:
        for one in both:
            one.remove_done_callback(end)
            one.cancel()
