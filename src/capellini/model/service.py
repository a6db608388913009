"""The one service, as every caller sees it: a node offers it, the REST API exposes it, the client speaks it over any
address.

Batches give one result per item, in order: a value, or an error as a value (`Problem`), so that good items work beside
bad ones. Errors that concern the whole call are raised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from capellini.model.errors import CapelliniError, from_name
from capellini.model.message import Delivery, NewMessage, Peeked

if TYPE_CHECKING:
    from capellini.model.counters import CounterService
    from capellini.model.log import LogService
    from capellini.model.scheduling import TimedService


class Problem(msgspec.Struct, frozen=True):
    """An error of one item, as a value."""

    error: str  # CapelliniError.name
    says: str

    @classmethod
    def of(cls, error: CapelliniError) -> Problem:
        return cls(error.name, error.says)

    def raised(self) -> CapelliniError:
        return from_name(self.error, self.says)


class QueueInfo(msgspec.Struct, frozen=True):
    name: str
    kind: str
    generation: int
    options: dict[str, Any]
    created_at: float
    puts_paused: bool = False
    gets_paused: bool = False


class Statistics(msgspec.Struct, frozen=True):
    """How a queue is, and what happened in it since its generation began, on all nodes. `exact` names the figures that
    are exact at the moment of reading; the others are estimates: from a bounded look, from sketches, or up to a second
    behind what other nodes do."""

    ready: int
    in_flight: int
    delayed: int
    dead: int  # in its dead-letter queue, of all queues that share it
    oldest_age_s: float | None
    puts_per_s: float  # over the last minute, this node
    gets_per_s: float
    acks_per_s: float
    exact: tuple[str, ...]
    # Totals: messages, of confirmed calls
    puts: int = 0  # duplicates of keys are none
    bytes_put: int = 0  # as stored: bodies, attributes and a few bytes each
    deliveries: int = 0
    redeliveries: int = 0  # ... of which so many were not the first of their message
    acks: int = 0
    nacks: int = 0
    dead_letters: int = 0  # moved there
    expired: int = 0  # outlived ttl_s: nobody gets them
    producers: int = 0  # different ones, about
    delivered_after_s: dict[str, float] = {}  # quantiles from put to first delivery, delays included; of samples
    acked_after_s: dict[str, float] = {}  # ... and from delivery to ack


class Put(msgspec.Struct, frozen=True, gc=False):
    id: str
    duplicate: bool = False  # the key was used before: this is the id of that put


class NackItem(msgspec.Struct, frozen=True):
    receipt: str
    delay_s: float | None = None  # None: as the queue's options say


class ExtendItem(msgspec.Struct, frozen=True):
    receipt: str
    visibility_s: float


class Done(msgspec.Struct, frozen=True):
    """An ack, nack or extend that was done. `visible_at`: when the message is offered again (None after an ack)."""

    visible_at: float | None = None


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """A run of deliveries with ids first .. first+count-1, all of one version, under one authentication code: what the
    fast lane carries.

    `entries` is a MessagePack array of `count` Entry values, as it was put.
    """

    generation: int
    first: int
    count: int
    version: int  # equals the delivery count
    code: bytes
    put_at_ms: int
    visible_at_ms: int
    entries: msgspec.Raw


class ParcelAck(msgspec.Struct, frozen=True, array_like=True):
    """Acks the ids in `ranges` (pairs offset, count; offsets within the parcel) of a parcel."""

    generation: int
    first: int
    count: int
    version: int
    code: bytes
    ranges: list[tuple[int, int]]


class BucketView(msgspec.Struct, frozen=True):
    bucket: int
    first: int  # its first id
    size: int
    written: int
    counts: dict[str, int]  # of the ids given out, by state: ready, in_flight, delayed, finished, unwritten ...
    next_visible_at: float | None
    listed: str  # open, over, gaps, done, unlisted, dropped


class PointersView(msgspec.Struct, frozen=True):
    reader: int  # bucket numbers
    repair: int
    invisibility: int | None
    last: int  # the bucket that takes new messages
    next_id: int
    repaired_by: str | None
    entries: list[tuple[int, str, float | None]]  # bucket, listed as, next visible


class MessageView(msgspec.Struct, frozen=True):
    id: str
    bucket: int
    state: str
    deliveries: int
    visible_at: float | None
    put_at: float | None
    size: int | None
    says: str  # in one sentence
    moved_to: str = ""  # queue/generation/id that it has now


def sides(puts: bool | None, gets: bool | None) -> tuple[bool, bool]:
    """Which sides of a queue are meant: both when none is named; else one that is not named where the other is not
    meant."""
    if puts is None and gets is None:
        return True, True
    return (not gets if puts is None else puts), (not puts if gets is None else gets)


class Service(ABC):
    """All calls raise NotFound for an unknown queue, Invalid for wrong input (nothing changed), Unavailable when the
    store is away (nothing changed), Unknown when the outcome could not be learned."""

    counters: CounterService | None = None  # where there are some
    timed: TimedService | None = None  # what timed queues have beyond these calls, where there are some
    log: LogService | None = None  # ... and log queues

    async def body_limit(self, name: str) -> int:
        """How many bytes a body may have in this queue; what is larger is refused while it arrives."""
        return int((await self.show(name)).options["body_limit"])

    @abstractmethod
    async def create(self, name: str, kind: str = "work", options: Mapping[str, Any] | None = None) -> QueueInfo:
        """Same again is fine; other options are a Conflict."""

    @abstractmethod
    async def queues(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[QueueInfo]:
        """By name."""

    @abstractmethod
    async def show(self, name: str) -> QueueInfo: ...

    @abstractmethod
    async def change(self, name: str, options: Mapping[str, Any]) -> QueueInfo: ...

    @abstractmethod
    async def pause(self, name: str, puts: bool | None = None, gets: bool | None = None) -> QueueInfo:
        """True pauses, False resumes, None leaves it; in force on all nodes when this returns."""

    @abstractmethod
    async def purge(self, name: str) -> QueueInfo:
        """All messages go; options and groups stay. Receipts become stale."""

    @abstractmethod
    async def delete(self, name: str) -> None:
        """The name is free at once; what is left is cleared in the background."""

    @abstractmethod
    async def statistics(self, name: str) -> Statistics: ...

    @abstractmethod
    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]: ...

    @abstractmethod
    async def get(
        self, name: str, count: int = 1, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[Delivery]: ...

    @abstractmethod
    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]: ...

    @abstractmethod
    async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]: ...

    @abstractmethod
    async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]: ...

    @abstractmethod
    async def peek(self, name: str, count: int = 10, after: str = "") -> list[Peeked]: ...

    @abstractmethod
    async def dead(self, name: str, count: int = 100, after: str = "") -> list[Peeked]:
        """What lies in the dead-letter queue of `name` and came from it."""

    @abstractmethod
    async def redrive(self, name: str, count: int | None = None, ids: Sequence[str] | None = None) -> int:
        """Moves dead letters of `name` back into it, exactly once each; how many. `ids`: only these, of those that
        nobody holds; `count` says nothing then."""

    @abstractmethod
    async def buckets(self, name: str, limit: int = 100) -> list[BucketView]: ...

    @abstractmethod
    async def pointers(self, name: str) -> PointersView: ...

    @abstractmethod
    async def move_repair(self, name: str, bucket: int) -> PointersView:
        """Moves the repair pointer back to look again at buckets from there on; safe while running."""

    @abstractmethod
    async def message(self, name: str, id: str) -> MessageView: ...

    # The fast lane: whole blocks, no object per message. Same meaning as put, get and ack.

    @abstractmethod
    async def put_block(self, name: str, entries: bytes) -> list[tuple[int, int]]:
        """Puts a MessagePack array of entries; the runs of ids (first, count) they got, in order. All or an error for
        all."""

    @abstractmethod
    async def take(
        self, name: str, count: int, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[Parcel]: ...

    @abstractmethod
    async def ack_parcels(self, name: str, acks: Sequence[ParcelAck]) -> list[list[tuple[int, int]]]:
        """For each, the ranges (offset, count) that were acked; what is missing was stale."""

    @abstractmethod
    async def close(self) -> None: ...
