"""From a key to the servers that hold it, as Cassandra computes it. Its own answers are in tests/cassandra."""

from __future__ import annotations

from uuid import UUID

import pytest

from capellini.store.interface import Column, Key, Type
from capellini.store.ring import Ring, Server, homes_of, key_bytes, token_of

TEXT, NUMBER = Column("a", Type.TEXT), Column("b", Type.INT)
BLOB, TIME = Column("c", Type.BLOB), Column("d", Type.TIMEUUID)


@pytest.mark.parametrize(
    ("data", "token"),
    [
        (b"", 0),
        (b"123", -7468325962851647638),  # this and the next are what drivers of Cassandra are tested with
        (b"\x00\xff\x10\xfa\x99" * 10, 5837342703291459765),
        (b"\xfe" * 8, -8927430733708461935),
        (b"\x10" * 8, 1446172840243228796),
        (b"9223372036854775807", 7162290910810015547),
    ],
)
def test_a_token_is_cassandras(data: bytes, token: int) -> None:
    assert token_of(data) == token


def test_a_key_of_several_columns_has_their_lengths() -> None:
    time = UUID("00000000-0000-1000-8000-000000000001")
    key: Key = ("é", -2, b"\x00", time)
    assert key_bytes((TEXT,), ("é",)) == b"\xc3\xa9"
    assert key_bytes((TEXT, NUMBER, BLOB, TIME), key) == (
        b"\0\x02\xc3\xa9\0" + b"\0\x08" + b"\xff" * 7 + b"\xfe\0" + b"\0\x01\0\0" + b"\0\x10" + time.bytes + b"\0"
    )


def server(number: int, dc: str, rack: str, *tokens: int) -> Server:
    return Server(f"10.0.0.{number}", dc, rack, tokens)


def held(ring: Ring, token: int) -> list[str]:
    return [one.address[-1] for one in ring.replicas(token)]


def test_simple_copies_lie_on_the_servers_that_follow() -> None:
    ring = Ring(
        [server(1, "x", "r", 0, 30), server(2, "x", "r", 10, 40), server(3, "x", "r", 20)],
        {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "2"},
    )
    assert held(ring, 0) == ["1", "2"]  # a range ends with its token
    assert held(ring, 1) == ["2", "3"]
    assert held(ring, 35) == ["2", "1"]
    assert held(ring, 41) == ["1", "2"]  # around the ring


def test_copies_of_a_data_centre_lie_in_different_racks_as_far_as_there_are_some() -> None:
    servers = [
        server(1, "x", "r1", 0),
        server(2, "x", "r1", 10),
        server(3, "x", "r2", 20),
        server(4, "y", "r1", 5),
        server(5, "y", "r1", 25),
    ]
    of = "org.apache.cassandra.locator.NetworkTopologyStrategy"
    assert held(Ring(servers, {"class": of, "x": "2", "y": "1"}), 0) == ["1", "4", "3"]
    assert held(Ring(servers, {"class": of, "x": "2"}), 1) == ["2", "3"]
    assert held(Ring(servers, {"class": of, "x": "3", "y": "0"}), 1) == ["2", "3", "1"]  # one rack is met twice
    assert held(Ring(servers, {"class": of, "y": "5"}), 6) == ["5", "4"]  # more copies than servers


def test_who_holds_what_is_not_told_where_it_is_not_known() -> None:
    servers = [server(1, "x", "r", 0)]
    assert held(Ring(servers, {"class": "org.apache.cassandra.locator.EverywhereStrategy"}), 0) == []
    assert held(Ring([], {"class": "SimpleStrategy", "replication_factor": "1"}), 0) == []


def test_homes_are_the_data_centres_that_hold_copies() -> None:
    assert homes_of({"class": "a.NetworkTopologyStrategy", "y": "2", "x": "3/1", "z": "0"}) == ("x", "y")
    assert homes_of({"class": "a.SimpleStrategy", "replication_factor": "3"}) == ()


def test_a_server_that_took_anothers_tokens_over_does_not_hide_the_ring() -> None:
    """As while it replaces a dead one, or comes back under another address: for a while both are told of."""
    ring = Ring(
        [server(1, "x", "r", 0), server(2, "x", "r", 0), server(3, "x", "r", 10)],
        {"class": "SimpleStrategy", "replication_factor": "2"},
    )
    assert held(ring, 0) == ["1", "2"]
    assert held(ring, 5) == ["3", "1"]


class Looked(list[int]):
    """Counts how often somebody looks at it."""

    looks = 0

    def __getitem__(self, at: int) -> int:  # type: ignore[override]
        self.looks += 1
        return super().__getitem__(at)


def test_a_partition_is_found_without_a_walk_around_the_whole_ring() -> None:
    servers = [server(number, f"dc{number % 2}", "r", *range(number, 20_000, 20)) for number in range(20)]
    ring = Ring(servers, {"class": "NetworkTopologyStrategy", "dc0": "3", "dc1": "3"})
    ring._at = looked = Looked(ring._at)
    assert [one.address for one in ring.replicas(40)] == [f"10.0.0.{number}" for number in range(6)]
    assert looked.looks < 20
