"""A history: who asked for what and when, and what came back. All that checkers may know.

Times are true times in seconds from the start of the run, as the run itself measured them; no node's clock is trusted.
A call without an answer is open: neither done nor failed. A call that ended with `unknown` may have been done, or may
be done later.

    began ───────── took effect somewhere in here ───────── ended      an answer
    began ───────── took effect somewhere in here, later, or never …   open, or unknown
"""

from __future__ import annotations

import math

import msgspec

from capellini.model.message import Delivery
from capellini.model.service import Done, Problem, Put

ENDING = frozenset(("purge", "delete"))  # calls after which what was there is gone
MAYBE = frozenset(("unknown",))  # errors of calls that may have been done, or may yet be done


class Sent(msgspec.Struct, frozen=True):
    """A message as a producer put it. Each has a body of its own, by which it is known from then on."""

    body: bytes
    attributes: dict[str, str] = {}
    delay_s: float = 0.0
    key: str | None = None


class Call(msgspec.Struct):
    """One call of the service. Filled in when its answer comes."""

    number: int
    who: str
    node: str
    op: str
    queue: str
    began_s: float
    sent: tuple[Sent, ...] = ()  # put
    receipts: tuple[str, ...] = ()  # ack, nack, extend
    seconds: tuple[float | None, ...] = ()  # nack: delays; extend: visibilities; move: from the call to the new due
    ids: tuple[str, ...] = ()  # cancel, move
    count: int = 0  # get
    wait_s: float = 0.0
    options: dict[str, float | int | str] = {}  # create, change
    bad: str = ""  # what is wrong with this request, if something is
    ended_s: float | None = None  # None: open
    error: str | None = None  # of the whole call
    says: str = ""
    puts: list[Put | Problem] = []
    deliveries: list[Delivery] = []
    results: list[Done | Problem] = []
    ahead_s: float = 0.0  # how far the node's wall clock was ahead of the true time during the call, at most

    @property
    def open(self) -> bool:
        return self.ended_s is None

    @property
    def maybe(self) -> bool:
        """It may have been done, or may yet be done."""
        return self.ended_s is None or self.error in MAYBE

    @property
    def good(self) -> bool:
        return self.ended_s is not None and self.error is None

    @property
    def over_s(self) -> float:
        """When it can have no effect any more."""
        return math.inf if self.ended_s is None or self.error in MAYBE else self.ended_s


class History(msgspec.Struct):
    calls: list[Call] = []
    epoch_s: float = 0.0  # the wall time at which the run began
    max_skew_s: float = 0.5
    skew_kept: bool = True  # no two nodes' clocks differed by more than max_skew_s
    calm_from_s: float = math.inf  # from here on nothing goes wrong, and no admin changes anything
    drained: bool = False  # at the end everything was taken and acked
    left: list[str] = []  # what lies in the store that should have been given back
    broken: list[str] = []  # errors that are no answer: a node failed inside
    epoch_bits: int = 0  # of a receipt's version, above which it says whose epoch it is of; 0: nothing is owned
    taken_over_s: list[float] = []  # when an owner began: what was in flight may be delivered again

    def begin(self, who: str, node: str, op: str, queue: str, began_s: float) -> Call:
        call = Call(len(self.calls), who, node, op, queue, began_s)
        self.calls.append(call)
        return call

    def other_owner(self, version: int, other: int) -> bool:
        """Were these versions given out by different owners?"""
        return bool(self.epoch_bits) and version >> self.epoch_bits != other >> self.epoch_bits

    def lines(self) -> list[str]:
        """For a person to read, in the order of beginning."""
        return [line_of(call) for call in self.calls]


class Violation(msgspec.Struct, frozen=True):
    promise: int
    message: str  # the body it is about, or whatever names it
    says: str

    def __str__(self) -> str:
        return f"promise {self.promise}: {self.message}: {self.says}"


def line_of(call: Call) -> str:
    ended = "open" if call.ended_s is None else f"{call.ended_s:.3f}"
    asked = ""
    if call.sent:
        asked = " ".join(_sent(one) for one in call.sent)
    elif call.receipts or call.ids:
        asked = " ".join(call.receipts or call.ids)
    elif call.op == "get":
        asked = f"{call.count} for {call.wait_s:g} s"
    elif call.options:
        asked = str(call.options)
    if call.seconds:
        asked += f" {call.seconds}"
    if call.error is not None:
        came = f"{call.error}: {call.says}"
    elif call.puts:
        came = " ".join(
            one.id + ("=" if one.duplicate else "") if isinstance(one, Put) else one.error for one in call.puts
        )
    elif call.deliveries:
        came = " ".join(
            f"{one.body.decode(errors='replace')}#{one.id}v{one.deliveries}({one.receipt})" for one in call.deliveries
        )
    elif call.results:
        came = " ".join("done" if isinstance(one, Done) else one.error for one in call.results)
    else:
        came = ""
    return f"{call.began_s:9.3f} {ended:>9} {call.who:>6}@{call.node:<4} {call.op} {call.queue} [{asked}] -> {came}"


def _sent(one: Sent) -> str:
    delay = f"+{one.delay_s:g}s" if one.delay_s else ""
    return one.body.decode(errors="replace") + delay + (f"[{one.key}]" if one.key else "")
