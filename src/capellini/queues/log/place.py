"""What the parts of one log queue in one node share: the store, the lease, the counts of what was decided.

A place belongs to one generation of one queue. Nothing in it outlives the generation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from capellini.model.clock import Chance, Clock
from capellini.model.options import OFF, LogOptions, is_internal
from capellini.queues.events import Events
from capellini.queues.lease import Lease, Watcher
from capellini.queues.trouble import Trouble
from capellini.store.interface import Key, Page, Slice, Store
from capellini.store.local import Nearby


class LogPlace:
    """`home`: the data centre whose extents this node opens and seals, of which `store` is the view; empty: there is
    one for all. `everywhere`: the whole store, for what all homes share. `abroad`: who lives in another home."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Chance,
        events: Events,
        name: str,
        generation: int,
        secret: bytes,
        options: LogOptions,
        max_skew_s: float,
        guards: Counter[str],
        lease: Lease,
        home: str = "",
        everywhere: Store | None = None,
        abroad: Callable[[str], Watcher] | None = None,
    ) -> None:
        self.store = store
        self.everywhere = everywhere or store
        self.abroad = abroad
        self.clock = clock
        self.random = random
        self._events = events.of(OFF) if is_internal(name) else events  # the journal does not tell of itself
        self.name = name
        self.generation = generation
        self.secret = secret
        self.options = options  # replaced when they change
        self.max_skew_ms = int(max_skew_s * 1000)
        self.guards = guards
        self.trouble = Trouble(clock, name)
        self.lease = lease
        self.home = home
        self._nearby = Nearby(self.everywhere, clock)
        self.partition: Key = (name, generation)
        self.failed: dict[str, float] = {}  # extents whose blocks failed lately, and when: see `placing`
        self.block_bytes = 64 * 1024  # of a block that was read, on average: so that a page is neither large nor small

    @property
    def events(self) -> Events:
        return self._events.of(self.options.journal)

    @property
    def homes(self) -> tuple[str, ...]:
        """All there are, this node's first."""
        return (self.home, *(home for home in self.store.homes if home != self.home)) if self.home else ("",)

    @property
    def node(self) -> str:
        return self.lease.node

    @property
    def chained(self) -> bool:
        return self.options.mode == "cp"

    async def read_shared(self, slice: Slice) -> Page:
        """Of what all homes share and seldom change: where a home goes on by itself, what is known there will do."""
        if not self.home:
            return await self.everywhere.read(slice)
        page, sure = await self._nearby.read(slice)
        if not sure:
            self.guards["read at home: the others do not answer"] += 1
        return page

    def now_ms(self) -> int:
        return int(self.clock.now_s() * 1000)
