"""The texts of all statements, and how their answers are read. Pure: nothing here knows a driver.

A table of `store/interface.py` is one CQL table, each operation a few prepared texts, whose `?` are:

    update         ttl, values, partition key, key of the row, expected values, values that no cell has (see below)
    select         partition key, lower bound, upper bound, limit
    delete         partition key, and for `delete_before` the bound
    distinct       the partition key to go on after, limit

Three choices
- Rows are written by UPDATE, never by INSERT: an INSERT leaves a marker that keeps a row alive without cells.
  So a row exists exactly while one of its cells has a value, as in every other store. "Must not exist" is then
  "no column has a value".
- A refused conditional statement shows only the columns that its conditions name. A caller that conditions on a token
  wants the state too, so the other columns are named in conditions that always hold: `state != <a random value>`,
  and for a boolean `IN (null, true, false)`. One round then gives the whole row, as it was at the refusal; reading
  it afterwards would cost a second round and might show a later one.
- Every name is quoted: `token` is a reserved word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from capellini.store.interface import ABSENT, Absent, Change, Column, Key, Slice, Table, Type, Value, Values

APPLIED: Final = "[applied]"  # Cassandra's name of the first column of a conditional answer
MOST_ROWS: Final = 2**31 - 1  # LIMIT is a 32-bit number
# Rows of a time series expire together: windows this long hold few tombstones and drop as whole files.
TIME_WINDOW: Final = (
    "{'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'HOURS', 'compaction_window_size': 12}"
)

VERSIONS: Final = Table(
    name="schema_version",
    doc="Which version of the tables this keyspace has.",
    partition=(Column("name", Type.TEXT),),
    columns=(Column("version", Type.INT),),
    conditional=frozenset({"version"}),
)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def place(keyspace: str, table: Table) -> str:
    return f"{quoted(keyspace)}.{quoted(table.name)}"


# ---- schema


def replication_map(replication: str, dc: str | None = None) -> dict[str, int]:
    """Copies by data centre: of "3" in `dc` (without one: in every data centre), of "dc1:3,dc2:2" as it says."""
    copies: dict[str, int] = {}
    for part in replication.split(","):
        name, colon, count = part.strip().rpartition(":")
        copies[name if colon else dc or "replication_factor"] = int(count)
    return copies


def create_keyspace(keyspace: str, copies: Mapping[str, int]) -> str:
    parts = ", ".join(f"{literal(dc)}: {count}" for dc, count in copies.items())
    return (
        f"CREATE KEYSPACE IF NOT EXISTS {quoted(keyspace)}\n"
        f"    WITH replication = {{'class': 'NetworkTopologyStrategy', {parts}}}"
    )


def create_table(keyspace: str, table: Table, id: UUID | None = None) -> str:
    """`id`: what Cassandra tells the table from others of its name by; one of its own, unless given."""
    lines = [f"    {quoted(column.name)} {column.type.value}" for column in (*table.partition, *table.clustering)]
    lines += [f"    {quoted(column.name)} {column.type.value} static" for column in table.statics]
    lines += [f"    {quoted(column.name)} {column.type.value}" for column in table.columns]
    key = f"({names(table.partition)})"
    if table.clustering:
        key += f", {names(table.clustering)}"
    lines.append(f"    PRIMARY KEY ({key})")
    options = [f"id = {id}"] if id is not None else []
    options.append(f"comment = {literal(table.doc)}")
    if table.time_series:
        options.append(f"compaction = {TIME_WINDOW}")
    return (
        f"CREATE TABLE IF NOT EXISTS {place(keyspace, table)} (\n"
        + ",\n".join(lines)
        + "\n) WITH "
        + "\n   AND ".join(options)
    )


def schema_text(tables: Iterable[Table], keyspace: str, replication: str) -> str:
    """The whole schema for a person who creates it by hand, with what to know about each table."""
    parts = [
        "-- The tables of Capellini. Keep gc_grace_seconds as it is, and change nothing by hand in columns that are\n"
        "-- said to be changed by compare-and-set: a plain write there wins over every later compare-and-set.\n",
        create_keyspace(keyspace, replication_map(replication)) + ";\n",
    ]
    for table in (VERSIONS, *tables):
        notes = f"-- {table.doc}\n"
        if table.conditional:
            ordered = [column.name for column in (*table.statics, *table.columns) if column.name in table.conditional]
            notes += f"-- Changed by compare-and-set only: {', '.join(ordered)}.\n"
        if table.time_series:
            notes += "-- Rows are only added and expire together.\n"
        parts.append(f"{notes}{create_table(keyspace, table)};\n")
    return "\n".join(parts)


def faults(table: Table, found: Mapping[str, tuple[str, str]]) -> list[str]:
    """What is wrong with an existing table: `found` has (kind, type) by column. Columns of others are let be."""
    wanted = {column.name: ("partition_key", column.type.value) for column in table.partition}
    wanted |= {column.name: ("clustering", column.type.value) for column in table.clustering}
    wanted |= {column.name: ("static", column.type.value) for column in table.statics}
    wanted |= {column.name: ("regular", column.type.value) for column in table.columns}
    wrong = []
    for name, (kind, type) in wanted.items():
        if name not in found:
            wrong.append(f"{name} {type} is missing")
        elif found[name] != (kind, type):
            wrong.append(f"{name} is {' '.join(found[name])} and should be {kind} {type}")
    keys = [name for name, (kind, _) in found.items() if kind in ("partition_key", "clustering") and name not in wanted]
    return wrong + [f"{name} is one key column too many" for name in keys]


# ---- writing


def names(columns: Iterable[Column]) -> str:
    return ", ".join(quoted(column.name) for column in columns)


def equal(columns: Iterable[Column]) -> str:
    return " AND ".join(f"{quoted(column.name)} = ?" for column in columns)


def update(keyspace: str, table: Table, written: Sequence[str], static: bool, expires: bool = True) -> str:
    """Takes a time to live first, of which 0 is none. Without `expires` it takes none: less to send, less to read."""
    key = table.partition if static else (*table.partition, *table.clustering)
    values = ", ".join(f"{quoted(name)} = ?" for name in written)
    ttl = " USING TTL ?" if expires else ""
    return f"UPDATE {place(keyspace, table)}{ttl} SET {values} WHERE {equal(key)}"


def update_if(keyspace: str, table: Table, written: Sequence[str], static: bool, expected: Sequence[str]) -> str:
    """With conditions on the `expected` columns, and harmless ones on all others of the row so that they are shown."""
    conditions = [f"{quoted(name)} = ?" for name in expected]
    for column in shown(table, static, expected):
        always = "IN (null, true, false)" if column.type is Type.BOOL else "!= ?"
        conditions.append(f"{quoted(column.name)} {always}")
    return f"{update(keyspace, table, written, static)} IF {' AND '.join(conditions)}"


def shown(table: Table, static: bool, expected: Sequence[str]) -> tuple[Column, ...]:
    """The columns of the row that no condition of the caller names."""
    return tuple(column for column in (table.statics if static else table.columns) if column.name not in expected)


def expectations(table: Table, change: Change) -> Values | None:
    """The conditions of a change by column; ABSENT is that no column has a value."""
    if isinstance(change.expect, Absent):
        assert change.expect is ABSENT
        return {column.name: None for column in table.columns}
    return change.expect


def delete_partition(keyspace: str, table: Table) -> str:
    return f"DELETE FROM {place(keyspace, table)} WHERE {equal(table.partition)}"


def delete_before(keyspace: str, table: Table, parts: int) -> str:
    return f"{delete_partition(keyspace, table)} AND {bound(table, '<', parts)}"


# ---- reading


def bound(table: Table, sign: str, parts: int) -> str:
    """A bound by a prefix of the key: (a) >= (?) has all that begins with it, (a) < (?) nothing that does."""
    return f"({names(table.clustering[:parts])}) {sign} ({', '.join('?' * parts)})"


def select(keyspace: str, slice: Slice, columns: Sequence[Column]) -> tuple[str, list[Value]]:
    """The text and what to bind. The answer's columns are the clustering key and then `columns`."""
    table = slice.table
    where = [equal(table.partition)]
    parameters: list[Value] = [*slice.partition]
    lower, upper = (slice.start, slice.after or slice.end) if slice.reverse else (slice.after or slice.start, slice.end)
    if lower:
        where.append(bound(table, ">=" if slice.reverse or slice.after is None else ">", len(lower)))
        parameters += lower
    if upper:
        where.append(bound(table, "<", len(upper)))
        parameters += upper
    wanted = names((*table.clustering, *columns)) or names(table.partition[:1])
    text = f"SELECT {wanted} FROM {place(keyspace, table)} WHERE {' AND '.join(where)}"
    if slice.reverse and table.clustering:
        text += " ORDER BY " + ", ".join(f"{quoted(column.name)} DESC" for column in table.clustering)
    return text + " LIMIT ?", [*parameters, min(slice.limit, MOST_ROWS)]


def select_static(keyspace: str, table: Table, columns: Sequence[Column]) -> str:
    """DISTINCT reads the static row alone, however many rows there are."""
    return f"SELECT DISTINCT {names(columns)} FROM {place(keyspace, table)} WHERE {equal(table.partition)}"


def distinct(keyspace: str, table: Table, go_on: bool) -> str:
    keys = names(table.partition)
    where = f" WHERE token({keys}) > token({', '.join('?' * len(table.partition))})" if go_on else ""
    return f"SELECT DISTINCT {keys} FROM {place(keyspace, table)}{where} LIMIT ?"


def native(column: Column, value: Value) -> Value:
    """A value as the interface wants it; time uuids come as text."""
    return UUID(value) if column.type is Type.TIMEUUID and isinstance(value, str) else value


def present(columns: Iterable[Column], answer: Mapping[str, Value]) -> dict[str, Value]:
    """The columns that have a value."""
    found = ((column, answer.get(column.name)) for column in columns)
    return {column.name: native(column, value) for column, value in found if value is not None}


def current_rows(
    table: Table, asked: Sequence[Key | None], answer: Iterable[Mapping[str, Value]]
) -> dict[Key | None, dict[str, Value]]:
    """The rows that a refused compare-and-set showed, of those that had a condition (`asked`).

    A lone statement's answer has no key columns: it is the one row asked for. A batch's answer has a line per row that
    exists, each with the static columns too; where there are no rows, one line without a key has the static columns.
    """
    rows: dict[Key | None, dict[str, Value]] = {}
    for line in answer:
        if None in asked and (static := present(table.statics, line)):
            rows[None] = static
        if any(column.name not in line for column in table.clustering):
            key = next((each for each in asked if each is not None), None)
        else:
            key = tuple(native(column, line[column.name]) for column in table.clustering)  # type: ignore[misc]
        if key is not None and key in asked and (values := present(table.columns, line)):
            rows[key] = values
    return rows
