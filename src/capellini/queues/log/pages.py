"""What a group has finished of an extent, in pages, so that only what changed is written. Pure.

    numbers   0 ────────── PAGE ────────── 2 PAGE ────────── 3 PAGE …
              ■■■■■■■■■■■■ │ ■■■■□■■□□■■■ │ □□□■□□□□ …
              all finished   page 1         page 2            next = the first □; what lies below it needs no page

    head (page -1)   MessagePack [next]
    page k           MessagePack [finished, moved, counts, hidden] of the numbers k PAGE … (k+1) PAGE - 1, each from 0
                     finished: a `Cursor`; moved: those on their way to the dead letters, a `Cursor` or nil;
                     counts: of those delivered twice or more, runs of (gap, length, deliveries) or nil, as varints;
                     hidden: of those nacked with a delay, runs of (gap, length, when it is over in ms since 1970)

What is finished or moved stays so. Counts rise until their message is finished, unless a delivery came to nothing
(`uncount`). Who is hidden is so until its time or its next delivery. Of one epoch the page that was written last says
all; whoever reads takes the head's word for all below `next`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from capellini.queues.cursor import Cursor, get_number, put_number

PAGE: Final = 32_768  # 4 KB of bits: what a change costs to write at most, while acks come in any order
HEAD: Final = -1
MOST_COUNT: Final = 65_535  # two bytes each; limits end at 1,000
_encode: Final = msgspec.msgpack.Encoder().encode


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    finished: bytes
    moved: bytes | None
    counts: bytes | None
    hidden: bytes | None = None


_PAGE: Final = msgspec.msgpack.Decoder(_Stored)
_HEAD: Final = msgspec.msgpack.Decoder(list[int])


class Open(msgspec.Struct, frozen=True, gc=False):
    """Neighbours that are not finished and are alike."""

    first: int
    end: int
    deliveries: int  # as far as is known: those delivered once may say 0
    moving: bool
    at_ms: int = 0  # not to be had before; 0: at once


Values = npt.NDArray[np.uint16] | npt.NDArray[np.int64]  # one for each number of a page; 0: none


class _Page:
    __slots__ = ("counts", "done", "hidden", "moved")

    def __init__(self, done: Cursor) -> None:
        self.done = done
        self.moved: Cursor | None = None
        self.counts: npt.NDArray[np.uint16] | None = None
        self.hidden: npt.NDArray[np.int64] | None = None

    @property
    def plain(self) -> bool:
        """Does the head say all of it, if this is the lowest page?"""
        return self.moved is None and self.counts is None and self.hidden is None and not self.done.above

    @property
    def top(self) -> int:
        ends = [0]
        for cursor in (self.done, self.moved):
            if cursor is not None:
                ends += [cursor.next, *(first + count for first, count in cursor.ranges())]
        for values in (self.counts, self.hidden):
            if values is not None and (known := np.flatnonzero(values)).size:
                ends.append(int(known[-1]) + 1)
        return max(ends)

    def clear(self, start: int, stop: int) -> None:
        """Nothing is to be known of these any more but that they are finished."""
        for values in (self.counts, self.hidden):
            if values is not None:
                values[start:stop] = 0


class Pages:
    """Mutable, of one owner. `changes` gives what is to be written since the last time."""

    def __init__(self, next: int = 0) -> None:
        self._low, start = divmod(next, PAGE)
        self._pages: dict[int, _Page] = {self._low: _Page(Cursor(start))}
        self._dirty: set[int] = set()
        self.changed = False

    @property
    def next(self) -> int:
        """All below is finished."""
        return self._low * PAGE + self._pages[self._low].done.next

    @property
    def top(self) -> int:
        """Nothing is known of any number from here on."""
        number = max(self._pages)
        return max(self.next, number * PAGE + self._pages[number].top)

    def __contains__(self, number: int) -> bool:
        """Is it finished?"""
        page, place = divmod(number, PAGE)
        if page < self._low:
            return True
        found = self._pages.get(page)
        return found is not None and place in found.done

    def _page(self, number: int) -> _Page:
        found = self._pages.get(number)
        if found is None:
            found = self._pages[number] = _Page(Cursor())
        self._dirty.add(number)
        self.changed = True
        return found

    def _parts(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(page, first in it, end in it), without what lies below the lowest page."""
        at = max(first, self._low * PAGE)
        while at < end:
            number, start = divmod(at, PAGE)
            stop = min(PAGE, start + end - at)
            yield number, start, stop
            at += stop - start

    def finish(self, first: int, end: int) -> None:
        """Again is fine."""
        for number, start, stop in list(self._parts(first, end)):
            page = self._page(number)
            page.done.add(start, stop - start)
            page.clear(start, stop)
            if page.done.next >= PAGE:  # behind one that is held for hours: nothing but that is to be known of it
                page.moved = page.counts = page.hidden = None
        while self._pages[self._low].done.next >= PAGE:
            del self._pages[self._low]
            self._dirty.discard(self._low)
            self._low += 1
            if self._low not in self._pages:
                self._pages[self._low] = _Page(Cursor())

    def count(self, first: int, end: int, deliveries: int) -> None:
        """These are delivered for the so-many-th time; from the second on it is to be known."""
        if deliveries < 2:
            return
        for number, start, stop in self._parts(first, end):
            page = self._page(number)
            if page.counts is None:
                page.counts = np.zeros(PAGE, np.uint16)
            page.counts[start:stop] = min(deliveries, MOST_COUNT)
            if page.hidden is not None:
                page.hidden[start:stop] = 0

    def uncount(self, first: int, end: int, deliveries: int) -> None:
        """They were counted for one delivery more, and nobody got them, or looked at them."""
        told = deliveries if deliveries > 1 else 0
        for number, start, stop in self._parts(first, end):
            page = self._pages.get(number)
            if page is None or page.counts is None:
                continue
            part = page.counts[start:stop]
            if (part > told).any():
                part[part > told] = told
                self._page(number)

    def hide(self, first: int, end: int, at_ms: int) -> None:
        """These are not to be had before, whoever owns the extent then."""
        for number, start, stop in self._parts(first, end):
            page = self._page(number)
            if page.hidden is None:
                page.hidden = np.zeros(PAGE, np.int64)
            page.hidden[start:stop] = at_ms

    def move(self, first: int, end: int) -> None:
        """These go to the dead letters: nobody gets them any more."""
        for number, start, stop in self._parts(first, end):
            page = self._page(number)
            if page.moved is None:
                page.moved = Cursor()
            page.moved.add(start, stop - start)

    def open(self, first: int = 0, end: int | None = None) -> Iterator[Open]:
        """What is not finished from `first` on and below `end` (without one: below `top`), in order."""
        low, high = max(first, self.next), self.top if end is None else end
        for number in range(low // PAGE, -(-high // PAGE)):
            base = number * PAGE
            page = self._pages.get(number)
            begin, stop = max(0, low - base), min(PAGE, high - base)
            if page is None:
                yield Open(base + begin, base + stop, 0, False)
                continue
            for start, until in _gaps(page.done, begin, stop):
                for left, right, moving in _split(start, until, page.moved):
                    for of, to, deliveries in _alike(left, right, page.counts):
                        for start_at, end_at, at_ms in _alike(of, to, page.hidden):
                            yield Open(base + start_at, base + end_at, deliveries, moving, at_ms)

    # In the store

    def changes(self) -> tuple[list[tuple[int, bytes]], bytes]:
        """Pages that changed since the last time and that the head does not tell of, and the head."""
        pages = [
            (number, _stored(self._pages[number]))
            for number in sorted(self._dirty)
            if number > self._low or not self._pages[number].plain
        ]
        self._dirty.clear()
        self.changed = False
        return pages, _encode([self.next])

    def touch(self) -> None:
        """All is to be written: under a new epoch, or since a write came to nothing."""
        self._dirty.update(self._pages)
        self.changed = True

    @classmethod
    def decode(cls, head: bytes, pages: dict[int, bytes]) -> Pages:
        """Raises ValueError or MsgspecError for what is none."""
        made = cls(_HEAD.decode(head)[0])
        for number, data in sorted(pages.items()):
            if number < made._low:
                continue
            stored = _PAGE.decode(data)
            page = made._pages.setdefault(number, _Page(Cursor()))
            page.done.merge(stored.finished)
            if stored.moved is not None:
                page.moved = Cursor.decode(stored.moved)
            page.counts = _read(stored.counts, np.zeros(PAGE, np.uint16)) if stored.counts is not None else None
            page.hidden = _read(stored.hidden, np.zeros(PAGE, np.int64)) if stored.hidden is not None else None
            for start, length in [(0, page.done.next), *page.done.ranges()]:
                page.clear(start, start + length)
        made.finish(made.next, made.next)  # a page that its rows complete is passed
        made.changed = False
        return made


def next_of(head: bytes) -> int:
    """What a head says, without its pages."""
    return _HEAD.decode(head)[0]


def _gaps(done: Cursor, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """What is not finished of a page from `begin` on and below `end`."""
    at = max(begin, done.next)
    for first, count in done.ranges():
        if first >= end:
            break
        if first > at:
            yield at, first
        at = max(at, first + count)
    if at < end:
        yield at, end


def _split(start: int, stop: int, moved: Cursor | None) -> Iterator[tuple[int, int, bool]]:
    """A gap by whether it is moved."""
    at = start
    for first, count in [(0, moved.next), *moved.ranges()] if moved is not None else []:
        low, high = max(first, at), min(first + count, stop)
        if low < high:
            if at < low:
                yield at, low, False
            yield low, high, True
            at = high
    if at < stop:
        yield at, stop, False


def _alike(start: int, stop: int, values: Values | None) -> Iterator[tuple[int, int, int]]:
    """A range by what is known of each number: neighbours that are alike, and their value."""
    if values is None:
        yield start, stop, 0
        return
    part = values[start:stop]
    edges = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), stop - start]
    for low, high in pairwise(edges):
        yield start + low, start + high, int(part[low])


def _stored(page: _Page) -> bytes:
    moved = page.moved.encode() if page.moved is not None else None
    return _encode([page.done.encode(), moved, _written(page.counts), _written(page.hidden)])


def _written(values: Values | None) -> bytes | None:
    if values is None:
        return None
    out, at = bytearray(), 0
    for low, high, value in _alike(0, PAGE, values):
        if value:
            for number in (low - at, high - low, value):
                put_number(out, number)
            at = high
    return bytes(out)


V = TypeVar("V", npt.NDArray[np.uint16], npt.NDArray[np.int64])


def _read(data: bytes, made: V) -> V:
    view = memoryview(data)
    number = at = 0
    while at < len(view):
        gap, at = get_number(view, at)
        length, at = get_number(view, at)
        value, at = get_number(view, at)
        number += gap
        made[number : number + length] = value
        number += length
    return made
