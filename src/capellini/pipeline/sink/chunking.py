"""Rows into chunks, the same chunks whenever the same rows come: what makes a retried task recognisable.

    batches as Spark hands them (cut anyhow) ──▶ chunks cut by the rows alone ──▶ (producer, 1), (producer, 2), …

A log queue knows a chunk by its producer and sequence. The producer is named after the write and the task's part of it
(`producer_of`), never after the attempt; the sequence counts the task's chunks. A chunk ends at so many messages or so
many bytes, whatever batches the rows came in. So an attempt that is made again, or beside another, sends the very same
chunks, and what is there is recognised, provided that the rows of a part come in the same order again. Sources that
can be replayed give them so; behind a shuffle, sort within partitions by something that is unique.

The last chunk is shorter, and nobody in the task knows that it is the last: when what makes the rows fails, Spark ends
them as if they were complete. Sent under its sequence it would be taken for the longer chunk of the next attempt, and
the rest of that one would be lost. So a task hands its last chunk back, and the driver puts it once all succeeded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capellini.model.chunks import HEADER, MAGIC, MAX_CHUNK_BYTES, VERSION, WITH_ATTRIBUTES
from capellini.model.errors import Invalid, TooLarge
from capellini.pipeline.source.messages import MAP, encoded_maps

CHUNK_MESSAGES: Final = 8_192
CHUNK_BYTES: Final = 512 * 1024  # of bodies; a single larger body is a chunk of its own
PRODUCER_BYTES: Final = 16


def producer_of(*parts: object) -> bytes:
    """The name of one part of one write. Never zero, which would be no name."""
    text = "\x00".join(map(str, parts))
    return hashlib.blake2b(text.encode(), digest_size=PRODUCER_BYTES, person=b"capellini-sink").digest()


def check_columns(columns: list[tuple[str, str]], kind: str) -> None:
    """Raises Invalid for what cannot be put into a queue of this kind."""
    allowed = {"body": ("binary", "string"), "attributes": ("map<string,string>",)}
    if kind != "log":
        allowed["key"] = ("string",)
    if kind == "timed":
        allowed["due_at"] = ("timestamp",)
    found = dict(columns)
    if "body" not in found:
        raise Invalid(f"there is no column body among {', '.join(found)}: it is what is put")
    for name, type in columns:
        if name not in allowed:
            raise Invalid(f"a {kind} queue takes no column {name!r}: there are {', '.join(allowed)}")
        if type not in allowed[name]:
            raise Invalid(f"column {name} is {' or '.join(allowed[name])}, not {type}")


def chunks_of(batches: Iterable[pa.RecordBatch], producer: bytes) -> Iterator[tuple[bytes, int, bool]]:
    """Each chunk, how many messages it has, and whether it is full: more rows would not change it."""
    sequence = 0
    rest: pa.Table | None = None
    for batch in batches:
        table = pa.Table.from_batches([batch])
        rest = table if rest is None else pa.concat_tables([rest, table])
        rest, ready = _cut(rest, last=False)
        for part in ready:
            sequence += 1
            yield packed(part, producer, sequence), part.num_rows, True
    if rest is not None and rest.num_rows:
        for part in _cut(rest, last=True)[1]:
            sequence += 1
            yield packed(part, producer, sequence), part.num_rows, False


def _cut(table: pa.Table, last: bool) -> tuple[pa.Table, list[pa.Table]]:
    """What is not enough for a chunk yet, and the chunks before it."""
    bodies = table.column("body").combine_chunks()
    if bodies.null_count:
        raise Invalid("a body is null: every message has one")
    ends = np.cumsum(pc.binary_length(bodies).to_numpy())
    parts, at, rows = [], 0, table.num_rows
    while at < rows:
        before = int(ends[at - 1]) if at else 0
        fits = int(np.searchsorted(ends, before + CHUNK_BYTES, side="right"))
        stop = max(at + 1, min(at + CHUNK_MESSAGES, fits))
        if stop >= rows and not last and rows - at < CHUNK_MESSAGES:
            break  # the next batch may have more for it
        parts.append(table.slice(at, min(stop, rows) - at))
        at = min(stop, rows)
    return table.slice(at), parts


def packed(table: pa.Table, producer: bytes, sequence: int) -> bytes:
    """Rows as one chunk; see model/chunks.py. Raises TooLarge."""
    bodies = _column(table, "body")
    columns = [bodies]
    if "attributes" in table.column_names:
        maps = table.column("attributes").combine_chunks()
        if (encoded := encoded_maps(maps.cast(MAP))) is not None:
            columns.append(encoded)
    parts: list[Any] = [b"", *(_ends(column) for column in columns), *(_data(column) for column in columns)]
    size = HEADER.size + sum(map(len, parts))
    if size > MAX_CHUNK_BYTES:
        raise TooLarge(f"a message has {size} bytes; no queue takes more than {MAX_CHUNK_BYTES}")
    flags = WITH_ATTRIBUTES if len(columns) > 1 else 0
    parts[0] = HEADER.pack(MAGIC, VERSION, flags, table.num_rows, size, 0, producer, sequence)
    return b"".join(parts)


def _column(table: pa.Table, name: str) -> pa.Array:
    found = table.column(name).combine_chunks()
    return found.cast(pa.binary()) if not pa.types.is_binary(found.type) else found


def _offsets(column: pa.Array) -> Any:
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


def _ends(column: pa.Array) -> bytes:
    offsets = _offsets(column)
    return bytes((offsets - offsets[0]).astype("<i4").tobytes())


def _data(column: pa.Array) -> memoryview:
    offsets, data = _offsets(column), column.buffers()[2]
    return memoryview(b"") if data is None else memoryview(data)[int(offsets[0]) : int(offsets[-1])]
