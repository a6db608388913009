"""Values of timed queues, as every caller sees them."""

from __future__ import annotations

from typing import Final

import msgspec

from capellini.model.message import Entry

MAX_DUE_S: Final = 10 * 365 * 86_400.0  # how far ahead a message may be due: beyond ten years it is a mistake
MAX_SHARDS: Final = 256  # of one queue; far more than nodes, and each costs a little when idle


class Scheduled(msgspec.Struct, frozen=True):
    """A message for a timed queue: checked before, its due as wall time. A due in the past means at once."""

    entry: Entry
    due_ms: int
    key: str | None = None  # idempotency key


class MoveItem(msgspec.Struct, frozen=True):
    """A scheduled message gets another due; its id stays."""

    id: str
    due_ms: int


class DueMessage(msgspec.Struct, frozen=True):
    """A message as it lies in the store, without taking it."""

    id: str
    state: str  # scheduled, ready, in_flight
    due_at: float  # seconds since 1970
    put_at: float
    deliveries: int
    body: bytes
    attributes: dict[str, str]


class ShardView(msgspec.Struct, frozen=True):
    """One shard, as its holder has it; with an empty `holder` nobody works it now, and only what the store says is
    known."""

    queue: str
    shard: int
    state: str  # started, stopped (by an operator), nobody, unreachable (its holder does not answer)
    holder: str  # node
    epoch: int
    cursor_at: float | None  # wall time: all that lies before is finished
    horizon_at: float | None  # wall time: puts due before it are placed after it
    lag_s: float | None  # how far the reading is behind the clock; 0 when it is not
    ready: int = 0
    waiting: int = 0  # read ahead, not due yet or hidden
    in_flight: int = 0
    in_flight_bytes: int = 0  # of their bodies, in the holder's memory
    retired: bool = False  # the queue has fewer shards now; worked until it is empty
    takeovers: int = 0  # epochs so far
    suspicious: str = ""  # why its holder should be looked at


class TimedCounts(msgspec.Struct, frozen=True):
    ready: int
    in_flight: int
    waiting: int  # read ahead, or hidden
    scheduled: int  # further ahead: counted up to a bound
    oldest_due_ms: int | None
    exact: bool  # False: some shard did not answer, or the bound was reached
