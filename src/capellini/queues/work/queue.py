"""A work queue in one node: what a caller may do with one generation of it.

Connectionless: any node serves any request, nothing is owned. See `putting`, `reading`, `getting`, `keyed`, `letters`
and `repair` for how.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

import msgspec

from capellini.model.errors import CapelliniError, StoreError, Unknown
from capellini.model.message import Entry, whole_ms
from capellini.queues.work.block import Packed
from capellini.queues.work.bucket import MOVE_AGAIN_MS, Proof, acked, extended, nacked, summoned
from capellini.queues.work.getting import CURRENT, Getting
from capellini.queues.work.keyed import put_keyed
from capellini.queues.work.letters import MOVED_TTL_S, PutMoved, carry, origin_of
from capellini.queues.work.looking import Looking
from capellini.queues.work.place import Dropped, Gone, Place
from capellini.queues.work.putting import Ids, Putting
from capellini.queues.work.reading import Buried, Reading, Taken
from capellini.queues.work.repair import Repair
from capellini.queues.work.runs import Run, Runs

REDRIVE_BATCH: Final = 1_000  # letters looked for at a time


class Held(msgspec.Struct, frozen=True):
    """A consumer's hold on messages first .. first+count-1, all in one bucket, under a version."""

    first: int
    count: int
    version: int


Decide = Callable[[Runs, Proof], tuple[Runs, list[Run]]]


class WorkQueue:
    def __init__(self, place: Place, current: CURRENT, put_moved: PutMoved) -> None:
        self.place = place
        self._put_moved = put_moved
        self._tasks: set[asyncio.Task[Any]] = set()
        self._carried: set[int] = set()  # on their way to or from dead letters, by this node
        self.reading = Reading(place, self._bury, self._spawn)
        self.putting = Putting(place)
        self.getting = Getting(place, self.reading, self._release, current)
        self.repair = Repair(place, self.reading)

    # Putting

    async def put(self, packed: Packed) -> Ids:
        return await self.putting.put(packed)

    async def put_once(self, key: str, packed: Packed) -> tuple[int, bool]:
        return await put_keyed(
            self.place, self.putting, self.reading, f"key:{key}", packed, self.place.options.window_s
        )

    async def put_moved(self, key: str, packed: Packed) -> bool:
        """False: it was here already."""
        return not (await put_keyed(self.place, self.putting, self.reading, key, packed, MOVED_TTL_S, moved=True))[1]

    # Getting

    async def take(self, count: int, wait_s: float, visibility_s: float | None) -> list[Taken]:
        seconds = self.place.options.visibility_s if visibility_s is None else visibility_s
        taken = await self.getting.get(count, wait_s, whole_ms(seconds))
        self._tell(self.place.events.delivered, [((one.first, one.count),) for one in taken], taken)
        return taken

    # Holding

    async def ack(self, held: Sequence[Held]) -> list[list[tuple[int, int]]]:
        """For each, the runs (first, count) that are acked now; what is missing was not held any more."""
        results = await self._decided(held, lambda index: acked)
        self._tell(self.place.events.acked, results, held)
        return results

    async def nack(self, held: Sequence[Held], delays_s: Sequence[float | None]) -> list[int | None]:
        """For each, when it can be had again; None: it was not held any more."""
        ats = [self._nack_at_ms(one, delay) for one, delay in zip(held, delays_s, strict=True)]
        results = await self._decided(held, lambda index: lambda runs, proof: nacked(runs, proof, ats[index]))
        await self._visible_earlier(held, ats, results)
        self._tell(self.place.events.nacked, results, held)
        self.place.woken()
        return [at if runs else None for at, runs in zip(ats, results, strict=True)]

    async def extend(self, held: Sequence[Held], visibilities_s: Sequence[float]) -> list[int | None]:
        """For each, when its visibility ends now; None: it was not held any more."""
        skew_ms = self.place.max_skew_ms
        now_ms = self.place.now_ms()
        ats = [now_ms + whole_ms(seconds) + skew_ms for seconds in visibilities_s]
        results = await self._decided(held, lambda index: lambda runs, proof: extended(runs, proof, ats[index]))
        await self._visible_earlier(held, ats, results)
        self._tell(self.place.events.extended, results, held)
        return [at - skew_ms if runs else None for at, runs in zip(ats, results, strict=True)]

    def _tell(
        self, say: Callable[..., None], changed: Sequence[Sequence[tuple[int, int]]], of: Sequence[Held | Taken]
    ) -> None:
        """One event for all that share a version: a call with a thousand receipts is no thousand events."""
        place = self.place
        if not place.events.kept:
            return
        if len(of) == 1:
            if changed[0]:
                say(place.name, place.generation, changed[0], of[0].version)
            return
        versions: dict[int, list[tuple[int, int]]] = {}
        for one, runs in zip(of, changed, strict=True):
            if runs:
                versions.setdefault(one.version, []).extend(runs)
        for version, runs in versions.items():
            say(place.name, place.generation, neighbours(runs) if len(runs) > 1 else runs, version)

    def _nack_at_ms(self, held: Held, delay_s: float | None) -> int:
        options = self.place.options
        if delay_s is None:
            delay_s = min(options.nack_delay_s * 2.0 ** min(held.version - 1, 40), options.nack_delay_most_s)
        now_ms = self.place.now_ms()  # cut: with a delay one more, or it would be early by what was cut off
        return now_ms + 1 + whole_ms(delay_s) + self.place.max_skew_ms if delay_s else now_ms

    async def _visible_earlier(
        self, held: Sequence[Held], ats: list[int], results: list[list[tuple[int, int]]]
    ) -> None:
        """What can be had earlier than the list says must be on it before anybody hears of it."""
        earliest: dict[int, int] = {}
        for one, at, runs in zip(held, ats, results, strict=True):
            if runs:
                bucket = one.first // self.place.size
                earliest[bucket] = min(at, earliest.get(bucket, at))
        if not earliest:
            return
        try:
            pointers = await self.place.pointers.read()
            for bucket, at in earliest.items():
                entry = pointers.listed.get(bucket)
                if entry is not None and entry.at_ms > at:
                    await self.reading.lower(bucket, at)
        except StoreError as error:
            raise Unknown(f"it was done, but may be offered late: {error.says}") from error

    async def _decided(self, held: Sequence[Held], decide: Callable[[int], Decide]) -> list[list[tuple[int, int]]]:
        """Apply a decision to each hold, grouped by bucket; the runs of ids that it changed, for each."""
        size = self.place.size
        buckets: dict[int, list[int]] = {}
        for index, one in enumerate(held):
            buckets.setdefault(one.first // size, []).append(index)
        results: list[list[tuple[int, int]]] = [[] for _ in held]
        errors: list[StoreError] = []

        async def in_bucket(bucket: int, indexes: list[int]) -> None:
            base = bucket * size
            proofs = [
                (
                    index,
                    Proof(held[index].first - base, held[index].first - base + held[index].count, held[index].version),
                )
                for index in indexes
            ]

            def command(runs: Runs) -> tuple[Runs, list[tuple[int, list[tuple[int, int]]]]]:
                out: list[tuple[int, list[tuple[int, int]]]] = []
                for index, proof in proofs:
                    runs, changed = decide(index)(runs, proof)
                    out.append((index, [(base + run.start, run.end - run.start) for run in changed]))
                return runs, out

            try:
                for index, runs in await self.place.cell(bucket).change(command):
                    results[index] = runs
            except Dropped:
                return  # everything in it is finished: nothing is held
            except StoreError as error:
                errors.append(error)
                return
            if self.reading.finished(bucket):
                self._spawn(self.reading.ended(bucket))

        if len(buckets) == 1:
            ((bucket, indexes),) = buckets.items()
            await in_bucket(bucket, indexes)
        elif buckets:
            await asyncio.gather(*[in_bucket(bucket, indexes) for bucket, indexes in buckets.items()])
        if errors and len(buckets) > 1:
            raise Unknown(f"a part of it may have been done: {errors[0].says}")
        if errors:
            raise errors[0]
        return results

    # In the background

    def _release(self, taken: list[Taken]) -> None:
        """Messages that were claimed and handed to nobody can be had at once."""
        held = [Held(one.first, one.count, one.version) for one in taken]
        self._spawn(self.nack(held, [0.0] * len(held)))

    def _bury(self, buried: Buried) -> None:
        self._spawn(self._carry(buried))

    def _carry(self, buried: Buried) -> Coroutine[Any, Any, int]:
        return carry(self.place, self.reading, buried, self._put_moved, self._carried)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, work: Coroutine[Any, Any, Any]) -> None:
        """Work that nobody waits for: what fails here is found again by its time."""
        try:
            await work
        except CapelliniError as error:
            self.place.guards["background work failed"] += 1
            if not isinstance(error, Gone):  # there is nothing to do any more
                self.place.trouble.say("work in the background failed", error)

    # Dead letters

    async def redrive(self, origin: str, count: int | None) -> int:
        """Move what came from `origin` back to it; how many arrived. This queue is the one that holds the dead
        letters. They are looked for and not taken: a get would count as a delivery of other queues' letters, too, and
        bury them where this queue has a limit of its own. What dies again meanwhile is a new letter, and stays: where
        all that comes back fails at once this would never end."""
        looking = Looking(self.place)
        total, after, end = 0, -1, (await self.place.monoton.read()).id
        while count is None or total < count:
            wanted = REDRIVE_BATCH if count is None else min(REDRIVE_BATCH, count - total)
            letters = [one for one in await looking.peek(wanted, after, origin) if int(one.id) < end]
            if not letters:
                break
            after = int(letters[-1].id)
            total += await self._summon([int(letter.id) for letter in letters])
        self.place.woken()
        return total

    async def redrive_these(self, origin: str, ids: Sequence[int]) -> int:
        """Move those of these letters back to `origin` that came from it and that nobody holds; how many arrived."""
        mine: list[int] = []
        for id in sorted(set(ids)):
            block = await self.reading.block_of(id)
            if block is not None and _from(block.read()[id - block.first], origin):
                mine.append(id)
        total = await self._summon(mine)
        self.place.woken()
        return total

    async def _summon(self, ids: Sequence[int]) -> int:
        """Those of these letters that nobody holds begin their way back, and are carried; how many arrived."""
        now_ms = self.place.now_ms()
        at_ms = now_ms + MOVE_AGAIN_MS
        held = [Held(first, count, 0) for first, count in stretches(ids, self.place.size)]
        marked = await self._decided(
            held, lambda index: lambda runs, proof: summoned(runs, proof.start, proof.end, now_ms, at_ms)
        )
        for bucket in {first // self.place.size for runs in marked for first, _ in runs}:
            await self.reading.lower(bucket, at_ms)  # nobody may have been there before: a crash must not strand them
        return await self._back(marked)

    async def _back(self, marked: Sequence[Sequence[tuple[int, int]]]) -> int:
        ids = [id for runs in marked for first, count in runs for id in range(first, first + count)]
        piles = [Buried(first, count, False) for first, count in stretches(ids, self.place.size)]
        return sum(await asyncio.gather(*[self._carry(pile) for pile in piles]))

    # The end

    async def close(self) -> None:
        """Long polls end; what was begun is finished."""
        self.getting.stop_waiting()
        self.reading.closing.set()
        while self._tasks:
            await asyncio.gather(*list(self._tasks), return_exceptions=True)


def stretches(ids: Iterable[int], size: int) -> list[tuple[int, int]]:
    """Neighbours in one bucket together: (first, count)."""
    found: list[tuple[int, int]] = []
    for id in sorted(ids):
        if found and id == sum(found[-1]) and id % size:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((id, 1))
    return found


def neighbours(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs (first, count) of which none begins where another ends. What was named twice stays so."""
    found: list[tuple[int, int]] = []
    for first, count in sorted(runs):
        if found and first == found[-1][0] + found[-1][1]:
            found[-1] = (found[-1][0], found[-1][1] + count)
        else:
            found.append((first, count))
    return found


def _from(entry: Entry, origin: str) -> bool:
    return entry.origin is not None and origin_of(entry.origin).queue == origin
