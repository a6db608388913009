"""How a task reads: through a thread with an event loop, and what it reached there. A cluster stays connected for the
next task.

    task ──▶ taken or opened ──▶ reads ──▶ ended well? ──▶ kept for KEEP_S ──▶ taken by the next task, or closed

To connect takes a task a tenth of a second before its first page, and Spark gives a Python worker one task after the
other. A worker outlives its job, so that a connection nobody takes is closed soon, by a thread that waits for nothing
else; one that was used for AGE_S is closed after its task, so that nodes which came meanwhile are seen. A task that
failed leaves nothing behind. A worker that Spark kills takes its connections with it.

A folder is opened anew by each task: what is read of it is what it was then. So is a node's connection, which costs
nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final, TypeVar

from capellini.model.address import CassandraAddress, parse
from capellini.model.clock import RealClock
from capellini.pipeline.source.reach import NOTHING, Reach, reached
from capellini.pipeline.source.worker import in_a_worker

T = TypeVar("T")
KEEP_S: Final = 3.0  # unused: tasks of a job follow each other within milliseconds
AGE_S: Final = 60.0


class Way:
    """Made open. Safe for one task at a time."""

    def __init__(self, at: str, reads_per_s: float | None) -> None:
        """Raises what `reached` does."""
        self.to: Final = (at, reads_per_s)
        self._clock = RealClock()
        self._since_s = self._clock.elapsed_s()
        self._thread = ThreadPoolExecutor(1)
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        try:
            self.reach: Reach = self.begin(
                self._stack.enter_async_context(reached(at, reads_per_s, look=NOTHING))
            ).result()
        except BaseException:
            self.close()
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """It goes on in the thread, after what was begun before."""
        return self._thread.submit(self._runner.run, work)

    @property
    def old(self) -> bool:
        return self._clock.elapsed_s() - self._since_s > AGE_S

    def close(self) -> None:
        try:
            self.begin(self._stack.aclose()).result()
        finally:
            self._thread.submit(self._runner.close).result()
            self._thread.shutdown()


class Kept:
    """The one that is kept, if any."""

    def __init__(self, keep_s: float = KEEP_S) -> None:
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._kept: Way | None = None
        self._timer: threading.Timer | None = None

    def take(self, to: tuple[str, float | None]) -> Way | None:
        """What leads there. One that leads elsewhere is closed: a worker holds one at most."""
        found = self._off()
        if found is not None and found.to != to:
            found.close()
            return None
        return found

    def put(self, way: Way) -> None:
        with self._lock:
            before, self._kept = self._kept, way
            self._timer = threading.Timer(self._keep_s, self._end, (way,))
            self._timer.daemon = True
            self._timer.start()
        if before is not None:
            before.close()

    def _off(self, only: Way | None = None) -> Way | None:
        with self._lock:
            if only is not None and self._kept is not only:
                return None  # it was taken meanwhile
            found, self._kept = self._kept, None
            if self._timer is not None:
                self._timer.cancel()
        return found

    def _end(self, way: Way) -> None:
        if (found := self._off(way)) is not None:
            found.close()


KEPT: Final = Kept()


@contextmanager
def way_to(at: str, reads_per_s: float | None, kept: Kept | None = None) -> Iterator[Way]:
    """Raises what `reached` does. `kept`: where it is kept; that of this worker, unless told."""
    kept = kept or (KEPT if in_a_worker() else None)
    if not isinstance(parse(at), CassandraAddress):
        kept = None
    way = (kept.take((at, reads_per_s)) if kept is not None else None) or Way(at, reads_per_s)
    well = False
    try:
        yield way
        well = True
    except GeneratorExit:  # whoever reads has enough
        well = True
        raise
    finally:
        if kept is not None and well and not way.old:
            kept.put(way)
        else:
            way.close()
