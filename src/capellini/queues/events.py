"""What happened to messages: the events that the journal is made of, numbered so that a gap is known to be one.

    emit ──▶ number 1, 2, 3, … of this incarnation ──▶ sink: memory, file, or none
                                                           └─ the last is `closed`, and says how many there were

One event per parcel, never per message: ids are runs (first, count). Numbers are gapless per incarnation of a node.
So a reader knows what it does not know: a number that is missing is a lost event; an incarnation without a closing
record may have done more than its last event says (`account`). What is missing makes a life "unknown", never "lost".

What fails, and what then happens: a sink that cannot write drops events and counts them. Messages do not wait for the
journal, and the numbers go on, so that the gap shows.
"""

from __future__ import annotations

import enum
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from capellini.model.clock import Clock

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
    CLOSED = "closed"  # the incarnation's last event


class Happened(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the journal. `version` is the delivery count of the messages, where it says something."""

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


class Sink(Protocol):
    def add(self, event: Happened) -> None:
        """Must be cheap and must not raise for want of room: what cannot be kept is dropped and counted."""

    def flush(self) -> None:
        """What is held back goes where it belongs: called about once a second."""

    def close(self) -> None:
        """Nothing comes after this."""


class MemorySink:
    """Keeps the last `most`, or all."""

    def __init__(self, most: int | None = None) -> None:
        self.events: deque[Happened] = deque(maxlen=most)

    def add(self, event: Happened) -> None:
        self.events.append(event)

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

    def add(self, event: Happened) -> None:
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
    """The numbering of one incarnation. `sink` None: nothing is kept, and emitting costs next to nothing."""

    def __init__(self, clock: Clock, node: str = "", incarnation: str = "", sink: Sink | None = None) -> None:
        self._clock = clock
        self._sink = sink
        self._number = 0
        self.node, self.incarnation = node, incarnation

    @property
    def number(self) -> int:
        """Of the last event."""
        return self._number

    def flush(self) -> None:
        if self._sink is not None:
            self._sink.flush()

    def emit(
        self, kind: Kind, queue: str, generation: int, runs: Sequence[Run], version: int = 0, detail: str = ""
    ) -> None:
        if self._sink is None:
            return
        self._number += 1
        self._sink.add(
            Happened(
                node=self.node,
                incarnation=self.incarnation,
                number=self._number,
                at=self._clock.now_s(),
                kind=kind,
                queue=queue,
                generation=generation,
                runs=tuple(runs),
                version=version,
                detail=detail,
            )
        )

    def put(self, queue: str, generation: int, runs: Sequence[Run]) -> None:
        self.emit(Kind.PUT, queue, generation, runs)

    def delivered(self, queue: str, generation: int, runs: Sequence[Run], version: int) -> None:
        self.emit(Kind.DELIVERED, queue, generation, runs, version)

    def acked(self, queue: str, generation: int, runs: Sequence[Run], version: int) -> None:
        self.emit(Kind.ACKED, queue, generation, runs, version)

    def nacked(self, queue: str, generation: int, runs: Sequence[Run], version: int) -> None:
        self.emit(Kind.NACKED, queue, generation, runs, version)

    def extended(self, queue: str, generation: int, runs: Sequence[Run], version: int) -> None:
        self.emit(Kind.EXTENDED, queue, generation, runs, version)

    def dead(self, queue: str, generation: int, runs: Sequence[Run], detail: str = "") -> None:
        self.emit(Kind.DEAD, queue, generation, runs, detail=detail)

    def expired(self, queue: str, generation: int, runs: Sequence[Run]) -> None:
        self.emit(Kind.EXPIRED, queue, generation, runs)

    def repaired(self, queue: str, generation: int, runs: Sequence[Run], detail: str = "") -> None:
        self.emit(Kind.REPAIRED, queue, generation, runs, detail=detail)

    def replayed(self, queue: str, generation: int, runs: Sequence[Run], detail: str = "") -> None:
        self.emit(Kind.REPLAYED, queue, generation, runs, detail=detail)

    def close(self) -> None:
        """The closing record; nothing is kept after it."""
        if self._sink is not None:
            self.emit(Kind.CLOSED, "", 0, ())
            self._sink.close()
            self._sink = None


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
    return {who: Account(max(seen), tuple(_gaps(seen)), who in closed) for who, seen in numbers.items()}


def _gaps(numbers: set[int]) -> Iterator[Run]:
    expected = 1
    for number in sorted(numbers):
        if number > expected:
            yield (expected, number - expected)
        expected = number + 1


def read_events(path: Path) -> Iterator[Happened]:
    """The events of a file. A line that was cut when its writer died is no event: its number will be missing."""
    decode = msgspec.json.Decoder(Happened).decode
    with path.open("rb") as file:
        for line in file:
            try:
                yield decode(line)
            except msgspec.DecodeError:
                continue
