"""Bars for jobs of Spark, on stderr, for people alone: how much of it is done.

a stream    messages that were done, of those that the source says there are
a table     tasks that were done, of those that Spark knows of; it learns of more as it goes
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress

LOOK_S: Final = 0.5


@contextlib.contextmanager
def streaming(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Call what it gives with how many more are done, and how many are left where that is known."""
    if not sys.stderr.isatty():
        yield lambda done, left: None
        return
    with _progress() as progress:
        task = progress.add_task(what, total=None)

        def say(done: int, left: int | None) -> None:
            progress.advance(task, done)
            if left is not None:
                progress.update(task, total=progress.tasks[task].completed + left)

        yield say


@contextlib.contextmanager
def working(spark: SparkSession, what: str) -> Iterator[Callable[[str], None]]:
    """Tasks of Spark while it lasts. Call what it gives with what is known meanwhile: it stays above the bar."""
    if not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr)
        return
    over = threading.Event()
    with _progress() as progress:
        task = progress.add_task(what, total=None)
        watcher = threading.Thread(target=_watch, args=(spark, progress, task, over), daemon=True)
        watcher.start()
        try:
            yield progress.console.print
        finally:
            over.set()
            watcher.join()


def _watch(spark: SparkSession, progress: Progress, task: Any, over: threading.Event) -> None:
    try:
        tracker = spark.sparkContext.statusTracker()
    except Exception:  # Spark Connect does not tell; the line moves all the same
        return
    stages: dict[int, tuple[int, int]] = {}
    while not over.wait(LOOK_S):
        for stage in tracker.getActiveStageIds():
            if (info := tracker.getStageInfo(stage)) is not None:
                stages[stage] = (info.numCompletedTasks, info.numTasks)
        for stage in stages:
            if (info := tracker.getStageInfo(stage)) is not None:
                stages[stage] = (info.numCompletedTasks, info.numTasks)
        done, known = (sum(each[at] for each in stages.values()) for at in (0, 1))
        progress.update(task, completed=done, total=known or None)


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    what = TextColumn("{task.description}")
    columns = (SpinnerColumn(), what, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
