"""What consumers ask of a shard's holder: ack, nack, extend; and what it does by itself: bury. (Cancels and moves:
`changing`.)

Each is decided on the desk at once and made durable before it is confirmed; what could not be made durable while the
lease was valid is unknown. A message that is leaving is offered to nobody meanwhile.

    bury       noted as moving, then a keyed put into the dead letters, then finished
"""

from __future__ import annotations

from typing import Final

import msgspec

from capellini.model.errors import CapelliniError, NotFound, Unavailable
from capellini.queues.timed.committing import Part
from capellini.queues.timed.desk import Message, State
from capellini.queues.timed.holder import Holder
from capellini.queues.timed.records import Moving
from capellini.queues.timed.telling import tell_dead, tell_held
from capellini.queues.work.letters import AGAIN_MS, Origin, PutMoved

BURY_AGAIN_S: Final = 0.5  # after the dead letters' queue did not take one


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
        await committed(holder, part, leaving)
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
        at_ms = now_ms + 1 + delay_ms + holder.place.max_skew_ms if delay_ms else now_ms  # 1: cut off
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
        await committed(holder, part, [message for message, _ in hidden])
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


async def committed(holder: Holder, part: Part, leaving: list[Message]) -> None:
    """What was surely not done is offered again; what is unknown waits for the next holder."""
    try:
        await holder.committing.commit(part)
    except Unavailable:
        for message in leaving:
            holder.desk.hide(message, holder.place.now_ms())
        raise


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
        except CapelliniError as error:
            place.guards["dead letter not taken yet"] += 1
            place.trouble.say(f"{target} does not take dead letters", error)
            await _pause(holder)
            continue
        await holder.finish(message)
        place.guards["dead letter moved"] += 1
        tell_dead(place, row.id, target)
        return


async def _pause(holder: Holder) -> None:
    await holder.place.clock.sleep(BURY_AGAIN_S)


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
