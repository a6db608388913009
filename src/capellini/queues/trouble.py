"""What failed with nobody waiting for it, and is tried again: counted, and said in the log, so that what stays shows.

    dead letters refused ─▶ a guard counts it, each time
                         └▶ a warning: at once, then once in SAY_AGAIN_S for as long as it goes on

One failure matters to nobody. One that stays does, and there is no caller who could hear of it. Nothing is decided by
this: a clock is read, and that is all.
"""

from __future__ import annotations

import logging
from typing import Final

from capellini.model.clock import Clock
from capellini.model.errors import CapelliniError

SAY_AGAIN_S: Final = 60.0  # of one queue and one kind of work: an error that stays must not fill the log
log: Final = logging.getLogger("capellini.queues")


class Trouble:
    """Of one queue in one node."""

    def __init__(self, clock: Clock, queue: str) -> None:
        self._clock, self._queue = clock, queue
        self._again_s: dict[str, float] = {}

    def say(self, what: str, error: Exception) -> None:
        """`what` went wrong: one of a few sentences. What nobody expected is told with where it came from."""
        now_s = self._clock.elapsed_s()
        if now_s < self._again_s.get(what, now_s):
            return
        self._again_s[what] = now_s + SAY_AGAIN_S
        says = "queue %s: %s; nothing is lost, and it is tried again: %s"
        if isinstance(error, CapelliniError):
            log.warning(says, self._queue, what, error.says)
        else:
            log.error(says, self._queue, what, repr(error), exc_info=error)
