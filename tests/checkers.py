"""The checkers of the promises, for tests: pure functions of a history (`capellini.proof`)."""

from __future__ import annotations

from capellini.proof.checkers import (
    CHECKERS,
    acked_stays_acked,
    bad_changes_nothing,
    check,
    never_early,
    nothing_invented,
    nothing_lost,
    offered_soon,
    one_holder,
    space_given_back,
    stale_is_refused,
)
from capellini.proof.history import Call, History, Sent, Violation

__all__ = [
    "CHECKERS",
    "Call",
    "History",
    "Sent",
    "Violation",
    "acked_stays_acked",
    "bad_changes_nothing",
    "check",
    "never_early",
    "nothing_invented",
    "nothing_lost",
    "offered_soon",
    "one_holder",
    "space_given_back",
    "stale_is_refused",
]
