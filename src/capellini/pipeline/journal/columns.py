"""The journal as columns, one row for each run of ids (work and log queues) or each id (timed queues) of an event.

    node  incarnation  number  at  kind  queue  generation  first  count  id  version  detail

    number     of the event within its incarnation; the rows of one event share it
    at         wall time of the node, seconds since 1970
    queue      whose ids these are: QUEUE of work and timed queues; of log queues QUEUE/EXTENT in a put, and
               QUEUE@GROUP/VERSION/EXTENT in what follows it (queues/events.py; audit/readers.py joins them)
    first, count   a run of ids, where the queue numbers its messages; null otherwise
    id         a message of a timed queue, as text; null otherwise. The closing record has neither

Read from the journal queue itself, whose messages are sheets (queues/journal.py: `batch_of` makes one of them rows);
from an archive of it, in Parquet or Delta; or from the JSON lines that `capellini serve --events file:PATH` writes. By
what the path holds unless told. A line that was cut when its writer died is no event: its number is missing, and that
shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from capellini.model.errors import Invalid, NotFound
from capellini.queues.journal import ID_BYTES, KINDS, Sheet, sheet_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "node string, incarnation string, number bigint, at double, kind string, queue string, generation bigint, "
    "first bigint, count bigint, id string, version int, detail string"
)
COLUMNS: Final = tuple(part.split()[0] for part in SCHEMA.split(", "))
LINES: Final = (
    "node string, incarnation string, number bigint, at double, kind string, queue string, generation bigint, "
    "runs array<array<bigint>>, version int, detail string, ids array<string>"
)
ADDRESSES: Final = ("http://", "https://", "cassandra://", "rocks:")
FORMATS: Final = ("json", "parquet", "delta")
ARROW: Final = pa.schema(
    [("node", pa.string()), ("incarnation", pa.string()), ("number", pa.int64()), ("at", pa.float64()),
     ("kind", pa.string()), ("queue", pa.string()), ("generation", pa.int64()), ("first", pa.int64()),
     ("count", pa.int64()), ("id", pa.string()), ("version", pa.int32()), ("detail", pa.string())]
)  # fmt: skip


def read_journal(spark: SparkSession, path: str, form: str | None = None, days: bool = False) -> DataFrame:
    """The journal at a path: a file, or a folder of them; or that of a store or node, by its address. `days`: with the
    column `day`, which archives have. Raises NotFound or Invalid."""
    if is_address(path):
        from capellini.pipeline.source.data import register

        register(spark)
        return spark.read.format("capellini").options(at=path, read="journal").load()
    form = form or form_of(path)
    if form not in FORMATS:
        raise Invalid(f"{form!r} is not a form of the journal: use {', '.join(FORMATS)}")
    if form == "json":
        return flattened(spark.read.schema(LINES).json(path))
    frame = spark.read.format(form).load(path)
    if missing := [name for name in COLUMNS if name not in frame.columns]:
        raise Invalid(f"{path} is no journal: it has no column {', '.join(missing)}")
    return frame.select(*COLUMNS, *(("day",) if days and "day" in frame.columns else ()))


def is_address(path: str) -> bool:
    """Of a store or a node, and not a place of files."""
    return path.startswith(ADDRESSES)


def form_of(path: str) -> str:
    """By what is there. Paths of other file systems than this machine's tell by their ends alone."""
    place = Path(path)
    if "://" in path or not place.exists():
        if "://" not in path:
            raise NotFound(f"there is no journal at {path}")
        return "json" if path.endswith((".jsonl", ".json")) else "parquet"
    if place.is_file():
        return "parquet" if place.suffix == ".parquet" else "json"
    if (place / "_delta_log").is_dir():
        return "delta"
    if all(each.name.startswith(("_", ".")) for each in place.iterdir()):  # an archive of nothing, as Spark sees it
        raise NotFound(f"there is nothing in the journal at {path} yet")
    return "parquet" if any(place.rglob("*.parquet")) else "json"


def flattened(lines: DataFrame) -> DataFrame:
    """Rows from the lines as nodes write them. Lines that are none (cut short, something else) are left out."""
    from pyspark.sql import functions as f

    nothing = "array(named_struct('first', cast(null AS bigint), 'count', cast(null AS bigint), 'id', string(null)))"
    runs = "transform(coalesce(runs, array()), r -> named_struct('first', r[0], 'count', r[1], 'id', string(null)))"
    ids = (
        "transform(coalesce(ids, array()), i -> "
        "named_struct('first', cast(null AS bigint), 'count', cast(null AS bigint), 'id', i))"
    )
    named = f"concat({runs}, {ids})"
    told = lines.where("node IS NOT NULL AND number IS NOT NULL AND kind IS NOT NULL AND at IS NOT NULL")
    rows = told.select("*", f.explode(f.expr(f"if(size({named}) = 0, {nothing}, {named})")).alias("one"))
    return rows.selectExpr(
        "node", "coalesce(incarnation, '') AS incarnation", "number", "at", "kind", "coalesce(queue, '') AS queue",
        "coalesce(generation, 0L) AS generation", "one.first AS first", "one.count AS count", "one.id AS id",
        "coalesce(version, 0) AS version", "coalesce(detail, '') AS detail",
    )  # fmt: skip


def batch_of(body: bytes) -> pa.RecordBatch:
    """A sheet of the journal as rows. Raises Invalid for what is none."""
    sheet = sheet_of(body)
    rows = np.maximum(sheet.runs + sheet.ids, 1)
    event = np.repeat(np.arange(len(rows)), rows)
    begins = np.cumsum(rows) - rows
    names, generations = [name for name, _ in sheet.names.queues], [each for _, each in sheet.names.queues]
    first, count = _runs(sheet, begins, len(event))
    return pa.RecordBatch.from_arrays(
        [
            _named(np.zeros(len(event)), [sheet.names.node]),
            _named(np.zeros(len(event)), [sheet.names.incarnation]),
            pa.array(sheet.number + event, pa.int64()),
            pa.array(sheet.at_us[event] / 1e6),
            _named(sheet.kind[event], [kind.value for kind in KINDS]),
            _named(sheet.place[event], names),
            pa.array(np.array(generations, dtype=np.int64)[sheet.place[event]]),
            first,
            count,
            _ids(sheet, begins, len(event)),
            pa.array(sheet.version[event].astype(np.int32)),
            _named(sheet.detail[event], sheet.names.details),
        ],
        schema=ARROW,
    )


def _named(codes: Any, names: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, pa.string())).cast("string")


def _places(begins: Any, each: Any) -> Any:
    """The row of each thing, where every event has `each` of them from `begins` on."""
    return np.repeat(begins, each) + np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each, each)


def _runs(sheet: Sheet, begins: Any, rows: int) -> tuple[pa.Array, pa.Array]:
    at = _places(begins, sheet.runs)
    none = np.ones(rows, dtype=bool)
    none[at] = False
    found = []
    for values in (sheet.first, sheet.count):
        column = np.zeros(rows, dtype=np.int64)
        column[at] = values
        found.append(pa.array(column, mask=none))
    return found[0], found[1]


def _ids(sheet: Sheet, begins: Any, rows: int) -> pa.Array:
    """They follow the runs of their event."""
    count = len(sheet.id_bytes) // ID_BYTES
    ends = np.arange(0, 2 * ID_BYTES * (count + 1), 2 * ID_BYTES, dtype=np.int32)
    text = pa.py_buffer(sheet.id_bytes.hex().encode())
    which = np.zeros(rows, dtype=np.int64)
    none = np.ones(rows, dtype=bool)
    at = _places(begins + sheet.runs, sheet.ids)
    which[at], none[at] = np.arange(count), False
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), text).take(pa.array(which, mask=none))
