"""A log queue as a table and as a stream: what is planned on the driver, what each task reads.

    table    every extent 0 .. top, less what `since` and `until` rule out, cut into tasks
    stream   offset = {generation, extents: {name: next number}, done: [names of those that were read to their ends],
             gone: [names of dropped ones that are still on the list]};
             a micro-batch is what lies between two offsets

Extents are append-only and numbered, so that a batch between two offsets is the same whenever it is read: a replayed
micro-batch has the same rows, in the same tasks, in the same order. An offset names the extents that are still on the
list; one that retention dropped leaves it, if it had been read to its end. If not, that is an error, unless `missing`
says to go on with the oldest there is: a batch that was planned before comes without what was dropped, then. An extent
may also come and be dropped between two looks: what was dropped before is in `gone`, so that this one shows.

Filters are pushed down where the option `filters` says so (`Narrowed`), and not else: Spark 4.2 keeps a pushed filter
with the frame it was loaded as, and applies it to later queries of that frame that have none. `since` and `until`
narrow what is read at any time.
"""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from capellini.model.address import RocksAddress, parse
from capellini.model.errors import Invalid, NotFound, Unavailable
from capellini.model.log import EARLIEST, LATEST
from capellini.pipeline.source.asking import EVENTS, FAIL, TASK_ROWS, Asked, ms_of
from capellini.pipeline.source.columns import chosen
from capellini.pipeline.source.events import events_of
from capellini.pipeline.source.extents import Known, Range, first_since, grouped, listed
from capellini.pipeline.source.log_reading import read_ranges
from capellini.pipeline.source.reach import HOMES, Files, Reach, Record, files_of, reached
from capellini.pipeline.source.worker import settle
from capellini.queues.log.extents import OPEN

FOLDER_TASKS: Final = 1  # for each core: whoever opens a folder reads its log first, up to 128 MB
# A task costs 25 ms of Java and as much of Python, and one that reads a cluster connects. A million small messages take
# it half a second: of those it has as many as make so many bytes.
EVEN_TASK_ROWS: Final = 1_000_000
MOST_TASK_ROWS: Final = 4_000_000
TASK_BYTES: Final = 256 * 1024 * 1024

Offset = dict[str, Any]
Made = Callable[[Iterator[Any]], Iterator[Any]]


def plain(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


class Task(InputPartition):
    """What travels to where it is read."""

    def __init__(self, record: Record, ranges: tuple[Range, ...]) -> None:
        super().__init__(None)
        self.record, self.ranges = record, ranges


async def ranges_of(
    reach: Reach, record: Record, since_ms: int | None, until_ms: int | None
) -> tuple[list[Range], float | None]:
    """What there is now of messages that were put at `since_ms` or later, and before `until_ms`; and how large one is,
    where that is known."""
    found: list[Range] = []
    there = await listed(reach, record)
    for known in there:
        if known.dropped:
            continue
        first = 0 if since_ms is None else await first_since(reach, record, known, since_ms)
        end = known.top if until_ms is None else await first_since(reach, record, known, until_ms)
        if first < end:
            found.append(Range(known.name, first, end))
    return found, mean_bytes(there)


class Planned(msgspec.Struct, frozen=True):
    """What there was in a folder when its queue was looked up: whoever opens one reads its log, which takes as long as
    many a read. It holds while no file of the folder has changed."""

    files: Files
    asked: Asked
    ranges: list[Range]
    mean: float | None

    def holds(self, asked: Asked) -> bool:
        return asked == self.asked and files_of(asked.at) == self.files


async def planned_in(reach: Reach, record: Record, asked: Asked, files: Files) -> Planned:
    """`files`: what the folder had before it was opened."""
    return Planned(files, asked, *await ranges_of(reach, record, asked.since_ms, asked.until_ms))


def mean_bytes(known: list[Known]) -> float | None:
    """Of a message."""
    told = [(each.bytes, each.top) for each in known if each.bytes and each.top]
    return sum(size for size, _ in told) / sum(top for _, top in told) if told else None


class Shape(msgspec.Struct, frozen=True):
    """What becomes of messages: these columns of theirs, or what `made` makes of the batches of them."""

    columns: tuple[str, ...]
    made: Made = plain


def shape_of(asked: Asked) -> Shape:
    """Raises Invalid for columns that are none."""
    if asked.read != EVENTS:
        return Shape(chosen("log", asked.columns))
    return Shape(("body", "put_at"), partial(events_of, columns=chosen(EVENTS, asked.columns)))


class LogReader(DataSourceReader):
    def __init__(self, asked: Asked, record: Record, planned: Planned | None = None) -> None:
        self._asked, self._record, self._plan = asked, record, planned
        self._shape = shape_of(asked)

    def partitions(self) -> list[InputPartition]:
        if self._plan is not None and self._plan.holds(self._asked):
            ranges, mean = self._plan.ranges, self._plan.mean
        else:
            ranges, mean = asyncio.run(_planned(self._asked, self._record))
        return [Task(self._record, each) for each in grouped(ranges, self._task_rows(ranges, mean))]

    def _task_rows(self, ranges: list[Range], mean: float | None) -> int:
        """As asked for; else more where opening what is read costs as much as some of it."""
        rows = self._asked.task_rows
        if rows != TASK_ROWS:
            return rows
        match parse(self._asked.at):
            case RocksAddress():
                return max(rows, -(-sum(each.rows for each in ranges) // (FOLDER_TASKS * (os.cpu_count() or 1))))
            case _:
                return even_rows(sum(each.rows for each in ranges), os.cpu_count() or 1, mean)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_task(self._asked, self._shape, partition)


def even_rows(total: int, cores: int, mean: float | None = None) -> int:
    """Messages of a task that reads a node or a cluster, so that tasks come out even on that many cores: of seven on
    two, the last would have one core wait. Few messages are no more tasks for it. `mean`: bytes of one."""
    most = EVEN_TASK_ROWS if mean is None else min(MOST_TASK_ROWS, max(EVEN_TASK_ROWS, int(TASK_BYTES / mean)))
    tasks = -(-total // most)
    even = min(-(-tasks // cores) * cores, -(-total // TASK_ROWS))
    return max(1, -(-total // max(1, tasks, even)))


async def _planned(asked: Asked, record: Record) -> tuple[list[Range], float | None]:
    async with reached(asked.at, asked.reads_per_s, look=HOMES) as reach:
        return await ranges_of(reach, record, asked.since_ms, asked.until_ms)


class NarrowedReader(LogReader):
    """The same, that Spark tells its filters (a reader that can be told fails where Spark may not push)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """They are applied by Spark as well: what is read is only not more than needed, by a block."""
        self._asked = reduce(narrowed, filters, self._asked)
        return filters


def narrowed(asked: Asked, filter: Filter) -> Asked:
    """What is to be read when only what passes this filter counts."""
    column, value = getattr(filter, "attribute", None), getattr(filter, "value", None)
    if column != ("put_at",) or not isinstance(value, datetime.datetime):
        return asked
    ms = ms_of(value if value.tzinfo else value.astimezone())  # without a zone it is this machine's
    match filter:
        case GreaterThan() | GreaterThanOrEqual() | EqualTo():
            asked = msgspec.structs.replace(asked, since_ms=max(ms, asked.since_ms or 0))
    match filter:
        case LessThan() | LessThanOrEqual() | EqualTo():
            return msgspec.structs.replace(asked, until_ms=min(ms + 1, asked.until_ms or ms + 1))
    return asked


def read_task(asked: Asked, shape: Shape, task: InputPartition) -> Iterator[Any]:
    settle()
    if isinstance(task, Task):  # Spark makes an empty one where there is nothing to read
        yield from shape.made(read_ranges(asked.at, task.record, task.ranges, shape.columns, asked.reads_per_s))


# ---- streams


def fresh_offset(generation: int, known: list[Known], starts: dict[str, int]) -> Offset:
    extents = {each.name: starts.get(each.name, 0) for each in known if not each.dropped}
    return {"generation": generation, "extents": extents, "done": [], "gone": _gone(known)}


def _gone(known: list[Known]) -> list[str]:
    return [each.name for each in known if each.dropped]


def next_offset(start: Offset, known: list[Known], max_rows: int | None, missing: str) -> Offset:
    """How far the next micro-batch goes: oldest extents first, at most so many messages. Raises Unavailable when
    something was dropped before it was read."""
    reads: dict[str, int] = dict(start["extents"])
    there = {each.name: each for each in known}
    for name, next_number in reads.items():
        if name in start["done"]:
            continue
        now = there.get(name)
        if (now is None or (now.dropped and next_number < now.top)) and missing == FAIL:
            raise _dropped(name, next_number)
    if missing == FAIL and "gone" in start:  # offsets of earlier versions do not say
        for each in known:
            if each.dropped and each.top and each.name not in reads and each.name not in start["gone"]:
                raise _dropped(each.name, 0)
    extents: dict[str, int] = {}
    left = max_rows
    for each in known:
        first = reads.get(each.name, 0)
        if each.dropped:
            continue
        take = max(0, each.top - first) if left is None else min(max(0, each.top - first), left)
        left = None if left is None else left - take
        extents[each.name] = first + take
    done = [each.name for each in known if each.finished and extents.get(each.name) == each.top]
    return {"generation": start["generation"], "extents": extents, "done": done, "gone": _gone(known)}


def _dropped(name: str, next_number: int) -> Unavailable:
    return Unavailable(
        f"extent {name} was dropped by retention before all of it was read (next was {next_number}): "
        "read from the oldest there is with the option missing=oldest, or from a new checkpoint"
    )


def capped(known: Known, top: int) -> Known:
    """As if there were no more than that; then it is not finished either."""
    return known if known.top <= top else msgspec.structs.replace(known, top=top, state=OPEN)


def between(start: Offset, end: Offset) -> list[Range]:
    """What a micro-batch has: a pure function of its offsets."""
    before = start["extents"]
    found = [Range(name, before.get(name, 0), stop) for name, stop in sorted(end["extents"].items())]
    return [each for each in found if each.first < each.end]


def still_there(tasks: list[tuple[Range, ...]], known: list[Known]) -> list[tuple[Range, ...]]:
    """The tasks of a micro-batch that comes again without what retention dropped meanwhile: as many, in their order."""
    there = {each.name for each in known if not each.dropped}
    return [tuple(each for each in ranges if each.extent in there) for ranges in tasks]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, asked: Asked, record: Record) -> None:
        self._asked, self._record = asked, record
        self._shape = shape_of(asked)
        self._until: Offset | None = None  # of a trigger that reads what is available now
        self._latest: Offset | None = None

    def initialOffset(self) -> Offset:
        return asyncio.run(self._initial())

    async def _initial(self) -> Offset:
        start = self._asked.start
        async with reached(self._asked.at, look=HOMES) as reach:
            known = await listed(reach, self._record)
            starts: dict[str, int] = {}
            for each in known:
                if each.dropped:
                    continue
                if start == LATEST:
                    starts[each.name] = each.top
                elif start != EARLIEST:
                    starts[each.name] = await first_since(reach, self._record, each, int(start))
        return fresh_offset(self._record.generation, known, starts)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._asked.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        known = asyncio.run(self._listed())
        self._until = fresh_offset(self._record.generation, known, {each.name: each.top for each in known})

    async def _listed(self) -> list[Known]:
        async with reached(self._asked.at, look=HOMES) as reach:
            now = await reach.record(self._record.name)
            if now.generation != self._record.generation:
                raise NotFound(f"queue {self._record.name} was purged or made anew: begin with a new checkpoint")
            return await listed(reach, self._record)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        if start["generation"] != self._record.generation:
            raise NotFound(
                f"the checkpoint is of an earlier {self._record.name}, which is gone: begin with a new checkpoint"
            )
        known = asyncio.run(self._listed())
        self._latest = fresh_offset(self._record.generation, known, {each.name: each.top for each in known})
        if self._until is not None:
            until = self._until["extents"]
            # One that came since may be gone again: no later run would see it either.
            known = [each for each in known if each.name in until or each.dropped]
            known = [capped(each, until.get(each.name, each.top)) for each in known]
        return next_offset(start, known, _most(limit), self._asked.missing)

    def reportLatestOffset(self) -> Offset | None:
        return self._latest

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        tasks = grouped(between(start, end), self._asked.task_rows)
        if self._asked.missing != FAIL:
            tasks = still_there(tasks, asyncio.run(self._listed()))
        return [Task(self._record, each) for each in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_task(self._asked, self._shape, partition)

    def commit(self, end: Offset) -> None:
        """Nothing is dropped on it: it comes a batch late, and other readers have a say in that too."""


def _most(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadMaxRows):
        return int(limit.max_rows)
    if isinstance(limit, ReadAllAvailable):
        return None
    raise Invalid(f"{type(limit).__name__} is no limit that log queues know")
