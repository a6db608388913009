"""Blocks as rows: how they are written, read and dropped.

    log_blocks (queue, generation, extent) ▸ (first, block)    count, confirmed, put_ms, chunks; static: sequences

`first` is the number of a block's first message, `block` counts the blocks of the extent: an empty block has the
`first` of the one that follows. A row is written once, by the extent's one writer; a sealer may write the very same row
again. Its timestamp is made of its own put time, so that both write the same, and a drop with a timestamp ahead of all
clocks outdates what comes late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from capellini.queues.log.place import LogPlace
from capellini.store.interface import Batch, Key, Level, Row, Slice, Value
from capellini.store.schema import LOG_BLOCKS

DROP_AHEAD_US: Final = 3_600_000_000  # a drop outdates blocks whose writers' clocks were ahead; nothing comes later
PAGE_ROWS: Final = 512  # of one read at most: blocks of a few messages each
WEIGHT: Final = 0.2  # of the newest page in the average size of a block


class Block(msgspec.Struct, frozen=True, gc=False):
    first: int  # number of its first message
    block: int  # number of the block in its extent
    count: int  # messages; 0: it only says what is confirmed
    confirmed: int  # all numbers below were confirmed when this block was sent
    put_ms: int  # never falls within an extent
    chunks: bytes

    @property
    def end(self) -> int:
        return self.first + self.count


def partition_of(place: LogPlace, extent: str) -> Key:
    return (*place.partition, extent)


def block_out(block: Block) -> dict[str, Value]:
    return {
        "count": block.count,
        "confirmed": block.confirmed,
        "put_ms": block.put_ms,
        "chunks": block.chunks,
    }


def block_in(row: Row) -> Block:
    first, number = row.key
    values = row.values
    count, confirmed, put_ms = values["count"], values["confirmed"], values["put_ms"]
    chunks = values.get("chunks", b"")
    assert isinstance(first, int) and isinstance(number, int) and isinstance(chunks, bytes)
    assert isinstance(count, int) and isinstance(confirmed, int) and isinstance(put_ms, int)
    return Block(first, number, count, confirmed, put_ms, chunks)


async def write_block(place: LogPlace, extent: str, block: Block, level: Level) -> None:
    """Raises Unavailable, or Unknown; harmless to repeat. A store that nobody else writes to needs no timestamp. One
    that every replica should confirm is sent once: another extent does better than asking a replica that is away."""
    await place.store.write(
        Batch(
            LOG_BLOCKS,
            partition_of(place, extent),
            (((block.first, block.block), block_out(block)),),
            timestamp_us=None if place.store.alone else block.put_ms * 1000,
            level=level,
            once=level is Level.ALL,
        )
    )


async def drop_blocks(place: LogPlace, extent: str) -> None:
    """All of an extent, and what of it may land later."""
    stamp_us = None if place.store.alone else int(place.clock.now_s() * 1e6) + DROP_AHEAD_US
    await place.store.drop(LOG_BLOCKS, partition_of(place, extent), timestamp_us=stamp_us)


def unbroken(blocks: Sequence[Block], number: int) -> list[Block]:
    """Those that follow each other without a gap from the one that has `number`, or begins there."""
    found: list[Block] = []
    next_number = number
    for block in blocks:
        if block.end < next_number or (block.end == next_number and block.count):
            continue  # ends before
        if block.first > next_number:
            break
        found.append(block)
        next_number = block.end
    return found


async def read_blocks(
    place: LogPlace, extent: str, number: int, limit_bytes: int, level: Level = Level.QUORUM
) -> list[Block]:
    """From the block that has message `number` on, in order, up to the first gap; about so many bytes, one block with
    messages at least if there is one. What was not confirmed is among them: the caller stops where it must."""
    rows = _page_rows(place, limit_bytes)
    found = unbroken(await _page(place, extent, number, rows, level), number)
    size = sum(len(block.chunks) for block in found)
    full = len(found) >= rows
    while full and size < limit_bytes:
        rows, last = _page_rows(place, limit_bytes - size), found[-1]
        joined = unbroken(await _after(place, extent, last, rows, level), last.end)
        found += joined
        size += sum(len(block.chunks) for block in joined)
        full = len(joined) >= rows
    return found


def _page_rows(place: LogPlace, limit_bytes: int) -> int:
    return max(1, min(PAGE_ROWS, limit_bytes // max(1, place.block_bytes)))


async def _page(place: LogPlace, extent: str, number: int, rows: int, level: Level) -> list[Block]:
    """Beginning at the block that has `number`. Readers mostly go on at the beginning of one: that is looked for
    first."""
    partition = partition_of(place, extent)
    page = await place.store.read(Slice(LOG_BLOCKS, partition, start=(number,), limit=rows, level=level))
    found = _decoded(place, page.rows)
    if found and found[0].first == number:
        return found
    before = await place.store.read(Slice(LOG_BLOCKS, partition, end=(number,), limit=1, reverse=True, level=level))
    return _decoded(place, before.rows) + found


async def _after(place: LogPlace, extent: str, last: Block, rows: int, level: Level) -> list[Block]:
    key = (last.first, last.block)
    page = await place.store.read(Slice(LOG_BLOCKS, partition_of(place, extent), after=key, limit=rows, level=level))
    return _decoded(place, page.rows)


async def last_block(place: LogPlace, extent: str, level: Level = Level.QUORUM) -> Block | None:
    """The one with the highest number that there is, whatever is missing before it."""
    page = await place.store.read(Slice(LOG_BLOCKS, partition_of(place, extent), limit=1, reverse=True, level=level))
    return block_in(page.rows[0]) if page.rows else None


def _decoded(place: LogPlace, rows: Sequence[Row]) -> list[Block]:
    blocks = [block_in(row) for row in rows]
    if blocks:
        mean = sum(len(block.chunks) for block in blocks) / len(blocks) + 64
        place.block_bytes = int(place.block_bytes + WEIGHT * (mean - place.block_bytes)) + 1
    return blocks
