"""Planted bugs of counters: each takes one guard away, and the simulation must find it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
from tests.simulation.planting import Bed, Patch

from capellini.counters import collecting, committing, mutators, reading
from capellini.counters.committing import Committer
from capellini.counters.mutators import Fleet
from capellini.counters.shards import NO_TALLY, pack
from capellini.model.errors import Unavailable
from capellini.store.interface import Level

plants = Bed("counters")


@plants(7)
def batch_stamped_by_the_clock(patch: Patch) -> None:
    made = collecting.batch_of
    patch(collecting, "batch_of", lambda *args: msgspec.structs.replace(made(*args), timestamp_us=None))


@plants(7)
def batch_timestamp_too_low(patch: Patch) -> None:
    made = collecting.batch_of

    def low(name: str, cell: bytes, through_us: int) -> Any:
        return msgspec.structs.replace(made(name, cell, through_us), timestamp_us=through_us - 86_400_000_000)

    patch(collecting, "batch_of", low)


@plants(7)
def tally_merged_twice(patch: Patch) -> None:
    gather = collecting._gather

    async def twice(store: Any, name: str, state: Any, tally: Any, end_us: int) -> Any:
        gathered = await gather(store, name, state, tally, end_us)
        gathered.state.merge(collecting.tally_state(tally, state, name))
        return gathered

    patch(collecting, "_gather", twice)


@plants(7)
def unexpired_shards_collected(patch: Patch) -> None:
    patch(collecting, "cutoff_us", lambda now_us, times: now_us + times.life_us)


@plants(7)
def updates_taken_and_confirmed_after_expiry(patch: Patch) -> None:
    patch(mutators, "takes_updates", lambda left, times: True)
    patch(committing, "may_confirm", lambda left: True)
    patch(committing, "next_stamp", lambda stamp_us, now_us, expires_us: min(max(stamp_us + 1, now_us), expires_us - 1))


@plants(7)
def confirmed_after_expiry(patch: Patch) -> None:
    patch(committing, "may_confirm", lambda left: True)


@plants(7)
def tally_not_read_again(patch: Patch) -> None:
    patch(collecting, "unchanged", lambda before, after: True)


@plants(7)
def collected_at_level_one(patch: Patch) -> None:
    patch(collecting, "Level", SimpleNamespace(ALL=Level.ONE, ONE=Level.ONE))


@plants(7)
def reader_ignores_through(patch: Patch) -> None:
    counted = reading.counted

    def all_of_them(tally: Any, rows: Any) -> Any:
        return msgspec.structs.replace(counted(NO_TALLY, rows), tally=tally)

    patch(reading, "counted", all_of_them)


@plants(7)
def cleared_before_the_tally_is_there(patch: Patch) -> None:
    async def take(store: Any, name: str, gathered: Any, starts: int, damaged: str, guards: Any) -> Any:
        through_us = collecting.through_of(gathered.highest_us)
        batch = collecting.batch_of(name, pack(gathered.state, through_us), through_us)
        await store.write(msgspec.structs.replace(batch, rows=()))
        await store.write(collecting.announcement_of(batch))
        return collecting.Collected(name, gathered.shards, through_us / 1e6, starts, damaged)

    patch(collecting, "_take", take)


@plants(7)
def timestamps_do_not_rise(patch: Patch) -> None:
    patch(committing, "next_stamp", lambda stamp_us, now_us, expires_us: now_us)


@plants(7)
def failed_mutator_goes_on(patch: Patch) -> None:
    def not_dead(self: Any, mutator: Any, error: BaseException) -> None:
        for _, future in mutator.waiting:
            if not future.done():
                future.set_exception(self._gone(mutator))
        mutator.waiting = []

    patch(Committer, "_die", not_dead)


@plants(7)
def confirmed_before_it_is_written(patch: Patch) -> None:
    def at_once(self: Any, mutator: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        self.begin(mutator)
        return future

    patch(Committer, "confirmed", at_once)


@plants(7)
def unknown_said_to_be_unavailable(patch: Patch) -> None:
    patch(Committer, "_gone", lambda self, mutator: Unavailable("not written"))


@plants(7)
def culled_before_confirmed(patch: Patch) -> None:
    def any_of_them(self: Any) -> int:
        gone = 0
        for mutator in list(self._taking.values()):
            if self._bytes > self._memory_bytes:
                self.remove(mutator.name)
                mutator.dead = True
                mutator.written = mutator.applied
                gone += 1
        return gone

    patch(Fleet, "cull", any_of_them)


@plants(7)
def only_one_task_is_told(patch: Patch) -> None:
    """Of loose updates that died: the first flush takes the news, and the others take theirs for confirmed."""

    def taken(self: Any, task: Any) -> Any:
        found, self._failures = {one.name: one.error for one in self._failures}, []
        return found

    patch(Committer, "failures", taken)


@plants(7)
def clocks_not_compared(patch: Patch) -> None:
    patch(collecting, "abs", lambda skew_s: 0.0)
