"""Putting: ids for all that waits in one compare-and-set, one block per bucket, confirmation only within the deadline.

    callers ──▶ group ──▶ ids (one round) ──▶ blocks (one write per bucket) ──▶ in time? confirmed
                                                                          └──▶ too late, or unknown: void those ids and
                                                                          put again

Why the deadline: repair declares ids void that were not written `repair_after_s` after it saw them given out. A put
that is confirmed within half of that (by this node's own clock, counted from the sending of its reservation) is surely
seen by then. A put that comes later voids its own ids by compare-and-set first: voided, they never become messages, and
the put is done again under new ids; if they were already delivered, that was the put.

Ids taken ahead: when other nodes fight for the same row, a node takes more ids than it needs, twice as many each time
it meets others, and uses them within `AHEAD_S` or gives them back as void. A deleted or purged generation waits longer
than that before it is gone, so no put that began afterwards can land in it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final

from capellini.model.eager import begun
from capellini.model.errors import CapelliniError, Overloaded, Unavailable, Unknown
from capellini.queues.work.block import DELAYED, Block, Packed, block_of, cut, encode, joined, parts_of, tail
from capellini.queues.work.bucket import voided
from capellini.queues.work.place import Dropped, Gone, Next, Place
from capellini.queues.work.runs import FRESH, VOID, Runs, pieces
from capellini.store.interface import Batch, Value
from capellini.store.schema import BUCKETS

GROUP_MESSAGES: Final = 10_000  # of one group commit
GROUP_BYTES: Final = 4 * 1024 * 1024
GROUPS_AT_ONCE: Final = 2  # one reserves ids while the other writes
BLOCK_BYTES: Final = 512 * 1024  # a block is a row: kept below what a cluster takes without complaint
BLOCK_MESSAGES: Final = 64  # of several callers in one block: what is taken in parts is cut, and cutting costs
WAITING_BYTES: Final = (
    64 * 1024 * 1024
)  # of puts that wait in this queue; beyond it callers are told to come back later
AHEAD_S: Final = 0.5  # not longer than the catalog's CACHE_S: what deletes or purges a queue waits for both
AHEAD_MOST: Final = 1_000
MAX_TRIES: Final = 6  # new ids for one put before its caller is told
PAUSE_S: Final = 0.05

Ids = list[tuple[int, int]]  # runs: first, count


class _Call:
    """One caller's put: its pieces in order (more than one when a bucket ended inside it). `tells`: what is confirmed
    is a put, and the journal hears of it here."""

    __slots__ = ("answer", "pieces", "tells")

    def __init__(self, packed: Packed, answer: asyncio.Future[Ids], tells: bool = True) -> None:
        self.answer, self.tells = answer, tells
        self.pieces = [_Piece(self, packed)]

    def replace(self, piece: _Piece, parts: list[_Piece]) -> None:
        at = self.pieces.index(piece)
        self.pieces[at : at + 1] = parts

    def settle(self, error: CapelliniError | None = None) -> None:
        """Called whenever a piece was confirmed (no error) or given up."""
        if self.answer.done():
            return
        if error is not None:
            if len(self.pieces) > 1:  # what becomes of the others is not known yet
                error = Unknown("a part of these messages may have been put: what became of it is not known")
            self.answer.set_exception(error)
        elif all(piece.confirmed for piece in self.pieces):
            self.answer.set_result([(piece.first, piece.packed.count) for piece in self.pieces])


class _Piece:
    """Entries that get ids next to each other in one bucket."""

    __slots__ = ("call", "confirmed", "first", "packed", "tries")

    def __init__(self, call: _Call, packed: Packed, tries: int = 0) -> None:
        self.call = call
        self.packed = packed
        self.tries = tries
        self.first = -1
        self.confirmed = False


class Putting:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._waiting: deque[_Piece] = deque()
        self._waiting_bytes = 0
        self._groups: dict[object, asyncio.Task[None] | None] = {}  # those that will look for what waits
        self._named: list[tuple[_Piece, float]] = []  # with ids of their own and deadlines, waiting to be written
        self._writing_named = False
        self._ahead: tuple[int, int, float] = (0, 0, 0.0)  # first, end, reserved at
        self._ahead_size = 0
        self._reserving = 0  # how many ask for ids
        self._background: set[asyncio.Task[None]] = set()

    async def put(self, packed: Packed) -> Ids:
        """The runs of ids that the entries got, in order. Raises Gone when the generation is closed, Overloaded,
        Unavailable, Unknown."""
        if self._waiting_bytes + packed.size > WAITING_BYTES:
            raise Overloaded("more is being put into this queue than the store takes: nothing was put, try again")
        call = _Call(packed, asyncio.get_running_loop().create_future())
        self._queue(call.pieces[0])
        return await call.answer

    async def reserve(self) -> tuple[int, float]:
        """One id, and when its reservation was sent: for a put that must know its id first."""
        return await self._reserve(1)

    async def write_as(self, id: int, packed: Packed, deadline_s: float) -> bool:
        """Write one message under an id that was reserved before; the caller tells of the put, when it is one. False:
        too late, and the id is void now. Raises Unknown, Unavailable."""
        call = _Call(packed, asyncio.get_running_loop().create_future(), tells=False)
        piece = call.pieces[0]
        piece.first, piece.tries = id, MAX_TRIES
        self._named.append((piece, deadline_s))
        if len(self._named) == 1 and not self._writing_named:
            self._spawn(self._write_named())
        try:
            await call.answer
        except Unavailable:
            if call.pieces[0].tries > MAX_TRIES:  # its id was voided
                return False
            raise
        return True

    async def _write_named(self) -> None:
        """What waits for the write before goes together: those who carry a pile of dead letters share rows."""
        self._writing_named = True
        try:
            while self._named:
                waiting, self._named = self._named, []
                now_ms, now_s = self._place.now_ms(), self._place.clock.elapsed_s()
                together: dict[tuple[int, bool], list[_Piece]] = {}  # who is too late makes nobody else late
                until_s: dict[tuple[int, bool], float] = {}
                for piece, deadline_s in sorted(waiting, key=lambda one: one[0].first):
                    key = (piece.first // self._place.size, now_s < deadline_s)
                    together.setdefault(key, []).append(piece)
                    until_s[key] = min(deadline_s, until_s.get(key, deadline_s))
                await asyncio.gather(
                    *[
                        self._run_pieces(pieces, self._write(key[0], pieces, now_ms, until_s[key]))
                        for key, pieces in together.items()
                    ]
                )
        finally:
            self._writing_named = False

    def _queue(self, piece: _Piece) -> None:
        self._waiting.append(piece)
        self._waiting_bytes += piece.packed.size
        if len(self._groups) < GROUPS_AT_ONCE:
            key = object()
            self._groups[key] = None
            work = begun(self._run(key)) if self._place.store.lonely else self._run(key)
            if work is not None:
                self._groups[key] = asyncio.get_running_loop().create_task(work)

    async def _run(self, key: object) -> None:
        try:
            while self._waiting:
                group = self._next_group()
                await self._run_pieces(group, self._put_group(group))
        finally:  # here and not in a callback: what is queued before a callback comes would wait for nobody
            del self._groups[key]

    async def _run_pieces(self, group: list[_Piece], work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # whatever it was, the callers hear of it
            told = error if isinstance(error, CapelliniError) else Unknown(f"the put may have been done: {error!r}")
            for piece in group:
                if not piece.confirmed:
                    piece.call.settle(told)

    def _next_group(self) -> list[_Piece]:
        group: list[_Piece] = []
        messages = size = 0
        while self._waiting and messages < GROUP_MESSAGES and size < GROUP_BYTES:
            piece = self._waiting.popleft()
            self._waiting_bytes -= piece.packed.size
            if piece.call.answer.cancelled() and piece.tries == 0:
                continue  # its caller went away before anything was sent
            group.append(piece)
            messages += piece.packed.count
            size += piece.packed.size
        return group

    async def _put_group(self, group: list[_Piece]) -> None:
        count = sum([piece.packed.count for piece in group])
        if not count:
            return
        first, sent_at_s = await self._reserve(count)
        deadline_s = sent_at_s + self._place.options.repair_after_s / 2
        now_ms = self._place.now_ms()
        buckets = self._placed(group, first)
        if len(buckets) == 1:
            ((bucket, pieces),) = buckets.items()
            await self._write(bucket, pieces, now_ms, deadline_s)
        else:
            await asyncio.gather(
                *[self._write(bucket, pieces, now_ms, deadline_s) for bucket, pieces in buckets.items()]
            )

    async def _reserve(self, count: int) -> tuple[int, float]:
        """Ids for `count` messages: the first of them, and when their reservation was sent."""
        place = self._place
        first, end, sent_at_s = self._ahead
        if end - first >= count and place.clock.elapsed_s() - sent_at_s < AHEAD_S:
            self._ahead = (first + count, end, sent_at_s)
            return first, sent_at_s
        self._give_back()
        # One at a time for all: what a crowd of moves took ahead each for itself was given back, whole buckets of it.
        retries, first_to_ask = place.monoton.retries, not self._reserving
        ahead = self._ahead_size if first_to_ask else 0
        sent_at_s = place.clock.elapsed_s()
        self._reserving += 1
        try:
            first, end = await place.monoton.change(
                lambda next: _reserved(next, count, ahead, place.size), at_once=True
            )
        finally:
            self._reserving -= 1
        if first_to_ask and place.monoton.retries > retries:  # others want ids too: ask less often, for more
            self._ahead_size = min(AHEAD_MOST, max(2 * ahead, 2 * count))
        place.known_next = max(place.known_next, end)
        if end > first + count:
            self._give_back()
            self._ahead = (first + count, end, sent_at_s)
            self._spawn(self._give_back_later(sent_at_s))
        return first, sent_at_s

    async def _give_back_later(self, sent_at_s: float) -> None:
        await self._place.clock.sleep(AHEAD_S)
        if self._ahead[2] == sent_at_s:
            self._give_back()

    def _give_back(self) -> None:
        """Ids that were taken ahead and not used in time are void: nobody waits for them."""
        first, end, _ = self._ahead
        self._ahead = (0, 0, 0.0)
        if first < end:
            self._ahead_size = min(self._ahead_size, (end - first) // 2)
            self._place.guards["ids taken ahead given back"] += 1
            self._spawn(self._void(first, end))

    async def _void(self, first: int, end: int) -> None:
        """A store that is away now leaves gaps, which repair closes."""
        place = self._place
        while first < end:
            upto = min(end, (first // place.size + 1) * place.size)
            bucket, low, high = first // place.size, first % place.size, first % place.size + upto - first
            try:
                await place.cell(bucket).change(lambda runs: _voided(runs, low, high))  # noqa: B023
            except CapelliniError:
                place.guards["background work failed"] += 1
            first = upto
        place.woken()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _placed(self, group: list[_Piece], first: int) -> dict[int, list[_Piece]]:
        """Gives each piece its ids; a piece in which a bucket ends becomes two."""
        size = self._place.size
        buckets: dict[int, list[_Piece]] = {}
        for piece in group:
            rest: _Piece | None = piece
            while rest is not None:
                now, room = rest, size - first % size
                rest = None
                if now.packed.count > room:
                    head, last = cut(now.packed, room)
                    parts = [_Piece(now.call, head, now.tries), _Piece(now.call, last, now.tries)]
                    now.call.replace(now, parts)
                    now, rest = parts
                now.first = first
                buckets.setdefault(first // size, []).append(now)
                first += now.packed.count
        return buckets

    async def _write(self, bucket: int, pieces: list[_Piece], now_ms: int, deadline_s: float) -> None:
        """Write one bucket's pieces, then confirm them, or void their ids and put them again, or tell why not."""
        place = self._place
        rows = _rows(pieces, now_ms)
        batch = Batch(
            BUCKETS,
            (*place.partition, bucket),
            tuple([((block.first,), _row(block)) for block in rows]),
        )
        lost = False
        while place.clock.elapsed_s() < deadline_s:
            try:
                await place.store.write(batch)
            except Unavailable as error:
                if lost:  # an earlier attempt may have been written, or may yet be
                    await place.clock.sleep(PAUSE_S)
                    continue
                for piece in pieces:  # surely not written: the ids stay gaps, which repair closes
                    piece.call.settle(error)
                return
            except Unknown:
                lost = True
                await place.clock.sleep(PAUSE_S)
                continue
            if place.clock.elapsed_s() <= deadline_s:
                self._confirm(rows, pieces)
                return
            break
        place.guards["put past its deadline"] += 1
        for piece in pieces:
            await self._late(bucket, piece)

    def _confirm(self, rows: list[Block], pieces: list[_Piece]) -> None:
        place = self._place
        for block in rows:
            place.shelf.add(block)
        place.promise(rows[0].first // place.size)
        if place.events.kept and pieces[0].call.tells:
            place.events.put(place.name, place.generation, [(block.first, block.count) for block in rows])
        for piece in pieces:
            piece.confirmed = True
        for piece in pieces:
            piece.call.settle()
        place.woken()

    async def _late(self, bucket: int, piece: _Piece) -> None:
        """Too late to confirm: what has not become a message never will, and is put again under new ids."""
        place = self._place
        start = piece.first % place.size
        end = start + piece.packed.count
        try:
            never = await place.cell(bucket).change(lambda runs: _voided(runs, start, end))
        except Dropped as dropped:
            never = [(max(low, start), min(high, end)) for low, high in dropped.voided if low < end and start < high]
        except CapelliniError:
            piece.call.settle(Unknown("the put may have been done: the store did not say"))
            return
        place.guards["late put voided" if never else "late put was delivered already"] += 1
        parts = _parts(piece, start, end, never)
        piece.call.replace(piece, parts)
        for part in parts:
            if part.confirmed:
                if part.call.tells:
                    place.events.put(place.name, place.generation, [(part.first, part.packed.count)])
                part.call.settle()
            elif part.tries > MAX_TRIES:
                part.call.settle(Unavailable("the store is too slow to confirm puts in time: nothing was put"))
            else:
                self._queue(part)


def _row(block: Block) -> dict[str, Value]:
    return {"count": block.count, "delayed": bool(block.flags & DELAYED), "block": encode(block)}


def _reserved(next: Next, count: int, ahead: int, size: int) -> tuple[Next, tuple[int, int]]:
    """The ids from the first up to (not with) the last. Who takes a good part of a bucket ahead takes it to its end, so
    that a crowd of nodes parts over the buckets."""
    if next.closed:
        raise Gone("this queue was deleted or purged")
    end = next.id + count + ahead
    if ahead * 4 >= size:
        end = -(-end // size) * size
    return Next(end), (next.id, end)


def _voided(runs: Runs, start: int, end: int) -> tuple[Runs, list[tuple[int, int]]]:
    """Void what is fresh; the stretches that have not become messages, and never will."""
    never = [(piece.start, piece.end) for piece in pieces(runs, start, end) if piece.kind in (FRESH, VOID)]
    return voided(runs, start, end)[0], never


def _parts(piece: _Piece, start: int, end: int, never: list[tuple[int, int]]) -> list[_Piece]:
    """The piece cut into what is a message already (confirmed, under its ids) and what must be put again."""
    parts: list[_Piece] = []
    rest, at = piece.packed, start
    bounds = sorted({start, end, *(bound for pair in never for bound in pair)})
    for low, high in itertools.pairwise(bounds):
        now, rest = cut(rest, high - low) if rest.count > high - low else (rest, tail(rest))
        again = any(first <= low < last for first, last in never)
        part = _Piece(piece.call, now, piece.tries + 1 if again else piece.tries)
        part.first, part.confirmed = piece.first + low - at, not again
        parts.append(part)
    return parts


def _rows(group: list[_Piece], now_ms: int) -> list[Block]:
    """Neighbours as one block, up to a size: one row for many single puts, several for one that is large."""
    rows: list[Block] = []
    together: list[Packed] = []
    first = size = 0
    for piece in group:
        at = piece.first
        for part in parts_of(piece.packed, BLOCK_BYTES):
            count = sum([one.count for one in together])
            if together and (
                first + count != at or count + part.count > BLOCK_MESSAGES or size + part.size > BLOCK_BYTES
            ):
                rows.append(block_of(first, joined(together), now_ms))
                together, size = [], 0
            if not together:
                first = at
            together.append(part)
            size += part.size
            at += part.count
    rows.append(block_of(first, joined(together), now_ms))
    return rows
