"""The list of a queue's unfinished buckets: pure decisions on one small record.

    reader ─┐
    3:over  5:gaps  6:done │ 7:open  8:over  9 (not listed)  10 ... last
    └─ listed, each with the time at which something in it can be had (a hint: never later than the truth for longer
    than a look takes)

- A bucket is listed (`OPEN`) before the first claim in it, so that what a crashed consumer took is found again by its
  time.
- `OVER`: nothing fresh is left in it, something is hidden. `GAPS`: ids that were given out are not written (yet): it is
  looked at again and again until repair has closed the gaps. `DONE`: all is finished; repair drops it and takes it off
  the list.
- `reader` is the first bucket that may hold fresh messages; what lies below and is not listed is gone. Repair is the
  lowest of all; the invisibility pointer is the lowest with hidden messages.

A hint is raised only by whoever looked (raise, then look again); whoever makes something visible earlier than the hint
says lowers it after the change and before confirming. One of the two sees the other. A claim trusts what it knows of
the list, and looks again a moment after: what was raised in between is lowered.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final, NamedTuple

import msgspec

OPEN: Final = 0
OVER: Final = 1
GAPS: Final = 2
DONE: Final = 3
DROPPED: Final = 4  # ahead of the reader: kept on the list until the reader has passed it
NAMES: Final = {OPEN: "open", OVER: "over", GAPS: "gaps", DONE: "done", DROPPED: "dropped"}
ENDED: Final = (DONE, DROPPED)
MAX_BACK: Final = 10_000  # buckets that an operator may list again at once


class Listed(NamedTuple):
    kind: int
    at_ms: int


class Pointers(msgspec.Struct, frozen=True):
    reader: int = 0
    listed: dict[int, Listed] = {}

    @property
    def repair(self) -> int:
        return min((b for b, entry in self.listed.items() if entry.kind != DROPPED), default=self.reader)

    @property
    def invisibility(self) -> int | None:
        return min((bucket for bucket, entry in self.listed.items() if entry.kind not in ENDED), default=None)


def encode(pointers: Pointers) -> bytes:
    flat: list[int] = [pointers.reader]
    for bucket in sorted(pointers.listed):
        entry = pointers.listed[bucket]
        flat += (bucket, entry.kind, entry.at_ms)
    return msgspec.msgpack.encode(flat)


_DECODER: Final = msgspec.msgpack.Decoder(list[int])


def decode(data: bytes | None) -> Pointers:
    if not data:
        return Pointers()
    flat = _DECODER.decode(data)
    return Pointers(
        flat[0], {flat[index]: Listed(flat[index + 1], flat[index + 2]) for index in range(1, len(flat), 3)}
    )


def _with(pointers: Pointers, bucket: int, entry: Listed | None) -> Pointers:
    listed = dict(pointers.listed)
    if entry is None:
        listed.pop(bucket, None)
    else:
        listed[bucket] = entry
    reader = pointers.reader
    while reader in listed and listed[reader].kind != OPEN:
        reader += 1
    if reader != pointers.reader:
        listed = {at: entry for at, entry in listed.items() if at >= reader or entry.kind != DROPPED}
    return Pointers(reader, listed)


def gone(pointers: Pointers, bucket: int) -> bool:
    return bucket < pointers.reader and bucket not in pointers.listed


def maybe_fresh(pointers: Pointers, bucket: int) -> bool:
    entry = pointers.listed.get(bucket)
    return bucket >= pointers.reader and (entry is None or entry.kind == OPEN)


def has_gaps(pointers: Pointers | None, bucket: int) -> bool:
    """Is something known to be missing there?"""
    entry = pointers.listed.get(bucket) if pointers is not None else None
    return entry is not None and entry.kind == GAPS


def due(pointers: Pointers, now_ms: int, promising: Set[int], visited: Set[int]) -> int | None:
    """The listed bucket that is overdue for longest. One with gaps that this node knows better of is due at once."""
    found = min(
        (
            (entry.at_ms, bucket)
            for bucket, entry in pointers.listed.items()
            if (entry.at_ms <= now_ms or (entry.kind == GAPS and bucket in promising))
            and entry.kind not in ENDED
            and bucket not in visited
        ),
        default=None,
    )
    return None if found is None else found[1]


def announced(pointers: Pointers, bucket: int, at_ms: int) -> Pointers:
    """List a bucket before the first claim in it, or bring its time forward."""
    if gone(pointers, bucket):
        return pointers
    entry = pointers.listed.get(bucket)
    if entry is None:
        return _with(pointers, bucket, Listed(OPEN, at_ms))
    return (
        pointers if entry.at_ms <= at_ms or entry.kind in ENDED else _with(pointers, bucket, Listed(entry.kind, at_ms))
    )


def seen(pointers: Pointers, bucket: int, kind: int, at_ms: int, now_ms: int) -> Pointers:
    """What a look at the bucket showed."""
    entry = pointers.listed.get(bucket)
    if gone(pointers, bucket) or entry == Listed(kind, at_ms) or (entry is not None and entry.kind in ENDED):
        return pointers
    if kind == OPEN and bucket < pointers.reader:  # what was passed stays passed: it is found by its time only
        kind, at_ms = GAPS, min(at_ms, now_ms)
    if entry is not None and kind == entry.kind == GAPS and now_ms < entry.at_ms:
        return pointers  # another node has looked meanwhile: it is its turn again then
    return _with(pointers, bucket, Listed(kind, at_ms))


def reopened(pointers: Pointers, bucket: int, at_ms: int) -> Pointers:
    """It was called done and is not: it is looked at again."""
    entry = pointers.listed.get(bucket)
    return (
        _with(pointers, bucket, Listed(GAPS, min(at_ms, 0))) if entry is not None and entry.kind == DONE else pointers
    )


def removed(pointers: Pointers, bucket: int) -> Pointers:
    """It was dropped."""
    if bucket >= pointers.reader:
        return _with(pointers, bucket, Listed(DROPPED, 0))
    return _with(pointers, bucket, None) if bucket in pointers.listed else pointers


def back_to(pointers: Pointers, bucket: int) -> Pointers:
    """List everything from `bucket` on again, so that it is looked at; what was dropped is taken off again by the
    look."""
    start = max(0, bucket, pointers.reader - MAX_BACK)
    listed = dict(pointers.listed)
    for again in range(start, pointers.reader):
        listed.setdefault(again, Listed(GAPS, 0))
    return Pointers(pointers.reader, listed)
