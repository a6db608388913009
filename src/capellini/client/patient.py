"""Patience: which calls are repeated after which errors, as a table, and how long to wait in between.

    rule      repeats after           because
    FREELY    Unavailable, Unknown    it changes nothing, or only hides a message for a while
    SAFELY    Unavailable, Unknown    doing it twice is the same as once
    SURELY    Unavailable             twice would add, remove or move twice; Unavailable promises that nothing was done
    DOUBTFUL  Unavailable, Unknown    a receipt works once: a repetition can do no harm, but its answer "stale" may mean
                                      that the first attempt did it, whose answer was lost: Unknown, never Stale

Results of single items follow the same rules: in a put, items that failed for sure are put again, the others are
left as they are. The waits double from `first_s` to `most_s`, shortened at random so that many clients do not come
back in step, and are never shorter than what the node asked for (Retry-After). When patience ends, the last error
is raised; if any attempt may have been done, as Unknown.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from capellini.client.groups import log_of
from capellini.client.reaching import Closed
from capellini.client.relay import Relay
from capellini.client.scheduling import timed_of
from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError, Invalid, Paused, Stale, Unavailable, Unknown
from capellini.model.log import Settle, Settled
from capellini.model.message import NewMessage
from capellini.model.service import Done, ExtendItem, NackItem, ParcelAck, Problem, Put, Service
from capellini.model.timed import MoveItem

R = TypeVar("R")
I = TypeVar("I")  # noqa: E741
V = TypeVar("V")
Ranges = list[list[tuple[int, int]]]


class Rule(enum.Enum):
    FREELY = "freely"
    SAFELY = "safely"
    SURELY = "surely"
    DOUBTFUL = "doubtful"


RULES: Final[dict[str, Rule]] = {
    "create": Rule.SAFELY,
    "queues": Rule.FREELY,
    "show": Rule.FREELY,
    "body_limit": Rule.FREELY,
    "change": Rule.SAFELY,
    "pause": Rule.SAFELY,
    "purge": Rule.SURELY,  # would also purge what was put since
    "delete": Rule.SURELY,  # would also delete a new queue of that name
    "statistics": Rule.FREELY,
    "put": Rule.SURELY,  # of unkeyed messages
    "put_keyed": Rule.SAFELY,
    "get": Rule.FREELY,  # what was taken and not received is offered again after its visibility
    "ack": Rule.DOUBTFUL,
    "nack": Rule.DOUBTFUL,
    "extend": Rule.DOUBTFUL,
    "peek": Rule.FREELY,
    "dead": Rule.FREELY,
    "redrive": Rule.SURELY,  # the count of the first attempt would be lost
    "buckets": Rule.FREELY,
    "pointers": Rule.FREELY,
    "move_repair": Rule.SAFELY,
    "message": Rule.FREELY,
    "put_block": Rule.SURELY,
    "take": Rule.FREELY,
    "ack_parcels": Rule.DOUBTFUL,
}


COUNTER_RULES: Final[dict[str, Rule]] = {
    "counter_update": Rule.SURELY,  # a sum would count twice
    "counter_read": Rule.FREELY,
    "counter_collect": Rule.FREELY,
}


TIMED_RULES: Final[dict[str, Rule]] = {
    "cancel": Rule.DOUBTFUL,  # what is not found the second time may have been cancelled by the first
    "move": Rule.DOUBTFUL,  # what is not found the second time may have been moved by the first, and delivered
    "due_between": Rule.FREELY,
    "shards": Rule.FREELY,
    "stop_shard": Rule.SAFELY,
    "start_shard": Rule.SAFELY,
    "schedule": Rule.SAFELY,
    "schedules": Rule.FREELY,
    "unschedule": Rule.DOUBTFUL,
}


LOG_RULES: Final[dict[str, Rule]] = {
    "create_group": Rule.SAFELY,
    "groups": Rule.FREELY,
    "show_group": Rule.FREELY,
    "change_group": Rule.SAFELY,
    "seek_group": Rule.SURELY,  # would also go back over what was acked since
    "delete_group": Rule.SURELY,  # would also delete a new group of that name
    "merge_dead": Rule.SURELY,  # the count of the first attempt would be lost
    "purge_dead": Rule.SURELY,  # would also purge what came since
    "extents": Rule.FREELY,
    "routes": Rule.FREELY,
    "append": Rule.SURELY,
    "append_named": Rule.SAFELY,  # by its producer: recognised when it comes again
    "pull": Rule.FREELY,
    "settle": Rule.DOUBTFUL,
    "stream": Rule.FREELY,
}


class Patience(msgspec.Struct, frozen=True):
    total_s: float = 30.0  # from the first attempt on; a node restarts in less
    first_s: float = 0.05
    most_s: float = 2.0
    retry_unknown_puts: bool = False  # puts without a key, too: they may then be added twice

    def pause_s(self, attempt: int, asked_s: float | None, chance: Chance) -> float:
        """How long to wait after the attempt of that number (from 0)."""
        longest = min(self.most_s, self.first_s * 2.0 ** min(attempt, 30))
        return max(longest * (0.5 + chance.random() / 2), asked_s or 0.0)

    def rule(self, operation: str) -> Rule:
        if self.retry_unknown_puts and operation in ("put", "put_block", "append"):
            return Rule.SAFELY
        special = COUNTER_RULES.get(operation) or TIMED_RULES.get(operation) or LOG_RULES.get(operation)
        return special or RULES[operation]


def may_repeat(rule: Rule, error: CapelliniError) -> bool:
    return isinstance(error, Unavailable) or (isinstance(error, Unknown) and rule is not Rule.SURELY)


def doubted(rule: Rule, error: CapelliniError) -> bool:
    """An earlier attempt may have been done, and now there is this error: is it to be told as Unknown? Not where
    nothing was to be done; and what a repetition learned of something that can be done twice is the truth, unless it
    was not let in at all."""
    if isinstance(error, Unknown) or rule is Rule.FREELY:
        return False
    return rule is not Rule.SAFELY or isinstance(error, Unavailable | Paused)


class Attempts:
    """One call's attempts: `failed` decides after each error whether to wait and try again, or raises."""

    def __init__(
        self,
        rule: Rule,
        patience: Patience,
        clock: Clock,
        chance: Chance,
        closed: Callable[[], bool],
        began_s: float | None = None,
    ) -> None:
        self._rule, self._patience, self._clock, self._chance, self._closed = rule, patience, clock, chance, closed
        self._until_s = (clock.elapsed_s() if began_s is None else began_s) + patience.total_s
        self._made = 0
        self.lost = False  # an attempt may have been done

    async def failed(self, error: CapelliniError) -> None:
        """Waits if there is to be another attempt; else raises what is true of all attempts together."""
        self.lost = self.lost or isinstance(error, Unknown)
        pause_s = self._patience.pause_s(self._made, error.retry_after_s, self._chance)
        self._made += 1
        late = self._clock.elapsed_s() + pause_s > self._until_s
        if late or self._closed() or not may_repeat(self._rule, error):
            if self.lost and doubted(self._rule, error):
                raise Unknown(f"an earlier attempt may have been done; the last one failed: {error.says}") from error
            if self._closed() and isinstance(error, Unavailable):
                raise Closed(error.says) from error
            raise error
        await self._clock.sleep(pause_s)


class PatientService(Relay):
    def __init__(self, behind: Service, patience: Patience, clock: Clock, chance: Chance) -> None:
        self.behind, self.patience, self._clock, self._chance = behind, patience, clock, chance
        self._closed = False

    def attempts(self, operation: str, began_s: float | None = None) -> Attempts:
        """Of a call that began then, or begins now."""
        rule = self.patience.rule(operation)
        return Attempts(rule, self.patience, self._clock, self._chance, lambda: self._closed, began_s)

    async def call(self, operation: str, do: Callable[[Service], Awaitable[R]]) -> R:
        began_s, attempts = self._clock.elapsed_s(), None
        while True:
            try:
                return await do(self.behind)
            except CapelliniError as error:
                attempts = attempts or self.attempts(operation, began_s)
                await attempts.failed(error)

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        keyed = all(message.key is not None for message in messages)
        return await self._items("put_keyed" if keyed else "put", messages, lambda some: self.behind.put(name, some))

    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]:
        return await self._items("ack", receipts, lambda some: self.behind.ack(name, some))

    async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]:
        return await self._items("nack", items, lambda some: self.behind.nack(name, some))

    async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        return await self._items("extend", items, lambda some: self.behind.extend(name, some))

    async def cancel(self, name: str, ids: Sequence[str]) -> list[Done | Problem]:
        return await self._items("cancel", ids, lambda some: timed_of(self.behind).cancel(name, some))

    async def move(self, name: str, items: Sequence[MoveItem]) -> list[Done | Problem]:
        return await self._items("move", items, lambda some: timed_of(self.behind).move(name, some))

    async def settle(self, queue: str, group: str, items: Sequence[Settle]) -> list[Settled | Problem]:
        """Of a log queue. A problem: nothing of the item was settled, as far as is known. One that was partly stale
        was not settled before, so that its answer says what is so."""

        async def do(some: Sequence[Settle]) -> list[Settled | Problem]:
            return [_answered(each) for each in await log_of(self.behind).settle(queue, group, some)]

        return await self._items("settle", items, do)

    async def _items(
        self, operation: str, items: Sequence[I], do: Callable[[Sequence[I]], Awaitable[list[V | Problem]]]
    ) -> list[V | Problem]:
        """A call with a result per item: those that failed and may be repeated go again, the others are settled."""
        attempts = self.attempts(operation)
        rule = self.patience.rule(operation)
        results: dict[int, V | Problem] = {}
        lost: set[int] = set()  # items of which an attempt may have been done
        left = list(range(len(items)))
        while True:
            again: CapelliniError
            try:
                answers = await do([items[index] for index in left])
            except CapelliniError as error:
                if isinstance(error, Unknown):
                    lost.update(left)
                if not may_repeat(rule, error) and len(left) == len(items) and not lost:
                    raise
                for index in left:
                    results[index] = _settled(Problem.of(error), index in lost, rule)
                again = error
            else:
                repeat: list[int] = []
                worst: CapelliniError | None = None
                for index, answer in zip(left, answers, strict=True):
                    results[index] = answer
                    if isinstance(answer, Problem):
                        found = answer.raised()
                        if isinstance(found, Unknown):
                            lost.add(index)
                        results[index] = _settled(answer, index in lost, rule)
                        if may_repeat(rule, found):
                            repeat.append(index)
                            worst = found
                if worst is None:
                    return [results[index] for index in range(len(items))]
                left, again = repeat, worst
            try:
                await attempts.failed(again)
            except CapelliniError:
                if len(left) == len(items) and all(isinstance(result, Problem) for result in results.values()):
                    raise  # nothing is known of any item beyond this
                return [results[index] for index in range(len(items))]

    async def ack_parcels(self, name: str, acks: Sequence[ParcelAck]) -> Ranges:
        ranges, doubtful = await self.settle_acks(name, acks)
        if doubtful and any(_total(asked.ranges) != _total(done) for asked, done in zip(acks, ranges, strict=True)):
            raise Unknown("an answer was lost; some of these messages may have been acked by that attempt")
        return ranges

    async def settle_acks(self, name: str, acks: Sequence[ParcelAck]) -> tuple[Ranges, bool]:
        """The ranges that were acked, and whether an answer was lost: then what is missing is Unknown, not Stale."""
        began_s, attempts = self._clock.elapsed_s(), None
        while True:
            try:
                return await self.behind.ack_parcels(name, acks), attempts is not None and attempts.lost
            except CapelliniError as error:
                attempts = attempts or self.attempts("ack_parcels", began_s)
                await attempts.failed(error)

    async def close(self) -> None:
        self._closed = True  # what fails from now on is not repeated
        await self.behind.close()


STALE_SAYS: Final = "the delivery is no longer valid: the message was acked, nacked or purged, or its visibility ended"
_LOST_THEN_STALE: Final = "an answer was lost, and now the receipt is stale: it may have been done by that attempt"


def _answered(settled: Settled) -> Settled | Problem:
    """What does not fit is of a queue that was purged or made anew since: the client altered nothing."""
    if not settled.error and settled.ranges:
        return settled
    stale = settled.error in ("", Invalid.name)
    return Problem(Stale.name, STALE_SAYS) if stale else Problem(settled.error, settled.says)


def _total(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(count for _, count in ranges)


def _settled(problem: Problem, lost: bool, rule: Rule) -> Problem:
    """The problem of an item, in the light of its earlier attempts."""
    if not lost or not doubted(rule, problem.raised()):
        return problem
    if problem.error == Stale.name:
        return Problem(Unknown.name, _LOST_THEN_STALE)
    return Problem(Unknown.name, f"an earlier attempt may have been done; the last one failed: {problem.says}")
