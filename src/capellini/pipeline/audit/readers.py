"""Log queues in the audit: a message has one put, and a life for each reader of its extent.

    put         QUEUE/EXTENT                   1 … n        ┐
    delivered   QUEUE@a/1/EXTENT               1 … n        ├─▶ the puts once more under each reader's name
    acked       QUEUE@b/3/EXTENT               1 … n        ┘

So all that is known of work queues holds for each reader by itself. Puts that no reader is known of stay under their
own name: nobody has begun with their extent, and they wait. Names are documented in `queues/events.py`.

A group that was made to seek goes on as a new version: what the one before had not finished is not its to finish.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from capellini.model.log import AT
from capellini.queues.events import put_place, queue_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NOT_QUEUE: Final = "[@/].*"  # in the name of a place, what follows the queue's own name
IS_PUT: Final = "kind = 'put' AND instr(queue, '/') > 0"

Reader = tuple[str, int]  # QUEUE@GROUP/VERSION/EXTENT, generation


def with_puts(journal: DataFrame) -> tuple[DataFrame, list[Reader]]:
    """The journal with the puts of log queues under their readers' names, and the readers."""
    found = journal.where(f"instr(queue, '{AT}') > 0").select("queue", "generation").distinct().collect()
    readers = [(row[0], row[1]) for row in found]
    if not readers:
        return journal, []
    rows = [(put_place(queue), generation, queue) for queue, generation in readers]
    made = journal.sparkSession.createDataFrame(rows, "queue string, generation bigint, reader string")
    names, by = made.hint("broadcast"), ["queue", "generation"]
    puts = journal.where(IS_PUT)
    read = puts.join(names, by).drop("queue").withColumnRenamed("reader", "queue")
    unread = puts.join(names, by, "left_anti")
    others = journal.where(f"NOT ({IS_PUT})")
    return others.unionByName(read).unionByName(unread), readers


class Newest:
    """What is over because something newer has taken its place: generations of queues, versions of groups."""

    def __init__(self, generations: dict[str, int], readers: Iterable[Reader]) -> None:
        self._generations = generations
        self._versions: dict[tuple[str, int], int] = {}
        for queue, generation in readers:
            group, version = _group_of(queue)
            key = (group, generation)
            self._versions[key] = max(version, self._versions.get(key, 0))

    def is_past(self, queue: str, generation: int) -> bool:
        """Is what was left of it nobody's any more?"""
        if generation < self._generations.get(queue_in(queue), generation):
            return True
        group, version = _group_of(queue)
        return bool(version) and version < self._versions.get((group, generation), version)


def _group_of(queue: str) -> tuple[str, int]:
    """QUEUE@GROUP and its version; version 0: no reader's name."""
    group, _, rest = queue.partition("/")
    version = rest.partition("/")[0]
    return (group, int(version)) if AT in group and version.isdecimal() else (group, 0)
