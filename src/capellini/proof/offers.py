"""Promise 10: a message whose visibility or delay has ended is offered within 2 s, whatever else is in flight.

Checked in the calm part of a run only. A message can be had from the latest of: its confirmed put plus its delay, the
end of its last holder's visibility, its last confirmed nack plus its delay; clocks that differ make it at most twice
`max_skew_s` later. A get that waited through the two seconds after that and came back with nothing, or later than that
with something, while nobody else got the message either: that is a violation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Final

from capellini.proof.history import Call, Violation
from capellini.proof.lives import DONE, MAYBE, Held, Life, Lives

WITHIN_S: Final = 2.0
SLACK_S: Final = 0.05  # answers travel


def offered_soon(lives: Lives) -> list[Violation]:
    """10. A message whose visibility or delay has ended is offered within 2 s, whatever else is in flight."""
    history = lives.history
    if not history.skew_kept:
        return []
    waits: dict[str, list[tuple[float, float]]] = defaultdict(list)  # by queue: from when to when
    for call in history.calls:
        if call.op == "get" and call.began_s >= history.calm_from_s and call.wait_s > 0 and call.ended_s is not None:
            waits[call.queue].append((call.began_s, call.over_s))
    if not waits:
        return []
    found = []
    for life in lives.lives.values():
        for queue, from_s, to_s in _offered(lives, life):
            if to_s <= from_s + WITHIN_S + SLACK_S:
                continue
            for began_s, over_s in waits[queue]:
                late_s = max(from_s, began_s) + WITHIN_S + SLACK_S
                if over_s > late_s and to_s > late_s:
                    waited = f"a get waited from {began_s:.3f} to {over_s:.3f} s"
                    says = f"it could be had in {queue} from {from_s:.3f} s on; {waited}"
                    found.append(Violation(10, life.name, says))
                    break
    return found


def _offered(lives: Lives, life: Life) -> list[tuple[str, float, float]]:
    """Stretches in the calm part in which the message could surely be had: queue, from, to (when it was delivered)."""
    history = lives.history
    if not life.confirmed or len(life.confirmed) < sum(one.possible for one in life.tries):
        return []
    first = life.confirmed[0]
    queue = first.call.queue
    if first.call.began_s < history.calm_from_s:  # claims that nobody heard of may hide it for a while
        return []
    if lives.limits[queue] or any(held.call.queue != queue for held in life.held) or life.acks(MAYBE):
        return []
    skew_s = 2 * history.max_skew_s
    due_s = first.call.over_s + (first.sent.delay_s + skew_s if first.sent.delay_s else 0.0)
    found = []
    for held in life.held:
        found.append((queue, due_s, _claimed_by_s(held.call)))
        due_s = _free_s(held, skew_s)
    if due_s < math.inf:
        found.append((queue, due_s, math.inf))
    return found


def _claimed_by_s(call: Call) -> float:
    return call.over_s


def _free_s(held: Held, skew_s: float) -> float:
    """From when the message can be had again."""
    free_s = held.until_s + skew_s
    for use in held.uses:
        if use.how == MAYBE or (use.how == DONE and use.op == "ack"):
            return math.inf
        if use.how == DONE and use.op == "nack":
            return math.inf if use.seconds is None else use.call.over_s + (use.seconds + skew_s if use.seconds else 0.0)
        if use.how == DONE and use.visible_at is not None:
            free_s = use.visible_at - held.epoch_s - use.call.ahead_s + skew_s
    return free_s
