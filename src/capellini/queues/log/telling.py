"""What the journal hears of a log queue's messages, and under which names.

    put                               QUEUE/EXTENT                 at the writer, once confirmed: one event per block
    delivered, nacked, extended       QUEUE@GROUP/VERSION/EXTENT   at the owner, in the instant in which it is so
    acked                                                          at the owner, once durable: what was not confirmed is
                                                                   not told
    skipped                                                        at the owner: not for this group
    dead                                                           when it is in the group's dead letters
    expired                                                        by whoever drops an extent past its retention: what
                                                                   the group had not finished

A message has one put and as many lives as there are readers (a group in one version); see `queues/events.py` for how
they are joined. Numbers are those of the extent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from capellini.model.log import AT
from capellini.queues.log.desk import Range, joined
from capellini.queues.log.place import LogPlace

BEFORE: str = "before the group's start"
OTHERS: str = "for other groups, or too old"


def name_of_puts(place: LogPlace, extent: str) -> str:
    return f"{place.name}/{extent}"


def name_of_lives(place: LogPlace, reader: str, extent: str) -> str:
    """`reader`: a group in one version, "NAME/VERSION"."""
    return f"{place.name}{AT}{reader}/{extent}"


def tell(place: LogPlace, say: Callable[..., None], name: str, ranges: Iterable[Range], deliveries: int) -> None:
    """`say`: acked, nacked or extended of the place's events. One event for all of them."""
    if place.events.kept and (runs := [(first, end - first) for first, end in ranges]):
        say(name, place.generation, runs, deliveries)


def tell_skipped(place: LogPlace, name: str, ranges: Iterable[Range], why: str = OTHERS) -> None:
    if place.events.kept and (runs := [(first, end - first) for first, end in joined(ranges)]):
        place.events.skipped(name, place.generation, runs, why)
