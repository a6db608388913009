"""Chunks become columns and columns chunks, without a look at single messages: both ways agree with the plain one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from capellini.model import chunks
from capellini.model.errors import Invalid
from capellini.pipeline.sink import chunking
from capellini.pipeline.sink.chunking import check_columns, chunks_of, producer_of
from capellini.pipeline.source.columns import COLUMNS, arrow_schema, chosen
from capellini.pipeline.source.messages import Span, batch_of, encoded_maps, maps_of

pytestmark = pytest.mark.spark
SAME = {"queue": "q", "generation": 3, "extent": "E"}


def plain(block: bytes, first: int) -> list[tuple[int, bytes, dict[str, str]]]:
    """What a consumer gets."""
    found: list[tuple[bytes, dict[str, str] | None]] = []
    for head in chunks.heads_of(block):
        found += zip(chunks.bodies_of(block, head), chunks.attributes_of(block, head), strict=True)
    return [(number, body, attributes or {}) for number, (body, attributes) in enumerate(found, first)]


def in_columns(spans: list[Span], columns: tuple[str, ...] = tuple(COLUMNS["log"])) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = batch_of(spans, arrow_schema("log", columns), SAME).to_pylist()
    return rows


def made(chance: random.Random, count: int) -> bytes:
    bodies = [chance.randbytes(chance.choice((0, 1, 30, 300))) for _ in range(count)]
    attributes = [chance.choice((None, {"a": "1"}, {"a": "2", "ü" * 40: "x" * 300})) for _ in range(count)]
    given = attributes if chance.random() < 0.5 else None
    return chunks.pack(bodies, given, chance.randbytes(16), chance.randrange(99))


@pytest.mark.parametrize("seed", range(20))
def test_columns_of_blocks_are_what_a_consumer_gets(seed: int) -> None:
    chance = random.Random(seed)
    block = b"".join(made(chance, chance.randrange(1, 9)) for _ in range(chance.randrange(1, 6)))
    wanted = plain(block, 50)
    low, high = sorted(chance.choices(range(50, 50 + len(wanted) + 1), k=2))
    rows = in_columns([Span(low, max(high, low), 1_000 * seed, block, 50)])
    found = [(row["number"], row["body"], dict(row["attributes"] or ())) for row in rows]  # type: ignore[call-overload]
    assert found == wanted[low - 50 : high - 50]
    assert all(row["id"] == f"E:{row['number']}" and row["extent"] == "E" and row["generation"] == 3 for row in rows)


def test_put_times_producers_and_sequences_are_those_of_their_blocks_and_chunks() -> None:
    one, other = chunks.pack([b"a", b"b"], None, b"p" * 16, 7), chunks.pack([b"c"])
    rows = in_columns([Span(0, 2, 5_000, one, 0), Span(2, 3, 9_000, other, 2)])
    assert [row["put_at"].timestamp() for row in rows] == [5.0, 5.0, 9.0]  # type: ignore[attr-defined]
    assert [(row["producer"], row["sequence"]) for row in rows] == [(b"p" * 16, 7)] * 2 + [(bytes(16), 0)]


def test_a_part_of_a_chunk_is_read_as_such() -> None:
    whole = chunks.pack([b"a", b"bb", b"ccc"], [{"x": "1"}, None, {"y": "2"}])
    part = chunks.part(whole, chunks.head_of(whole), 1, 2)
    rows = in_columns([Span(0, 2, 0, part, 0)], ("body", "attributes"))
    assert rows == [{"body": b"bb", "attributes": None}, {"body": b"ccc", "attributes": [("y", "2")]}]


@pytest.mark.parametrize("size", [0, 1, 15, 16, 40])
def test_attributes_are_encoded_as_messagepack_has_them(size: int) -> None:
    given = [{f"name {at}": "v" * at for at in range(size)}, {}, {"a": "b"}]
    column = pa.array([list(each.items()) for each in given], pa.map_(pa.string(), pa.string()))
    encoded = encoded_maps(column)
    assert encoded is not None
    assert [dict(each or ()) for each in maps_of(encoded).to_pylist()] == given
    sliced = encoded_maps(column.slice(2))
    assert sliced is not None and sliced.to_pylist() == encoded.to_pylist()[2:]


def test_no_attributes_are_no_column() -> None:
    type = pa.map_(pa.string(), pa.string())
    assert encoded_maps(pa.array([None, []], type)) is None
    mixed = encoded_maps(pa.array([None, [("a", "b")]], type))
    assert mixed is not None and [dict(each or ()) for each in maps_of(mixed).to_pylist()] == [{}, {"a": "b"}]


# ---- what makes a retried task recognisable


def cut(table: pa.Table, chance: random.Random) -> Iterator[pa.RecordBatch]:
    at = 0
    while at < table.num_rows:
        size = chance.randrange(1, 400)
        yield from table.slice(at, size).combine_chunks().to_batches()
        at += size


@pytest.mark.parametrize("seed", range(5))
def test_the_same_rows_give_the_same_chunks_however_they_are_batched(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunking, "CHUNK_MESSAGES", 64)
    monkeypatch.setattr(chunking, "CHUNK_BYTES", 4_000)
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.choice((1, 20, 200, 5_000))) for _ in range(1_000)]
    maps = pa.array([[("n", str(at))] if at % 3 else None for at in range(1_000)], pa.map_(pa.string(), pa.string()))
    table = pa.table({"body": pa.array(bodies, pa.binary()), "attributes": maps})
    one, other = (list(chunks_of(cut(table, random.Random(turn)), b"p" * 16)) for turn in (1, 2))
    assert one == other
    assert [chunks.head_of(chunk).sequence for chunk, *_ in one] == list(range(1, len(one) + 1))
    found = [each for chunk, *_ in one for each in plain(chunk, 0)]
    assert [body for _, body, _ in found] == bodies
    assert [attributes for *_, attributes in found] == [{"n": str(at)} if at % 3 else {} for at in range(1_000)]
    for chunk, count, _ in one:
        assert chunks.check(chunk, 10_000).count == count
    cut_short = [chunk for chunk, _, full in chunks_of(cut(table.slice(0, 500), chance), b"p" * 16) if full]
    assert cut_short == [chunk for chunk, *_ in one][: len(cut_short)] and len(cut_short) > 3


def test_producers_differ_by_write_batch_and_part() -> None:
    names = {producer_of(*parts) for parts in (("a", 1, 2), ("a", 12, ""), ("a", 1, 3), ("b", 1, 2), ("a1", "", 2))}
    assert len(names) == 5 and {len(name) for name in names} == {16}


def test_wrong_columns_are_said() -> None:
    with pytest.raises(Invalid, match="no column body"):
        check_columns([("value", "string")], "log")
    with pytest.raises(Invalid, match="column body is binary or string"):
        check_columns([("body", "bigint")], "log")
    with pytest.raises(Invalid, match="takes no column 'key'"):
        check_columns([("body", "string"), ("key", "string")], "log")
    with pytest.raises(Invalid, match="no column of log"):
        chosen("log", "body,haunted")
    with pytest.raises(Invalid, match="a body is null"):
        list(chunks_of(iter([pa.RecordBatch.from_pydict({"body": pa.array([b"a", None])})]), b"p" * 16))
