"""A loop beside the serving: one task from `start` to `stop`.

Loops deal with the errors they know. One that ends of anything else is told in the log and begins anew after a while:
a node that serves on without it would neither beat nor seal nor clear, and nobody would notice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

AGAIN_S: Final = 1.0
log: Final = logging.getLogger("capellini.node")


class Background:
    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                return await self._work()
            except Exception:
                log.exception("a loop of this node failed, and begins anew")
            await asyncio.sleep(AGAIN_S)

    async def stop(self) -> None:
        """Returns when it is over, wherever it was."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
