"""Recurring schedules: at each tick of a cron expression, one message into a queue. Exactly one, whoever runs it.

    schedules (shelf) ▸ name     record (JSON): what it is, and `through`: up to here all ticks are put or skipped

    plan: ticks after `through`, up to a little ahead ──▶ put each under the key (schedule's tag, tick)
                                                         ──▶ move `through` by compare-and-set

The key makes a tick one message: two nodes that believe to be in charge, or one that crashes between the put and the
move of `through` and its successor, put the same tick under the same key. (A queue remembers keys for its window_s:
a successor must come within that.) So who runs a schedule is a matter of cost alone: shelves are shared out by
assignments.

Ticks of timed queues are put AHEAD_MS before they are due, as messages with that due: a node that dies then does not
make a tick late, since others take over in less. Work queues have no cancel, so their ticks are put when they come.

Removing a schedule marks its row first: nothing is planned from it any more, since whoever has planned looks at the row
once more before it puts. Then the ticks that may have been put ahead are put again under their keys, which tells their
ids, and cancelled. Whoever puts such a tick later, because it had planned it before, finds the key used. What was due
before the removal stays.

Missed ticks (nobody ran, or the queue took no puts): those that are late by more than LATE_MS are skipped or put
nevertheless, as the schedule says.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
import xxhash

from capellini.model.clock import Chance, Clock
from capellini.model.dues import text_of as text_of_time
from capellini.model.errors import CapelliniError, Conflict, Invalid, NotFound, TooLarge, Unknown
from capellini.model.message import MAX_BATCH, NewMessage, attributes_problem
from capellini.model.options import NAME, NAME_RULE, check_name
from capellini.model.scheduling import MAX_SCHEDULE_BODY, NewSchedule, ScheduleInfo
from capellini.model.service import Done, Problem, Put
from capellini.queues.cell import Cell
from capellini.queues.cron import check_cron, ticks, ticks_between
from capellini.queues.trail import new_name, text_of
from capellini.store.interface import Key, Slice, Store, Value
from capellini.store.schema import SCHEDULES

SHELVES: Final = 4  # partitions, and items that nodes share out: enough to spread, few enough to look at
AHEAD_MS: Final = 60_000  # longer than others need to take over from a node that died
LATE_MS: Final = 60_000  # a tick that is later than this was missed
TICKS_AT_ONCE: Final = MAX_BATCH  # put in one step; what is more comes in the next
SKIPS_COUNTED: Final = 1_000  # in one step: a schedule of years ago is not counted tick by tick
NEXT_SHOWN: Final = 3
TAKE_BACK_S: Final = 20.0  # a removal waits so long for shards whose holder is gone: until others took over
TAKE_BACK_PAUSE_S: Final = 0.25
_SETTLED: Final = (NotFound.name, Conflict.name)  # of a tick to be taken back: it came, or was cancelled before
REMOVED_TTL_S: Final = 86_400  # a removed schedule's row goes after a day
PAGE: Final = 1_000


class Schedule(msgspec.Struct, frozen=True):
    """A row's record."""

    new: NewSchedule
    tag: str  # another for each creation: ticks of one never count for another of the same name
    created_ms: int
    through_ms: int
    skipped: int = 0
    problem: str = ""
    removed: bool = False


class Plan(msgspec.Struct, frozen=True):
    put: tuple[int, ...]  # ticks
    skipped: int
    through_ms: int


def plan_of(schedule: Schedule, now_ms: int, ahead_ms: int) -> Plan:
    """What is to be done now. Nothing: `through_ms` is as it was."""
    new, start_ms, skipped = schedule.new, schedule.through_ms, 0
    if new.missed == "skip" and start_ms < now_ms - LATE_MS:
        skipped = len(ticks_between(new.cron, new.zone, start_ms, now_ms - LATE_MS, SKIPS_COUNTED))
        start_ms = now_ms - LATE_MS
    until_ms = now_ms + ahead_ms
    found = ticks_between(new.cron, new.zone, start_ms, until_ms, TICKS_AT_ONCE)
    if not found and not skipped:
        return Plan((), 0, schedule.through_ms)
    through_ms = found[-1] if len(found) == TICKS_AT_ONCE else max(until_ms, start_ms)
    return Plan(tuple(found), skipped, through_ms)


def key_of(schedule: Schedule, tick_ms: int) -> str:
    return f"tick:{schedule.tag}:{tick_ms}"


def attributes_of(new: NewSchedule, tick_ms: int) -> dict[str, str]:
    """A message says which tick it is of, unless its attributes of these names say something else."""
    return {"schedule": new.name, "tick": text_of_time(tick_ms / 1000), **new.attributes}


def info_of(schedule: Schedule, now_ms: int) -> ScheduleInfo:
    new, problem = schedule.new, schedule.problem
    try:
        following = list(itertools.islice(ticks(new.cron, new.zone, now_ms), NEXT_SHOWN))
    except Invalid as error:  # a zone that was known where it was added: the list has the others all the same
        following, problem = [], error.says
    return ScheduleInfo(
        new.name, new.queue, new.cron, new.zone, new.body, new.attributes, new.missed, schedule.created_ms / 1000,
        schedule.through_ms / 1000, [tick_ms / 1000 for tick_ms in following], schedule.skipped, problem,
    )  # fmt: skip


def check_schedule(new: NewSchedule) -> None:
    """Raises Invalid or TooLarge."""
    if not NAME.fullmatch(new.name):
        raise Invalid(f"{new.name[:120]!r} is not a name of a schedule: use {NAME_RULE}")
    check_name(new.queue)
    check_cron(new.cron, new.zone)
    if problem := attributes_problem(attributes_of(new, 0)):
        raise Invalid(problem)
    if len(new.body) > MAX_SCHEDULE_BODY:
        raise TooLarge(f"the body of a schedule has at most {MAX_SCHEDULE_BODY} bytes, not {len(new.body)}")
    if new.missed not in ("skip", "catch_up"):
        raise Invalid(f"missed is skip or catch_up, not {new.missed!r}")


def shelf_of(name: str) -> int:
    return xxhash.xxh64_intdigest(name.encode()) % SHELVES


KindOf = Callable[[str], Awaitable[str]]  # of a queue; raises NotFound
PutTicks = Callable[[str, Sequence[NewMessage]], Awaitable[list[Put | Problem]]]
Cancel = Callable[[str, Sequence[str]], Awaitable[list[Done | Problem]]]
NOTHING: Final = Schedule(NewSchedule("", "", ""), "", 0, 0, removed=True)  # where there is no row


class Schedules:
    """All schedules of a store. `kind_of`, `put` and `cancel` are a node's, for any queue."""

    def __init__(
        self, store: Store, clock: Clock, random: Chance, kind_of: KindOf, put: PutTicks, cancel: Cancel
    ) -> None:
        self._store, self._clock, self._random = store, clock, random
        self._kind_of, self._put, self._cancel = kind_of, put, cancel
        self._next_ms: dict[tuple[str, str, int], int] = {}  # (name, tag, through): the tick after that
        self.ticks_put = 0
        self.added = False  # here, since that was last looked at: its first tick may come soon

    def _now_ms(self) -> int:
        return int(self._clock.now_s() * 1000)

    def _cell(self, name: str, ttl_s: int | None = None) -> Cell[Schedule]:
        return Cell(
            self._store, self._clock, self._random, SCHEDULES, (shelf_of(name),), (name,), ("record",), _in, _out,
            ttl_s=ttl_s,
        )  # fmt: skip

    # -- by callers

    async def add(self, new: NewSchedule) -> ScheduleInfo:
        """Same again is fine; another one of that name is a Conflict. Its first tick is the next one."""
        check_schedule(new)
        await self._kind_of(new.queue)
        now_ms, tag = self._now_ms(), new_name(self._random)

        def decide(state: Schedule) -> tuple[Schedule, Schedule]:
            if not state.removed:
                if state.new != new:
                    raise Conflict(f"there is another schedule {new.name}: remove it first, or use another name")
                return state, state
            made = Schedule(new, tag, now_ms, now_ms)
            return made, made

        made = await self._cell(new.name).change(decide)
        self.added = True
        return info_of(made, now_ms)

    async def listed(self, prefix: str = "") -> list[ScheduleInfo]:
        now_ms = self._now_ms()
        found = [each for shelf in range(SHELVES) for each in await self.on(shelf)]
        named = [each for each in found if each.new.name.startswith(prefix)]
        return [info_of(each, now_ms) for each in sorted(named, key=lambda each: each.new.name)]

    async def on(self, shelf: int) -> list[Schedule]:
        """Those of a shelf that are not removed."""
        found: list[Schedule] = []
        after: Key | None = None
        while True:
            page = await self._store.read(Slice(SCHEDULES, (shelf,), after=after, limit=PAGE))
            found += [state for row in page.rows if not (state := _in(row.values)).removed]
            if not page.more:
                return found
            after = page.rows[-1].key

    async def remove(self, name: str) -> None:
        """No tick fires after this, but for those that were due before. Raises Unknown when that could not be made
        sure for the ticks of the next minute."""

        def decide(state: Schedule) -> tuple[Schedule, Schedule]:
            if state.removed:
                raise NotFound(f"there is no schedule {name[:120]}")
            gone = msgspec.structs.replace(state, removed=True)
            return gone, gone

        now_ms = self._now_ms()
        gone = await self._cell(name, REMOVED_TTL_S).change(decide)
        try:
            if await self._kind_of(gone.new.queue) != "timed":
                return
            ahead = ticks_between(gone.new.cron, gone.new.zone, now_ms, now_ms + 2 * AHEAD_MS, TICKS_AT_ONCE)
            await self._take_back(gone, ahead)
        except NotFound:
            return  # the queue is gone, and its messages with it
        except CapelliniError as error:
            raise Unknown(f"schedule {name} is removed, but ticks of the next minute may come: {error.says}") from error

    async def _take_back(self, gone: Schedule, ahead: Sequence[int]) -> None:
        if not ahead:
            return
        results = await self._put(gone.new.queue, [self._message(gone, tick_ms, True) for tick_ms in ahead])
        for result in results:
            if isinstance(result, Problem):
                raise result.raised()
        left = [result.id for result in results if isinstance(result, Put)]
        deadline_s = self._clock.elapsed_s() + TAKE_BACK_S
        while True:
            done = await self._cancel(gone.new.queue, left)
            bad = [each for each in done if isinstance(each, Problem) and each.error not in _SETTLED]
            left = [id for id, each in zip(left, done, strict=True) if each in bad]
            if not left:
                return
            if self._clock.elapsed_s() >= deadline_s:
                raise bad[0].raised()
            await self._clock.sleep(TAKE_BACK_PAUSE_S)

    # -- by the node in charge

    async def run(self, schedule: Schedule) -> int:
        """Put what is to be put now; how many ticks. What is wrong with it is noted, and stops no other schedule."""
        now_ms = self._now_ms()
        try:
            if self._next(schedule) > now_ms + AHEAD_MS:
                return 0
            timed = await self._kind_of(schedule.new.queue) == "timed"
            plan = plan_of(schedule, now_ms, AHEAD_MS if timed else 0)
            if plan.put:
                if not await self._is_there(schedule):
                    return 0
                messages = [self._message(schedule, tick_ms, timed) for tick_ms in plan.put]
                for result in await self._put(schedule.new.queue, messages):
                    if isinstance(result, Problem):
                        raise result.raised()
        except CapelliniError as error:  # its ticks wait: they are put later, or missed
            await self._settle(schedule, msgspec.structs.replace(schedule, problem=error.says))
            return 0
        self.ticks_put += len(plan.put)
        after = msgspec.structs.replace(
            schedule, through_ms=plan.through_ms, skipped=schedule.skipped + plan.skipped, problem=""
        )
        await self._settle(schedule, after)
        return len(plan.put)

    async def _is_there(self, schedule: Schedule) -> bool:
        """Asked after its ticks were planned: if it is removed later, they were due before, or are taken back."""
        now = await self._cell(schedule.new.name).read()
        return now.tag == schedule.tag and not now.removed

    def _next(self, schedule: Schedule) -> int:
        """The first tick that is not put: computed once, however often it is asked for."""
        new, at = schedule.new, (schedule.new.name, schedule.tag, schedule.through_ms)
        found = self._next_ms.get(at)
        if found is None:
            if len(self._next_ms) >= 100 * PAGE:
                self._next_ms.clear()
            found = self._next_ms[at] = next(ticks(new.cron, new.zone, schedule.through_ms), 1 << 62)
        return found

    def _message(self, schedule: Schedule, tick_ms: int, timed: bool) -> NewMessage:
        new = schedule.new
        due = tick_ms / 1000 if timed else None
        return NewMessage(new.body, attributes_of(new, tick_ms), key=key_of(schedule, tick_ms), due=due)

    async def _settle(self, before: Schedule, after: Schedule) -> None:
        """Refused in silence when the row has changed: it was removed, or another node has done this step."""
        if after != before:
            await self._cell(before.new.name).change(lambda now: (after if now == before else now, None))


def _in(values: dict[str, Value]) -> Schedule:
    record = text_of(values, "record")
    return NOTHING if record is None else msgspec.json.decode(record, type=Schedule)


def _out(state: Schedule) -> dict[str, Value]:
    return {"record": msgspec.json.encode(state).decode()}
