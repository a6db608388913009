"""The desk: what an owner knows of the messages of one extent for one group, in ranges of numbers. Pure: no store, no
clock.

             out                                        (fresh: never handed out, from `out` on)
    fresh ──pick──▶ picked ──fly──▶ in flight ──ack──▶ finished
                    ▲  │  │             │ └──nack, visibility over──┐
       standing ────┘  │  └─skip────────┼────────────▶ finished     ├─▶ too often: moving ──buried──▶ finished
            ▲          └─put back──▶ standing                       │
            └───────────────────────────────────────────────────────┘

Each number is in exactly one place: finished, moving, in one flight, picked by one caller, standing (ready, or waiting
for its time), or fresh. A delivery is a *flight*: a range under a number that is used once per epoch, so an ack that
names an earlier flight of the same message finds nothing: stale. Nothing here is kept per message: a million messages
in flight are as many ranges as deliveries, and what comes back is as many as it is given back in; both are bounded.
What is picked is being read, or its count is being made durable; its picker flies it, skips it (not for this group) or
puts it back.

Which of those that stand may be had is a matter of the queue's order: `Loose` here has none, `ordering` keeps lines.
There a message is out of its line's way only when it is durable that it is finished, so that no successor of this owner
delivers it after a later one: what is finished is unsure until the cursor's next write says so (`settling`).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Final, Protocol

import msgspec

from capellini.queues.log.pages import Open, Pages

MOST_FLIGHTS: Final = 250_000  # parts of deliveries in flight for one group and extent: some 100 MB; then consumers ack
MOST_PARTS: Final = 250_000  # ranges in flight, or given back: beyond, what came back is handed out, and nothing fresh
TIMES_LEAST: Final = 1_000  # ends of deliveries that are kept before it is looked which of them still matter
MOST_PICKS: Final = 256  # ranges in one pull: after many single nacks the rest comes with the next

Range = tuple[int, int]  # first, end
Stood = tuple[int, int, int, int]  # first, end, deliveries, at_ms (0: it can be had)


class Picked(msgspec.Struct, frozen=True, gc=False):
    first: int
    end: int
    deliveries: int  # before this one


class Standing(Protocol):
    """What was there before and is in nobody's hands, and who may have what is fresh. Numbers are *out* from when they
    were picked until they come back or leave."""

    ordered: bool  # what comes behind something that was put back must be put back too
    scans: bool  # what is fresh is lined up before it is picked; else it is picked where `out` is

    @property
    def ready(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def parts(self) -> int:
        """Ranges that are kept of what stands; 0 where it is bounded by itself."""

    def add(self, first: int, end: int, deliveries: int, at_ms: int) -> None:
        """These stand, to be had from then on (0: now)."""

    def back(self, first: int, end: int, deliveries: int, at_ms: int) -> None:
        """These were out, and stand again."""

    def leave(self, first: int, end: int) -> None:
        """These were out, and are not any more: finished, or fresh again."""

    def goes(self, first: int, end: int) -> None:
        """These are out, without having stood: fresh ones that were picked, or those on their way to the dead
        letters."""

    def picks(self, most: int) -> list[Picked]:
        """Some that may be had, in order; they are out from now on."""

    def admits(self, found: Sequence[Picked]) -> bool:
        """May fresh ones follow these, which were just picked, in the same delivery?"""

    def roll(self, now_ms: int) -> bool:
        """It is so late. True: more can be had."""

    def next_ms(self) -> int | None:
        """When more can be had, if nothing else happens."""

    def stands(self) -> Iterable[Stood]:
        """All that stands, in any order; for who looks."""


class Flight:
    """One delivery. `left`: what is not settled, as (first, end, until_ms), in order."""

    __slots__ = ("deliveries", "end", "first", "left")

    def __init__(self, first: int, end: int, deliveries: int, until_ms: int) -> None:
        self.first, self.end = first, end
        self.deliveries = deliveries
        self.left: list[tuple[int, int, int]] = [(first, end, until_ms)]

    def cut(self, ranges: Iterable[Range]) -> list[Range]:
        """Take these out of what is left; those that were there, in order. In one pass: each other message of a large
        delivery may be settled at once."""
        wanted = _apart(ranges)
        if not wanted:
            return []
        low = bisect_right(self.left, wanted[0][0], key=_end_of)
        high = bisect_left(self.left, wanted[-1][1], key=_first_of)
        found: list[Range] = []
        kept: list[tuple[int, int, int]] = []
        at = 0
        for first, end, until_ms in self.left[low:high]:
            while wanted[at][1] <= first:
                at += 1
            while at < len(wanted) and wanted[at][0] < end:
                start, stop = max(first, wanted[at][0]), min(end, wanted[at][1])
                found.append((start, stop))
                if first < start:
                    kept.append((first, start, until_ms))
                first = stop
                if wanted[at][1] > end:
                    break
                at += 1
            if first < end:
                kept.append((first, end, until_ms))
        self.left[low:high] = kept
        return found


_first_of: Final = itemgetter(0)
_end_of: Final = itemgetter(1)


def _apart(ranges: Iterable[Range]) -> list[Range]:
    """In order, those that overlap as one."""
    found: list[Range] = []
    for first, end in sorted(ranges):
        if found and first < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return found


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Neighbours become one; given in order."""
    found: list[Range] = []
    for first, end in ranges:
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        elif first < end:
            found.append((first, end))
    return found


class Loose:
    """No order: whatever has come may be had, the lowest numbers first."""

    ordered = scans = False

    def __init__(self) -> None:
        self._ready: list[tuple[int, int, int]] = []  # (first, end, deliveries)
        self._waiting: list[tuple[int, int, int, int]] = []  # (at_ms, first, end, deliveries)
        self.ready = self.waiting = 0  # messages

    @property
    def parts(self) -> int:
        return len(self._ready) + len(self._waiting)

    def add(self, first: int, end: int, deliveries: int, at_ms: int) -> None:
        if at_ms:
            heapq.heappush(self._waiting, (at_ms, first, end, deliveries))
            self.waiting += end - first
        else:
            heapq.heappush(self._ready, (first, end, deliveries))
            self.ready += end - first

    back = add

    def leave(self, first: int, end: int) -> None:
        return

    goes = leave

    def picks(self, most: int) -> list[Picked]:
        found: list[Picked] = []
        while most > 0 and self._ready and len(found) < MOST_PICKS:
            found.append(self._pick(most))
            most -= found[-1].end - found[-1].first
        return found

    def _pick(self, most: int) -> Picked:
        """The first of them; neighbours that were delivered as often come along."""
        ready = self._ready
        first, end, deliveries = heapq.heappop(ready)
        while ready and end - first < most and ready[0][0] == end and ready[0][2] == deliveries:
            end = heapq.heappop(ready)[1]
        if end - first > most:
            heapq.heappush(ready, (first + most, end, deliveries))
            end = first + most
        self.ready -= end - first
        return Picked(first, end, deliveries)

    def admits(self, found: Sequence[Picked]) -> bool:
        return True

    def roll(self, now_ms: int) -> bool:
        changed = False
        while self._waiting and self._waiting[0][0] <= now_ms:
            _, first, end, deliveries = heapq.heappop(self._waiting)
            self.waiting -= end - first
            self.add(first, end, deliveries, 0)
            changed = True
        return changed

    def next_ms(self) -> int | None:
        return self._waiting[0][0] if self._waiting else None

    def stands(self) -> Iterable[Stood]:
        yield from ((first, end, deliveries, 0) for first, end, deliveries in self._ready)
        yield from ((first, end, deliveries, at_ms) for at_ms, first, end, deliveries in self._waiting)


class Desk:
    """`limit`: deliveries before a message goes to the dead letters; 0: none."""

    def __init__(self, pages: Pages, limit: int = 0, standing: Standing | None = None) -> None:
        self.pages = pages
        self.limit = limit
        self.standing: Standing = Loose() if standing is None else standing
        self.out = pages.next
        self.flights: dict[int, Flight] = {}
        self.burying: deque[Range] = deque()  # to be carried to the dead letters
        self._unsure: list[Range] = []  # finished, but perhaps not durably
        self._known = pages.next  # an earlier owner left nothing behind it
        self._delivery = 0
        self._times: list[tuple[int, int]] = []  # (until_ms, delivery); overtaken ones are passed over
        self._times_most = TIMES_LEAST
        self.flying = self.picked = 0  # messages
        self._parts = 0  # of all flights: what is left of each, in ranges
        self.redelivered = 0

    def recover(self) -> None:
        """What an earlier owner left: all that is not finished can be had again, unless it was delivered too often."""
        for part in list(self.pages.open()):
            if self.limit and part.deliveries >= self.limit and not part.moving:
                self.pages.move(part.first, part.end)
                self.burying.append((part.first, part.end))
            elif part.moving:
                self.burying.append((part.first, part.end))
            else:
                self.standing.add(part.first, part.end, part.deliveries, part.at_ms)
        for first, end in self.burying:
            self.standing.goes(first, end)
        self._known = self.pages.top
        if not self.standing.scans:
            self.out = max(self.out, self._known)

    def left(self, first: int, end: int) -> Iterator[Open]:
        """What of these numbers, which were not seen here before, is not finished."""
        return self.pages.open(first, end) if first < self._known else iter((Open(first, end, 0, False),))

    # Handing out

    @property
    def full(self) -> bool:
        return self._parts >= MOST_FLIGHTS

    @property
    def crowded(self) -> bool:
        """So much came back, a few messages at a time, that nothing fresh is handed out beside it."""
        return self._parts + self.standing.parts >= MOST_PARTS

    @property
    def ready(self) -> int:
        return self.standing.ready

    @property
    def waiting(self) -> int:
        return self.standing.waiting

    def roll(self, now_ms: int) -> bool:
        """What was not settled in time comes back; what has come is ready. True: something changed."""
        changed = False
        while self._times and self._times[0][0] <= now_ms:
            _, delivery = heapq.heappop(self._times)
            flight = self.flights.get(delivery)
            if flight is None:
                continue
            over = [(first, end) for first, end, until_ms in flight.left if until_ms <= now_ms]
            if over:
                changed = True
                self._land(delivery, flight, self._cut(flight, over), now_ms)
        return self.standing.roll(now_ms) or changed

    def _land(self, delivery: int, flight: Flight, ranges: Sequence[Range], at_ms: int, hidden: bool = False) -> None:
        """These come back from a flight: to be had from then on, or too often delivered. `hidden`: whoever owns the
        extent then."""
        for first, end in joined(ranges):
            self.flying -= end - first
            if self.limit and flight.deliveries >= self.limit:
                self.pages.move(first, end)
                self.burying.append((first, end))
            else:
                self.standing.back(first, end, flight.deliveries, at_ms)
                if hidden:
                    self.pages.hide(first, end, at_ms)
        if not flight.left:
            del self.flights[delivery]

    def picks(self, most: int, ahead: int, top: int) -> list[Picked]:
        """What may be had: what stands first, then up to `ahead` of what nobody had yet, below `top`."""
        found = self.standing.picks(most)
        count = sum([pick.end - pick.first for pick in found])
        self.picked += count
        most -= count
        first, end = self.out, min(self.out + max(most, ahead), top)
        fresh = most > 0 and first < end and not self.standing.scans and not self.crowded
        if fresh and self.standing.admits(found):
            self.out = end
            self.picked += end - first
            self.standing.goes(first, end)
            found.append(Picked(first, end, 0))
        return found

    def put_back(self, first: int, end: int, deliveries: int) -> None:
        """Picked, and not handed out after all."""
        if first >= end:
            return
        self.picked -= end - first
        if not deliveries and end == self.out and not self.standing.scans:
            self.standing.leave(first, end)
            self.out = first
        else:
            self.pages.uncount(first, end, deliveries)
            self.standing.back(first, end, deliveries, 0)

    def skip(self, first: int, end: int) -> None:
        """Picked, and not for this group."""
        self.picked -= end - first
        self.pages.finish(first, end)
        self.standing.leave(first, end)

    def fly(self, first: int, end: int, deliveries: int, until_ms: int) -> int:
        """Picked, and handed out now, for the so-many-th time; the delivery's number."""
        self.picked -= end - first
        self._delivery += 1
        self.flights[self._delivery] = Flight(first, end, deliveries, until_ms)
        self._ends(until_ms, self._delivery)
        self._parts += 1
        self.flying += end - first
        if deliveries > 1:
            self.redelivered += end - first
        return self._delivery

    # Settling: ranges that were still in flight in that delivery; all others are stale

    def ack(self, delivery: int, ranges: Iterable[Range]) -> list[Range]:
        flight = self.flights.get(delivery)
        if flight is None:
            return []
        found = self._cut(flight, ranges)
        for first, end in found:
            self.flying -= end - first
            self._finish(first, end)
        if not flight.left:
            del self.flights[delivery]
        return found

    def nack(self, delivery: int, ranges: Iterable[Range], at_ms: int, delayed: bool = False) -> list[Range]:
        """`delayed`: it is to be known to other owners, too."""
        flight = self.flights.get(delivery)
        if flight is None:
            return []
        found = self._cut(flight, ranges)
        self._land(delivery, flight, found, at_ms, delayed)
        return found

    def release(self, delivery: int, ranges: Iterable[Range], now_ms: int) -> list[Range]:
        """Nobody has seen them: as if this delivery had not been."""
        flight = self.flights.get(delivery)
        if flight is None:
            return []
        found = self._cut(flight, ranges)
        for first, end in found:
            self.flying -= end - first
            self.pages.uncount(first, end, flight.deliveries - 1)
            self.standing.back(first, end, flight.deliveries - 1, now_ms)
        if not flight.left:
            del self.flights[delivery]
        return found

    def extend(self, delivery: int, ranges: Iterable[Range], until_ms: int) -> list[Range]:
        flight = self.flights.get(delivery)
        if flight is None:
            return []
        found = self._cut(flight, ranges)
        flight.left = sorted([*flight.left, *((first, end, until_ms) for first, end in found)])
        self._parts += len(found)
        if found:
            self._ends(until_ms, delivery)
        return found

    def _ends(self, until_ms: int, delivery: int) -> None:
        """Ends of what was settled long ago are forgotten when they are the most: behind one that is held for hours
        they would be as many as deliveries in these hours."""
        heapq.heappush(self._times, (until_ms, delivery))
        if len(self._times) >= self._times_most:
            held = {(left[2], number) for number, flight in self.flights.items() for left in flight.left}
            self._times = sorted(held)
            self._times_most = max(TIMES_LEAST, 2 * len(held))

    def _cut(self, flight: Flight, ranges: Iterable[Range]) -> list[Range]:
        before = len(flight.left)
        found = flight.cut(ranges)
        self._parts += len(flight.left) - before
        return found

    def letters(self, most: int) -> list[int]:
        """The first of those that are to be carried to the dead letters."""
        found: list[int] = []
        for first, end in self.burying:
            found += range(first, min(end, first + most - len(found)))
            if len(found) >= most:
                break
        return found

    def buried(self, first: int, end: int) -> None:
        """They have arrived in the dead letters. They are of one range, and most often among the first."""
        passed: list[Range] = []
        while self.burying:
            low, high = self.burying.popleft()
            if low <= first < high:
                passed += [(start, stop) for start, stop in ((low, first), (end, high)) if start < stop]
                self._finish(first, end)
                break
            passed.append((low, high))
        self.burying.extendleft(reversed(passed))

    def _finish(self, first: int, end: int) -> None:
        self.pages.finish(first, end)
        if self.standing.ordered:
            self._unsure.append((first, end))

    def settling(self) -> Callable[[], None] | None:
        """All that is finished by now is about to be written; what is returned is called when it is durable."""
        if not self._unsure:
            return None
        ranges, self._unsure = self._unsure, []

        def durable() -> None:
            for first, end in ranges:
                self.standing.leave(first, end)

        return durable

    def next_ms(self) -> int | None:
        """When something comes back by itself; what is ready is there now."""
        while self._times:
            until_ms, delivery = self._times[0]
            flight = self.flights.get(delivery)
            if flight is not None and any(until_ms == left[2] for left in flight.left):
                break
            heapq.heappop(self._times)
        times = [self._times[0][0]] if self._times else []
        if (at_ms := self.standing.next_ms()) is not None:
            times.append(at_ms)
        return min(times, default=None)
