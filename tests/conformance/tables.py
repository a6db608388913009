"""Tables of the suite: every column type, key shape and table option there is."""

from __future__ import annotations

from capellini.store.interface import Column, Table, Type


def columns(**types: Type) -> tuple[Column, ...]:
    return tuple(Column(name, type) for name, type in types.items())


# Plain writes only: a key of two parts, a column of each type, static columns.
PLAIN = Table(
    name="conform_plain",
    doc="Plain rows of every type.",
    partition=columns(p=Type.TEXT),
    clustering=columns(a=Type.TEXT, b=Type.INT),
    columns=columns(
        text=Type.TEXT, blob=Type.BLOB, number=Type.INT, ratio=Type.DOUBLE, flag=Type.BOOL, moment=Type.TIMEUUID
    ),
    statics=columns(title=Type.TEXT, total=Type.INT),
)

# Compare-and-set beside plain columns, in rows and in the static row. `token` is a reserved word of CQL.
GUARDED = Table(
    name="conform_guarded",
    doc="Conditional columns beside plain ones.",
    partition=columns(p=Type.TEXT),
    clustering=columns(k=Type.INT),
    columns=columns(
        state=Type.TEXT,
        count=Type.INT,
        ratio=Type.DOUBLE,
        flag=Type.BOOL,
        packed=Type.BLOB,
        moment=Type.TIMEUUID,
        token=Type.TEXT,
        body=Type.BLOB,
    ),
    statics=columns(head=Type.TEXT, version=Type.INT, dropped=Type.BLOB, note=Type.TEXT),
    conditional=frozenset(
        ("state", "count", "ratio", "flag", "packed", "moment", "token", "head", "version", "dropped")
    ),
)

# One row per partition, with a partition key of every type.
SINGLE = Table(
    name="conform_single",
    doc="One row per partition.",
    partition=columns(p=Type.TEXT, number=Type.INT, blob=Type.BLOB, moment=Type.TIMEUUID),
    columns=columns(state=Type.TEXT, token=Type.TEXT, body=Type.BLOB),
    conditional=frozenset(("state", "token")),
)

LISTED = Table(
    name="conform_listed",
    doc="Partitions that can be listed.",
    partition=columns(p=Type.TEXT, number=Type.INT),
    clustering=columns(k=Type.INT),
    columns=columns(text=Type.TEXT),
    listable=True,
)

APART = Table(
    name="conform_apart",
    doc="Each partition in a space of its own.",
    partition=columns(p=Type.TEXT, number=Type.INT),
    clustering=columns(k=Type.INT),
    columns=columns(blob=Type.BLOB),
    statics=columns(title=Type.TEXT),
    listable=True,
    apart=True,
)


# Creating a table takes Cassandra a second on a busy machine: INT keys are tried on PLAIN, time series with TIMEUUID.
def ordered_by(name: str, key: Type, time_series: bool = False) -> Table:
    return Table(
        name=f"conform_by_{name}",
        doc=f"Rows in the order of {name}.",
        partition=columns(p=Type.TEXT),
        clustering=columns(k=key),
        columns=columns(number=Type.INT),
        time_series=time_series,
    )


BY_TEXT = ordered_by("text", Type.TEXT)
BY_BLOB = ordered_by("blob", Type.BLOB)
BY_TIMEUUID = ordered_by("timeuuid", Type.TIMEUUID, time_series=True)

TABLES = (PLAIN, GUARDED, SINGLE, LISTED, APART, BY_TEXT, BY_BLOB, BY_TIMEUUID)
