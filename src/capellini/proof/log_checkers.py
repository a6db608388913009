"""What histories of log queues are checked for: the shared promises, for each reader, and what only logs have.

    each reader           promises 1 to 5, 9 to 11 of the shared checkers, on what it saw (`log_history`)
    a place               has one message for ever, whoever reads it; a message has one place, but for those that were
                          put again without a sequence, or came back from the dead letters                          (11)
    a sealed end          nothing that was confirmed lies behind it (1), nothing behind it is delivered (11), and all
                          numbers before it are messages that somebody got (1)
    delivery counts       never fall from the second delivery on, whoever delivers, and end at the limit            (2)
    a chain (cp)          what was put after a put was confirmed lies behind it; so do the chunks of a producer     (6)
    a group               outlives a purge of its queue                                                              (1)
    ordered               while a message is unfinished nothing behind it (of its message group) is delivered       (6)

What no order of events can explain is accused, nothing else (`proof.checkers`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from capellini.model.message import Delivery
from capellini.model.service import Done
from capellini.proof.checkers import CHECKERS, _lives
from capellini.proof.history import Call, Sent, Violation
from capellini.proof.lives import DONE, MAYBE, Held, Life, Lives, lives_of
from capellini.proof.log_history import (
    APART,
    NUMBER_BITS,
    STARTS,
    LogHistory,
    Place,
    Reader,
    dead_of,
    place_of,
    put_ids,
    readers_of,
)

OF_THE_RUN: Final = frozenset((8,))  # not of a reader


def check_log(history: LogHistory) -> list[Violation]:
    """All violations of all promises."""
    found = [Violation(8, "store", says) for says in history.left]
    found += [Violation(9, "node", says) for says in history.broken]
    found += one_message_a_place(history) + nothing_behind_an_end(history)
    found += bad_was_refused(history) + groups_outlive_purges(history)
    queues = {call.queue: call.options for call in history.calls if call.op == "create"}
    for queue, options in queues.items():
        if options.get("mode") == "cp":
            found += chain_in_order(history, queue)
    for reader in readers_of(history):
        lives = lives_of(reader.history)
        lives.more = reader.merges
        seen = [each for promise, check in CHECKERS.items() if promise not in OF_THE_RUN for each in check(lives)]
        if reader.options.get("ordered"):
            seen += ordered(reader, lives)
        if reader.options.get("ordered") or not reader.final:  # what is held back, or sought away, is not offered
            seen = [each for each in seen if each.promise != 10]
        seen += one_place_a_message(reader, lives) + counts_rise(reader, lives)
        found += [Violation(one.promise, one.message, f"{one.says} (reader {reader.name})") for one in seen]
    return found


def bad_was_refused(history: LogHistory) -> list[Violation]:
    """9, of calls that no reader sees."""
    return [
        Violation(9, call.op, f"a request with {call.bad} was done at {call.over_s:.3f} s")
        for call in history.calls
        if call.bad and call.good and not call.puts and not call.results and not call.queue.count("@")
    ]


def groups_outlive_purges(history: LogHistory) -> list[Violation]:
    """1. A group that somebody knew is there, unless it or its queue was deleted since, or perhaps at any time."""
    found: list[Violation] = []
    known_s: dict[str, float] = {}  # by QUEUE@GROUP: when the last call began that told of it
    for call in history.calls:
        if call.op == "known_group" and call.error == "not_found" and call.queue in known_s:
            of = (call.queue, call.queue.partition("@")[0])
            ends = [one for one in history.calls if one.op in ("delete_group", "delete") and one.queue in of]
            if not any(one.maybe or (one.good and one.over_s > known_s[call.queue]) for one in ends):
                found.append(Violation(1, call.queue, f"the group was lost by a purge before {call.over_s:.3f} s"))
        if call.op in STARTS and call.good:
            known_s[call.queue] = call.began_s
    return found


def _delivered(history: LogHistory) -> Iterable[tuple[Call, Delivery, Place]]:
    for call in history.calls:
        for delivery in call.deliveries:
            if APART in delivery.receipt:  # else of dead letters
                yield call, delivery, place_of(delivery.id)


def one_message_a_place(history: LogHistory) -> list[Violation]:
    """11. A place has one message, whoever was told, and whoever reads it."""
    found: list[Violation] = []
    there: dict[Place, tuple[bytes, str]] = {}
    told = [(place_of(id), sent.body, f"the put of {call.who}") for call, sent, id in put_ids(history)]
    told += [(place, one.body, f"{call.who} of {call.queue}") for call, one, place in _delivered(history)]
    for place, body, who in told:
        before, by = there.setdefault(place, (body, who))
        if before != body:
            says = f"{place.extent}:{place.number} was {_name(before)} for {by}, and is it for {who}"
            found.append(Violation(11, _name(body), says))
    return found


def nothing_behind_an_end(history: LogHistory) -> list[Violation]:
    """1 and 11. A sealed end is after all that was confirmed, before all that is never delivered, and no number before
    it is missing."""
    found: list[Violation] = []
    known: dict[str, set[int]] = defaultdict(set)
    for call, sent, id in put_ids(history):
        place = place_of(id)
        if place.number >= history.ends.get(place.extent, math.inf):
            says = f"confirmed at {call.over_s:.3f} s as {id}, behind the end {history.ends[place.extent]}"
            found.append(Violation(1, _name(sent.body), says))
    for call, delivery, place in _delivered(history):
        known[place.extent].add(place.number)
        if place.number >= history.ends.get(place.extent, math.inf):
            says = f"{call.who} got {delivery.id} at {call.over_s:.3f} s, behind the end {history.ends[place.extent]}"
            found.append(Violation(11, _name(delivery.body), says))
    if history.drained and _all_read(history):
        for extent, end in history.ends.items():
            if missing := sorted(set(range(end)) - known[extent]):
                says = f"{extent} ends at {end}, and nobody got {missing[:10]}"
                found.append(Violation(1, "extent", says))
    return found


def _all_read(history: LogHistory) -> bool:
    """Is there a group that reads everything to the end?"""
    if any(call.op == "merge_dead" for call in history.calls):  # these are for one group
        return False
    for call in history.calls:
        if call.op == "create_group" and call.queue in history.final:
            narrow = call.options.get("filter") or call.options.get("delivery_limit")
            if not narrow and call.options.get("start") == "earliest":
                seeks = [one for one in history.calls if one.op == "seek" and one.queue == call.queue and not one.error]
                if all(one.options.get("start_at") == 0 for one in seeks):
                    return True
    return False


def one_place_a_message(reader: Reader, lives: Lives) -> list[Violation]:
    """11. Nothing twice: what was put once, or again under its sequence, has one place."""
    found: list[Violation] = []
    name = f"{reader.queue}@{reader.group}"
    for life in lives.lives.values():
        places = sorted({held.receipt.first for held in life.held if held.call.queue == name})
        if len(places) > 1 and len(places) > _lives(lives, life):
            says = f"it was put once and delivered from {len(places)} places: {', '.join(map(_place, places))}"
            found.append(Violation(11, life.name, says))
    return found


def counts_rise(reader: Reader, lives: Lives) -> list[Violation]:
    """2. How often it was delivered is known from the second delivery on, whoever owns the reading."""
    found: list[Violation] = []
    name = f"{reader.queue}@{reader.group}"
    for life in lives.lives.values():
        held = [one for one in life.held if one.call.queue == name]
        for at, one in enumerate(held):
            for other in held[at + 1 :]:
                same = one.receipt.first == other.receipt.first
                if same and other.receipt.version > one.receipt.version and _forgot(lives, one, other):
                    says = f"delivery {one.delivery.deliveries} at {one.at_s:.3f} s was followed by delivery "
                    says += f"{other.delivery.deliveries} at {other.at_s:.3f} s of {_place(one.receipt.first)}"
                    found.append(Violation(2, life.name, says))
    return found


def _forgot(lives: Lives, one: Held, other: Held) -> bool:
    taken_over = lives.history.other_owner(one.receipt.version, other.receipt.version)
    if taken_over and one.delivery.deliveries < 2:
        return False
    return other.delivery.deliveries <= one.delivery.deliveries


def chain_in_order(history: LogHistory, queue: str) -> list[Violation]:
    """6. In a chain, what is put after another put was confirmed lies behind it."""
    found: list[Violation] = []
    ends = [call.over_s for call in history.calls if call.queue == queue and call.op in ("purge", "delete")]
    if ends:
        return []  # chains of several generations are not compared
    times = Counter(one.body for call in history.calls for one in call.sent)
    # What was sent more than once may be older than the put that says where it is.
    puts = [
        (call, sent, id)
        for call, sent, id in put_ids(history)
        if call.queue == queue and (sent.key is None or times[sent.body] == 1)
    ]
    by_end = sorted(puts, key=lambda one: one[0].over_s)
    highest: tuple[Place, Sent] | None = None
    at = 0
    for call, sent, id in sorted(puts, key=lambda one: one[0].began_s):
        while at < len(by_end) and by_end[at][0].over_s < call.began_s:
            place = place_of(by_end[at][2])
            if highest is None or place > highest[0]:
                highest = place, by_end[at][1]
            at += 1
        if highest is not None and place_of(id) < highest[0]:
            first = f"{_name(highest[1].body)} had been confirmed as {highest[0].extent}:{highest[0].number} before"
            found.append(Violation(6, _name(sent.body), f"put at {call.began_s:.3f} s as {id}, and {first}"))
    return found


def ordered(reader: Reader, lives: Lives) -> list[Violation]:
    """6. While a message is unfinished nothing behind it (of its message group) is delivered: what is delivered had all
    before it finished, or in front of it in the same delivery."""
    name, by = f"{reader.queue}@{reader.group}", str(reader.options.get("order_by"))
    if lives.endings.get(name):
        return []
    total = reader.options["ordered"] == "total"
    lines: dict[str | None, list[tuple[int, Life]]] = defaultdict(list)
    for life in lives.lives.values():
        places = {held.receipt.first for held in life.held if held.call.queue == name}
        if len(places) == 1 and life.tries:
            line = None if total else life.tries[0].sent.attributes.get(by)
            if total or line is not None:
                lines[line].append((places.pop(), life))
    found: list[Violation] = []
    for placed in lines.values():
        placed.sort(key=lambda one: one[0])
        found += _in_line(reader, lives, name, [life for _, life in placed])
    return found


def _in_line(reader: Reader, lives: Lives, name: str, line: list[Life]) -> list[Violation]:
    found: list[Violation] = []
    purged = bool(lives.endings.get(dead_of(reader.queue, reader.group)))
    freed = [_free_s(reader, life, name, purged) for life in line]
    last_s = -math.inf  # when the last of those before was free
    for at, life in enumerate(line):
        for held in life.held:
            at_s = held.at_s
            if held.call.queue != name or last_s <= at_s:
                continue
            for earlier, free_s in zip(line[:at], freed[:at], strict=True):
                if free_s > at_s and not _together(earlier, held):
                    says = f"{held.call.who} got {_place(held.receipt.first)} at {at_s:.3f} s, while "
                    says += f"{earlier.name} before it was unfinished until {free_s:.3f} s"
                    found.append(Violation(6, life.name, says))
                    break
        last_s = max(last_s, freed[at])
    return found


def _together(earlier: Life, held: Held) -> bool:
    """Came the earlier one in the same answer, in front of it?"""
    places = [one.receipt.first for one in earlier.held if one.call is held.call]
    return bool(places) and places[0] < held.receipt.first


def _free_s(reader: Reader, life: Life, name: str, purged: bool) -> float:
    """From when on the message may have been finished: an ack was on its way, or it was delivered so often that a new
    owner takes it for a dead letter, perhaps without anybody hearing of it, and perhaps purged there. Or its extent
    went, consumed by all, while this reader came."""
    moments = [use.call.began_s for how in (DONE, MAYBE) for _, use in life.acks(how)]
    here = [held for held in life.held if held.call.queue == name]
    if reader.limit:
        moments += [held.at_s for held in here if held.delivery.deliveries >= reader.limit]
    going = life.tries[0].call.began_s < reader.sure_from_s
    if going or len(here) < len(life.held) or (reader.limit and purged):
        moments += [held.at_s for held in here[:1]]
    return min(moments, default=math.inf)


def _place(first: int) -> str:
    return f"extent {first >> NUMBER_BITS} number {first & (1 << NUMBER_BITS) - 1}"


def _name(body: bytes) -> str:
    return body[:40].decode(errors="replace")


__all__ = ["Done", "check_log"]
