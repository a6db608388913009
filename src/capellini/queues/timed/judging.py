"""What a holder makes of the rows that it reads.

    finished before                       passed over
    a copy of what was read               dropped: second copies have the same name (id and version)
    cancelled                             passed over: by a caller, or the row of a move that came to nothing
    moved away                            passed over; the row that it was moved to is made sure of first
    its key names another id              void: passed over
    else                                  on the desk until it is finished

What must be asked, or written, before a row can be judged is done for a whole page first (`prepared`); judging itself
is done at once, so that nothing changes between two rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

import msgspec

from capellini.queues.timed.keyed import accepted
from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.positions import TICKS_PER_S, ms_of_ticks, ticks_of
from capellini.queues.timed.putting import COPY_WITHIN_S
from capellini.queues.timed.records import Known, Name
from capellini.queues.timed.rows import Reach, TimedRow, mark_row, order_key, read_row, write_rows
from capellini.queues.timed.telling import tell_void

COPY_WITHIN: Final = int(COPY_WITHIN_S * TICKS_PER_S)
RECENT_SWEEP: Final = 2_000  # names added, at least, between two looks for those that are old enough to be forgotten


class Judging:
    """`stamp()`: of the next marker, above those of all before."""

    def __init__(self, place: TimedPlace, known: Known, stamp: Callable[[], int]) -> None:
        self._place = place
        self._stamp = stamp
        self.ahead: set[UUID] = set(known.done)  # finished, or leaving, before they are read
        self.tentative: set[UUID] = set()  # passed over, but not durably finished yet: still open to the next holder
        self.hidden, self.counts = known.hidden, known.counts  # what earlier holders noted of rows
        self.recent: dict[Name, None] = dict.fromkeys(known.recent)  # in the order in which they came
        self._added = self._kept = 0
        self._named: dict[UUID, bool] = {}  # of the page at hand: is this row the one that its key names? For good

    def noted(self, row: TimedRow) -> tuple[int, int]:
        """Until when this message is hidden (0: it is not), and how often it was delivered. Asked once, when it comes
        on the desk: from then on the desk knows."""
        return self.hidden.pop(row.name, 0), self.counts.pop(row.name, row.deliveries)

    async def prepared(self, reach: Reach) -> set[UUID] | None:
        """Settles what must be known, or made sure of, before a row may be judged; those to pass over. None: a row was
        written among those that were read, so read again. Nothing is remembered before all is settled: a page that is
        read again must not look as if its rows had been judged."""
        passed: set[UUID] = set()
        moved: list[Name] = []
        again = False
        for row in reach.rows:
            if row.position in self.ahead or row.cancelled:
                continue
            if row.moved_to is not None:
                passed.add(row.position)
                moved.append(row.name)
                again |= await self._moved_on(row, row.moved_to, reach.to)
            elif row.moved_from is not None:
                passed.add(row.moved_from if await self._moved_here(row) else row.position)
            elif not await self._of_its_key(row):
                self._place.guards["void row of a key passed over"] += 1
                tell_void(self._place, row.id)
                passed.add(row.position)
        if again:
            return None
        self._named.clear()
        for name in moved:  # their puts may not be through: copies of them are no messages either
            self.remember(name)
        return passed

    async def _of_its_key(self, row: TimedRow) -> bool:
        """Is this the id that its key names? Copies of what was read, and moved rows, have been asked for before; and
        so have those of a page that is read again because the store did not answer for one of them."""
        if row.key is None or row.version or row.name in self.recent:
            return True
        if row.position not in self._named:
            self._named[row.position] = await accepted(self._place, row.key, row)
        return self._named[row.position]

    async def _moved_on(self, row: TimedRow, there: UUID, read_to: UUID) -> bool:
        """A row whose message was moved away: to a later place, then that one's row must be there. True: it was
        written now, and lies within what was read."""
        if order_key(there) < order_key(row.position) or there in self.ahead:
            return False
        if await read_row(self._place, there) is not None:
            return False
        self._place.guards["row of a move written by the reader"] += 1
        await write_rows(self._place, [moved_row(row, there, ms_of_ticks(ticks_of(there)), row.deliveries)], begun=True)
        return order_key(there) <= order_key(read_to)

    async def _moved_here(self, row: TimedRow) -> bool:
        """A row that was moved to an earlier place: the later one must be marked before this one may be handed out."""
        there = row.moved_from
        assert there is not None
        if order_key(there) < order_key(row.position):
            return True
        if there in self.ahead or row.source in self.recent:
            return False
        await mark_row(self._place, there, row.due_ms, self._stamp(), moved_to=row.position)
        return True

    def judge(self, row: TimedRow) -> bool:
        """Is this a message to be handed out?"""
        if row.position in self.ahead:
            self.ahead.discard(row.position)
            self.remember(row.name)
            return False
        if row.name in self.recent:
            self._place.guards["second copy dropped"] += 1
            return False
        self.remember(row.name)
        if row.cancelled:
            self._place.guards["cancelled row passed over"] += 1
            return False
        return True

    def finished_ahead(self, position: UUID, name: Name) -> None:
        """What is finished, durably, before it is read. Copies of it are dropped, whichever is met first."""
        self.tentative.discard(position)
        self.remember(name)

    def remember(self, name: Name) -> None:
        self.recent[name] = None
        self._added += 1

    def forget_old(self, read: UUID) -> None:
        """Second copies lie at most COPY_WITHIN above their ids. Names of moved messages have none."""
        if self.ahead:  # what was finished and dropped is never met again
            self.ahead = {position for position in self.ahead if order_key(position) > order_key(read)}
        if self._added >= max(RECENT_SWEEP, self._kept):  # a look costs as much as there is: seldom, where that is much
            self.recent = dict.fromkeys(self.since(read))
            self._added, self._kept = 0, len(self.recent)

    def since(self, read: UUID) -> list[Name]:
        """The names of which second copies may lie above `read`."""
        floor = ticks_of(read) - COPY_WITHIN
        return [name for name in self.recent if ticks_of(name[0]) >= floor]


def moved_row(row: TimedRow, position: UUID, due_ms: int, deliveries: int) -> TimedRow:
    """The message of this row at another place, under the same id."""
    return msgspec.structs.replace(
        row,
        position=position,
        version=row.version + 1,
        due_ms=due_ms,
        deliveries=deliveries,
        moved_to=None,
        moved_from=row.position,
    )
