"""A loop beside the serving: one task from `start` to `stop`.

Loops expect what stores and callers may do, and go on. What they did not expect is a bug: it is logged, and the loop
begins again a little later. A node that went on serving without its loops would look well, and take over from nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

AGAIN_S: Final = 1.0  # after a failure that nobody expected
log: Final = logging.getLogger("capellini.node")


class Background:
    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._go_on())

    async def _go_on(self) -> None:
        while True:
            try:
                return await self._work()
            except Exception:  # whatever it was, the loop must go on
                log.exception("work in the background failed, and begins again: %s", self._work.__qualname__)
            await asyncio.sleep(AGAIN_S)

    async def stop(self) -> None:
        """Returns when it is over, wherever it was."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
