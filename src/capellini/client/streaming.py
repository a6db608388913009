"""The consuming end of a stream: parcels come as credits allow, acks go back in ranges.

    lane ──▶ parcels ──▶ a batch: all that is here ──▶ ack, nack, extend ──▶ gathered ──▶ lane
      ▲                        │
      └──── credits ◀──────────┘ as many as the program takes in a second, `ahead` at most (`credits`)

What is settled in one turn of the loop goes as one frame, as ranges of deliveries. A settle whose answer was lost is
sent again; if it is stale then, that is Unknown: the first one may have done it.

When a lane is over (the node leaves, the connection broke) the next is opened, at another node if one was named. What
was delivered stays valid: acks of it go through the new lane, or the old one while there is no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from capellini.api.pumping import given_back
from capellini.client.batches import Index, StreamOrigin
from capellini.client.consuming import AWAY_FIRST_S, AWAY_MOST_S
from capellini.client.credits import Credits
from capellini.client.lanes import ranges_of
from capellini.client.patient import PatientService
from capellini.client.streams import GetLane
from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError, Invalid, Paused, StoreError, Unavailable, Unknown, from_name
from capellini.model.log import LogParcel, Settle, Settled
from capellini.model.service import Service
from capellini.model.streams import MAX_CREDIT, MAX_SETTLES

log = logging.getLogger("capellini.client")

AHEAD: Final = 10_000  # messages on their way or waiting, however fast the program is: they are hidden from others
SETTLES_AT_ONCE: Final = 4  # frames under way; what comes meanwhile is gathered
FRAME_RANGES: Final = 16_384  # in one frame, unless one delivery alone has more
STEADY_S: Final = 5.0  # a lane that lasted so long is no sign of trouble when it ends
Opens = Callable[[Service, Sequence[str]], Awaitable[GetLane]]
Verb = tuple[str, int | None]  # ack, nack, extend; and its milliseconds
Wanted = dict[StreamOrigin, list[Index] | None]  # None: all of that delivery
Bad = dict[StreamOrigin, CapelliniError | set[Index]]  # an error of all that was asked for; or which were stale
_DOUBTFUL: Final = "an answer was lost, and now the delivery is not valid: it may have been done by that attempt"


class _Gathered:
    """What is to be settled alike, and who waits for it."""

    def __init__(self) -> None:
        self.of: Wanted = {}
        self.done: asyncio.Future[Bad] = asyncio.get_running_loop().create_future()

    def add(self, wanted: Wanted) -> None:
        for origin, indexes in wanted.items():
            before = self.of.get(origin, ())
            if before is None or indexes is None:
                self.of[origin] = None
            else:
                self.of[origin] = [*before, *indexes] if before else indexes


class Receiving:
    """One consumer of a group. Its lanes hand parcels to `deliver`."""

    def __init__(self, service: PatientService, ahead: int, clock: Clock, chance: Chance) -> None:
        if not 1 <= ahead <= MAX_CREDIT:
            raise Invalid(f"ahead goes from 1 to {MAX_CREDIT} messages, not {ahead!r}")
        self._service, self._clock, self._chance = service, clock, chance
        self._parcels: deque[LogParcel] = deque()
        self._credits = Credits(ahead)
        self._handed = 0  # messages that the program took last
        self._handed_s = 0.0  # ... and when
        self._came = asyncio.Event()
        self._lane: GetLane | None = None
        self._last: GetLane | None = None  # is over, and left when there is another: settles may still go through it
        self._usable = asyncio.Event()  # there is a lane
        self._failure: CapelliniError | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._gathered: dict[Verb, _Gathered] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._soon = False
        self._closed = False
        self._ended = False  # and its lanes are left

    # ---- lanes

    async def open(self, open_lane: Opens) -> None:
        """Raises what opening raises: a group that does not exist is said at once."""
        if self._keeping is not None:
            return
        first = await self._service.call("stream", lambda behind: open_lane(behind, ()))
        self._use(first)
        self._keeping = asyncio.get_running_loop().create_task(self._keep(first, open_lane))
        self._keeping.add_done_callback(self._kept)

    def _use(self, lane: GetLane) -> None:
        self._lane = lane
        self._leave_last()
        self._credits.begin()
        self._grant()
        self._usable.set()

    def _grant(self) -> None:
        if self._lane is not None and not self._closed and (owed := self._credits.owed()) is not None:
            self._lane.credit(*owed)

    async def _keep(self, lane: GetLane, open_lane: Opens) -> None:
        """The next lane when one is over, as long as it takes; an error that waiting cannot mend ends the stream."""
        attempt, told = 0, False  # of a row of lanes that did not last, or could not be opened
        while not self._closed:
            began_s = self._clock.elapsed_s()
            elsewhere = await asyncio.shield(lane.over)
            self._usable.clear()
            self._lane, self._last = None, lane
            if lane.failure is not None:
                self._fail(lane.failure)
                return
            if elsewhere or self._clock.elapsed_s() - began_s > STEADY_S:
                attempt, told = 0, False
            else:
                attempt = await self._rest(attempt, None)
            while True:
                try:
                    lane = await open_lane(self._service.behind, elsewhere)
                    break
                except (StoreError, Paused) as error:
                    if not told:
                        log.warning("waiting, and trying again: %s", error.says)
                    told = True
                    attempt = await self._rest(attempt, error)
                except CapelliniError as error:
                    self._fail(error)
                    return
            self._use(lane)

    async def _rest(self, attempt: int, error: CapelliniError | None) -> int:
        longest = min(AWAY_MOST_S, AWAY_FIRST_S * 2.0 ** min(attempt, 30))
        asked_s = (error.retry_after_s or 0.0) if error is not None else 0.0
        await self._clock.sleep(max(longest * (0.5 + self._chance.random() / 2), asked_s))
        return attempt + 1

    def _kept(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a stream failed", exc_info=error)
            self._fail(Unknown(f"this stream failed: {error!r}"))

    def _way(self) -> GetLane | None:
        """Where to settle."""
        if self._lane is None and self._last is not None and self._last.open:
            return self._last
        return self._lane

    def _leave_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            self._leave(last)

    def _leave(self, lane: GetLane) -> None:
        leaving = asyncio.get_running_loop().create_task(lane.leave())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    def _fail(self, error: CapelliniError) -> None:
        self._failure = error
        self._came.set()
        self._usable.set()

    # ---- taking

    def deliver(self, parcel: LogParcel) -> None:
        self._parcels.append(parcel)
        self._credits.came(parcel.count, len(parcel.chunks))
        self._came.set()

    async def parcels(self, wait_s: float | None = None) -> list[LogParcel]:
        """All that is here; waits for something, for ever or for so long (then none)."""
        if self._handed:  # who comes for more is done with those
            self._credits.worked(self._handed, self._clock.elapsed_s() - self._handed_s)
            self._handed = 0
            self._grant()
        if not self._parcels and not await self._something(wait_s):
            return []
        found = list(self._parcels)
        self._parcels.clear()
        self._credits.taken()
        self._grant()
        self._handed, self._handed_s = sum([parcel.count for parcel in found]), self._clock.elapsed_s()
        return found

    async def _something(self, wait_s: float | None) -> bool:
        while not self._parcels:
            if self._failure is not None:
                raise self._failure.again()
            if self._closed or self._keeping is None:
                raise Unavailable("this stream is closed" if self._closed else "open this stream first, by `with`")
            self._came.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._came.wait()
            except TimeoutError:
                return bool(self._parcels)
        return True

    # ---- settling

    async def settle(self, wanted: Wanted, verb: str, value_ms: int | None = None) -> Bad:
        """What was not settled."""
        if self._ended and ((way := self._way()) is None or not way.open):
            raise Unavailable("this stream is closed: ack its messages before it ends")
        gathered = self._gathered.get((verb, value_ms))
        if gathered is None:
            gathered = self._gathered[verb, value_ms] = _Gathered()
        gathered.add(wanted)
        self._send_soon()
        return await asyncio.shield(gathered.done)

    def _send_soon(self) -> None:
        if not self._soon and len(self._sending) < SETTLES_AT_ONCE:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._soon = False
        while self._gathered and len(self._sending) < SETTLES_AT_ONCE:
            verb = next(iter(self._gathered))
            task = asyncio.get_running_loop().create_task(self._settled(verb, self._gathered.pop(verb)))
            self._sending.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("acks of a stream failed", exc_info=error)
        if self._gathered:
            self._send_soon()

    async def _settled(self, verb: Verb, gathered: _Gathered) -> None:
        try:
            bad = await self._asked(verb, gathered.of)
        except BaseException as error:
            if not gathered.done.done():
                known = error if isinstance(error, CapelliniError) else Unknown("this stream ended: it may be done")
                gathered.done.set_exception(known)
                gathered.done.exception()  # who left does not hear of it
            if not isinstance(error, CapelliniError):
                raise
        else:
            if not gathered.done.done():
                gathered.done.set_result(bad)

    async def _asked(self, verb: Verb, wanted: Wanted) -> Bad:
        items = [origin.settles(verb[0], _ranges(indexes), verb[1]) for origin, indexes in wanted.items()]
        results, doubtful = await self._repeated(items)
        bad: Bad = {}
        for origin, item, result in zip(wanted, items, results, strict=True):
            if result.error:
                bad[origin] = from_name(result.error, result.says)
            elif result.ranges != item.ranges and (missing := origin.missing(item.ranges, result.ranges)):
                bad[origin] = Unknown(_DOUBTFUL) if doubtful else missing
        return bad

    async def _repeated(self, items: list[Settle]) -> tuple[list[Settled], bool]:
        """A result for each; and whether an answer was lost. Items that could not be settled now go again."""
        results: list[Settled] = [Settled([], Unavailable.name, "it was not settled")] * len(items)
        left = list(range(len(items)))
        attempts = self._service.attempts("settle")
        while left:
            some = left[: _frame(items, left)]
            try:
                answers = await self._ask([items[at] for at in some])
            except CapelliniError as error:
                try:
                    await attempts.failed(error)
                except CapelliniError as last:
                    if len(left) == len(items):
                        raise
                    for at in left:
                        results[at] = Settled([], last.name, last.says)
                    break  # the others were settled by frames before
                continue
            again: list[int] = []
            worst: CapelliniError | None = None
            for at, answer in zip(some, answers, strict=True):
                results[at] = answer
                if answer.error and isinstance(problem := from_name(answer.error, answer.says, 0.0), StoreError):
                    worst = problem
                    again.append(at)
            left = left[len(some) :] + again
            if worst is not None:
                try:
                    await attempts.failed(worst)
                except CapelliniError:
                    break  # what is known of each is said
        return results, attempts.lost

    async def _ask(self, items: list[Settle]) -> list[Settled]:
        while (lane := self._way()) is None:
            if self._failure is not None:
                raise self._failure.again()
            try:
                async with asyncio.timeout(self._service.patience.total_s):
                    await self._usable.wait()
            except TimeoutError:
                raise Unavailable("no node could be reached for this stream") from None
        return await lane.settle(items)

    # ---- the end

    async def close(self, left: Wanted) -> None:
        """What was not handed out goes back to the queue, and so does what is `left` of that; acks under way are
        finished."""
        if self._closed:
            return
        self._closed = True
        self._came.set()
        try:
            if (lane := self._way()) is not None:
                await lane.stop()
                await self._give_back([origin.settles("release", _ranges(indexes)) for origin, indexes in left.items()])
            if self._gathered:
                self._send()
            while self._sending:
                await asyncio.wait(self._sending)
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        """Of all lanes: what a node still delivers on one that is left open would be hidden from others."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        self._leave_last()
        if self._lane is not None:
            self._leave(self._lane)
        if self._leaving:
            await asyncio.wait(self._leaving)
        self._ended = True

    async def _give_back(self, items: list[Settle]) -> None:
        items = [*items, *map(given_back, self._parcels)]
        self._parcels.clear()
        try:
            await self._repeated(items)
        except CapelliniError as error:
            log.debug("messages come back when their visibility ends: %s", error)


def _ranges(indexes: list[Index] | None) -> list[tuple[int, int]] | None:
    return None if indexes is None else ranges_of(indexes)


def _frame(items: Sequence[Settle], left: Sequence[int]) -> int:
    """How many of them go in one frame."""
    ranges = 0
    for place, at in enumerate(left[:MAX_SETTLES]):
        ranges += len(items[at].ranges)
        if place and ranges > FRAME_RANGES:
            return place
    return min(len(left), MAX_SETTLES)
