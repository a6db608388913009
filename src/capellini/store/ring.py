"""Cassandra's ring: from a partition's key to the servers that hold it. Pure.

    key ──▶ bytes ──▶ token (Murmur3) ──▶ walk the ring from there ──▶ the first servers that suit

A token is the upper half of MurmurHash3 x64 128 of the key's bytes, as Cassandra computes it: the last bytes, that do
not fill a block, are taken as signed numbers, which the published hash does not do. A key of several columns is each
column's length, bytes and a zero. The range of a token ends at the first token of the ring that is not below it.

    SimpleStrategy             the first N servers met
    NetworkTopologyStrategy    in each data centre the first N met of racks not met before; servers of a rack that was
                               met only as far as there are fewer racks than copies
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from capellini.store.interface import Column, Key, KeyPart, Type

WORD: Final = (1 << 64) - 1
C1: Final = 0x87C37B91114253D5
C2: Final = 0x4CF5AD432745937F
MURMUR: Final = "Murmur3Partitioner"  # the partitioner of all clusters but very old ones


class Server(msgspec.Struct, frozen=True):
    """One of the cluster. `address`: where clients reach it."""

    address: str
    dc: str
    rack: str
    tokens: tuple[int, ...]


def key_bytes(columns: Sequence[Column], key: Key) -> bytes:
    """A partition key as the partitioner sees it."""
    parts = [_bytes(column, part) for column, part in zip(columns, key, strict=True)]
    if len(parts) == 1:
        return parts[0]
    return b"".join(struct.pack(">H", len(part)) + part + b"\0" for part in parts)


def _bytes(column: Column, part: KeyPart) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, int):
        assert column.type is Type.INT
        return part.to_bytes(8, "big", signed=True)
    return part if isinstance(part, bytes) else part.bytes


def token_of(data: bytes) -> int:
    """The token of a key's bytes, from -2^63 + 1 to 2^63 - 1."""
    whole = len(data) & ~15
    h1 = h2 = 0
    for k1, k2 in struct.iter_unpack("<QQ", data[:whole]):
        h1 = ((_turned(h1 ^ _first(k1), 27) + h2) * 5 + 0x52DCE729) & WORD
        h2 = ((_turned(h2 ^ _second(k2), 31) + h1) * 5 + 0x38495AB5) & WORD
    rest = data[whole:]
    h1 ^= _first(_signed(rest[:8]))
    h2 ^= _second(_signed(rest[8:]))
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & WORD
    h2 = (h2 + h1) & WORD
    token = (_mixed(h1) + _mixed(h2)) & WORD
    token -= (token >> 63) << 64
    return token if token != -(1 << 63) else (1 << 63) - 1  # the least number stands for no token


def _signed(rest: bytes) -> int:
    """Up to eight bytes, each as a signed number, which reaches into the bits of those above it."""
    word = 0
    for place, byte in enumerate(rest):
        word ^= (byte - ((byte & 128) << 1)) << (8 * place)
    return word & WORD


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & WORD


def _first(word: int) -> int:
    return _turned(word * C1 & WORD, 31) * C2 & WORD


def _second(word: int) -> int:
    return _turned(word * C2 & WORD, 33) * C1 & WORD


def _mixed(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & WORD
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & WORD
    return word ^ word >> 33


class Ring:
    """Of one keyspace. `replication`: its map as Cassandra tells it. Where it cannot be told who holds what (another
    strategy, another partitioner), nobody is named."""

    def __init__(self, servers: Iterable[Server], replication: Mapping[str, str]) -> None:
        self.servers = sorted(servers, key=lambda server: server.address)
        places = sorted((token, number) for number, server in enumerate(self.servers) for token in server.tokens)
        self._tokens = [token for token, _ in places]
        self._at = [number for _, number in places]  # not the servers: each look at one would hash all its tokens
        self._strategy = replication.get("class", "").rpartition(".")[2]
        self.copies = _copies(replication)
        self._found: dict[int, tuple[Server, ...]] = {}

    def replicas(self, token: int) -> tuple[Server, ...]:
        if not self._tokens:
            return ()
        start = bisect_left(self._tokens, token) % len(self._tokens)
        found = self._found.get(start)
        if found is None:
            found = self._found[start] = self._chosen(self._met(start))
        return found

    def _met(self, start: int) -> Iterator[Server]:
        """Each server once, as they are met. A ring has thousands of tokens: whoever asks stops when it has enough."""
        seen: set[int] = set()
        for step in range(len(self._at)):
            number = self._at[(start + step) % len(self._at)]
            if number not in seen:
                seen.add(number)
                yield self.servers[number]

    def _chosen(self, met: Iterator[Server]) -> tuple[Server, ...]:
        if self._strategy == "SimpleStrategy":
            return tuple(itertools.islice(met, self.copies.get("replication_factor", 0)))
        if self._strategy == "NetworkTopologyStrategy":
            return self._spread(met)
        return ()

    def _spread(self, met: Iterator[Server]) -> tuple[Server, ...]:
        there = Counter(server.dc for server in self.servers)
        left = {dc: min(copies, there[dc]) for dc, copies in self.copies.items()}
        racks = {(server.dc, server.rack) for server in self.servers}
        of_dc = Counter(dc for dc, _ in racks)
        repeats = {dc: copies - of_dc[dc] for dc, copies in self.copies.items()}  # of racks
        chosen: list[Server] = []
        most = sum(left.values())
        while len(chosen) < most:
            server = next(met)
            dc, rack = server.dc, (server.dc, server.rack)
            if not left.get(dc):
                continue
            if rack in racks:
                racks.remove(rack)  # met now
            elif repeats[dc] > 0:
                repeats[dc] -= 1
            else:
                continue
            left[dc] -= 1
            chosen.append(server)
        return tuple(chosen)


def _copies(replication: Mapping[str, str]) -> dict[str, int]:
    """By data centre, or by `replication_factor`. "3/1": the last are transient, which is a copy all the same."""
    found: dict[str, int] = {}
    for name, count in replication.items():
        digits = count.partition("/")[0]
        if name != "class" and digits.isdigit():
            found[name] = int(digits)
    return found


def homes_of(replication: Mapping[str, str]) -> tuple[str, ...]:
    """The data centres that hold copies, where the replication names them."""
    if replication.get("class", "").rpartition(".")[2] != "NetworkTopologyStrategy":
        return ()
    return tuple(sorted(dc for dc, copies in _copies(replication).items() if copies))
