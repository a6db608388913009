"""Delayed messages of log queues: they wait in a timed queue of their own, and enter an extent when they are due.

    put with a delay ─▶ capellini.delayed.GENERATION.QUEUE   (a timed queue of the nodes' own, made at the first one)
                             └─ due ─▶ taken by the node that holds the shard ─▶ `lanes` ─▶ a chunk in the log

A message that waits is in time parts like any other of a timed queue, so a million of them cost nothing until they are
due, and it is never handed out before its due, for clocks within `max_skew_s`. What is due is moved many at a time.

The queue's generation is in the other queue's name and in the lanes' keys: what a deleted or purged queue left is
cleared with it (`clear`), and nothing of it comes into its successor. In the log a delayed message is as old as its
entry: that is what retention, groups' delays and their skipping of old ones count from, and the place it has in the
order. With a key it is put once by the timed queue: the same key without a delay is another put.

Waiting needs a majority of all data centres, in queues of mode `ap`, too. There producers are known within one data
centre: a lane that changes to another one in the middle of a batch may bring that batch twice, as keys do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from hashlib import blake2b
from typing import Any, Final

from capellini.model.clock import Clock
from capellini.model.errors import CapelliniError, Full, Invalid, NotFound, Stale, StoreError, TooLarge, Unavailable
from capellini.model.message import Delivery
from capellini.model.options import INTERNAL, KINDS, OFF, check_name
from capellini.model.service import Done, NackItem, Problem, Put
from capellini.model.timed import Scheduled
from capellini.queues.catalog import Catalog, QueueRecord
from capellini.queues.log.keeper import LogKeeper
from capellini.queues.log.lanes import Lane, Overtaken, read_lanes
from capellini.queues.log.queue import LogQueue
from capellini.queues.timed.keeper import TimedKeeper
from capellini.queues.timed.positions import parse_id, shard_in
from capellini.queues.timed.queue import TimedQueue
from capellini.queues.work.place import Gone

PREFIX: Final = f"{INTERNAL}delayed."
TAKE: Final = 4_000  # messages that are taken at a time, for all lanes of a queue
HELD_S: Final = 30.0  # what is taken is moved in less, unless something is wrong
AGAIN_S: Final = 0.5  # what could not be moved comes again after
RESTS_S: Final = 2.0  # a lane that had nothing for so long tidies up
_LARGEST: Final = {option.name: option.most for option in KINDS["timed"]}
OPTIONS: Final[dict[str, Any]] = {
    "granularity": "minute",  # most delays are short, and a part is dropped when all of it has left
    "retention_s": _LARGEST["retention_s"],  # they must not be lost while nobody can move them
    "window_s": _LARGEST["window_s"],
    "body_limit": _LARGEST["body_limit"],  # the log's own was checked
    "journal": OFF,
}


def waiting_name(queue: str, generation: int) -> str:
    """Of the timed queue in which the delayed messages of that generation wait."""
    name = f"{PREFIX}{generation}.{queue}"
    try:
        return check_name(name)
    except Invalid:  # too long
        return f"{PREFIX}{generation}.{blake2b(queue.encode(), digest_size=20).hexdigest()}"


class Delaying:
    """Of one node. `turn` is to be called again and again; `settle` before an extent is dropped (`LogKeeper`), `clear`
    when a generation is over."""

    def __init__(self, clock: Clock, catalog: Catalog, timed: TimedKeeper, log: LogKeeper) -> None:
        self._clock, self._catalog = clock, catalog
        self._timed, self._log = timed, log
        self.guards = log.guards
        self._lanes: dict[tuple[str, int, int], Lane] = {}  # of shards that are held here
        self._moving: dict[tuple[str, int], asyncio.Task[None]] = {}
        log.before_drop = self.settle

    # Putting

    async def put(self, record: QueueRecord, messages: Sequence[Scheduled]) -> list[Put | Problem]:
        """One answer per message, in order. Raises Gone when this generation is over."""
        try:
            self._log.queue(record).writers.require_room(sum(len(one.entry.body) for one in messages))
        except (Full, TooLarge) as refused:
            return [Problem.of(refused)] * len(messages)
        return await (await self._waiting(record)).put(messages)

    async def _waiting(self, record: QueueRecord) -> TimedQueue:
        """The timed queue of a generation that lives."""
        name = waiting_name(record.name, record.generation)
        try:
            return self._timed.queue(await self._catalog.live(name))
        except NotFound:
            made = await self._catalog.create(name, "timed", OPTIONS)
        try:
            alive = (await self._catalog.show(record.name)).generation == record.generation
        except NotFound:
            alive = False
        if not alive:  # whoever cleared what it left may have been here before
            await self._catalog.delete(name)
            raise Gone("this queue was deleted or purged")
        self._timed.soon.set()
        return self._timed.queue(made)

    async def count(self, record: QueueRecord) -> tuple[int, bool]:
        """How many wait; whether that is exact."""
        try:
            waits = await self._catalog.live(waiting_name(record.name, record.generation))
        except NotFound:
            return 0, True
        counted = await self._timed.queue(waits).statistics()
        return counted.ready + counted.in_flight + counted.waiting + counted.scheduled, counted.exact

    # Moving

    def turn(self) -> None:
        """Begin to move what is due and is held here; each queue for itself, so that none waits for another."""
        now_ms = int(self._clock.now_s() * 1000)
        held = {queue.place.name: queue for queue in self._timed.held() if queue.place.name.startswith(PREFIX)}
        for queue in self._log.queues() if held else ():
            at = (queue.place.name, queue.place.generation)
            waits = held.get(waiting_name(*at))
            if waits is None or at in self._moving:
                continue
            if waits.taking.next_due_ms() <= now_ms or self._idle(at):
                self._moving[at] = asyncio.get_running_loop().create_task(self._move(queue, waits))

    def _idle(self, at: tuple[str, int]) -> bool:
        """Is there a lane that should tidy up?"""
        before_s = self._clock.elapsed_s() - RESTS_S
        return any(key[:2] == at and not lane.rests and lane.used_s < before_s for key, lane in self._lanes.items())

    async def stop(self) -> None:
        """Wherever it was: the next holder goes on."""
        tasks = list(self._moving.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _move(self, queue: LogQueue, waits: TimedQueue) -> None:
        """All that is due."""
        at = (queue.place.name, queue.place.generation)
        try:
            while await self._takes(*at) and await self._moved(queue, waits):
                pass
        except CapelliniError as error:
            self.guards["delayed messages not looked at"] += 1
            if not isinstance(error, Gone):
                queue.place.trouble.say("delayed messages that are due were not looked at", error)
        finally:
            self._moving.pop(at, None)

    async def _takes(self, name: str, generation: int) -> bool:
        try:
            record = await self._catalog.live(name)
        except NotFound:
            return False
        return record.generation == generation and not record.puts_paused

    async def _moved(self, queue: LogQueue, waits: TimedQueue) -> bool:
        """True: there may be more."""
        lanes = self._held(queue, waits)
        await asyncio.gather(*[lane.know() for lane in lanes.values()])
        known = {shard: lane.known for shard, lane in lanes.items()}
        taken: dict[int, list[Delivery]] = {}
        for one in waits.serving.take(TAKE, int(HELD_S * 1000), int(self._clock.now_s() * 1000)):
            taken.setdefault(shard_in(parse_id(one.id)), []).append(one)
        work: list[Awaitable[bool]] = []
        for shard, some in taken.items():
            at = known.get(shard)
            if at is None:  # a shard that was just taken over: its row is known the next time
                work.append(self._given_back(waits, some, 0.0))
            else:
                work.append(self._carried(queue, lanes[shard], waits, some, at))
        idle_s = self._clock.elapsed_s() - RESTS_S
        work += [
            self._rested(lane)
            for shard, lane in lanes.items()
            if shard not in taken and not lane.rests and lane.used_s < idle_s
        ]
        return any([*await asyncio.gather(*work)])

    async def _carried(self, queue: LogQueue, lane: Lane, waits: TimedQueue, taken: list[Delivery], known: int) -> bool:
        try:
            await lane.carry(taken, known)
        except CapelliniError as error:
            self.guards["delayed messages put off"] += 1
            if not isinstance(error, (Gone, Overtaken)):  # over, or another node has done it
                queue.place.trouble.say("delayed messages that are due could not be moved", error)
            return await self._given_back(waits, taken, _again_s(error))
        finally:
            lane.used_s = self._clock.elapsed_s()
        return True

    async def _given_back(self, waits: TimedQueue, taken: list[Delivery], delay_s: float) -> bool:
        """Those that were acked are not there any more. What cannot be given back comes back by itself."""
        answers = await waits.nack([NackItem(one.receipt, delay_s) for one in taken])
        if any(isinstance(answer, Problem) and answer.error != Stale.name for answer in answers):
            self.guards["delayed messages not given back"] += 1
        return False

    async def _rested(self, lane: Lane) -> bool:
        try:
            await lane.rest()
        except CapelliniError:
            self.guards["lane does not rest yet"] += 1
        finally:
            lane.used_s = self._clock.elapsed_s()
        return False

    def _held(self, queue: LogQueue, waits: TimedQueue) -> dict[int, Lane]:
        """The lanes of the shards that are held here, by shard; others are forgotten."""
        at, before = (queue.place.name, queue.place.generation), self._lanes
        self._lanes = {key: lane for key, lane in before.items() if key[:2] != at}
        found: dict[int, Lane] = {}
        for holder in waits.serving.held():
            key = (*at, holder.shard)
            lane = before.get(key) or Lane(queue.place, holder.shard, queue.append_moved, waits.ack, waits.cancel)
            found[holder.shard] = self._lanes[key] = lane
        return found

    # With the log queue

    async def settle(self, queue: LogQueue) -> None:
        """Whatever lanes of this queue have in hand has arrived: extents may be dropped. Raises StoreError."""
        place = queue.place
        for shard, carried in (await read_lanes(place)).items():
            if carried.chunk:
                self.guards["delayed batch settled for a drop"] += 1
                lane = self._lanes.get((place.name, place.generation, shard))
                try:
                    await (lane or Lane(place, shard, queue.append_moved, _nobody, _nobody)).settle(carried)
                except StoreError:
                    raise
                except CapelliniError as error:
                    raise Unavailable(f"delayed messages are still on their way: {error.says}") from error

    async def clear(self, name: str, generation: int) -> bool:
        """What waited for an ended generation goes with it. True: nothing is left."""
        self._lanes = {key: lane for key, lane in self._lanes.items() if key[:2] != (name, generation)}
        try:
            await self._catalog.delete(waiting_name(name, generation))
        except NotFound:
            return True  # it never had any, or somebody was faster
        return True


def _again_s(error: CapelliniError) -> float:
    """In how many seconds what could not be moved is taken again."""
    if isinstance(error, Overtaken):
        return 0.0
    return AGAIN_S if error.retry_after_s is None else error.retry_after_s


async def _nobody(names: Sequence[str]) -> list[Done | Problem]:
    return [Problem(Unavailable.name, "the messages are another node's")] * len(names)
