"""What histories of timed queues are checked for beyond the promises that all kinds share: cancels and moves.

    a confirmed cancel      the message is never delivered by a get that began after it; and it need not be delivered
    a confirmed move        the message is not delivered before its new due by a get that began after it
    not found               said of a message whose put was confirmed before: it is not delivered by a get that began
                            after it

What those explain is taken out of what the shared checkers found.
"""

from __future__ import annotations

from collections import defaultdict

from capellini.model.service import Done, Problem
from capellini.proof.checkers import check_lives
from capellini.proof.history import Call, History, Violation
from capellini.proof.lives import Held, Life, Lives, lives_of

Ask = tuple[Call, int]  # the call, and the message's place in it


def check_timed(history: History) -> list[Violation]:
    """The shared checkers' violations, but those that cancels and moves explain, and those of the checks above."""
    lives = lives_of(history)
    found = check_lives(lives)
    bodies = {one.id: life.name for life in lives.lives.values() for one in life.tries if one.id is not None}
    asks: dict[str, dict[str, list[Ask]]] = {"cancel": defaultdict(list), "move": defaultdict(list)}
    for call in history.calls:
        if call.op in asks:
            for index, id in enumerate(call.ids):
                if id in bodies and possible(call, index):
                    asks[call.op][bodies[id]].append((call, index))
    cancelled, moved = asks["cancel"], asks["move"]
    denied = _denials(history)
    kept = [
        violation
        for violation in found
        if not (violation.promise == 1 and violation.message in cancelled)
        and not (violation.promise == 10 and violation.message in cancelled.keys() | moved.keys())
        and not (violation.promise == 5 and violation.message in moved)
    ]
    for life in lives.lives.values():
        kept += _after_a_cancel(lives, life, cancelled.get(life.name, []))
        kept += _denied(life, denied)
        if history.skew_kept:
            kept += _before_a_moved_due(lives, life, moved.get(life.name, []))
    return kept


def possible(call: Call, index: int) -> bool:
    """It was done, or may have been."""
    if call.results:
        result = call.results[index]
        return isinstance(result, Done) or result.error == "unknown"
    return call.maybe


def done(ask: Ask) -> bool:
    call, index = ask
    return bool(call.results) and isinstance(call.results[index], Done)


def _after_a_cancel(lives: Lives, life: Life, cancels: list[Ask]) -> list[Violation]:
    found = []
    for ask in cancels:
        for held in life.held:
            if _put_anew(lives, life, ask, held):
                continue
            if done(ask) and held.call.began_s > ask[0].over_s and len(life.confirmed) == 1:
                when = f"confirmed at {ask[0].over_s:.3f} s"
                says = f"its cancel was {when}, and {held.call.who} got it at {held.at_s:.3f} s"
                found.append(Violation(3, life.name, says))
    return found


def _put_anew(lives: Lives, life: Life, ask: Ask, held: Held) -> bool:
    """It is another one than was asked for: a put of it without an answer reached the queue after that was emptied or
    made anew, where nobody had heard of it."""
    if held.delivery.id == ask[0].ids[ask[1]]:
        return False
    late = [one.call for one in life.tries if one.possible and one.id in (None, held.delivery.id)]
    return any(lives.emptied(call.queue, call.began_s, call.over_s) for call in late)


def _denials(history: History) -> dict[str, list[Call]]:
    """By id: the calls that were told that there is no such message."""
    found: dict[str, list[Call]] = defaultdict(list)
    for call in history.calls:
        if call.op in ("cancel", "move"):
            for id, result in zip(call.ids, call.results, strict=False):
                if isinstance(result, Problem) and result.error == "not_found":
                    found[id].append(call)
    return found


def _denied(life: Life, denials: dict[str, list[Call]]) -> list[Violation]:
    found = []
    for one in life.confirmed:
        for call in denials.get(one.id or "", []):
            if one.call.over_s >= call.began_s:
                continue
            for held in life.held:
                if held.call.began_s > call.over_s and held.delivery.id == one.id and held.call.queue == call.queue:
                    says = f"{call.op} said at {call.over_s:.3f} s that it is not there; got at {held.at_s:.3f} s"
                    found.append(Violation(9, life.name, says))
    return found


def _before_a_moved_due(lives: Lives, life: Life, moves: list[Ask]) -> list[Violation]:
    """Of the last one, if no other can have come after it."""
    found: list[Violation] = []
    if not moves or len(life.confirmed) != 1:
        return found
    dues_s = [call.began_s + (call.seconds[index] or 0.0) for call, index in moves]
    first_s = min(one.call.began_s + one.sent.delay_s for one in life.tries if one.possible)
    if life.held and life.held[0].at_s < min([first_s, *dues_s]):
        found.append(Violation(5, life.name, f"delivered at {life.held[0].at_s:.3f} s, before every due it ever had"))
    last, due_s = moves[-1][0], dues_s[-1]
    if not done(moves[-1]) or any(call.over_s >= last.began_s for call, _ in moves[:-1]):
        return found
    for held in life.held:
        if held.call.began_s > last.over_s and held.at_s < due_s and not _put_anew(lives, life, moves[-1], held):
            says = f"moved at {last.over_s:.3f} s to {due_s:.3f} s, and {held.call.who} got it at {held.at_s:.3f} s"
            found.append(Violation(5, life.name, says))
    return found
