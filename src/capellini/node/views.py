"""Looking at work queues: statistics, messages, dead letters, buckets and pointers. Nothing is changed.

broker ──▶ views ──▶ Looking (bounded reads of one queue)
                └──▶ the catalog, where one queue's answer lies in another: dead letters, and what moved
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from capellini.model.errors import Invalid, NotFound
from capellini.model.message import MAX_BATCH, Peeked
from capellini.model.service import BucketView, MessageView, PointersView, Statistics
from capellini.node.calls import batch, in_range
from capellini.node.statistics import with_totals
from capellini.queues.catalog import QueueRecord
from capellini.queues.work.looking import Looking

if TYPE_CHECKING:
    from capellini.node.broker import Broker


class Views:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._catalog = broker.catalog
        self.repaired_by: Callable[[str], Awaitable[str | None]] | None = None  # set by maintenance

    async def _looking(self, name: str) -> Looking:
        return self._into(await self._catalog.live(name))

    def _into(self, record: QueueRecord) -> Looking:
        return Looking(self._broker.opened(record).place)

    async def statistics(self, name: str) -> Statistics:
        broker = self._broker
        record = await self._catalog.live(name)
        counted = await self._into(record).count()
        dead, dead_exact = await self.dead_count(record)
        oldest, now_s = counted.oldest_put_ms, broker.clock.elapsed_s()
        exact = ("ready", "in_flight", "delayed", "oldest_age_s") if counted.exact else ("in_flight", "oldest_age_s")
        found = Statistics(
            ready=counted.ready,
            in_flight=counted.in_flight,
            delayed=counted.delayed,
            dead=dead,
            oldest_age_s=None if oldest is None else max(0.0, broker.clock.now_s() - oldest / 1000),
            puts_per_s=broker.rates.per_s(name, "puts", now_s),
            gets_per_s=broker.rates.per_s(name, "gets", now_s),
            acks_per_s=broker.rates.per_s(name, "acks", now_s),
            exact=(*exact, "dead") if dead_exact else exact,
        )
        if broker.totals is None:
            return found
        totals, whole = await broker.totals.totals(name, record.generation)
        return with_totals(found, totals, exact=whole and broker.store.alone)

    async def dead_count(self, record: QueueRecord) -> tuple[int, bool]:
        """How many messages lie in a queue's dead-letter queue, whichever queue they came from, and whether that is
        exact. Counted from states: no body is read."""
        return await self.count_in(record.options.dead_letters) if record.options.dead_letters else (0, True)

    async def count_in(self, name: str) -> tuple[int, bool]:
        """How many messages a queue has; none if there is no such queue."""
        try:
            counted = await (await self._looking(name)).count()
        except NotFound:
            return 0, True
        return counted.ready + counted.in_flight + counted.delayed, counted.exact

    async def peek(self, name: str, count: int, after: str) -> list[Peeked]:
        in_range("count", count, 1, MAX_BATCH)
        return await (await self._looking(name)).peek(count, id_of(after))

    async def dead(self, name: str, count: int, after: str) -> list[Peeked]:
        return await self.letters_of(await self.letters(name), name, count, after)

    async def letters_of(self, letters: QueueRecord, origin: str, count: int, after: str) -> list[Peeked]:
        """Dead letters that came from there."""
        in_range("count", count, 1, MAX_BATCH)
        return await self._into(letters).peek(count, id_of(after), origin=origin)

    async def letters(self, name: str) -> QueueRecord:
        """The queue that holds the dead letters of `name`."""
        record = await self._catalog.live(name)
        if not record.options.dead_letters:
            raise NotFound(f"{name} has no dead letters: set its options delivery_limit and dead_letters first")
        return await self._catalog.live(record.options.dead_letters)

    async def buckets(self, name: str, limit: int) -> list[BucketView]:
        in_range("limit", limit, 1, 1_000)
        return await (await self._looking(name)).buckets(limit)

    async def pointers(self, name: str) -> PointersView:
        looking = await self._looking(name)
        repaired_by = await self.repaired_by(name) if self.repaired_by is not None else None
        return await looking.pointers(repaired_by)

    async def message(self, name: str, id: str) -> MessageView:
        return await (await self._looking(name)).message(id_of(id, required=True), self._generation_of)

    async def _generation_of(self, name: str) -> int | None:
        try:
            return (await self._catalog.live(name)).generation
        except NotFound:
            return None


def letter_ids(texts: Sequence[str]) -> list[int]:
    """Raises Invalid for what is no id, or too many of them."""
    batch("ids", len(texts))
    return [id_of(each, required=True) for each in texts]


def id_of(text: str, required: bool = False) -> int:
    if not text and not required:
        return -1
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Invalid(f"{text[:40]!r} is not a message id")
    return int(text)
