"""The owner of one extent for one group: hands messages out, takes their acks, and keeps what is finished durable.

    pull ─▶ desk: which numbers ─▶ (delivered before: their count durable) ─▶ blocks ─▶ parcels, in flight
    settle ─▶ desk: which are still in flight ─▶ pages ─▶ durable (`cursors`) ─▶ confirmed
    too often delivered ─▶ marked as moving, durable ─▶ keyed put into the dead letters ─▶ finished

It acts under one epoch of its row (`owners`), while this node's lease is valid. Its first act is to write all that was
finished under its own epoch. When it cannot write any more it is over, and everything in flight comes to its successor.

What fails, and what then happens
- It dies: its successor has all acks that were confirmed, and the counts of all deliveries but first ones. What was
  in flight is delivered again.
- It is paused beyond its lease: nothing that it does then is confirmed, and nothing is handed out.
- Clocks differ: what is hidden or delayed comes `max_skew_s` later than was said, by this node's clock.
- It dies between a dead letter's put and the note of it: the successor puts it again under the same key: once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from capellini.model import chunks
from capellini.model.errors import NotFound, Unavailable
from capellini.model.log import LogParcel, Settle, Settled
from capellini.model.message import MAX_VISIBILITY_S, Entry
from capellini.queues.log.cursors import Cursors, read_cursor
from capellini.queues.log.desk import Desk, Picked, Range
from capellini.queues.log.groups import Group, Wants, dead_letters_of
from capellini.queues.log.ordering import ByGroup, key_of, standing_of
from capellini.queues.log.pages import Pages
from capellini.queues.log.parcels import Cutter, Filling, Piece, code_of, first_of, is_for
from capellini.queues.log.place import LogPlace
from capellini.queues.log.reading import Reading
from capellini.queues.log.rows import Block
from capellini.queues.log.telling import BEFORE, name_of_lives, tell, tell_skipped
from capellini.queues.log.views import View
from capellini.queues.work.letters import PutMoved

BURY_AGAIN_S: Final = 1.0  # when the dead letters could not be reached
BURY_AT_ONCE: Final = 64  # dead letters beside each other: each is some rounds to the store, which they share
FILTER_AHEAD: Final = 2_000  # messages that are looked at together for a group that filters
LINE_UP: Final = 2_000  # messages that are lined up at a time, where order is by group: some milliseconds
LINE_UP_BYTES: Final = 1024 * 1024

Wanted = Callable[[], Wants]
MakeQueue = Callable[[str], Awaitable[None]]  # a work queue of that name, if there is none


class Owner:
    """`wants` is asked each time: a group's options may change. `nudge` is called when something may be had."""

    def __init__(
        self,
        place: LogPlace,
        reading: Reading,
        group: Group,
        epoch: int,
        wants: Wanted,
        put_moved: PutMoved,
        make_queue: MakeQueue,
        nudge: Callable[[], None],
    ) -> None:
        self.place, self.reading, self.group, self.epoch = place, reading, group, epoch
        self._wants, self._put_moved, self._make_queue, self._nudge = wants, put_moved, make_queue, nudge
        self.desk = Desk(Pages())
        self._cursors = Cursors(place, self.extent, group.reader, epoch, self.desk.pages)
        self._cutter = Cutter()
        self._held_put_ms = 0  # a group with a delay: its next fresh message was put then, and is not due yet
        self._burying: asyncio.Task[None] | None = None
        self.stopped = False

    @property
    def extent(self) -> str:
        return self.reading.extent

    async def begin(self) -> None:
        """Take over what was finished; nothing is handed out before. Raises StoreError."""
        stored = await read_cursor(self.place, self.extent, self.group.reader, self.epoch)
        if stored is not None:
            pages = Pages.decode(stored.head, stored.pages)
        elif self.group.start_ms:
            pages = Pages(await self.reading.first_since(self.group.start_ms))
            tell_skipped(self.place, self.known_as, [(0, pages.next)], BEFORE)
        else:
            pages = Pages()
        self._cursors = Cursors(self.place, self.extent, self.group.reader, self.epoch, pages)
        await self._cursors.begin()
        self.desk = Desk(pages, self._wants().delivery_limit, standing_of(self.place.options.ordered))
        self._cursors.settling = self._settling
        self.desk.recover()
        self._bury_soon()

    def _settling(self) -> Callable[[], None] | None:
        """What is to be done when all that is finished now is durable: lines of an ordered queue go on."""
        durable = self.desk.settling()
        if durable is None:
            return None

        def go_on() -> None:
            durable()
            self._nudge()

        return go_on

    def acts(self) -> bool:
        return not self.stopped and not self._cursors.stopped and self.place.lease.valid()

    def require(self) -> None:
        if not self.acts():
            raise Unavailable(f"this node does not read extent {self.extent} any more: try again")

    @property
    def finished(self) -> bool:
        """Has the group finished all that there will ever be? Durable only after `flush`."""
        end = self.reading.end
        return end is not None and self.desk.pages.next >= end

    async def flush(self) -> None:
        """All that is finished is durable."""
        if self._cursors.behind:
            await self._cursors.commit()

    def stop(self) -> None:
        self.stopped = True
        self._cursors.stop()
        if self._burying is not None:
            self._burying.cancel()

    async def ended(self) -> None:
        await self._cursors.ended()

    # Handing out

    def roll(self) -> None:
        """What was not settled in time comes back."""
        self.desk.limit = self._wants().delivery_limit
        if self.desk.roll(self.place.now_ms()):
            self._bury_soon()

    def next_ms(self) -> int | None:
        """When something can be had that cannot now."""
        fresh_at_ms = self._fresh_at_ms(self._wants())
        fresh = [fresh_at_ms] if fresh_at_ms and self.desk.out < self.reading.top() else []
        at_ms = self.desk.next_ms()
        return min(fresh if at_ms is None else [*fresh, at_ms], default=None)

    async def take(self, count: int, most_bytes: int, visibility_ms: int | None) -> list[LogParcel]:
        """Up to so many messages and about so many bytes; at least one if there is one."""
        while True:
            self.require()
            self.roll()
            before = self.desk.pages.next, self.desk.out
            picks = await self._picks(count)
            if not picks and self.desk.out >= self.reading.top():
                await self.reading.look(self.desk.out)
                self.require()
                picks = await self._picks(count)
            if not picks:
                return []
            parcels = await self._took(picks, count, most_bytes, visibility_ms)
            if parcels or (self.desk.pages.next, self.desk.out) == before:
                return parcels
            await self.place.clock.sleep(0)  # all of it was for others: further on, and let others run

    async def _took(
        self, picks: list[Picked], count: int, most_bytes: int, visibility_ms: int | None
    ) -> list[LogParcel]:
        blocks: list[list[Block]] = []
        try:
            await self._count(picks)
            for pick in picks:
                blocks.append(await self._blocks(pick, most_bytes, blocks[-1][-1:] if blocks else []))
            self.require()
        except BaseException:
            for pick in picks:
                self.desk.put_back(pick.first, pick.end, pick.deliveries)
            raise
        return self._hand_out(picks, blocks, count, most_bytes, visibility_ms)

    async def _picks(self, count: int) -> list[Picked]:
        desk = self.desk
        if desk.full:
            self.place.guards["too many deliveries in flight"] += 1
            return []
        if isinstance(desk.standing, ByGroup):
            await self._line_up(desk.standing, count)
        wants = self._wants()
        ahead = FILTER_AHEAD if wants.filter else 0
        return desk.picks(count, ahead, self.reading.top() if self._may_be_fresh(wants) else 0)

    def _fresh_at_ms(self, wants: Wants) -> int:
        """When the next fresh message is due, by the delay that the group has now; 0: at once, as far as is known."""
        put_ms, delay_ms = self._held_put_ms, wants.delay_ms
        return put_ms + 1 + delay_ms + self.place.max_skew_ms if put_ms and delay_ms else 0

    def _may_be_fresh(self, wants: Wants) -> bool:
        if self.place.now_ms() < self._fresh_at_ms(wants):
            return False
        self._held_put_ms = 0
        return True

    def _is_due(self, block: Block, wants: Wants) -> bool:
        """Are its messages old enough for a group with a delay? If not, they are waited for."""
        self._held_put_ms = block.put_ms
        return self._may_be_fresh(wants)

    def _oldest_ms(self, wants: Wants) -> int:
        """What was put before is for nobody: too old, or before the group's start."""
        return max(self.group.start_ms, self.place.now_ms() - wants.skip_older_ms if wants.skip_older_ms else 0)

    # Order by message group

    async def _line_up(self, lines: ByGroup, count: int) -> None:
        """Look ahead until so many can be had, or all that there is has been seen."""
        desk, wants = self.desk, self._wants()
        while lines.at_hand < count and not lines.full and desk.out < self.reading.top() and self._may_be_fresh(wants):
            at = desk.out
            blocks = self.reading.near(at, LINE_UP_BYTES) or await self.reading.read(at, LINE_UP_BYTES)
            self.require()
            for block in blocks:
                if not block.first <= desk.out < block.end:
                    continue  # somebody else lined it up meanwhile
                if lines.at_hand >= count or lines.full or not self._is_due(block, wants):
                    return
                self._see(lines, block, wants)
            if desk.out == at:
                self.place.guards["block is not there"] += 1
                return
            await self.place.clock.sleep(0)

    def _see(self, lines: ByGroup, block: Block, wants: Wants) -> None:
        desk, first = self.desk, self.desk.out
        end = min(block.end, self.reading.top(), first + LINE_UP)
        attributes = self._cutter.attributes(block, first, end)
        by, old = self.place.options.order_by, block.put_ms < self._oldest_ms(wants)
        others: list[int] = []
        for part in desk.left(first, end):
            for number in range(part.first, part.end):
                own = attributes[number - first]
                key = key_of(own.get(by)) if own else None
                if part.moving:
                    lines.moves(number, key)
                elif old or not is_for(own, self.group.name, wants.filter):
                    others.append(number)
                else:
                    lines.line_up(number, key, part.deliveries, part.at_ms)
        desk.out = end
        for number in others:
            desk.pages.finish(number, number + 1)
        tell_skipped(self.place, self.known_as, [(number, number + 1) for number in others])
        self._cursors.soon()

    async def _count(self, picks: Sequence[Picked]) -> None:
        """From the second delivery on its number is durable before anybody has the message."""
        again = [pick for pick in picks if pick.deliveries]
        for pick in again:
            self.desk.pages.count(pick.first, pick.end, pick.deliveries + 1)
        if again:
            await self._cursors.commit()

    async def _blocks(self, pick: Picked, most_bytes: int, last: list[Block]) -> list[Block]:
        """All of them that a pull of so many bytes needs. `last`: the one that was found last, if any."""
        found: list[Block] = []
        at, size = pick.first, 0
        while at < pick.end and size < most_bytes:
            blocks = last if last and last[0].first <= at < last[0].end else self.reading.near(at, most_bytes - size)
            blocks = blocks or await self.reading.read(at, most_bytes - size)
            if not blocks:
                self.place.guards["block is not there"] += 1
                break
            for block in blocks:
                found.append(block)
                size += len(block.chunks)
                at = block.end
                if at >= pick.end:
                    break
        return found

    def _hand_out(
        self,
        picks: Sequence[Picked],
        blocks: Sequence[list[Block]],
        count: int,
        most_bytes: int,
        visibility_ms: int | None,
    ) -> list[LogParcel]:
        wants = self._wants()
        until_ms = self.place.now_ms() + (wants.visibility_ms if visibility_ms is None else visibility_ms)
        parcels: list[LogParcel] = []
        skipped: list[Range] = []
        size, ordered, short = 0, self.desk.standing.ordered, False
        for pick, of_pick in zip(picks, blocks, strict=True):
            at = pick.first
            parcel: Filling | None = None
            for piece, put_ms in self._pieces(pick, of_pick, most_bytes, wants) if not short else ():
                if piece.first > at:
                    break  # behind a piece that was cut
                if piece.data is None:
                    at = piece.end
                    self.desk.skip(piece.first, piece.end)
                    skipped.append((piece.first, piece.end))
                    continue
                if not count or (size + len(piece.data) > most_bytes and (parcels or parcel)):
                    break
                piece = first_of(piece, count)
                at = piece.end
                count -= piece.end - piece.first
                size += len(piece.data or b"")
                if parcel is not None and parcel.takes(piece, put_ms):
                    parcel.add(piece)
                    continue
                if parcel is not None:
                    parcels.append(self._flown(parcel, pick.deliveries + 1, until_ms))
                parcel = Filling(piece, put_ms)
            if parcel is not None:
                parcels.append(self._flown(parcel, pick.deliveries + 1, until_ms))
            self.desk.put_back(at, pick.end, pick.deliveries)
            short = ordered and (short or at < pick.end)  # nothing overtakes what was put back
        tell_skipped(self.place, self.known_as, skipped)
        self._cursors.soon()  # what was skipped
        return parcels

    def _pieces(self, pick: Picked, blocks: Sequence[Block], most_bytes: int, wants: Wants) -> list[tuple[Piece, int]]:
        """In order, as far as they are for now."""
        oldest_ms, exact = self._oldest_ms(wants), self.desk.standing.ordered
        found: list[tuple[Piece, int]] = []
        for block in blocks:
            first, end = max(pick.first, block.first), min(pick.end, block.end)
            if first >= end:
                continue
            if not pick.deliveries and not self._is_due(block, wants):
                break
            if block.put_ms < oldest_ms:
                self.place.guards["message skipped: too old for the group"] += 1
                found.append((Piece(first, end, None), block.put_ms))
                continue
            named, whole = self.group.name, bool(found) and not pick.deliveries
            pieces = list(self._cutter.pieces(block, first, end, named, wants.filter, most_bytes, whole, exact))
            found += [(piece, block.put_ms) for piece in pieces]
            if not pieces or pieces[-1].end < end:
                break
        return found

    def _flown(self, parcel: Filling, deliveries: int, until_ms: int) -> LogParcel:
        place, reader = self.place, self.group.reader
        count = parcel.end - parcel.first
        delivery = self.desk.fly(parcel.first, parcel.end, deliveries, until_ms + place.max_skew_ms)
        if deliveries > 1:
            place.guards["delivered again"] += 1
        if place.events.kept:
            place.events.delivered(self.known_as, place.generation, [(parcel.first, count)], deliveries)
        code = code_of(place.secret, self.extent, reader, self.epoch, delivery, parcel.first, count)
        data = parcel.data[0] if len(parcel.data) == 1 else b"".join(parcel.data)
        return LogParcel(
            self.extent, reader, self.epoch, delivery, parcel.first, count, deliveries, parcel.put_ms, until_ms, code,
            data,
        )  # fmt: skip

    @property
    def known_as(self) -> str:
        """To those who follow what happens: numbers are of one extent, counts of one version of the group."""
        return name_of_lives(self.place, self.group.reader, self.extent)

    # Settling

    async def settle(self, items: Sequence[Settle]) -> list[Settled]:
        """What of each was still in flight in that delivery; acks, and delays of nacks, are durable when this
        returns."""
        self.require()
        self.roll()
        full = self.desk.full or self.desk.crowded
        acked: list[tuple[list[Range], int]] = []
        found = [self._settle(item, acked) for item in items]
        nacked = any(item.verb in ("nack", "release") for item in items)
        if acked or (nacked and self.desk.pages.changed):
            await self._cursors.commit()
            for ranges, deliveries in acked:
                tell(self.place, self.place.events.acked, self.known_as, ranges, deliveries)
        if full or nacked:
            self._nudge()
        return [Settled([(first, end - first) for first, end in ranges]) for ranges in found]

    def _settle(self, item: Settle, acked: list[tuple[list[Range], int]]) -> list[Range]:
        """`acked`: what is to be made durable, and to be told then."""
        place, desk = self.place, self.desk
        mine = (item.extent, item.reader, item.epoch) == (self.extent, self.group.reader, self.epoch)
        flight = desk.flights.get(item.delivery) if mine else None
        if flight is None:
            place.guards["stale settle refused"] += 1
            return []
        ranges = [(first, first + count) for first, count in item.ranges if count > 0]
        now_ms = place.now_ms()
        if item.verb == "ack":
            done = desk.ack(item.delivery, ranges)
            if done:
                acked.append((done, flight.deliveries))
        elif item.verb == "nack":
            delay_ms = self._wants().delay_of(flight.deliveries) if item.value_ms is None else item.value_ms
            at_ms = now_ms + 1 + delay_ms + place.max_skew_ms if delay_ms else now_ms  # 1: what the clock cut off
            done = desk.nack(item.delivery, ranges, at_ms, delay_ms > 0)
            tell(place, place.events.nacked, self.known_as, done, flight.deliveries)
            self._bury_soon()
        elif item.verb == "release":
            done = desk.release(item.delivery, ranges, now_ms)
            place.guards["given back unseen"] += 1
        else:
            visibility_ms = self._wants().visibility_ms if item.value_ms is None else item.value_ms
            until_ms = now_ms + min(visibility_ms, int(MAX_VISIBILITY_S * 1000))
            done = desk.extend(item.delivery, ranges, until_ms + place.max_skew_ms)
            tell(place, place.events.extended, self.known_as, done, flight.deliveries)
        return done

    # Dead letters

    def _bury_soon(self) -> None:
        if self.desk.burying and self._burying is None and not self.stopped:
            self._burying = asyncio.get_running_loop().create_task(self._bury())

    async def _bury(self) -> None:
        """Carry what was delivered too often to the dead letters: marked first, then put under a key, then finished.
        Many beside each other; what could not be put is tried again after a while."""
        try:
            while self.desk.burying and self.acts():
                await self._cursors.commit()
                error = await self._bury_some()
                await self._cursors.commit()
                self._nudge()
                if error is not None:
                    raise error
        except Exception as error:
            self.place.guards["burying put off"] += 1
            self.place.trouble.say(f"dead letters of group {self.group.name} could not be moved", error)
            await self.place.clock.sleep(BURY_AGAIN_S)
        finally:
            self._burying = None
            if self.acts():
                self._bury_soon()

    async def _bury_some(self) -> BaseException | None:
        """The next of them; the first error that there was."""
        numbers = self.desk.letters(BURY_AT_ONCE)
        await self.reading.read(numbers[0], 1)  # so that not all of them read the same from the store
        done = await asyncio.gather(*[self._carry(number) for number in numbers], return_exceptions=True)
        for number, one in zip(numbers, done, strict=True):
            if one is None:
                self.desk.buried(number, number + 1)
        return next((one for one in done if one is not None), None)

    async def _carry(self, number: int) -> None:
        place, group = self.place, self.group
        entry = await self._entry(number)
        target = dead_letters_of(place.name, group.name)
        key = f"moved:{place.name}/{place.generation}/{group.reader}/{self.extent}/{number}"  # after a seek: once more
        try:
            await self._put_moved(target, key, entry)
        except NotFound:
            await self._make_queue(target)
            await self._put_moved(target, key, entry)
        place.guards["buried"] += 1
        place.events.dead(self.known_as, place.generation, [(number, 1)], target)

    async def _entry(self, number: int) -> Entry:
        blocks = await self.reading.read(number, 1)
        if not blocks:
            raise Unavailable(f"message {number} of extent {self.extent} cannot be read now")
        piece = next(self._cutter.pieces(blocks[0], number, number + 1, self.group.name, {}, 1, False))
        origin = f"{self.place.name}@{self.group.name}/{self.place.generation}/{number}"
        if piece.data is None:
            return Entry(b"", None, 0, origin)
        head = chunks.head_of(piece.data)
        [body], [attributes] = chunks.bodies_of(piece.data, head), chunks.attributes_of(piece.data, head)
        return Entry(body, attributes, 0, origin)

    # Looking

    async def view(self) -> View:
        self.roll()
        desk, top = self.desk, self.reading.top()
        fresh = max(0, top - desk.out)
        delayed = fresh if self._fresh_at_ms(self._wants()) > self.place.now_ms() else 0
        oldest_ms = await self.reading.put_ms_of(desk.pages.next) if desk.pages.next < top else None
        return View(
            self.extent, self.group.reader, self.epoch, desk.pages.next, desk.out, desk.ready + fresh - delayed,
            desk.flying, desk.waiting + delayed, oldest_ms, self._says(),
        )  # fmt: skip

    def _says(self) -> str:
        if self.desk.full:
            return "too many deliveries are in flight: consumers must ack"
        if self.desk.crowded:
            return "too many messages were given back one by one: nothing new comes until consumers ack these"
        lines = self.desk.standing
        if isinstance(lines, ByGroup) and lines.full:
            return "too many messages are held back by earlier ones of their groups: consumers must ack these"
        return ""
