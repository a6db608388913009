"""Cancel and move: what is changed of a message that nobody has in hand. Always by the shard's holder.

    cancel     on the desk                        finished in the next record
               published, but not read yet        finished in the next record, and passed over when it is read
               beyond the horizon                 a marker in its row; the horizon waits for it
    move       on the desk                        noted as moving, then the new row, then finished
               beyond the horizon, to later       a marker that names the new place, then the new row: who reads the
                                                  marker makes sure of the row
               beyond the horizon, to earlier     the new row, then the marker: who reads the new row makes sure of
                                                  the marker

A move first notes where it goes (`timed_moved`): so the message is found by its id, and so is what a move left that
went no further. Whoever changes the message next settles that before anything else (`_settled`):

    to later     the marker is there       the row is written: the move is finished
                 it is not                 it may land yet: a marker that says "stays here", stamped later
    to earlier   the row is there          the marker is written: the move is finished
                 it is not, or came where
                 all was read before      its place is made void by a marker

so that at any time a message has one place, and one more at most that a later writer can name and settle.

A put that was late has a second copy above its id's position. A cancel of such a message is recorded under its name,
for the first copy may be met by the next holder.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from capellini.model.errors import Conflict, Full, NotFound, StoreError, Unavailable, Unknown
from capellini.queues.timed.acting import committed
from capellini.queues.timed.desk import Message, State
from capellini.queues.timed.holder import Holder
from capellini.queues.timed.judging import COPY_WITHIN, moved_row
from capellini.queues.timed.keyed import accepted
from capellini.queues.timed.positions import ms_of_ticks, position_of, ticks_of, ticks_of_ms
from capellini.queues.timed.records import Moving
from capellini.queues.timed.rows import (
    PAGE_ROWS,
    TimedRow,
    mark_row,
    note_move,
    order_key,
    read_between,
    read_note,
    read_row,
    write_rows,
)
from capellini.queues.timed.telling import tell_cancelled, tell_moved

PATIENCE_S: Final = 5.0  # for a marker or a moved row to be written, before the answer is unknown
AGAIN_S: Final = 0.1
GONE: Final = "there is no such message: it was acked, cancelled, or never put"


async def cancel(holder: Holder, id: UUID) -> None:
    """Raises NotFound, Conflict, Unavailable or Unknown."""
    await _in_turn(holder, id, lambda: _cancel(holder, id))
    tell_cancelled(holder.place, id)


async def move(holder: Holder, id: UUID, due_ms: int) -> int:
    """The due it has now. Raises NotFound, Conflict, Unavailable (Full) or Unknown."""
    if holder.place.store.alone:  # it writes the message anew: where puts are refused, nothing is begun
        await holder.place.store.check()
    await _in_turn(holder, id, lambda: _move(holder, id, due_ms))
    return due_ms


async def _in_turn(holder: Holder, id: UUID, change: Callable[[], Awaitable[None]]) -> None:
    """Changes of one message come one after the other: each must find what the one before has left."""
    turn = holder.changes.enter(id)
    try:
        await turn.come()
        await change()
    finally:
        turn.leave()


async def _cancel(holder: Holder, id: UUID) -> None:
    message = holder.desk.ids.get(id)
    if message is not None:
        _nobody_has(message)
        holder.desk.leave(message)
        part = holder.committing.part()
        part.finish(message.row.position, message.row.name)
        part.then = lambda: holder.desk.gone(message)
        await committed(holder, part, [message])
        return
    position = await _settled(holder, id)
    if _unread(holder, position):
        if await _cancel_unread(holder, position):
            return
    elif id not in holder.desk.ids:
        copy = await _second_copy(holder, id)
        if copy is not None and await _cancel_ahead(holder, copy):
            return
    if id not in holder.desk.ids:
        raise _gone(holder)
    await _cancel(holder, id)  # it was read while this looked for it


def _gone(holder: Holder) -> NotFound | Unavailable:
    """Whoever holds the shard knows; one that holds it no more may have overlooked something."""
    return NotFound(GONE) if holder.acts() else Unavailable("this node does not hold the shard any more: try again")


async def _cancel_unread(holder: Holder, position: UUID) -> bool:
    if ticks_of(position) <= holder.published:
        return await _cancel_ahead(holder, position)
    with holder.barred(position):
        row = await _live_row(holder, position)
        if row is None:
            return False
        due_ms, stamp = row.due_ms, holder.stamp()
        await _surely(holder, lambda: mark_row(holder.place, position, due_ms, stamp, cancelled=True))
    holder.place.guards["cancelled by a marker"] += 1
    return True


async def _cancel_ahead(holder: Holder, position: UUID) -> bool:
    judging = holder.judging
    judging.ahead.add(position)  # from here on it is passed over
    judging.tentative.add(position)
    try:
        row = await _live_row(holder, position)
    except StoreError:
        _not_cancelled(holder, position)
        raise
    if row is None:
        _not_cancelled(holder, position)
        return False
    name = row.name
    part = holder.committing.part()
    part.finish(position, name)
    part.then = lambda: judging.finished_ahead(position, name)
    try:
        await holder.committing.commit(part)
    except Unavailable:
        _not_cancelled(holder, position)
        raise
    holder.place.guards["cancelled between horizon and read"] += 1
    return True


def _not_cancelled(holder: Holder, position: UUID) -> None:
    judging = holder.judging
    if position not in judging.ahead:  # it was passed over meanwhile: whoever holds the shard next reads it again
        holder.stop()
    judging.ahead.discard(position)
    judging.tentative.discard(position)


async def _second_copy(holder: Holder, id: UUID) -> UUID | None:
    """Where a copy lies that was not read yet, of a message whose first row was not seen: it landed behind the
    reader."""
    end = ticks_of(id) + COPY_WITHIN
    if (id, 0) in holder.judging.recent or end <= ticks_of(holder.read):
        return None
    after = holder.read
    while True:
        reach = await read_between(holder.place, holder.shard, after, end, PAGE_ROWS)
        for row in reach.rows:
            if row.name == (id, 0) and _unread(holder, row.position):
                holder.place.guards["second copy found by its id"] += 1
                return row.position
        if ticks_of(reach.to) >= end:
            return None
        after = reach.to


def _nobody_has(message: Message) -> None:
    if message.state is State.FLYING:
        raise Conflict("somebody has this message now: it was delivered, and is neither acked nor given back")
    if message.state is State.LEAVING:
        raise Conflict("this message is being finished or moved now")


def _unread(holder: Holder, position: UUID) -> bool:
    return ticks_of(position) > ticks_of(holder.read) and position not in holder.judging.ahead


async def _live_row(holder: Holder, position: UUID) -> TimedRow | None:
    row = await read_row(holder.place, position)
    return None if row is None or row.cancelled or row.moved_to is not None else row


# What an earlier move left


async def _settled(holder: Holder, id: UUID) -> UUID:
    """Where a message is that is not on the desk; a move that went no further is settled first."""
    note = await read_note(holder.place, id)
    if note is None:
        return id
    there, here = note
    with holder.barred(there, here):
        moved, left = await read_row(holder.place, there), await read_row(holder.place, here)
        if left is None or not _unread(holder, here):
            return there if moved is not None else here  # whoever read it has finished the move
        if order_key(there) > order_key(here):
            return await _settled_later(holder, left, moved, there)
        return await _settled_earlier(holder, left, moved, there)


async def _settled_later(holder: Holder, left: TimedRow, moved: TimedRow | None, there: UUID) -> UUID:
    if moved is not None:
        return there
    _not_about_to_be_read(holder, left.position)
    if left.moved_to != there:
        stamp = holder.stamp()
        holder.place.guards["marker of a move outdated"] += 1
        await _surely(holder, lambda: mark_row(holder.place, left.position, left.due_ms, stamp, moved_to=left.position))
        return left.position
    holder.place.guards["move finished by the next change"] += 1
    row = moved_row(left, there, ms_of_ticks(ticks_of(there)), left.deliveries)
    await _surely(holder, lambda: write_rows(holder.place, [row], begun=True))
    return there


async def _settled_earlier(holder: Holder, left: TimedRow, moved: TimedRow | None, there: UUID) -> UUID:
    stamp = holder.stamp()
    begun = left.moved_to is None and not left.cancelled
    # Whoever reads the row writes the marker first: without it, and below what was read, it landed behind the reader.
    behind = begun and not _unread(holder, there) and left.id not in holder.desk.ids
    if moved is None or behind:
        if _unread(holder, there):
            _not_about_to_be_read(holder, there)
        else:
            holder.drop_with(there)  # the marker comes where nobody reads any more
        holder.place.guards["row of a move made void"] += 1
        await _surely(holder, lambda: mark_row(holder.place, there, left.due_ms, stamp, cancelled=True))
        return left.position
    if begun:
        _not_about_to_be_read(holder, left.position)
        holder.place.guards["move finished by the next change"] += 1
        await _surely(holder, lambda: mark_row(holder.place, left.position, left.due_ms, stamp, moved_to=there))
    return there


def _not_about_to_be_read(holder: Holder, position: UUID) -> None:
    if ticks_of(position) <= holder.published:
        raise Unavailable("this message is about to be read: nothing was changed, try again")


# Move


async def _move(holder: Holder, id: UUID, due_ms: int) -> None:
    message = holder.desk.ids.get(id)
    if message is not None:
        _nobody_has(message)
        holder.desk.leave(message)
        await _move_from_desk(holder, message, due_ms)
        return
    position = await _settled(holder, id)
    if _unread(holder, position):
        _not_about_to_be_read(holder, position)
        if await _move_unread(holder, position, due_ms):
            return
    elif id not in holder.desk.ids and (copy := await _second_copy(holder, id)) is not None:
        holder.wake(ticks_of(copy))
        raise Unavailable("this message is about to be read: nothing was changed, try again")
    if id not in holder.desk.ids:
        raise _gone(holder)
    await _move(holder, id, due_ms)


def _new_place(holder: Holder, due_ms: int) -> UUID:
    """Above whatever may have been read."""
    ticks = max(ticks_of_ms(due_ms), holder.published + 1, ticks_of(holder.read) + 1)
    return position_of(ticks, holder.shard, holder.place.random)


async def _move_from_desk(holder: Holder, message: Message, due_ms: int) -> None:
    there, row = _new_place(holder, due_ms), message.row
    moving, stamp = Moving(there, due_ms, message.deliveries), holder.stamp()
    with holder.barred(there):
        part = holder.committing.part()
        part.moving = [(row.position, moving)]
        part.then = lambda: setattr(message, "moving", moving)
        await committed(holder, part, [message])
        await _surely(holder, lambda: note_move(holder.place, row, there, stamp), for_good=True)
        new = moved_row(row, there, due_ms, message.deliveries)
        await _surely(holder, lambda: write_rows(holder.place, [new], begun=True), for_good=True)
    try:
        await holder.finish(message)
    except Unavailable as error:  # the next holder finds it noted as moving, and finishes it
        raise Unknown(f"it is moved, or will be: {error.says}") from error
    holder.place.guards["moved from the desk"] += 1
    tell_moved(holder.place, row.id, due_ms)
    _wake_for(holder, there, due_ms)


async def _move_unread(holder: Holder, position: UUID, due_ms: int) -> bool:
    there, stamp = _new_place(holder, due_ms), holder.stamp()
    with holder.barred(position, there):
        found = await _live_row(holder, position)
        if found is None or not await _is_put(holder, found):
            return False
        row = found
        later = ticks_of(there) > ticks_of(position)

        async def new() -> None:
            await write_rows(holder.place, [moved_row(row, there, due_ms, row.deliveries)], begun=True)

        async def marker() -> None:
            await mark_row(holder.place, position, max(due_ms, row.due_ms), stamp, moved_to=there)

        await _surely(holder, lambda: note_move(holder.place, row, there, stamp))
        first, second = (marker, new) if later else (new, marker)
        await _surely(holder, first)
        await _surely(holder, second, begun=True)
        holder.place.guards["moved to later" if later else "moved to earlier"] += 1
        tell_moved(holder.place, row.id, due_ms)
    _wake_for(holder, there, due_ms)
    return True


async def _is_put(holder: Holder, row: TimedRow) -> bool:
    """Is it the one that its key names? From now on it is for good: at its new place nobody asks again."""
    return row.key is None or bool(row.version) or await accepted(holder.place, row.key, row)


def _wake_for(holder: Holder, there: UUID, due_ms: int) -> None:
    if ticks_of_ms(due_ms) < holder.published:
        holder.wake(ticks_of(there))


async def _surely(
    holder: Holder, write: Callable[[], Awaitable[None]], *, begun: bool = False, for_good: bool = False
) -> None:
    """Until it is written, while the lease is valid. `begun`: something was changed already. `for_good`: it must be
    finished, however long that takes."""
    clock = holder.place.clock
    deadline_s = clock.elapsed_s() + PATIENCE_S
    while holder.acts() and (for_good or clock.elapsed_s() < deadline_s):
        try:
            await write()
        except Unknown:
            begun = True
        except StoreError as error:
            if isinstance(error, Full) and not begun and not for_good:
                raise
            begun = begun or not isinstance(error, Unavailable)
        else:
            if holder.acts():
                return
            begun = True
            break
        await clock.sleep(AGAIN_S)
    if not begun and not for_good:
        raise Unavailable("the store does not answer: nothing was changed")
    raise Unknown("it may have been done: the store did not say in time")
