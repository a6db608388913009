"""Statistics of queues, kept as counters: totals that survive restarts and are right across nodes.

    put, get, ack, nack ─▶ a few additions in memory ─▶ about once a second: one write per queue that was used
                                                     └▶ at a read of that queue, at a drain, at the end: at once

Per queue and generation there is one counter, `queue:NAME:GENERATION` (counters/states/queue.py). Every node adds to
it what it did itself; a read merges all of them. A call pays some additions, however many messages it has.

What is exact: the sums of confirmed calls, once flushed. What is not: distinct producers (HyperLogLog), and latencies,
of which samples are taken: one per run of messages delivered, one per ack call, so many per second at most.

What fails, and what then happens: a node that is killed takes its last second with it. A flush that surely did not
count is added to the next one; one that may have counted is not repeated: a gap is better than a double. A store that
is away for long costs nothing but that: what is pending stays a few numbers per queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from capellini.counters.service import Counters
from capellini.counters.states.queue import LATENCIES, PRODUCERS, SUMS, Activity, QueueTotals
from capellini.model.clock import Chance, Clock
from capellini.model.counters import queue_counter
from capellini.model.errors import CapelliniError, NotFound, Unavailable
from capellini.model.log import LogParcel
from capellini.model.message import Delivery
from capellini.model.producers import PRODUCER
from capellini.model.service import Statistics
from capellini.node.background import Background
from capellini.queues.events import Events, Run, Sink, queue_in
from capellini.queues.work.queue import Held
from capellini.queues.work.reading import Taken

FLUSH_S: Final = 1.0  # what a node that is killed takes with it, about
FLUSH_QUEUES: Final = 500  # written in one turn; where more are used, each has its turn every few seconds
FLUSHES_AT_ONCE: Final = 16
READER_WAITS_S: Final = 1.0  # for this node's part: a full disk can still be read
SAMPLES: Final = 200  # of a latency, per queue and flush: as many as the sketch keeps items
MOST_PRODUCERS: Final = 10_000  # new ids remembered per queue and flush; beyond, the estimate comes out too low
MOST_HELD: Final = 1_000  # deliveries per queue whose time is remembered until their ack
MOST_HELD_IN_ALL: Final = 100_000  # some 15 MB: where acks go to other nodes, every queue has its thousand for good
MOST_QUEUES: Final = 5_000  # as many as a node keeps open
log: Final = logging.getLogger("capellini.statistics")

Key = tuple[str, int]  # queue, generation


class Since:
    """What happened in one generation of a queue since the last flush."""

    __slots__ = ("acked_s", "delivered_s", "held", "producers", "sums", "turn")

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], float] = {}  # (first id, version) of deliveries, and when
        self.turn = asyncio.Lock()  # of flushes: a reader waits for the one under way
        self._empty()

    def _empty(self) -> None:
        self.sums = dict.fromkeys(SUMS, 0)
        self.producers: set[str] = set()
        self.delivered_s: list[float] = []
        self.acked_s: list[float] = []

    def taken(self) -> Activity | None:
        """All of it, to be written; None: nothing happened."""
        sums = {name: count for name, count in self.sums.items() if count}
        if not sums:
            return None
        activity = Activity(sums, tuple(self.producers), tuple(self.delivered_s), tuple(self.acked_s))
        self._empty()
        return activity

    def give_back(self, activity: Activity) -> None:
        for name, count in activity.sums.items():
            self.sums[name] += count
        self.producers.update(activity.producers[: max(0, MOST_PRODUCERS - len(self.producers))])
        self.delivered_s = [*activity.delivered_after_s, *self.delivered_s][:SAMPLES]
        self.acked_s = [*activity.acked_after_s, *self.acked_s][:SAMPLES]


class QueueStatistics:
    """Of one node. `producer`: who puts when nobody says: the program that the node runs in."""

    def __init__(self, counters: Counters, clock: Clock, random: Chance, producer: str) -> None:
        self._counters = counters
        self._clock = clock
        self._random = random
        self._producer = producer
        self._queues: dict[Key, Since] = {}
        self._cleared: dict[Key, None] = {}  # generations that are over, in order: nothing more is written of them
        self._flushes: set[asyncio.Task[bool]] = set()  # under way
        self._background = Background(self._turns)

    def start(self) -> None:
        self._background.start()

    async def stop(self) -> None:
        """What is pending is written, if the store lets us."""
        await self._background.stop()
        await asyncio.gather(*self._flushes)
        while any(any(since.sums.values()) for since in self._queues.values()):
            if not await self.flush():
                return  # the store does not take it: that second is lost, as in a crash

    # ---- counting: called once per call

    def _since(self, queue: str, generation: int) -> Since:
        key = (queue, generation)
        found = self._queues.get(key)
        if found is None:
            found = self._queues[key] = Since()
        return found

    def put(self, queue: str, generation: int, count: int, size: int) -> None:
        since = self._since(queue, generation)
        since.sums["puts"] += count
        since.sums["bytes_put"] += size
        if len(since.producers) < MOST_PRODUCERS:
            since.producers.add(PRODUCER.get() or self._producer)

    def moved_in(self, queue: str, generation: int, size: int) -> None:
        """A letter came: a message more, and no producer."""
        since = self._since(queue, generation)
        since.sums["puts"] += 1
        since.sums["bytes_put"] += size

    def delivered(self, queue: str, generation: int, taken: Sequence[Taken]) -> None:
        since = self._since(queue, generation)
        now_s, at_s, held = self._clock.now_s(), self._clock.elapsed_s(), since.held
        for one in taken:
            since.sums["deliveries"] += one.count
            if one.version > 1:
                since.sums["redeliveries"] += one.count
            elif len(since.delivered_s) < SAMPLES:
                since.delivered_s.append(max(0.0, now_s - one.block.put_at_ms / 1000))
            held[one.first, one.version] = at_s
        while len(held) > MOST_HELD:
            del held[next(iter(held))]

    def handed_out(self, queue: str, generation: int, messages: Sequence[Delivery]) -> None:
        """Of a timed queue: each message by itself."""
        since, now_s = self._since(queue, generation), self._clock.now_s()
        again = sum([message.deliveries > 1 for message in messages])
        since.sums["deliveries"] += len(messages)
        since.sums["redeliveries"] += again
        if again < len(messages) and len(since.delivered_s) < SAMPLES:
            first = next(message for message in messages if message.deliveries == 1)
            since.delivered_s.append(max(0.0, now_s - first.put_at))

    def parcelled(self, queue: str, generation: int, parcels: Sequence[LogParcel]) -> None:
        """Of a log queue: to whichever group."""
        since, now_s = self._since(queue, generation), self._clock.now_s()
        for parcel in parcels:
            since.sums["deliveries"] += parcel.count
            if parcel.deliveries > 1:
                since.sums["redeliveries"] += parcel.count
            elif len(since.delivered_s) < SAMPLES:
                since.delivered_s.append(max(0.0, now_s - parcel.put_ms / 1000))

    def acked(self, queue: str, generation: int, count: int, held: Sequence[Held]) -> None:
        since = self._since(queue, generation)
        since.sums["acks"] += count
        if held:
            at_s = since.held.pop((held[0].first, held[0].version), None)
            if at_s is not None and len(since.acked_s) < SAMPLES:
                since.acked_s.append(self._clock.elapsed_s() - at_s)

    def nacked(self, queue: str, generation: int, count: int) -> None:
        self._since(queue, generation).sums["nacks"] += count

    def died(self, queue: str, generation: int, count: int) -> None:
        self._since(queue, generation).sums["dead_letters"] += count

    def expired(self, queue: str, generation: int, count: int) -> None:
        self._since(queue, generation).sums["expired"] += count

    # ---- writing and reading

    async def _turns(self) -> None:
        while True:
            await self._clock.sleep(self._random.uniform(FLUSH_S * 0.8, FLUSH_S * 1.2))
            await self.flush()

    async def flush(self) -> int:
        """Write what is pending, of so many queues at most. How many were written."""
        used = [key for key, since in self._queues.items() if any(since.sums.values())][:FLUSH_QUEUES]
        turns = asyncio.Semaphore(FLUSHES_AT_ONCE)

        async def one(key: Key) -> bool:
            async with turns:
                return await asyncio.shield(self._begun(key))

        done = await asyncio.gather(*(one(key) for key in used))
        for key in used:  # the others come first next time
            if (since := self._queues.pop(key, None)) is not None:
                self._queues[key] = since
        self._forget_idle()
        self._forget_held()
        return sum(done)

    def _begun(self, key: Key) -> asyncio.Task[bool]:
        """A flush that goes on though whoever wanted it goes away: what it has taken is nowhere else."""
        flush = asyncio.get_running_loop().create_task(self._flush(key))
        self._flushes.add(flush)
        flush.add_done_callback(self._flushes.discard)
        return flush

    async def _flush(self, key: Key) -> bool:
        """True: nothing of it is pending."""
        since = self._queues.get(key)
        if since is None:
            return True
        async with since.turn:
            if key in self._cleared:  # also while another flush had the turn
                self._queues.pop(key, None)
                return True
            activity = since.taken()
            if activity is None:
                return True
            try:
                await self._counters.update(queue_counter(*key), [activity], QueueTotals.kind)
            except Unavailable as error:  # it does not count
                since.give_back(activity)
                log.info("statistics of %s are written later: %s", key[0], error)
                return False
            except CapelliniError as error:
                log.warning("statistics of %s may lack a second: %s", key[0], error)
                return False
        return True

    def _forget_idle(self) -> None:
        for key in list(self._queues)[: max(0, len(self._queues) - MOST_QUEUES)]:
            since = self._queues[key]
            if not any(since.sums.values()) and not since.turn.locked():
                del self._queues[key]

    def _forget_held(self) -> None:
        """Of the queues that were not used for longest: a few samples are not taken."""
        over = sum([len(since.held) for since in self._queues.values()]) - MOST_HELD_IN_ALL
        for since in self._queues.values():
            if over <= 0:
                break
            over -= len(since.held)
            since.held.clear()

    async def totals(self, queue: str, generation: int) -> tuple[dict[str, Any], bool]:
        """Of all nodes, this one's up to now; False: a store that takes no writes now keeps some of these back. Raises
        StoreError."""
        flush = self._begun((queue, generation))
        await asyncio.wait({flush}, timeout=READER_WAITS_S)
        whole = flush.done() and flush.result()
        try:
            found: dict[str, Any] = (await self._counters.read(queue_counter(queue, generation))).value
        except NotFound:
            found = QueueTotals().value()
        return found, whole

    async def clear(self, queue: str, generation: int) -> None:
        """That generation is over everywhere, and so are its statistics."""
        key = (queue, generation)
        self._queues.pop(key, None)
        self._cleared[key] = None
        while len(self._cleared) > MOST_QUEUES:
            del self._cleared[next(iter(self._cleared))]
        await self._counters.drop(queue_counter(queue, generation))


def with_totals(found: Statistics, totals: dict[str, Any], exact: bool) -> Statistics:
    """`exact`: nobody has anything that is not flushed yet."""
    values = {name: totals[name] for name in SUMS}
    latencies = {name: totals[name]["quantiles"] for name in LATENCIES}
    named = (*found.exact, *SUMS) if exact else found.exact
    producers = round(totals[PRODUCERS]["estimate"])
    return msgspec.structs.replace(found, **values, **latencies, producers=producers, exact=named)


class CountedEvents(Events):
    """The journal's numbering, which also tells the statistics what only queues know: what went to dead letters,
    and what nobody got in time."""

    def __init__(
        self,
        clock: Clock,
        node: str = "",
        incarnation: str = "",
        sink: Sink | None = None,
        follower: Sink | None = None,
        statistics: Callable[[], QueueStatistics | None] | None = None,
    ) -> None:
        super().__init__(clock, node, incarnation, sink, follower)
        self.statistics: QueueStatistics | None = None
        self._statistics = statistics or (lambda: self.statistics)

    def _without_sink(self) -> Events:
        return CountedEvents(self._clock, *self._who, follower=self._follower, statistics=self._statistics)

    def dead(self, queue: str, generation: int, runs: Sequence[Run], detail: str = "", ids: Sequence[str] = ()) -> None:
        super().dead(queue, generation, runs, detail, ids)
        if (statistics := self._statistics()) is not None:
            statistics.died(queue_in(queue), generation, sum([count for _, count in runs]) + len(ids))

    def expired(self, queue: str, generation: int, runs: Sequence[Run], ids: Sequence[str] = ()) -> None:
        super().expired(queue, generation, runs, ids)
        if (statistics := self._statistics()) is not None:
            statistics.expired(queue_in(queue), generation, sum([count for _, count in runs]) + len(ids))
