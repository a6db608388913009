"""Schedules: what is planned when, and what adding, running and removing them does to their row and their queue."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import datetime

import msgspec
import pytest
from tests.unit.counter_world import in_world

from capellini.model.errors import Conflict, Invalid, NotFound, Paused, TooLarge, Unavailable, Unknown
from capellini.model.message import NewMessage
from capellini.model.scheduling import NewSchedule
from capellini.model.service import Done, Problem, Put
from capellini.queues import schedules as scheduling
from capellini.queues.schedules import AHEAD_MS, LATE_MS, SKIPS_COUNTED, TICKS_AT_ONCE, Schedule, Schedules, plan_of
from capellini.store.simulation.world import World

NOON_MS = int(datetime.fromisoformat("2026-05-01T12:00:00Z").timestamp() * 1000)
MINUTE_MS = 60_000
EVERY_MINUTE = NewSchedule("minutely", "later", "* * * * *", body=b"tick")


def at(through_ms: int, new: NewSchedule = EVERY_MINUTE) -> Schedule:
    return Schedule(new, "tag", through_ms, through_ms)


def test_ticks_are_planned_a_little_ahead() -> None:
    plan = plan_of(at(NOON_MS), NOON_MS, AHEAD_MS)
    assert (plan.put, plan.skipped, plan.through_ms) == ((NOON_MS + MINUTE_MS,), 0, NOON_MS + AHEAD_MS)
    assert plan_of(at(NOON_MS), NOON_MS, 0) == scheduling.Plan((), 0, NOON_MS)


def test_missed_ticks_are_skipped_or_caught_up_with() -> None:
    hour_ago = NOON_MS - 60 * MINUTE_MS
    skipping = plan_of(at(hour_ago), NOON_MS, 0)
    assert (skipping.put, skipping.skipped) == ((NOON_MS,), 59)
    assert skipping.through_ms == NOON_MS
    catching = plan_of(at(hour_ago, msgspec.structs.replace(EVERY_MINUTE, missed="catch_up")), NOON_MS, 0)
    assert (len(catching.put), catching.put[0], catching.skipped) == (60, hour_ago + MINUTE_MS, 0)


def test_a_tick_that_is_a_little_late_was_not_missed() -> None:
    assert plan_of(at(NOON_MS - 1), NOON_MS + LATE_MS - 1, 0).put[0] == NOON_MS


def test_long_absences_are_worked_off_in_bounded_steps() -> None:
    years_ago = NOON_MS - 3 * 365 * 86_400_000
    skipping = plan_of(at(years_ago), NOON_MS, 0)
    assert (skipping.skipped, skipping.through_ms) == (SKIPS_COUNTED, NOON_MS)
    catching = at(years_ago, msgspec.structs.replace(EVERY_MINUTE, missed="catch_up"))
    plan = plan_of(catching, NOON_MS, 0)
    assert (len(plan.put), plan.through_ms) == (TICKS_AT_ONCE, plan.put[-1])
    after = plan_of(msgspec.structs.replace(catching, through_ms=plan.through_ms), NOON_MS, 0)
    assert after.put[0] == plan.put[-1] + MINUTE_MS


class Queue:
    """A timed queue as schedules see it: keys work once."""

    def __init__(self) -> None:
        self.by_key: dict[str, NewMessage] = {}
        self.cancelled: list[str] = []
        self.fails: Exception | None = None
        self.kind = "timed"

    async def kind_of(self, name: str) -> str:
        if name != "later":
            raise NotFound(f"there is no queue {name}")
        return self.kind

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        if self.fails is not None:
            raise self.fails
        results: list[Put | Problem] = []
        for message in messages:
            assert message.key is not None
            results.append(Put(message.key, message.key in self.by_key))
            self.by_key.setdefault(message.key, message)
        return results

    async def cancel(self, name: str, ids: Sequence[str]) -> list[Done | Problem]:
        self.cancelled += ids
        return [Done() for _ in ids]


def schedules_of(world: World, queue: Queue, name: str = "n1") -> Schedules:
    client = world.client(name)
    return Schedules(client.store, client.clock, client.random, queue.kind_of, queue.put, queue.cancel)


async def run_all(schedules: Schedules) -> int:
    return sum([await schedules.run(each) for shelf in range(scheduling.SHELVES) for each in await schedules.on(shelf)])


def test_ticks_are_put_once_by_two_nodes_that_both_run_them() -> None:
    async def test(world: World) -> None:
        queue = Queue()
        one, other = schedules_of(world, queue), schedules_of(world, queue, "n2")
        await one.add(EVERY_MINUTE)
        for _ in range(5):
            await asyncio.gather(run_all(one), run_all(other))
            await asyncio.sleep(61)
        dues = sorted(float(message.due or 0) for message in queue.by_key.values())  # type: ignore[arg-type]
        assert len(dues) >= 5
        assert [later - earlier for earlier, later in itertools.pairwise(dues)] == [60.0] * (len(dues) - 1)
        first = next(iter(queue.by_key.values()))
        assert (first.body, first.attributes["schedule"]) == (b"tick", "minutely")
        assert datetime.fromisoformat(first.attributes["tick"]).timestamp() == first.due

    in_world(test)


def test_work_queues_get_their_ticks_when_they_come() -> None:
    async def test(world: World) -> None:
        queue = Queue()
        queue.kind = "work"
        schedules = schedules_of(world, queue)
        await schedules.add(EVERY_MINUTE)
        assert await run_all(schedules) == 0
        await asyncio.sleep(60)
        assert await run_all(schedules) == 1
        assert [message.due for message in queue.by_key.values()] == [None]

    in_world(test)


def test_removal_takes_back_what_was_put_ahead_and_a_late_runner_puts_nothing_new() -> None:
    async def test(world: World) -> None:
        queue = Queue()
        schedules = schedules_of(world, queue)
        await schedules.add(EVERY_MINUTE)
        (planned,) = [each for shelf in range(scheduling.SHELVES) for each in await schedules.on(shelf)]
        await run_all(schedules)
        put = set(queue.by_key)
        await schedules.remove("minutely")
        assert put and put <= set(queue.cancelled)
        assert await schedules.listed() == []
        await schedules.run(planned)  # by a node that had read the row before
        assert set(queue.by_key) == set(queue.cancelled)
        assert await schedules.listed() == []
        with pytest.raises(NotFound):
            await schedules.remove("minutely")
        await schedules.add(msgspec.structs.replace(EVERY_MINUTE, cron="*/2 * * * *"))  # the name is free
        await run_all(schedules)
        assert [each.cron for each in await schedules.listed()] == ["*/2 * * * *"]

    in_world(test)


@pytest.mark.parametrize("kind", ["work", "timed"])
def test_nothing_comes_of_a_row_that_was_read_before_the_removal(kind: str) -> None:
    async def test(world: World) -> None:
        queue = Queue()
        queue.kind = kind
        in_charge, other = schedules_of(world, queue), schedules_of(world, queue, "n2")
        await other.add(EVERY_MINUTE)
        read = [each for shelf in range(scheduling.SHELVES) for each in await in_charge.on(shelf)]
        await other.remove("minutely")
        for _ in range(5):
            await asyncio.sleep(60)
            assert [await in_charge.run(each) for each in read] == [0]
        assert set(queue.by_key) == set(queue.cancelled)
        await other.add(EVERY_MINUTE)  # another of that name is no reason to go on
        assert [await in_charge.run(each) for each in read] == [0]

    in_world(test)


def test_a_removal_that_could_not_take_back_says_so() -> None:
    async def test(world: World) -> None:
        queue = Queue()
        schedules = schedules_of(world, queue)
        await schedules.add(EVERY_MINUTE)
        queue.fails = Unavailable("not now")
        with pytest.raises(Unknown, match="may come"):
            await schedules.remove("minutely")
        assert await schedules.listed() == []

    in_world(test)


def test_ticks_wait_for_a_queue_that_takes_none_and_the_reason_is_told() -> None:
    async def test(world: World) -> None:
        queue = Queue()
        schedules = schedules_of(world, queue)
        await schedules.add(EVERY_MINUTE)
        queue.fails = Paused("its puts are paused")
        assert await run_all(schedules) == 0
        assert [each.problem for each in await schedules.listed()] == ["its puts are paused"]
        await asyncio.sleep(600)
        queue.fails = None
        await run_all(schedules)
        (info,) = await schedules.listed()
        assert (info.problem, info.skipped) == ("", 9)

    in_world(test)


def test_a_zone_that_is_not_known_any_more_stops_no_other_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "check_schedule", lambda new: None)  # as it was where the zone was known

    async def test(world: World) -> None:
        schedules = schedules_of(world, Queue())
        for name in ("a", "b", "c"):
            zone = "Europe/Atlantis" if name == "b" else "UTC"
            await schedules.add(msgspec.structs.replace(EVERY_MINUTE, name=name, zone=zone))
        assert await run_all(schedules) == 2
        told = {info.name: (len(info.next_at), info.problem) for info in await schedules.listed()}
        assert told["a"] == told["c"] == (3, "") and told["b"][0] == 0 and "Atlantis" in told["b"][1]

    in_world(test)


def test_the_same_again_is_fine_and_another_is_a_conflict() -> None:
    async def test(world: World) -> None:
        schedules = schedules_of(world, Queue())
        made = await schedules.add(EVERY_MINUTE)
        assert (await schedules.add(EVERY_MINUTE)).created_at == made.created_at
        assert len(made.next_at) == 3
        with pytest.raises(Conflict):
            await schedules.add(msgspec.structs.replace(EVERY_MINUTE, body=b"other"))
        with pytest.raises(NotFound):
            await schedules.add(msgspec.structs.replace(EVERY_MINUTE, name="x", queue="nowhere"))

    in_world(test)


@pytest.mark.parametrize(
    "change",
    [{"name": "no/slash"}, {"name": ""}, {"queue": "no/slash"}, {"cron": "61 * * * *"}, {"zone": "Mars/Base"},
     {"missed": "perhaps"}, {"attributes": {f"a{each}": "x" for each in range(31)}}],
)  # fmt: skip
def test_bad_schedules_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        scheduling.check_schedule(msgspec.structs.replace(EVERY_MINUTE, **change))


def test_a_body_that_is_too_large_is_refused() -> None:
    with pytest.raises(TooLarge):
        scheduling.check_schedule(msgspec.structs.replace(EVERY_MINUTE, body=b"x" * 70_000))
