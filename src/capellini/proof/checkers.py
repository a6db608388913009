"""The checkers: each promise as a pure function of a history, giving the violations it finds.

They accuse only what no order of events can explain: a call took effect somewhere between its beginning and its answer;
one that is open or unknown, perhaps later, perhaps never. Times are compared as true times; a node's own times are
brought to true time with the most that its clock can have been ahead.

Promises 6 and 7 are of other kinds of queues. Of promise 8 (cost does not grow with the history) a history shows only
that space is given back; the cost itself is measured by the benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from capellini.model.service import Done, Problem, Put
from capellini.proof.history import ENDING, Call, History, Violation
from capellini.proof.lives import DONE, MAYBE, NOT, STALE, Held, Life, Lives, lives_of
from capellini.proof.offers import offered_soon

Checker = Callable[[Lives], list[Violation]]
REFUSED: Final = frozenset(("invalid", "too_large", "not_found", "conflict", "paused", "stale"))  # nothing was changed


def nothing_lost(lives: Lives) -> list[Violation]:
    """1. A confirmed put is delivered at least once, or is in dead letters, or was purged or expired."""
    if not lives.history.drained:
        return []
    found = []
    for life in lives.lives.values():
        if not life.confirmed or life.acks(DONE) or life.acks(MAYBE):
            continue
        first = life.confirmed[0].call
        since_s = {queue: _put_s(life) for queue in lives.places(first.queue)} | {first.queue: first.began_s}
        if any(lives.emptied(queue, at_s, float("inf")) or _mortal(lives, queue) for queue, at_s in since_s.items()):
            continue
        id = life.confirmed[0].id
        seen = f"delivered {len(life.held)} times, never acked" if life.held else "never delivered"
        says = f"its put into {first.queue} was confirmed at {first.ended_s:.3f} s as {id}, and it was {seen}"
        found.append(Violation(1, life.name, says))
    return found


def _put_s(life: Life) -> float:
    """When it may have been put first: what confirms a key may have been an earlier put, of which nobody had heard, and
    the message may have gone to other queues since. (With its own queue its key would have gone, too.)"""
    keyed = life.confirmed[0].sent.key is not None
    return min(one.call.began_s for one in (life.tries if keyed else life.confirmed[:1]))


def _mortal(lives: Lives, queue: str) -> bool:
    """Did messages of this queue have a time to live at any time?"""
    return any(
        call.op in ("create", "change") and call.queue == queue and call.options.get("ttl_s")
        for call in lives.history.calls
    )


def one_holder(lives: Lives) -> list[Violation]:
    """2. While a receipt is valid no other consumer has the message, unless another owner took over."""
    if not lives.history.skew_kept:
        return []
    found = []
    for life in lives.lives.values():
        if len(life.held) > 1:
            found += _two_holders(lives, life)
        for held in life.held:
            found += _refused_though_valid(lives, life, held)
    return found


def _two_holders(lives: Lives, life: Life) -> list[Violation]:
    found = []
    for held in life.held:
        until_s = held.valid_until_s
        for other in life.held:
            if other is held or other.at_s >= until_s or not _later(held, other):
                continue
            if lives.emptied(held.call.queue, held.call.began_s, until_s):
                continue
            if lives.history.other_owner(held.receipt.version, other.receipt.version):
                continue
            moved = held.call.queue != other.call.queue  # then epochs are of different owners, whatever they are
            if moved and any(held.call.began_s <= at_s <= other.at_s for at_s in lives.history.taken_over_s):
                continue
            if moved and _put_anew(lives, life):
                continue
            says = (
                f"{held.call.who} had it as {_name(held)} until {until_s:.3f} s, "
                f"and {other.call.who} got it as {_name(other)} at {other.at_s:.3f} s"
            )
            found.append(Violation(2, life.name, says))
    return found


def _put_anew(lives: Lives, life: Life) -> bool:
    """May there be two of it: one that moved, and one whose key was put again after its queue was emptied?"""
    return any(
        lives.emptied(again.call.queue, first.call.began_s, again.call.over_s) for first, again in pairwise(life.tries)
    )


def _later(held: Held, other: Held) -> bool:
    """Was `other` claimed after `held`? Within one place versions tell; between places, only times do."""
    if (held.call.queue, held.receipt.generation, held.receipt.id) == (
        other.call.queue,
        other.receipt.generation,
        other.receipt.id,
    ):
        return other.receipt.version > held.receipt.version
    return other.call.began_s >= held.at_s


def _refused_though_valid(lives: Lives, life: Life, held: Held) -> list[Violation]:
    until_s = held.until_s
    for use in held.uses:
        if use.how == NOT:
            continue
        if use.call.over_s >= until_s or use.how == MAYBE:
            break
        if use.how == STALE:
            if lives.emptied(held.call.queue, held.call.began_s, use.call.over_s):
                break
            if any(held.call.began_s <= at_s <= use.call.over_s for at_s in lives.history.taken_over_s):
                break
            when = f"at {use.call.over_s:.3f} s, though valid until {until_s:.3f} s"
            says = f"the {use.op} of {_name(held)} was refused {when}"
            return [Violation(2, life.name, says)]
        if use.op != "extend" or use.visible_at is None:
            break
        until_s = use.visible_at - lives.history.epoch_s - use.call.ahead_s
    return []


def acked_stays_acked(lives: Lives) -> list[Violation]:
    """3. An acked message is not delivered again once the ack was confirmed."""
    found = []
    for life in lives.lives.values():
        for held, use in life.acks(DONE):
            for other in life.held:
                same = _place(held) == _place(other)
                again = other.receipt.version > held.receipt.version if same else other.call.began_s > use.call.over_s
                if again and len(life.held) > 1 and not (not same and _lives(lives, life) > 1):
                    says = (
                        f"{_name(held)} was acked at {use.call.over_s:.3f} s, "
                        f"and {other.call.who} got it as {_name(other)} at {other.at_s:.3f} s"
                    )
                    found.append(Violation(3, life.name, says))
    return found


def stale_is_refused(lives: Lives) -> list[Violation]:
    """4. A stale receipt cannot ack, nack or extend."""
    found = []
    for life in lives.lives.values():
        for held in life.held:
            over = [use for use in held.uses if use.how == DONE and use.op != "extend"]
            for use in held.uses:
                if use.how != DONE:
                    continue
                why = ""
                if newer := _newer_before(life, held, use.call.began_s):
                    why = f"it had been delivered as {_name(newer)} at {newer.at_s:.3f} s"
                elif earlier := [one for one in over if one is not use and one.call.over_s < use.call.began_s]:
                    why = f"its {earlier[0].op} had been confirmed at {earlier[0].call.over_s:.3f} s"
                elif ended := _ended_before(lives, held, use.call):
                    why = f"the {ended.op} of {ended.queue} had been confirmed at {ended.over_s:.3f} s"
                if why:
                    says = f"the {use.op} of {_name(held)} at {use.call.began_s:.3f} s was done, though {why}"
                    found.append(Violation(4, life.name, says))
    return found


def _newer_before(life: Life, held: Held, at_s: float) -> Held | None:
    for other in life.held:
        if _place(other) == _place(held) and other.receipt.version > held.receipt.version and other.at_s < at_s:
            return other
    return None


def _ended_before(lives: Lives, held: Held, call: Call) -> Call | None:
    for ending in lives.endings.get(held.call.queue, []):
        if ending.good and held.at_s < ending.began_s and ending.over_s < call.began_s:
            return ending
    return None


def never_early(lives: Lives) -> list[Violation]:
    """5. A message due at T is never delivered before T."""
    if not lives.history.skew_kept:
        return []
    found = []
    for life in lives.lives.values():
        possible = [one for one in life.tries if one.possible]
        if possible and life.held:
            due_s = min(one.call.began_s + one.sent.delay_s for one in possible)
            first = life.held[0]
            if first.at_s < due_s:
                says = f"{first.call.who} got it as {_name(first)} at {first.at_s:.3f} s, due at {due_s:.3f} s"
                found.append(Violation(5, life.name, says))
        for held in life.held:
            for use in held.uses:
                if use.op == "nack" and use.how == DONE and use.seconds:
                    found += _nacked_early(life, held, use.call.began_s + use.seconds)
    return found


def _nacked_early(life: Life, held: Held, due_s: float) -> list[Violation]:
    found = []
    for other in life.held:
        if _place(other) == _place(held) and other.receipt.version > held.receipt.version and other.at_s < due_s:
            says = (
                f"{_name(held)} was nacked until {due_s:.3f} s, and delivered as {_name(other)} at {other.at_s:.3f} s"
            )
            found.append(Violation(5, life.name, says))
    return found


def space_given_back(lives: Lives) -> list[Violation]:
    """8. What is finished is dropped: nothing that reads would have to pass is left behind."""
    return [Violation(8, "store", says) for says in lives.history.left]


def bad_changes_nothing(lives: Lives) -> list[Violation]:
    """9. A bad request gets a clear error and changes nothing. Nor does one that says that nothing was changed."""
    found = [Violation(9, "node", says) for says in lives.history.broken]
    for call in lives.history.calls:
        if call.bad and call.good and not any(isinstance(one, Problem) for one in (*call.puts, *call.results)):
            found.append(Violation(9, call.op, f"a request with {call.bad} was done at {call.over_s:.3f} s"))
    for life in lives.lives.values():
        if life.tries and life.held and not any(one.possible for one in life.tries):
            one = life.tries[0]
            error = one.call.error or next(
                (answer.error for answer in one.call.puts if isinstance(answer, Problem)), "an error"
            )
            says = f"its put said {error} at {one.call.over_s:.3f} s, and it was delivered as {_name(life.held[0])}"
            found.append(Violation(9, life.name, says))
    return found


def nothing_invented(lives: Lives) -> list[Violation]:
    """11. Messages come from puts, once each, as they were sent, and nothing of a deleted queue is in its successor."""
    found = []
    redriven = any(call.op == "redrive" for call in lives.history.calls)
    for life in lives.lives.values():
        found += _unlike(lives, life)
        found += _one_key_two_ids(lives, life)
        acked = {_place(held) for held, _ in life.acks(DONE)}
        if len(acked) > 1 and len(acked) > _lives(lives, life):  # one that nobody put: another checker's
            says = f"it was put once and acked in {len(acked)} places: " + ", ".join(
                f"{queue}/{generation}/{id}" for queue, generation, id in sorted(acked)
            )
            found.append(Violation(11, life.name, says))
        if not redriven:
            found += _of_an_ended_generation(lives, life)
    return found


def _unlike(lives: Lives, life: Life) -> list[Violation]:
    if not life.held:
        return []
    first = life.held[0]
    if not life.tries:
        return [Violation(11, life.name, f"nobody put it, and it was delivered as {_name(first)}")]
    began_s = min(one.call.began_s for one in life.tries)
    if first.at_s < began_s:
        return [
            Violation(11, life.name, f"it was delivered at {first.at_s:.3f} s, before it was put at {began_s:.3f} s")
        ]
    sent = life.tries[0].sent
    places = lives.places(life.tries[0].call.queue)
    for held in life.held:
        if held.delivery.attributes != sent.attributes:
            return [Violation(11, life.name, f"attributes {sent.attributes} arrived as {held.delivery.attributes}")]
        if held.call.queue not in places:
            return [
                Violation(11, life.name, f"it was put into {life.tries[0].call.queue} and delivered as {_name(held)}")
            ]
    return []


def _one_key_two_ids(lives: Lives, life: Life) -> list[Violation]:
    confirmed = life.confirmed
    ids = {one.id for one in confirmed}
    if len(ids) > 1 and life.tries[0].sent.key and _lives(lives, life) == 1:
        return [Violation(11, life.name, f"puts with one key were confirmed as different ids: {sorted(map(str, ids))}")]
    return []


def _of_an_ended_generation(lives: Lives, life: Life) -> list[Violation]:
    for held in life.held:
        for ending in lives.endings.get(held.call.queue, []):
            before = all(one.call.over_s < ending.began_s for one in life.tries)
            same = life.tries and life.tries[0].call.queue == held.call.queue
            if ending.good and same and before and held.call.began_s > ending.over_s:
                when = f"was confirmed at {ending.over_s:.3f} s, {_name(held)} came at {held.at_s:.3f} s"
                says = f"the {ending.op} of {ending.queue} {when}"
                return [Violation(11, life.name, says)]
    return []


def _lives(lives: Lives, life: Life) -> int:
    """How many lives the message may honestly have: one, and one more for each ending that its puts may have met."""
    if not life.tries:
        return 0
    calls = [one.call for one in life.tries if one.possible]
    if not calls:
        return 0
    if life.tries[0].sent.key is None and len(calls) > 1:
        return len(calls) + lives.more
    began_s, over_s = min(call.began_s for call in calls), max(call.over_s for call in calls)
    return 1 + lives.emptied(calls[0].queue, began_s, over_s) + lives.more


def _place(held: Held) -> tuple[str, int, int]:
    return held.call.queue, held.receipt.generation, held.receipt.id


def _name(held: Held) -> str:
    queue, generation, id = _place(held)
    return f"{queue}/{generation}/{id} v{held.receipt.version}"


CHECKERS: Final[dict[int, Checker]] = {
    1: nothing_lost,
    2: one_holder,
    3: acked_stays_acked,
    4: stale_is_refused,
    5: never_early,
    8: space_given_back,
    9: bad_changes_nothing,
    10: offered_soon,
    11: nothing_invented,
}


def check(history: History) -> list[Violation]:
    """All violations of all promises."""
    return check_lives(lives_of(history))


def check_lives(lives: Lives) -> list[Violation]:
    return [violation for checker in CHECKERS.values() for violation in checker(lives)]


__all__ = [
    "CHECKERS",
    "ENDING",
    "Done",
    "Put",
    "acked_stays_acked",
    "bad_changes_nothing",
    "check",
    "check_lives",
    "never_early",
    "nothing_invented",
    "nothing_lost",
    "offered_soon",
    "one_holder",
    "space_given_back",
    "stale_is_refused",
]
