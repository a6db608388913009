"""Expiry without consumers: what is older than its queue's `ttl_s` is finished even when nobody gets from the queue.

A get passes over what is too old and finishes it on its way. In a queue that nobody reads there is no such way, and a
time to live would not bound what it holds. So whoever repairs a queue looks at it from its beginning:

    bucket ── what may be had first in it is too old ──▶ visited like a get would, taking nothing ──▶ the next one
           ├─ nothing in it may be had ────────────────▶ the next one
           └─ it is not ───────────────────────────────▶ that is all for now: what was put later is not older

Where consumers are busy this finds nothing, and costs a few reads now and then.
"""

from __future__ import annotations

from typing import Final

from capellini.queues.work.block import Block
from capellini.queues.work.looking import Looking
from capellini.queues.work.offering import Offering, block_in
from capellini.queues.work.place import Place
from capellini.queues.work.reading import CLAIM_BYTES, Reading
from capellini.queues.work.runs import HIDDEN, UNTAKEN, WAITING, Run, Runs, pieces
from capellini.store.interface import Slice
from capellini.store.schema import BUCKETS

LOOK_S: Final = 5.0  # between two looks at a queue
LOOKS_MOST: Final = 64  # buckets looked at in one step...
VISITS_MOST: Final = 8  # ...and visited: their messages are read


class Expiring:
    def __init__(self, place: Place, reading: Reading) -> None:
        self._place = place
        self._reading = reading
        self._offering = Offering(place)  # of its own: gets go on beside it
        self._next_s = 0.0

    async def step(self) -> None:
        """Do what is to be done now; nothing in queues without a time to live."""
        place = self._place
        now_s = place.clock.elapsed_s()
        if not place.options.ttl_s or now_s < self._next_s:
            return
        looking = Looking(place)
        _, next_id, buckets = await looking.unfinished()
        visits = 0
        for bucket in buckets[:LOOKS_MOST]:
            base = bucket * place.size
            runs = tuple(pieces((await looking.seen(bucket)).runs, 0, min(place.size, next_id - base)))
            first = next((run.start for run in runs if _may_be_had(run, place.now_ms())), None)
            if first is None:
                continue
            block = await self._reading.block_of(base + first) or await self._first_written(bucket, runs)
            if block is None:
                continue
            if block.put_at_ms + place.options.ttl_s * 1000 > place.now_ms():
                break
            self._offering.bytes_left = CLAIM_BYTES
            await self._reading.expire(bucket, self._offering)
            visits += 1
            if visits == VISITS_MOST:
                return  # the next step goes on
        self._next_s = now_s + LOOK_S

    async def _first_written(self, bucket: int, runs: Runs) -> Block | None:
        """The block of the first message that may be had, where an id before it was never written: in a queue that
        nobody reads nobody closes that gap."""
        place = self._place
        base = bucket * place.size
        rows = Slice(BUCKETS, (*place.partition, bucket), limit=place.size, columns=("count",))
        for row in (await place.store.read(rows)).rows:
            block = block_in(row)
            for piece in pieces(runs, block.first - base, block.end - base):
                if _may_be_had(piece, place.now_ms()):
                    return await self._reading.block_of(base + piece.start)
        return None


def _may_be_had(run: Run, now_ms: int) -> bool:
    return run.kind in UNTAKEN or (run.kind in (HIDDEN, WAITING) and run.at_ms <= now_ms)
