"""What happened to messages: the events that the journal is made of, numbered so that a gap is known to be one.

    emit ──▶ number 1, 2, 3, … of this incarnation ──▶ sink: the journal queue, a file, memory, or none
                                                           └─ the last is `closed`, and says how many there were

One event per parcel, never per message. Ids are runs (first, count) where a queue numbers its messages; messages of
timed queues are named one by one, as text of 32 hexadecimal digits. An event has the one or the other. Numbers are
gapless per incarnation of a node.
So a reader knows what it does not know: a number that is missing is a lost event; an incarnation without a closing
record may have done more than its last event says (`account`). What is missing makes a life "unknown", never "lost".

What an event calls its queue says whose ids these are

    work, timed   QUEUE                           put and all that follows
    log           QUEUE/EXTENT                    put: a message has one number in its extent, for all groups
                  QUEUE@GROUP/VERSION/EXTENT      what follows, for each group by itself; a seek begins a new version

A put of a log queue belongs to the lives of all readers (GROUP/VERSION) of its extent: cut "@GROUP/VERSION" out of
their name and it is that of the put (`put_place`). The first word, up to "@" or "/", is always the queue
(`queue_in`).

Which queues are told of is an option of each (`journal`): a place asks for `events.of(option)`, and those that are not
get an `Events` that numbers nothing. The log at debug follows all of them alike.

What fails, and what then happens: a sink that cannot write drops events and counts them. Messages do not wait for the
journal, and the numbers go on, so that the gap shows.
"""

from __future__ import annotations

import enum
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from capellini.model.clock import Clock
from capellini.model.log import AT
from capellini.model.options import OFF

BUFFER_EVENTS: Final = 256  # events written to a file at once: one system call for many parcels

Run = tuple[int, int]  # first id, count


class Kind(enum.StrEnum):
    PUT = "put"
    DELIVERED = "delivered"
    ACKED = "acked"
    NACKED = "nacked"
    EXTENDED = "extended"
    DEAD = "dead"  # moved to dead letters
    EXPIRED = "expired"  # older than the queue's time to live
    REPAIRED = "repaired"  # an id that was never written, or not in time, was voided
    REPLAYED = "replayed"  # moved back from dead letters, or put again under a new id
    CANCELLED = "cancelled"  # before it was delivered, by its id: it never is
    MOVED = "moved"  # got another due under its id; the detail is that due, in ms since 1970
    SKIPPED = "skipped"  # not for this group of a log queue: put before its start, too old for it, or filtered out
    CLOSED = "closed"  # the incarnation's last event


class Happened(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the journal. `version` is the delivery count of the messages, where it says something. `runs` name
    messages of work and log queues, `ids` those of timed ones."""

    node: str
    incarnation: str
    number: int
    at: float  # wall time, seconds since 1970
    kind: Kind
    queue: str = ""
    generation: int = 0
    runs: tuple[Run, ...] = ()
    version: int = 0
    detail: str = ""
    ids: tuple[str, ...] = ()


class Who(NamedTuple):
    """Whose numbers these are."""

    node: str
    incarnation: str


class Sink(Protocol):
    def add(
        self,
        who: Who,
        number: int,
        at: float,
        kind: Kind,
        queue: str,
        generation: int,
        runs: Sequence[Run],
        version: int,
        detail: str,
        ids: Sequence[str],
    ) -> None:
        """Must be cheap and must not raise for want of room: what cannot be kept is dropped and counted. No object is
        made of an event on the way here."""

    def flush(self) -> None:
        """What is held back goes where it belongs: called about once a second."""

    def close(self) -> None:
        """Nothing comes after this."""


class MemorySink:
    """Keeps the last `most`, or all."""

    def __init__(self, most: int | None = None) -> None:
        self.events: deque[Happened] = deque(maxlen=most)

    def add(
        self,
        who: Who,
        number: int,
        at: float,
        kind: Kind,
        queue: str,
        generation: int,
        runs: Sequence[Run],
        version: int,
        detail: str,
        ids: Sequence[str],
    ) -> None:
        self.events.append(
            Happened(*who, number, at, kind, queue, generation, tuple(runs), version, detail, tuple(ids))
        )

    def flush(self) -> None:
        return None

    def close(self) -> None:
        return None


class FileSink:
    """JSON lines, added to the end of a file, many at a time."""

    def __init__(self, path: Path, buffer_events: int = BUFFER_EVENTS) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._file).st_size
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"  # the last writer died within a line
        self._buffer: list[bytes] = []
        self._buffer_events = buffer_events
        self._encode = msgspec.json.Encoder().encode
        self.dropped = 0

    def add(
        self,
        who: Who,
        number: int,
        at: float,
        kind: Kind,
        queue: str,
        generation: int,
        runs: Sequence[Run],
        version: int,
        detail: str,
        ids: Sequence[str],
    ) -> None:
        event = Happened(*who, number, at, kind, queue, generation, tuple(runs), version, detail, tuple(ids))
        self._buffer.append(self._encode(event))
        if len(self._buffer) >= self._buffer_events:
            self.flush()

    def flush(self) -> None:
        """Hand what is buffered to the system. What it does not take is dropped and counted."""
        if not self._buffer:
            return
        data = (b"\n" if self._torn else b"") + b"\n".join(self._buffer) + b"\n"
        try:
            written = os.write(self._file, data)
        except OSError:
            written = 0
        if written < len(data):
            whole = data[:written].strip(b"\n").count(b"\n")  # complete lines, the last of them cut
            self.dropped += len(self._buffer) - whole
        self._torn = written < len(data)
        self._buffer.clear()

    def close(self) -> None:
        self.flush()
        os.close(self._file)


class Events:
    """The numbering of one incarnation. `sink` None: nothing is kept, and emitting costs next to nothing. `follower`
    is told of all queues, and gets no numbers (0)."""

    def __init__(
        self,
        clock: Clock,
        node: str = "",
        incarnation: str = "",
        sink: Sink | None = None,
        follower: Sink | None = None,
    ) -> None:
        self._clock = clock
        self._who = Who(node, incarnation)
        self._sink, self._follower = sink, follower
        self._number = 0
        self._unkept: Events | None = None

    @property
    def number(self) -> int:
        """Of the last event."""
        return self._number

    def of(self, journal: str) -> Events:
        """For a queue whose option `journal` says so."""
        if journal != OFF:
            return self
        if self._unkept is None:
            self._unkept = self._without_sink()
        return self._unkept

    def _without_sink(self) -> Events:
        return Events(self._clock, *self._who, follower=self._follower)

    def flush(self) -> None:
        if self._sink is not None:
            self._sink.flush()

    @property
    def kept(self) -> bool:
        """Is it of any use to say what happened?"""
        return self._sink is not None or self._follower is not None

    def emit(
        self,
        kind: Kind,
        queue: str,
        generation: int,
        runs: Sequence[Run],
        version: int = 0,
        detail: str = "",
        ids: Sequence[str] = (),
    ) -> None:
        if self._sink is not None:
            self._number += 1
            self._sink.add(
                self._who, self._number, self._clock.now_s(), kind, queue, generation, runs, version, detail, ids
            )
        if self._follower is not None:
            self._follower.add(self._who, 0, 0.0, kind, queue, generation, runs, version, detail, ids)

    def put(self, queue: str, generation: int, runs: Sequence[Run], detail: str = "", ids: Sequence[str] = ()) -> None:
        self.emit(Kind.PUT, queue, generation, runs, detail=detail, ids=ids)

    def delivered(
        self, queue: str, generation: int, runs: Sequence[Run], version: int, ids: Sequence[str] = ()
    ) -> None:
        self.emit(Kind.DELIVERED, queue, generation, runs, version, ids=ids)

    def acked(self, queue: str, generation: int, runs: Sequence[Run], version: int, ids: Sequence[str] = ()) -> None:
        self.emit(Kind.ACKED, queue, generation, runs, version, ids=ids)

    def nacked(self, queue: str, generation: int, runs: Sequence[Run], version: int, ids: Sequence[str] = ()) -> None:
        self.emit(Kind.NACKED, queue, generation, runs, version, ids=ids)

    def extended(self, queue: str, generation: int, runs: Sequence[Run], version: int, ids: Sequence[str] = ()) -> None:
        self.emit(Kind.EXTENDED, queue, generation, runs, version, ids=ids)

    def dead(self, queue: str, generation: int, runs: Sequence[Run], detail: str = "", ids: Sequence[str] = ()) -> None:
        self.emit(Kind.DEAD, queue, generation, runs, detail=detail, ids=ids)

    def expired(self, queue: str, generation: int, runs: Sequence[Run], ids: Sequence[str] = ()) -> None:
        self.emit(Kind.EXPIRED, queue, generation, runs, ids=ids)

    def repaired(
        self, queue: str, generation: int, runs: Sequence[Run], detail: str = "", ids: Sequence[str] = ()
    ) -> None:
        self.emit(Kind.REPAIRED, queue, generation, runs, detail=detail, ids=ids)

    def replayed(self, queue: str, generation: int, runs: Sequence[Run], detail: str = "") -> None:
        self.emit(Kind.REPLAYED, queue, generation, runs, detail=detail)

    def cancelled(self, queue: str, generation: int, runs: Sequence[Run], ids: Sequence[str] = ()) -> None:
        self.emit(Kind.CANCELLED, queue, generation, runs, ids=ids)

    def moved(
        self, queue: str, generation: int, runs: Sequence[Run], detail: str = "", ids: Sequence[str] = ()
    ) -> None:
        self.emit(Kind.MOVED, queue, generation, runs, detail=detail, ids=ids)

    def skipped(self, queue: str, generation: int, runs: Sequence[Run], detail: str = "") -> None:
        self.emit(Kind.SKIPPED, queue, generation, runs, detail=detail)

    def close(self) -> None:
        """The closing record; nothing is kept after it."""
        self._follower = None
        if self._unkept is not None:
            self._unkept.close()
        if self._sink is not None:
            self.emit(Kind.CLOSED, "", 0, ())
            self._sink.close()
            self._sink = None


def put_place(queue: str) -> str:
    """Under which name the puts of these messages were told: of a log queue's reader, that of its extent."""
    name, at, rest = queue.partition(AT)
    return f"{name}/{rest.split('/', 2)[2]}" if at else queue


def queue_in(place: str) -> str:
    """The queue's own name, of whatever an event calls it."""
    return place.partition(AT)[0].partition("/")[0]


class Account(msgspec.Struct, frozen=True):
    """What is known of one incarnation's events."""

    last: int  # the highest number there is
    missing: tuple[Run, ...]  # numbers that are not there: (first, count)
    closed: bool  # False: what follows the last is unknown

    @property
    def complete(self) -> bool:
        return self.closed and not self.missing


def account(events: Iterable[Happened]) -> dict[tuple[str, str], Account]:
    """By (node, incarnation), in whatever order and however often the events were read."""
    numbers: dict[tuple[str, str], set[int]] = {}
    closed: set[tuple[str, str]] = set()
    for event in events:
        who = (event.node, event.incarnation)
        numbers.setdefault(who, set()).add(event.number)
        if event.kind is Kind.CLOSED:
            closed.add(who)
    found = {who: tuple(gaps((number, 1) for number in seen)) for who, seen in numbers.items()}
    return {who: Account(max(seen), found[who], who in closed) for who, seen in numbers.items()}


def gaps(runs: Iterable[Run]) -> Iterator[Run]:
    """What is missing between 1 and the last of these numbers."""
    expected = 1
    for first, count in sorted(runs):
        if first > expected:
            yield (expected, first - expected)
        expected = max(expected, first + count)
