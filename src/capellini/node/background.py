"""A loop beside the serving: one task from `start` to `stop`.

Such loops expect the errors of the store and go on by themselves. What they do not expect is a bug, or a row that
nobody can read: it is logged, and the loop begins anew a moment later. So it does when something that it waited for
was cancelled, and not the loop itself. A node that goes on serving without its maintenance would look well for days.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

AGAIN_S: Final = 5.0  # before it begins anew: an error that stays must not fill the log
log: Final = logging.getLogger("capellini.node")


class Background:
    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], again_s: float = AGAIN_S) -> None:
        self._work = work
        self._again_s = again_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Returns when it is over, wherever it was."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                return await self._work()
            except (Exception, asyncio.CancelledError):
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                log.exception("%s failed, and begins anew in %g s", self._work.__qualname__, self._again_s)
                await asyncio.sleep(self._again_s)
