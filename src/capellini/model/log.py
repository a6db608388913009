"""Values of log queues, as every caller sees them, and the calls that only log queues have.

A consumer group is named together with its queue as QUEUE@GROUP wherever a queue's name is asked for: get, ack, nack,
extend, peek, statistics, dead letters. Without a group it is the group `default`, made at its first use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from capellini.model.errors import Invalid
from capellini.model.options import NAME, NAME_RULE, check_name

AT: Final = "@"  # between a queue and its group; no name has one
DEFAULT_GROUP: Final = "default"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
MAX_GROUPS: Final = 100  # of one queue: each costs a little for every extent
MAX_FILTERS: Final = 16


class GroupOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a group wants. None: as its queue's options say."""

    visibility_s: float | None = None  # the ack timeout
    delivery_limit: int | None = None  # deliveries before a message goes to the group's dead letters; 0: no limit
    nack_delay_s: float | None = None
    nack_delay_most_s: float | None = None
    delay_s: float = 0.0  # messages are delivered so long after they were put
    skip_older_s: float = 0.0  # messages older than this are skipped; 0: none
    filter: dict[str, list[str]] = {}  # attribute: values, one of which it must have; all of them


class GroupInfo(msgspec.Struct, frozen=True):
    queue: str
    name: str
    version: int  # rises with each seek: all its receipts become stale then
    start_at: float  # seconds since 1970: messages put before are not for it; 0: from the oldest there is
    options: GroupOptions
    created_at: float
    dead_letters: str  # the work queue that has them
    says: str = ""  # what is to be known of what was just done


class GroupLag(msgspec.Struct, frozen=True):
    """How far a group is behind. Exact at the owners that were asked."""

    ready: int
    in_flight: int
    delayed: int  # nacked or timed out and waiting, or not due for this group yet
    oldest_age_s: float | None
    exact: bool


class ExtentView(msgspec.Struct, frozen=True):
    """One extent, for people who look."""

    queue: str
    extent: str
    home: str  # data centre; empty: all
    state: str  # open, sealed
    node: str  # its writer
    incarnation: str
    level: str
    replicas: tuple[str, ...]  # where they are known
    opened_at: float
    sealed_at: float | None
    end: int | None  # how many messages, where known
    bytes: int | None
    readers: dict[str, dict[str, Any]]  # by group: owner, epoch, cursor, in flight
    says: str = ""


class Routes(msgspec.Struct, frozen=True):
    """Where a queue is written and read best. Any node works; these are faster."""

    writers: tuple[str, ...]  # addresses, one for each open extent
    readers: tuple[str, ...]  # addresses of the nodes that read for the group
    here: str  # the address of the node that was asked


class Appended(msgspec.Struct, frozen=True, array_like=True):
    """A chunk's place once it is confirmed: its messages have numbers first .. first+count-1 of that extent."""

    extent: str
    first: int
    count: int
    duplicate: bool = False  # it was there before


class LogParcel(msgspec.Struct, frozen=True, array_like=True):
    """Messages first .. first+count-1 of an extent in one delivery: what whoever acks must name."""

    extent: str
    reader: str  # group and version
    epoch: int  # of the owner
    delivery: int  # number of this delivery at its owner
    first: int
    count: int
    deliveries: int  # how often these were delivered, this time included
    put_ms: int
    visible_ms: int  # offered again then
    code: bytes  # proves that this delivery was made
    chunks: bytes  # one chunk or several, `count` messages together


class Settle(msgspec.Struct, frozen=True, array_like=True):
    """An ack, nack or extend of messages of one delivery."""

    extent: str
    reader: str
    epoch: int
    delivery: int
    first: int  # of the delivery
    count: int
    code: bytes
    verb: str  # ack, nack, extend, release: see `model.streams.VERBS`
    ranges: list[tuple[int, int]]  # (number, count), numbers of the extent
    value_ms: int | None = None  # nack: delay (None: as the group says); extend: visibility


class Settled(msgspec.Struct, frozen=True, array_like=True):
    ranges: list[tuple[int, int]]  # that were settled; the others were stale
    error: str = ""  # empty, or why nothing was: unavailable, unknown
    says: str = ""


class LogService(ABC):
    """What log queues have beyond the calls of every queue. Errors as for `Service`."""

    @abstractmethod
    async def create_group(
        self, queue: str, group: str, start: str | float = EARLIEST, options: Mapping[str, Any] | None = None
    ) -> GroupInfo:
        """Same again is fine; other options are a Conflict. `start`: earliest, latest, or seconds since 1970."""

    @abstractmethod
    async def groups(self, queue: str) -> list[GroupInfo]: ...

    @abstractmethod
    async def show_group(self, queue: str, group: str) -> tuple[GroupInfo, GroupLag]: ...

    @abstractmethod
    async def change_group(self, queue: str, group: str, options: Mapping[str, Any]) -> GroupInfo: ...

    @abstractmethod
    async def seek_group(self, queue: str, group: str, to: str | float) -> GroupInfo:
        """From there on once more (or on). Before what is kept: from the oldest, and `says` tells so."""

    @abstractmethod
    async def delete_group(self, queue: str, group: str) -> None: ...

    @abstractmethod
    async def merge_dead(self, queue: str, group: str, count: int | None = None) -> int:
        """Dead letters of a group come to it (and to no other group) again; how many."""

    @abstractmethod
    async def purge_dead(self, queue: str, group: str) -> None: ...

    @abstractmethod
    async def extents(self, queue: str) -> list[ExtentView]: ...

    @abstractmethod
    async def routes(self, queue: str, group: str | None = None) -> Routes: ...

    @abstractmethod
    async def append(self, queue: str, chunk: bytes) -> Appended:
        """One chunk, checked here. Confirmed when it returns. With a producer in it, one that came before is
        recognised. Raises Unknown when it may be there."""

    @abstractmethod
    async def pull(
        self, queue: str, group: str, count: int, most_bytes: int, wait_s: float, visibility_s: float | None = None
    ) -> list[LogParcel]:
        """Up to `count` messages and about so many bytes, at least one message if there is one."""

    @abstractmethod
    async def settle(self, queue: str, group: str, items: Sequence[Settle]) -> list[Settled]: ...


def split_name(name: str) -> tuple[str, str]:
    """Queue and group of QUEUE@GROUP. Raises Invalid."""
    queue, at, group = name.partition(AT)
    check_name(queue)
    return queue, check_group(group) if at else DEFAULT_GROUP


def check_group(name: str) -> str:
    """Raises Invalid."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Invalid(f"{str(name)[:120]!r} is not the name of a group: use {NAME_RULE}")
    return name


def check_place(name: str) -> str:
    """QUEUE, or QUEUE@GROUP. Raises Invalid."""
    if isinstance(name, str) and AT in name:
        split_name(name)
        return name
    return check_name(name)


def group_name(queue: str, group: str | None) -> str:
    return queue if group is None else f"{queue}{AT}{group}"
