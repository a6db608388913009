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
    sleeping = asyncio.ensure_future(clock.sleep(max(seconds, LEAST_S)))
    waking = asyncio.ensure_future(nudge.wait())
    try:
        await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleeping.cancel()
        waking.cancel()
