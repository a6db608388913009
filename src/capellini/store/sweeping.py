"""What of a record has served and may go. Decisions only; `RocksStore.sweep` carries them out.

A cell that expired or was deleted goes on winning over older writes, so it may not vanish at once: its value goes,
its timestamp stays as a tombstone for a time of grace. Conditional columns need no grace: compare-and-sets come one
after another.
"""

from __future__ import annotations

from typing import Final

from capellini.store.cells import EXPIRING, IN_CELLS, TOMBSTONE, WHOLE, Cells, RowCodec

GRACE_US: Final = 86_400 * 1_000_000  # no write is held back for a day within one process


def swept(codec: RowCodec, conditional: frozenset[int], record: bytes, now_us: int) -> bytes | None:
    """The record as it should be now: the same object when nothing is to be done, None when it may go."""
    if record[0] == WHOLE:
        return record
    if record[0] != IN_CELLS and int.from_bytes(record[9:17], "big", signed=True) > now_us:
        return record
    old = codec.parse(record)
    kept: Cells = {}
    for at, cell in old.items():
        timestamp_us, rank, expiry_us, _value = cell
        dead = rank == TOMBSTONE or (rank == EXPIRING and expiry_us <= now_us)
        if not dead:
            kept[at] = cell
        elif at not in conditional and expiry_us + GRACE_US > now_us:
            kept[at] = (timestamp_us, TOMBSTONE, expiry_us, b"")
    if not kept:
        return None
    return record if kept == old else codec.record(kept)
