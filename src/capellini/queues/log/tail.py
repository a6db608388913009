"""The tail: the newest confirmed blocks of an extent that is written here, in memory.

All groups that are read here read the tail, so that a message which is delivered soon is never read from the store.
Bounded in bytes: the oldest blocks go first, and who still wants them reads the store.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final

from capellini.queues.log.rows import Block

TAIL_BYTES: Final = 8 * 1024 * 1024  # of one extent: some 80,000 small messages, far more than a reader keeps behind


class Tail:
    def __init__(self, most_bytes: int = TAIL_BYTES) -> None:
        self._most_bytes = most_bytes
        self._blocks: deque[Block] = deque()
        self._bytes = 0
        self.end = 0  # the number after the last confirmed message
        self.on_confirmed: list[Callable[[], None]] = []

    def add(self, block: Block) -> None:
        """The next block, now that it is confirmed."""
        self.end = block.end
        self._blocks.append(block)
        self._bytes += len(block.chunks)
        while self._bytes > self._most_bytes and len(self._blocks) > 1:
            self._bytes -= len(self._blocks.popleft().chunks)
        for call in self.on_confirmed:
            call()

    def read(self, number: int, most_bytes: int) -> list[Block] | None:
        """Confirmed blocks from the one that has message `number` on, about so many bytes, one at least. Empty: there
        is nothing from there on yet. None: not in memory (any more): the store has it."""
        if number >= self.end:
            return []
        blocks = self._blocks
        if not blocks or number < blocks[0].first:
            return None
        at = bisect_right(blocks, number, key=lambda block: block.first) - 1
        found: list[Block] = []
        while at < len(blocks) and (not found or most_bytes > 0):
            block = blocks[at]
            found.append(block)
            most_bytes -= len(block.chunks)
            at += 1
        return found

    def clear(self) -> None:
        """What is in the store need not be here: the extent is sealed, or not written here any more."""
        self._blocks.clear()
        self._bytes = 0
