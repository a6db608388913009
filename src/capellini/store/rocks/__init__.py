"""The store in a folder: RocksDB inside this process.

    store.py      RocksStore: the five operations, opening and closing
    batches.py    what each operation writes, as one RocksDB batch
    database.py   the open RocksDB: how it is set, and where the rows of a partition are
    stamps.py     timestamps that only rise
    upkeep.py     clearing away what has served
    copying.py    a copy of a folder, also of one that another process has open

    write, compare_and_set ─▶ decide ─▶ one RocksDB batch, at once, on the loop ─▶ wait for the shared fsync
    read                   ─▶ straight from RocksDB, on the loop

One process has the folder open (store/folder.py), and all its calls come from one event loop. What a call decides
and writes happens between two awaits, so compare-and-sets are linear without any lock.

A reader may see what is not yet synced. That is sound: whoever acts on it and wants a confirmation writes later,
and a later fsync makes everything before it durable too (there is one log). If the machine stops before, both are
gone.

Key layout: store/layout.py. Rows as bytes: store/cells.py. Where RocksDB fails: store/worker.py.
"""

from capellini.store.rocks.store import RocksStore

__all__ = ["RocksStore"]
