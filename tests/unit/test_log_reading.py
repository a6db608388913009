"""How a task of Spark's reads blocks: few requests, and no more of a block than it needs."""

from __future__ import annotations

import asyncio

from capellini.model.options import LogOptions
from capellini.pipeline.source.extents import Range
from capellini.pipeline.source.log_reading import FIRST_ROWS, REST, _all_pages
from capellini.pipeline.source.reach import Reach, Record
from capellini.store.interface import Page, Row, Slice

BLOCKS = 12  # of an extent
CHUNK = b"x" * 1_000


class Counted:
    """Extents of one message a block."""

    def __init__(self) -> None:
        self.asked: list[Slice] = []

    async def read(self, slice: Slice) -> Page:
        self.asked.append(slice)
        first = 0 if slice.after is None else int(str(slice.after[0])) + 1
        numbers = range(first, min(BLOCKS, first + slice.limit))
        rows = [Row((number, number), {"count": 1, "confirmed": 0, "put_ms": 0, "chunks": CHUNK}) for number in numbers]
        return Page(rows, {}, more=len(rows) >= slice.limit)


def test_what_is_known_of_blocks_is_known_for_the_next_extents_too() -> None:
    rows = Counted()
    reach = Reach(rows, page_bytes=20 * len(CHUNK))
    record = Record("q", "log", 1, LogOptions())

    async def read() -> int:
        ranges = [Range(f"extent {number}", 0, BLOCKS) for number in range(5)]
        return sum([len(blocks) async for _, blocks in _all_pages(reach, record, ranges)])

    assert asyncio.run(read()) == 5 * BLOCKS
    rest = int(19 * REST) + 1  # 19 such blocks are a page
    assert [slice.limit for slice in rows.asked] == [FIRST_ROWS] + [rest] * 5, "one request for each, and one to learn"
    assert all(slice.columns is not None and "sequences" not in slice.columns for slice in rows.asked)
