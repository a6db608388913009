"""The data source `capellini`: queues as tables and streams of Spark, both ways.

    register(spark)
    spark.read.format("capellini").options(at="http://127.0.0.1:7411", queue="events").load()
    spark.readStream.format("capellini").options(at=..., queue="events", max_rows=100_000).load()
    frame.write.format("capellini").options(at=..., queue="events").mode("append").save()
    frame.writeStream.format("capellini").options(at=..., queue="events", checkpointLocation=...).start()

Options: asking.py; columns: columns.py. Everything travels as Arrow batches. What is asked for wrongly is said on the
driver, before anything is read. A frame is what there was when it was first used: load it again to see more.

What reads and writes is imported where it is wanted. Spark starts a Python for each question (the schema, a stream's
offsets, each task), and gives up on one that is not there after 10 s: on a busy machine imports alone took that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from capellini.model.errors import Invalid, WrongKind
from capellini.pipeline.session import set_active
from capellini.pipeline.source.asking import COUNTERS, EVENTS, PUSH, Asked, asked_of
from capellini.pipeline.source.columns import chosen, ddl
from capellini.pipeline.source.reach import Record, files_of, reached

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from capellini.pipeline.sink.writer import BatchSink, StreamSink
    from capellini.pipeline.source.log_source import Planned

NAME = "capellini"
OF_SPARK = ("checkpointlocation", "queryname", "path")  # options that Spark hands on, and that are not ours


def register(spark: SparkSession) -> None:
    """Before the first use in a session, and in a thread; again does no harm."""
    set_active(spark)
    try:
        spark.dataSource.register(Capellini)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


class Capellini(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._asked = asked_of({name: each for name, each in options.items() if name.lower() not in OF_SPARK})
        self._record: Record | None = None
        self._planned: Planned | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def _found(self) -> Record:
        if self._record is None:
            self._record, self._planned = asyncio.run(_looked_up(self._asked))
        return self._record

    @property
    def _kind(self) -> str:
        if self._asked.read == COUNTERS:
            return COUNTERS
        kind = self._found().kind
        if self._asked.read == EVENTS and kind != "log":
            raise WrongKind(f"{self._asked.queue} is a {kind} queue: the journal is a log queue")
        return kind

    def schema(self) -> str:
        shown = EVENTS if self._asked.read == EVENTS else self._kind
        return ddl(shown, chosen(shown, self._asked.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._kind != "log":
            _check_no_times(self._asked, "other tables have what is there now")
        if self._kind == COUNTERS:
            from capellini.pipeline.source.counter_source import CounterReader

            return CounterReader(self._asked)
        return self._reader_of(self._kind)(self._asked, self._found())

    def _reader_of(self, kind: str) -> Callable[[Asked, Record], DataSourceReader]:
        if kind == "work":
            from capellini.pipeline.source.work_source import WorkReader

            return WorkReader
        if kind == "timed":
            from capellini.pipeline.source.timed_source import TimedReader

            return TimedReader
        from capellini.pipeline.source.log_source import LogReader, NarrowedReader

        return partial(NarrowedReader if self._asked.filters == PUSH else LogReader, planned=self._planned)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self._kind != "log":
            raise WrongKind(f"{self._asked.queue} is a {self._kind} queue: only log queues can be read as streams")
        _check_no_times(self._asked, "a stream begins where `start` says")
        from capellini.pipeline.source.log_source import LogStreamReader

        return LogStreamReader(self._asked, self._found())

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        from capellini.pipeline.sink.writer import BatchSink

        return BatchSink(self._asked, self._found(), _appended(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        from capellini.pipeline.sink.writer import StreamSink

        return StreamSink(self._asked, self._found(), _appended(schema, overwrite))


def _check_no_times(asked: Asked, instead: str) -> None:
    """Raises Invalid for times that would not be looked at: what was to be left out would come as well."""
    if asked.since_ms is not None or asked.until_ms is not None:
        raise Invalid(f"since and until are for tables of log queues and of the journal, and {instead}: leave them out")


def _appended(schema: Any, overwrite: bool) -> list[tuple[str, str]]:
    """Names and types of the columns. Raises Invalid: a queue only grows."""
    if overwrite:
        raise Invalid('a queue cannot be overwritten: use mode("append"), or purge it first')
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


async def _looked_up(asked: Asked) -> tuple[Record, Planned | None]:
    files = files_of(asked.at)
    async with reached(asked.at) as reach:
        record = await reach.record(asked.queue)
        if files is None or record.kind != "log":
            return record, None
        from capellini.pipeline.source.log_source import planned_in

        return record, await planned_in(reach, record, asked, files)
