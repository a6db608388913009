"""Offering: what is written in a bucket and may be had, on the shelf of this node or in the store.

    delivered before, and its time has come ──▶ offered first
    never delivered                         ──▶ what the shelf has; where it does not tell, a look into the store, now
                                                and then: other nodes put, too

What is offered is only what may be had: who claims decides by the bucket's state.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from capellini.queues.work import pointers as pointing
from capellini.queues.work.block import Block, decode
from capellini.queues.work.bucket import NEVER_MS, Offer, fresh, ready_again
from capellini.queues.work.place import Place
from capellini.queues.work.runs import Run
from capellini.store.interface import Row, Slice
from capellini.store.schema import BUCKETS

LOOK_S: Final = 0.04  # between two looks into the store for what other nodes have put
LOOKS_KEPT: Final = 4_096  # remembered times of looks; forgotten together, which costs a look each
GAP_MS: Final = 500  # between two looks at a bucket with gaps
READ_ROWS: Final = 8  # blocks in the first page of a look; doubled from page to page
READ_ROWS_MOST: Final = 128
READ_BYTES: Final = 1024 * 1024


class Offering:
    def __init__(self, place: Place) -> None:
        self._place = place
        self.bytes_left = 0  # of the claim under way
        self._looked_s: dict[tuple[int, int], float] = {}

    async def offers(self, bucket: int, wanted: int) -> list[Offer]:
        """What is known to be written and may be had, up to `wanted`; looks into the store where the shelf does not
        tell."""
        place = self._place
        cell = place.cell(bucket)
        base = bucket * place.size
        if cell.seen is None:  # what is learned here tells where to look, which may be further on
            await self._look(bucket, base, (bucket + 1) * place.size, wanted)
        runs = cell.seen if cell.seen is not None else await cell.read()  # forgotten while it was looked at
        offers: list[Offer] = []
        for run in ready_again(runs, place.now_ms()):
            if self.bytes_left <= 0:
                break
            await self._offer_run(base, run, wanted - self._ready(offers), offers)
        for low, high in fresh(runs, place.size):
            await self._offer_fresh(bucket, base + low, base + high, wanted, offers)
            if self._ready(offers) >= wanted or self.bytes_left <= 0:
                break
        return offers

    async def block_of(self, id: int) -> Block | None:
        """The block that holds this id, on the shelf or in the store."""
        return self._place.shelf.holding(id) or await self._fetch(id)

    async def _offer_run(self, base: int, run: Run, wanted: int, offers: list[Offer]) -> None:
        id, end = base + run.start, base + min(run.end, run.start + max(wanted, 0))
        while id < end:
            block = await self.block_of(id)
            if block is None:
                self._place.guards["state without a message"] += 1
                return
            upto = min(end, block.end)
            offers.append(Offer(id - base, upto - base, 0, self._expires(block)))
            self.bytes_left -= block.bytes_of(upto - id)
            if self.bytes_left <= 0:
                return
            id = upto

    async def _offer_fresh(self, bucket: int, id: int, end: int, wanted: int, offers: list[Offer]) -> None:
        place = self._place
        base, left = bucket * place.size, wanted - self._ready(offers)
        while id < end and left > 0 and self.bytes_left > 0:
            block = place.shelf.holding(id)
            after = place.shelf.after(id)
            hole = None if after is None and end % place.size == 0 else id  # something above it is known
            if block is None and (place.shelf.has_more(id) or self._may_look(bucket, offers, hole)):
                await self._look(bucket, id, end if after is None else min(end, after), wanted)
                block = place.shelf.holding(id)
                if block is None and not place.shelf.ends_at(id):
                    block = await self._fetch(id)
            if block is None:
                after = place.shelf.after(id)
                if after is None or after >= end:
                    return
                id = after
                continue
            upto, known = min(end, block.end), len(offers)
            self.bytes_left -= block.bytes_of(upto - id)
            dues = block.dues_ms()
            if dues is None:
                offers.append(Offer(id - base, upto - base, 0, self._expires(block)))
            else:
                expires = self._expires(block)
                skew = place.max_skew_ms
                at = id - base
                for due, same in groupby(dues[id - block.first : upto - block.first]):
                    end_at = at + len(list(same))
                    offers.append(Offer(at, end_at, due + skew if due else 0, expires))
                    at = end_at
            left -= self._ready(offers[known:])
            id = upto

    def _may_look(self, bucket: int, offers: list[Offer], hole: int | None) -> bool:
        """Is it time to ask the store what others have put? A hole below what is known is asked about less often, and
        each apart: one that stays must not take the turn of what lies above. Where something to give is here, what
        others have put can wait a while, but not for ever: something may come due at every claim; and where it is
        known to be missing it is looked for, since this visit puts off the next one."""
        now_s = self._place.clock.elapsed_s()
        key = (bucket, -1 if hole is None else hole)
        every_s = LOOK_S if hole is None and not offers else GAP_MS / 1000
        if len(self._looked_s) > LOOKS_KEPT:
            self._looked_s.clear()
        waits = bool(offers) and not pointing.has_gaps(self._place.pointers.seen, bucket)
        if now_s - self._looked_s.setdefault(key, now_s if waits else -1e9) < every_s:
            return False
        self._looked_s[key] = now_s
        return True

    def _ready(self, offers: list[Offer]) -> int:
        """How many of them can be had now: what is too old cannot, and what lies behind it is wanted."""
        now_ms = self._place.now_ms()
        return sum([offer.end - offer.start for offer in offers if offer.due_ms <= now_ms < offer.expires_ms])

    def _expires(self, block: Block) -> int:
        ttl_s = self._place.options.ttl_s
        return block.put_at_ms + int(ttl_s * 1000) if ttl_s else NEVER_MS

    async def _look(self, bucket: int, id: int, end: int, wanted: int) -> None:
        """Read blocks that begin between `id` and `end` to the shelf, and the bucket's state with them."""
        place = self._place
        cell = place.cell(bucket)
        rows, found, size = READ_ROWS, 0, 0
        after: int | None = None
        while True:
            mark, sent_at_s = cell.mark, place.clock.elapsed_s()
            page = await place.store.read(
                Slice(
                    BUCKETS,
                    (*place.partition, bucket),
                    start=(id,) if after is None else None,
                    after=None if after is None else (after,),
                    end=(end,),
                    limit=rows,
                )
            )
            cell.learn(page.static, mark, sent_at_s)
            for row in page.rows:
                block = block_in(row)
                place.shelf.add(block)
                found += block.count
                size += len(block.entries)
            if not page.more:
                place.shelf.unread.pop(bucket, None)
                return
            after = block_in(page.rows[-1]).first
            place.shelf.unread[bucket] = after + 1
            if found >= wanted or size >= READ_BYTES:
                return
            rows = min(READ_ROWS_MOST, rows * 2)

    async def _fetch(self, id: int) -> Block | None:
        """The block that holds this id, from the store."""
        place = self._place
        page = await place.store.read(
            Slice(BUCKETS, (*place.partition, id // place.size), end=(id + 1,), limit=1, reverse=True)
        )
        for row in page.rows:
            block = block_in(row)
            if block.first <= id < block.end:
                place.shelf.add(block)
                return block
        return None


def block_in(row: Row) -> Block:
    """The block of a row; without entries when they were not read."""
    first, count, value = row.key[0], row.values["count"], row.values.get("block")
    assert isinstance(first, int)
    assert isinstance(count, int)
    return decode(first, count, value) if isinstance(value, bytes) else Block(first, count, 0, 0, b"")
