"""Slices and pages on the wire, as a node hands them out to whoever reads very much: MessagePack arrays, and bytes as
they are stored.

    asked    [partition, start, end, after, limit, reverse, columns]     keys are arrays; nil: not given
    page     [[[key, {column: value}], …], {static: value}, more]

UUIDs travel as text: the table says which columns they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from capellini.model.errors import Invalid
from capellini.store.interface import Column, Key, Page, Row, Slice, Table, Type, Value

MOST_ROWS: Final = 1_000  # of one page


class _Asked(msgspec.Struct, frozen=True, array_like=True):
    partition: list[Any]
    start: list[Any] | None = None
    end: list[Any] | None = None
    after: list[Any] | None = None
    limit: int = 100
    reverse: bool = False
    columns: tuple[str, ...] | None = None


_ASKED: Final = msgspec.msgpack.Decoder(_Asked)
_PAGE: Final = msgspec.msgpack.Decoder(tuple[list[tuple[list[Any], dict[str, Any]]], dict[str, Any], bool])
_encode: Final = msgspec.msgpack.Encoder().encode


def encode_slice(slice: Slice) -> bytes:
    bounds = (slice.partition, slice.start, slice.end, slice.after)
    return _encode((*bounds, slice.limit, slice.reverse, slice.columns))


def decode_slice(table: Table, data: bytes) -> Slice:
    """Raises Invalid."""
    try:
        asked = _ASKED.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"this is no question for rows: {error}") from None
    if not 0 <= asked.limit <= MOST_ROWS:
        raise Invalid(f"limit goes from 0 to {MOST_ROWS}, not {asked.limit}")
    partition = _key(table.partition, asked.partition)
    if len(partition) != len(table.partition):
        raise Invalid(f"a partition of {table.name} is named by {len(table.partition)} values, not {len(partition)}")
    start, end, after = (
        None if each is None else _key(table.clustering, each) for each in (asked.start, asked.end, asked.after)
    )
    if start is not None and after is not None:
        raise Invalid("give start or after, not both")
    return Slice(table, partition, start, end, after, asked.limit, asked.reverse, asked.columns)


def encode_page(page: Page) -> bytes:
    return _encode(([(row.key, row.values) for row in page.rows], page.static, page.more))


def decode_page(table: Table, data: bytes) -> Page:
    rows, static, more = _PAGE.decode(data)
    ids = [column.name for column in table.columns if column.type is Type.TIMEUUID]
    return Page([Row(_key(table.clustering, key), _values(ids, values)) for key, values in rows], static, more)


def _values(ids: Sequence[str], values: dict[str, Any]) -> dict[str, Value]:
    for name in ids:
        if name in values:
            values[name] = UUID(values[name])
    return values


_TYPES: Final[dict[Type, type]] = {Type.TEXT: str, Type.BLOB: bytes, Type.INT: int, Type.TIMEUUID: str}


def _key(columns: Sequence[Column], given: Sequence[Any]) -> Key:
    if len(given) > len(columns):
        raise Invalid(f"a key has at most {len(columns)} values, not {len(given)}")
    found: list[Any] = []
    for column, value in zip(columns, given, strict=False):
        if type(value) is not _TYPES[column.type]:
            raise Invalid(f"{column.name} is a {column.type.value}, not {value!r:.60}")
        try:
            found.append(UUID(str(value)) if column.type is Type.TIMEUUID else value)
        except ValueError:
            raise Invalid(f"{column.name} is a time uuid, not {value!r:.60}") from None
    return tuple(found)
