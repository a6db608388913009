"""Repair: one node per queue, by assignment, follows the readers and gives space back.

    listed `GAPS`, all ids given out ──▶ wait repair_after_s (own clock, from when it was first seen) ──▶ what is still
    not written
                                          never will be a message: voided by compare-and-set
    listed `DONE`                    ──▶ dropped by a conditional drop that leaves a marker naming the void ids ──▶ off
    the list
    older than `ttl_s`               ──▶ finished, though nobody gets it: `expiring`

Why waiting is enough: a put is confirmed only within half of repair_after_s after its ids were asked for, which was
before they were seen given out. Why two repairers (one paused too long) do no harm: every step is a compare-and-set on
the bucket's own state. A late write is not moved: its bucket stays on the list until the gap is closed, so it is
offered where it lies.
"""

from __future__ import annotations

import asyncio
from typing import Final

from capellini.queues.trail import TOKEN, follow, new_name, settle_named, text_of
from capellini.queues.work import pointers as pointing
from capellini.queues.work.block import Block
from capellini.queues.work.bucket import NEVER_MS, standing, voided
from capellini.queues.work.expiring import Expiring
from capellini.queues.work.offering import block_in
from capellini.queues.work.place import MARKER_TTL_S, Dropped, Place, marker_out
from capellini.queues.work.pointers import DONE, DROPPED, GAPS, Pointers
from capellini.queues.work.reading import Reading
from capellini.queues.work.runs import FRESH, VOID, Runs, pieces
from capellini.store.interface import Cas, Change, Slice
from capellini.store.schema import BUCKETS, POINTERS

MOST_PER_STEP: Final = 64  # buckets repaired in one step: a node does other things too
DROPS_PER_STEP: Final = 1_024  # more than readers finish meanwhile, or the list grows as long as they are busy
AT_ONCE: Final = 16  # drops beside each other: they share fsyncs and compare-and-sets of the list
PAGE_ROWS: Final = 64
DROP_ATTEMPTS: Final = 4  # each is refused only by a change that came first
LOOK_AFTER_MS: Final = (
    2_000  # a listed bucket whose time is so long over was visited by nobody: nobody gets from this queue
)


class Repair:
    def __init__(self, place: Place, reading: Reading) -> None:
        self._place = place
        self._reading = reading
        self._expiring = Expiring(place, reading)
        self._first_seen_s: dict[int, float] = {}

    async def step(self) -> int:
        """Do what is to be done now; how many buckets were dropped. Cheap when there is nothing."""
        place = self._place
        pointers = await place.pointers.read()
        done = [bucket for bucket, entry in pointers.listed.items() if entry.kind == DONE][:DROPS_PER_STEP]
        for at in range(0, len(done), AT_ONCE):
            drops = [self._drop(bucket) for bucket in done[at : at + AT_ONCE]]
            for outcome in await asyncio.gather(*drops, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        gaps = [bucket for bucket, entry in pointers.listed.items() if entry.kind == GAPS]
        self._first_seen_s = {bucket: at for bucket, at in self._first_seen_s.items() if bucket in gaps}
        now_s = place.clock.elapsed_s()
        for bucket in sorted(gaps)[:MOST_PER_STEP]:
            first_seen_s = self._first_seen_s.setdefault(bucket, now_s)
            if now_s - first_seen_s >= place.options.repair_after_s:
                await self._close_gaps(bucket)
        overdue_ms = place.now_ms() - LOOK_AFTER_MS
        for bucket, entry in list(pointers.listed.items()):
            if entry.kind not in (DONE, DROPPED, GAPS) and entry.at_ms <= overdue_ms:
                await self._look_again(bucket)
        await self._expiring.step()
        return len(done)

    def rests(self, seconds: float) -> bool:
        """After a step: is nothing to be done for so long, unless this node sees the list change? Where others change
        it, too, it is read to know."""
        place, pointers = self._place, self._place.pointers.seen
        if pointers is None or not pointers.listed:
            return True
        if place.options.ttl_s or not place.store.alone:
            return False
        due_ms = place.now_ms() + int(seconds * 1000) - LOOK_AFTER_MS
        return all(
            entry.kind == DROPPED
            or (entry.kind not in (DONE, GAPS) and (entry.at_ms > due_ms or self._nothing_is_out(bucket)))
            for bucket, entry in pointers.listed.items()
        )

    def _nothing_is_out(self, bucket: int) -> bool:
        """Its time on the list is over, and was that of something that is finished: a get would put it right."""
        runs = self._place.cell(bucket).seen
        return runs is not None and standing(runs, self._place.size).next_ms == NEVER_MS

    async def _close_gaps(self, bucket: int) -> None:
        place = self._place
        try:
            runs = await place.cell(bucket).read()
            written = await self._written(bucket)
            gaps = _gaps(runs, written, bucket * place.size, place.size)
            if gaps:
                done = await place.cell(bucket).change(lambda now: _closed(now, gaps))
                if done:
                    base = bucket * place.size
                    place.guards["unwritten ids voided"] += 1
                    place.events.repaired(
                        place.name, place.generation, [(base + low, high - low) for low, high in done]
                    )
            await self._tell(bucket)
        except Dropped:
            await self._reading.dropped(bucket)

    async def _look_again(self, bucket: int) -> None:
        """Nobody visits: at least notice when everything in it is finished, and moves that somebody left half done."""
        try:
            self._reading.resume_moves(bucket, await self._place.cell(bucket).read())
            await self._tell(bucket)
        except Dropped:
            await self._reading.dropped(bucket)

    async def _tell(self, bucket: int) -> None:
        await self._reading.settled(bucket)

    async def _written(self, bucket: int) -> list[Block]:
        """All blocks of the bucket, without their bodies' weight: count is enough."""
        place = self._place
        blocks: list[Block] = []
        after: tuple[int] | None = None
        while True:
            page = await place.store.read(
                Slice(BUCKETS, (*place.partition, bucket), after=after, limit=PAGE_ROWS, columns=("count",))
            )
            for row in page.rows:
                blocks.append(block_in(row))
            if not page.more or not page.rows:
                return blocks
            after = (blocks[-1].first,)

    async def _drop(self, bucket: int) -> None:
        """Drop a bucket in which everything is finished, if that is still true when it happens."""
        place = self._place
        try:
            runs = await place.cell(bucket).read()
            stands = standing(runs, place.size)
            if not stands.finished:
                place.guards["bucket not finished after all"] += 1
                await place.pointers.change(lambda now: (pointing.reopened(now, bucket, stands.next_ms), None))
                return
            if not await self._drop_if(bucket, finished=True):
                return  # something changed meanwhile: next time
            place.guards["bucket dropped"] += 1
        except Dropped:
            place.guards["bucket was dropped before"] += 1
        await self._reading.dropped(bucket)

    async def _drop_if(self, bucket: int, finished: bool) -> bool:
        """Drop the bucket as it was read, leaving the marker; `finished`: only if all in it is. A drop that is refused
        has learned why: another change, perhaps one whose sender died long ago, came first. False: not dropped."""
        place = self._place
        partition = (*place.partition, bucket)
        values = (await place.store.read(Slice(BUCKETS, partition, limit=0))).static
        for _ in range(DROP_ATTEMPTS):
            cell = place.cell(bucket)
            cell.learn(values)
            runs = cell.seen
            assert runs is not None
            if finished and not standing(runs, place.size).finished:
                return False
            before, name = text_of(values, TOKEN), new_name(place.random)
            voids = tuple((run.start, run.end) for run in runs if run.kind == VOID)
            change = Change(None, {TOKEN: before}, {"dropped": marker_out(voids), TOKEN: follow(before, name)})
            cas = Cas(BUCKETS, partition, (change,), drop=True, ttl_s=MARKER_TTL_S)
            outcome = await settle_named(place.store, place.clock, cas, None, before, name)
            cell.forget()
            if outcome.applied:
                return True
            values = outcome.rows.get(None, {})
        return False

    async def clear(self) -> bool:
        """Drop all buckets of a generation that is over; True when nothing is left but what expires by itself."""
        place = self._place
        pointers = await place.pointers.read()
        next = await place.monoton.read()
        last = (next.id - 1) // place.size if next.id else -1
        left = [*sorted(pointers.listed), *range(pointers.reader, last + 1)]
        todo = [bucket for bucket in dict.fromkeys(left) if not _is_dropped(pointers, bucket)]
        cleared = [await self._clear_bucket(bucket) for bucket in todo[:MOST_PER_STEP]]
        if not all(cleared) or len(todo) > MOST_PER_STEP:
            return False
        await self._let_list_expire()
        return True

    async def _let_list_expire(self) -> None:
        place = self._place
        for row in (await place.store.read(Slice(POINTERS, place.partition, limit=1))).rows:
            before, name = text_of(row.values, TOKEN), new_name(place.random)
            change = Change((), {TOKEN: before}, {**row.values, TOKEN: follow(before, name)})
            cas = Cas(POINTERS, place.partition, (change,), ttl_s=MARKER_TTL_S)
            await settle_named(place.store, place.clock, cas, (), before, name)  # refused: another has done it

    async def _clear_bucket(self, bucket: int) -> bool:
        try:
            if not await self._drop_if(bucket, finished=False):
                return False
        except Dropped:
            self._place.guards["bucket was dropped before"] += 1
        await self._reading.dropped(bucket)
        return True


def _is_dropped(pointers: Pointers, bucket: int) -> bool:
    entry = pointers.listed.get(bucket)
    return entry is not None and entry.kind == DROPPED


def _gaps(runs: Runs, written: list[Block], base: int, size: int) -> list[tuple[int, int]]:
    """Slots that nobody has taken and that are not written."""
    gaps: list[tuple[int, int]] = []
    for piece in pieces(runs, 0, size):
        if piece.kind != FRESH:
            continue
        at = piece.start
        for block in written:
            low, high = block.first - base, block.end - base
            if high <= at or low >= piece.end:
                continue
            if low > at:
                gaps.append((at, low))
            at = max(at, high)
        if at < piece.end:
            gaps.append((at, piece.end))
    return gaps


def _closed(runs: Runs, gaps: list[tuple[int, int]]) -> tuple[Runs, list[tuple[int, int]]]:
    done: list[tuple[int, int]] = []
    for low, high in gaps:
        runs, fresh = voided(runs, low, high)
        done += [(run.start, run.end) for run in fresh]
    return runs, done
