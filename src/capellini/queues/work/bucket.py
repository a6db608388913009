"""What may happen to the messages of a bucket: pure decisions on its packed state.

The state is one static cell, changed by compare-and-set only; many decisions (claims, acks, nacks of all callers
waiting in a node) go into one. Each decision takes the state and gives the state after it and an answer. It may be
asked again on a newer state when the compare-and-set was refused, so it must not remember anything.

Times are wall times in ms of the node that decides; a hidden message comes back `max_skew_s` later than promised to its
consumer, so that nodes whose clocks differ by less never have it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from capellini.queues.work.runs import (
    FINISHED,
    FRESH,
    HIDDEN,
    MOVING,
    PINNED,
    RETURNING,
    TIMED,
    UNTAKEN,
    VOID,
    WAITING,
    Run,
    Runs,
    changed,
    overlaid,
    pieces,
)

NEVER_MS: Final = 1 << 62
OFFERED: Final = (*UNTAKEN, HIDDEN, WAITING)  # what a claim may take
MOVE_AGAIN_MS: Final = 5_000  # a move that was not finished by then is taken up by whoever visits the bucket


class Offer(NamedTuple):
    """Slots start .. end-1 are written; `due_ms`: not before (0: at once); `expires_ms`: not after (NEVER_MS: no
    end)."""

    start: int
    end: int
    due_ms: int
    expires_ms: int


class Claimed(NamedTuple):
    """What a claim did. `taken`: the slots as they are now, hidden under their new version."""

    taken: tuple[Run, ...]
    dead: tuple[Run, ...] = ()  # delivered too often: now moving, under their last version
    expired: tuple[Run, ...] = ()  # too old: finished


def claim(
    runs: Runs, offers: Sequence[Offer], wanted: int, now_ms: int, until_ms: int, delivery_limit: int
) -> tuple[Runs, Claimed]:
    """Take up to `wanted` messages that can be had now, of those that are known to be written; they are hidden until
    `until_ms`."""
    taken: list[Run] = []
    dead: list[Run] = []
    expired: list[Run] = []
    waiting: list[Run] = []
    left = wanted
    for offer in offers:
        for piece in pieces(runs, offer.start, offer.end):
            if piece.kind not in OFFERED:
                continue
            untaken = piece.kind in UNTAKEN
            ready = offer.due_ms <= now_ms if untaken else piece.at_ms <= now_ms
            if offer.expires_ms <= now_ms and (ready or untaken):
                expired.append(piece._replace(kind=FINISHED, at_ms=0))
            elif not ready:
                if untaken:  # a delay that no state knew of yet: from now on its bucket tells
                    waiting.append(piece._replace(kind=WAITING, at_ms=offer.due_ms))
            elif delivery_limit and piece.version >= delivery_limit:
                dead.append(piece._replace(kind=MOVING, at_ms=now_ms + MOVE_AGAIN_MS))
            elif left > 0:
                end = min(piece.end, piece.start + left)
                left -= end - piece.start
                taken.append(Run(piece.start, end, HIDDEN, piece.version + 1, until_ms))
    runs = overlaid(runs, (*taken, *dead, *expired, *waiting))
    return runs, Claimed(tuple(taken), tuple(dead), tuple(expired))


class Proof(NamedTuple):
    """A consumer's claim to slots start .. end-1 under a version."""

    start: int
    end: int
    version: int


def _of(runs: Runs, proof: Proof, new: Run) -> tuple[Runs, list[Run]]:
    return changed(
        runs,
        proof.start,
        proof.end,
        lambda run: (
            new._replace(start=run.start, end=run.end) if run.kind == HIDDEN and run.version == proof.version else None
        ),
    )


def acked(runs: Runs, proof: Proof) -> tuple[Runs, list[Run]]:
    """The pieces that this proof still held are finished; others are not touched."""
    return _of(runs, proof, Run(0, 0, FINISHED, proof.version, 0))


def nacked(runs: Runs, proof: Proof, at_ms: int) -> tuple[Runs, list[Run]]:
    return _of(runs, proof, Run(0, 0, WAITING, proof.version, at_ms))


def extended(runs: Runs, proof: Proof, at_ms: int) -> tuple[Runs, list[Run]]:
    return _of(runs, proof, Run(0, 0, HIDDEN, proof.version, at_ms))


def voided(runs: Runs, start: int, end: int) -> tuple[Runs, list[Run]]:
    """Fresh slots become void: whatever is written there later is not a message any more. The pieces that were
    fresh."""
    return changed(runs, start, end, lambda run: run._replace(kind=VOID) if run.kind == FRESH else None)


ON_THE_WAY: Final = (MOVING, RETURNING)


def summoned(runs: Runs, start: int, end: int, now_ms: int, at_ms: int) -> tuple[Runs, list[Run]]:
    """Dead letters that nobody holds begin their way back, without having been taken. Whoever began it before may have
    died: then it is begun again."""
    return changed(
        runs,
        start,
        end,
        lambda run: (
            run._replace(kind=RETURNING, at_ms=at_ms)
            if run.kind in UNTAKEN or (run.kind in (HIDDEN, WAITING, RETURNING) and run.at_ms <= now_ms)
            else None
        ),
    )


def taken_up(runs: Runs, start: int, end: int, now_ms: int) -> tuple[Runs, list[Run]]:
    """Moves that were left unfinished are taken up: whoever sets their time anew has them for a while."""
    return changed(
        runs,
        start,
        end,
        lambda run: (
            run._replace(at_ms=now_ms + MOVE_AGAIN_MS) if run.kind in ON_THE_WAY and run.at_ms <= now_ms else None
        ),
    )


def moved(runs: Runs, start: int, end: int) -> tuple[Runs, list[Run]]:
    """They are where they were going to: finished here."""
    return changed(
        runs, start, end, lambda run: run._replace(kind=FINISHED, at_ms=0) if run.kind in ON_THE_WAY else None
    )


def unmoved(runs: Runs, start: int, end: int, at_ms: int) -> tuple[Runs, list[Run]]:
    """A move that cannot be made: the message waits where it is."""
    return changed(
        runs, start, end, lambda run: run._replace(kind=WAITING, at_ms=at_ms) if run.kind in ON_THE_WAY else None
    )


def pinned(runs: Runs, slot: int) -> tuple[Runs, bool]:
    """A message that was seen written is surely one from now on: nobody can void it any more. False: it is void."""
    runs, _ = changed(runs, slot, slot + 1, lambda run: run._replace(kind=PINNED) if run.kind == FRESH else None)
    return runs, all(run.kind != VOID for run in pieces(runs, slot, slot + 1))


class Standing(NamedTuple):
    """How a bucket stands: how many slots nobody has taken, when the next hidden one can be had, and if all is
    finished."""

    fresh: int
    next_ms: int  # NEVER_MS: nothing is hidden
    finished: bool


def standing(runs: Runs, size: int) -> Standing:
    covered = 0
    next_ms = NEVER_MS
    for run in runs:
        if run.kind == PINNED:
            continue
        covered += run.end - run.start
        if run.kind in TIMED and run.at_ms < next_ms:
            next_ms = run.at_ms
    return Standing(size - covered, next_ms, covered == size and next_ms == NEVER_MS)


def fresh(runs: Runs, size: int) -> list[tuple[int, int]]:
    """The stretches of slots that nobody has taken."""
    found: list[tuple[int, int]] = []
    for piece in pieces(runs, 0, size):
        if piece.kind not in UNTAKEN:
            continue
        if found and found[-1][1] == piece.start:
            found[-1] = (found[-1][0], piece.end)
        else:
            found.append((piece.start, piece.end))
    return found


def ready_again(runs: Runs, now_ms: int) -> list[Run]:
    """What was hidden and can be had now."""
    return [run for run in runs if run.kind in (HIDDEN, WAITING) and run.at_ms <= now_ms]


def stuck_moves(runs: Runs, now_ms: int) -> list[Run]:
    return [run for run in runs if run.kind in ON_THE_WAY and run.at_ms <= now_ms]
