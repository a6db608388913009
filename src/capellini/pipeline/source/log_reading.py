"""A task that reads part of a log queue: blocks in pages of some megabytes, as Arrow batches.

    page of blocks ──▶ spans (what of each block is wanted) ──▶ a batch of up to BATCH_ROWS messages

Pages are read ahead in a thread, so that a node or a cluster works on the next one while Spark takes the last.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from capellini.pipeline.source.columns import arrow_schema
from capellini.pipeline.source.extents import Range, gone
from capellini.pipeline.source.messages import Span, batch_of
from capellini.pipeline.source.reach import Reach, Record
from capellini.pipeline.source.ways import way_to
from capellini.queues.log.rows import Block, block_in
from capellini.store.interface import Key, Slice
from capellini.store.schema import LOG_BLOCKS

if TYPE_CHECKING:
    import pyarrow as pa

PAGE_ROWS: Final = 1_000  # blocks at most: what a node gives at once
FIRST_ROWS: Final = 8  # before it is known how large blocks are
REST: Final = 1.5  # pages: no more are worth a request of their own
NEEDED: Final = ("count", "confirmed", "put_ms", "chunks")  # of a block; Cassandra sends `sequences` with each
# Of a batch: so many that one costs nothing, so few that it is still in the processor's cache for whoever takes it. As
# many as a chunk of the sink has: what lies in one piece is not copied together.
BATCH_ROWS: Final = 8_192
BATCH_BYTES: Final = 2 * 1024 * 1024


def read_ranges(
    at: str, record: Record, ranges: Sequence[Range], columns: tuple[str, ...], reads_per_s: float | None
) -> Iterator[pa.RecordBatch]:
    """The messages of these ranges, as columns. Raises what `gone` makes when some are there no more."""
    schema = arrow_schema("log", columns)
    spans: list[Span] = []
    of, rows, size = "", 0, 0

    def made() -> pa.RecordBatch:
        same = {"queue": record.name, "generation": record.generation, "extent": of}
        return batch_of(spans, schema, same)

    for wanted, block in ahead(at, record, ranges, reads_per_s):
        if spans and (wanted.extent != of or rows >= BATCH_ROWS or size >= BATCH_BYTES):
            yield made()
            spans, rows, size = [], 0, 0
        of = wanted.extent
        span = Span(max(block.first, wanted.first), min(block.end, wanted.end), block.put_ms, block.chunks, block.first)
        spans.append(span)
        rows, size = rows + span.end - span.first, size + len(block.chunks)
    if spans:
        yield made()


def ahead(at: str, record: Record, ranges: Sequence[Range], reads_per_s: float | None) -> Iterator[tuple[Range, Block]]:
    """The blocks of some ranges, one page read ahead of whoever takes them."""
    with way_to(at, reads_per_s) as way:
        pages = _all_pages(way.reach, record, ranges)
        try:
            coming = way.begin(_next(pages))
            while (page := coming.result()) is not None:
                coming = way.begin(_next(pages))
                yield from ((page[0], block) for block in page[1])
        finally:
            way.begin(pages.aclose()).result()


Page = tuple[Range, list[Block]]


async def _next(pages: AsyncIterator[Page]) -> Page | None:
    return await anext(pages, None)


async def _all_pages(reach: Reach, record: Record, ranges: Sequence[Range]) -> AsyncGenerator[Page]:
    """One range after the other; the first pages of the next ones are read meanwhile."""
    begun: deque[tuple[Range, asyncio.Queue[list[Block] | None], asyncio.Task[None]]] = deque()
    waiting, size = iter(ranges), PageRows(reach.page_bytes)
    try:
        while True:
            for wanted in islice(waiting, reach.abreast - len(begun)):
                pages: asyncio.Queue[list[Block] | None] = asyncio.Queue(1)
                begun.append((wanted, pages, asyncio.create_task(_fill(pages, _pages(reach, record, wanted, size)))))
            if not begun:
                return
            wanted, pages, task = begun[0]
            while (page := await pages.get()) is not None:
                yield wanted, page
            await task  # raises what ended it
            begun.popleft()
    finally:
        for *_, task in begun:
            task.cancel()
        await asyncio.gather(*(task for *_, task in begun), return_exceptions=True)


async def _fill(pages: asyncio.Queue[list[Block] | None], read: AsyncIterator[list[Block]]) -> None:
    try:
        async for page in read:
            await pages.put(page)
    except Exception:
        await pages.put(None)
        raise
    await pages.put(None)


class PageRows:
    """How many blocks a page has: as those before were large. One for all ranges of a task: where extents are small
    each would else begin with a page that is too small, and a request of its own for the rest."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._rows = FIRST_ROWS
        self._messages = 0  # of such a page

    def saw(self, blocks: Sequence[Block]) -> None:
        mean = sum(len(block.chunks) for block in blocks) // len(blocks) + 1
        self._rows = max(1, min(PAGE_ROWS, self._page_bytes // mean))
        self._messages = sum(block.count for block in blocks) * self._rows // len(blocks)

    def of(self, messages: int) -> int:
        """Blocks of the next page, when so many messages are left: what is hardly more than a page is one."""
        return self._rows if messages > self._messages * REST else min(PAGE_ROWS, int(self._rows * REST) + 1)


async def _pages(reach: Reach, record: Record, wanted: Range, size: PageRows) -> AsyncIterator[list[Block]]:
    partition: Key = (record.name, record.generation, wanted.extent)
    number = wanted.first
    after = await _before(reach, partition, number)
    while number < wanted.end:
        limit = size.of(wanted.end - number)
        bounds = Slice(LOG_BLOCKS, partition, after=after, end=(wanted.end,), limit=limit, columns=NEEDED)
        page = await reach.rows.read(bounds)
        blocks = [block_in(row) for row in page.rows]
        found = []
        for block in blocks:
            if block.end <= number:
                continue
            if block.first > number:
                raise await gone(reach, record, wanted.extent, number)
            found.append(block)
            number = block.end
        if found:
            yield found
        if number < wanted.end and not page.more:
            raise await gone(reach, record, wanted.extent, number)
        if blocks:
            after = (blocks[-1].first, blocks[-1].block)
            size.saw(blocks)


async def _before(reach: Reach, partition: Key, number: int) -> Key | None:
    """The key after which the block with that message comes; None: the first of all. Empty blocks share their `first`
    with the one behind, so that the last one that begins before is looked for, and the one before it."""
    if not number:
        return None
    before = Slice(LOG_BLOCKS, partition, end=(number + 1,), limit=8, reverse=True, columns=("count",))
    page = await reach.rows.read(before)
    for row in page.rows:
        first, block = row.key
        count = row.values["count"]
        assert isinstance(first, int) and isinstance(count, int) and isinstance(block, int)
        if first + count <= number:
            return (first, block)
    return None
