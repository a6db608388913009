"""Promise 7 as a pure function of a history: what each read of a counter showed, against what was sent to it when.

Every update of a run can be told apart, so that a read shows how often each was counted:

    ledger   a state of its own: update id -> how often, added up when merged (as a sum is)
    sum      update number k adds 4 to the power of k: the digits of the total say how often each was counted
    set      update ids as elements
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from capellini.counters.states.interface import Stamp, State, text, unpacked
from capellini.proof.history import Violation

DIGITS: Final = 31  # updates of a sum that fit into 64 bits
MAYBE: Final = frozenset(("unknown",))


class Ledger(State):
    """How often each update was counted."""

    kind = "ledger"
    takes = "the name of an update"

    def __init__(self, counts: dict[str, int] | None = None) -> None:
        self.counts: Counter[str] = Counter(counts or {})

    @classmethod
    def check(cls, update: object, stamp: Stamp) -> str:
        return text(update, cls.kind)

    def apply(self, checked: str) -> None:
        self.counts[checked] += 1

    def merge(self, other: Ledger) -> None:
        self.counts.update(other.counts)

    def value(self) -> dict[str, int]:
        return dict(self.counts)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(dict(sorted(self.counts.items())))

    @classmethod
    def decode(cls, data: bytes, version: int) -> Ledger:
        return cls(unpacked(data, dict[str, int], version, cls.version))

    def weight(self) -> int:
        return 40 * len(self.counts)


class CounterCall(msgspec.Struct):
    """One call. `ids`: the updates it carried."""

    who: str
    op: str  # update, read, collect
    counter: str
    began_s: float
    ids: tuple[str, ...] = ()
    counts: dict[str, int] = {}  # read: how often each update was counted
    ended_s: float | None = None  # None: open
    error: str | None = None
    says: str = ""

    def line(self) -> str:
        ended = "open" if self.ended_s is None else f"{self.ended_s:.3f}"
        came = f"{self.error}: {self.says}" if self.error else self.says
        carried = " ".join(self.ids) or (f"{len(self.counts)} counted" if self.op == "read" else "")
        return f"{self.began_s:12.3f} {ended:>12} {self.who:>8} {self.op} {self.counter} [{carried}] -> {came}"


def update_of(kind: str, id: str) -> object:
    """What to send so that it can be told apart. Ids are NAME.NUMBER."""
    return 4 ** int(id.rpartition(".")[2]) if kind == "sum" else id


def counts_of(kind: str, counter: str, value: Any) -> dict[str, int]:
    """How often each update was counted."""
    match kind:
        case "sum":
            digits = (((value >> 2 * place) & 3) for place in range(value.bit_length() // 2 + 1))
            return {f"{counter}.{place}": digit for place, digit in enumerate(digits) if digit}
        case "set":
            return dict.fromkeys(value, 1)
        case _:
            return dict(value)


def exact(calls: list[CounterCall]) -> list[Violation]:
    """7. Every read shows each update that was confirmed before it exactly once, none that failed, none twice, and what
    an earlier read showed."""
    found: list[Violation] = []
    by_counter: dict[str, list[CounterCall]] = {}
    for call in calls:
        by_counter.setdefault(call.counter, []).append(call)
    for counter, mine in by_counter.items():
        updates = {id: call for call in mine if call.op == "update" for id in call.ids}
        reads = sorted(
            (call for call in mine if call.op == "read" and call.ended_s is not None and call.error is None),
            key=lambda call: call.began_s,
        )
        shown: dict[str, float] = {}  # since when some read had shown an update
        for read in reads:
            found += _read(counter, read, updates, shown)
        for read in reads:
            for id in read.counts:
                shown[id] = min(shown.get(id, read.ended_s or 0.0), read.ended_s or 0.0)
        for read in reads:
            gone = [id for id, at_s in shown.items() if at_s <= read.began_s and id not in read.counts]
            found += [Violation(7, id, f"{_where(read)} does not show it, though an earlier read did") for id in gone]
    return found


def _read(
    counter: str, read: CounterCall, updates: Mapping[str, CounterCall], shown: Mapping[str, float]
) -> list[Violation]:
    found = []
    where = _where(read)
    for id, count in read.counts.items():
        update = updates.get(id)
        if update is None or update.began_s > (read.ended_s or 0.0):
            found.append(Violation(7, id, f"{where} counts it, but nobody had sent it"))
        elif count > 1:
            found.append(Violation(7, id, f"{where} counts it {count} times"))
        elif update.error is not None and update.error not in MAYBE:
            found.append(Violation(7, id, f"{where} counts it, though its update failed: {update.error}"))
    for id, update in updates.items():
        confirmed = update.ended_s is not None and update.error is None and update.ended_s <= read.began_s
        if confirmed and id not in read.counts:
            found.append(Violation(7, id, f"{where} lacks it, though it was confirmed at {update.ended_s:.3f} s"))
    return found


def _where(read: CounterCall) -> str:
    return f"the read of {read.counter} by {read.who} at {read.began_s:.3f} s"
