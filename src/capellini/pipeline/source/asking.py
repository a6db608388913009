"""The options of the data source `capellini`: text from Spark, checked once, on the driver.

at            where: http://HOST:PORT, cassandra://HOST/KEYSPACE, rocks:FOLDER
queue         which queue; QUEUE for its messages
read          messages (as the queue's kind has them), journal (what happened to them: events), or counters
columns       names with commas, or *; see columns.py
since, until  tables of log queues and of the journal: only messages put at that time or later, or before; seconds
              since 1970 or ISO 8601
filters       spark: applied by Spark to what was read; push: those on put_at narrow what is read. Then the
              frame is for one query: Spark 4.2 keeps a pushed filter for later ones, too
start         streams: earliest (what is kept), latest, or a time
missing       fail: what was dropped before it was read is an error; oldest: go on with the oldest there is
task_rows     messages of one task at most
max_rows      streams: messages of one micro-batch at most
reads_per_s   of each task, so that a live cluster does not feel it
job           sink: names the write, so that the same one run again adds nothing twice
per_s         sink: messages per second of each task at most
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import msgspec

from capellini.model.errors import Invalid
from capellini.model.log import EARLIEST, LATEST
from capellini.model.options import JOURNAL, check_name

MESSAGES: Final = "messages"
COUNTERS: Final = "counters"
EVENTS: Final = "journal"
SPARK: Final = "spark"
PUSH: Final = "push"
FAIL: Final = "fail"
OLDEST: Final = "oldest"
TASK_ROWS: Final = 250_000  # a second or so of work: enough to hide what a task costs, small enough to spread
MAX_ROWS: Final = 4_000_000  # of a micro-batch: what is lost by a kill is done again in seconds
# A message of the journal is a sheet of up to some thousands of events.
TASK_SHEETS: Final = 500
MAX_SHEETS: Final = 20_000
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
KNOWN: Final = (
    "at", "queue", "read", "columns", "since", "until", "start", "missing", "task_rows", "max_rows", "reads_per_s",
    "job", "per_s", "filters",
)  # fmt: skip


class Asked(msgspec.Struct, frozen=True):
    at: str
    queue: str = ""
    read: str = MESSAGES
    columns: str | None = None
    filters: str = SPARK
    since_ms: int | None = None
    until_ms: int | None = None
    start: str = EARLIEST
    missing: str = FAIL
    task_rows: int = TASK_ROWS
    max_rows: int = MAX_ROWS
    reads_per_s: float | None = None
    job: str | None = None
    per_s: float | None = None


def asked_of(options: Mapping[str, str]) -> Asked:
    """Raises Invalid, naming the option."""
    given = {name.lower(): value for name, value in options.items() if name.lower() != "path"}
    if wrong := sorted(set(given) - set(KNOWN)):
        raise Invalid(f"{wrong[0]!r} is no option of capellini: there are {', '.join(KNOWN)}")
    if "at" not in given:
        raise Invalid("say where with the option `at`: http://HOST:PORT, cassandra://HOST/KEYSPACE or rocks:FOLDER")
    read = _one_of("read", given.get("read", MESSAGES), (MESSAGES, EVENTS, COUNTERS))
    queue = given.get("queue", JOURNAL if read == EVENTS else "")
    task_rows, max_rows = (TASK_SHEETS, MAX_SHEETS) if read == EVENTS else (TASK_ROWS, MAX_ROWS)
    if read == MESSAGES:
        check_name(queue)
    start = given.get("start", EARLIEST)
    if start not in (EARLIEST, LATEST):
        start = str(_ms("start", start))
    return Asked(
        at=given["at"],
        queue=queue,
        read=read,
        columns=given.get("columns"),
        filters=_one_of("filters", given.get("filters", SPARK), (SPARK, PUSH)),
        since_ms=_ms("since", given["since"]) if "since" in given else None,
        until_ms=_ms("until", given["until"]) if "until" in given else None,
        start=start,
        missing=_one_of("missing", given.get("missing", FAIL), (FAIL, OLDEST)),
        task_rows=int(_number("task_rows", given.get("task_rows", str(task_rows)), 1)),
        max_rows=int(_number("max_rows", given.get("max_rows", str(max_rows)), 1)),
        reads_per_s=_number("reads_per_s", given["reads_per_s"], 0.001) if "reads_per_s" in given else None,
        job=given.get("job"),
        per_s=_number("per_s", given["per_s"], 0.001) if "per_s" in given else None,
    )


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise Invalid(f"{name} is one of {', '.join(choices)}, not {value!r}")
    return value


def _number(name: str, text: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise Invalid(f"{name} is a number, not {text!r}") from None
    if not least <= value < math.inf:
        raise Invalid(f"{name} is at least {least:g}, and a number, not {text}")
    return value


def _ms(name: str, text: str) -> int:
    """Milliseconds since 1970 of a time as a person or a program gives it; without a zone it is UTC."""
    try:
        return math.floor(Decimal(text) * 1000)
    except (ArithmeticError, ValueError):
        pass
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{name} is seconds since 1970 or a time as in 2030-01-31T08:00:00Z, not {text!r}") from None
    return ms_of(found if found.tzinfo else found.replace(tzinfo=datetime.UTC))


def ms_of(moment: datetime.datetime) -> int:
    """Milliseconds since 1970. In whole numbers: from 2038 on seconds as a float are too coarse to give them back."""
    return (moment - EPOCH) // datetime.timedelta(milliseconds=1)
