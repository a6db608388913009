"""How a generation of a queue ends, and what of it is left to be cleared.

    left   (realm "all") ▸ queue, gen.     state leaving|cleared, token; as QUEUE@: its groups, if it is a log
    monoton (queue, generation)            closed here when its generation ends, so that nobody reserves ids any more;
                                           expires OVER_TTL_S after the generation was cleared

Ending a generation (delete, purge; the catalog goes through it)

    (a) note it in `left` ─▶ (b) queues row: deleted, or generation + 1 ─▶ (c) close its monoton ─▶ (d) wait SETTLE_S

A crash after (a) leaves a note about a live generation: `leftovers` does not name it. A crash after (b) leaves a note
whose monoton is open: `leftovers` closes it before naming it, and waits (d) on its own clock. Clearing is the queue
kind's job.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

from capellini.model.clock import Clock
from capellini.model.errors import Overloaded
from capellini.queues.lease import OVER_TTL_S
from capellini.queues.trail import TOKEN, backoff_s, follow, new_name, settle_named, text_of
from capellini.store.interface import Cas, Change, Key, Slice, Store, Value
from capellini.store.schema import LEFT, MONOTON

REALM: Final[Key] = ("all",)
CLOSE_ATTEMPTS: Final = 40  # closing competes with every node's puts, and must win some time
CLEARED_TTL_S: Final = 86_400  # a cleared note is kept for a day, for whoever wonders
PAGE: Final = 1_000


class Endings:
    """Notes of generations that end or have ended. `is_over` reads whether the queues row says so of one; a node that
    knew it before may do so for `settle_s` more."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: random.Random,
        is_over: Callable[[str, int], Awaitable[bool]],
        settle_s: float,
    ) -> None:
        self._store, self._clock, self._random = store, clock, random
        self._is_over, self._settle_s = is_over, settle_s
        self._left_since_s: dict[tuple[str, int], float] = {}

    async def note(self, queue: str, generation: int, bucket_size: int) -> None:
        """(a). Refused: the note is there, from an ending that was begun before."""
        key, mark = (queue, generation), new_name(self._random)
        note: dict[str, Value] = {"state": "leaving", "bucket_size": bucket_size, TOKEN: mark}
        cas = Cas(LEFT, REALM, (Change(key, {TOKEN: None}, note),))
        await settle_named(self._store, self._clock, cas, key, None, mark)

    async def close_monoton(self, queue: str, generation: int) -> None:
        """(c). Works also before the first id was reserved: whoever expects no row is refused then."""
        partition: Key = (queue, generation)
        page = await self._store.read(Slice(MONOTON, partition, limit=1))
        values = page.rows[0].values if page.rows else {}
        for attempt in range(CLOSE_ATTEMPTS):
            if values.get("state") == "closed":
                return
            await self._clock.sleep(backoff_s(attempt, self._random))
            trail, mark = text_of(values, TOKEN), new_name(self._random)
            change = Change((), {TOKEN: trail}, {"state": "closed", TOKEN: follow(trail, mark)})
            cas = Cas(MONOTON, partition, (change,))
            outcome = await settle_named(self._store, self._clock, cas, (), trail, mark)
            if outcome.applied:
                return
            values = outcome.rows.get((), {})
        raise Overloaded(f"the ids of {queue} could not be closed: too many puts at once")

    async def leftovers(self) -> list[tuple[str, int, int]]:
        """Generations that are over everywhere, as (queue, generation, bucket size): nobody reserves ids in them, no
        node's cached record names them. As QUEUE@: its groups of that creation."""
        over: list[tuple[str, int, int]] = []
        leaving = await self._leaving()
        self._left_since_s = {one: since_s for one, since_s in self._left_since_s.items() if one in leaving}
        for (queue, generation), bucket_size in leaving.items():
            if not await self._is_over(queue, generation):
                continue
            since_s = self._left_since_s.get((queue, generation))
            if since_s is None:
                await self.close_monoton(queue, generation)
                self._left_since_s[queue, generation] = self._clock.elapsed_s()
            elif self._clock.elapsed_s() - since_s >= self._settle_s:
                over.append((queue, generation, bucket_size))
        return over

    async def cleared(self, queue: str, generation: int) -> None:
        """Nothing of that generation is left. Its note and its closed monoton expire by themselves."""
        await self._let_monoton_expire(queue, generation)
        key: Key = (queue, generation)
        page = await self._store.read(Slice(LEFT, REALM, start=key, limit=1))
        values = page.rows[0].values if page.rows and page.rows[0].key == key else {}
        if values.get("state") != "leaving":
            return
        trail, name = text_of(values, TOKEN), new_name(self._random)
        change = Change(key, {TOKEN: trail}, {"state": "cleared", "bucket_size": None, TOKEN: follow(trail, name)})
        cas = Cas(LEFT, REALM, (change,), ttl_s=CLEARED_TTL_S)
        await settle_named(self._store, self._clock, cas, key, trail, name)  # refused: another has cleared it
        self._left_since_s.pop((queue, generation), None)

    async def _leaving(self) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        after: Key | None = None
        while True:
            page = await self._store.read(Slice(LEFT, REALM, after=after, limit=PAGE))
            for row in page.rows:
                queue, generation = row.key
                bucket_size = row.values.get("bucket_size")
                if (
                    row.values.get("state") == "leaving"
                    and isinstance(generation, int)
                    and isinstance(bucket_size, int)
                ):
                    found[str(queue), generation] = bucket_size
            if not page.more:
                return found
            after = page.rows[-1].key

    async def _let_monoton_expire(self, queue: str, generation: int) -> None:
        partition: Key = (queue, generation)
        page = await self._store.read(Slice(MONOTON, partition, limit=1))
        for row in page.rows:
            if row.values.get("state") == "closed":
                trail, mark = text_of(row.values, TOKEN), new_name(self._random)
                change = Change((), {TOKEN: trail}, {**row.values, TOKEN: follow(trail, mark)})
                cas = Cas(MONOTON, partition, (change,), ttl_s=OVER_TTL_S)
                await settle_named(self._store, self._clock, cas, (), trail, mark)  # refused: another has done it
