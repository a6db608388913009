"""The journal queue as rows: its messages are sheets, and each event of a sheet becomes the rows it has.

    messages (body, put_at) ──▶ sheets ──▶ rows of journal/columns.py, and when the sheet was stored

A message that is no sheet, or one of a later version, has no events for us: their numbers are missing, and that shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from capellini.model.errors import Invalid
from capellini.pipeline.journal.columns import batch_of
from capellini.pipeline.source.columns import arrow_schema


def events_of(batches: Iterator[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema("journal", columns)
    for batch in batches:
        for body, stored_at in zip(batch.column("body"), batch.column("put_at"), strict=True):
            try:
                events = batch_of(body.as_py())
            except Invalid:
                continue
            arrays = [
                pa.repeat(stored_at, events.num_rows) if name == "stored_at" else events.column(name)
                for name in columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
