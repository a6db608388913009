"""Tables and stores for the tests of the embedded store."""

from __future__ import annotations

from pathlib import Path

from capellini.model.clock import RealClock
from capellini.store.interface import Column, Slice, Table, Type, Value
from capellini.store.rocks import RocksStore

MOST_ROWS = 1_000_000  # more than any test writes
PLAIN = Table(
    "plain", "", (Column("p", Type.TEXT),), (Column("k", Type.INT),), (Column("v", Type.BLOB), Column("n", Type.INT))
)
CHECKED = Table(
    "checked", "", (Column("p", Type.TEXT),), columns=(Column("v", Type.TEXT),), conditional=frozenset({"v"})
)
APART = Table("apart", "", (Column("p", Type.TEXT),), (Column("k", Type.INT),), (Column("v", Type.BLOB),), apart=True)
TABLES = (PLAIN, CHECKED, APART)


async def opened(folder: Path, clock: RealClock | None = None, room_bytes: int = 0) -> RocksStore:
    store = await RocksStore.open(folder, clock=clock or RealClock(), room_bytes=room_bytes)
    await store.prepare(TABLES)
    return store


def row(key: int, value: bytes = b"x", number: int = 1) -> tuple[tuple[int], dict[str, Value]]:
    return (key,), {"v": value, "n": number}


async def keys(store: RocksStore, p: str = "p", table: Table = PLAIN) -> list[object]:
    return [row.key[0] for row in (await store.read(Slice(table, (p,), limit=MOST_ROWS))).rows]
