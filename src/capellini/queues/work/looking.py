"""Looking without taking: peek, statistics, and where a message is. Bounded reads, no compare-and-set.

What became of a finished message is not written down by itself. It follows from what is: a move leaves its key row in
the queue it went to (letters.py), only what was never delivered and is finished expired, and the rest was acked, unless
its time to live has passed as well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from capellini.model.errors import NotFound
from capellini.model.message import MAX_PAGE_BYTES, Peeked
from capellini.model.options import WorkOptions
from capellini.model.service import BucketView, MessageView, PointersView
from capellini.queues.work.block import Block
from capellini.queues.work.bucket import NEVER_MS, OFFERED, standing
from capellini.queues.work.keyed import ALL_GENERATIONS, named_in
from capellini.queues.work.letters import Origin, move_key, origin_of
from capellini.queues.work.offering import block_in
from capellini.queues.work.place import Place, marker_in
from capellini.queues.work.pointers import DONE, DROPPED, NAMES, Pointers
from capellini.queues.work.runs import FINISHED, HIDDEN, TIMED, UNTAKEN, VOID, WAITING, Run, Runs, decode, pieces
from capellini.queues.work.runs import NAMES as STATE_NAMES
from capellini.store.interface import Slice
from capellini.store.schema import BUCKETS, KEYS

LOOK_BUCKETS: Final = 50  # statistics count in so many buckets, and estimate beyond
PAGE_ROWS: Final = 32  # blocks read at a time, at most...
READ_BYTES: Final = 1024 * 1024  # ...and fewer where they are large

GenerationOf = Callable[[str], Awaitable[int | None]]  # of a queue by name; None: there is no such queue


class Counted(NamedTuple):
    ready: int
    in_flight: int
    delayed: int
    oldest_put_ms: int | None
    exact: bool


class Seen(NamedTuple):
    """A bucket as a plain read shows it."""

    runs: Runs
    voided: tuple[tuple[int, int], ...] | None  # None: it is not dropped


class _Page:
    """What a look has found so far."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._bytes = 0
        self.found: list[Peeked] = []

    def add(self, message: Peeked) -> None:
        self.found.append(message)
        self._bytes += len(message.body)

    @property
    def full(self) -> bool:
        return len(self.found) >= self._count or self._bytes >= MAX_PAGE_BYTES


class Looking:
    def __init__(self, place: Place) -> None:
        self._place = place

    async def unfinished(self) -> tuple[Pointers, int, list[int]]:
        """The list, the next id, and the numbers of all buckets that are not gone, in order."""
        place = self._place
        pointers = await place.pointers.read()
        next = (await place.monoton.read()).id
        place.known_next = max(place.known_next, next)
        last = (next - 1) // place.size if next else -1
        listed = [bucket for bucket, entry in pointers.listed.items() if entry.kind != DROPPED]
        gone = {bucket for bucket, entry in pointers.listed.items() if entry.kind == DROPPED}
        fresh = [bucket for bucket in range(pointers.reader, last + 1) if bucket not in gone]
        return pointers, next, sorted({*listed, *fresh})

    async def seen(self, bucket: int) -> Seen:
        place = self._place
        page = await place.store.read(Slice(BUCKETS, (*place.partition, bucket), limit=0))
        state, marker = page.static.get("state"), page.static.get("dropped")
        return Seen(
            decode(state) if isinstance(state, bytes) else (),
            marker_in(marker) if isinstance(marker, bytes) else None,
        )

    async def count(self) -> Counted:
        place = self._place
        pointers, next, all_buckets = await self.unfinished()
        done = {bucket for bucket, entry in pointers.listed.items() if entry.kind == DONE}
        buckets = [bucket for bucket in all_buckets if bucket not in done]  # those only wait to be dropped
        now_ms = place.now_ms()
        total: Counter[str] = Counter()
        oldest: int | None = None
        ids = messages = 0
        for bucket in buckets[:LOOK_BUCKETS]:
            assigned = min(place.size, next - bucket * place.size)
            runs, written, dues = await self._states(bucket)
            total += census(runs, written, dues, assigned, now_ms)
            ids += assigned
            messages += sum(end - start for start, end in written)
            if oldest is None:
                oldest = await self._oldest(bucket, runs, assigned)
        rest = buckets[LOOK_BUCKETS:]
        if rest:  # not every id became a message, least of all where nodes compete for them
            total["ready"] += sum(min(place.size, next - bucket * place.size) for bucket in rest) * messages // ids
        return Counted(total["ready"], total["in_flight"], total["delayed"], oldest, not rest)

    async def _states(self, bucket: int) -> tuple[Runs, list[tuple[int, int]], dict[int, int]]:
        """The states of a bucket's messages, the stretches of slots that are written, and when those are due whose
        delay the states do not tell yet, by slot."""
        place = self._place
        columns = ("count", "delayed", "state")
        page = await place.store.read(Slice(BUCKETS, (*place.partition, bucket), limit=place.size, columns=columns))
        state = page.static.get("state")
        runs = decode(state) if isinstance(state, bytes) else ()
        base = bucket * place.size
        blocks = [block_in(row) for row in page.rows]
        written = [(block.first - base, block.end - base) for block in blocks]
        unknown = [
            bool(row.values.get("delayed")) and any(piece.kind in UNTAKEN for piece in pieces(runs, *stretch))
            for row, stretch in zip(page.rows, written, strict=True)
        ]
        return runs, written, await self._dues(bucket, [block.first for block in blocks], unknown)

    async def _dues(self, bucket: int, firsts: Sequence[int], unknown: Sequence[bool]) -> dict[int, int]:
        """When messages are due whose delay no state tells yet, by slot: those of blocks that are marked `unknown`.
        Neighbours are read together, a few at first: their bodies come with them."""
        place = self._place
        base = bucket * place.size
        dues: dict[int, int] = {}
        at, rows = 0, 1
        while at < len(firsts):
            near = next((n for n, is_wanted in enumerate(unknown[at : at + rows]) if not is_wanted), rows)
            if not near:
                at += 1
                continue
            blocks, _ = await self._blocks(bucket, firsts[at] - 1, near)
            if not blocks:
                break  # the bucket was dropped meanwhile
            for block in blocks:
                dues.update(enumerate(block.dues_ms() or (), block.first - base))
            at = bisect_right(firsts, blocks[-1].first)
            large = sum(len(block.entries) for block in blocks) > READ_BYTES
            rows = max(1, rows // 2) if large else min(PAGE_ROWS, rows * 4)
        return dues

    async def _oldest(self, bucket: int, runs: Runs, assigned: int) -> int | None:
        base = bucket * self._place.size
        for piece in pieces(runs, 0, assigned):
            if piece.kind not in (FINISHED, VOID):
                page = await self._place.store.read(
                    Slice(
                        BUCKETS, (*self._place.partition, bucket), end=(base + piece.start + 1,), limit=1, reverse=True
                    )
                )
                for row in page.rows:
                    block = block_in(row)
                    if block.first <= base + piece.start < block.end:
                        return block.put_at_ms
        return None

    async def peek(self, count: int, after: int, origin: str | None = None) -> list[Peeked]:
        """Messages that are not finished, above the id `after`, and about MAX_PAGE_BYTES of them at most; with
        `origin`: only those that came from that queue."""
        place = self._place
        _, _, buckets = await self.unfinished()
        page = _Page(count)
        for bucket in buckets:
            if (bucket + 1) * place.size - 1 <= after:
                continue
            runs = (await self.seen(bucket)).runs
            start, rows, more = None, 1, True
            while more:
                blocks, more = await self._blocks(bucket, start, rows)
                for block in blocks:
                    self._peek_block(block, runs, after, origin, page)
                    if page.full:
                        return page.found
                start = blocks[-1].first if blocks else start
                large = sum(len(block.entries) for block in blocks) > READ_BYTES
                rows = max(1, rows // 2) if large else min(PAGE_ROWS, rows * 4)
        return page.found

    async def _blocks(self, bucket: int, after: int | None, rows: int) -> tuple[list[Block], bool]:
        place = self._place
        page = await place.store.read(
            Slice(BUCKETS, (*place.partition, bucket), after=None if after is None else (after,), limit=rows)
        )
        return [block_in(row) for row in page.rows], page.more and bool(page.rows)

    def _peek_block(self, block: Block, runs: Runs, after: int, origin: str | None, page: _Page) -> None:
        base = block.first // self._place.size * self._place.size
        entries = block.read()
        now_ms = self._place.now_ms()
        for piece in pieces(runs, block.first - base, block.end - base):
            if piece.kind in (FINISHED, VOID):
                continue
            for slot in range(piece.start, piece.end):
                id = base + slot
                entry = entries[id - block.first]
                if id <= after or (
                    origin is not None and (not entry.origin or origin_of(entry.origin).queue != origin)
                ):
                    continue
                if page.full:
                    return
                state, at_ms = _state(piece, block.put_at_ms + entry.delay_ms if entry.delay_ms else 0, now_ms)
                page.add(
                    Peeked(
                        id=str(id),
                        state=state,
                        body=entry.body,
                        attributes=entry.attributes or {},
                        put_at=block.put_at_ms / 1000,
                        deliveries=piece.version,
                        visible_at=at_ms / 1000 if at_ms > now_ms else None,
                        origin=entry.origin or "",
                    )
                )

    async def buckets(self, limit: int) -> list[BucketView]:
        place = self._place
        pointers, next, numbers = await self.unfinished()
        now_ms = place.now_ms()
        views: list[BucketView] = []
        for bucket in numbers[:limit]:
            runs, written, dues = await self._states(bucket)
            found = census(runs, written, dues, min(place.size, next - bucket * place.size), now_ms)
            entry = pointers.listed.get(bucket)
            next_ms = standing(runs, place.size).next_ms
            views.append(
                BucketView(
                    bucket=bucket,
                    first=bucket * place.size,
                    size=place.size,
                    written=sum(high - low for low, high in written),
                    counts=dict(found),
                    next_visible_at=None if next_ms == NEVER_MS else next_ms / 1000,
                    listed=NAMES[entry.kind] if entry is not None else "unlisted",
                )
            )
        return views

    async def pointers(self, repaired_by: str | None) -> PointersView:
        place = self._place
        pointers, next, _ = await self.unfinished()
        return PointersView(
            reader=pointers.reader,
            repair=pointers.repair,
            invisibility=pointers.invisibility,
            last=(next - 1) // place.size if next else 0,
            next_id=next,
            repaired_by=repaired_by,
            entries=[
                (bucket, NAMES[entry.kind], None if entry.at_ms in (0, NEVER_MS) else entry.at_ms / 1000)
                for bucket, entry in sorted(pointers.listed.items())
            ],
        )

    async def message(self, id: int, generation_of: GenerationOf) -> MessageView:
        place = self._place
        _, next_id, unfinished = await self.unfinished()
        if not 0 <= id < next_id:
            raise NotFound(f"{place.name} has not given out id {id}: the next one is {next_id}")
        bucket, slot = id // place.size, id % place.size
        seen = await self.seen(bucket)
        if seen.voided is not None or bucket not in unfinished:
            if any(low <= slot < high for low, high in seen.voided or ()):
                return MessageView(str(id), bucket, "void", 0, None, None, None, _SAYS["void"])
            moved_to = await self._moved_to(id, (place.options.dead_letters,), generation_of)
            state, says = _gone(moved_to, place.options)
            return MessageView(str(id), bucket, state, 0, None, None, None, says, moved_to)
        (piece,) = pieces(seen.runs, slot, slot + 1)
        page = await place.store.read(Slice(BUCKETS, (*place.partition, bucket), end=(id + 1,), limit=1, reverse=True))
        blocks = [block_in(row) for row in page.rows]
        block = next((block for block in blocks if block.first <= id < block.end), None)
        view = _view(id, bucket, piece, block, place.now_ms())
        if piece.kind != FINISHED or block is None:
            return view
        origin = block.read()[id - block.first].origin
        targets = (place.options.dead_letters, origin_of(origin).queue if origin else "")
        moved_to = await self._moved_to(id, targets, generation_of)
        state, says = ended(piece.version, block.put_at_ms, place.options, any(targets), moved_to, place.now_ms())
        return msgspec.structs.replace(view, state=state, says=says, moved_to=moved_to)

    async def _moved_to(self, id: int, targets: Iterable[str], generation_of: GenerationOf) -> str:
        """Where a message of this queue is now, if a move's key row tells; else empty."""
        place = self._place
        key = move_key(Origin(place.name, place.generation, id))
        for target in filter(None, targets):
            generation = await generation_of(target)
            if generation is None:
                continue
            page = await place.store.read(Slice(KEYS, (target, ALL_GENERATIONS, key), limit=1))
            for row in page.rows:
                there, now = named_in(row.values, generation)
                if there == generation:  # else it went with what was purged
                    return str(Origin(target, generation, now))
        return ""


def census(
    runs: Runs, written: Sequence[tuple[int, int]], dues: Mapping[int, int], assigned: int, now_ms: int
) -> Counter[str]:
    """How many of the ids that were given out are in which state now."""
    found: Counter[str] = Counter()
    for piece in pieces(runs, 0, assigned):
        size = piece.end - piece.start
        if piece.kind in UNTAKEN:
            there = sum(max(0, min(piece.end, high) - max(piece.start, low)) for low, high in written)
            waiting = sum(1 for slot, due_ms in dues.items() if piece.start <= slot < piece.end and due_ms > now_ms)
            found += Counter(ready=there - waiting, delayed=waiting, unwritten=size - there)
        elif piece.kind in (HIDDEN, WAITING) and piece.at_ms <= now_ms:
            found["ready"] += size
        elif piece.kind in TIMED and piece.kind != HIDDEN:
            found["delayed"] += size
        else:
            found[STATE_NAMES[piece.kind]] += size
    return found


def _state(piece: Run, due_ms: int, now_ms: int) -> tuple[str, int]:
    at_ms = due_ms if piece.kind in UNTAKEN else piece.at_ms
    if at_ms <= now_ms:
        return "ready", 0
    return ("in_flight" if piece.kind == HIDDEN else "delayed"), at_ms


def ended(
    version: int, put_at_ms: int, options: WorkOptions, could_move: bool, moved_to: str, now_ms: int
) -> tuple[str, str]:
    """What became of a finished message, as its state and a sentence. "finished": it cannot be told apart any more."""
    if moved_to:
        return "moved", _moved(moved_to)
    if version == 0:
        return "expired", f"it expired before anybody got it: ttl_s is {options.ttl_s:g}"
    if options.ttl_s and put_at_ms + options.ttl_s * 1000 <= now_ms:
        return "finished", f"it was acked, or expired after delivery {version}: it was put more than ttl_s ago"
    if could_move and (not options.delivery_limit or version >= options.delivery_limit):
        return "acked", f"it was acked at delivery {version}: where it could have moved to there is no trace of it"
    return "acked", f"it was acked at delivery {version}"


def _gone(moved_to: str, options: WorkOptions) -> tuple[str, str]:
    """The same, of a bucket that was dropped."""
    if moved_to:
        return "moved", _moved(moved_to)
    how = "acked or expired" if options.ttl_s else "acked"
    return "finished", f"it was {how}, and its bucket was dropped; a dead letter that was sent back looks the same"


def _moved(moved_to: str) -> str:
    where = origin_of(moved_to)
    return f"it was moved to {where.queue}, where it got id {where.id}"


_SAYS: Final = {
    "ready": "it can be had now",
    "in_flight": "a consumer has it until its visibility ends",
    "delayed": "it waits for its time",
    "finished": "it is finished, and its bytes are gone",
    "void": "its id was never used",
    "unwritten": "its id was given out and nothing is written under it (yet)",
    "moving": "it is on its way to the dead letters",
    "returning": "it is on its way back from the dead letters",
}


def _view(id: int, bucket: int, piece: Run, block: Block | None, now_ms: int) -> MessageView:
    entry = block.read()[id - block.first] if block is not None else None
    if piece.kind in OFFERED and block is not None and entry is not None:
        state, at_ms = _state(piece, block.put_at_ms + entry.delay_ms if entry.delay_ms else 0, now_ms)
    else:
        state, at_ms = ("unwritten" if piece.kind in UNTAKEN else STATE_NAMES[piece.kind]), 0
    return MessageView(
        id=str(id),
        bucket=bucket,
        state=state,
        deliveries=piece.version,
        visible_at=at_ms / 1000 if at_ms else None,
        put_at=block.put_at_ms / 1000 if block is not None else None,
        size=len(entry.body) if entry is not None else None,
        says=_SAYS[state],
    )
