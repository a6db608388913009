"""Chunks and columns: a block of a log queue as Arrow arrays, and back. No object is made of a message.

    chunk      header ┊ body ends ┊ attribute ends ┊ bodies ┊ attributes
    array      offsets (the ends) and data (the bodies), where they lie: a chunk is nearly an Arrow array already

Offsets are copied (four bytes a message, so that they are aligned); bodies are not. Attributes are MessagePack maps:
equal ones are found by Arrow, and each distinct one is decoded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capellini.model.chunks import HEADER, WITH_ATTRIBUTES, Head, heads_of
from capellini.model.errors import Invalid

END_BYTES: Final = 4
MAP: Final = pa.map_(pa.string(), pa.string())
_ATTRIBUTES: Final = msgspec.msgpack.Decoder(dict[str, str])
_encode: Final = msgspec.msgpack.Encoder().encode


class Span(msgspec.Struct, frozen=True):
    """The messages first .. end-1 (numbers of the extent) of one block, put at one time."""

    first: int
    end: int
    put_ms: int
    chunks: bytes
    number: int  # of the first message in `chunks`


def batch_of(spans: Sequence[Span], wanted: pa.Schema, same: dict[str, Any]) -> pa.RecordBatch:
    """The messages of these spans, in order. `same`: values that all of them share, by column."""
    pieces = [piece for span in spans for piece in _pieces(span)]
    rows = sum(piece.count for piece in pieces)
    arrays = [_column(field, pieces, spans, rows, same) for field in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


class _Piece(msgspec.Struct, frozen=True):
    """Messages skip .. skip+count-1 of one chunk."""

    data: pa.Buffer
    head: Head
    skip: int
    count: int
    number: int


def _pieces(span: Span) -> Iterable[_Piece]:
    data, number = pa.py_buffer(span.chunks), span.number
    for head in heads_of(span.chunks):
        low, high = max(number, span.first), min(number + head.count, span.end)
        if low < high:
            yield _Piece(data, head, low - number, high - low, low)
        number += head.count


def _column(field: pa.Field, pieces: Sequence[_Piece], spans: Sequence[Span], rows: int, same: dict[str, Any]) -> Any:
    counts = np.fromiter((piece.count for piece in pieces), np.int64, len(pieces))
    match field.name:
        case "number":
            return pa.array(_numbers(pieces, counts, rows))
        case "id":
            return _ids(same["extent"], _numbers(pieces, counts, rows))
        case "put_at":
            each = np.fromiter((span.put_ms * 1000 for span in spans), np.int64, len(spans))
            sizes = np.fromiter((span.end - span.first for span in spans), np.int64, len(spans))
            return pa.array(np.repeat(each, sizes)).view(field.type)
        case "body":
            return _joined([_bodies(piece) for piece in pieces], pa.binary())
        case "attributes":
            if not any(piece.head.flags & WITH_ATTRIBUTES for piece in pieces):
                return pa.nulls(rows, MAP)
            return maps_of(_joined([_attributes(piece) for piece in pieces], pa.binary()))
        case "producer":
            return repeated(pa.array([piece.head.producer for piece in pieces], pa.binary()), counts)
        case "sequence":
            each = np.fromiter((piece.head.sequence for piece in pieces), np.int64, len(pieces))
            return pa.array(np.repeat(each, counts))
        case name:
            return constant(same[name], rows, field.type)


def _numbers(pieces: Sequence[_Piece], counts: Any, rows: int) -> Any:
    starts = np.fromiter((piece.number for piece in pieces), np.int64, len(pieces))
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(rows)


def _ids(extent: str, numbers: Any) -> pa.Array:
    return pc.binary_join_element_wise(f"{extent}:", pa.array(numbers).cast(pa.string()), "")


def _offsets(piece: _Piece, column: int) -> Any:
    head = piece.head
    at = head.at + HEADER.size + column * END_BYTES * (head.count + 1)
    found = np.frombuffer(piece.data, "<i4", piece.count + 1, at + END_BYTES * piece.skip)
    return found.copy()  # where it lies it need not be aligned


def _first_offset(piece: _Piece, column: int) -> int:
    at = piece.head.at + HEADER.size + column * END_BYTES * (piece.head.count + 1)
    return int.from_bytes(piece.data[at : at + END_BYTES], "little", signed=True)


def _last_offset(piece: _Piece, column: int) -> int:
    at = piece.head.at + HEADER.size + END_BYTES * ((column + 1) * (piece.head.count + 1) - 1)
    return int.from_bytes(piece.data[at : at + END_BYTES], "little", signed=True)


def _bodies_at(head: Head) -> int:
    return head.at + HEADER.size + END_BYTES * (head.count + 1) * (1 + head.flags)


def _bodies(piece: _Piece) -> pa.Array:
    return _binary(piece, _offsets(piece, 0), _bodies_at(piece.head) - _first_offset(piece, 0))


def _attributes(piece: _Piece) -> pa.Array:
    if not piece.head.flags & WITH_ATTRIBUTES:
        return constant(b"", piece.count, pa.binary())
    bodies = _last_offset(piece, 0) - _first_offset(piece, 0)
    return _binary(piece, _offsets(piece, 1), _bodies_at(piece.head) + bodies - _first_offset(piece, 1))


def _binary(piece: _Piece, offsets: Any, at: int) -> pa.Array:
    """An array of `piece.count` values whose offsets count from byte `at` of the block."""
    if at < 0:
        raise Invalid("the offsets of a stored chunk lie outside of it")
    data = piece.data.slice(at)
    if int(offsets[-1]) > data.size:
        raise Invalid("the offsets of a stored chunk lie outside of it")
    return pa.BinaryArray.from_buffers(pa.binary(), piece.count, [None, pa.py_buffer(offsets), data])


def _joined(arrays: list[pa.Array], type: pa.DataType) -> pa.Array:
    if not arrays:
        return pa.array([], type)
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def constant(value: Any, rows: int, type: pa.DataType) -> pa.Array:
    """The same value in every row, made by one copy."""
    if pa.types.is_string(type) or pa.types.is_binary(type):
        raw = value.encode() if isinstance(value, str) else value
        offsets = np.arange(0, len(raw) * (rows + 1), len(raw), dtype=np.int32) if raw else np.zeros(rows + 1, np.int32)
        return pa.Array.from_buffers(type, rows, [None, pa.py_buffer(offsets), pa.py_buffer(raw * rows)])
    return pa.repeat(pa.scalar(value, type), rows)


def repeated(values: pa.Array, counts: Any) -> pa.Array:
    """Each value as often as its count says."""
    return values.take(pa.array(np.repeat(np.arange(len(values)), counts)))


# ---- attributes


def maps_of(encoded: pa.Array) -> pa.Array:
    """MessagePack maps as a column; nothing where there are none. Raises Invalid for what cannot be read."""
    distinct = encoded.dictionary_encode()
    try:
        maps = [list(_ATTRIBUTES.decode(each).items()) if each else None for each in distinct.dictionary.to_pylist()]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"attributes are a map of text to text: {error}") from None
    return pa.array(maps, MAP).take(distinct.indices)


def encoded_maps(maps: pa.Array) -> pa.Array | None:
    """The column as MessagePack maps, empty bytes where there are none; None: no message has any."""
    sizes = np.diff(maps.offsets.to_numpy())
    if maps.null_count:
        sizes = np.where(maps.is_valid().to_numpy(zero_copy_only=False), sizes, 0)
    if not sizes.any():
        return None
    if maps.null_count:  # what lies behind a null need not be empty
        maps = pa.array(maps.to_pylist(), maps.type)
    begin, end = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    names = _texts(maps.keys.slice(begin, end - begin))
    values = _texts(maps.items.slice(begin, end - begin))
    pairs = pc.binary_join_element_wise(names, values, b"")
    rows = pa.ListArray.from_arrays(pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32()), pairs)
    heads = pa.array([_map_head(size) for size in range(int(sizes.max()) + 1)], pa.binary()).take(pa.array(sizes))
    return pc.binary_join_element_wise(heads, pc.binary_join(rows, b""), b"")


def _texts(column: pa.Array) -> pa.Array:
    """Each text as MessagePack, each distinct one encoded once."""
    if column.null_count:
        raise Invalid("attributes are a map of text to text: one has no value")
    distinct = column.dictionary_encode()
    return pa.array([_encode(each) for each in distinct.dictionary.to_pylist()], pa.binary()).take(distinct.indices)


def _map_head(size: int) -> bytes:
    """Of a MessagePack map of so many pairs; none is no map at all."""
    if not size:
        return b""
    return bytes([0x80 | size]) if size < 16 else b"\xde" + size.to_bytes(2, "big")
