"""What the journal hears of a timed queue's messages: ids as text, and one event for all that share a delivery count.

    put                                at the node that took it, once it is confirmed; with the due where the id says a
                                       later one: its shard had been read beyond the due
    delivered, acked, nacked, extended at the shard's holder, in the instant in which it is so: its numbers have the
    cancelled, moved, dead, expired    order in which things happened to a message, whatever the clocks say
    repaired                           the holder met an id that its key does not name: it is no message

What ended as unknown is not told: a message may be delivered whose put nobody could confirm, and one may not be
delivered any more whose ack was durable too late to be confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from capellini.queues.timed.desk import Message
from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.positions import LEAD_MS, id_text, ms_of_ticks, ticks_of
from capellini.queues.timed.rows import TimedRow

DUE_MS: Final = 100  # dues are told rounded down to this: many that differ a little are one event


def tell_put(place: TimedPlace, rows: Iterable[TimedRow], again: bool = False) -> None:
    """`again`: the rows may be those of an earlier attempt, which had dues of its own."""
    if not place.events.kept:
        return
    dues: dict[str, list[str]] = {}
    for row in rows:
        at_ms = ms_of_ticks(ticks_of(row.id))
        due_ms = at_ms - LEAD_MS if again else max(row.due_ms, row.put_ms)
        due = "" if at_ms <= due_ms else str(due_ms // DUE_MS * DUE_MS)
        dues.setdefault(due, []).append(id_text(row.id))
    for due, ids in dues.items():
        place.events.put(place.name, place.generation, (), due, ids)


def tell_held(place: TimedPlace, say: Callable[..., None], messages: Iterable[Message]) -> None:
    """`say`: delivered, acked, nacked or extended of the place's events."""
    if not place.events.kept:
        return
    counts: dict[int, list[str]] = {}
    for message in messages:
        counts.setdefault(message.deliveries, []).append(id_text(message.row.id))
    for deliveries, ids in counts.items():
        say(place.name, place.generation, (), deliveries, ids)


def tell_cancelled(place: TimedPlace, id: UUID) -> None:
    place.events.cancelled(place.name, place.generation, (), [id_text(id)])


def tell_moved(place: TimedPlace, id: UUID, due_ms: int) -> None:
    place.events.moved(place.name, place.generation, (), str(due_ms), [id_text(id)])


def tell_dead(place: TimedPlace, id: UUID, target: str) -> None:
    place.events.dead(place.name, place.generation, (), target, [id_text(id)])


def tell_expired(place: TimedPlace, id: UUID) -> None:
    place.events.expired(place.name, place.generation, (), [id_text(id)])


def tell_void(place: TimedPlace, id: UUID) -> None:
    place.events.repaired(place.name, place.generation, (), "its key names another id", [id_text(id)])
