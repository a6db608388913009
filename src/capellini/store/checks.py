"""What every store refuses before it does anything: the same requests, with the same words.

A store calls `check_batch`, `check_cas`, `check_slice`, `check_drop` or `check_partitions` first in each operation.
They look at the request and its table, never at the store, and raise Invalid (TooLarge for sizes): nothing was changed.

    request ──▶ rules of its table (made once, found by its identity) ──▶ a check per value ──▶ nothing, or Invalid

They run on hot paths: the good case is a look-up and a call per value; sentences are made only for the bad one.

Stricter than any one store, so that all are alike
- Types are exact: no bool for a number, no number for a double, no bytearray for bytes; text must be UTF-8, a TIMEUUID
  of version 1; no NaN.
- No part of a partition key is empty (Cassandra refuses an empty key of one column).
- A row is named once in a request: of two writes with one timestamp the larger value would win, which no caller means.
- A conditional column is written by compare-and-set only, all others by plain writes only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn
from uuid import UUID

from capellini.model.errors import Invalid, TooLarge
from capellini.store.interface import (
    ABSENT,
    MAX_BATCH_ROWS,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    Batch,
    Cas,
    Change,
    Column,
    Key,
    Level,
    Slice,
    Table,
    Type,
    Values,
)

MAX_TTL_S: Final = 10 * 365 * 86_400  # Cassandra refuses what would expire after 2038-01-19
MAX_TIMESTAMP_US: Final = 2**63 - 1  # 64 bits, signed
LEAST_INT: Final = -(2**63)
MOST_INT: Final = 2**63 - 1
_RULES_KEPT: Final = 1_024  # far above the number of tables there are; only made-up tables come near it

Fits = Callable[[object], bool]


def check_batch(batch: Batch) -> int:
    """How large its values are: bytes and characters, and 8 for anything else."""
    return check_around(batch) + check_rows(batch)


def check_around(batch: Batch) -> int:
    """All of a batch but its rows."""
    rules = rules_of(batch.table)
    rules.check_partition(batch.partition)
    rows = batch.rows
    if len(rows) > MAX_BATCH_ROWS:
        raise TooLarge(f"a batch has at most {MAX_BATCH_ROWS} rows, not {len(rows)}")
    size = 0
    if batch.static is not None:
        size = rules.check_values(batch.static, rules.statics, conditional=False)
    if batch.clear_before is not None:
        rules.check_clear(batch.clear_before)
    if not rows and not batch.static and batch.clear_before is None:
        raise Invalid(f"a batch for table {rules.name} writes nothing: give it rows, static values or clear_before")
    if batch.ttl_s is not None:
        _check_ttl(batch.ttl_s)
    if batch.timestamp_us is not None:
        _check_timestamp(batch.timestamp_us)
    level = batch.level
    if level is Level.SERIAL or level is Level.LOCAL_SERIAL:
        raise Invalid(f"a plain write cannot have level {level.value}: that is for compare-and-set and reads")
    return size


def check_rows(batch: Batch) -> int:
    rules, rows = rules_of(batch.table), batch.rows
    one_int, key_fits, fits = rules.one_int, rules.key_fits, rules.plain
    size = 0
    for key, values in rows:
        # The most usual keys and values, without a call: this loop is what a large batch costs here.
        if one_int and type(key) is tuple and len(key) == 1 and type(at := key[0]) is int and at.bit_length() < 64:
            pass
        elif not key_fits(key):
            rules.check_key(key)
        for name, value in values.items():
            fit = fits.get(name)
            if fit is _fits_int:
                if type(value) is int and LEAST_INT <= value <= MOST_INT:
                    size += 8
                    continue
            elif fit is _fits_blob and type(value) is bytes and (length := len(value)) <= MAX_VALUE_BYTES:
                size += length
                continue
            if fit is None or (value is not None and not fit(value)):
                rules.refuse_value(name, value, rules.columns, conditional=False)
            size += len(value) if type(value) is str or type(value) is bytes else 8
        if not values:
            raise Invalid(f"row {key!r} of table {rules.name} writes no column: name at least one")
    if len(rows) > 1 and len(dict(rows)) != len(rows):
        raise Invalid(f"a batch for table {rules.name} names a row twice: name each row once")
    return size


def check_cas(cas: Cas) -> int:
    """How large the values it writes are, as for a batch."""
    rules = rules_of(cas.table)
    rules.check_partition(cas.partition)
    changes = cas.changes
    if len(changes) > MAX_BATCH_ROWS:
        raise TooLarge(f"a compare-and-set has at most {MAX_BATCH_ROWS} changes, not {len(changes)}")
    conditions = size = 0
    for change in changes:
        size += rules.check_change(change, cas.drop)
        conditions += change.expect is not None
    if not conditions:
        raise Invalid(f"a compare-and-set on table {rules.name} has no condition: give at least one change an expect")
    if len(changes) > 1 and len({change.key for change in changes}) != len(changes):
        raise Invalid(f"a compare-and-set on table {rules.name} names a row twice: name each row once")
    if cas.ttl_s is not None:
        _check_ttl(cas.ttl_s)
    if cas.level is not Level.SERIAL and cas.level is not Level.LOCAL_SERIAL:
        raise Invalid(f"a compare-and-set has level serial or local_serial, not {cas.level.value}")
    return size


def check_slice(slice: Slice) -> None:
    rules = rules_of(slice.table)
    rules.check_partition(slice.partition)
    if slice.start is not None:
        rules.check_prefix(slice.start, "start")
    if slice.end is not None:
        rules.check_prefix(slice.end, "end")
    if slice.after is not None:
        rules.check_key(slice.after)
        if (slice.end if slice.reverse else slice.start) is not None:
            raise Invalid(
                f"a {'reverse ' if slice.reverse else ''}slice has `after` instead of "
                f"`{'end' if slice.reverse else 'start'}`, not both"
            )
    if type(slice.limit) is not int or slice.limit < 0:
        raise Invalid(f"the limit of a slice is a whole number from 0 on, not {slice.limit!r}")
    if slice.columns is not None:
        for name in slice.columns:
            if name not in rules.columns and name not in rules.statics:
                raise Invalid(f"table {rules.name} has no column {name!r}: it has {rules.names()}")


def check_drop(table: Table, partition: Key, timestamp_us: int | None = None, level: Level = Level.QUORUM) -> None:
    rules_of(table).check_partition(partition)
    _check_timestamp(timestamp_us)
    if level is Level.SERIAL or level is Level.LOCAL_SERIAL:
        raise Invalid(f"a plain drop cannot have level {level.value}: use a compare-and-set that drops")


def check_partitions(table: Table, limit: int, after: Key | None) -> None:
    if not table.listable:
        raise Invalid(f"the partitions of table {table.name} cannot be listed: it is not declared so")
    if type(limit) is not int or limit < 1:
        raise Invalid(f"the limit of a list is a whole number from 1 on, not {limit!r}")
    if after is not None:
        rules_of(table).check_partition(after)


def rules_of(table: Table) -> Rules:
    """The rules of a table, made at first sight. Found by identity: a frozen struct hashes all it holds each time."""
    found = _rules.get(id(table))
    if found is None:
        if len(_rules) >= _RULES_KEPT:
            _rules.clear()
        found = _rules[id(table)] = Rules(table)
    return found


class Rules:
    """What the keys and columns of one table may be. Holds its table, so that no other table gets its identity."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.name = table.name
        self.columns = {column.name: column for column in table.columns}
        self.statics = {column.name: column for column in table.statics}
        self.plain = {
            column.name: _FITS[column.type] for column in table.columns if column.name not in table.conditional
        }
        self._partition = tuple(_FITS[column.type] for column in table.partition)
        self._clustering = tuple(_FITS[column.type] for column in table.clustering)
        self._bounded = all(column.type in (Type.INT, Type.TIMEUUID) for column in table.clustering)
        self.one_int = self._clustering == (_fits_int,)
        self.key_fits = self._quick()
        self._values = self._fits(table.columns)
        self._statics = self._fits(table.statics)

    def _quick(self) -> Fits:
        """Whether a key surely fits, for the most usual kind of key; others get the whole check."""
        if not self._bounded or len(self._clustering) != 1:
            return lambda key: False
        fit = self._clustering[0]
        if fit is not _fits_int:
            return lambda key: type(key) is tuple and len(key) == 1 and fit(key[0])

        def fits(key: object) -> bool:
            return type(key) is tuple and len(key) == 1 and type(key[0]) is int and LEAST_INT <= key[0] <= MOST_INT

        return fits

    def _fits(self, columns: tuple[Column, ...]) -> tuple[dict[str, Fits], dict[str, Fits]]:
        """By name: what plain writes write, and what compare-and-sets do."""
        conditional = self.table.conditional
        fits = {column.name: _FITS[column.type] for column in columns}
        return (
            {name: fit for name, fit in fits.items() if name not in conditional},
            {name: fit for name, fit in fits.items() if name in conditional},
        )

    def names(self) -> str:
        return ", ".join([*self.columns, *self.statics]) or "none"

    # ---- keys

    def check_partition(self, key: Key) -> None:
        if type(key) is not tuple or len(key) != len(self._partition):
            self._refuse_key(key, self.table.partition, "partition key")
        size = 0
        for fit, part in zip(self._partition, key):  # noqa: B905  # of one length, as was just seen
            if fit is fits_text and type(part) is str and part.isascii() and 0 < len(part) <= MAX_KEY_BYTES:
                size += len(part)  # most parts are such or numbers: looked at without a call
            elif fit is _fits_int and type(part) is int and LEAST_INT <= part <= MOST_INT:
                size += 16
            else:
                if not fit(part) or part == "" or part == b"":
                    self._refuse_key(key, self.table.partition, "partition key")
                size = MAX_KEY_BYTES + 1  # not known: count below
        if size > MAX_KEY_BYTES:
            _check_key_bytes(key)

    def check_key(self, key: Key) -> None:
        if type(key) is not tuple or len(key) != len(self._clustering):
            self._refuse_key(key, self.table.clustering, "key")
        for fit, part in zip(self._clustering, key, strict=True):
            if not fit(part):
                self._refuse_key(key, self.table.clustering, "key")
        if not self._bounded:
            _check_key_bytes(key)

    def check_prefix(self, key: Key, what: str) -> None:
        if type(key) is not tuple or len(key) > len(self._clustering):
            self._refuse_key(key, self.table.clustering, what)
        for fit, part in zip(self._clustering, key, strict=False):
            if not fit(part):
                self._refuse_key(key, self.table.clustering, what)
        if not self._bounded:
            _check_key_bytes(key)

    def check_clear(self, key: Key) -> None:
        if not self._clustering:
            raise Invalid(f"table {self.name} has one row per partition: there is nothing before a key")
        if not key:
            raise Invalid(f"clear_before of table {self.name} names no key: nothing lies before an empty one")
        if len(self.plain) != len(self.columns):
            raise Invalid(
                f"rows of table {self.name} have conditional columns: they cannot be cleared by a plain write"
            )
        self.check_prefix(key, "clear_before")

    def _refuse_key(self, key: object, columns: tuple[Column, ...], what: str) -> NoReturn:
        _check_sizes(key)
        wanted = ", ".join(f"{column.name} {column.type.value}" for column in columns)
        raise Invalid(
            f"{_shown(key)} is no {what} of table {self.name}: it is a tuple of ({wanted})"
            + (", none of them empty" if what == "partition key" else "")
        )

    # ---- values

    def check_change(self, change: Change, drop: bool) -> int:
        """How large the values it writes are."""
        key, expect = change.key, change.expect
        if key is None:
            columns = self.statics
            if not columns:
                raise Invalid(f"table {self.name} has no static columns: a change names a row")
            if expect is ABSENT:
                raise Invalid("the static row cannot be expected to be absent: expect its columns to be None")
        else:
            columns = self.columns
            if key != () or self._clustering:
                self.check_key(key)
            if drop:
                raise Invalid("a compare-and-set that drops its partition changes static columns only")
        if not change.values:
            raise Invalid(f"a change of {key!r} in table {self.name} writes no column: name at least one")
        size = self.check_values(change.values, columns, conditional=True)
        if expect is not None and expect is not ABSENT:
            if not expect:
                raise Invalid("an empty expect is no condition: use None for a change without one")
            self.check_values(expect, columns, conditional=True)
        return size

    def check_values(self, values: Values, columns: dict[str, Column], conditional: bool) -> int:
        """How large they are, as `check_batch` counts."""
        size = 0
        fits = (self._statics if columns is self.statics else self._values)[conditional]
        for name, value in values.items():
            fit = fits.get(name)
            if fit is _fits_int and type(value) is int and LEAST_INT <= value <= MOST_INT:
                size += 8
                continue
            if fit is None or (value is not None and not fit(value)):
                self.refuse_value(name, value, columns, conditional)
            size += len(value) if type(value) is str or type(value) is bytes else 8
        return size

    def refuse_value(self, name: str, value: object, columns: dict[str, Column], conditional: bool) -> NoReturn:
        column = columns.get(name)
        if column is None:
            kind = "static column" if columns is self.statics else "column"
            raise Invalid(f"table {self.name} has no {kind} {name!r}: it has {', '.join(columns) or 'none'}")
        if (name in self.table.conditional) is not conditional:
            how = "plain writes" if conditional else "compare-and-set"
            raise Invalid(f"column {name} of table {self.name} is written by {how} only")
        _check_sizes(value)
        raise Invalid(f"{_shown(value)} does not fit column {name} of table {self.name}, which is {column.type.value}")


# ---- one predicate per type


def fits_text(value: object) -> bool:
    return type(value) is str and (
        len(value) <= MAX_VALUE_BYTES if value.isascii() else 0 <= _utf8_bytes(value) <= MAX_VALUE_BYTES
    )


def _fits_blob(value: object) -> bool:
    return type(value) is bytes and len(value) <= MAX_VALUE_BYTES


def _fits_int(value: object) -> bool:
    return type(value) is int and LEAST_INT <= value <= MOST_INT


def _fits_double(value: object) -> bool:
    return type(value) is float and value == value  # NaN is equal to nothing, so no condition could ever name it


def _fits_bool(value: object) -> bool:
    return value is True or value is False


def fits_timeuuid(value: object) -> bool:
    return type(value) is UUID and value.int >> 76 & 0xF == 1  # the version's place, without the slow property


_FITS: Final[dict[Type, Fits]] = {
    Type.TEXT: fits_text,
    Type.BLOB: _fits_blob,
    Type.INT: _fits_int,
    Type.DOUBLE: _fits_double,
    Type.BOOL: _fits_bool,
    Type.TIMEUUID: fits_timeuuid,
}


def _utf8_bytes(text: str) -> int:
    """How long the text is in UTF-8; -1 when it has none (half of a surrogate pair)."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return -1


def _check_key_bytes(key: Key) -> None:
    size = 0
    for part in key:
        if type(part) is str:
            size += len(part) if part.isascii() else _utf8_bytes(part)
        elif type(part) is bytes:
            size += len(part)
        else:
            size += 16
    if size > MAX_KEY_BYTES:
        raise TooLarge(f"a key has at most {MAX_KEY_BYTES} bytes, not {size}")


def _check_sizes(value: object) -> None:
    """Something did not fit: was it its size?"""
    for part in value if type(value) is tuple else (value,):
        size = _utf8_bytes(part) if type(part) is str else len(part) if type(part) is bytes else 0
        if size > MAX_VALUE_BYTES:
            raise TooLarge(f"a value has at most {MAX_VALUE_BYTES} bytes, not {size}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_ttl(ttl_s: int | None) -> None:
    if ttl_s is not None and (type(ttl_s) is not int or not 1 <= ttl_s <= MAX_TTL_S):
        raise Invalid(f"a time to live is a whole number of seconds from 1 to {MAX_TTL_S}, not {ttl_s!r}")


def _check_timestamp(timestamp_us: int | None) -> None:
    if timestamp_us is not None and (type(timestamp_us) is not int or not 1 <= timestamp_us <= MAX_TIMESTAMP_US):
        raise Invalid(f"a timestamp is a whole number of microseconds from 1 to 2**63 - 1, not {timestamp_us!r}")


_rules: dict[int, Rules] = {}
