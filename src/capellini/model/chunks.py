"""Chunks: what producers of log queues send. A chunk is stored and delivered as it came; nobody between its producer
and its consumer makes an object of a message.

    header (40 bytes) ┊ body ends ┊ attribute ends, if any ┊ bodies ┊ attributes, if any

    header     magic 0xC4 ┊ version 1 ┊ flags (16 bits) ┊ count (32) ┊ size of all (32) ┊ 0 (32) ┊ producer (16 bytes) ┊
               sequence (64)                                                                     all little endian
    ends       count + 1 offsets (32 bits, signed) into the bodies: message i is bodies[ends[i] - ends[0] : ends[i+1] -
               ends[0]]. In columns, so that a thousand messages cost hardly more than one, and that a part of a chunk
               is a chunk whose first offset is not 0. The same as Arrow's binary arrays: Spark reads them as they are.
    attributes of each message one MessagePack map of text to text, or nothing

A block (the messages of one group commit, one row of the store) is one chunk after the other. Producer and sequence
name a chunk, so that it is recognised when it is sent again; without a producer all of it is zero.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import sub
from typing import TYPE_CHECKING, Final

import msgspec

from capellini.model.errors import Invalid, TooLarge
from capellini.model.message import attributes_problem

if TYPE_CHECKING:
    import numpy as np

    Offsets = np.ndarray[tuple[int], np.dtype[np.int32]]

Bytes = bytes | bytearray | memoryview

HEADER: Final = struct.Struct("<BBHIII16sQ")
MAGIC: Final = 0xC4
VERSION: Final = 1
WITH_ATTRIBUTES: Final = 1  # the only flag there is
NO_PRODUCER: Final = bytes(16)
MAX_CHUNK_BYTES: Final = 4 * 1024 * 1024 + 65_536  # one body of the largest kind fits; what is larger is cut by clients
MAX_CHUNK_MESSAGES: Final = 65_536
_END: Final = 4  # bytes of an offset
_FEW: Final = 16  # messages: so few offsets cost more in numpy than without it
_ATTRIBUTES: Final = msgspec.msgpack.Decoder(dict[str, str])
_encode: Final = msgspec.msgpack.Encoder().encode


class Head(msgspec.Struct, frozen=True, gc=False):
    """Of a chunk within a block: where it begins, and what its header says."""

    at: int
    size: int
    count: int
    flags: int
    producer: bytes
    sequence: int


def pack(
    bodies: Sequence[bytes],
    attributes: Sequence[dict[str, str] | None] | None = None,
    producer: bytes = NO_PRODUCER,
    sequence: int = 0,
) -> bytes:
    """A chunk of these messages. `attributes`: one for each body, or None where none has any."""
    ends = _ends(bodies)
    parts = [b"", ends, *bodies]
    flags = 0
    if attributes is not None and any(attributes):
        encoded = [_encode(one) if one else b"" for one in attributes]
        parts = [b"", ends, _ends(encoded), *bodies, *encoded]
        flags = WITH_ATTRIBUTES
    size = HEADER.size + sum(map(len, parts))
    parts[0] = HEADER.pack(MAGIC, VERSION, flags, len(bodies), size, 0, producer, sequence)
    return b"".join(parts)


def cut(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Where to cut messages of these sizes, as (start, end): no run has more bytes than `most`, unless it is one
    message."""
    runs: list[tuple[int, int]] = []
    start = total = 0
    for at, size in enumerate(sizes):
        if at > start and total + size > most:
            runs.append((start, at))
            start, total = at, 0
        total += size
    if sizes:
        runs.append((start, len(sizes)))
    return runs


def _ends(values: Sequence[bytes]) -> bytes:
    if len(values) <= _FEW:
        return struct.pack(f"<{len(values) + 1}i", 0, *accumulate(map(len, values)))
    import numpy as np  # not before it is of use: a third of the time that a small command takes to start

    ends = np.zeros(len(values) + 1, dtype="<i4")
    np.cumsum(np.fromiter(map(len, values), dtype="<i4", count=len(values)), out=ends[1:])
    return ends.tobytes()


def head_of(block: Bytes, at: int = 0) -> Head:
    """Of the chunk that begins there. Raises Invalid for what is none."""
    if len(block) - at < HEADER.size:
        raise Invalid("a chunk is cut within its header")
    magic, version, flags, count, size, zero, producer, sequence = HEADER.unpack_from(block, at)
    if magic != MAGIC or version != VERSION or flags & ~WITH_ATTRIBUTES or zero:
        raise Invalid("this is no chunk of messages, or one of a later version")
    if at + size > len(block) or size < HEADER.size + _END * (count + 1) * (1 + flags):
        raise Invalid(f"a chunk says that it has {size} bytes, which is not so")
    return Head(at, size, count, flags, producer, sequence)


def heads_of(block: Bytes) -> Iterator[Head]:
    """Of each chunk in a block, in order."""
    at = 0
    while at < len(block):
        head = head_of(block, at)
        yield head
        at += head.size


def check(chunk: Bytes, body_limit: int) -> Head:
    """A whole chunk as it came from outside: so that whoever gets it can read it. Raises Invalid or TooLarge."""
    head = head_of(chunk)
    if head.size != len(chunk):
        raise Invalid(f"there are {len(chunk) - head.size} bytes behind a chunk")
    if head.size > MAX_CHUNK_BYTES:
        raise TooLarge(f"a chunk has at most {MAX_CHUNK_BYTES} bytes, not {head.size}: send fewer messages in each")
    if not 0 < head.count <= MAX_CHUNK_MESSAGES:
        raise Invalid(f"a chunk has 1 to {MAX_CHUNK_MESSAGES} messages, not {head.count}")
    if (head.producer == NO_PRODUCER) != (head.sequence == 0):
        raise Invalid(f"a producer's chunks are numbered from 1 on, and others 0: sequence {head.sequence} is neither")
    attribute_bytes = _spread(chunk, head, 1, "attribute")[0] if head.flags & WITH_ATTRIBUTES else 0
    body_bytes, largest = _spread(chunk, head, 0, "body")
    if largest > body_limit:
        raise TooLarge(f"a body has {largest} bytes; this queue takes at most {body_limit}")
    if HEADER.size + _END * (head.count + 1) * (1 + head.flags) + body_bytes + attribute_bytes != head.size:
        raise Invalid("the offsets of a chunk do not fit its size")
    if head.flags & WITH_ATTRIBUTES:
        for attributes in attributes_of(chunk, head):
            if attributes and (problem := attributes_problem(attributes)):
                raise Invalid(problem)
    return head


def _spread(chunk: Bytes, head: Head, column: int, what: str) -> tuple[int, int]:
    """The last offset, and the longest way between two; Invalid unless they rise from 0."""
    ends = _few_offsets(chunk, head, column) if head.count <= _FEW else None
    if ends is not None:
        if ends[0] == 0 and sorted(ends) == list(ends):
            return ends[-1], max(map(sub, ends[1:], ends))
    else:  # compared, not subtracted: a difference of 32 bits can be above 0 although they fall
        marks = _offsets(chunk, head, column)
        if marks[0] == 0 and (marks[1:] >= marks[:-1]).all():
            return int(marks[-1]), int((marks[1:] - marks[:-1]).max())
    raise Invalid(f"the {what} offsets of a chunk do not rise from 0")


def _few_offsets(block: Bytes, head: Head, column: int) -> tuple[int, ...]:
    return struct.unpack_from(f"<{head.count + 1}i", block, head.at + HEADER.size + column * _END * (head.count + 1))


def _offsets(block: Bytes, head: Head, column: int) -> Offsets:
    import numpy as np

    at = head.at + HEADER.size + column * _END * (head.count + 1)
    return np.frombuffer(block, dtype="<i4", count=head.count + 1, offset=at)


def _bodies_at(head: Head) -> int:
    return head.at + HEADER.size + _END * (head.count + 1) * (1 + head.flags)


def bodies_of(block: Bytes, head: Head) -> list[bytes]:
    if head.count <= _FEW:
        few = _few_offsets(block, head, 0)
        at = _bodies_at(head) - few[0]
        places = [at + end for end in few]
    else:
        ends = _offsets(block, head, 0)
        places = (ends + (_bodies_at(head) - int(ends[0]))).tolist()
    data = block if isinstance(block, bytes) else bytes(block)
    return [data[start:end] for start, end in pairwise(places)]


def attributes_of(block: Bytes, head: Head) -> list[dict[str, str] | None]:
    """One for each message; None: it has none. Raises Invalid for what cannot be read."""
    if not head.flags & WITH_ATTRIBUTES:
        return [None] * head.count
    ends, marks = _offsets(block, head, 0), _offsets(block, head, 1)
    at = _bodies_at(head) + int(ends[-1]) - int(ends[0]) - int(marks[0])
    places = (marks + at).tolist()
    view = memoryview(block)
    try:
        return [_ATTRIBUTES.decode(view[start:end]) if end > start else None for start, end in pairwise(places)]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"attributes are a map of text to text: {error}") from None


def part(block: Bytes, head: Head, first: int, count: int) -> bytes:
    """The messages first .. first+count-1 of a chunk, as a chunk."""
    if first == 0 and count == head.count:
        return bytes(memoryview(block)[head.at : head.at + head.size])
    view = memoryview(block)
    ends = _offsets(block, head, 0)
    begin = _bodies_at(head) - int(ends[0])
    pieces: list[bytes | memoryview] = [b"", ends[first : first + count + 1].tobytes()]
    bodies = view[begin + int(ends[first]) : begin + int(ends[first + count])]
    if head.flags & WITH_ATTRIBUTES:
        marks = _offsets(block, head, 1)
        after = _bodies_at(head) + int(ends[-1]) - int(ends[0]) - int(marks[0])
        pieces += [marks[first : first + count + 1].tobytes(), bodies]
        pieces.append(view[after + int(marks[first]) : after + int(marks[first + count])])
    else:
        pieces.append(bodies)
    size = HEADER.size + sum(map(len, pieces))
    pieces[0] = HEADER.pack(MAGIC, VERSION, head.flags, count, size, 0, head.producer, head.sequence)
    return b"".join(pieces)
