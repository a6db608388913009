"""Histories of log queues, and what one reader (a group between two seeks) saw of one: a history as other kinds have.

Calls of a group name it as QUEUE@GROUP. A reader is named by the queue's generation, the group, and its version in that
generation. A message is known by its place, "GENERATION.EXTENT:NUMBER"; a receipt in these histories says the reader,
the owner's epoch, its number of that delivery, and the place:

    1.g/2 ┊ 7 ┊ 31 ┊ 1.1763324049123-3a0-n1-1f00c2a90b17:12

For one reader the shared checkers (`proof.checkers`) see a queue named QUEUE@GROUP:

    what happened                               what they are shown
    a put into the queue           the put; without what the group's filter leaves out, delayed as the group delays; as
                                   unknown where the reader need not get it: put before the group's start, or perhaps
                                   dropped before there was this reader
    a purge                        an end of the queue; the group goes on as a reader of the next generation
    a seek, or the group's end     an end of the queue, for readers before it
    dead letters                   a queue of its own, as for other kinds; of them those that this reader has buried
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from capellini.model.message import Delivery
from capellini.model.receipts import receipts_of
from capellini.model.service import Problem, Put
from capellini.proof.history import ENDING, Call, History, Sent

DELIVERY_BITS: Final = 18  # of a version in a reader's history; above them the owner's epoch
NUMBER_BITS: Final = 40
APART: Final = "|"
BURIED_BY: Final = "buried-by"  # an attribute that the run gives to dead letters: the reader that buried them
USES: Final = frozenset(("ack", "nack", "extend"))
STARTS: Final = frozenset(("create_group", "known_group", "seek"))
ENDS: Final = frozenset(("seek", "delete_group"))
WIDE_SKEW_S: Final = 12.0  # what clocks differ by at most in runs where they differ by more than they should
UNHEARD: Final = Problem("unknown", "whether this reader gets it is open")


class Place(msgspec.Struct, frozen=True, order=True):
    extent: str
    number: int


class LogHistory(History):
    ends: dict[str, int] = msgspec.field(default_factory=dict)  # of sealed extents, as listed in the end
    final: dict[str, str] = msgspec.field(default_factory=dict)  # by QUEUE@GROUP: the group's reader in the end


class Version(msgspec.Struct, frozen=True, order=True):
    """A group's version of a generation of its queue: what a reader is."""

    generation: int
    version: int

    def of(self, group: str) -> str:
        return f"{self.generation}.{group}/{self.version}"


class Reader(msgspec.Struct, frozen=True):
    """One version of a group, with all that it may see of the run."""

    queue: str
    group: str
    name: str
    final: bool  # it reads until the end
    history: History
    options: dict[str, Any]  # of the queue
    merges: int  # how often its dead letters came back, at most
    limit: int  # deliveries before a message is a dead letter; 0: none
    sure_from_s: float  # what was put before may go at any time: a drop of its extent may be older than this reader


def receipt_text(reader: str, epoch: int, delivery: int, place: str) -> str:
    return APART.join((reader, str(epoch), str(delivery), place))


def named(generation: int, extent: str) -> str:
    """Names of extents, and so places, are of one generation of their queue."""
    return f"{generation}.{extent}"


def place_of(id: str) -> Place:
    extent, _, number = id.rpartition(":")
    return Place(extent, int(number))


def dead_of(queue: str, group: str) -> str:
    return f"{queue}.{group}.dead"


def readers_of(history: LogHistory) -> list[Reader]:
    """All versions of all groups that anybody heard of."""
    found: set[tuple[str, str, Version]] = set()
    for call in history.calls:
        queue, at, group = call.queue.partition("@")
        if not at:
            continue
        if call.op in STARTS and call.good:
            found.add((queue, group, version_of(call)))
        for delivery in call.deliveries:
            found.add((queue, group, _version(delivery.receipt)))
    known = _Known(_numbered(history), {sent.body: id for _, sent, id in put_ids(history)}, _first_puts(history))
    return [_reader(history, known, *one) for one in sorted(found)]


class _Known(msgspec.Struct, frozen=True):
    extents: dict[str, int]  # their numbers
    ids: dict[bytes, str]  # by body: what a put that was recognised as a repetition may not tell
    began_s: dict[bytes, float]  # by body: when it was sent first; it is not older than that


def version_of(call: Call) -> Version:
    """Of a group, as a call said that made, sought or deleted it."""
    return Version(int(call.options["generation"]), int(call.options["version"]))


def _version(receipt: str) -> Version:
    reader = receipt.split(APART, 1)[0]
    return Version(int(reader.partition(".")[0]), int(reader.rpartition("/")[2]))


def _numbered(history: History) -> dict[str, int]:
    """Numbers for extents, in the order of their names."""
    names = {place_of(one.id).extent for call in history.calls for one in call.deliveries if APART in one.receipt}
    return {name: at for at, name in enumerate(sorted(names))}


def _first_puts(history: History) -> dict[bytes, float]:
    found: dict[bytes, float] = {}
    for call in history.calls:
        for sent in call.sent:
            found.setdefault(sent.body, call.began_s)
    return found


def _reader(history: LogHistory, known: _Known, queue: str, group: str, version: Version) -> Reader:
    view = _View(history, known, queue, group, version)
    calls = [shown for call in history.calls if (shown := view.shown(call)) is not None]
    seen = History(
        calls, history.epoch_s, history.max_skew_s, history.skew_kept, history.calm_from_s,
        history.drained and view.final, epoch_bits=DELIVERY_BITS, taken_over_s=history.taken_over_s,
    )  # fmt: skip
    merges = sum(call.op == "merge_dead" and call.queue == view.name for call in history.calls)
    return Reader(queue, group, version.of(group), view.final, seen, view.options, merges, view.limit, view.sure_from_s)


class _View:
    def __init__(self, history: LogHistory, known: _Known, queue: str, group: str, version: Version) -> None:
        self.queue, self.name, self.dead = queue, f"{queue}@{group}", dead_of(queue, group)
        self._known, self._version, self._reader = known, version, version.of(group)
        self.final = history.final.get(self.name) == self._reader
        self.options = _latest(history, "create", queue)
        self._group = _latest(history, "create_group", self.name)
        self.limit = int(self._group.get("delivery_limit", 0))
        births = [one for one in history.calls if one.op in STARTS and one.queue == self.name and one.good]
        births = [one for one in births if version_of(one) == version]
        self._born_s = births[-1].over_s if births else math.inf
        self._begun_s = births[-1].began_s if births else -math.inf
        start_at = float(births[-1].options["start_at"]) if births else 0.0
        slack_s = history.max_skew_s if history.skew_kept else WIDE_SKEW_S
        self._from_s = start_at - history.epoch_s + slack_s if start_at else -math.inf
        forgets = float(self.options.get("consumed_s", 0.0)) < 600 or not births
        self.sure_from_s = self._born_s if forgets else -math.inf

    def shown(self, call: Call) -> Call | None:
        if call.queue == self.dead:
            mine = [unmarked(one) for one in call.deliveries if one.attributes.get(BURIED_BY) == self._reader]
            return _as(call, deliveries=mine) if call.deliveries else call
        if call.queue == self.queue:
            if call.op == "put":
                return self._put(call)
            if call.op in ENDING:
                return _as(call, queue=self.name)
            return _as(call, queue=self.name, options=self._shared_options()) if call.op == "create" else None
        if call.queue != self.name:
            return None
        if call.op == "get":
            return _as(call, deliveries=[self._delivery(one) for one in call.deliveries if self._mine(one.receipt)])
        if call.op in USES:
            return self._use(call)
        if call.op in ENDS:
            return self._end(call)
        if call.op == "merge_dead":
            return _as(call, op="redrive")
        return _as(call, op="purge", queue=self.dead) if call.op == "purge_dead" else None

    def _shared_options(self) -> dict[str, float | int | str]:
        shared: dict[str, float | int | str] = {}
        if self._group.get("delivery_limit"):
            shared |= {"dead_letters": self.dead, "delivery_limit": self._group["delivery_limit"]}
        return shared

    def _put(self, call: Call) -> Call:
        kept = [at for at, one in enumerate(call.sent) if self._wanted(one)]
        delay_s = float(self._group.get("delay_s", 0.0))
        sent = tuple(msgspec.structs.replace(call.sent[at], delay_s=call.sent[at].delay_s + delay_s) for at in kept)
        puts = [self._answer(call.puts[at], call.sent[at]) for at in kept if call.puts]
        return _as(call, queue=self.name, sent=sent, puts=puts)

    def _answer(self, answer: Put | Problem, sent: Sent) -> Put | Problem:
        if isinstance(answer, Problem):
            return answer
        began_s = self._known.began_s[sent.body]
        needed = began_s > self._from_s and began_s >= self.sure_from_s
        return Put(self._known.ids.get(sent.body, ""), answer.duplicate) if needed else UNHEARD

    def _wanted(self, sent: Sent) -> bool:
        wanted: dict[str, list[str]] = self._group.get("filter", {})
        return all(sent.attributes.get(name) in values for name, values in wanted.items())

    def _mine(self, receipt: str) -> bool:
        return receipt.split(APART, 1)[0] == self._reader

    def _receipt(self, text: str) -> str:
        _, epoch, delivery, place = text.split(APART)
        number = self._number(place)
        version = int(epoch) << DELIVERY_BITS | int(delivery)
        return receipts_of(0, number, 1, version, bytes(8))[0]

    def _number(self, id: str) -> int:
        place = place_of(id)
        return self._known.extents[place.extent] << NUMBER_BITS | place.number

    def _delivery(self, one: Delivery) -> Delivery:
        """A dead letter that came back has its mark."""
        number, receipt = f"{self._number(one.id):x}", self._receipt(one.receipt)
        return msgspec.structs.replace(unmarked(one), id=number, receipt=receipt)

    def _use(self, call: Call) -> Call:
        mine = [at for at, receipt in enumerate(call.receipts) if self._mine(receipt)]
        return _as(
            call,
            receipts=tuple(self._receipt(call.receipts[at]) for at in mine),
            seconds=tuple(call.seconds[at] for at in mine) if call.seconds else (),
            results=[call.results[at] for at in mine] if call.results else [],
        )

    def _end(self, call: Call) -> Call | None:
        """An end of this reader, or perhaps."""
        if self.final or not (call.good or call.maybe) or call.over_s < self._begun_s:
            return None
        if call.good and version_of(call) < self._version:
            return None
        if call.good and call.op == "seek" and version_of(call) == self._version:
            return None
        surely = call.good and call.began_s > self._born_s
        return _as(call, op="purge") if surely else _as(call, op="purge", error="unknown")


def unmarked(one: Delivery) -> Delivery:
    attributes = {name: value for name, value in one.attributes.items() if name != BURIED_BY}
    return msgspec.structs.replace(one, attributes=attributes)


def _as(call: Call, **changes: Any) -> Call:
    return msgspec.structs.replace(call, **changes)


def _latest(history: History, op: str, queue: str) -> dict[str, Any]:
    """Options as somebody asked for; all calls of a run that make the same thing ask for the same."""
    return next((dict(call.options) for call in history.calls if call.op == op and call.queue == queue), {})


def put_ids(history: History) -> list[tuple[Call, Sent, str]]:
    """Confirmed messages whose place was told: the call, what was sent, and the place. With a delay it has none yet."""
    return [
        (call, sent, answer.id)
        for call in history.calls
        if call.op == "put"
        for sent, answer in zip(call.sent, call.puts, strict=False)
        if isinstance(answer, Put) and ":" in answer.id
    ]
