"""What a node does for log queues beside serving: writes extents, reads them for groups, seals what dead nodes left.

    every TURN_S, with a valid lease:   a turn of the keeper (`queues.log.keeper`); sooner when extents have changed
    where there are data centres:       a second lease, within this one (`queues.log.homes`)
    the lease is lost:                  hand out nothing and confirm nothing, at once
    the end:                            seal, and give up what is read; others may go on at once

A process that no other can reach (a client that drives Cassandra itself) writes and reads nothing itself: it sends
puts to nodes that do, and asks the owners of extents for messages.
"""

from __future__ import annotations

import logging
from typing import Final

from capellini.model.errors import CapelliniError, Conflict, StoreError
from capellini.node.background import Background
from capellini.node.broker import Broker
from capellini.node.delays import Delays
from capellini.node.log import LogBroker
from capellini.node.maintenance import Maintenance
from capellini.queues.log.homes import Home
from capellini.queues.log.keeper import LogKeeper
from capellini.queues.resting import rest
from capellini.queues.timed.keeper import TimedKeeper
from capellini.queues.timed.peers import Peers

TURN_S: Final = 1.0
LOOK_S: Final = 3.0  # between looks at the leases of data centres, as for the one that holds everywhere
CONFLICT_S: Final = 10.0  # another process has this node's name: it may end
log: Final = logging.getLogger("capellini.log")


class Logkeeping:
    """`holds`: others can reach this process, so that it may write and read extents."""

    def __init__(self, broker: Broker, maintenance: Maintenance, peers: Peers, holds: bool, timed: TimedKeeper) -> None:
        self._lease, self._watcher = maintenance.lease, maintenance.watcher
        self._clock, self._random = broker.clock, broker.random
        self._holds = holds
        self.home: Home | None = None
        if broker.store.homes:
            self.home = Home(broker.store, broker.clock, broker.random, broker.node_name, on_lost=self._lost_at_home)
        self.keeper = LogKeeper(
            broker.store, broker.clock, broker.random, broker.catalog, self._lease, self._watcher, broker.events,
            broker.max_skew_s, peers, broker.put_moved, holds, self.home,
        )  # fmt: skip
        self.delays = Delays(broker, maintenance, timed, self.keeper)
        self.broker = LogBroker(broker, self.keeper, self.delays, self._address_of)
        self._background = Background(self._turns)
        self._homework = Background(self._turns_at_home)
        maintenance.clear_others.append(self.keeper.clear)

    def _address_of(self, node: str) -> str:
        if not node or node == self._lease.node:
            return self._lease.address
        return self._watcher.address(node) or (self.home.address(node) if self.home is not None else "")

    def start(self) -> None:
        if self.home is not None and self.home.name:
            self.home.lease.address = self._lease.address
            self._homework.start()
        self._background.start()
        if self._holds:
            self.delays.start()

    async def stop(self, but: str = "") -> None:
        """Before the lease is given back. `but`: a queue that goes on for now."""
        await self.delays.stop()
        await self._background.stop()
        await self.keeper.stop(but)
        if not but and self.home is not None:
            await self._homework.stop()
            try:
                await self.home.lease.stop()
            except StoreError as error:
                log.info("the lease of data centre %s was not given back: %s", self.home.name, error)

    def lost(self, why: str) -> None:
        if self.keeper.emergency_stop(why):
            log.warning("the lease is lost (%s): all extents written and read under it are stopped", why)

    def _lost_at_home(self, why: str) -> None:
        home = self.home
        if home is not None and self.keeper.emergency_stop(why, home.lease):
            log.warning("the lease of data centre %s is lost (%s): its extents are stopped here", home.name, why)

    async def _turns_at_home(self) -> None:
        """The lease of this data centre, and those of others."""
        home = self.home
        assert home is not None
        while True:
            try:
                if self._holds and not home.lease.valid():
                    await home.lease.start()
                await home.look()
            except Conflict as error:
                log.error("%s", error)
                await self._clock.sleep(CONFLICT_S)
            except CapelliniError as error:
                log.debug("data centre %s is looked at later: %s", home.name, error)
            await self._clock.sleep(self._random.uniform(LOOK_S * 0.8, LOOK_S * 1.2))

    async def _turns(self) -> None:
        while True:
            try:
                if not self._holds:
                    await self._watcher.look()
                elif self.keeper.may_act:
                    await self.keeper.turn()
                else:
                    self.keeper.soon.clear()  # nothing can be done about it now
            except CapelliniError as error:
                log.debug("log queues go on later: %s", error)
            await self._pause()

    async def _pause(self) -> None:
        """Until the next turn; shorter when extents have changed."""
        await rest(self._clock, self.keeper.soon, self._random.uniform(TURN_S * 0.8, TURN_S * 1.2))
