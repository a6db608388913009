"""How every streaming job runs: started, watched, summed up, and safe to kill.

    checkpoint ──▶ micro-batch n: what is in it is written down before it begins, so that it can be repeated
               ──▶ done: written down, too; a killed job begins again with the batch that was not

What makes a repeated batch harmless is the target's business: the sink recognises its chunks and keys, the archive
replaces what the batch had written. Both need that a batch comes in the same parts with the same rows in the same
order. Sources are replayed exactly; files are cut by the settings below, which are fixed for that reason, and written
down in the checkpoint together with what the job is: a checkpoint is not for another job.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capellini.model.errors import CapelliniError, Conflict, Unavailable
from capellini.pipeline.session import set_active

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger("capellini.pipeline")

# How files are cut into tasks: with these alone, whatever the machine. Changing them makes old checkpoints useless.
CUT: Final = {
    "spark.sql.files.maxPartitionBytes": str(32 * 1024 * 1024),
    "spark.sql.files.openCostInBytes": str(1024 * 1024),
    "spark.sql.files.minPartitionNum": "8",
}
NOTE: Final = "capellini.json"
STARTS: Final = 3  # Spark gives a Python 10 s to start, and ends the stream of one that a busy machine kept waiting
SLOW_START: Final = "Python worker failed to connect back"
LOOK_S: Final = 1  # how often a running job is looked at
EVERY_S: Final = 10.0  # between micro-batches of a job that goes on
FROM_A_TASK: Final = re.compile(r"capellini\.model\.errors\.(\w+): ([^\n]+)")
PYTHON_ERROR: Final = re.compile(r"(?!py4j\.)[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit): ")
UNREAD: Final = re.compile(r"\[FAILED_READ_FILE\b[^\]]*\] .*? file (\S+?)\.?(?:\s|$)")  # why is said by its cause alone
FULL: Final = "No space left on device"
JAVA_CAUSE: Final = re.compile(r"Caused by: ([\w.$]+: .+)")

Say = Callable[[int, int | None], None]  # so many more are done; so many are left, where that is known


def silent(done: int, left: int | None) -> None:
    """Nobody looks."""


class Summary(msgspec.Struct, frozen=True):
    """What one run of a job has done; rows of batches that were repeated are counted again."""

    rows: int
    batches: int
    took_s: float
    interrupted: bool = False  # there may be more to do

    @property
    def per_s(self) -> float:
        return self.rows / self.took_s if self.took_s else 0.0


@contextmanager
def cut_as_ever(spark: SparkSession) -> Iterator[None]:
    """The session with CUT while a job is started: a started stream has settings of its own."""
    before = {name: spark.conf.get(name, None) for name in CUT}
    for name, value in CUT.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


def claim(checkpoint: str, what: Mapping[str, Any]) -> str:
    """The checkpoint is of this job; a name that this job has for ever. Raises Conflict when it is another's. Only for
    folders of this machine: elsewhere it is up to whoever names it."""
    if "://" in checkpoint and not checkpoint.startswith("file:"):
        return hashlib.blake2b(checkpoint.encode(), digest_size=16).hexdigest()
    folder = Path(checkpoint.removeprefix("file://").removeprefix("file:"))
    note = folder / NOTE
    mine = {**what, "cut": CUT}
    if note.exists():
        there = msgspec.json.decode(note.read_bytes())
        name = str(there.pop("name", ""))
        if there != msgspec.json.decode(msgspec.json.encode(mine)):
            changed = next(name for name in (*mine, *there) if there.get(name) != mine.get(name))
            raise Conflict(
                f"checkpoint {checkpoint} is of another job: its {changed} is {there.get(changed)!r}, "
                f"not {mine.get(changed)!r}. Use another one"
            )
        return name
    name = uuid.uuid4().hex
    folder.mkdir(parents=True, exist_ok=True)
    fresh = note.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode({**mine, "name": name}))
    fresh.replace(note)
    return name


def run(spark: SparkSession, writer: DataStreamWriter, checkpoint: str, once: bool, say: Say = silent) -> Summary:
    """Until all that there was at the beginning is done (`once`), or until it is interrupted. Raises what failed."""
    began_s = time.monotonic()
    counts: dict[int, int] = {}
    with plainly():
        interrupted = _watched(spark, writer, checkpoint, once, counts, say)
    return Summary(sum(counts.values()), len(counts), time.monotonic() - began_s, interrupted)


def _watched(
    spark: SparkSession, writer: DataStreamWriter, checkpoint: str, once: bool, counts: dict[int, int], say: Say
) -> bool:
    """Whether it was interrupted."""
    from pyspark.errors import StreamingQueryException

    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": f"{EVERY_S:g} seconds"}
    left = STARTS
    while True:
        left -= 1
        with cut_as_ever(spark):
            set_active(spark)
            query: StreamingQuery = writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()
        try:
            while not query.awaitTermination(LOOK_S):
                _heard(query, counts, say)
            _heard(query, counts, say)
            return False
        except KeyboardInterrupt:
            _heard(query, counts, say)
            return True
        except StreamingQueryException as error:
            if not left or SLOW_START not in str(error):
                raise
            _heard(query, counts, say)
            log.warning("Spark gave up on a Python that had not started within 10 s: the job goes on with another")
        finally:
            query.stop()


def _heard(query: StreamingQuery, counts: dict[int, int], say: Say) -> None:
    for progress in query.recentProgress:
        rows = int(progress.numInputRows)
        if rows and progress.batchId not in counts:
            counts[progress.batchId] = rows
            say(rows, _left(progress.sources))


def _left(sources: Sequence[Any]) -> int | None:
    """Of log queues, whose offsets are numbers of messages."""
    try:
        ends, latest = (json.loads(text)["extents"] for text in (sources[0].endOffset, sources[0].latestOffset))
        return sum(max(0, int(top) - int(ends.get(name, 0))) for name, top in latest.items())
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        return None


@contextmanager
def plainly() -> Iterator[None]:
    """What our own code raised in a task or on the way comes out as that; Spark wraps it in pages of text."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise (said(str(error)) or Unavailable(_unread(error) or _line(str(error)))) from error


def said(text: str) -> CapelliniError | None:
    """Our own error within a text of Spark's; the last one is its cause."""
    found = FROM_A_TASK.findall(text)
    if not found:
        return None
    kind, says = found[-1]
    for each in _kinds(CapelliniError):
        if each.__name__ == kind:
            return each(says.strip())
    return None


def _kinds(root: type[CapelliniError]) -> Iterator[type[CapelliniError]]:
    yield root
    for child in root.__subclasses__():
        yield from _kinds(child)


def _unread(error: BaseException) -> str:
    """Which file cannot be read, and why; nothing if that is not what is wrong."""
    unread = UNREAD.search(str(error))
    cause: Any = error
    while (deeper := getattr(cause, "_cause", None)) is not None:
        cause = deeper
    if unread is None or cause is error:
        return ""
    return f"{unread[1]} cannot be read: {_line(str(cause))}"


def _line(text: str) -> str:
    """What a person needs of a page of Spark's: the error that ended Python or Java, or the first line."""
    if FULL in text:
        return "the disk is full: there is no space left where this writes, or where Spark keeps its own files"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if PYTHON_ERROR.match(line)] if "Traceback" in text else []
    java = [found[1] for line in lines if (found := JAVA_CAUSE.match(line))]
    return ((python or java)[-1:] or lines or ["Spark failed without saying why"])[0][:300]
