"""Where partitions lie in a Cassandra cluster: its ring, read now and then, and who of it answers.

The ring is what one server tells of itself and of its peers, both asked at the same server: its peers are all but
itself. What a keyspace's replication is can change while it is in use, so it is read with the ring. A ring that is a
little old names servers that hold a partition no more: placement is worse for a moment, and nothing else. So whoever
asks does not wait for long until it is read anew: that may take seconds when a server hangs, which is when a new place
is looked for.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from capellini.model.clock import Clock
from capellini.model.errors import StoreError
from capellini.store.cassandra_health import Health
from capellini.store.cassandra_session import Session
from capellini.store.interface import Key, Level, Replica, Table
from capellini.store.ring import MURMUR, Ring, Server, homes_of, key_bytes, token_of

RING_S: Final = 15.0  # servers seldom join or leave
AGAIN_S: Final = 1.0  # when it could not be read
PATIENCE_S: Final = 0.5  # for a new ring where there is an older one: servers that are well answer within milliseconds
_REPLICATION: Final = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?"


class Placement:
    def __init__(self, session: Session, clock: Clock) -> None:
        self._session, self._clock = session, clock
        self._health = Health(session.address, clock)
        self._ring: Ring | None = None
        self._until_s = 0.0
        self._reading: asyncio.Task[None] | None = None  # one for all who ask
        self.homes: tuple[str, ...] = ()  # data centres with copies, where local levels mean something

    async def replicas(self, table: Table, partition: Key) -> tuple[Replica, ...]:
        ring = await self._current()
        if ring is None:
            return ()
        found = ring.replicas(token_of(key_bytes(table.partition, partition)))
        up = await self._health.answering(server.address for server in found)
        return tuple(Replica(server.address, server.dc, server.address in up) for server in found)

    async def _current(self) -> Ring | None:
        if self._clock.elapsed_s() >= self._until_s:
            reading = self._reading
            if reading is None:
                reading = self._reading = asyncio.get_running_loop().create_task(self._read_anew())
            done, _ = await asyncio.wait({reading}, timeout=None if self._ring is None else PATIENCE_S)
            for each in done:
                each.result()  # what nobody foresaw is not to go unheard
        return self._ring

    async def _read_anew(self) -> None:
        try:
            with self._session.call():  # whoever closes the store waits for it
                await self.read()
        except StoreError:
            self._until_s = self._clock.elapsed_s() + AGAIN_S
        finally:
            self._reading = None

    async def read(self) -> None:
        """Raises Unavailable; then what was known stays."""
        rows = await self._session.members()
        replication = await self._session.read(_REPLICATION, [self._session.address.keyspace], Level.ONE)
        said: dict[str, str] = dict(replication[0][0]) if replication else {}
        murmur = all(str(row[4]).endswith(MURMUR) for row in rows if row[4])
        self._ring = Ring(servers_of(rows), said if murmur else {})
        dcs = {server.dc for server in self._ring.servers}
        self.homes = homes_of(said) or (tuple(dcs) if len(dcs) == 1 else ())
        self._until_s = self._clock.elapsed_s() + RING_S


def servers_of(rows: list[list[Any]]) -> list[Server]:
    """Rows of address, data centre, rack, tokens; one that is just joining has no tokens, and is left out."""
    return [
        Server(str(address), str(dc), str(rack), tuple(sorted(int(token) for token in tokens)))
        for address, dc, rack, tokens, _ in rows
        if address and dc and tokens
    ]
