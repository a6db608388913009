"""The lives of messages, as a history tells them: from their puts over their deliveries to what became of these.

A body is one message: the run never sends a body twice, except to repeat a put with the same key. So one life is to be
expected per body, whatever queues it went through, plus one for each time that its queue was emptied or made anew while
it was being put.
"""

from __future__ import annotations

import math
from collections import defaultdict

import msgspec

from capellini.model.message import Delivery
from capellini.model.receipts import Receipt, parse_receipt
from capellini.model.service import Done, Put
from capellini.proof.history import ENDING, Call, History, Sent

DONE, STALE, MAYBE, NOT = "done", "stale", "maybe", "not"


class Tried(msgspec.Struct, frozen=True):
    """One attempt to put a message. `id` None: it was not confirmed."""

    call: Call
    sent: Sent
    id: str | None
    possible: bool  # it may have become a message


class Use(msgspec.Struct, frozen=True):
    """A receipt was used."""

    call: Call
    index: int
    how: str  # done, stale, maybe, not (surely)

    @property
    def op(self) -> str:
        return self.call.op

    @property
    def seconds(self) -> float | None:
        return self.call.seconds[self.index]

    @property
    def visible_at(self) -> float | None:
        result = self.call.results[self.index]
        return result.visible_at if isinstance(result, Done) else None


class Held(msgspec.Struct):
    """A message was handed to a consumer."""

    delivery: Delivery
    call: Call
    receipt: Receipt
    until_s: float  # true time until which the receipt is surely valid, unless it is used
    uses: list[Use] = []

    @property
    def at_s(self) -> float:
        """It was claimed before."""
        return self.call.ended_s if self.call.ended_s is not None else math.inf

    @property
    def valid_until_s(self) -> float:
        """No other consumer may have the message until then: the consumer neither gave it back nor let it run out."""
        until_s = self.until_s
        for use in self.uses:
            if use.call.began_s >= until_s:
                break
            if use.op == "extend" and use.how == DONE and use.visible_at is not None:
                until_s = use.visible_at - self._zero_s(use.call)
            else:
                until_s = min(until_s, use.call.began_s)
        return until_s

    def _zero_s(self, call: Call) -> float:
        return self.epoch_s + call.ahead_s

    epoch_s: float = 0.0


class Life(msgspec.Struct):
    body: bytes
    tries: list[Tried] = []
    held: list[Held] = []

    @property
    def name(self) -> str:
        return self.body[:40].decode(errors="replace")

    @property
    def confirmed(self) -> list[Tried]:
        return [one for one in self.tries if one.id is not None]

    def acks(self, how: str) -> list[tuple[Held, Use]]:
        return [(held, use) for held in self.held for use in held.uses if use.op == "ack" and use.how == how]


class Lives(msgspec.Struct):
    """A history, arranged by message."""

    history: History
    lives: dict[bytes, Life]
    endings: dict[str, list[Call]]  # by queue: what emptied it, or may have
    letters: dict[str, set[str]]  # where a queue's messages may go: queues that were its dead letters at some time
    limits: dict[str, bool]  # queues that had a delivery limit or a time to live at some time
    more: int = 0  # places that a message may have beside those that its puts explain

    def places(self, queue: str) -> set[str]:
        """The queues in which a message that was put into `queue` may be."""
        found = {queue}
        todo = [queue]
        while todo:
            for target in self.letters.get(todo.pop(), set()) - found:
                found.add(target)
                todo.append(target)
        return found

    def emptied(self, queue: str, began_s: float, ended_s: float) -> int:
        """How often a queue was, or may have been, emptied in that time."""
        return sum(1 for call in self.endings.get(queue, []) if call.began_s <= ended_s and call.over_s >= began_s)


def lives_of(history: History) -> Lives:
    lives = Lives(history, {}, defaultdict(list), defaultdict(set), defaultdict(bool))
    receipts: dict[str, Held] = {}
    for call in history.calls:
        if call.op == "put":
            _puts(lives, call)
        elif call.op in ENDING and (call.good or call.maybe):
            lives.endings[call.queue].append(call)
        elif call.op in ("create", "change"):
            if target := call.options.get("dead_letters"):
                lives.letters[call.queue].add(str(target))
            if call.options.get("delivery_limit") or call.options.get("ttl_s"):
                lives.limits[call.queue] = True
    for call in history.calls:
        for delivery in call.deliveries:
            until_s = delivery.visible_at - history.epoch_s - call.ahead_s
            held = Held(delivery, call, _receipt(history, delivery), until_s, [], history.epoch_s)
            receipts[delivery.receipt] = held
            lives.lives.setdefault(delivery.body, Life(delivery.body, [], [])).held.append(held)
    for call in history.calls:
        for index, receipt in enumerate(call.receipts):
            if receipt in receipts:
                receipts[receipt].uses.append(Use(call, index, _how(call, index)))
    for life in lives.lives.values():
        life.held.sort(key=lambda held: (held.at_s, held.receipt.version))
    return lives


def _receipt(history: History, delivery: Delivery) -> Receipt:
    """Where things are owned, owners number messages anew: then the message's own id says what is the same."""
    receipt = parse_receipt(delivery.receipt)
    if not history.epoch_bits:
        return receipt
    return msgspec.structs.replace(receipt, first=int(delivery.id, 16), index=0)


def _puts(lives: Lives, call: Call) -> None:
    for index, sent in enumerate(call.sent):
        answer = call.puts[index] if index < len(call.puts) else None
        id = answer.id if isinstance(answer, Put) else None
        if isinstance(answer, Put):
            possible = True
        elif answer is not None:
            possible = answer.error == "unknown"
        else:
            possible = call.maybe
        life = lives.lives.setdefault(sent.body, Life(sent.body, [], []))
        life.tries.append(Tried(call, sent, id, possible))


def _how(call: Call, index: int) -> str:
    result = call.results[index] if call.results else None
    if isinstance(result, Done):
        return DONE
    error = call.error if result is None else result.error
    if error in ("stale", "invalid", "not_found"):
        return STALE
    return NOT if error in ("unavailable", "overloaded", "full", "paused") else MAYBE
