"""Blocks that this node wrote or read lately, so that a claim need not read them again. Bounded by bytes for the whole
node.

A block never changes, so what is here is right; what is not here may still exist. Where it is known to exist, the
shelf says so (`unread`): that is read when it is wanted, without a pause as for what others may have put meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from typing import Final

from capellini.queues.work.block import Block

SHELF_BYTES: Final = 64 * 1024 * 1024
UNREAD_MOST: Final = 10_000  # buckets


class Room:
    """The bytes that all shelves of a node share; the least recently used bucket goes first."""

    def __init__(self, limit: int = SHELF_BYTES) -> None:
        self.limit = limit
        self.used = 0
        self._order: OrderedDict[tuple[int, int], Shelf] = OrderedDict()

    def used_by(self, shelf: Shelf, bucket: int, more: int) -> None:
        self.used += more
        self._order[(id(shelf), bucket)] = shelf
        self._order.move_to_end((id(shelf), bucket))
        while self.used > self.limit and len(self._order) > 1:
            (_, oldest), owner = next(iter(self._order.items()))
            owner.put_away(oldest)

    def freed(self, shelf: Shelf, bucket: int, fewer: int) -> None:
        self.used -= fewer
        self._order.pop((id(shelf), bucket), None)


class Shelf:
    """The blocks of one queue's generation, by bucket."""

    def __init__(self, room: Room, bucket_size: int) -> None:
        self._room = room
        self._size = bucket_size
        self._buckets: dict[int, dict[int, Block]] = {}
        self._firsts: dict[int, list[int]] = {}
        self.unread: dict[int, int] = {}  # by bucket: more blocks are in the store, from this id on

    def add(self, block: Block) -> None:
        bucket = block.first // self._size
        blocks = self._buckets.setdefault(bucket, {})
        if block.first in blocks:
            return
        blocks[block.first] = block
        insort(self._firsts.setdefault(bucket, []), block.first)
        self._room.used_by(self, bucket, len(block.entries) + 200)

    def has(self, bucket: int) -> bool:
        return bucket in self._buckets

    def blocks(self, bucket: int) -> list[Block]:
        """In order of their ids."""
        blocks = self._buckets.get(bucket)
        return [blocks[first] for first in self._firsts[bucket]] if blocks else []

    def holding(self, id: int) -> Block | None:
        """The block that has this message."""
        bucket = id // self._size
        firsts = self._firsts.get(bucket)
        if not firsts:
            return None
        index = bisect_right(firsts, id) - 1
        block = self._buckets[bucket][firsts[index]] if index >= 0 else None
        return block if block is not None and id < block.end else None

    def after(self, id: int) -> int | None:
        """The first id of the next block above this id in its bucket."""
        firsts = self._firsts.get(id // self._size)
        index = bisect_right(firsts, id) if firsts else 0
        return firsts[index] if firsts and index < len(firsts) else None

    def has_more(self, id: int) -> bool:
        """Are blocks in the store, at this id or above it in its bucket, that are not here?"""
        first = self.unread.get(id // self._size)
        return first is not None and id >= first

    def ends_at(self, id: int) -> bool:
        """Does a block end right before this id?"""
        return id % self._size == 0 or self.holding(id - 1) is not None

    def put_away(self, bucket: int) -> None:
        """There is no room for it."""
        self._remove(bucket)
        if len(self.unread) < UNREAD_MOST:
            self.unread[bucket] = bucket * self._size

    def forget(self, bucket: int) -> None:
        """It is of no use any more."""
        self._remove(bucket)
        self.unread.pop(bucket, None)

    def _remove(self, bucket: int) -> None:
        blocks = self._buckets.pop(bucket, None)
        self._firsts.pop(bucket, None)
        if blocks is not None:
            self._room.freed(self, bucket, sum(len(block.entries) + 200 for block in blocks.values()))

    def clear(self) -> None:
        for bucket in list(self._buckets):
            self.forget(bucket)
