"""Log queues as this process offers them: finds the queue, checks the request, hands it to the keeper's queue.

    Dispatcher ─┬─▶ Broker        work queues, and what all kinds share
                ├─▶ TimedBroker   timed queues
                └─▶ LogBroker     log queues: the same calls for QUEUE@GROUP, and those of LogService

Dead letters of a group lie in a work queue of their own, and are looked at and moved by the work queues' broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from capellini.model import chunks
from capellini.model.errors import CapelliniError, Invalid, NotFound, WrongKind
from capellini.model.log import (
    AT,
    DEFAULT_GROUP,
    EARLIEST,
    Appended,
    ExtentView,
    GroupInfo,
    GroupLag,
    LogParcel,
    LogService,
    Routes,
    Settle,
    Settled,
    group_name,
    split_name,
)
from capellini.model.message import (
    MAX_BATCH,
    MAX_DELAY_S,
    MAX_VISIBILITY_S,
    MAX_WAIT_S,
    Delivery,
    Entry,
    NewMessage,
    Peeked,
)
from capellini.model.options import check_own_name, is_internal
from capellini.model.service import Done, ExtendItem, NackItem, Problem, Put, Statistics
from capellini.node.broker import Broker
from capellini.node.calls import batch, good_ones, in_range, with_living
from capellini.node.delays import Delays
from capellini.node.statistics import with_totals
from capellini.node.views import letter_ids
from capellini.queues.catalog import QueueRecord
from capellini.queues.log.groups import Group, dead_letters_of, wants
from capellini.queues.log.keeper import LogKeeper
from capellini.queues.log.looking import place_of
from capellini.queues.log.parcels import check_unaddressed, check_unaddressed_chunk
from capellini.queues.log.queue import GET_BYTES, LogQueue, deliveries_of
from capellini.queues.log.turns import Turns
from capellini.queues.work.place import Gone

T = TypeVar("T")
KIND: Final = "log"
MAX_PULL: Final = 100_000  # messages of one pull; bytes bound it long before
MAX_PULL_BYTES: Final = 16 * 1024 * 1024
MERGE_MOST: Final = 1_000_000_000
_ENTRY_BYTES: Final = 8  # around a body, about: as blocks of work queues count it

Act = Callable[[QueueRecord, LogQueue], Awaitable[T]]


class LogBroker(LogService):
    """`address_of`: where a node is reached, as far as is known; of an empty name, this one."""

    def __init__(self, broker: Broker, keeper: LogKeeper, delays: Delays, address_of: Callable[[str], str]) -> None:
        self._broker = broker
        self._catalog, self._clock = broker.catalog, broker.clock
        self._delays = delays
        self._address_of = address_of
        self.keeper = keeper
        self._turns = Turns()

    async def _with(self, name: str, act: Act[T]) -> T:
        def opened(record: QueueRecord) -> Awaitable[T]:
            if record.kind != KIND:
                raise WrongKind(f"queue {record.name} is a {record.kind} queue: this is for {KIND} queues")
            return act(record, self.keeper.queue(record))

        return await with_living(self._catalog, self._clock, name, opened, lambda record: None)

    async def _of_group(self, name: str, group: str, look: Callable[[LogQueue, Group], Awaitable[T]]) -> T:
        async def act(record: QueueRecord, queue: LogQueue) -> T:
            await queue.ready()
            return await look(queue, await queue.groups.live(group))

        return await self._with(name, act)

    def _rate(self, name: str, what: str, count: int) -> None:
        self._broker.rates.add(name, what, count, self._clock.elapsed_s())

    # Putting

    async def append(self, queue: str, chunk: bytes) -> Appended:
        check_own_name(queue)
        head = chunks.head_of(chunk)
        check_unaddressed_chunk(chunk, head)
        producer = head.producer
        turn = None if producer == chunks.NO_PRODUCER else self._turns.enter((queue, producer))

        async def act(record: QueueRecord, opened: LogQueue) -> Appended:
            done = await opened.append(chunk, turn=turn)
            if not done.duplicate:
                self._counted_puts(record, done.count, len(chunk))
            return done

        try:
            return await self._with(queue, act)
        finally:
            if turn is not None:
                turn.leave()

    def _counted_puts(self, record: QueueRecord, count: int, size: int) -> None:
        self._rate(record.name, "puts", count)
        if self._broker.totals is not None:
            self._broker.totals.put(record.name, record.generation, count, size)

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        batch("messages", len(messages))
        queue_name, group = _without_group(name)
        check_own_name(queue_name)
        if group is not None:
            raise Invalid(f"a put is for all groups of a queue: name {queue_name} alone")
        answers: dict[int, Put | Problem] = {}  # kept if the queue is purged before all have theirs: those were put

        async def act(record: QueueRecord, queue: LogQueue) -> None:
            record.require_puts()
            left = [index for index in range(len(messages)) if index not in answers]
            wanted = [messages[index] for index in left]

            def wrong(message: NewMessage) -> Problem | None:
                try:
                    self._delays.check(message, record.options.body_limit)
                    check_unaddressed(message.attributes)
                except Invalid as error:
                    return Problem.of(error)
                return None

            results = await good_ones(wanted, wrong, lambda good: self._delays.put(record, good, queue.put))
            fresh = [
                len(message.body) + _ENTRY_BYTES
                for message, result in zip(wanted, results, strict=True)
                if isinstance(result, Put) and not result.duplicate
            ]
            if fresh:
                self._counted_puts(record, len(fresh), sum(fresh))
            for index, result in zip(left, results, strict=True):
                if not isinstance(result, Problem) or result.error != Gone.name:
                    answers[index] = result
            if len(answers) < len(messages):
                raise Gone("this queue was deleted or purged")

        try:
            await self._with(queue_name, act)
        except CapelliniError as error:
            if not answers:
                raise
            return [answers.get(index, Problem.of(error)) for index in range(len(messages))]
        return [answers[index] for index in range(len(messages))]

    async def put_moved(self, target: str, key: str, entry: Entry) -> None:
        """A message moves in; into QUEUE@GROUP: for that group alone."""
        name, _, group = target.partition(AT)

        async def act(record: QueueRecord, queue: LogQueue) -> None:
            await queue.put_moved(key, entry, group)
            if self._broker.totals is not None:
                self._broker.totals.moved_in(name, record.generation, len(entry.body) + _ENTRY_BYTES)

        await self._with(name, act)

    # Getting

    async def pull(
        self, queue: str, group: str, count: int, most_bytes: int, wait_s: float, visibility_s: float | None = None
    ) -> list[LogParcel]:
        return (await self._pulled(queue, group, count, most_bytes, wait_s, visibility_s))[1]

    async def _pulled(
        self, queue: str, group: str, count: int, most_bytes: int, wait_s: float, visibility_s: float | None
    ) -> tuple[int, list[LogParcel]]:
        """With the generation of the queue that they are of."""
        in_range("count", count, 1, MAX_PULL)
        in_range("most_bytes", most_bytes, 1, MAX_PULL_BYTES)
        in_range("wait_s", wait_s, 0, MAX_WAIT_S)
        if visibility_s is not None:
            in_range("visibility_s", visibility_s, 0.1, MAX_VISIBILITY_S)
        deadline_s = self._clock.elapsed_s() + wait_s

        async def act(record: QueueRecord, opened: LogQueue) -> tuple[int, list[LogParcel]]:
            left_s = max(0.0, deadline_s - self._clock.elapsed_s())
            parcels = await opened.pull(group, count, most_bytes, left_s, visibility_s)
            if parcels:
                self._rate(queue, "gets", sum([parcel.count for parcel in parcels]))
                if self._broker.totals is not None:
                    self._broker.totals.parcelled(queue, record.generation, parcels)
            return record.generation, parcels

        return await self._with(queue, act)

    async def get(self, name: str, count: int, wait_s: float, visibility_s: float | None) -> list[Delivery]:
        in_range("count", count, 1, MAX_BATCH)
        queue, group = split_name(name)
        generation, parcels = await self._pulled(queue, group, count, GET_BYTES, wait_s, visibility_s)
        return [delivery for parcel in parcels for delivery in deliveries_of(generation, parcel)]

    # Settling

    async def settle(self, queue: str, group: str, items: Sequence[Settle]) -> list[Settled]:
        async def act(record: QueueRecord, opened: LogQueue) -> list[Settled]:
            results = await opened.settle(group, items)
            sums = {"ack": 0, "nack": 0, "extend": 0}
            for item, result in zip(items, results, strict=True):
                if item.verb in sums:
                    sums[item.verb] += sum([count for _, count in result.ranges])
            self._counted_settles(record, sums["ack"], sums["nack"])
            return results

        return await self._with(queue, act)

    def _counted_settles(self, record: QueueRecord, acks: int, nacks: int) -> None:
        if acks:
            self._rate(record.name, "acks", acks)
        if self._broker.totals is not None:
            if acks:
                self._broker.totals.acked(record.name, record.generation, acks, ())
            if nacks:
                self._broker.totals.nacked(record.name, record.generation, nacks)

    async def _singly(
        self, name: str, act: Callable[[LogQueue, str], Awaitable[list[Done | Problem]]], counts: str = ""
    ) -> list[Done | Problem]:
        queue_name, group = split_name(name)

        async def done(record: QueueRecord, queue: LogQueue) -> list[Done | Problem]:
            results = await act(queue, group)
            count = sum(isinstance(result, Done) for result in results)
            self._counted_settles(record, count if counts == "acks" else 0, count if counts == "nacks" else 0)
            return results

        return await self._with(queue_name, done)

    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]:
        batch("receipts", len(receipts))
        return await self._singly(name, lambda queue, group: queue.ack(group, receipts), "acks")

    async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]:
        batch("items", len(items))

        def wrong(item: NackItem) -> str | None:
            good = item.delay_s is None or 0 <= item.delay_s <= MAX_DELAY_S
            return None if good else f"delay_s goes from 0 to {MAX_DELAY_S:.15g}, not {item.delay_s!r}"

        return await self._singly(
            name, lambda queue, group: good_ones(items, wrong, lambda good: queue.nack(group, good)), "nacks"
        )

    async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        batch("items", len(items))

        def wrong(item: ExtendItem) -> str | None:
            good = 0.1 <= item.visibility_s <= MAX_VISIBILITY_S
            return None if good else f"visibility_s goes from 0.1 to {MAX_VISIBILITY_S:.15g}, not {item.visibility_s!r}"

        return await self._singly(
            name, lambda queue, group: good_ones(items, wrong, lambda good: queue.extend(group, good))
        )

    # Groups

    async def create_group(
        self, queue: str, group: str, start: str | float = EARLIEST, options: Mapping[str, Any] | None = None
    ) -> GroupInfo:
        return await self._with(queue, lambda _, opened: opened.create_group(group, start, options or {}))

    async def groups(self, queue: str) -> list[GroupInfo]:
        async def act(record: QueueRecord, opened: LogQueue) -> list[GroupInfo]:
            return [opened.groups.info(group) for group in await opened.groups.all()]

        return await self._with(queue, act)

    async def show_group(self, queue: str, group: str) -> tuple[GroupInfo, GroupLag]:
        async def act(opened: LogQueue, found: Group) -> tuple[GroupInfo, GroupLag]:
            return opened.groups.info(found), await opened.looking.lag(found)

        return await self._of_group(queue, group, act)

    async def change_group(self, queue: str, group: str, options: Mapping[str, Any]) -> GroupInfo:
        return await self._with(queue, lambda _, opened: opened.change_group(group, options))

    async def seek_group(self, queue: str, group: str, to: str | float) -> GroupInfo:
        return await self._with(queue, lambda _, opened: opened.seek_group(group, to))

    async def delete_group(self, queue: str, group: str) -> None:
        await self._with(queue, lambda _, opened: opened.groups.delete(group))

    # Dead letters

    async def _letters(self, queue: str, group: str) -> QueueRecord | None:
        """The queue that has the dead letters of a group; one that never had any has none. Raises NotFound."""
        limit = await self._of_group(queue, group, _delivery_limit)
        try:
            return await self._catalog.live(dead_letters_of(queue, group))
        except NotFound:
            if limit:
                return None
            raise NotFound(f"{queue}{AT}{group} has no dead letters: set its option delivery_limit first") from None

    async def dead(self, name: str, count: int, after: str) -> list[Peeked]:
        queue, group = split_name(name)
        letters = await self._letters(queue, group)
        if letters is None:
            return []
        return await self._broker.views.letters_of(letters, group_name(queue, group), count, after)

    async def merge_dead(
        self, queue: str, group: str, count: int | None = None, ids: Sequence[str] | None = None
    ) -> int:
        if count is not None:
            in_range("count", count, 1, MERGE_MOST)
        record = await self._letters(queue, group)
        if record is None:
            return 0
        letters = self._broker.opened(record)
        if ids is not None:
            return await letters.redrive_these(group_name(queue, group), letter_ids(ids))
        return await letters.redrive(group_name(queue, group), count)

    async def purge_dead(self, queue: str, group: str) -> None:
        letters = await self._letters(queue, group)
        if letters is not None:
            await self._broker.purge(letters.name)

    # Looking

    async def peek(self, name: str, count: int, after: str) -> list[Peeked]:
        """Without a group, of a queue of the nodes' own, or of one whose default group was never used: all that it
        holds. No group is made for a look."""
        in_range("count", count, 1, MAX_BATCH)
        queue, group = split_name(name)
        place = place_of(after) if after else None
        if AT not in name and (is_internal(queue) or DEFAULT_GROUP not in await self._names(queue)):
            return await self._with(queue, lambda _, opened: opened.peek_all(count, place))
        return await self._of_group(queue, group, lambda opened, found: opened.looking.peek(found, count, place))

    async def extents(self, queue: str) -> list[ExtentView]:
        async def act(record: QueueRecord, opened: LogQueue) -> list[ExtentView]:
            await opened.ready()
            return await opened.looking.extents(opened.replicas)

        return await self._with(queue, act)

    async def routes(self, queue: str, group: str | None = None) -> Routes:
        async def act(record: QueueRecord, opened: LogQueue) -> Routes:
            await opened.ready()
            writers = sorted({extent.node for extent in opened.extents.known() if not extent.sealed})
            readers: set[str] = set()
            if group is not None:
                found = await opened.groups.used(group)
                await opened.readers.ensure(found)
                readers = opened.readers.nodes(found)
                if opened.readers.here(found):
                    readers.add(self._broker.node_name)
            return Routes(self._addresses(writers), self._addresses(sorted(readers)), self._address_of(""))

        return await self._with(queue, act)

    def _addresses(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return tuple(address for node in nodes if (address := self._address_of(node)))

    async def statistics(self, name: str) -> Statistics:
        """Of one group; of a queue without one, of all its groups together: a message waits once for each."""
        queue, group = _without_group(name)
        record = await self._catalog.live(queue)
        lags = [await self._lag_of(queue, one) for one in ([group] if group else await self._names(queue))]
        ages = [lag.oldest_age_s for lag in lags if lag.oldest_age_s is not None]
        now_s, rates = self._clock.elapsed_s(), self._broker.rates
        dead, dead_exact = await self._dead_count(queue, [group] if group else await self._names(queue))
        waiting, waiting_exact = await self._delays.delaying.count(record)
        sure = ("ready", "in_flight", "oldest_age_s", *(("delayed",) if waiting_exact else ()))
        exact = sure if all(lag.exact for lag in lags) else ()
        found = Statistics(
            ready=sum(lag.ready for lag in lags),
            in_flight=sum(lag.in_flight for lag in lags),
            delayed=sum(lag.delayed for lag in lags) + waiting,
            dead=dead,
            oldest_age_s=max(ages, default=None),
            puts_per_s=rates.per_s(queue, "puts", now_s),
            gets_per_s=rates.per_s(queue, "gets", now_s),
            acks_per_s=rates.per_s(queue, "acks", now_s),
            exact=(*exact, "dead") if dead_exact else exact,
        )
        if self._broker.totals is None:
            return found
        totals, whole = await self._broker.totals.totals(queue, record.generation)
        return with_totals(found, totals, exact=whole and self._broker.store.alone)

    async def _names(self, queue: str) -> list[str]:
        return [info.name for info in await self.groups(queue)]

    async def _lag_of(self, queue: str, group: str) -> GroupLag:
        return await self._of_group(queue, group, lambda opened, found: opened.looking.lag(found))

    async def _dead_count(self, queue: str, groups: Sequence[str]) -> tuple[int, bool]:
        total, exact = 0, True
        for group in groups:
            count, sure = await self._broker.views.count_in(dead_letters_of(queue, group))
            total, exact = total + count, exact and sure
        return total, exact


async def _delivery_limit(queue: LogQueue, group: Group) -> int:
    return wants(queue.place, group.options).delivery_limit


def _without_group(name: str) -> tuple[str, str | None]:
    """Queue and group of QUEUE or QUEUE@GROUP. Raises Invalid."""
    queue, group = split_name(name)
    return queue, group if AT in name else None
