"""The states of a bucket's messages, as runs: neighbours in the same state are one run, so that a thousand messages
that live alike take a few bytes and a few steps.

    slot      0    1    2    3    4    5    6    7   ...   size-1
              └── acked ──┘    └─ in flight, v1 ─┘   fresh: not in the list

A slot's life:

    fresh ──claim──▶ hidden(v1) ──ack──▶ finished
      │                │  ▲  └──nack──▶ waiting(v1, until) ──claim──▶ hidden(v2)
      │                └──┘ extend; time over: claim ──▶ hidden(v2)
      │                └── delivered too often ──▶ moving ──▶ finished (now in dead letters)
      ├──delay seen──▶ waiting(v0, until)
      ├──written under a key──▶ pinned: claimed like fresh, never void
      └──never written──▶ void
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

FRESH: Final = 0  # never stored: whatever no run covers
HIDDEN: Final = 1
WAITING: Final = 2
FINISHED: Final = 3
VOID: Final = 4
MOVING: Final = 5  # on its way to the dead letters
RETURNING: Final = 6  # a dead letter on its way back to the queue it came from
PINNED: Final = 7  # like fresh, but surely written: nobody can void it any more
UNTAKEN: Final = (FRESH, PINNED)
TIMED: Final = (HIDDEN, WAITING, MOVING, RETURNING)  # kinds whose `at_ms` means something

NAMES: Final = {
    FRESH: "fresh",
    HIDDEN: "in_flight",
    WAITING: "delayed",
    FINISHED: "finished",
    VOID: "void",
    MOVING: "moving",
    RETURNING: "returning",
    PINNED: "fresh",
}


class Run(NamedTuple):
    """Slots start .. end-1. `version`: how often it was delivered. `at_ms`: when it can be had (or moved on) again; 0
    where that means nothing."""

    start: int
    end: int
    kind: int
    version: int
    at_ms: int


Runs = tuple[Run, ...]
Decide = Callable[[Run], Run | None]  # what a piece becomes; None: it stays as it is


def _upto(runs: Runs, slot: int) -> int:
    """How many of them start at the slot or before: of tuples the one with the next number alone comes right after."""
    return bisect_left(runs, (slot + 1,))


def pieces(runs: Runs, start: int, end: int) -> Iterator[Run]:
    """The runs and the fresh stretches between start and end, in order, cut to fit."""
    at = start
    index = max(0, _upto(runs, start) - 1)
    while at < end and index < len(runs):
        run = runs[index]
        if run.end <= at:
            index += 1
            continue
        if run.start >= end:
            break
        if run.start > at:
            yield Run(at, run.start, FRESH, 0, 0)
            at = run.start
        upto = min(run.end, end)
        yield run if at == run.start and upto == run.end else Run(at, upto, run.kind, run.version, run.at_ms)
        at = upto
        index += 1
    if at < end:
        yield Run(at, end, FRESH, 0, 0)


def changed(runs: Runs, start: int, end: int, decide: Decide) -> tuple[Runs, list[Run]]:
    """The runs with each piece between start and end replaced as `decide` says, and the pieces (as they were) that it
    replaced.

    When it replaces nothing the same object comes back.
    """
    replaced: list[Run] = []
    middle: list[Run] = []
    for piece in pieces(runs, start, end):
        new = decide(piece)
        if new is None:
            middle.append(piece)
        else:
            replaced.append(piece)
            middle.append(new)
    if not replaced:
        return runs, []
    first = max(0, _upto(runs, start) - 1)
    last = _upto(runs, end - 1)
    out: list[Run] = list(runs[: max(0, first - 1)])
    for run in runs[max(0, first - 1) : last]:
        if run.start < start:
            _add(out, run if run.end <= start else run._replace(end=start))
    for run in middle:
        _add(out, run)
    for run in runs[max(0, first - 1) : last]:
        if run.end > end:
            _add(out, run if run.start >= end else run._replace(start=end))
    rest = runs[last:]
    if rest:
        _add(out, rest[0])
        out.extend(rest[1:])
    return tuple(out), replaced


def overlaid(runs: Runs, new: Sequence[Run]) -> Runs:
    """The runs with these laid over them, of which no two share a slot. One pass, however many they are."""
    if not new:
        return runs
    out: list[Run] = []
    at = 0
    for run in sorted(new):
        for piece in pieces(runs, at, run.start):
            _add(out, piece)
        _add(out, run)
        at = run.end
    for piece in pieces(runs, at, max(at, runs[-1].end if runs else 0)):
        _add(out, piece)
    return tuple(out)


def _add(out: list[Run], run: Run) -> None:
    if run.kind == FRESH:
        return
    if out and out[-1].end == run.start and out[-1][2:] == run[2:]:
        out[-1] = out[-1]._replace(end=run.end)
    else:
        out.append(run)


def encode(runs: Runs) -> bytes:
    """Gap to the run before, length, kind, version, time since the time before: small numbers take one byte each."""
    flat: list[int] = []
    at, time_ms = 0, 0
    for run in runs:
        flat += (run.start - at, run.end - run.start, run.kind, run.version)
        if run.kind in TIMED:
            flat.append(run.at_ms - time_ms)
            time_ms = run.at_ms
        at = run.end
    return msgspec.msgpack.encode(flat)


_DECODER: Final = msgspec.msgpack.Decoder(list[int])


def decode(data: bytes) -> Runs:
    flat = _DECODER.decode(data)
    runs: list[Run] = []
    at, time_ms, index = 0, 0, 0
    while index < len(flat):
        gap, length, kind, version = flat[index : index + 4]
        index += 4
        if kind in TIMED:
            time_ms += flat[index]
            index += 1
            runs.append(Run(at + gap, at + gap + length, kind, version, time_ms))
        else:
            runs.append(Run(at + gap, at + gap + length, kind, version, 0))
        at += gap + length
    return tuple(runs)
