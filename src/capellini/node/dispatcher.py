"""The service as a node offers it: each call goes to whoever knows the queue's kind.

Which kind a queue is says the catalog, from memory most of the time. What all kinds share (queues themselves, dead
letters, which lie in work queues) is the broker's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capellini.model.counters import CounterService
from capellini.model.errors import Conflict, Invalid, WrongKind
from capellini.model.log import AT, LogService, split_name
from capellini.model.message import Delivery, Entry, NewMessage, Peeked
from capellini.model.options import WITH_BODIES
from capellini.model.scheduling import NewSchedule, ScheduleInfo, TimedService
from capellini.model.service import (
    BucketView,
    Done,
    ExtendItem,
    MessageView,
    NackItem,
    Parcel,
    ParcelAck,
    PointersView,
    Problem,
    Put,
    QueueInfo,
    Service,
    Statistics,
)
from capellini.model.timed import DueMessage, MoveItem, ShardView
from capellini.node import broker as work
from capellini.node import log, timed
from capellini.node.bodies import Bodies
from capellini.node.broker import Broker
from capellini.node.log import LogBroker
from capellini.node.timed import TimedBroker
from capellini.queues.schedules import Schedules
from capellini.queues.work.block import block_of, check


class Dispatcher(Service):
    def __init__(self, of_work: Broker, of_timed: TimedBroker, of_log: LogBroker) -> None:
        self._work, self._timed, self._log = of_work, of_timed, of_log
        self.store = of_work.store  # whose rows are handed out, see api/rows.py
        self.schedules = Schedules(
            of_work.store, of_work.clock, of_work.random, self.kind_of, self.put, of_timed.cancel
        )
        self.timed: TimedService = _TimedCalls(of_timed, self.schedules)
        self.log: LogService = of_log
        self._bodies = Bodies(of_work.catalog, of_log.keeper)
        of_work.moved_elsewhere = self._put_moved

    @property
    def counters(self) -> CounterService | None:  # type: ignore[override]  # the broker gets its counters later
        return self._work.counters

    async def kind_of(self, name: str) -> str:
        return (await self._work.catalog.live(name)).kind

    async def _of(self, name: str) -> Broker | TimedBroker | LogBroker:
        """Who serves a queue; QUEUE@GROUP is of log queues alone, which refuse other kinds."""
        return self._log if AT in name else self._served(await self.kind_of(name))

    def _served(self, kind: str) -> Broker | TimedBroker | LogBroker:
        return self._timed if kind == timed.KIND else self._log if kind == log.KIND else self._work

    async def _put_moved(self, target: str, key: str, entry: Entry) -> None:
        """A message moves into a queue that is no work queue."""
        served = await self._of(target)
        assert not isinstance(served, Broker)
        await served.put_moved(target, key, entry)

    # Queues

    async def create(self, name: str, kind: str = "work", options: Mapping[str, Any] | None = None) -> QueueInfo:
        await self._check_letters(options or {})
        return self._soon(await self._work.create(name, kind, options))

    async def change(self, name: str, options: Mapping[str, Any]) -> QueueInfo:
        await self._check_letters(options)
        return self._soon(await self._work.change(name, options))

    def _soon(self, info: QueueInfo) -> QueueInfo:
        """Its shards or extents are to be worked at once, not at the next turn."""
        if info.kind == timed.KIND:
            self._timed.keeper.soon.set()
        elif info.kind == log.KIND:
            self._log.keeper.soon.set()
        return info

    async def _check_letters(self, options: Mapping[str, Any]) -> None:
        """Dead letters lie in work queues: they are read and moved back one after another."""
        target = options.get("dead_letters")
        if isinstance(target, str) and target:
            found = await self._work.queues(target, limit=1)
            if found and found[0].name == target and found[0].kind != work.KIND:
                raise Conflict(f"dead_letters names {target}, a {found[0].kind} queue: name a work queue")

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[QueueInfo]:
        return await self._work.queues(prefix, after, limit)

    async def show(self, name: str) -> QueueInfo:
        return await self._work.show(name)

    async def body_limit(self, name: str) -> int:
        return await self._work.body_limit(name)

    async def pause(self, name: str, puts: bool | None = None, gets: bool | None = None) -> QueueInfo:
        return await self._work.pause(name, puts, gets)

    async def purge(self, name: str) -> QueueInfo:
        return self._soon(await self._work.purge(name))

    async def delete(self, name: str) -> None:
        await self._work.delete(name)

    async def dead(self, name: str, count: int = 100, after: str = "") -> list[Peeked]:
        if isinstance(served := await self._of(name), LogBroker):
            return await served.dead(name, count, after)
        return await self._work.dead(name, count, after)

    async def redrive(self, name: str, count: int | None = None, ids: Sequence[str] | None = None) -> int:
        if isinstance(served := await self._of(name), LogBroker):
            return await served.merge_dead(*split_name(name), count, ids)
        return await self._work.redrive(name, count, ids)

    # By kind

    async def statistics(self, name: str) -> Statistics:
        return await (await self._of(name)).statistics(name)

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        if AT in name:
            return await self._log.put(name, messages)
        record = await self._work.catalog.live(name)
        results = await self._served(record.kind).put(name, messages)
        if record.options.journal == WITH_BODIES:
            return await self._bodies.tell(record, messages, results)
        return results

    async def get(
        self, name: str, count: int = 1, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[Delivery]:
        return await (await self._of(name)).get(name, count, wait_s, visibility_s)

    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]:
        return await (await self._of(name)).ack(name, receipts)

    async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]:
        return await (await self._of(name)).nack(name, items)

    async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        return await (await self._of(name)).extend(name, items)

    async def peek(self, name: str, count: int = 10, after: str = "") -> list[Peeked]:
        return await (await self._of(name)).peek(name, count, after)

    # Of work queues alone: the broker refuses others as WrongKind

    async def buckets(self, name: str, limit: int = 100) -> list[BucketView]:
        return await self._only_work(name).buckets(name, limit)

    async def pointers(self, name: str) -> PointersView:
        return await self._only_work(name).pointers(name)

    async def move_repair(self, name: str, bucket: int) -> PointersView:
        stands = (await self._only_work(name).pointers(name)).repair
        if bucket > stands:
            raise Invalid(f"repair stands at bucket {stands}, and can be moved back only, not on to {bucket}")
        return await self._only_work(name).move_repair(name, bucket)

    async def message(self, name: str, id: str) -> MessageView:
        return await self._only_work(name).message(name, id)

    async def put_block(self, name: str, entries: bytes) -> list[tuple[int, int]]:
        served = self._only_work(name)
        record = await self._work.catalog.live(name)  # first: what cannot be known after the put would seem to undo it
        runs = await served.put_block(name, entries)
        if record.options.journal == WITH_BODIES:
            ids = [Put(str(id)) for first, count in runs for id in range(first, first + count)]
            packed = check(entries, record.options.body_limit)
            messages = [NewMessage(each.body, each.attributes or {}) for each in block_of(0, packed, 0).read()]
            for answer in await self._bodies.tell(record, messages, ids):
                if isinstance(answer, Problem):
                    raise answer.raised()
        return runs

    async def take(self, name: str, count: int, wait_s: float = 0.0, visibility_s: float | None = None) -> list[Parcel]:
        return await self._only_work(name).take(name, count, wait_s, visibility_s)

    async def ack_parcels(self, name: str, acks: Sequence[ParcelAck]) -> list[list[tuple[int, int]]]:
        return await self._only_work(name).ack_parcels(name, acks)

    def _only_work(self, name: str) -> Broker:
        if AT in name:
            raise WrongKind(f"{name} names a group of a log queue: this is for work queues")
        return self._work

    async def close(self) -> None:
        await self._work.close()


class _TimedCalls(TimedService):
    """What timed queues have beyond the calls of every queue, and schedules."""

    def __init__(self, timed: TimedBroker, schedules: Schedules) -> None:
        self._timed = timed
        self._schedules = schedules

    async def cancel(self, name: str, ids: Sequence[str]) -> list[Done | Problem]:
        return await self._timed.cancel(name, ids)

    async def move(self, name: str, items: Sequence[MoveItem]) -> list[Done | Problem]:
        return await self._timed.move(name, items)

    async def due_between(
        self, name: str, from_ms: int, to_ms: int, count: int = 100, after: str = ""
    ) -> list[DueMessage]:
        return await self._timed.due_between(name, from_ms, to_ms, count, after)

    async def shards(self, name: str) -> list[ShardView]:
        return await self._timed.shards(name)

    async def stop_shard(self, name: str, shard: int) -> ShardView:
        return await self._timed.stop_shard(name, shard)

    async def start_shard(self, name: str, shard: int) -> ShardView:
        return await self._timed.start_shard(name, shard)

    async def schedule(self, schedule: NewSchedule) -> ScheduleInfo:
        return await self._schedules.add(schedule)

    async def schedules(self, prefix: str = "") -> list[ScheduleInfo]:
        return await self._schedules.listed(prefix)

    async def unschedule(self, name: str) -> None:
        await self._schedules.remove(name)
