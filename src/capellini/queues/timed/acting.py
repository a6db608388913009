"""What callers ask of a shard's holder: ack, nack, extend, cancel, move; and what it does by itself: bury.

Each is decided on the desk at once and made durable before it is confirmed; what could not be made durable while the
lease was valid is unknown. A message that is leaving is offered to nobody meanwhile.

    cancel     on the desk, and nobody has it     finished in the next record
               published, but not read yet        finished in the next record, and passed over when it is read
               beyond the horizon                 a marker in its row; the horizon waits for it
    move       on the desk                        noted as moving, then the new row, then finished
               beyond the horizon, to later       a marker that names the new place, then the new row: who reads the
                                                  marker makes sure of the row
               beyond the horizon, to earlier     the new row, then the marker: who reads the new row makes sure of
                                                  the marker
    bury       noted as moving, then a keyed put into the dead letters, then finished
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

import msgspec

from capellini.model.errors import CapelliniError, Conflict, NotFound, StoreError, Unavailable, Unknown
from capellini.queues.timed.committing import Part
from capellini.queues.timed.desk import Message, State
from capellini.queues.timed.holder import Holder
from capellini.queues.timed.judging import moved_row
from capellini.queues.timed.positions import ms_of_ticks, position_of, ticks_of, ticks_of_ms
from capellini.queues.timed.records import Moving
from capellini.queues.timed.rows import TimedRow, mark_row, read_row, write_rows
from capellini.queues.timed.telling import tell_cancelled, tell_dead, tell_held, tell_moved
from capellini.queues.work.letters import AGAIN_MS, Origin, PutMoved
from capellini.store.interface import Batch, Slice, Value
from capellini.store.schema import TIMED_MOVED

PATIENCE_S: Final = 5.0  # for a marker or a moved row to be written, before the answer is unknown
AGAIN_S: Final = 0.1
GONE: Final = "there is no such message: it was acked, cancelled, or never put"


async def ack(holder: Holder, held: list[tuple[int, int]]) -> list[bool]:
    """(offset, delivery) each: acked, or the receipt was stale. Raises Unavailable or Unknown for all."""
    found = [holder.desk.held(*one) for one in held]
    leaving: list[Message] = []
    paused = holder.desk.too_much_flies
    for at, message in enumerate(found):
        if message is None or message.state is State.LEAVING:  # named twice in one call
            found[at] = None
            continue
        holder.desk.leave(message)
        leaving.append(message)
    if paused and not holder.desk.too_much_flies:
        holder.place.woken()
    if leaving:
        part = holder.committing.part()
        for message in leaving:
            part.finish(message.row.position, message.row.name)
        part.then = lambda: _acked(holder, leaving)
        await _committed(holder, part, leaving)
    return [message is not None for message in found]


async def nack(holder: Holder, held: list[tuple[int, int]], delays_ms: list[int]) -> list[int | None]:
    """When each can be had again; None: the receipt was stale. A delay is durable before it is confirmed: a new holder
    keeps to it."""
    now_ms = holder.place.now_ms()
    results: list[int | None] = []
    hidden: list[tuple[Message, int]] = []
    back: list[Message] = []
    for (offset, delivery), delay_ms in zip(held, delays_ms, strict=True):
        message = holder.desk.held(offset, delivery)
        if message is None:
            results.append(None)
            continue
        at_ms = now_ms + delay_ms + holder.place.max_skew_ms if delay_ms else now_ms
        results.append(at_ms)
        if delay_ms:
            holder.desk.leave(message)
            hidden.append((message, at_ms))
        else:
            holder.desk.hide(message, at_ms)
            back.append(message)
    tell_held(holder.place, holder.place.events.nacked, back)
    if hidden:
        part = holder.committing.part()
        part.hidden = [(message.row.name, at_ms) for message, at_ms in hidden]
        part.counts = [(message.row.name, message.deliveries) for message, _ in hidden]
        part.then = lambda: _hide(holder, hidden)
        await _committed(holder, part, [message for message, _ in hidden])
    holder.place.woken()
    return results


def extend(holder: Holder, held: list[tuple[int, int]], visibilities_ms: list[int]) -> list[int | None]:
    """When each one's visibility ends now; None: the receipt was stale."""
    now_ms, skew_ms = holder.place.now_ms(), holder.place.max_skew_ms
    results: list[int | None] = []
    good: list[Message] = []
    for (offset, delivery), visibility_ms in zip(held, visibilities_ms, strict=True):
        message = holder.desk.held(offset, delivery)
        until_ms = now_ms + visibility_ms
        if message is not None and holder.desk.extend(message, until_ms + skew_ms):
            good.append(message)
            results.append(until_ms)
        else:
            results.append(None)
    tell_held(holder.place, holder.place.events.extended, good)
    return results


def _acked(holder: Holder, messages: list[Message]) -> None:
    for message in messages:
        holder.desk.gone(message)
    tell_held(holder.place, holder.place.events.acked, messages)


def _hide(holder: Holder, hidden: list[tuple[Message, int]]) -> None:
    for message, at_ms in hidden:
        holder.desk.hide(message, at_ms)
    tell_held(holder.place, holder.place.events.nacked, [message for message, _ in hidden])


async def _committed(holder: Holder, part: Part, leaving: list[Message]) -> None:
    """What was surely not done is offered again; what is unknown waits for the next holder."""
    try:
        await holder.committing.commit(part)
    except Unavailable:
        for message in leaving:
            holder.desk.hide(message, holder.place.now_ms())
        raise


# Cancel and move


async def cancel(holder: Holder, id: UUID) -> None:
    """Raises NotFound, Conflict, Unavailable or Unknown."""
    await _cancel(holder, id)
    tell_cancelled(holder.place, id)


async def _cancel(holder: Holder, id: UUID) -> None:
    message = holder.desk.ids.get(id)
    if message is not None:
        _nobody_has(message)
        holder.desk.leave(message)
        part = holder.committing.part()
        part.finish(message.row.position, message.row.name)
        part.then = lambda: holder.desk.gone(message)
        await _committed(holder, part, [message])
        return
    for position in await _places(holder, id):
        if await _cancel_at(holder, id, position):
            return
    raise NotFound(GONE)


async def _cancel_at(holder: Holder, id: UUID, position: UUID) -> bool:
    if not _unread(holder, position):
        return await _on_the_desk_now(holder, id)
    if ticks_of(position) <= holder.published:
        return await _cancel_ahead(holder, position)
    with holder.barred(position):
        row = await _live_row(holder, position)
        if row is None:
            return False
        due_ms = row.due_ms
        await _surely(holder, lambda: mark_row(holder.place, position, due_ms, cancelled=True))
    holder.place.guards["cancelled by a marker"] += 1
    return True


async def _cancel_ahead(holder: Holder, position: UUID) -> bool:
    tentative = holder.judging.tentative
    holder.ahead.add(position)  # from here on it is passed over
    tentative.add(position)
    try:
        row = await _live_row(holder, position)
        if row is None:
            holder.ahead.discard(position)
            tentative.discard(position)
            return False
        part = holder.committing.part()
        part.finish(position, row.name)
        part.then = lambda: tentative.discard(position)
        await holder.committing.commit(part)
    except Unavailable:
        if position not in holder.ahead:  # it was passed over meanwhile: whoever holds the shard next reads it again
            holder.stop()
        holder.ahead.discard(position)
        tentative.discard(position)
        raise
    holder.place.guards["cancelled between horizon and read"] += 1
    return True


async def _on_the_desk_now(holder: Holder, id: UUID) -> bool:
    """It was read while this looked for it."""
    if id not in holder.desk.ids:
        return False
    await _cancel(holder, id)
    return True


def _nobody_has(message: Message) -> None:
    if message.state is State.FLYING:
        raise Conflict("somebody has this message now: it was delivered, and is neither acked nor given back")
    if message.state is State.LEAVING:
        raise Conflict("this message is being finished or moved now")


def _unread(holder: Holder, position: UUID) -> bool:
    return ticks_of(position) > ticks_of(holder.read) and position not in holder.ahead


async def _live_row(holder: Holder, position: UUID) -> TimedRow | None:
    row = await read_row(holder.place, position)
    return None if row is None or row.cancelled or row.moved_to is not None else row


async def _places(holder: Holder, id: UUID) -> list[UUID]:
    """Where a message may be that is not on the desk: where it was moved to, or was before, or was put."""
    page = await holder.place.store.read(Slice(TIMED_MOVED, (*holder.place.partition, id), limit=1))
    if not page.rows:
        return [id]
    values = page.rows[0].values
    return [place for place in (values.get("position"), values.get("before")) if isinstance(place, UUID)]


async def move(holder: Holder, id: UUID, due_ms: int) -> int:
    """The due it has now. Raises NotFound, Conflict, Unavailable or Unknown."""
    message = holder.desk.ids.get(id)
    if message is not None:
        _nobody_has(message)
        holder.desk.leave(message)
        await _move_from_desk(holder, message, due_ms)
        return due_ms
    for position in await _places(holder, id):
        if not _unread(holder, position):
            if id in holder.desk.ids:
                return await move(holder, id, due_ms)
        elif ticks_of(position) <= holder.published:
            raise Unavailable("this message is about to be read: nothing was changed, try again")
        elif await _move_unread(holder, position, due_ms):
            return due_ms
    raise NotFound(GONE)


def _new_place(holder: Holder, due_ms: int) -> UUID:
    """Above whatever may have been read."""
    ticks = max(ticks_of_ms(due_ms), holder.published + 1, ticks_of(holder.read) + 1)
    return position_of(ticks, holder.shard, holder.place.random)


async def _move_from_desk(holder: Holder, message: Message, due_ms: int) -> None:
    there, row = _new_place(holder, due_ms), message.row
    moving = Moving(there, due_ms, message.deliveries)
    with holder.barred(there):
        part = holder.committing.part()
        part.moving = [(row.position, moving)]
        part.then = lambda: setattr(message, "moving", moving)
        await _committed(holder, part, [message])
        await _surely(holder, lambda: _note(holder, row, there), for_good=True)
        new = moved_row(row, there, due_ms, message.deliveries)
        await _surely(holder, lambda: write_rows(holder.place, [new]), for_good=True)
    await holder.finish(message)
    holder.place.guards["moved from the desk"] += 1
    tell_moved(holder.place, row.id, due_ms)
    _wake_for(holder, there, due_ms)


async def _move_unread(holder: Holder, position: UUID, due_ms: int) -> bool:
    there = _new_place(holder, due_ms)
    with holder.barred(position, there):
        found = await _live_row(holder, position)
        if found is None:
            return False
        row = found
        later = ticks_of(there) > ticks_of(position)

        async def new() -> None:
            await write_rows(holder.place, [moved_row(row, there, due_ms, row.deliveries)])

        async def marker() -> None:
            await mark_row(holder.place, position, max(due_ms, row.due_ms), moved_to=there)

        await _surely(holder, lambda: _note(holder, row, there))
        first, second = (marker, new) if later else (new, marker)
        await _surely(holder, first)
        await _surely(holder, second, begun=True)
        holder.place.guards["moved to later" if later else "moved to earlier"] += 1
        tell_moved(holder.place, row.id, due_ms)
    _wake_for(holder, there, due_ms)
    return True


def _wake_for(holder: Holder, there: UUID, due_ms: int) -> None:
    if ticks_of_ms(due_ms) < holder.published:
        holder.wake(ticks_of(there))


async def _note(holder: Holder, row: TimedRow, there: UUID) -> None:
    """Where to look for it from now on; where it was, in case the move goes no further."""
    number = row.version + 1
    values: dict[str, Value] = {"position": there, "before": row.position, "number": number}
    partition = (*holder.place.partition, row.id)
    ttl_s = holder.place.ttl_s(max(row.due_ms, ms_of_ticks(ticks_of(there))))
    await holder.place.store.write(Batch(TIMED_MOVED, partition, (((), values),), ttl_s=ttl_s, timestamp_us=number))


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


# Dead letters


async def bury(holder: Holder, message: Message, put_moved: PutMoved) -> None:
    """It is leaving: to the dead letters, exactly once."""
    place, row = holder.place, message.row
    if message.moving is None:
        part = holder.committing.part()
        part.moving = [(row.position, Moving())]
        part.then = lambda: setattr(message, "moving", Moving())
        await holder.committing.commit(part)
    here = Origin(place.name, place.generation, row.id.int)
    letter = msgspec.structs.replace(row.entry, delay_ms=0, origin=str(here))
    target = place.options.dead_letters
    while holder.acts():
        try:
            if not target:
                raise NotFound("there is no dead-letter queue any more")
            await put_moved(target, f"moved:{here}", letter)
        except NotFound:
            await _offered_again(holder, message)
            return
        except CapelliniError:
            place.guards["dead letter not taken yet"] += 1
            await _pause(holder)
            continue
        await holder.finish(message)
        place.guards["dead letter moved"] += 1
        tell_dead(place, row.id, target)
        return


async def _pause(holder: Holder) -> None:
    await holder.place.clock.sleep(AGAIN_S * 5)


async def _offered_again(holder: Holder, message: Message) -> None:
    at_ms = holder.place.now_ms() + AGAIN_MS
    part = holder.committing.part()
    part.hidden = [(message.row.name, at_ms)]
    part.stays = [message.row.position]

    def then() -> None:
        message.moving = None
        holder.desk.hide(message, at_ms)

    part.then = then
    await holder.committing.commit(part)
