"""Shards and tallies as rows.

    counters  (name) ▸ (expires at in µs, mutator)   state       a shard: the state of one mutator
                     ▸ (TALLY_AT, "")                state       the tally: all shards that expired before `through`

One cell each:  form 1 B | version 2 B | through 8 B (0 in a shard) | checksum 4 B | length of kind 1 B | kind | state

One cell, so that of two tallies of the same timestamp one wins as a whole. The tally is the last row, so that whoever
reads a counter in order, in however many pages, reads it after all shards: what a page before did not show because it
was collected meanwhile, the tally has; what it did show and the tally has too is known by `through`.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator
from typing import Final

import msgspec

from capellini.counters.states.interface import Damaged, State
from capellini.model.errors import CapelliniError, StoreError
from capellini.store.interface import Key, Row

TALLY_AT: Final = 2**63 - 1  # sorts after every expiry
TALLY_KEY: Final[Key] = (TALLY_AT, "")
STATE: Final = "state"
FORM: Final = 1
_HEAD: Final = struct.Struct(">BHqIB")


class Packed(msgspec.Struct, frozen=True, gc=False):
    kind: str
    version: int
    through_us: int
    data: bytes


class Shard(msgspec.Struct, frozen=True, gc=False):
    expires_us: int
    mutator: str
    packed: bytes


class Tally(msgspec.Struct, frozen=True, gc=False):
    """`packed` empty: nothing was collected yet."""

    through_us: int = 0  # every shard that expires before this is in it
    packed: bytes = b""


NO_TALLY: Final = Tally()


class DamagedShard(StoreError):
    """A stored state cannot be read. Says which."""

    def __init__(self, says: str, expires_us: int = 0) -> None:
        super().__init__(says)
        self.expires_us = expires_us


def pack(state: State, through_us: int = 0) -> bytes:
    return pack_bytes(Packed(state.kind, state.version, through_us, state.encode()))


def pack_bytes(packed: Packed) -> bytes:
    kind = packed.kind.encode()
    sum = _checksum(packed.version, packed.through_us, kind, packed.data)
    return _HEAD.pack(FORM, packed.version, packed.through_us, sum, len(kind)) + kind + packed.data


def _checksum(version: int, through_us: int, kind: bytes, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(b"%d %d %s" % (version, through_us, kind)))


def unpack(cell: bytes) -> Packed:
    """Raises Damaged."""
    if len(cell) < _HEAD.size:
        raise Damaged(f"{len(cell)} bytes are too few")
    form, version, through_us, sum, length = _HEAD.unpack_from(cell)
    if form != FORM:
        raise Damaged(f"form {form} is not known here")
    kind = cell[_HEAD.size : _HEAD.size + length]
    data = cell[_HEAD.size + length :]
    if _checksum(version, through_us, kind, data) != sum:
        raise Damaged("the checksum is wrong")
    return Packed(kind.decode(errors="replace"), version, through_us, data)


def opened(cell: bytes, state: type[State], name: str, where: str, expires_us: int = 0) -> State:
    """The state in a cell. Raises DamagedShard, naming it: a state that cannot be read is never an empty one."""
    try:
        packed = unpack(cell)
        if packed.kind != state.kind:
            raise Damaged(f"it holds a {packed.kind}, not a {state.kind}")
        return state.decode(packed.data, packed.version)
    except ValueError as error:
        raise DamagedShard(f"{where} of counter {name} cannot be read: {error}", expires_us) from None
    except Exception as error:  # a state of somebody's own, that does not do as the interface says
        raise DamagedShard(f"{where} of counter {name} cannot be read: {error!r}", expires_us) from error


@contextlib.contextmanager
def failing(state: type[State], name: str, expires_us: int = 0) -> Iterator[None]:
    """A state of somebody's own may raise anything: that concerns its counter, and no other that is looked at in the
    same call or sweep."""
    try:
        yield
    except CapelliniError:
        raise
    except Exception as error:
        raise DamagedShard(f"the state {state.kind} of counter {name} failed: {error!r}", expires_us) from error


def merge_shard(total: State, shard: Shard, state: type[State], name: str) -> None:
    """Raises DamagedShard, naming it."""
    where = f"the shard of mutator {shard.mutator} (expires_at {shard.expires_us})"
    found = opened(shard.packed, state, name, where, shard.expires_us)
    with failing(state, name, shard.expires_us):
        total.merge(found)


def tally_state(tally: Tally, state: type[State], name: str) -> State:
    return opened(tally.packed, state, name, "the tally") if tally.packed else state()


def tally_of(row: Row | None, name: str) -> Tally:
    """Raises DamagedShard."""
    cell = row.values.get(STATE) if row is not None else None
    if not isinstance(cell, bytes):
        return NO_TALLY
    try:
        return Tally(unpack(cell).through_us, cell)
    except Damaged as error:
        raise DamagedShard(f"the tally of counter {name} cannot be read: {error}") from None


def shard_of(row: Row) -> Shard:
    expires_us, mutator = row.key
    cell = row.values.get(STATE)
    assert isinstance(expires_us, int) and isinstance(mutator, str) and isinstance(cell, bytes)  # as the table says
    return Shard(expires_us, mutator, cell)
