"""What a node does for timed queues and schedules beside serving: holds shards, puts the ticks of schedules.

    every other TURN_S, with a valid lease:   take a fair share of the shards, and of the shelves of schedules
                                              put the ticks that come next
    the lease is lost:                        hand out nothing and confirm nothing, at once
    the end:                                  give all back; others may take it at once

A draining node goes on holding its shards: who has their messages can finish them, and other nodes still reach them.

The lease is maintenance's, and so are the looks at the leases of others. A process that no other can reach (a client
that drives Cassandra itself) holds nothing: it only learns who does.
"""

from __future__ import annotations

import logging
from typing import Final

from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError
from capellini.node.background import Background
from capellini.node.broker import Broker
from capellini.node.maintenance import Maintenance
from capellini.node.timed import TimedBroker
from capellini.queues.assignments import Assignments
from capellini.queues.resting import rest
from capellini.queues.schedules import SHELVES, Schedule, Schedules
from capellini.queues.timed.keeper import TimedKeeper
from capellini.queues.timed.peers import Peers

TURN_S: Final = 1.0
SHARE_TURNS: Final = 2  # shards are shared out every so many turns, and whenever one waits for its first holder
LOOK_TURNS: Final = 5  # shelves are shared out, and schedules read anew, every so many turns: ticks are put far ahead
SCOPE: Final = "schedules"
log: Final = logging.getLogger("capellini.timed")


class Timekeeping:
    """`holds`: others can reach this process, so that it may hold shards."""

    def __init__(self, broker: Broker, maintenance: Maintenance, peers: Peers, holds: bool = True) -> None:
        lease, watcher = maintenance.lease, maintenance.watcher
        store, clock, random = broker.store, broker.clock, broker.random
        self._clock: Clock = clock
        self._random: Chance = random
        self._lease = lease
        self._holds = holds
        self.keeper = TimedKeeper(
            store, clock, random, broker.catalog, lease, watcher, broker.events, broker.max_skew_s, peers,
            broker.put_moved,
        )  # fmt: skip
        self.broker = TimedBroker(broker, self.keeper)
        self.schedules: Schedules | None = None  # set by who puts the kinds together: ticks go to queues of any kind
        self._shelves = Assignments(store, clock, random, lease, watcher, SCOPE)
        self._mine: list[int] = []
        self._known: dict[int, list[Schedule]] = {}  # by shelf; read anew now and then, and after a change
        self._turn = 0
        self._background = Background(self._turns)
        maintenance.clear_others.append(self.keeper.clear)

    def start(self) -> None:
        self._background.start()

    async def stop(self) -> None:
        """Before the lease is given back."""
        await self._background.stop()
        await self._give_back()

    def lost(self, why: str) -> None:
        self._mine = []
        log.warning("the lease is lost (%s): all shards of timed queues are stopped", why)
        self.keeper.emergency_stop(why)

    async def _give_back(self) -> None:
        shelves, self._mine = self._mine, []
        try:
            await self.keeper.stop()
            for shelf in shelves:
                await self._shelves.give_up(_item(shelf))
        except CapelliniError as error:
            log.info("some shards were not given back: %s", error)

    async def _turns(self) -> None:
        while True:
            try:
                if not self._holds:
                    await self.keeper.look()
                elif self._lease.valid():
                    if self._turn % SHARE_TURNS == 0 or self.keeper.soon.is_set():
                        await self.keeper.turn()
                    await self._run_schedules()
                else:
                    self.keeper.soon.clear()  # nothing can be done about it now
            except CapelliniError as error:
                log.debug("timed queues go on later: %s", error)
            self._turn += 1
            await self._pause()

    async def _pause(self) -> None:
        """Until the next turn; shorter when a shard waits for its first holder."""
        await rest(self._clock, self.keeper.soon, self._random.uniform(TURN_S * 0.8, TURN_S * 1.2))

    # Schedules

    async def _run_schedules(self) -> None:
        schedules = self.schedules
        if schedules is None:
            return
        if self._turn % LOOK_TURNS == 0:
            await self._share()
            self._known.clear()
        if schedules.added:
            schedules.added = False
            self._known.clear()
        for shelf in self._mine:
            if shelf not in self._known:
                self._known[shelf] = await schedules.on(shelf)
            for schedule in self._known[shelf]:
                if self._lease.valid() and await schedules.run(schedule):
                    self._known.pop(shelf, None)

    async def _share(self) -> None:
        items = [_item(shelf) for shelf in range(SHELVES)]
        taken, give_up = await self._shelves.turn(items)
        for item in give_up:
            await self._shelves.give_up(item)
        rows = await self._shelves.list() if taken or give_up else self._shelves.rows
        self._mine = [shelf for shelf in range(SHELVES) if (r := rows.get(_item(shelf))) and self._shelves.mine(r)]


def _item(shelf: int) -> str:
    return f"shelf:{shelf}"
