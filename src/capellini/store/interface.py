"""The store: tables of partitions of rows sorted by a clustering key. It knows rows, not queues.

    table ──▶ partition (found by its partition key) ──▶ static columns, one value per partition
                                                     └──▶ rows, sorted by clustering key, each with columns

Five operations, each on one partition:

    read               a slice of the rows, in order, with the static columns
    write              a batch, atomic and isolated within its partition
    compare_and_set    a batch that happens only if every condition in it holds
    drop               the whole partition goes, without looking at its rows
    partitions         the partition keys of a table that allows it

What every implementation must do
- A call that returns has happened: durable at the level asked for (`Batch.sync` on the embedded store: fsynced before
  it returns).
- A call that raises `Invalid` has changed nothing. One that raises `Unavailable` (or `Overloaded`, `Full`) has changed
  nothing and will change nothing later. Everything else is `Unknown`: it may have happened, or may happen later, even
  much later.
- Plain writes are last-write-wins per cell by timestamp (the explicit one, else the writer's or coordinator's clock);
  of two equal timestamps the larger value wins, cell by cell; a tombstone of the same timestamp wins over a value.
- Compare-and-sets on one partition are linear at one serial level. They never share cells with plain writes: a table's
  columns named in `Table.conditional` are written by compare-and-set only, all others by plain writes only.

What none may do
- Retry a compare-and-set by itself after a lost answer: only the caller knows its token. `settle` below is the one
  sound way.
- Give a partial answer: a slice is complete up to `limit`, and says if there is `more`. Pages of one scan are no
  snapshot.
"""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from uuid import UUID

import msgspec

from capellini.model.errors import Unavailable, Unknown

KeyPart = str | bytes | int | UUID
Key = tuple[KeyPart, ...]
Value = str | bytes | int | float | bool | UUID | None
Values = Mapping[str, Value]

MAX_BATCH_ROWS: Final = 65_000  # Cassandra counts a batch's statements in 16 bits
MAX_KEY_BYTES: Final = 60_000  # Cassandra: a whole key, partition or clustering, is below 64 KiB
MAX_VALUE_BYTES: Final = 8 * 1024 * 1024  # half of the largest mutation with a usual commit log segment


class Type(enum.Enum):
    """Column types. Keys may be TEXT, BLOB, INT or TIMEUUID; order of keys: TEXT by UTF-8 bytes, BLOB by bytes, INT by
    number, TIMEUUID by its time, then by its lower half as signed bytes (as Cassandra does)."""

    TEXT = "text"
    BLOB = "blob"
    INT = "bigint"  # 64 bits, signed
    DOUBLE = "double"
    BOOL = "boolean"
    TIMEUUID = "timeuuid"


class Column(msgspec.Struct, frozen=True):
    name: str
    type: Type


class Table(msgspec.Struct, frozen=True):
    """Declared once, in `store/schema.py`; `doc` becomes the comment of the CQL table."""

    name: str
    doc: str
    partition: tuple[Column, ...]
    clustering: tuple[Column, ...] = ()  # empty: at most one row per partition, with key ()
    columns: tuple[Column, ...] = ()
    statics: tuple[Column, ...] = ()  # only with clustering columns
    conditional: frozenset[str] = frozenset()  # columns and statics written by compare-and-set only
    listable: bool = False  # may `partitions` be called
    apart: bool = False  # embedded: each partition in a space of its own (a column family), dropped whole
    time_series: bool = False  # Cassandra: time-window compaction, for append-only rows that expire together


class Level(enum.Enum):
    """Consistency. The embedded store treats all alike. SERIAL and LOCAL_SERIAL are for compare-and-set and for reads
    that must see every finished compare-and-set."""

    ONE = "one"
    LOCAL_ONE = "local_one"
    QUORUM = "quorum"
    LOCAL_QUORUM = "local_quorum"
    ALL = "all"
    SERIAL = "serial"
    LOCAL_SERIAL = "local_serial"


class Slice(msgspec.Struct, frozen=True):
    """Rows with start <= key < end. Bounds may be prefixes of the clustering key: a prefix as `start` stands before all
    keys that begin with it; as `end` too, so that nothing that begins with it is inside. `after` instead of `start`:
    strictly above that full key."""

    table: Table
    partition: Key
    start: Key | None = None
    end: Key | None = None
    after: Key | None = None
    limit: int = 1_000  # 0: static columns only
    reverse: bool = False  # from the end; start, end and after keep their places (`after` is then where to go on below)
    columns: tuple[str, ...] | None = None  # None: all
    level: Level = Level.QUORUM


class Row(msgspec.Struct, frozen=True, gc=False):  # no cycles: it holds plain values only, and there are many
    key: Key
    values: dict[str, Value]  # only columns with a value


class Page(msgspec.Struct, frozen=True):
    rows: list[Row]
    static: dict[str, Value]  # only columns with a value
    more: bool = False  # `limit` rows were found and there may be more


class Batch(msgspec.Struct, frozen=True):
    """A plain write to one partition: all of it or nothing is seen. A value of None deletes the cell."""

    table: Table
    partition: Key
    rows: tuple[tuple[Key, Values], ...] = ()
    static: Values | None = None
    clear_before: Key | None = None  # also delete all rows with key < this one (a range delete, for counters only)
    ttl_s: int | None = None
    timestamp_us: int | None = None
    level: Level = Level.QUORUM
    sync: bool = True  # embedded: fsync before returning; False: survives the process, not the machine
    once: bool = False  # the store does not send it again by itself: whoever writes has better to do when it fails
    new: bool = False  # nothing was ever written under these keys: embedded, it need not be looked up
    frees: bool = False  # room comes back by it (an ack, a position): embedded, a nearly full disk takes it still


class Absent(enum.Enum):
    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT  # as `Change.expect`: the row must not exist


class Change(msgspec.Struct, frozen=True):
    """One row's part in a compare-and-set. `key` None is the static row.

    expect: {column: value} must all be equal (None: has no value); ABSENT: the row must not exist (not for the static
    row); None: no condition of its own. Each change writes at least one value.
    """

    key: Key | None
    expect: Values | Absent | None
    values: Values


class Cas(msgspec.Struct, frozen=True):
    """Happens as a whole if every condition holds, in one Paxos round. `drop`: the partition is dropped, and what the
    changes (then static only) write survives as its marker. At least one change has a condition."""

    table: Table
    partition: Key
    changes: tuple[Change, ...]
    drop: bool = False
    ttl_s: int | None = None  # of what the changes write (with `drop`: of the marker)
    level: Level = Level.SERIAL
    sync: bool = True  # embedded: fsync before returning, as for Batch


class Outcome(msgspec.Struct, frozen=True):
    """`rows`: when refused, the current values of the rows named in the changes that have a condition (None: the static
    row). Rows that do not exist are absent; columns without a value are absent."""

    applied: bool
    rows: dict[Key | None, dict[str, Value]]


class Replica(msgspec.Struct, frozen=True):
    """A server that holds a partition."""

    name: str  # its address
    dc: str
    up: bool  # it answered when it was asked just now: a guess, that may be over by the time it is told


class Counts(msgspec.Struct):
    """What the store was asked for since it was opened. A batch is one request. Rounds are Paxos rounds, serial reads
    included."""

    requests: int = 0
    statements: int = 0
    rounds: int = 0
    reads: int = 0
    writes: int = 0
    fsyncs: int = 0
    bytes_written: int = 0
    retries: int = 0
    unknown: int = 0


class Store(ABC):
    """One open store. Safe for any number of tasks of one event loop."""

    counts: Counts

    @abstractmethod
    async def prepare(self, tables: tuple[Table, ...], create: bool = True) -> None:
        """Make sure the tables are there and as declared. Raises CannotOpen if not and `create` is false or not
        allowed."""

    @abstractmethod
    async def read(self, slice: Slice) -> Page:
        """Raises Unavailable when it could not be read. Reads are repeated by the store as it sees fit."""

    @abstractmethod
    async def write(self, batch: Batch) -> None:
        """Raises Invalid, Unavailable, or Unknown. Plain writes are idempotent when they carry `timestamp_us`, and
        harmless to repeat when they write immutable cells: the store may repeat them. Larger batches than one request
        takes are split by bytes, and are then atomic only in parts: callers that need more keep them below
        `Store.atomic_bytes`."""

    @abstractmethod
    async def compare_and_set(self, cas: Cas) -> Outcome:
        """Raises Invalid, Unavailable (surely not applied, now or later), or Unknown. Never repeated by the store."""

    @abstractmethod
    async def drop(
        self, table: Table, partition: Key, level: Level = Level.QUORUM, timestamp_us: int | None = None
    ) -> None:
        """Plain. For partitions without conditional cells; others are dropped by `Cas.drop`."""

    @abstractmethod
    async def partitions(
        self, table: Table, limit: int = 1_000, after: Key | None = None, level: Level = Level.QUORUM
    ) -> list[Key]:
        """Partition keys in an order of the store's own; go on with `after` the last one. Only where
        `Table.listable`."""

    async def replicas(self, table: Table, partition: Key) -> tuple[Replica, ...]:
        """The servers that hold that partition, whether it exists yet or not. Empty: the store has no replicas, or
        cannot tell. Never raises for a server that is away."""
        return ()

    async def sync(self) -> None:
        """All writes that returned before with `sync` False are durable when this returns. Nothing to do for most
        stores."""
        return None

    def swap(self, cas: Cas) -> bool:
        """Embedded: a compare-and-set without a wait, of a row that is at hand. True: applied, and durable after
        `sync`. False: nothing was changed, ask `compare_and_set`. Raises as that does."""
        return False

    @property
    def broken(self) -> str | None:
        """Embedded: what ended it for good. Nothing works any more until it is opened again."""
        return None

    @property
    def lonely(self) -> bool:
        """Embedded: one caller at a time asked for something lately, so that nobody is to be waited for."""
        return False

    @property
    def syncing(self) -> asyncio.Future[None] | None:
        """Embedded: an fsync is under way beside the loop; done when it is over. What is written before then has no
        part in it, and can as well gather. None: there is none."""
        return None

    @abstractmethod
    async def skew_s(self) -> float:
        """How far the store's clock is ahead of the clock here, at best knowledge (0 when it is the same clock)."""

    @abstractmethod
    async def check(self) -> None:
        """Raises Unavailable (or Full) when puts would not work now; cheap."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was begun; further calls raise Unavailable."""

    atomic_bytes: int = 1024 * 1024  # a batch of up to so many bytes is one request
    alone: bool = False  # no other process can change what is in it
    home: str = ""  # the data centre whose replicas answer at local levels; empty: there are no local levels
    homes: tuple[str, ...] = ()  # all data centres that hold copies


SETTLE_ATTEMPTS: Final = 8  # with the pauses below some 12 s: past any request time-out, short of a caller's patience


async def settle(
    store: Store, cas: Cas, mine: Callable[[Outcome], bool], sleep: Callable[[float], Awaitable[None]]
) -> Outcome:
    """Compare-and-set until the outcome is known: the one sound way to resolve a lost answer.

    The same compare-and-set with the same precondition is repeated; it must write a token that is unique to it. Applied
    means mine. Refused after a lost answer, `mine` decides: the token is there, so an earlier attempt was applied: mine
    too. A read would prove nothing: a stalled coordinator may still propose.

    Refused without the token says that no attempt was applied only of a row that nobody else changes. Where others do,
    an attempt may have been applied and changed again before the answer came. Rows that several nodes change therefore
    carry a trail of the last tokens (queues/trail.py), and `mine` must look for the token in it; where the trail no
    longer tells, the caller must take the outcome for unknown.

    Raises Unknown when the store does not answer for long; Unavailable only if no attempt can have been applied.
    """
    lost = False
    pause_s = 0.05
    for attempt in range(SETTLE_ATTEMPTS):
        try:
            outcome = await store.compare_and_set(cas)
        except Unknown:
            lost = True
        except Unavailable:
            if not lost:
                raise
        else:
            return Outcome(True, {}) if not outcome.applied and lost and mine(outcome) else outcome
        if attempt + 1 < SETTLE_ATTEMPTS:
            await sleep(pause_s)
            pause_s = min(pause_s * 2, 4.0)
    raise Unknown("the store did not say whether a compare-and-set was done; it may have been")
