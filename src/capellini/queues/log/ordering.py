"""Ordered delivery: what of an extent's messages may be had while others are not finished. Pure: no store, no clock.

A queue with `ordered` has lines: of `total` one with all messages, of `group` one for each value of the attribute
`order_by`. A message without that attribute names no message group and is in nobody's way: it is a line of its own.

    line    ■ ■ ■ │ ▲ ▲ │ □ □ □ □        ■ finished   ▲ out: picked, in flight, on its way to the dead letters, or
                                           finished but not durably   □ standing: came back, or held back

The rule: a line whose messages are out gives nothing. When none is out any more, the next delivery begins with the
first of the line that is not finished, whether it came back or was never delivered. So

- a message is delivered only when all before it are finished, or stand before it in the same delivery; whoever has the
  front of a line has it alone, as with message groups elsewhere;
- a delivery may have several messages of one line, in order. Its consumer may settle them one by one: an ack of a later
  one counts although an earlier one was nacked (its consumer had seen both, in order, and decided). What is nacked, or
  not settled in time, waits until the rest of its delivery is settled or over, and is delivered before anything later;
- while the front waits (the delay of a nack), all of its line waits;
- what comes back is delivered together only with what was delivered as often, and without anything new behind it: one
  message that fails again and again takes no others to the dead letters with it;
- a message that goes to the dead letters frees its line when it has arrived there, durably. Sent back from there, it
  is a new message at the end.

Chains keep the order between extents: the next one is read when all of this one is finished durably (`readers`).

Memory. `Total` keeps ranges. `ByGroup` keeps what it has lined up, message by message: an entry for each that is out or
held back. It looks further ahead only while these are fewer than MOST_KNOWN; behind that many messages of groups that
are not settled, others wait too.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from capellini.queues.log.desk import MOST_PICKS, Picked, Stood

MOST_KNOWN: Final = 100_000  # messages lined up by group: some 30 MB; Amazon's queues look 120,000 ahead
KEY_CHARS: Final = 64  # longer values of the attribute are known by a hash of them


class Total:
    """One line, in ranges."""

    ordered, scans = True, False

    def __init__(self) -> None:
        self._standing: list[tuple[int, int, int, int]] = []  # (first, end, deliveries, at_ms), by number
        self._out = 0
        self._now_ms = 0

    @property
    def ready(self) -> int:
        return sum([end - first for first, end, _, at_ms in self._standing if at_ms <= self._now_ms])

    @property
    def waiting(self) -> int:
        return sum([end - first for first, end, _, at_ms in self._standing if at_ms > self._now_ms])

    @property
    def parts(self) -> int:
        return len(self._standing)

    def add(self, first: int, end: int, deliveries: int, at_ms: int) -> None:
        insort(self._standing, (first, end, deliveries, at_ms))

    def back(self, first: int, end: int, deliveries: int, at_ms: int) -> None:
        self._out -= end - first
        self.add(first, end, deliveries, at_ms)

    def leave(self, first: int, end: int) -> None:
        self._out -= end - first

    def goes(self, first: int, end: int) -> None:
        self._out += end - first

    def picks(self, most: int) -> list[Picked]:
        found: list[Picked] = []
        if self._out or not self._front():
            return found
        deliveries = self._standing[0][2]
        while most > 0 and self._front() and self._standing[0][2] == deliveries:
            first, end, _, at_ms = self._standing.pop(0)
            if end - first > most:
                self._standing.insert(0, (first + most, end, deliveries, at_ms))
                end = first + most
            most -= end - first
            self._out += end - first
            if found and found[-1].end == first:
                first = found.pop().first
            found.append(Picked(first, end, deliveries))
        return found

    def _front(self) -> bool:
        return bool(self._standing) and self._standing[0][3] <= self._now_ms

    def admits(self, found: Sequence[Picked]) -> bool:
        return not found and not self._standing and not self._out

    def roll(self, now_ms: int) -> bool:
        before, self._now_ms = self._now_ms, now_ms
        return not self._out and bool(self._standing) and before < self._standing[0][3] <= now_ms

    def next_ms(self) -> int | None:
        if self._out or not self._standing or self._front():
            return None
        return self._standing[0][3]

    def stands(self) -> Iterable[Stood]:
        return self._standing


class _Line:
    __slots__ = ("counted", "key", "out", "standing")

    def __init__(self, key: str | None) -> None:
        self.key = key
        self.out = 0
        self.standing: list[tuple[int, int, int]] = []  # (number, deliveries, at_ms), by number
        self.counted = 0  # of `at_hand`


class ByGroup:
    """A line for each message group. What is fresh is lined up first (`line_up`), in order; so is what an earlier owner
    left, and what is on its way to the dead letters (`moves`)."""

    ordered = scans = True
    parts = 0  # see MOST_KNOWN

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._out: dict[int, _Line] = {}
        self._free: list[tuple[int, int, _Line]] = []  # (its first number, …, line); overtaken ones are passed over
        self._later: list[tuple[int, int, int, _Line]] = []  # (at_ms, its first number, …, line); the same
        self._pushes = 0  # in the heaps: lines are not compared
        self._held = self._delayed = 0  # standing; of these with a delay
        self._now_ms = 0
        self.at_hand = 0  # standing in lines that can be had now

    # What there is

    @property
    def ready(self) -> int:
        return self._held - self._delayed

    @property
    def waiting(self) -> int:
        return self._delayed

    @property
    def full(self) -> bool:
        """Nothing further is to be lined up now."""
        return self._held + len(self._out) >= MOST_KNOWN

    def _line(self, key: str | None) -> _Line:
        if key is None:
            return _Line(None)
        found = self._lines.get(key)
        if found is None:
            found = self._lines[key] = _Line(key)
        return found

    def line_up(self, number: int, key: str | None, deliveries: int, at_ms: int = 0) -> None:
        """The next one that was not seen before."""
        line = self._line(key)
        at_ms = at_ms if at_ms > self._now_ms else 0
        line.standing.append((number, deliveries, at_ms))
        self._held += 1
        self._delayed += 1 if at_ms else 0
        if len(line.standing) == 1:
            self._offer(line)
        elif line.counted:
            line.counted += 1
            self.at_hand += 1

    def moves(self, number: int, key: str | None) -> None:
        """It was not seen before, and is on its way to the dead letters."""
        line = self._line(key)
        line.out += 1
        self._out[number] = line

    def _offer(self, line: _Line) -> None:
        """Something changed: can it be had, now or later?"""
        counted = 0
        if not line.out and line.standing:
            number, _, at_ms = line.standing[0]
            self._pushes += 1
            if at_ms <= self._now_ms:
                counted = len(line.standing)
                heapq.heappush(self._free, (number, self._pushes, line))
            else:
                heapq.heappush(self._later, (at_ms, number, self._pushes, line))
        self.at_hand += counted - line.counted
        line.counted = counted
        if not line.out and not line.standing and line.key is not None:
            del self._lines[line.key]

    # Out and back

    def add(self, first: int, end: int, deliveries: int, at_ms: int) -> None:
        """What an earlier owner left is lined up when it is met: which line it is in must be read."""

    def goes(self, first: int, end: int) -> None:
        """So is what is on its way to the dead letters."""

    def back(self, first: int, end: int, deliveries: int, at_ms: int) -> None:
        at_ms = at_ms if at_ms > self._now_ms else 0
        changed: dict[int, _Line] = {}
        for number in range(first, end):
            line = self._out.pop(number)
            line.out -= 1
            insort(line.standing, (number, deliveries, at_ms))
            changed[id(line)] = line
        self._held += end - first
        self._delayed += end - first if at_ms else 0
        self._offer_all(changed.values())

    def leave(self, first: int, end: int) -> None:
        """Of what was buried before it was lined up nobody here knows."""
        changed: dict[int, _Line] = {}
        for number in range(first, end):
            line = self._out.pop(number, None)
            if line is not None:
                line.out -= 1
                changed[id(line)] = line
        self._offer_all(changed.values())

    def _offer_all(self, lines: Iterable[_Line]) -> None:
        for line in lines:
            if not line.out:
                self._offer(line)

    def picks(self, most: int) -> list[Picked]:
        """The fronts of as many lines as it takes, in order of their numbers."""
        chosen: list[tuple[int, int]] = []
        while most > len(chosen) and self._free:
            number, _, line = heapq.heappop(self._free)
            if line.out or not line.standing or line.standing[0][0] != number:
                continue  # it was overtaken
            chosen += self._chosen(line, most - len(chosen))
            self._offer(line)
        runs = _runs(sorted(chosen))
        for rest in runs[MOST_PICKS:]:  # of each line the last ones: the others are before them
            self.back(rest.first, rest.end, rest.deliveries, 0)
        return runs[:MOST_PICKS]

    def _chosen(self, line: _Line, most: int) -> list[tuple[int, int]]:
        deliveries, count = line.standing[0][1], 0
        for _, times, at_ms in line.standing[:most]:
            if times != deliveries or at_ms > self._now_ms:
                break
            count += 1
            self._delayed -= 1 if at_ms else 0
        taken = line.standing[:count]
        del line.standing[:count]
        line.out = count
        self._held -= count
        self._out.update((number, line) for number, _, _ in taken)
        return [(number, deliveries) for number, _, _ in taken]

    def admits(self, found: Sequence[Picked]) -> bool:
        return False

    def roll(self, now_ms: int) -> bool:
        self._now_ms = now_ms
        changed = False
        while self._later and self._later[0][0] <= now_ms:
            _, number, _, line = heapq.heappop(self._later)
            if not line.out and line.standing and line.standing[0][0] == number:
                self._offer(line)
                changed = True
        return changed

    def next_ms(self) -> int | None:
        while self._later:
            at_ms, number, _, line = self._later[0]
            if not line.out and line.standing and line.standing[0][::2] == (number, at_ms):
                return at_ms
            heapq.heappop(self._later)
        return None

    def stands(self) -> Iterable[Stood]:
        """Lines of one message are known by their place in the heaps alone."""
        offered = [*(line for _, _, line in self._free), *(line for _, _, _, line in self._later)]
        for line in {id(line): line for line in (*self._lines.values(), *offered)}.values():
            yield from ((number, number + 1, deliveries, at_ms) for number, deliveries, at_ms in line.standing)


def _runs(numbers: Sequence[tuple[int, int]]) -> list[Picked]:
    """(number, deliveries), by number: neighbours that were delivered as often, as one."""
    found: list[Picked] = []
    for number, deliveries in numbers:
        if found and found[-1].end == number and found[-1].deliveries == deliveries:
            found.append(Picked(found.pop().first, number + 1, deliveries))
        else:
            found.append(Picked(number, number + 1, deliveries))
    return found


def key_of(value: str | None) -> str | None:
    """How a line is known: by the attribute's value, or by a hash of a long one."""
    if value is None or len(value) <= KEY_CHARS:
        return value
    return "#" + blake2b(value.encode(), digest_size=24).hexdigest()


def standing_of(ordered: str) -> Total | ByGroup | None:
    """For a queue's option `ordered`; None: it has none."""
    if ordered == "total":
        return Total()
    return ByGroup() if ordered == "group" else None
