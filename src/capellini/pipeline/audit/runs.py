"""Runs of ids instead of ids: most lives are plain, and are seen to be so without looking at any of them by itself.

    events ──▶ joined: neighbours of one kind and version become one run again, before anything travels
           ──▶ per block of ids: how often was each put, delivered, acked, …: +1 where a run begins, -1 where it ends,
               and a running sum gives every id its counts
           ──▶ whose counts are those of a plain life is done with; the others are suspects, as runs again

Where a count is 1 the sum of versions is the version itself, so that counts and sums of versions are enough to know a
plain life for sure: put once, delivered once as 1, acked once as 1, and nothing else.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from capellini.pipeline.audit.verdict import SETTLED
from capellini.queues.events import Kind

BLOCK: Final = 1 << 18  # ids looked at together: a few MB of counts
PUT, TAKEN, DONE, ENDED, VOID, PAST, OTHER = range(7)
COLUMN: Final = {
    Kind.PUT.value: PUT, Kind.DELIVERED.value: TAKEN, Kind.ACKED.value: DONE, Kind.EXPIRED.value: ENDED,
    Kind.CANCELLED.value: ENDED, Kind.SKIPPED.value: ENDED, Kind.REPAIRED.value: VOID, SETTLED: PAST,
}  # fmt: skip


class Runs(NamedTuple):
    """Columns; equal in length. `group` is a number for (queue, generation)."""

    group: Any
    column: Any
    version: Any
    first: Any
    count: Any


def joined(runs: Runs) -> Runs:
    """Neighbours become one. Runs that overlap stay apart: how often an id was named is not changed."""
    if not len(runs.first):
        return runs
    order = np.lexsort((runs.first, runs.version, runs.column, runs.group))
    group, column, version, first, count = (each[order] for each in runs)
    end = first + count
    begins = np.ones(len(first), dtype=bool)
    begins[1:] = (
        (first[1:] != end[:-1])
        | (version[1:] != version[:-1])
        | (column[1:] != column[:-1])
        | (group[1:] != group[:-1])
    )
    at = np.flatnonzero(begins)
    return Runs(group[at], column[at], version[at], first[at], np.add.reduceat(count, at))


def split(runs: Runs) -> tuple[Any, Runs]:
    """Cut at the borders of blocks: the block of each piece, and the pieces."""
    begin, last = runs.first // BLOCK, (runs.first + runs.count - 1) // BLOCK
    pieces = (last - begin + 1).astype(np.int64)
    index = np.repeat(np.arange(len(pieces)), pieces)
    block = begin[index] + np.arange(len(index)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = np.maximum(runs.first[index], block * BLOCK)
    end = np.minimum((runs.first + runs.count)[index], (block + 1) * BLOCK)
    return block, Runs(runs.group[index], runs.column[index], runs.version[index], first, end - first)


class Judged(NamedTuple):
    """Of one block: how many lives there are, how many of them plain; and as (first, count) those that were acked
    plainly, those that ended without a delivery, and the others, which are suspects."""

    lives: int
    plain: int
    acked: tuple[Any, Any]
    ended: tuple[Any, Any]
    suspects: tuple[Any, Any]


def judged(block: int, column: Any, version: Any, first: Any, count: Any) -> Judged:
    """The lives of one block. What an earlier audit settled, and what nothing was told of since, counts no more."""
    counts = [_times(block, first, count, column == each, 1) for each in range(OTHER + 1)]
    versions = {each: _times(block, first, count, column == each, version) for each in (TAKEN, DONE)}
    put, taken, done, ended, void, past, other = counts
    nothing = (taken == 0) & (done == 0) & (other == 0)
    whole = (put == 1) & (taken == 1) & (done == 1) & (versions[TAKEN] == 1) & (versions[DONE] == 1)
    acked = whole & (ended == 0) & (void == 0) & (past == 0) & (other == 0)
    dropped = nothing & (put == 1) & (ended == 1) & (void == 0) & (past == 0)
    over = nothing & (ended == 0) & (past > 0)
    never = nothing & (put == 0) & (ended == 0) & (past == 0)  # no message: at most a voided id
    plain, known = acked | dropped, over | never
    return Judged(
        int((~known).sum()), int(plain.sum()), _stretches(acked, block), _stretches(dropped, block),
        _stretches(~plain & ~known, block),
    )  # fmt: skip


def _times(block: int, first: Any, count: Any, chosen: Any, weight: Any) -> Any:
    """For each id of the block the sum of `weight` over the chosen runs that name it."""
    begin = first[chosen] - block * BLOCK
    weights = weight[chosen] if isinstance(weight, np.ndarray) else np.ones(len(begin), dtype=np.int64)
    change = np.bincount(begin, weights, BLOCK + 1) - np.bincount(begin + count[chosen], weights, BLOCK + 1)
    return np.cumsum(change)[:BLOCK].astype(np.int64)


def _stretches(mask: Any, block: int) -> tuple[Any, Any]:
    edges = np.diff(np.concatenate(([0], mask.astype(np.int8), [0])))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return begins + block * BLOCK, ends - begins


def overlaps(first: Any, count: Any, starts: Any, ends: Any) -> tuple[Any, Any]:
    """For each id that a run of (first, count) shares with a stretch of (starts, ends): the run's index, and the id.
    Stretches are sorted and lie apart."""
    low = np.searchsorted(ends, first, side="right")
    high = np.searchsorted(starts, first + count, side="left")
    pairs = np.maximum(high - low, 0)
    run = np.repeat(np.arange(len(first)), pairs)
    stretch = np.arange(len(run)) - np.repeat(np.cumsum(pairs) - pairs, pairs) + low[run]
    begin = np.maximum(first[run], starts[stretch])
    size = np.minimum((first + count)[run], ends[stretch]) - begin
    index = np.repeat(run, size)
    within = np.arange(len(index)) - np.repeat(np.cumsum(size) - size, size)
    return index, np.repeat(begin, size) + within
