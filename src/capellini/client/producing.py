"""The producing end of a stream: what is put in one turn of the loop becomes one chunk; chunks are confirmed in order.

    put ──▶ pieces that wait ──▶ chunk (producer, sequence) ──▶ lane ──▶ confirmed: its callers get their places
                                        ▲                        │
                                        └── again, in order ◀────┘ refused for now, lost, or the node leaves

A chunk keeps its producer and sequence until it is confirmed, so that one that is sent again is recognised: nothing is
lost, nothing comes twice, and the order stays. The queue takes a producer's chunks in sequence only: what is behind a
chunk that was not taken was not taken either. When something goes wrong, all that is under way is waited for; then
what is not confirmed is sent again from the first on, on the same lane or on the next.

A chunk that is refused as wrong goes once more, alone and as the first of a new producer: the queue may have been
purged since, and knows of no sequences then. If it is refused again it is cut in halves, down to the pieces that are
wrong, whose callers get the error. What was behind it follows in its place.

When patience ends, the callers get the last error (Unknown where it may have been done), and what follows is another
producer's: nothing may be taken for what was given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from capellini.client.chunking import CHUNK_BYTES, CHUNK_MESSAGES, Chunk, Piece
from capellini.client.patient import PatientService
from capellini.client.streams import PutLane
from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError, Conflict, Invalid, Paused, Unavailable, Unknown, WrongKind
from capellini.model.log import Appended
from capellini.model.service import Service

log = logging.getLogger("capellini.client")

FLYING_CHUNKS: Final = 16  # under way; more wait, and grow into larger chunks meanwhile
FLYING_MOST: Final = 64  # ... but one more goes each PACE_S: what reaches the node during an fsync is part of the next
PACE_S: Final = 0.005
FLYING_BYTES: Final = 4 * 1024 * 1024
WAITING_BYTES: Final = 4 * 1024 * 1024  # beyond it `take` waits
Opens = Callable[[Service, Sequence[str]], Awaitable[PutLane]]


class Sending:
    """One producer's chunks. `open_lane` is given addresses that a leaving node named."""

    def __init__(self, service: PatientService, open_lane: Opens, clock: Clock, chance: Chance) -> None:
        self._service, self._open_lane, self._clock, self._chance = service, open_lane, clock, chance
        self._producer = new_producer(chance)
        self._sequence = 0  # of the last chunk made
        self._waiting: deque[Piece] = deque()
        self._waiting_bytes = 0
        self._chunks: deque[Chunk] = deque()  # made and not confirmed
        self._flying_bytes = 0
        self._lane: PutLane | None = None
        self._elsewhere: list[str] = []
        self._mending: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()  # lanes that are over
        self._trouble_since_s: float | None = None
        self._attempt = 0
        self._soon = False
        self._pace: asyncio.TimerHandle | None = None  # since the pipeline is full and something waits
        self._changed = asyncio.Event()  # something was confirmed or failed
        self._opened = self._closed = False

    async def open(self) -> None:
        """Raises what opening a lane raises: a queue that does not exist is said at once."""
        if not self._opened:
            self._use(await self._service.call("stream", lambda behind: self._open_lane(behind, ())))
            self._opened = True

    def _use(self, lane: PutLane) -> None:
        self._lane = lane
        lane.over.add_done_callback(partial(self._over, lane))

    def _over(self, lane: PutLane, over: asyncio.Future[list[str]]) -> None:
        if lane is self._lane and not over.cancelled() and not self._closed:
            self._elsewhere = over.result()
            self._mend()

    # ---- taking

    async def take(self, pieces: list[Piece]) -> None:
        """Waits while there is too much; then they are on their way."""
        while self._waiting_bytes > WAITING_BYTES and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if self._closed or not self._opened:
            raise Unavailable("this stream is closed" if self._closed else "open this stream first, by `with`")
        self._waiting.extend(pieces)
        self._waiting_bytes += sum([piece.size for piece in pieces])
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._cut)

    def _cut(self) -> None:
        """What waits becomes chunks, as far as there is room."""
        self._soon = False
        lane = self._lane
        if self._mending is not None or self._closed or not self._waiting:
            return
        if lane is None or lane.over.done():
            self._mend()
            return
        while self._waiting and len(self._chunks) < FLYING_CHUNKS and self._flying_bytes < FLYING_BYTES:
            self._send(lane, self._next_chunk())
        if self._waiting and self._pace is None:
            self._pace = asyncio.get_running_loop().call_later(PACE_S, self._one_more)

    def _one_more(self) -> None:
        """Confirmations are slow: nothing waits here for longer than PACE_S unless very much is under way."""
        self._pace = None
        lane = self._lane
        if self._waiting and self._mending is None and not self._closed and lane is not None and not lane.over.done():
            if len(self._chunks) < FLYING_MOST and self._flying_bytes < FLYING_BYTES:
                self._send(lane, self._next_chunk())
            self._cut()

    def _next_chunk(self) -> Chunk:
        pieces = [self._waiting.popleft()]
        size, count = pieces[0].size, len(pieces[0].bodies)
        while self._waiting:
            piece = self._waiting[0]
            if size + piece.size > CHUNK_BYTES or count + len(piece.bodies) > CHUNK_MESSAGES:
                break
            pieces.append(self._waiting.popleft())
            size, count = size + piece.size, count + len(piece.bodies)
        self._waiting_bytes -= size
        self._sequence += 1
        chunk = Chunk(pieces, self._sequence)
        self._chunks.append(chunk)
        self._flying_bytes += size
        return chunk

    # ---- sending, and what comes back

    def _send(self, lane: PutLane, chunk: Chunk) -> None:
        chunk.error = None
        chunk.flying = lane.append(chunk.packed(self._producer))
        chunk.flying.add_done_callback(partial(self._answered, chunk))

    def _answered(self, chunk: Chunk, answer: asyncio.Future[Appended]) -> None:
        chunk.flying = None
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled():
            chunk.error = Unknown("the stream was ended meanwhile: it may have been done")
        elif error is None:
            chunk.appended = answer.result()
        else:
            chunk.error = error if isinstance(error, CapelliniError) else Unknown(f"the stream failed: {error!r}")
        if chunk.error is not None:
            chunk.lost = chunk.lost or isinstance(chunk.error, Unknown)
            self._mend()
        else:
            self._confirm()
            self._cut()

    def _confirm(self) -> None:
        """Callers hear in the order of their puts."""
        while self._chunks and (done := self._chunks[0].appended) is not None:
            self._pop().confirmed(done)
            self._trouble_since_s, self._attempt = None, 0
        self._changed.set()

    def _pop(self) -> Chunk:
        chunk = self._chunks.popleft()
        self._flying_bytes -= chunk.size
        return chunk

    # ---- mending

    def _mend(self) -> None:
        if self._mending is None and not self._closed:
            self._mending = asyncio.get_running_loop().create_task(self._mended())
            self._mending.add_done_callback(self._resume)

    async def _mended(self) -> None:
        """Until there is a lane and nothing is wrong with the first chunk."""
        while not self._closed:
            if flying := [chunk.flying for chunk in self._chunks if chunk.flying is not None]:
                await asyncio.wait(flying)
            self._confirm()
            self._drop_lane()
            front = self._chunks[0] if self._chunks else None
            try:
                if front is not None and front.error is not None:
                    await self._judge(front, front.error)
                    continue
                if front is None and not self._waiting:
                    return  # a lane is opened when there is something for it
                if self._lane is None:
                    elsewhere, self._elsewhere = self._elsewhere, []
                    self._use(await self._open_lane(self._service.behind, elsewhere))
                if front is None or not front.alone:
                    return
                assert self._lane is not None
                self._send(self._lane, front)
            except CapelliniError as failure:  # no lane can be had
                if not await self._patient(failure):
                    self._give_up(failure)

    def _resume(self, task: asyncio.Task[None]) -> None:
        self._mending = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("a stream failed", exc_info=error)
            self._give_up(Unknown(f"this stream failed: {error!r}"))
        if self._lane is not None:
            for chunk in self._chunks:
                if chunk.flying is None and chunk.appended is None:
                    self._send(self._lane, chunk)
        self._cut()

    def _drop_lane(self) -> None:
        """A lane that is over is left; it closes by itself."""
        lane = self._lane
        if lane is not None and lane.over.done():
            self._lane = None
            if lane.failure is not None:
                self._give_up(lane.failure)
            leaving = asyncio.get_running_loop().create_task(lane.leave())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _judge(self, front: Chunk, error: CapelliniError) -> None:
        """The first chunk was not taken: wait, or do without it."""
        if _for_now(error):
            if await self._patient(error):
                front.error = None
            else:
                self._give_up(error)
        elif isinstance(error, Invalid | Conflict) and not isinstance(error, WrongKind):
            self._refused(front, error)
        else:
            self._give_up(error)

    def _refused(self, front: Chunk, error: CapelliniError) -> None:
        if not front.alone:
            front.alone, front.error = True, None
            if not any(chunk.lost for chunk in self._chunks):
                self._begin_anew()
            return
        self._pop()
        if len(front.pieces) > 1:
            half = len(front.pieces) // 2
            for pieces in (front.pieces[half:], front.pieces[:half]):
                part = Chunk(pieces, 0, True, front.lost)
                self._chunks.appendleft(part)
                self._flying_bytes += part.size
        else:
            front.failed(error)
        if front.lost:
            self._begin_anew()  # its sequence may be taken after all, and is not to be used again
        else:
            self._number(front.sequence)
        self._changed.set()

    def _begin_anew(self) -> None:
        """Another producer, for all that was not taken."""
        self._producer = new_producer(self._chance)
        self._number(1)

    def _number(self, first: int) -> None:
        left = [chunk for chunk in self._chunks if chunk.appended is None]
        for sequence, chunk in enumerate(left, first):
            chunk.sequence = sequence
        self._sequence = first + len(left) - 1

    async def _patient(self, error: CapelliniError) -> bool:
        """Waits before the next attempt; False: there is to be none."""
        if not _for_now(error):
            return False
        now_s, patience = self._clock.elapsed_s(), self._service.patience
        self._trouble_since_s = now_s if self._trouble_since_s is None else self._trouble_since_s
        pause_s = patience.pause_s(self._attempt, error.retry_after_s, self._chance)
        self._attempt += 1
        if self._closed or now_s + pause_s - self._trouble_since_s > patience.total_s:
            return False
        await self._clock.sleep(pause_s)
        return True

    def _give_up(self, error: CapelliniError) -> None:
        """Nobody is kept waiting any longer; what follows is another producer's."""
        while self._chunks:
            chunk = self._pop()
            if chunk.appended is not None:
                chunk.confirmed(chunk.appended)
            else:
                chunk.lost = chunk.lost or chunk.flying is not None  # its answer may still have been on its way
                chunk.failed(error)
        while self._waiting:
            piece = self._waiting.popleft()
            self._waiting_bytes -= piece.size
            Chunk([piece], 0).failed(Unavailable(error.says) if isinstance(error, Unknown) else error)
        self._begin_anew()
        self._trouble_since_s, self._attempt = None, 0
        self._changed.set()

    # ---- the end

    async def flush(self) -> None:
        """All that was taken is confirmed, or its callers know better."""
        while self._chunks or self._waiting:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        try:
            await self.flush()
        finally:
            self._closed = True
            self._changed.set()
            mending, lane, self._lane = self._mending, self._lane, None
            if mending is not None:
                mending.cancel()
                await asyncio.wait({mending})
            self._give_up(Unavailable("this stream was closed meanwhile"))
            if lane is not None:
                self._leaving.add(asyncio.get_running_loop().create_task(lane.leave()))
            if self._leaving:
                await asyncio.wait(self._leaving)


def new_producer(chance: Chance) -> bytes:
    return chance.randbytes(16)


def _for_now(error: CapelliniError) -> bool:
    """It may work later: nothing is wrong with the chunk itself."""
    return isinstance(error, Unavailable | Unknown | Paused)
