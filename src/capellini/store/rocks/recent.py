"""Rows as compare-and-sets left them lately, so that the next one on a row neither reads, parses nor checks it again.

A busy queue changes the same few rows all the time: its ids, its list of buckets, the state of a bucket. Nobody but
this process writes here, and a conditional cell is changed by compare-and-set only, so what the last one left is what
there is. Remembered are rows without a key (static rows, tables of one row) in which nothing expires, by their place in
RocksDB; and the place by the partition key that was asked for, as the very object: it was checked once.

Whatever else may touch a row forgets it: plain writes to its partition, drops, upkeep.
"""

from __future__ import annotations

from typing import Final

from capellini.store.cells import RowCodec
from capellini.store.interface import Absent, Cas, Change, Key, Table, Value, Values

KEPT: Final = 4_096  # rows, and places; beyond it all are forgotten, which costs a read each


class Known:
    """A row: where it is and what is in it."""

    __slots__ = ("codec", "key", "names", "partition", "place", "table", "values")

    def __init__(self, cas: Cas, place: bytes, codec: RowCodec, values: Values) -> None:
        self.table: Final[Table] = cas.table
        self.partition: Final[Key] = cas.partition
        self.key: Final[Key | None] = cas.changes[0].key
        self.place: Final = place
        self.codec: Final = codec
        self.names: Final = codec.simple & cas.table.conditional  # what may be expected, and written
        self.values = values


class Recent:
    def __init__(self) -> None:
        self._asked: dict[tuple[int, int], Known] = {}  # by the identity of table and partition key
        self._rows: dict[bytes, Known] = {}  # by place: one for each row, whoever asks

    def holding(self, cas: Cas) -> Known | None:
        """The row, if it is known and all conditions hold. None: ask the store."""
        known = self._asked.get((id(cas.table), id(cas.partition)))
        if known is None or known.partition is not cas.partition or known.table is not cas.table:
            return None
        if len(cas.changes) != 1 or cas.drop or cas.ttl_s is not None or self._rows.get(known.place) is not known:
            return None
        change, values = cas.changes[0], known.values
        expect, names = change.expect, known.names
        if change.key != known.key or not expect or isinstance(expect, Absent):
            return None
        if not expect.keys() <= names or not change.values.keys() <= names:
            return None
        for name, value in expect.items():
            if values.get(name) != value:
                return None
        return known

    def changed(self, cas: Cas, place: bytes, codec: RowCodec, before: dict[str, Value] | None) -> None:
        """This was applied to a row that had those values, all of them lasting."""
        if len(self._rows) >= KEPT or len(self._asked) >= KEPT:
            self.clear()
        values = {**(before or {}), **cas.changes[0].values}
        known = Known(cas, place, codec, {name: value for name, value in values.items() if value is not None})
        self._asked[id(cas.table), id(cas.partition)] = self._rows[place] = known

    def forget(self, place: bytes) -> None:
        self._rows.pop(place, None)

    def clear(self) -> None:
        self._asked.clear()
        self._rows.clear()


def anew(known: Known, change: Change, timestamp_us: int) -> bytes | None:
    """The record after a change that writes every value the row has. None: it is another kind of change, or a wrong
    one."""
    if not known.values.keys() <= change.values.keys():
        return None
    return known.codec.anew(change.values, timestamp_us)
