"""`load`: files into a queue, and a queue into files.

    files ──▶ rows ──▶ body, attributes, key, due_at ──▶ queue       each file once, whatever is killed
    queue ──▶ rows ──▶ files                                         all that is there now

What becomes the body: the column `body` (or the one that is named); of JSON lines and text the line itself; of anything
else the whole row, as JSON. Columns `attributes` (a map, a JSON object), `key` and `due_at` (a time, also as text) are
taken along where the queue has use for them. CSV has no types: there they are text. It is read and written as RFC 4180
has it, with quotes doubled and lines within quotes, and a header; files that name other columns are refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capellini.model.errors import Conflict, Invalid, NotFound
from capellini.pipeline.jobs.running import Say, Summary, claim, plainly, run, silent
from capellini.pipeline.source.data import register
from capellini.pipeline.source.reach import Record, reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMS: Final = ("parquet", "json", "csv", "text")
BATCH_BYTES: Final = str(1 << 30)  # of files in one micro-batch: what is lost by a kill is done again in a minute
ENDS: Final = {
    ".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".txt": "text",
}  # fmt: skip
# As everybody but Spark has it. A file is one task: where a line begins is not known from its middle.
# Nothing between two commas is null, and "" is an empty text: with Spark's own `nullValue` that were null, too.
CSV: Final = {
    "header": "true", "escape": '"', "multiLine": "true", "enforceSchema": "false", "nullValue": "\0",
}  # fmt: skip
CSV_OUT: Final = {
    "header": "true", "escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false",
}  # fmt: skip
GLOB: Final = re.compile(r"([\\\[\]{}*?])")  # what a pattern of Hadoop's means something else by
LETTER: Final = re.compile(r"([A-Za-z0-9])")


class Load(msgspec.Struct, frozen=True):
    """Files at `path` (a folder, a file or a pattern) into a queue."""

    path: str
    at: str
    queue: str
    checkpoint: str
    form: str = ""  # empty: by the names of the files
    body: str = ""  # the column that is put; empty: see above
    once: bool = True  # False: go on, and load files as they come
    per_s: float | None = None


def load(spark: SparkSession, wanted: Load, say: Say = silent) -> Summary:
    """Raises Invalid, NotFound, WrongKind, or what putting raises."""
    record = record_of(wanted.at, wanted.queue)
    form = wanted.form or form_of(wanted.path)
    if form not in FORMS:
        raise Invalid(f"{form!r} is no form of files: use {', '.join(FORMS)}")
    register(spark)
    with plainly():
        files = _files(spark, wanted.path, form, bool(wanted.body))
    # The columns, too: of a batch that comes again the same messages must come.
    claim(
        wanted.checkpoint,
        {"job": "load", "path": wanted.path, "queue": wanted.queue, "generation": record.generation, "form": form,
         "body": wanted.body, "columns": files.schema.simpleString(), "paced": wanted.per_s is not None,
         **({"csv": CSV} if form == "csv" else {})},
    )  # fmt: skip
    with plainly():
        rows = _messages(files, wanted.body, record.kind)
    return run(spark, sink(rows, wanted.at, wanted.queue, wanted.per_s), wanted.checkpoint, wanted.once, say)


def sink(rows: DataFrame, at: str, queue: str, per_s: float | None) -> Any:
    """A stream into a queue. At a rate it runs in one part: that is what the rate is of."""
    options = {"at": at, "queue": queue}
    if per_s is not None:
        rows, options["per_s"] = rows.coalesce(1), repr(per_s)
    return rows.writeStream.format("capellini").options(**options)


def record_of(at: str, queue: str) -> Record:
    """Raises NotFound, CannotOpen, Unavailable."""
    import asyncio

    async def look() -> Record:
        async with reached(at) as reach:
            return await reach.record(queue)

    return asyncio.run(look())


def form_of(path: str) -> str:
    """By the end of the name, or of the first file that is there. Raises NotFound or Invalid."""
    place = Path(path)
    names = [path] if place.suffix in ENDS or not place.is_dir() else sorted(map(str, place.rglob("*")))
    for name in names:
        if Path(name).suffix in ENDS:
            return ENDS[Path(name).suffix]
    if "*" not in path and "://" not in path and not place.exists():
        raise NotFound(f"there is nothing at {path}")
    raise Invalid(f"the form of {path} cannot be told by its name: say which of {', '.join(FORMS)}")


def _files(spark: SparkSession, path: str, form: str, parsed: bool) -> DataFrame:
    lines = form == "text" or (form == "json" and not parsed)
    read, place = spark.readStream.option("maxBytesPerTrigger", BATCH_BYTES), streamed(path)
    if lines:
        return read.text(place).where("length(value) > 0")
    told = CSV if form == "csv" else {}
    schema: StructType = spark.read.format(form).options(**told).load(place).schema
    return read.format(form).options(**told).schema(schema).load(place)


def streamed(path: str) -> str:
    """What Spark makes a stream of: a folder or a pattern. One file is a pattern that matches it alone."""
    place = Path(path)
    if not place.is_file():
        return path
    name = GLOB.sub(r"\\\1", place.name)
    return str(place.parent / LETTER.sub(r"[\1]", name, count=1))


def _messages(rows: DataFrame, body: str, kind: str) -> DataFrame:
    """The columns that the sink takes. Raises Invalid."""
    types = dict(rows.dtypes)
    if body and body not in types:
        raise Invalid(f"there is no column {body!r} in the files: there are {', '.join(types)}")
    column = body or ("value" if list(types) == ["value"] else "body" if "body" in types else "")
    if not column:
        return rows.selectExpr("to_json(struct(*)) AS body")
    text = types[column] in ("binary", "string")
    taken = [f"`{column}` AS body" if text else f"to_json(struct(`{column}`)) AS body"]
    if "attributes" in types:
        taken.append(f"{_attributes(types['attributes'])} AS attributes")
    if kind != "log" and "key" in types:
        taken.append("string(`key`) AS `key`")
    if kind == "timed" and "due_at" in types:
        due = "nullif(due_at, '')" if types["due_at"] == "string" else "due_at"
        taken.append(f"cast({due} AS timestamp) AS due_at")
    return rows.selectExpr(*taken)


def _attributes(type: str) -> str:
    """SQL: the column as a map of text, whatever form files have for one. Raises Invalid."""
    if type == "map<string,string>":
        return "attributes"
    if type != "string" and not type.startswith(("struct", "map")):
        raise Invalid(f"the column attributes is {type}: attributes are a map of text, or a JSON object")
    text = "nullif(attributes, '')" if type == "string" else "to_json(attributes)"
    told = f"from_json({text}, 'map<string,string>', map('mode', 'FAILFAST'))"
    return f"map_filter({told}, (name, value) -> value IS NOT NULL)"


class Unload(msgspec.Struct, frozen=True):
    """A queue's messages, as they are now, into files at `path`."""

    at: str
    queue: str
    path: str
    form: str = "parquet"
    columns: str = "*"
    since: str = ""
    until: str = ""
    reads_per_s: float | None = None


def unload(spark: SparkSession, wanted: Unload) -> int:
    """How many were written. What a killed run left is replaced; what is complete is not. Raises Conflict."""
    if wanted.form not in FORMS:
        raise Invalid(f"{wanted.form!r} is no form of files: use {', '.join(FORMS)}")
    mode = "errorifexists"
    place = Path(wanted.path)
    if place.exists():
        if (place / "_SUCCESS").exists() or any(each.name != "_temporary" for each in place.iterdir()):
            raise Conflict(f"{wanted.path} is there already: name another folder, or remove it")
        mode = "overwrite"  # a run that was killed
    register(spark)
    options = {"at": wanted.at, "queue": wanted.queue, "columns": wanted.columns}
    options |= {name: value for name, value in (("since", wanted.since), ("until", wanted.until)) if value}
    if wanted.reads_per_s is not None:
        options["reads_per_s"] = repr(wanted.reads_per_s)
    with plainly():
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation()
        rows = spark.read.format("capellini").options(**options).load().observe(seen, f.count(f.lit(1)).alias("rows"))
        told = CSV_OUT if wanted.form == "csv" else {}
        _shaped(rows, wanted.form).write.mode(mode).format(wanted.form).options(**told).save(wanted.path)
        return int(seen.get["rows"])


def _shaped(rows: DataFrame, form: str) -> DataFrame:
    """As that form can hold it: text files have the body alone, the others have it as text, Parquet as it is. Other
    bytes are written as hexadecimal digits."""
    if form == "parquet":
        return rows
    if form == "text":
        return rows.selectExpr("string(body) AS value")
    flat = [
        f"to_json({name}) AS {name}" if form == "csv" and type.startswith("map") else
        f"string({name}) AS {name}" if name == "body" else
        f"hex({name}) AS {name}" if type == "binary" else name
        for name, type in rows.dtypes
    ]  # fmt: skip
    return rows.selectExpr(*flat)
