"""A task asks for blocks in few pages, whatever the sizes of blocks and extents, and gets every message once."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from capellini.model import chunks
from capellini.model.options import OPTIONS
from capellini.pipeline.source import log_reading
from capellini.pipeline.source.extents import Range
from capellini.pipeline.source.log_reading import FIRST_ROWS, PageRows
from capellini.pipeline.source.reach import Paced, Reach, Record
from capellini.queues.log.rows import Block, block_out
from capellini.store.interface import Page, Row, Slice
from capellini.store.schema import LOG_BLOCKS

pytestmark = pytest.mark.spark
MESSAGES = 10  # of a block
RECORD = Record("q", "log", 1, msgspec.convert({}, OPTIONS["log"]))
CHUNK = chunks.pack([b"x" * 100] * MESSAGES)


class Counted:
    """Extents of so many equal blocks, by name; what was asked for is written down."""

    def __init__(self, blocks: dict[str, int]) -> None:
        self._blocks = blocks
        self.asked: list[Slice] = []

    async def read(self, slice: Slice) -> Page:
        self.asked.append(slice)
        count = self._blocks[str(slice.partition[2])]
        each = [Block(at * MESSAGES, at, MESSAGES, 0, 1, CHUNK) for at in range(count)]
        keyed = [Row((block.first, block.block), block_out(block)) for block in each]
        found = [row for row in keyed if (not slice.after or row.key > slice.after) and row.key < (slice.end or (1e9,))]
        found = found[::-1] if slice.reverse else found
        return Page(found[: slice.limit], {}, more=len(found) >= slice.limit)


def numbers(rows: Counted, ranges: list[Range], page_blocks: int) -> list[tuple[str, int]]:
    async def read() -> list[tuple[str, int]]:
        reach = Reach(rows, page_bytes=page_blocks * (len(CHUNK) + 1))
        found: list[tuple[str, int]] = []
        async for wanted, blocks in log_reading._all_pages(reach, RECORD, ranges):
            for block in blocks:
                low, high = max(block.first, wanted.first), min(block.end, wanted.end)
                found += [(wanted.extent, number) for number in range(low, high)]
        return found

    return asyncio.run(read())


def test_an_extent_of_hardly_more_than_a_page_is_one_request() -> None:
    extents = {f"E{at}": 13 for at in range(5)}
    rows = Counted(extents)
    ranges = [Range(name, 0, 13 * MESSAGES) for name in extents]
    assert numbers(rows, ranges, 10) == [(each.extent, number) for each in ranges for number in range(each.end)]
    # The first one begins before it is known how large blocks are.
    assert len(rows.asked) == 1 + len(extents)


@pytest.mark.parametrize(("first", "end"), [(0, 400), (5, 395), (30, 31), (0, 1), (399, 400)])
@pytest.mark.parametrize("page_blocks", [1, 3, 10, 26, 27, 60])
def test_every_message_comes_once_whatever_the_pages_are(page_blocks: int, first: int, end: int) -> None:
    rows = Counted({"E": 40, "F": 40})
    ranges = [Range("E", first, end), Range("F", first, end)]
    assert numbers(rows, ranges, page_blocks) == [(of.extent, number) for of in ranges for number in range(first, end)]


def test_a_page_is_bounded_also_where_little_is_left() -> None:
    size = PageRows(100 * len(CHUNK))
    assert size.of(1_000_000) == FIRST_ROWS
    size.saw([Block(0, 0, MESSAGES, 0, 1, CHUNK)])
    whole = size.of(1_000_000)
    assert 99 <= whole <= 100 and whole < size.of(int(whole * MESSAGES * 1.4)) <= 1.5 * whole + 1
    size.saw([Block(0, 0, 1, 0, 1, bytes(10**9))])  # none is too large to be asked for
    assert size.of(1_000_000) == 1 and size.of(1) == 2


class Stopped:
    """A clock that stands still, and writes down how long each waits."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def now_s(self) -> float:
        return 100.0

    def elapsed_s(self) -> float:
        return 100.0

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)


def test_reads_that_are_asked_for_together_go_one_after_another() -> None:
    clock, rows = Stopped(), Counted({"e": 1})
    paced = Paced(rows, 2.0, clock)

    async def ask() -> None:
        wanted = Slice(LOG_BLOCKS, ("q", 1, "e"), limit=1)
        await asyncio.gather(*[paced.read(wanted) for _ in range(8)])

    asyncio.run(ask())
    assert len(rows.asked) == 8 and clock.waits == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
