"""From an address to an open store."""

from __future__ import annotations

from pathlib import Path

from capellini.model.address import Address, CassandraAddress, RocksAddress
from capellini.model.clock import Clock, RealClock
from capellini.model.errors import Invalid
from capellini.store.interface import Store
from capellini.store.schema import TABLES


async def open_store(address: Address, *, create: bool = True, clock: Clock | None = None) -> Store:
    """Open the store and make sure that its tables are there. Raises CannotOpen with what to do."""
    clock = clock or RealClock()
    store: Store
    match address:
        case RocksAddress():
            from capellini.store.rocks import RocksStore

            store = await RocksStore.open(_folder(address), create=create, clock=clock)
        case CassandraAddress():
            from capellini.store.cassandra import CassandraStore

            store = await CassandraStore.open(address)
        case _:
            raise Invalid(f"{address} is not the address of a store: use rocks:FOLDER or cassandra://HOST/KEYSPACE")
    try:
        await store.prepare(TABLES, create=create)
    except BaseException:
        await store.close()
        raise
    return store


def _folder(address: RocksAddress) -> Path:
    """From the root: the store opens files all the time, wherever its program has gone since."""
    return Path(address.folder).absolute()
