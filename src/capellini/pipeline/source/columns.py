"""What the data source hands out: the columns of each kind of thing, and which of them are wanted.

    log       queue generation extent number id put_at body attributes producer sequence
    work      queue generation id put_at body attributes state deliveries visible_at origin
    timed     queue generation id due_at put_at body attributes deliveries
    journal   node incarnation number at kind queue generation first count id version detail stored_at
    counters  name kind version expires_us through_us mutator state

Spark tells a Python source nothing of the columns it needs: `columns` as an option says it. What is not asked for is
not made. Attributes are decoded once for each distinct set of them in a batch, not for each message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from capellini.model.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa

ATTRIBUTES: Final = "map<string,string>"
COLUMNS: Final[dict[str, dict[str, str]]] = {
    "log": {
        "queue": "string",
        "generation": "bigint",
        "extent": "string",
        "number": "bigint",  # of the message within its extent
        "id": "string",  # extent and number, as peeks name it
        "put_at": "timestamp",
        "body": "binary",
        "attributes": ATTRIBUTES,
        "producer": "binary",
        "sequence": "bigint",
    },
    "work": {
        "queue": "string",
        "generation": "bigint",
        "id": "string",
        "put_at": "timestamp",
        "body": "binary",
        "attributes": ATTRIBUTES,
        "state": "string",  # ready, in_flight, delayed, moving, returning
        "deliveries": "int",
        "visible_at": "timestamp",
        "origin": "string",  # of a dead letter: where it was before, as QUEUE/GENERATION/ID
    },
    "timed": {
        "queue": "string",
        "generation": "bigint",
        "id": "string",
        "due_at": "timestamp",
        "put_at": "timestamp",
        "body": "binary",
        "attributes": ATTRIBUTES,
        "deliveries": "int",
    },
    "journal": {
        "node": "string",
        "incarnation": "string",
        "number": "bigint",
        "at": "double",
        "kind": "string",
        "queue": "string",
        "generation": "bigint",
        "first": "bigint",
        "count": "bigint",
        "id": "string",
        "version": "int",
        "detail": "string",
        "stored_at": "timestamp",  # when its sheet was put into the journal queue
    },
    "counters": {
        "name": "string",
        "kind": "string",
        "version": "int",  # of the state's form
        "expires_us": "bigint",  # of a shard; null: this is the tally
        "through_us": "bigint",  # of the tally: shards that expire before are in it
        "mutator": "string",
        "state": "binary",
    },
}
DEFAULT: Final[dict[str, tuple[str, ...]]] = {
    "log": ("extent", "number", "put_at", "body", "attributes"),
    "work": ("id", "put_at", "body", "attributes", "state", "deliveries", "visible_at"),
    "timed": ("id", "due_at", "put_at", "body", "attributes", "deliveries"),
    "journal": tuple(COLUMNS["journal"])[:-1],  # as journal/columns.py has them
    "counters": tuple(COLUMNS["counters"]),
}


def chosen(kind: str, asked: str | None) -> tuple[str, ...]:
    """The columns of the option, in the order in which they were named. Raises Invalid."""
    known = COLUMNS[kind]
    if not asked:
        return DEFAULT[kind]
    if asked.strip() == "*":
        return tuple(known)
    names = tuple(name.strip() for name in asked.split(","))
    if wrong := [name for name in names if name not in known]:
        raise Invalid(f"{wrong[0]!r} is no column of {kind}: there are {', '.join(known)}")
    if len(set(names)) < len(names):
        raise Invalid(f"a column is named twice in {asked!r}")
    return names


def ddl(kind: str, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {COLUMNS[kind][name]}" for name in names)


def arrow_schema(kind: str, names: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "int": pa.int32(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        ATTRIBUTES: pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([pa.field(name, types[COLUMNS[kind][name]]) for name in names])
