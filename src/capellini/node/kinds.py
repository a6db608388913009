"""All kinds of queues of one process, behind one service: what works them in the background starts and stops together.

Dispatcher ──▶ Broker (work)  ·  Timekeeping (timed, schedules)  ·  Logkeeping (log)
                                                                          └── Journaling: what happened, in a log
                                                                              queue of the nodes' own
"""

from __future__ import annotations

from capellini.model.options import JOURNAL
from capellini.node.broker import Broker
from capellini.node.dispatcher import Dispatcher
from capellini.node.journal import Journaling, JournalSink
from capellini.node.logkeeping import Logkeeping
from capellini.node.maintenance import Maintenance
from capellini.node.timekeeping import Timekeeping
from capellini.queues.log.peers import PREFIX
from capellini.queues.timed.peers import NoPeers, Peers


class Kinds:
    """`holds`: others can reach this process, so that it may own shards and extents."""

    def __init__(
        self,
        broker: Broker,
        maintenance: Maintenance,
        peers: Peers | None = None,
        holds: bool = True,
        journal: JournalSink | None = None,
    ) -> None:
        peers = peers or NoPeers()
        self.timed = Timekeeping(broker, maintenance, peers, holds)
        self.log = Logkeeping(broker, maintenance, peers, holds, self.timed.keeper)
        self.service = Dispatcher(broker, self.timed.broker, self.log.broker)
        self.timed.schedules = self.service.schedules
        self.journal: Journaling | None = None
        if journal is not None:
            self.journal = Journaling(journal, broker.catalog, self.log.keeper, broker.clock, broker.random)
        maintenance.lease.on_lost = self._lost

    def start(self) -> None:
        self.timed.start()
        self.log.start()
        if self.journal is not None:
            self.journal.start()

    async def stop(self) -> None:
        """Give back what is owned, but for the journal, which hears of it."""
        await self.log.stop(but=JOURNAL)
        await self.timed.stop()

    async def finish(self) -> None:
        """After the service was closed, and before the lease is given back: the journal ends with all that happened."""
        if self.journal is not None:
            await self.journal.finish()
        await self.log.stop()

    def _lost(self, why: str) -> None:
        self.timed.lost(why)
        self.log.lost(why)

    async def serve_peer(self, queue: str, operation: str, payload: bytes) -> bytes:
        """What another node asks of what is owned here."""
        keeper = self.log.keeper if operation.startswith(PREFIX) else self.timed.keeper
        return await keeper.serve(queue, operation, payload)
