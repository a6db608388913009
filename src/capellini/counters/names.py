"""Which state each counter has: fixed at its first use by compare-and-set, then remembered.

counter_names  (shelf) ▸ name    kind, token        shelves by hash, so that first uses of many counters meet less

Statistics of queues are known by how their names begin, and need no row: a new queue costs no compare-and-set here.
"""

from __future__ import annotations

import heapq
import zlib
from typing import Final

from capellini.counters.shards import check_name
from capellini.counters.states.queue import QueueTotals
from capellini.model.clock import Chance, Clock
from capellini.model.counters import MOST_LISTED, QUEUES, Named
from capellini.model.errors import Conflict, Invalid
from capellini.store.interface import ABSENT, Cas, Change, Level, Outcome, Slice, Store, settle
from capellini.store.schema import COUNTER_NAMES

SHELVES: Final = 8
TOKEN_BITS: Final = 64


def shelf_of(name: str) -> int:
    return zlib.crc32(name.encode()) % SHELVES


def of_queue(name: str) -> bool:
    """Is it the name of a queue's statistics?"""
    return name.startswith(QUEUES)


class Names:
    def __init__(self, store: Store, clock: Clock, random: Chance) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self.known: dict[str, str] = {}

    async def fix(self, name: str, kind: str) -> None:
        """From now on this counter has this state. Raises Conflict when it has another one."""
        if of_queue(name):
            if kind != QueueTotals.kind:
                raise Invalid(f"{name} takes no updates: names that begin with {QUEUES} are those of statistics")
            return
        known = self.known.get(name)
        if known is None:
            known = self.known[name] = await self._fixed(check_name(name), kind)
        if known != kind:
            raise Conflict(f"counter {name} is a {known}, and takes no updates of a {kind}")

    async def _fixed(self, name: str, kind: str) -> str:
        token = f"{self._random.getrandbits(TOKEN_BITS):016x}"
        change = Change((name,), ABSENT, {"kind": kind, "token": token})
        cas = Cas(COUNTER_NAMES, (shelf_of(name),), (change,))

        def mine(outcome: Outcome) -> bool:
            return outcome.rows.get((name,), {}).get("token") == token

        outcome = await settle(self._store, cas, mine, self._clock.sleep)
        return kind if outcome.applied else str(outcome.rows[(name,)]["kind"])

    async def kind_of(self, name: str) -> str | None:
        """None: there is no such counter."""
        if of_queue(name):
            return QueueTotals.kind
        known = self.known.get(name)
        if known is None:
            slice = Slice(COUNTER_NAMES, (shelf_of(check_name(name)),), start=(name,), limit=1, level=Level.SERIAL)
            for row in (await self._store.read(slice)).rows:
                if row.key == (name,):
                    known = self.known[name] = str(row.values["kind"])
        return known

    async def listed(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[Named]:
        """By name."""
        if not 1 <= limit <= MOST_LISTED:
            raise Invalid(f"limit goes from 1 to {MOST_LISTED}, not {limit!r}")
        shelves = [await self._shelf(shelf, prefix, after, limit) for shelf in range(SHELVES)]
        return list(heapq.merge(*shelves, key=lambda one: one.name))[:limit]

    async def _shelf(self, shelf: int, prefix: str, after: str, limit: int) -> list[Named]:
        start = max(prefix, after)
        found: list[Named] = []
        slice = Slice(COUNTER_NAMES, (shelf,), start=(start,) if start else None, limit=limit + 1)
        for row in (await self._store.read(slice)).rows:
            name = str(row.key[0])
            if not name.startswith(prefix):
                break
            if name > after or not after:
                found.append(Named(name, str(row.values["kind"])))
        return found
