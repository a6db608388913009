"""What the first task of ours changes in a Python worker of Spark, for all that follow.

Spark keeps a worker for later tasks, and after each has it look through everything for garbage: with all that is
imported (Spark, pandas, Arrow and ours) 50 ms, in which it reads 500,000 messages. What is there when the first task
begins stays anyway: it is taken out of that.
"""

from __future__ import annotations

import gc

from pyspark import TaskContext

from capellini.store.memory import keep_memory


def in_a_worker() -> bool:
    """Whether this is a task of Spark's, in a process that is kept for more. Else it is somebody's own program."""
    return TaskContext.get() is not None


def settle() -> None:
    """At the beginning of a task."""
    if in_a_worker() and not gc.get_freeze_count():
        gc.freeze()
        keep_memory()
