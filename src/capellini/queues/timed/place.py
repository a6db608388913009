"""What the parts of one timed queue in one node share: the store, clocks, what is known of horizons, the counts of
what was decided.

A place belongs to one generation of one queue. Nothing in it outlives the generation.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Final

from capellini.model.clock import Chance, Clock
from capellini.model.options import TimedOptions
from capellini.queues.events import Events
from capellini.queues.timed.positions import ticks_of_ms
from capellini.queues.trouble import Trouble
from capellini.store.checks import MAX_TTL_S
from capellini.store.interface import Key, Store

TTL_STEP_S: Final = 86_400 * 7  # lives are rounded up to weeks: what expires together lies together
LAST_EXPIRY_S: Final = 2_145_916_800  # 2038-01-01: Cassandra refuses what would expire after 2038-01-19
SNAPSHOT_BYTES: Final = 64 * 1024  # of changes at least before the next snapshot of a shard's records
KNOWN_PARTS: Final = 40_000  # known to be on the list: a year of hours in four shards, some 8 MB

Register = Callable[[int], Awaitable[None]]  # shard: make sure that it will be found and worked


class TimedPlace:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Chance,
        events: Events,
        name: str,
        generation: int,
        secret: bytes,
        options: TimedOptions,
        max_skew_s: float,
        guards: Counter[str],
        late_ms: deque[int],
        register: Register,
    ) -> None:
        self.store = store
        self.clock = clock
        self.random = random
        self._events = events
        self.name = name
        self.generation = generation
        self.secret = secret
        self.options = options
        self.max_skew_ms = int(max_skew_s * 1000)
        self.guards = guards
        self.trouble = Trouble(clock, name)
        self.snapshot_bytes = SNAPSHOT_BYTES
        self.late_ms = late_ms  # how late messages were handed out first
        self.register = register
        self.partition: Key = (name, generation)
        self.horizons: dict[int, int] = {}  # by shard: the highest that this node has seen, in ticks
        self.listed: set[Key] = set()  # partitions of rows that are on the list of parts
        self.on_visible: list[Callable[[], None]] = []  # called when something may have become visible

    @property
    def events(self) -> Events:
        return self._events.of(self.options.journal)

    def now_ms(self) -> int:
        return int(self.clock.now_s() * 1000)

    def now_ticks(self) -> int:
        return ticks_of_ms(self.now_ms())

    def saw_horizon(self, shard: int, ticks: int) -> None:
        if ticks > self.horizons.get(shard, 0):
            self.horizons[shard] = ticks

    def saw_part(self, partition: Key) -> None:
        if len(self.listed) >= KNOWN_PARTS:
            self.listed.clear()  # seldom; each costs one small write to be known again
        self.listed.add(partition)

    def woken(self) -> None:
        for call in self.on_visible:
            call()

    def ttl_s(self, due_ms: int) -> int | None:
        """A safety net only: what lies in a partition that nobody ever dropped goes some time. None: as long as the
        store's clock allows."""
        now_s = self.clock.now_s()
        life_s = max(0.0, due_ms / 1000 - now_s) + self.options.retention_s
        ttl_s = math.ceil(life_s / TTL_STEP_S) * TTL_STEP_S
        return ttl_s if ttl_s <= MAX_TTL_S and now_s + ttl_s < LAST_EXPIRY_S else None
