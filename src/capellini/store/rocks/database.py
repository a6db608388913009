"""The open RocksDB: how it is set, and where the rows of a partition are.

Most partitions share one column family, each under its own prefix. A partition of a table that is `apart` has a column
family of its own, made at its first write and dropped with it. Which one is written down beside it (store/layout.py):
a column family that nothing names was left by a crash between the two, and goes when the folder is opened.

There may be MOST_APART of them. RocksDB writes the options of all column families anew whenever one is made or dropped,
and reads them again to be sure: 40 ms with 50 of them, half a second with 500, while nothing else runs; and each holds
two files open. Further partitions share the common one, and are dropped by a range delete.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Final

import msgspec
from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    CompactOptions,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from capellini.model.errors import CannotOpen
from capellini.store import folder as folders
from capellini.store import forks
from capellini.store.layout import APART_KEYS, BEYOND, HEAD, ROWS, SHARED_KEYS, Plan, pack_marks

CACHE_BYTES: Final = 32 * 1024 * 1024  # one block cache for everything: hot rows are in memtables anyway
MEMTABLE_BYTES: Final = 64 * 1024 * 1024  # what is consumed before it is full goes to no file
MEMTABLE_APART_BYTES: Final = 16 * 1024 * 1024  # of each space apart: what is in them stays
# Where the disk has little room: a compaction needs as much again as it reads. Once one found none RocksDB begins none
# any more that might not either, however little would be left of what it reads.
SMALL: Final = {
    "write_buffer_size": 4 * 1024 * 1024,
    "target_file_size_base": 4 * 1024 * 1024,
    "max_bytes_for_level_base": 16 * 1024 * 1024,
    "max_compaction_bytes": 32 * 1024 * 1024,
    "level0_slowdown_writes_trigger": 12,
    "level0_stop_writes_trigger": 20,
}
FILES_APART: Final = 64  # of one space apart, a gigabyte: with more, a look at one place asks too many of them
MEMTABLES_BYTES: Final = 128 * 1024 * 1024  # of all column families together
LOG_BYTES: Final = 256 * 1024 * 1024  # a larger log makes its oldest column families flush: bounds the time to open
LESS: Final = 4  # a fourth of these where the disk had little room when it was opened
BLOOM_BITS: Final = 10  # per key: one of a hundred misses reads a block for nothing
METADATA_BYTES: Final = 4_096  # a piece of an index or a filter
OPEN_FILES: Final = 512
MOST_APART: Final = 96  # column families
ATTEMPTS: Final = 50  # to open a secondary, in 10 to 60 ms each, while another process changes files


class Space(msgspec.Struct, frozen=True):
    """Where the rows of a partition are: in the common column family below a prefix, or in one of their own."""

    rows: Any  # the Rdict to read from
    handle: Any  # of its column family, for batches; None: the common one
    base: bytes  # what comes before the clustering key
    upper: bytes | None  # above all its rows
    number: int = 0  # of its own column family


class Database:
    """RocksDB in `folder`. With `scratch` a secondary: it reads what another process writes."""

    def __init__(self, folder: Path, create: bool, scratch: Path | None = None) -> None:
        """Raises CannotOpen."""
        if forks.threads_lost():
            raise CannotOpen(
                f"{folder} cannot be opened here: this process was forked from one that had opened a folder itself. "
                "Open none before the fork, or let another process serve this one (capellini serve)"
            )
        self.folder: Final = folder
        self.scratch: Final = scratch
        self.apart: dict[bytes, Space] = {}  # by the partition's prefix
        self.shared: dict[bytes, Space] = {}  # those that should be apart and are not
        cache = Cache(CACHE_BYTES)  # one for all
        self.large = folders.free_bytes(folder) >= folders.AMPLE_BYTES
        self._options, self._apart = (_options(cache, create, self.large, apart) for apart in (False, True))
        if scratch is not None:
            for options in (self._options, self._apart):
                options.set_max_open_files(-1)  # it must hold its files open: the other process deletes them
        self._synced = WriteOptions()
        self._synced.sync = True
        self._synced.memtable_insert_hint_per_batch = True  # rows mostly come in order
        self._beside = CompactOptions()
        self._beside.set_exclusive_manual_compaction(False)
        self._families: set[str] = set()  # those of spaces apart, when it was opened
        self.rows: Any = self._opened()
        forks.last_in_children(self)
        if scratch is None and not self.large:
            self.shrink()

    def _opened(self) -> Any:
        """A secondary reads the list of files first and the logs then. What the other process moved from a log into a
        file in between is in neither: rows are missing in the middle. Then there is another file, and it is opened
        again. (RocksDB can also catch up, but ends with a segmentation fault where a column family was dropped.)
        And it leaves out tables that were lost or cut short, and says nothing: who opens for reading only is told, and
        need not read the logs for it."""
        if self.scratch is None:
            return self._open(AccessType.read_write())
        failed = CannotOpen(f"{self.folder} changes faster than it can be read: try again, or stop what writes to it")
        whole = False
        self.scratch.mkdir(exist_ok=True)
        for _ in range(ATTEMPTS):
            seen = self._files()
            try:
                if not whole:
                    self._open(AccessType.read_only(False), logs=self.scratch).close()
                    whole = True
                rows = self._open(AccessType.secondary(str(self.scratch)))
            except CannotOpen as error:  # perhaps a file or a family is gone that the list still named
                failed = error
                continue
            if self._files() == seen:
                return rows
            rows.close()
        raise failed

    def _open(self, access: AccessType, logs: Path | None = None) -> Any:
        """`logs`: where they are looked for, if not beside the tables."""
        path = self.folder / folders.DATA_FOLDER
        self._options.set_wal_dir(str(logs or path))
        try:
            names = Rdict.list_cf(str(path), self._options) if (path / "CURRENT").exists() else []
            self._families = set(names) - {"default"}
            families = dict.fromkeys(self._families, self._apart)
            return Rdict(str(path), self._options, column_families=families or None, access_type=access)
        except Exception as error:  # rocksdict raises plain Exception for everything
            raise CannotOpen(f"{self.folder} cannot be opened: {_told(str(error))}") from error

    def _files(self) -> frozenset[str]:
        """Logs and tables: each has a name of its own for ever."""
        try:
            names = os.listdir(self.folder / folders.DATA_FOLDER)
        except OSError as error:
            raise CannotOpen(f"{self.folder} cannot be opened: {error.strerror}") from error
        return frozenset(name for name in names if name.endswith((".log", ".sst")))

    def load(self) -> None:
        """Find the spaces apart. Raises CannotOpen."""
        missing: set[int] | None = None
        for _ in range(ATTEMPTS):
            before, missing = missing, self._find_spaces()
            # A secondary: of a family that was made after the list of them was read there is nothing to be seen. One
            # that stays missing was dropped, and the crash came before the line that names it was.
            if not missing or missing == before or self.scratch is None:
                return
            self.open_again()
        raise CannotOpen(f"{self.folder} changes faster than it can be read: try again, or stop what writes to it")

    def _find_spaces(self) -> set[int]:
        """The column families that are named and not there."""
        prefixes = [key[len(SHARED_KEYS) :] for key, _ in self.registered(SHARED_KEYS)]
        self.shared = {prefix: self._common(prefix) for prefix in prefixes}
        named = {int.from_bytes(key[len(APART_KEYS) :], "big"): prefix for key, prefix in self.registered(APART_KEYS)}
        self.apart = {
            prefix: self._own_space(number) for number, prefix in named.items() if f"a{number}" in self._families
        }
        if self.scratch is None:
            for name in self._families - {f"a{number}" for number in named}:
                self.rows.drop_column_family(name)  # made or dropped, and the crash came before it was written down
        return {number for number in named if f"a{number}" not in self._families}

    def open_again(self) -> None:
        """A secondary: see what was written since, and the column families that there are now. Raises CannotOpen."""
        self.close()
        self.rows = self._opened()

    def registered(self, start: bytes) -> list[tuple[bytes, bytes]]:
        """What the store wrote about itself under keys that begin so."""
        options = upper(start[:-1] + bytes([start[-1] + 1]))
        return list(self.rows.items(from_key=start, read_opt=options))

    def flush(self) -> None:
        """An fsync of the log."""
        self.rows.flush_wal(True)

    def write_synced(self, made: WriteBatch) -> None:
        """A batch, and an fsync of all that the log has with it: cheaper than one after the other."""
        self.rows.write(made, write_opt=self._synced)

    def files_bytes(self) -> int:
        """Of the common column family: most of what is written."""
        return self.rows.property_int_value("rocksdb.total-sst-files-size") or 0

    def compact(self, low: bytes, high: bytes) -> None:
        """What was deleted between these keys gives its room back; what is in memory is flushed before."""
        self.rows.compact_range(low, high, self._beside)

    def shrink(self) -> None:
        """The disk may soon have no room for what is in memory, and for what compactions write before they give any
        back: the next write flushes, and all pieces are small from now on."""
        self.large = False
        with contextlib.suppress(Exception):  # of a file of its own that cannot be written: it holds all the same
            self.rows.set_options({name: str(value) for name, value in SMALL.items()})

    def hurry(self) -> None:
        """What is being compacted is given up, and `close` flushes nothing: the log has it."""
        self.rows.cancel_all_background(False)

    def checkpoint(self, path: Path) -> None:
        Checkpoint(self.rows).create_checkpoint(str(path))

    def close(self) -> None:
        for space in self.apart.values():
            space.rows.close()
        self.apart = {}
        self.rows.close()

    # ---- places

    def space(self, plan: Plan, prefix: bytes) -> Space | None:
        """None: a space apart that does not exist."""
        if plan.table.apart:
            return self.apart.get(prefix) or self.shared.get(prefix)
        return self._common(prefix)

    def _common(self, prefix: bytes) -> Space:
        return Space(self.rows, None, prefix + ROWS, prefix + BEYOND)

    def make_space(self, prefix: bytes, now_us: int) -> tuple[Space, WriteBatch]:
        """A new space apart, and the batch that writes it down: before anything that is then written there."""
        made = WriteBatch(raw_mode=True)
        if len(self.apart) >= MOST_APART:
            made.put(SHARED_KEYS + prefix, b"")
            made.put(prefix + HEAD, self.rows.get(prefix + HEAD) or pack_marks((), now_us))
            space = self.shared[prefix] = self._common(prefix)
            return space, made
        number = max((space.number for space in self.apart.values()), default=0) + 1
        self.make_family(number)
        made.put(APART_KEYS + number.to_bytes(8, "big"), prefix)
        if self.rows.get(prefix + HEAD) is None:
            made.put(prefix + HEAD, pack_marks((), now_us))  # by which `partitions` finds it
        space = self.apart[prefix] = self._own_space(number)
        return space, made

    def make_family(self, number: int) -> Any:
        """A column family for a space apart; its handle."""
        self.rows.create_column_family(f"a{number}", self._apart)
        return self.rows.get_column_family_handle(f"a{number}")

    def forget(self, prefix: bytes, space: Space | None) -> None:
        """A space apart goes as a whole, once the batch that says so is written."""
        if space is not None:
            self.shared.pop(prefix, None)
        if space is not None and space.number:
            del self.apart[prefix]
            space.rows.close()
            self.rows.drop_column_family(f"a{space.number}")

    def _own_space(self, number: int) -> Space:
        name = f"a{number}"
        return Space(self.rows.get_column_family(name), self.rows.get_column_family_handle(name), b"", None, number)


def _told(says: str) -> str:
    """RocksDB's words in one line, and what to do."""
    lost = "Corruption" in says or "CURRENT" in says
    more = ". Files of it were lost or changed: restore the folder from a backup" if lost else ""
    return " ".join(says.split()).rstrip(".") + more


def upper(bound: bytes | None) -> ReadOptions:
    """Must live as long as its iterator: RocksDB keeps a pointer to the bound.
    (There is no lower bound: where it is asked for, rocksdict sets the upper one instead.)"""
    options = ReadOptions()
    if bound is not None:
        options.set_iterate_upper_bound(bound)
    return options


def _options(cache: Cache, create: bool, large: bool, apart: bool) -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_bloom_filter(BLOOM_BITS, False)
    blocks.set_cache_index_and_filter_blocks(True)  # counted in the cache, so that memory stays bounded
    # In pieces: a large file's filter as one block fits no shard of the cache, and would be read anew for every row.
    blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
    blocks.set_partition_filters(True)
    blocks.set_metadata_block_size(METADATA_BYTES)
    blocks.set_pin_top_level_index_and_filter(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(MEMTABLE_APART_BYTES if apart else MEMTABLE_BYTES)
    options.set_db_write_buffer_size(MEMTABLES_BYTES // (1 if large else LESS))
    options.set_max_total_wal_size(LOG_BYTES // (1 if large else LESS))
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_background_jobs(2)
    options.set_allow_concurrent_memtable_write(False)  # one writer at a time: what more would need costs a little
    options.set_max_open_files(OPEN_FILES)
    options.set_bytes_per_sync(1024 * 1024)  # flushes write evenly, so that they disturb the log's fsyncs less
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(1024 * 1024)
    if apart:  # written once, in order, and dropped whole: there is nothing to compact until its files are too many
        options.set_level_zero_file_num_compaction_trigger(FILES_APART)
        options.set_level_zero_slowdown_writes_trigger(4 * FILES_APART)
        options.set_level_zero_stop_writes_trigger(8 * FILES_APART)
    return options
