"""Putting: a row for each message, then a look at the horizon.

    choose positions ──▶ write rows (a batch per time part) ──▶ read the shard's horizon (once)
          ▲                                                        ├─ below: confirmed
          └── above the horizon seen, under the same id ◀──────────┘─ not below: a copy is needed

No compare-and-set. What one put brings into one time part lies in one shard: two requests. A position is the due,
unless the shard was read beyond it already, as far as this node knows.

A copy's position is at most COPY_WITHIN_S after its id's. So a holder that remembers the ids of the last
COPY_WITHIN_S of positions knows every second copy, whatever the clocks say. Where that does not suffice (a horizon
that jumped), the put is unknown: its first row may have been read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

import msgspec

from capellini.model.errors import StoreError, Unavailable, Unknown
from capellini.model.service import Problem, Put
from capellini.model.timed import Scheduled
from capellini.queues.timed.horizon import read_horizon
from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.positions import (
    TICKS_PER_MS,
    TICKS_PER_S,
    id_text,
    part_of,
    position_of,
    shard_in,
    shard_of,
    ticks_of,
    ticks_of_ms,
)
from capellini.queues.timed.rows import TimedRow, drop_part, write_rows
from capellini.queues.timed.telling import tell_put
from capellini.queues.work.place import Gone

PATIENCE_S: Final = 10.0  # from the first sending until a put that is not through is unknown
PAUSE_S: Final = 0.1  # after a write that failed
COPY_WITHIN_S: Final = 30.0  # in positions; longer than the patience and any honest horizon's lead together
MARGIN_TICKS: Final = 50 * TICKS_PER_MS  # above a horizon that another node raises: it may have been raised since
NONCE_BYTES: Final = 8

Wake = Callable[[int, int], None]  # shard, position in ticks: its holder should read so far soon


class Putting:
    def __init__(self, place: TimedPlace, wake: Wake) -> None:
        self._place = place
        self._wake = wake

    async def put(self, messages: Sequence[Scheduled]) -> list[Put | Problem]:
        """Messages without keys. Raises Gone when this generation is over."""
        rows = self.placed(messages)
        groups: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            groups.setdefault(shard_in(row.position), []).append(index)
        results: list[Put | Problem] = [Put(id_text(row.id)) for row in rows]

        async def group(indexes: list[int]) -> None:
            for index, problem in zip(indexes, await self.through([rows[at] for at in indexes]), strict=True):
                if problem is not None:
                    results[index] = problem

        await all_of([group(indexes) for indexes in groups.values()])
        tell_put(self._place, [row for row, result in zip(rows, results, strict=True) if isinstance(result, Put)])
        return results

    def placed(self, messages: Sequence[Scheduled]) -> list[TimedRow]:
        """A row with a new id for each."""
        place = self._place
        nonce, now_ms, options = place.random.randbytes(NONCE_BYTES), place.now_ms(), place.options
        rows = []
        shards: dict[str, int] = {}  # by part: few, for many messages
        for index, message in enumerate(messages):
            due = ticks_of_ms(max(message.due_ms, now_ms))
            part = part_of(due, options.granularity)
            shard = shards.get(part, -1)
            if shard < 0:
                shard = shards[part] = shard_of(nonce, part, options.shards)
            position = position_of(self._above(shard, due) + index, shard, place.random)
            rows.append(TimedRow(position, position, 0, message.due_ms, now_ms, message.entry, message.key))
        return rows

    def _above(self, shard: int, ticks: int) -> int:
        """From here on nothing has been read, as far as this node knows."""
        known = self._place.horizons.get(shard, 0)
        return ticks if ticks > known else known + self._margin()

    def _margin(self) -> int:
        return 1 if self._place.store.alone else MARGIN_TICKS

    async def through(self, rows: Sequence[TimedRow]) -> list[Problem | None]:
        """Write rows of one shard and see that the holder will read them, or has: None for each that is a message now.
        Raises Gone."""
        place = self._place
        shard = shard_in(rows[0].position)
        deadline_s = place.clock.elapsed_s() + PATIENCE_S
        results: list[Problem | None] = [None] * len(rows)
        pending = list(enumerate(rows))
        tried: list[TimedRow] = []  # copies that were too early
        sent = False  # some attempt may have been written
        while True:
            try:
                sent = await self._written([row for _, row in pending], sent, deadline_s)
                horizon = await self._horizon(shard, deadline_s)
            except Gone as gone:
                gone.sent = True
                await self._cleared(shard, [*tried, *(row for _, row in pending)])
                raise
            except StoreError as error:
                return [self._settled(results, index, pending, error) for index in range(len(rows))]
            missed = [] if horizon is None else [(at, row) for at, row in pending if ticks_of(row.position) <= horizon]
            behind = {at for at, _ in missed}
            self._wake_for(shard, horizon, [row for at, row in pending if at not in behind])
            self.passed([row.position for _, row in missed], horizon)
            if not missed or horizon is None:
                return results
            place.guards["put below the horizon written again"] += 1
            tried += [row for _, row in pending]
            pending = []
            for at, row in missed:
                copy = self._copy(row, horizon, len(pending))
                if copy is None or place.clock.elapsed_s() >= deadline_s:
                    place.guards["put too late for another copy"] += 1
                    results[at] = Problem(Unknown.name, "the put may have been done: its shard was read beyond it")
                else:
                    pending.append((at, copy))
            if not pending:
                return results

    async def _cleared(self, shard: int, rows: Sequence[TimedRow]) -> None:
        """Whoever cleared the generation that is over has not seen what was written since. Of what cannot be dropped
        now the time to live ends."""
        granularity = self._place.options.granularity
        with suppress(StoreError):
            for part in sorted({part_of(ticks_of(row.position), granularity) for row in rows}):
                await drop_part(self._place, part, shard)

    def _settled(
        self,
        results: list[Problem | None],
        index: int,
        pending: list[tuple[int, TimedRow]],
        error: StoreError,
    ) -> Problem | None:
        return Problem.of(error) if any(at == index for at, _ in pending) else results[index]

    def _copy(self, row: TimedRow, horizon: int, index: int) -> TimedRow | None:
        """The same message at a later position. None: too far from its id for a holder to know it."""
        ticks = horizon + self._margin() + index
        if ticks > ticks_of(row.id) + int(COPY_WITHIN_S * TICKS_PER_S):
            return None
        position = position_of(ticks, shard_in(row.position), self._place.random)
        return msgspec.structs.replace(row, position=position)

    async def _written(self, rows: Sequence[TimedRow], sent: bool, deadline_s: float) -> bool:
        """True. Raises Unavailable when nothing was or will be written, Unknown when that is not known."""
        place = self._place
        lost = sent
        new = all(row.key is None for row in rows)  # under a key others may have written them already
        while place.clock.elapsed_s() < deadline_s:
            try:
                await write_rows(place, rows, new)
                return True
            except Unavailable:
                if not lost:
                    raise
            except Unknown:
                lost, new = True, False
            await place.clock.sleep(PAUSE_S)
        raise Unknown("the put may have been done: the store did not say")

    async def _horizon(self, shard: int, deadline_s: float) -> int | None:
        """Looked at after the write. What is not known is not confirmed."""
        place = self._place
        while True:
            try:
                return await read_horizon(place, shard)
            except StoreError as error:
                if place.clock.elapsed_s() >= deadline_s:
                    raise Unknown(f"the put may have been done: {error.says}") from error
            await place.clock.sleep(PAUSE_S)

    def passed(self, positions: Iterable[UUID], horizon: int | None) -> None:
        """Something was written there that no reading will show: where the part has been read its holder drops it."""
        granularity = self._place.options.granularity
        for position in positions:
            if horizon is not None and part_of(ticks_of(position), granularity) < part_of(horizon, granularity):
                self._wake(shard_in(position), ticks_of(position))

    def _wake_for(self, shard: int, horizon: int | None, rows: Sequence[TimedRow]) -> None:
        """A holder takes its next step when its horizon comes; what is due before must wake it. A first holder reads
        up to its clock at once: more than that it must not be told, since it reads as far as it is told."""
        read = self._place.now_ticks() if horizon is None else horizon
        early = [ticks_of(row.position) for row in rows if ticks_of_ms(row.due_ms) <= read]
        if early:
            self._wake(shard, max(early))


async def all_of(work: Sequence[Awaitable[None]]) -> None:
    """All of them, to their ends; then the first error, if there was one. When their generation is over: was anything
    written by any of them?"""
    if len(work) == 1:
        await work[0]
        return
    results = await asyncio.gather(*work, return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    for error in failed:
        if isinstance(error, Gone):
            others = len(failed) < len(results)
            error.sent = others or any(isinstance(one, Gone) and one.sent for one in failed)
        raise error
