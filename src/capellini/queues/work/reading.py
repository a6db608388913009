"""Reading: which bucket to take from, what can be had in it, and keeping the list of buckets true.

A claim visits buckets one after another until it has what it wants:

    1. listed buckets whose time has come (something hidden can be had again), the longest overdue first; and those with
       gaps in which this node wrote since: a claim came after their ids and before their messages
    2. the bucket this node has been reading
    3. the first that may hold fresh messages; when other nodes crowd there, one of the next that nobody has listed

A visit: look what is written (`offering`) ──▶ list the bucket, if this is the first claim in it
──▶ claim in one compare-and-set ──▶ tell the list how the bucket stands now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from capellini.model.errors import StoreError
from capellini.queues.resting import rest
from capellini.queues.work import pointers as pointing
from capellini.queues.work.block import Block
from capellini.queues.work.bucket import (
    NEVER_MS,
    Claimed,
    Offer,
    claim,
    standing,
    stuck_moves,
)
from capellini.queues.work.offering import GAP_MS, LOOK_S, Offering
from capellini.queues.work.place import Dropped, Gone, Place
from capellini.queues.work.pointers import DONE, ENDED, GAPS, OPEN, OVER, Pointers
from capellini.queues.work.runs import Runs

REFRESH_S: Final = 0.3  # how old this node's picture of the list may be
CROWDED_S: Final = 5.0  # how long a refused claim counts as a crowd
AWAY_S: Final = 1.0  # how long a node keeps away from a bucket where it was refused
CLAIM_BYTES: Final = 16 * 1024 * 1024  # what one claim hands out at most, but for a message that is larger by itself
LINGER_S: Final = 0.2  # how long a claim goes on visiting once it has something
AHEAD: Final = 48  # buckets among which a crowd spreads
MAX_VISITS: Final = 24  # per claim: bounds how long one claim takes


class Taken(msgspec.Struct, frozen=True):
    """Messages first .. first+count-1, all in `block`, claimed under `version`."""

    first: int
    count: int
    version: int
    block: Block
    until_ms: int  # hidden until then, as the consumer is told
    until_s: float  # the same on the clock that only rises, counted from before the claim: not handed out after it


class Buried(msgspec.Struct, frozen=True):
    """Messages marked as moving: somebody must carry them. `stuck`: somebody began and did not finish."""

    first: int
    count: int
    stuck: bool


class Reading:
    """`bury` is called with messages that must be carried away, `later` with what nobody waits for."""

    def __init__(
        self, place: Place, bury: Callable[[Buried], None], later: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._place = place
        self._carry_away, self._later = bury, later
        self._offering = Offering(place)
        self._mine: int | None = None
        self._away: dict[int, float] = {}
        self._crowded_until_s = 0.0
        self._exhausted: set[int] = set()  # nothing fresh is left in them
        self._next_read_s = -1e9
        self._unsure: dict[int, tuple[int, float]] = {}  # of claims: when the first ends, when the last was made
        self._making_sure, self.closing = False, asyncio.Event()
        self._used_up = 0  # buckets in which the claim under way found the last fresh message
        self.more = False  # the last claim took nothing and got on: it has not been everywhere yet

    async def claim(self, wanted: int, visibility_ms: int) -> list[Taken]:
        """Up to `wanted` messages that can be had now; to be handed out once the store has synced. Raises Gone when
        this generation is closed and empty of sense."""
        place = self._place
        pointers = await self._refreshed()
        taken: list[Taken] = []
        visited: set[int] = set()
        left = wanted
        began_s = place.clock.elapsed_s()
        self._offering.bytes_left = CLAIM_BYTES
        self._used_up, self.more = 0, False
        while left > 0 and len(visited) < MAX_VISITS and self._offering.bytes_left > 0:
            if taken and place.clock.elapsed_s() - began_s > LINGER_S:
                break  # somebody waits for what was taken, and its time runs
            bucket = self._choose(pointers, visited)
            if bucket is None:
                if await self._grown(visited):
                    continue
                break
            visited.add(bucket)
            got = await self._visit(bucket, left, visibility_ms)
            taken += got
            left -= sum([one.count for one in got])
            pointers = place.pointers.seen or pointers
        self.more = not taken and self._used_up > 0 and len(visited) >= MAX_VISITS
        return taken

    def next_due_ms(self) -> int:
        """When something listed can be had next, as far as this node knows."""
        pointers = self._place.pointers.seen
        if pointers is None:
            return NEVER_MS
        return min((entry.at_ms for entry in pointers.listed.values() if entry.kind not in ENDED), default=NEVER_MS)

    # Choosing

    async def _refreshed(self) -> Pointers:
        cell = self._place.pointers
        if cell.seen is None or self._place.clock.elapsed_s() - cell.seen_at_s > REFRESH_S:
            return await cell.read()
        return cell.seen

    async def _grown(self, visited: set[int]) -> bool:
        """Nothing more to visit: has another node given out ids meanwhile? At most one look each LOOK_S."""
        place = self._place
        now_s = place.clock.elapsed_s()
        if now_s - self._next_read_s < LOOK_S:
            return False
        self._next_read_s = now_s
        before = place.known_next
        next = await place.monoton.read()
        if next.closed:
            raise Gone("this queue was deleted or purged")
        place.known_next = max(before, next.id)
        return place.known_next > before and (place.known_next - 1) // place.size not in visited

    def _choose(self, pointers: Pointers, visited: set[int]) -> int | None:
        place = self._place
        now_ms, now_s = place.now_ms(), place.clock.elapsed_s()
        due = pointing.due(pointers, now_ms, place.promising, visited)
        if due is not None:
            return due
        last = (place.known_next - 1) // place.size if place.known_next else -1
        self._prune(pointers)
        skip = visited | self._exhausted
        mine = self._mine
        if mine is not None and mine not in skip and pointing.maybe_fresh(pointers, mine) and mine <= last:
            return mine
        crowded = now_s < self._crowded_until_s
        first: int | None = None
        spread: list[int] = []
        for bucket in range(pointers.reader, min(last, pointers.reader + max(AHEAD, len(pointers.listed) + 1)) + 1):
            if bucket in skip or not pointing.maybe_fresh(pointers, bucket):
                continue
            if not crowded:
                return bucket
            if first is None:
                first = bucket
            if bucket not in pointers.listed and self._away.get(bucket, 0.0) <= now_s:
                spread.append(bucket)
                if len(spread) >= AHEAD:
                    break
        own = [bucket for bucket in spread if place.shelf.has(bucket)]  # written here: nothing needs to be read
        return place.random.choice(own or spread) if spread else first

    def _prune(self, pointers: Pointers) -> None:
        if len(self._exhausted) > 4 * AHEAD:
            self._exhausted = {bucket for bucket in self._exhausted if bucket >= pointers.reader}

    # Visiting

    async def _visit(self, bucket: int, wanted: int, visibility_ms: int) -> list[Taken]:
        place = self._place
        cell = place.cell(bucket)
        retries, began_s = cell.retries, place.clock.elapsed_s()
        place.promising.discard(bucket)  # first: what is written while it is looked at calls for another visit
        try:
            offers = await self._offering.offers(bucket, wanted)
            claimed, asked_s = Claimed(()), place.clock.elapsed_s()
            if offers:
                claimed = await self._claimed(bucket, offers, wanted, visibility_ms)
            runs = cell.seen if cell.seen is not None else await cell.read()
        except Dropped:
            await self.dropped(bucket)
            return []
        if cell.retries > retries:
            self._crowd(bucket)
        elif claimed.taken:
            self._mine = bucket
        self._bury(bucket, claimed, runs)
        got = await self._taken(bucket, claimed, asked_s + visibility_ms / 1000)
        if satisfied := sum([one.count for one in got]) >= wanted:
            place.promise(bucket)
        telling = self._told(bucket, runs, satisfied)
        if got and place.clock.elapsed_s() - began_s > LINGER_S:
            place.guards["list told after the handing out"] += 1
            self._later(telling)  # somebody waits for what was taken, and its time runs
        else:
            await telling
        return got

    async def expire(self, bucket: int, offering: Offering) -> None:
        """A visit for nobody: what is too old is finished, nothing is taken."""
        place = self._place
        try:
            offers = await offering.offers(bucket, place.size)
            claimed = await self._claimed(bucket, offers, 0, 0) if offers else Claimed(())
            cell = place.cell(bucket)
            runs = cell.seen if cell.seen is not None else await cell.read()
        except Dropped:
            await self.dropped(bucket)
            return
        self._bury(bucket, claimed, runs)
        await self._told(bucket, runs, satisfied=False)

    async def _told(self, bucket: int, runs: Runs, satisfied: bool) -> None:
        try:
            await self._tell(bucket, runs, satisfied)
        except StoreError:  # what was claimed is handed out all the same; its bucket was listed before
            self._place.guards["list not told"] += 1

    def _crowd(self, bucket: int) -> None:
        now_s = self._place.clock.elapsed_s()
        self._crowded_until_s = now_s + CROWDED_S
        self._away[bucket] = now_s + AWAY_S
        if len(self._away) > 4 * AHEAD:
            self._away = {at: until for at, until in self._away.items() if until > now_s}
        if self._mine == bucket:
            self._mine = None

    async def _claimed(self, bucket: int, offers: list[Offer], wanted: int, visibility_ms: int) -> Claimed:
        place = self._place
        until_ms = place.now_ms() + visibility_ms + place.max_skew_ms
        pointers = place.pointers.seen
        entry = pointers.listed.get(bucket) if pointers is not None else None
        if entry is None or entry.at_ms > until_ms:
            pointers = await place.pointers.change(lambda now: _same(pointing.announced(now, bucket, until_ms)))
            if pointing.gone(pointers, bucket):
                raise Dropped(bucket, ())
        limit = place.options.delivery_limit
        try:
            return await place.cell(bucket).change(
                lambda runs: claim(runs, offers, wanted, place.now_ms(), until_ms, limit),
                fresh=False, durable=False, at_once=True,
            )  # fmt: skip
        finally:
            self._doubt(bucket, until_ms)

    def _bury(self, bucket: int, claimed: Claimed, runs: Runs) -> None:
        place = self._place
        base = bucket * place.size
        for run in claimed.dead:
            self._carry_away(Buried(base + run.start, run.end - run.start, False))
        self.resume_moves(bucket, runs)
        if claimed.expired:
            place.events.expired(
                place.name, place.generation, [(base + run.start, run.end - run.start) for run in claimed.expired]
            )

    def resume_moves(self, bucket: int, runs: Runs) -> None:
        """Those that somebody began and did not finish."""
        base = bucket * self._place.size
        for run in stuck_moves(runs, self._place.now_ms()):
            self._carry_away(Buried(base + run.start, run.end - run.start, True))

    async def _taken(self, bucket: int, claimed: Claimed, until_s: float) -> list[Taken]:
        place = self._place
        base = bucket * place.size
        out: list[Taken] = []
        for run in claimed.taken:
            id, end = base + run.start, base + run.end
            while id < end:
                block = await self._offering.block_of(id)
                if block is None:  # its bucket went with its generation, after the claim
                    place.guards["state without a message"] += 1
                    break
                upto = min(end, block.end)
                out.append(Taken(id, upto - id, run.version, block, run.at_ms - place.max_skew_ms, until_s))
                id = upto
        return out

    # Telling the list

    async def _tell(self, bucket: int, runs: Runs, satisfied: bool) -> None:
        """Keep the list true after a visit: nothing more can be had here now, unless it gave all that was wanted."""
        place = self._place
        stands = standing(runs, place.size)
        pointers = place.pointers.seen or await place.pointers.read()
        entry = pointers.listed.get(bucket)
        if stands.fresh == 0:
            self._used_up += bucket not in self._exhausted
            self._exhausted.add(bucket)
            kind, at_ms = (DONE, 0) if stands.finished else (OVER, stands.next_ms)
            if kind == OVER and entry is not None and entry.kind == OPEN and place.now_ms() < entry.at_ms <= at_ms:
                return  # it is found by its time; mostly all of it is acked before, and the list is told but once
        elif satisfied:
            kind, at_ms = (entry.kind if entry is not None else OPEN), stands.next_ms
        else:
            passed = await self._passed(bucket)
            if passed is None and entry is None:
                return
            kind, at_ms = OPEN, stands.next_ms
            if passed or (passed is None and entry is not None and entry.kind != OPEN):
                kind, at_ms = GAPS, min(stands.next_ms, place.now_ms() + GAP_MS)
        if entry is None and kind == OPEN:
            return  # the bucket that takes new messages, without a claim in it: every visit comes here anyway
        if (
            entry is not None
            and entry.kind == kind
            and entry.at_ms <= at_ms
            and (satisfied or entry.at_ms > place.now_ms())
        ):
            return  # the hint may be early: that costs a look, not a delay
        before = await place.pointers.change(
            lambda now: (pointing.seen(now, bucket, kind, at_ms, place.now_ms()), now.listed.get(bucket))
        )
        if kind == DONE:
            place.forget(bucket)
        elif before is not None and at_ms > before.at_ms:
            await self._verify(bucket, at_ms)

    async def _verify(self, bucket: int, at_ms: int) -> None:
        """A hint was raised: did somebody make something visible earlier, after it was looked at?"""
        place = self._place
        try:
            stands = standing(await place.cell(bucket).read(), place.size)
        except Dropped:
            return
        if stands.next_ms < at_ms:
            place.guards["raised hint taken back"] += 1
            await self.lower(bucket, stands.next_ms)

    # Making sure: between what a claim saw of the list and the claim, another node may have looked at the bucket, and
    # have raised its hint beyond what the claim hides.

    def _doubt(self, bucket: int, until_ms: int) -> None:
        ends_ms, _ = self._unsure.get(bucket, (until_ms, 0.0))
        self._unsure[bucket] = min(ends_ms, until_ms), self._place.clock.elapsed_s()
        if not self._making_sure:
            self._making_sure = True
            self._later(self._make_sure())

    async def _make_sure(self) -> None:
        """The list as it is after a claim must not say later than the claim ends. One look for many claims."""
        place = self._place
        try:
            while self._unsure:
                await rest(place.clock, self.closing, REFRESH_S)
                try:
                    await self._look_again()
                except StoreError:
                    if self.closing.is_set():
                        raise
        finally:
            self._making_sure = False

    async def _look_again(self) -> None:
        place = self._place
        pointers = await place.pointers.read()
        known_s = place.pointers.seen_at_s
        for bucket, doubt in list(self._unsure.items()):
            ends_ms, made_s = doubt
            entry = pointers.listed.get(bucket)
            if made_s > known_s:
                continue  # the next look is for it
            if entry is not None and entry.kind not in ENDED and entry.at_ms > ends_ms:
                await self._verify(bucket, entry.at_ms)
            if self._unsure.get(bucket) == doubt:
                del self._unsure[bucket]

    async def lower(self, bucket: int, at_ms: int) -> None:
        """Something in the bucket can be had at `at_ms`: the list must not say later. Called after the change, before
        it is confirmed."""
        place = self._place
        await place.pointers.change(lambda now: (pointing.announced(now, bucket, at_ms), None))

    def finished(self, bucket: int) -> bool:
        """Is all in the bucket finished, as far as this node knows?"""
        runs = self._place.cell(bucket).seen
        return runs is not None and standing(runs, self._place.size).finished

    async def settled(self, bucket: int) -> None:
        """Something in the bucket was finished: was it the last?"""
        if self.finished(bucket):
            await self.ended(bucket)

    async def ended(self, bucket: int) -> None:
        """All in the bucket is finished."""
        place = self._place
        place.forget(bucket)
        await place.pointers.change(lambda now: (pointing.seen(now, bucket, DONE, 0, 0), None))

    async def dropped(self, bucket: int) -> None:
        place = self._place
        place.forget(bucket)
        await place.pointers.change(lambda now: (pointing.removed(now, bucket), None))

    async def _passed(self, bucket: int) -> bool | None:
        """Were all ids of the bucket given out? None: not known, and asked a moment ago."""
        place = self._place
        if place.known_next < (bucket + 1) * place.size:
            now_s = place.clock.elapsed_s()
            if now_s - self._next_read_s < LOOK_S:
                return None
            self._next_read_s = now_s
            next = await place.monoton.read()
            if next.closed:
                raise Gone("this queue was deleted or purged")
            place.known_next = max(place.known_next, next.id)
        return place.known_next >= (bucket + 1) * place.size

    # Blocks

    async def block_of(self, id: int) -> Block | None:
        return await self._offering.block_of(id)


def _same(pointers: Pointers) -> tuple[Pointers, Pointers]:
    return pointers, pointers
