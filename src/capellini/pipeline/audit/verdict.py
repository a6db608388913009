"""One message's life, judged: a pure function of what the journal tells about it.

The promises are those of the checkers (`proof/checkers.py`), as far as a journal can tell. It accuses only what no
order of events can explain; clocks of nodes may differ by `skew_s`; what was not confirmed is not in the journal.
Of a log queue's message each reader (a group in one version) has a life of its own, and all of them have its put.

    fault             promise   the journal says
    lost              1         put, never delivered nor ended, and its queue is known to be empty
                                (or: put, and then voided as if it had never been written)
    two_holders       2         the same delivery twice. Of timed and log queues by another holder: a takeover, which is
                                counted
    delivered_again   3         delivered with a higher count than it was acked with, and later than the ack
    stale_receipt     4         acked (or nacked, extended) with a lower count than it had been delivered with before;
                                or acked twice
    early             5         delivered before its due
    late              -         delivered long after its due. Nobody may have asked for it: a remark, no broken promise
    stuck             -         delivered, or waiting, and nothing was heard of it for long
    dead              -         it went to dead letters
    unknown           -         it would be lost, stuck, early or late; but events are missing that may explain it

Why versions and not times: a claim raises a message's count, and an ack holds for one count. An ack at 1 together with
a delivery at 2 is wrong in either order; time only tells which of two promises it was.

Not told by a journal: for how long a receipt was valid, so whether two *different* deliveries overlapped (promise 2);
how late a message was offered (10: only how late it was taken); what bodies were (11). A delivery without a put is
honest: a put that nobody could confirm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from capellini.queues.events import Kind, queue_in
from capellini.queues.timed.positions import LEAD_MS

ENDS: Final = frozenset((Kind.ACKED, Kind.DEAD, Kind.EXPIRED, Kind.CANCELLED, Kind.REPLAYED, Kind.SKIPPED))
DUES: Final = frozenset((Kind.PUT, Kind.MOVED))  # their detail is a due in ms, if they have one
USES: Final = frozenset((Kind.ACKED, Kind.NACKED, Kind.EXTENDED))
PROMISES: Final = {"lost": 1, "two_holders": 2, "delivered_again": 3, "stale_receipt": 4, "early": 5}
REMARKS: Final = ("late", "stuck", "dead", "unknown")
FAULTS: Final = (*PROMISES, *REMARKS)
SETTLED: Final = "settled"  # told by an earlier audit: this life was over, with that version
NO_VERSION: Final = 2**31 - 1  # of a life that ended without an ack: no delivery is wrong after that


class Told(msgspec.Struct, frozen=True, array_like=True):
    """One event of one message."""

    kind: str
    version: int
    at: float
    node: str
    incarnation: str
    number: int
    detail: str = ""


class Window(msgspec.Struct, frozen=True):
    """Events of an incarnation that are not there happened after the one time and before the other."""

    node: str
    incarnation: str
    first: int  # the first number that is missing
    count: int  # 0: nobody knows; it left no closing record
    after_s: float
    before_s: float

    @property
    def ends(self) -> bool:
        """False: it is what an incarnation may have done after its last event."""
        return self.before_s < float("inf")


class Rules(msgspec.Struct, frozen=True):
    """`ended_s`: when the journal ends. `drained`: queues that are known to be empty; None: all of them."""

    ended_s: float
    drained: frozenset[str] | None = frozenset()
    skew_s: float = 1.0  # two clocks, each off by max_skew_s
    late_s: float = 2.0
    stuck_s: float = 86_400.0

    def empty(self, queue: str) -> bool:
        return self.drained is None or queue_in(queue) in self.drained


class Finding(msgspec.Struct, frozen=True):
    fault: str
    at: float
    says: str


def judge(
    queue: str, told: Iterable[Told], rules: Rules, windows: Sequence[Window] = (), due_s: float | None = None,
    purged: bool = False,
) -> list[Finding]:  # fmt: skip
    """All faults of one life. Events may come in any order, and more than once."""
    events = sorted({(each.node, each.incarnation, each.number): each for each in told}.values(), key=lambda e: e.at)
    found: list[Finding] = []
    taken = [each for each in events if each.kind == Kind.DELIVERED]
    found += _holders(taken, due_s is not None or "/" in queue)
    found += _again(events, taken, rules)
    found += _acked_twice(events)
    if due_s is not None:
        found += _timely(events, taken, due_s, rules, windows)
    found += _unfinished(queue, events, taken, rules, windows, due_s, purged)
    found += [Finding("dead", each.at, f"to {each.detail}" if each.detail else "to dead letters") for each in events if
              each.kind == Kind.DEAD][:1]  # fmt: skip
    return found


def over(told: Iterable[Told], purged: bool = False) -> int | None:
    """The version with which a life is over; None: it goes on. What comes later is held against it."""
    events = list(told)
    kinds = {each.kind for each in events}
    if kinds & {Kind.ACKED, SETTLED}:
        return max(each.version for each in events)
    return NO_VERSION if purged or kinds & ENDS else None


def _holders(taken: Sequence[Told], leased: bool) -> list[Finding]:
    """`leased`: of timed and log queues."""
    first: dict[int, Told] = {}
    for each in taken:
        before = first.setdefault(each.version, each)
        if before is each or (leased and (before.node, before.incarnation) != (each.node, each.incarnation)):
            continue
        first_time = f"made at {before.at:.3f} by {before.node}"
        says = f"delivery {each.version} was {first_time} and at {each.at:.3f} by {each.node}"
        return [Finding("two_holders", each.at, says)]
    return []


def _again(events: Sequence[Told], taken: Sequence[Told], rules: Rules) -> list[Finding]:
    """Uses of a receipt against later deliveries: in one order the receipt was stale, in the other it was over."""
    found: dict[str, Finding] = {}
    for use in events:
        if use.kind not in USES and use.kind != SETTLED:
            continue
        for each in taken:
            if each.version <= use.version:
                continue
            over = use.kind in (Kind.ACKED, SETTLED)
            if each.at < use.at and (over or each.at + rules.skew_s < use.at) and use.kind != SETTLED:
                later = f"{each.version} came at {each.at:.3f}"
                says = f"{use.kind} as delivery {use.version} at {use.at:.3f}, though {later}"
                found.setdefault("stale_receipt", Finding("stale_receipt", use.at, says))
            elif over:
                later = f"delivered as {each.version} at {each.at:.3f}"
                says = f"acked as delivery {use.version} at {use.at:.3f}, and {later}"
                found.setdefault("delivered_again", Finding("delivered_again", each.at, says))
    return list(found.values())


def _acked_twice(events: Sequence[Told]) -> list[Finding]:
    acks = [each for each in events if each.kind in (Kind.ACKED, SETTLED)]
    if len(acks) < 2 or len({each.version for each in acks}) > 1:  # different versions: told as delivered again
        return []
    return [Finding("stale_receipt", acks[1].at, f"acked at {acks[0].at:.3f}, and once more at {acks[1].at:.3f}")]


def _timely(
    events: Sequence[Told], taken: Sequence[Told], due_s: float, rules: Rules, windows: Sequence[Window]
) -> list[Finding]:
    if not taken:
        return []
    first = taken[0]
    put_s = min((each.at for each in events if each.kind == Kind.PUT), default=float("-inf"))
    dues = [due_s, *(int(each.detail) / 1000 for each in events if each.kind in DUES and each.detail.isdigit())]
    earliest, latest = min(dues), max(dues)
    if put_s == float("-inf"):  # nobody told whether its id is later than its due
        earliest -= LEAD_MS / 1000
    if first.at + rules.skew_s < earliest:
        fault = "unknown" if _missing(windows, put_s, first.at, rules) else "early"
        return [Finding(fault, first.at, f"due at {earliest:.3f}, delivered at {first.at:.3f}")]
    if first.at > max(latest, put_s) + rules.late_s + rules.skew_s:
        fault = "unknown" if _missing(windows, put_s, first.at, rules) else "late"
        return [Finding(fault, first.at, f"due at {latest:.3f}, first delivered at {first.at:.3f}")]
    return []


def _missing(windows: Sequence[Window], from_s: float, to_s: float, rules: Rules) -> bool:
    """May something have happened within these times that the journal lacks?"""
    return any(each.after_s - rules.skew_s <= to_s and each.before_s + rules.skew_s >= from_s for each in windows)


def _unfinished(
    queue: str, events: Sequence[Told], taken: Sequence[Told], rules: Rules, windows: Sequence[Window],
    due_s: float | None, purged: bool,
) -> list[Finding]:  # fmt: skip
    kinds = {each.kind for each in events}
    put = next((each for each in events if each.kind == Kind.PUT), None)
    if kinds & ENDS or SETTLED in kinds or purged:
        return []
    if Kind.REPAIRED in kinds:
        if put is None or taken:
            return []
        return [Finding("lost", put.at, f"put at {put.at:.3f}, and then voided as if it had never been written")]
    last_s = events[-1].at
    waits_for_s = due_s if due_s is not None and not taken else None
    if waits_for_s is not None and waits_for_s > rules.ended_s and not rules.empty(queue):
        return []
    silent_s = rules.ended_s - max(last_s, waits_for_s or last_s)
    if put is not None and not taken:
        fault, says = "lost", f"put at {put.at:.3f}, and never delivered"
        if not rules.empty(queue):
            fault, says = "stuck", f"put at {put.at:.3f}, and waiting since"
    else:
        fault, says = "stuck", f"{events[-1].kind} at {last_s:.3f}, and nothing was heard of it since"
    if not rules.empty(queue) and silent_s <= rules.stuck_s:
        return []
    if _missing(windows, events[0].at, float("inf"), rules):
        return [Finding("unknown", last_s, f"{says}; but events are missing since")]
    return [Finding(fault, last_s, says)]
