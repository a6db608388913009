"""Scans of records: whatever way a run of them is decoded, each row is what decoding it alone would give."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capellini.store.cells import JOINED_BYTES, RUN_ROWS, RowCodec
from capellini.store.interface import Column, Row, Type, Value
from capellini.store.ordered import KeyCodec

NOW_US = 1_000
INT_KEY = KeyCodec((Column("k", Type.INT),))
VALUES: dict[Type, st.SearchStrategy[Any]] = {
    Type.TEXT: st.text(st.characters(exclude_categories=("Cs",)), max_size=3),
    Type.BLOB: st.binary(max_size=3),
    Type.INT: st.integers(-(2**63), 2**63 - 1),
    Type.DOUBLE: st.floats(allow_nan=False),
    Type.BOOL: st.booleans(),
    Type.TIMEUUID: st.integers(0, 2**128 - 1).map(lambda bits: UUID(int=bits & ~(0xF << 76) | 1 << 76)),
}


def scanned(codec: RowCodec, records: list[bytes], wanted: tuple[str, ...] | None) -> tuple[list[Row], bool]:
    items = [(b"base" + INT_KEY.encode((number,)), record) for number, record in enumerate(records)]
    return codec.scanner(wanted)(items, len(b"base"), len(items), NOW_US)


def one_by_one(codec: RowCodec, records: list[bytes], wanted: tuple[str, ...] | None) -> list[Row]:
    found = [((number,), codec.live(record, NOW_US, wanted)) for number, record in enumerate(records)]
    return [Row(key, values) for key, values in found if values is not None]


@given(st.data())
def test_a_scan_is_each_row_decoded_by_itself(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(Type)), min_size=1, max_size=4))
    columns = tuple(Column(f"c{at}", kind) for at, kind in enumerate(kinds))
    codec = RowCodec(columns, INT_KEY)
    wanted = data.draw(st.none() | st.lists(st.sampled_from(codec.names), unique=True).map(tuple))
    records = []
    for _ in range(data.draw(st.integers(1, 5))):
        values: dict[str, Value] = {column.name: data.draw(VALUES[column.type]) for column in columns}
        whole = codec.whole(values, 7, data.draw(st.sampled_from([0, 0, 0, NOW_US - 1, NOW_US + 1])))
        assert whole is not None
        part = data.draw(st.sampled_from([None, None, None, codec.names[0]]))
        records.append(whole if part is None else codec.record(codec.cells({part: values[part]}, 7, 0, 1)))
    rows, more = scanned(codec, records, wanted)
    assert rows == one_by_one(codec, records, wanted) and not more


@pytest.mark.parametrize("odd", [0, 1, RUN_ROWS, 2 * RUN_ROWS + 5])
@pytest.mark.parametrize("size", [0, 9, JOINED_BYTES])
def test_one_row_of_another_size_or_form_among_many_alike(odd: int, size: int) -> None:
    codec = RowCodec((Column("n", Type.INT), Column("b", Type.BLOB)), INT_KEY)
    made = [codec.whole({"n": number, "b": bytes([number % 256]) * size}, 7, 0) for number in range(3 * RUN_ROWS)]
    records = [record for record in made if record is not None]
    assert len(records) == 3 * RUN_ROWS
    assert scanned(codec, records, None)[0] == one_by_one(codec, records, None)
    longer = codec.whole({"n": 1, "b": b"x" * (size + 1)}, 7, 0)
    expired = codec.whole({"n": 1, "b": b"x" * max(0, size - 8)}, 7, NOW_US)
    assert longer is not None and expired is not None
    for other in (longer, expired):
        records[odd] = other
        assert scanned(codec, records, None)[0] == one_by_one(codec, records, None)


def test_values_come_back_in_their_types() -> None:
    codec = RowCodec((Column("u", Type.TIMEUUID), Column("t", Type.TEXT)), INT_KEY)
    value: dict[str, Value] = {"u": UUID(int=5 | 1 << 76), "t": "ä"}
    whole = codec.whole(value, 7, 0)
    assert whole is not None
    assert scanned(codec, [whole, whole], None)[0] == [Row((0,), value), Row((1,), value)]
