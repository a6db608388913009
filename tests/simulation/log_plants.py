"""Planted bugs of log queues: each takes one guard away, and the simulation must find it. Those of what writes are in
`log_writing_plants`, in the same bed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
from tests.simulation.log_writing_plants import plants
from tests.simulation.planting import Patch

from capellini.queues import catalog
from capellini.queues.log import (
    cursors,
    desk,
    groups,
    lanes,
    lines,
    ordering,
    owner,
    pages,
    queue,
    readers,
    reading,
    retention,
    rows,
    settling,
)

# Groups


@plants(1)
def groups_go_with_their_generation(patch: Patch) -> None:
    """A purge takes them along."""
    patch(catalog.QueueRecord, "creation", property(lambda self: self.generation))


# Reading


@plants(11)
def read_past_what_is_confirmed(patch: Patch) -> None:
    """Blocks that are on their way, too."""
    top, learn = reading.Reading.top, reading.Reading._learn

    def greedy(self: Any) -> int:
        writer = self._writers.writer(self.extent) if self.end is None else None
        return top(self) if writer is None else max(top(self), writer.next_number)

    def all_of_them(self: Any, blocks: Any) -> None:
        learn(self, blocks)
        self._confirmed = max([self._confirmed, *[block.end for block in blocks]])

    patch(reading.Reading, "top", greedy)
    patch(reading.Reading, "_learn", all_of_them)


@plants(11)
def read_past_the_sealed_end(patch: Patch) -> None:
    """A reader that saw more blocks than the end lets be goes on to them."""
    top, learn = reading.Reading.top, reading.Reading._learn

    def seen(self: Any, blocks: Any) -> None:
        learn(self, blocks)
        self.seen = max([getattr(self, "seen", 0), *[block.end for block in blocks]])

    def beyond(self: Any) -> int:
        return max(top(self), getattr(self, "seen", 0)) if self.end is not None else top(self)

    patch(reading.Reading, "_learn", seen)
    patch(reading.Reading, "top", beyond)


# Owners and cursors


@plants(3)
def acks_confirmed_before_they_are_durable(patch: Patch) -> None:
    async def at_once(self: Any) -> None:
        self.soon()

    patch(cursors.Cursors, "commit", at_once)


@plants(2, 3)
def owner_acts_after_its_lease(patch: Patch) -> None:
    made = cursors.Cursors.__init__

    def careless(self: Any, place: Any, *more: Any) -> None:
        made(self, place, *more)
        self._place = SimpleNamespace(
            lease=SimpleNamespace(valid=lambda: True, require=lambda: None), store=place.store, clock=place.clock,
            guards=place.guards,
        )  # fmt: skip

    patch(cursors.Cursors, "__init__", careless)
    patch(owner.Owner, "acts", lambda self: not self.stopped)


@plants(1, 3)
def epoch_not_in_the_key(patch: Patch) -> None:
    """All owners write under the first one's epoch."""
    made = cursors.Cursors.__init__

    def first(self: Any, place: Any, extent: str, reader: str, epoch: int, pages: Any) -> None:
        made(self, place, extent, reader, 1, pages)

    read = cursors.read_cursor

    async def all_of_it(place: Any, extent: str, reader: str, below: int = cursors.ABOVE_ALL) -> Any:
        return await read(place, extent, reader)

    patch(cursors.Cursors, "__init__", first)
    patch(owner, "read_cursor", all_of_it)


@plants(3)
def new_owner_begins_at_the_start(patch: Patch) -> None:
    """It looks for what the one before it in number has written, and that one may have written nothing."""

    async def nothing_found(place: Any, extent: str, reader: str, below: int = cursors.ABOVE_ALL) -> Any:
        found = await read(place, extent, reader, below)
        return found if found is None or found.epoch == below - 1 else None

    read = cursors.read_cursor
    patch(owner, "read_cursor", nothing_found)


@plants(2)
def count_not_durable_before_a_second_delivery(patch: Patch) -> None:
    async def in_memory(self: Any, picks: Any) -> None:
        return None

    patch(owner.Owner, "_count", in_memory)


@plants(4)
def stale_receipt_accepted(patch: Patch) -> None:
    """Whatever delivery it names: the message is in flight."""

    def current(self: Any, item: Any, *more: Any) -> Any:
        for delivery, flight in self.desk.flights.items():
            if any(low <= first < high for first, _ in item.ranges for low, high, _ in flight.left):
                return settle(self, msgspec.structs.replace(item, delivery=delivery, epoch=self.epoch), *more)
        return settle(self, item, *more)

    settle = owner.Owner._settle
    patch(owner.Owner, "_settle", current)


@plants(2, 4)
def receipt_of_another_version_of_the_group_accepted(patch: Patch) -> None:
    """Owners number their deliveries alike, before a seek and after it."""

    def whichever(self: Any, item: Any, *more: Any) -> Any:
        return settle(self, msgspec.structs.replace(item, reader=self.group.reader), *more)

    settle = owner.Owner._settle
    patch(owner.Owner, "_settle", whichever)


@plants(2)
def flight_forgotten_when_its_time_is_half_over(patch: Patch) -> None:
    fly = desk.Desk.fly

    def short(self: Any, first: int, end: int, deliveries: int, until_ms: int) -> int:
        return fly(self, first, end, deliveries, until_ms - 1_500)

    patch(desk.Desk, "fly", short)


# Dead letters, groups, retention


@plants(1)
def dead_letter_finished_before_it_was_put(patch: Patch) -> None:
    async def hasty(self: Any, number: int) -> None:
        self.desk.pages.finish(number, number + 1)
        await self._cursors.commit()
        await carry(self, number)

    carry = owner.Owner._carry
    patch(owner.Owner, "_carry", hasty)


@plants(2, 3, 11)
def dead_letter_put_under_a_new_key_each_time(patch: Patch) -> None:
    async def anew(self: Any, number: int) -> None:
        put = self._put_moved

        async def unkeyed(target: str, key: str, entry: Any) -> None:
            await put(target, f"{key}/{self.epoch}/{self.place.random.random()}", entry)

        self._put_moved = unkeyed
        try:
            await carry(self, number)
        finally:
            self._put_moved = put

    carry = owner.Owner._carry
    patch(owner.Owner, "_carry", anew)


@plants(1, 3)
def seek_keeps_what_was_finished(patch: Patch) -> None:
    read = cursors.read_cursor
    part = cursors.partition_of

    def of_the_name(place: Any, extent: str, reader: str) -> Any:
        return part(place, extent, reader.rpartition("/")[0])

    patch(cursors, "partition_of", of_the_name)
    patch(owner, "read_cursor", lambda place, extent, reader, below: read(place, extent, reader))


@plants(1)
def extent_dropped_before_a_group_has_finished_it(patch: Patch) -> None:
    """One group is enough."""

    async def some(place: Any, extent: Any, live: Any, readers: Any) -> bool:
        return await finished(place, extent, live[:1], readers)

    finished = retention._finished_by_all
    patch(retention, "_finished_by_all", some)


@plants(1, 8)
def drop_that_was_begun_not_resumed(patch: Patch) -> None:
    async def never(place: Any, extent: Any, readers: Any) -> bool:
        return False

    patch(retention, "_half_dropped", never)


@plants(3, 4, 11)
def group_sought_without_waiting_for_the_caches(patch: Patch) -> None:
    patch(groups, "SETTLE_S", 0.0)


@plants(2)
def newer_version_of_a_group_not_looked_for(patch: Patch) -> None:
    async def as_known(self: Any, name: str, version: int = 0) -> Any:
        return await live(self, name)

    live = groups.Groups.live
    patch(groups.Groups, "live", as_known)


@plants(1, 8, 10)
def row_that_was_taken_unheard_left_alone(patch: Patch) -> None:
    """Who took a row and failed to begin leaves it to others, and they to it."""

    class Nothing(set[Any]):
        def add(self, one: Any) -> None:
            return None

    made, turn = readers.Readers.__init__, readers.Readers.turn

    def forgetful(self: Any, *arguments: Any) -> None:
        made(self, *arguments)
        self._asked = Nothing()

    async def again(self: Any) -> None:
        await turn(self)
        self._asked = Nothing()

    patch(readers.Readers, "__init__", forgetful)
    patch(readers.Readers, "turn", again)


@plants(10)
def taken_for_nobody_and_kept(patch: Patch) -> None:
    patch(queue.LogQueue, "_release", lambda self, group, taking: taking.cancelled() or taking.exception())


@plants(2)
def extent_that_is_not_known_taken_for_gone(patch: Patch) -> None:
    async def not_seen(self: Any, extent: str) -> bool:
        return self._extents.get(extent) is None

    patch(settling.Settling, "_gone", not_seen)


# Times


@plants(2, 5)
def clocks_taken_for_equal(patch: Patch) -> None:
    made = owner.Owner.__init__

    def sure(self: Any, place: Any, *more: Any) -> None:
        place.max_skew_ms = 0
        made(self, place, *more)

    patch(owner.Owner, "__init__", sure)


@plants(5)
def delay_of_a_nack_not_durable(patch: Patch) -> None:
    patch(pages.Pages, "hide", lambda self, first, end, at_ms: None)


@plants(11)
def delayed_messages_moved_without_a_note(patch: Patch) -> None:
    """What is in hand is not in the row: whoever comes after a crash moves it again."""
    change = lanes.Lane._change

    async def forgetful(self: Any, seen: Any, after: Any) -> Any:
        await change(self, seen, lanes.Carried(after.era, after.sequence, b"", ()))
        return after

    patch(lanes.Lane, "_change", forgetful)


# Order


@plants(6)
def line_goes_on_while_messages_are_out(patch: Patch) -> None:
    picks = ordering.Total.picks

    def eager(self: Any, most: int) -> Any:
        out, self._out = self._out, 0
        found = picks(self, most)
        self._out += out
        return found

    patch(ordering.Total, "picks", eager)
    patch(ordering.Total, "admits", lambda self, found: not found and not self._standing)


@plants(6)
def message_that_came_back_stands_last(patch: Patch) -> None:
    """Of its group: it is offered behind those that were held back for it."""

    def behind(self: Any, first: int, end: int, deliveries: int, at_ms: int) -> None:
        for number in range(first, end):
            line = self._out.pop(number)
            line.out -= 1
            line.standing.append((number, deliveries, 0))
            self._held += 1
            if not line.out:
                self._offer(line)

    patch(ordering.ByGroup, "back", behind)


@plants(6)
def line_goes_on_before_it_is_durable(patch: Patch) -> None:
    """That a message is finished: an owner that dies now leaves it to be delivered again, after later ones."""

    def at_once(self: Any, first: int, end: int) -> None:
        self.pages.finish(first, end)
        if self.standing.ordered:
            self.standing.leave(first, end)

    patch(desk.Desk, "_finish", at_once)


@plants(6)
def next_extent_read_beside_the_first(patch: Patch) -> None:
    async def all_of_them(self: Any, group: Any) -> list[Any]:
        return [one for one in self._extents.known() if not await self.has_finished(one, group)]

    patch(readers.Readers, "active", all_of_them)


# What callers are told


@plants(9)
def what_may_be_there_told_as_not_done(patch: Patch) -> None:
    """Chunks of a broken writer, whose extent is not sealed yet."""

    def plainly(line: Any, error: Any) -> None:
        for item in line.items:
            item.unsure = False
        fail(line, error)

    fail = lines._fail
    patch(lines, "_fail", plainly)


@plants(1, 11)
def read_past_the_first_gap(patch: Patch) -> None:
    def whatever_follows(blocks: Any, number: int) -> Any:
        return [block for block in blocks if block.end > number or (block.end == number and not block.count)]

    patch(rows, "unbroken", whatever_follows)
