"""Counters as every caller sees them: a node offers them, the REST API exposes them, the client speaks them.

Batches give one result per item, in order: a value, or an error as a value (`Problem`), so that good items work beside
bad ones. Errors that concern the whole call are raised.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from capellini.model.errors import Invalid
from capellini.model.service import Problem

SUM: Final = "sum"
MOST_AT_ONCE: Final = 10_000  # updates, or names to read, in one call
MOST_LISTED: Final = 10_000
MOST_INTERSECTED: Final = 32
QUEUES: Final = "queue:"  # what the names of queues' statistics begin with: listed only when asked for
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")  # a queue's name fits in, with words around it
NAME_RULE: Final = "1 to 200 of a-z, A-Z, 0-9, '_', '-', '.' and ':', beginning with a letter or digit"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")  # no UTF-8 has one


def check_name(name: object) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Invalid(f"{name!r:.120} is not the name of a counter: use {NAME_RULE}")
    return name


def updates_in(updates: object) -> list[object]:
    """A text or an object is one update, and no series of them: its letters or words would count."""
    if not isinstance(updates, str | bytes | bytearray | memoryview | Mapping):
        try:
            return list(updates)  # type: ignore[call-overload,no-any-return]
        except TypeError:
            pass
    raise Invalid(f"updates come in a list, also a single one, not as {updates!r:.60}")


def check_listing(prefix: object, after: object, limit: object) -> None:
    for text in (prefix, after):
        if not isinstance(text, str) or _SURROGATE.search(text):
            raise Invalid(f"{text!r:.120} begins no name of a counter: use {NAME_RULE}")
    if type(limit) is not int or not 1 <= limit <= MOST_LISTED:
        raise Invalid(f"limit goes from 1 to {MOST_LISTED}, not {limit!r:.60}")


def queue_counter(queue: str, generation: int) -> str:
    """The counter that keeps the statistics of one generation of a queue."""
    return f"{QUEUES}{queue}:{generation}"


class Update(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One update, as it is sent: [counter, value] or [counter, value, kind]."""

    counter: str
    value: Any = 1
    kind: str = SUM


class Counted(msgspec.Struct, frozen=True):
    """An update that counts, durably."""

    counted: bool = True


class Named(msgspec.Struct, frozen=True):
    name: str
    kind: str


class Reading(msgspec.Struct, frozen=True):
    """A counter at one time. `expired`: shards that could be collected."""

    name: str
    kind: str
    value: Any
    shards: int
    expired: int
    through: float  # seconds since 1970; 0: nothing was collected yet
    sketch: bytes | None = None  # of sketches, in the form of Apache DataSketches; only when asked for


class Collected(msgspec.Struct, frozen=True):
    """`deferred`: why not all was collected that could have been; empty: nothing was in the way."""

    name: str
    shards: int
    through: float  # seconds since 1970
    starts: int = 1
    deferred: str = ""


class CounterFigures(msgspec.Struct):
    """Of one process, since it began."""

    updates: int = 0
    refused: int = 0  # wrong in themselves
    writes: int = 0
    reads: int = 0
    mutators: int = 0  # born
    culled: int = 0
    collections: int = 0
    collected_shards: int = 0
    deferred: int = 0  # collections that could not be had
    taking: int = 0  # mutators in memory now
    memory_bytes: int = 0
    deferred_why: str = ""  # the last of them


class CounterService(ABC):
    """Raises Invalid for wrong input (nothing changed), Conflict for an update of another state than the counter has,
    NotFound for a counter that was never updated, Unavailable when an update does not count, Unknown when it may."""

    @abstractmethod
    async def update(self, name: str, updates: Sequence[object], kind: str = SUM) -> None:
        """All of them or, when one is wrong, none. Durable when it returns."""

    @abstractmethod
    async def update_many(self, updates: Sequence[Update]) -> list[Counted | Problem]:
        """Durable when it returns."""

    @abstractmethod
    async def read_many(self, names: Sequence[str], sketch: bool = False) -> list[Reading | Problem]: ...

    @abstractmethod
    async def listed(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[Named]:
        """By name. Statistics of queues only if the prefix begins as their names do (`QUEUES`)."""

    @abstractmethod
    async def intersection(self, names: Sequence[str]) -> dict[str, float]:
        """How many different elements all of these theta counters have seen."""

    @abstractmethod
    async def collect(self, name: str) -> Collected:
        """Merge what is final into the tally. What the store says is in `deferred`, not raised."""

    def figures(self) -> CounterFigures | None:
        """None: they are kept elsewhere."""
        return None

    async def add(self, name: str, value: int = 1) -> None:
        """Add to a sum. Durable when it returns."""
        await self.update(name, [value])

    async def read(self, name: str, sketch: bool = False) -> Reading:
        (result,) = await self.read_many([name], sketch)
        if isinstance(result, Problem):
            raise result.raised()
        return result
