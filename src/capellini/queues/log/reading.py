"""Reading blocks: from the memory of the writer here, from what was read before, or from the store.

    writer here ── its tail: the newest blocks, shared by all groups, no store
    this node   ── a shelf of blocks that were read lately, bounded in bytes, shared by all groups and extents
    the store   ── read ahead in steps of READ_BYTES

How far a reader may go (`top`): to the end of a sealed extent; to what the writer here has confirmed; of a writer
elsewhere to the highest number that any block has said is confirmed. What is in flight is not kept for its sake:
when it is to be delivered again it is read again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from capellini.queues.log.extents import Extents
from capellini.queues.log.place import LogPlace
from capellini.queues.log.rows import Block, read_blocks
from capellini.queues.log.writing import Writers

READ_BYTES: Final = 2 * 1024 * 1024  # of one read from the store: a few blocks of a busy queue, many of a quiet one
SHELF_BYTES: Final = 64 * 1024 * 1024  # of a node, for all its queues
BLOCK_COST: Final = 200  # what a block takes beside its bytes
LOOK_EVERY_S: Final = 0.2  # at the blocks of a writer elsewhere

Where = tuple[str, int, str]  # queue, generation, extent


class Shelf:
    """Blocks that were read lately; those not used for longest go first."""

    def __init__(self, most_bytes: int = SHELF_BYTES) -> None:
        self._most = most_bytes
        self._blocks: OrderedDict[tuple[Where, int], Block] = OrderedDict()
        self._firsts: dict[Where, list[int]] = {}
        self.bytes = 0

    def add(self, where: Where, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if not block.count:
                continue  # nothing is kept of an extent that has no others, not even its name
            firsts = self._firsts.setdefault(where, [])
            key = (where, block.first)
            if key in self._blocks:
                self._blocks.move_to_end(key)
                continue
            self._blocks[key] = block
            insort(firsts, block.first)
            self.bytes += len(block.chunks) + BLOCK_COST
        while self.bytes > self._most and len(self._blocks) > 1:
            (of, first), block = self._blocks.popitem(last=False)
            self._remove(of, first, block)

    def _remove(self, where: Where, first: int, block: Block) -> None:
        self.bytes -= len(block.chunks) + BLOCK_COST
        firsts = self._firsts[where]
        del firsts[bisect_left(firsts, first)]
        if not firsts:
            del self._firsts[where]

    def read(self, where: Where, number: int, most_bytes: int) -> list[Block]:
        """From the block that has `number` on, as far as they follow each other here."""
        firsts = self._firsts.get(where)
        if firsts is None:
            return []
        at = bisect_right(firsts, number) - 1
        found: list[Block] = []
        size = 0
        while 0 <= at < len(firsts) and size < most_bytes:
            block = self._blocks[where, firsts[at]]
            if not (block.first <= number < block.end if not found else block.first == found[-1].end):
                break
            self._blocks.move_to_end((where, block.first))
            found.append(block)
            size += len(block.chunks)
            at += 1
        return found

    def forget(self, where: Where) -> None:
        for first in self._firsts.get(where, [])[:]:
            self._remove(where, first, self._blocks.pop((where, first)))


class Reading:
    """Of one extent, for all groups that are read here."""

    def __init__(self, place: LogPlace, extents: Extents, writers: Writers, shelf: Shelf, extent: str) -> None:
        self._place, self._extents, self._writers, self._shelf = place, extents, writers, shelf
        self.extent = extent
        self._where: Where = (place.name, place.generation, extent)
        self._confirmed = 0  # as blocks have said
        self._looked_s = -1e9

    @property
    def end(self) -> int | None:
        """How many messages there are, once sealed."""
        known = self._extents.get(self.extent)
        return known.end if known is not None and known.sealed else None

    @property
    def gone(self) -> bool:
        return self._extents.get(self.extent) is None

    def top(self) -> int:
        """Numbers below may be read."""
        if (end := self.end) is not None:
            return end
        writer = self._writers.writer(self.extent)
        if writer is not None:
            self._confirmed = max(self._confirmed, writer.confirmed)
        return self._confirmed

    async def look(self, number: int) -> None:
        """What more may be read, where the writer is elsewhere; now and then."""
        now_s = self._place.clock.elapsed_s()
        if self.end is not None or self._writers.writer(self.extent) is not None:
            return
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        self._learn(await read_blocks(self._place, self.extent, number, READ_BYTES))

    def _learn(self, blocks: Sequence[Block]) -> None:
        if blocks:
            self._confirmed = max(self._confirmed, *[block.confirmed for block in blocks])
            self._shelf.add(self._where, blocks)

    def near(self, number: int, most_bytes: int) -> list[Block]:
        """From memory; empty: read."""
        writer = self._writers.writer(self.extent)
        if writer is not None and (found := writer.tail.read(number, most_bytes)):
            return [block for block in found if block.count]
        return self._shelf.read(self._where, number, most_bytes)

    async def read(self, number: int, most_bytes: int) -> list[Block]:
        """From the block that has `number` on, without a gap; about so many bytes, at least one block. Empty: it is
        not there."""
        found = self.near(number, most_bytes)
        if not found:
            blocks = await read_blocks(self._place, self.extent, number, max(READ_BYTES, most_bytes))
            self._learn(blocks)
            found = [block for block in blocks if block.count]
        return found

    async def first_since(self, put_ms: int) -> int:
        """The number from which on messages were put at that time or later, among those that may be read: put times
        never fall within an extent, so that it can be searched."""
        low, high = 0, self.top()
        while low < high:
            middle = (low + high) // 2
            block = (await self._one(middle))[:1]
            if not block or block[0].put_ms >= put_ms:
                high = min(middle, block[0].first) if block else middle
            else:
                low = block[0].end
        return low

    async def _one(self, number: int) -> list[Block]:
        found = self.near(number, 1) or await read_blocks(self._place, self.extent, number, 1)
        return [block for block in found if block.count]

    async def put_ms_of(self, number: int) -> int | None:
        found = await self._one(number)
        return found[0].put_ms if found else None
