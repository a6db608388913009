"""The sink: what a task of Spark does with its rows, once and for all attempts of it.

    log queues           chunks named by (write, part) and numbered: chunking.py, appending.py
    work, timed queues   puts with a key: the row's own (column `key`), or (write, part, number of the row)

    the write    batch: the option `job`, else a name made for this write; within a micro-batch of a stream
                 (foreachBatch) together with what names that
                 stream: the query's id, which lives in its checkpoint, and the number of the micro-batch
    the part     the number of the task's partition

So a retried task, a speculative one, a replayed micro-batch, and a job that was killed and is run again under its name
add nothing twice. What a failed write has put stays: the next attempt finds it there. Keys are remembered for the
queue's own window: a micro-batch must be replayed within it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from capellini.model.errors import Invalid
from capellini.model.message import MAX_BATCH, NewMessage
from capellini.model.service import Problem
from capellini.pipeline.sink.appending import Appender
from capellini.pipeline.sink.chunking import check_columns, chunks_of, producer_of
from capellini.pipeline.source.asking import Asked
from capellini.pipeline.source.reach import Record

if TYPE_CHECKING:
    import pyarrow as pa

QUERY: Final = "sql.streaming.queryId"  # what Spark tells the tasks of a stream
BATCH: Final = "streaming.sql.batchId"
PATIENCE_S: Final = 60.0


class Written(WriterCommitMessage):
    """What one task has done, and what is left to be put once all have."""

    def __init__(self, messages: int, again: int, rest: tuple[bytes, ...] = ()) -> None:
        self.messages, self.again, self.rest = messages, again, rest


class _Putting:
    """What both sinks do in a task. Travels from the driver to the tasks."""

    def __init__(self, asked: Asked, record: Record, columns: list[tuple[str, str]], streams: bool) -> None:
        check_columns(columns, record.kind)
        self._asked, self._kind, self._streams = asked, record.kind, streams
        # Of another generation it is another write: what a purge removed is put again.
        self._write = (asked.job or uuid.uuid4().hex, record.name, record.generation)

    def put(self, batches: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None, "a sink is used by tasks"
        query, batch = context.getLocalProperty(QUERY) or "", context.getLocalProperty(BATCH) or ""
        write: tuple[object, ...]
        if self._streams:
            write = (query, *self._write[1:])
        else:  # of several writes in one micro-batch each is another one
            write = (query, *self._write) if query else self._write
        producer = producer_of(*write, batch, context.partitionId())
        paced = _paced(batches, self._asked.per_s)
        return self._append(paced, producer) if self._kind == "log" else self._put_keyed(paced, producer)

    def _append(self, batches: Iterable[pa.RecordBatch], producer: bytes) -> Written:
        messages = 0
        rest: list[bytes] = []
        with Appender(self._asked.at, self._asked.queue) as appender:
            for chunk, count, full in chunks_of(batches, producer):
                if full:
                    appender.put(chunk)
                else:
                    rest.append(chunk)
                messages += count
        return Written(messages, appender.put_again, tuple(rest))

    def finish(self, written: Iterable[WriterCommitMessage | None]) -> None:
        """On the driver, once every task succeeded: the last chunks, a few at most of each task."""
        left = [chunk for each in written if isinstance(each, Written) for chunk in each.rest]
        if not left:
            return
        with Appender(self._asked.at, self._asked.queue) as appender:
            for chunk in left:
                appender.put(chunk)

    def _put_keyed(self, batches: Iterable[pa.RecordBatch], producer: bytes) -> Written:
        from capellini.client.connecting import connect

        messages = 0
        with connect(self._asked.at, patience_s=PATIENCE_S) as client:
            for batch in batches:
                for at in range(0, batch.num_rows, MAX_BATCH):
                    part = [
                        _message(row, f"{producer.hex()}/{messages + number}")
                        for number, row in enumerate(batch.slice(at, MAX_BATCH).to_pylist())
                    ]
                    _check(client.put_many(self._asked.queue, part))
                    messages += len(part)
        return Written(messages, 0)


def _message(row: dict[str, Any], key: str) -> NewMessage:
    body = row["body"]
    if body is None:
        raise Invalid("a body is null: every message has one")
    return NewMessage(
        body.encode() if isinstance(body, str) else body,
        dict(row.get("attributes") or ()),
        key=row.get("key") or key,
        due=row.get("due_at"),
    )


def _check(results: list[Any]) -> None:
    """Raises the first problem: the task is tried again, and what was put is recognised by its key."""
    for result in results:
        if isinstance(result, Problem):
            raise result.raised()


def _paced(batches: Iterable[pa.RecordBatch], per_s: float | None) -> Iterator[pa.RecordBatch]:
    """At most so many rows a second: cut small, and held back."""
    if per_s is None:
        yield from batches
        return
    step = max(1, int(per_s / 10))
    due_s = time.monotonic()
    for batch in batches:
        for at in range(0, batch.num_rows, step):
            part = batch.slice(at, step)
            time.sleep(max(0.0, due_s - time.monotonic()))
            due_s = max(due_s, time.monotonic() - 1.0) + part.num_rows / per_s
            yield part


class BatchSink(DataSourceArrowWriter):
    def __init__(self, asked: Asked, record: Record, columns: list[tuple[str, str]]) -> None:
        self._putting = _Putting(asked, record, columns, streams=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._putting.put(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._putting.finish(messages)


class StreamSink(DataSourceStreamArrowWriter):
    def __init__(self, asked: Asked, record: Record, columns: list[tuple[str, str]]) -> None:
        self._putting = _Putting(asked, record, columns, streams=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._putting.put(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._putting.finish(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo: the batch comes again, and finds what is there."""
