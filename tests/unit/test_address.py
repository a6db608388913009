"""Addresses: good ones are understood, bad ones say what is wrong, and a password is never shown."""

from __future__ import annotations

import pytest

from capellini.model.address import CassandraAddress, NodeAddress, RocksAddress, parse
from capellini.model.errors import Invalid


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("rocks:data", "data"),
        ("rocks:./data/queues", "./data/queues"),
        ("rocks:///var/lib/queues", "/var/lib/queues"),
        ("rocks:/var/lib/queues", "/var/lib/queues"),
        ("ROCKS:data", "data"),
        ("rocks:with%20space", "with space"),
        ("  rocks:data  ", "data"),
    ],
)
def test_a_folder(text: str, folder: str) -> None:
    assert parse(text) == RocksAddress(folder)


def test_the_least_cassandra_address_has_the_defaults() -> None:
    assert parse("cassandra://db/queues") == CassandraAddress(("db",), "queues")
    made = parse("cassandra://db/queues")
    assert isinstance(made, CassandraAddress)
    assert (made.port, made.replication, made.timeout_s, made.level, made.ssl) == (9042, "", 5.0, "quorum", False)


def test_a_cassandra_address_with_everything() -> None:
    made = parse(
        "cassandra://ann:p%40ss%3Aword@db1:9999,db2:9999/my_queues"
        "?dc=east&ssl=true&ssl_ca=/etc/ca.pem&replication=east:3,west:2&timeout_s=2.5&level=local_quorum"
    )
    assert made == CassandraAddress(
        hosts=("db1", "db2"),
        keyspace="my_queues",
        port=9999,
        username="ann",
        password="p@ss:word",
        dc="east",
        ssl=True,
        ssl_ca="/etc/ca.pem",
        replication="east:3,west:2",
        timeout_s=2.5,
        level="local_quorum",
    )


@pytest.mark.parametrize(
    ("text", "hosts", "port"),
    [
        ("cassandra://127.0.0.1,127.0.0.2,127.0.0.3/q", ("127.0.0.1", "127.0.0.2", "127.0.0.3"), 9042),
        ("cassandra://[::1]/q", ("::1",), 9042),
        ("cassandra://[::1]:9043/q", ("::1",), 9043),
        ("cassandra://[::1],[2001:db8::5]/q", ("::1", "2001:db8::5"), 9042),
    ],
)
def test_hosts_and_ports(text: str, hosts: tuple[str, ...], port: int) -> None:
    made = parse(text)
    assert isinstance(made, CassandraAddress)
    assert (made.hosts, made.port) == (hosts, port)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://localhost/", "http://localhost:7411"),
        ("HTTPS://queue.example", "https://queue.example:7411"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_a_node(text: str, url: str) -> None:
    assert parse(text) == NodeAddress(url)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "data",
        "rocks:",
        "rocks://",
        "rocks:///",
        "rocks:a%00b",
        "ftp://host/x",
        "redis://host",
        "cassandra:",
        "cassandra://",
        "cassandra://host",
        "cassandra://host/",
        "cassandra:///queues",
        "cassandra://host/Queues",
        "cassandra://host/1queues",
        "cassandra://host/my-queues",
        "cassandra://host/a/b",
        "cassandra://host/" + "q" * 49,
        "cassandra://host:port/q",
        "cassandra://host:0/q",
        "cassandra://host:70000/q",
        "cassandra://one:1,two:2/q",
        "cassandra://one:9042,/q",
        "cassandra://host/q?unknown=1",
        "cassandra://host/q?replication=0",
        "cassandra://host/q?replication=dc1:x",
        "cassandra://host/q?replication=dc1:3,dc1:2",
        "cassandra://host/q?replication=dc1:3,2",
        "cassandra://host/q?replication=:3",
        "cassandra://host/q?timeout_s=soon",
        "cassandra://host/q?timeout_s=0",
        "cassandra://host/q?timeout_s=nan",
        "cassandra://host/q?timeout_s=601",
        "cassandra://host/q?level=two",
        "cassandra://[::1/q",
        "cassandra://::1/q",
        "cassandra://2001:db8::5/q",
        "cassandra://host/q?ssl=maybe",
        "http://",
        "http://host:port",
        "http://host/path",
        "http://host?x=1",
        "http://[::1",
        "http://host:99999",
        "http://ann:sesame@host",
        "http://host:0",
        "http://two..dots:80",
        f"http://{'long' * 16}.example",
        "cassandra://host:\u00b2/q",
    ],
)
def test_a_bad_address_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(text)
    assert len(caught.value.says) > 20


@pytest.mark.parametrize("address", ["cassandra://ann:sesame@db/queues", "cassandra://ann:s%65same@db/queues"])
def test_a_password_is_never_shown(address: str) -> None:
    made = parse(address)
    assert isinstance(made, CassandraAddress) and made.password == "sesame"
    for shown in (str(made), repr(made), f"{made}", f"{[made]}"):
        assert "sesame" not in shown
    assert "ann" in str(made)


@pytest.mark.parametrize(
    "text",
    [
        "cassandra://ann:sesame@db/Bad-Keyspace",
        "cassandra://ann:sesame@db:port/q",
        "cassandra://ann:sesame@db/q?unknown=1",
        "cassandra://ann:sesame@db/q?timeout_s=soon",
        "cassandra://ann:sesame@db/q?level=two",
        "cassandra://ann:sesame@/q",
        "cassandra:ann:sesame@db",
        "casandra://ann:sesame@db/q",
        "http://ann:sesame@host/path",
        "ann:sesame@db",
        "cassandra://ann:sesame/1@db/q",
        "cassandra://ann:sesame#1@db/q",
        "cassandra://ann:sesame?1@db/q",
        "cassandra://ann:1/q?sesame=2@db/q",
        "cassandra://ann:[sesame]@db/q",
        "cassandra://ann:sesame\uff1a@db/q",
        "cassandra://ann:sesame\n@db/Bad-Keyspace",
        "http://ann:sesame\uff1a@host",
        "http://ann:sesame/1@host",
    ],
)
def test_an_error_about_an_address_does_not_show_its_password(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(text)
    assert "sesame" not in caught.value.says


@pytest.mark.parametrize("text", ["rocks:data", "rocks:/var/lib/queues", "http://localhost:7411"])
def test_an_address_without_secrets_reads_back_as_itself(text: str) -> None:
    assert parse(str(parse(text))) == parse(text)
    assert parse(str(parse("cassandra://a,b/q"))) == parse("cassandra://a,b/q")
    assert parse(str(parse("cassandra://[::1],b/q"))) == parse("cassandra://[::1],b/q")
