"""By way of which hosts a session asks: those of its beginning, and those that took their places."""

from __future__ import annotations

import asyncio
from typing import Any

import acsylla
import pytest
from acsylla import errors as driver

from capellini.model.address import CassandraAddress
from capellini.model.errors import Unavailable
from capellini.store.cassandra_session import Session, _told, contacts
from capellini.store.interface import Level

BEGAN = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


class UnhurriedClock:
    def now_s(self) -> float:
        return 0.0

    def elapsed_s(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        return None


class Statement:
    """What is known of a request: what it asks, and through whom."""

    def __init__(self, text: str, timeout: float = 1.0, execution_profile: str | None = None, **_: Any) -> None:
        self.text = text
        self.host = execution_profile.removeprefix("at ") if execution_profile else None

    def set_host(self, host: str, port: int) -> None:
        self.host = host

    def bind(self, values: list[Any], **how: Any) -> Statement:
        return Statement(self.text, **how)

    def set_timestamp(self, timestamp_us: int) -> None:
        return None


class Row(list[str]):
    as_list = list.copy


class Answer(list[Row]):
    def has_more_pages(self) -> bool:
        return False


class Driver:
    """Its session with a cluster of these hosts. Requests of which no host is said go to the first of them, and
    whatever goes to one that hangs is lost."""

    def __init__(self, *hosts: str, hangs: str = "", told: str = "") -> None:
        self.hosts, self.hangs = hosts, hangs
        self.told = told  # the address that a server says it has; else the one it is reached by
        self.took: list[str] = []

    async def create_prepared(self, text: str, timeout_s: float) -> Statement:
        return Statement(text)

    async def execute(self, statement: Statement) -> Answer:
        host = statement.host or self.hosts[0]
        if host not in self.hosts:
            raise driver.CassErrorLibNoHostsAvailable("No hosts available")
        self.took.append(host)
        if host == self.hangs:
            raise driver.CassErrorLibRequestTimedOut("Request timed out")
        return Answer([Row(["dc", self.told or host])])


def session_of(inner: Driver, contact: str = "10.0.0.1") -> Session:
    return Session(CassandraAddress((contact,), "k"), UnhurriedClock(), inner, "dc", {"dc": BEGAN})


@pytest.mark.parametrize("turns", range(3))
async def test_a_host_that_is_away_takes_up_no_attempt(turns: int) -> None:
    """One hangs, one is away, one is well: that one is met, with whomever the calls before began."""
    inner = Driver("10.0.0.1", "10.0.0.3", hangs="10.0.0.1")
    session = session_of(inner)
    for _ in range(turns):
        next(session._turns)
    assert await session.read("SELECT", [], Level.QUORUM) == [["dc", "10.0.0.3"]]


async def test_hosts_that_were_replaced_are_not_what_is_asked_again() -> None:
    inner = Driver("10.0.0.7", "10.0.0.8", hangs="10.0.0.7")
    with pytest.raises(Unavailable, match="timed out"):  # of a real driver another one may come next
        await session_of(inner).read("SELECT", [], Level.QUORUM)
    assert len(inner.took) == 3


async def test_a_write_is_sent_again_where_its_hosts_were_replaced() -> None:
    class Once(Driver):
        async def execute(self, statement: Statement) -> Answer:
            try:
                return await super().execute(statement)
            finally:
                self.hangs = ""

    inner = Once("10.0.0.7", hangs="10.0.0.7")
    await session_of(inner).write([(Statement("UPDATE"), [])], Level.QUORUM, 1)
    assert inner.took == ["10.0.0.7"] * 2


async def test_servers_that_came_after_the_beginning_tell_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acsylla, "create_statement", Statement)
    inner = Driver("10.0.0.7", "10.0.0.8")
    assert await session_of(inner).asked(("SELECT a", "SELECT b")) == [[["dc", "10.0.0.7"]]] * 2


class Silent(Driver):
    async def execute(self, statement: Statement) -> Answer:
        raise driver.CassErrorLibNoHostsAvailable("No hosts available")


async def test_a_cluster_without_a_host_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acsylla, "create_statement", Statement)
    with pytest.raises(Unavailable, match="No hosts available"):
        await session_of(Silent()).asked(("SELECT a",))


async def test_a_server_that_names_itself_otherwise_is_asked_by_the_address_it_is_reached_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one in a container does, behind a port of this machine."""
    monkeypatch.setattr(acsylla, "create_statement", Statement)
    inner = Driver("127.0.0.1", told="172.17.0.2")
    members = await _told(inner, CassandraAddress(("localhost",), "k"))
    assert members[0] == ["dc", "127.0.0.1"]
    assert await session_of(inner, "127.0.0.1").asked(("SELECT a",)) == [[["dc", "172.17.0.2"]]]


@pytest.mark.parametrize("hangs", ["", "10.0.0.1"])
async def test_all_questions_about_the_servers_go_to_one_that_answers(
    monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    monkeypatch.setattr(acsylla, "create_statement", Statement)
    inner = Driver(*([hangs] if hangs else []), "10.0.0.2", "10.0.0.3", hangs=hangs)
    members = await _told(inner, CassandraAddress(("10.0.0.1", "10.0.0.2"), "k"))
    assert members[0] == ["dc", "10.0.0.2"]
    assert inner.took[-2:] == ["10.0.0.2"] * 2


async def test_names_that_nobody_knows_are_no_contacts() -> None:
    assert await contacts(CassandraAddress(("no.such.host.invalid", "::1", "127.0.0.1", "::1"), "k")) == [
        "::1",
        "127.0.0.1",
    ]


async def test_each_host_that_answers_tells_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acsylla, "create_statement", Statement)
    told = await session_of(Driver("10.0.0.1", "10.0.0.2", hangs="10.0.0.1")).each("SELECT a")
    assert told == {"10.0.0.2": [["dc", "10.0.0.2"]]}
    with pytest.raises(Unavailable, match="No hosts available"):
        await session_of(Silent()).each("SELECT a")


async def test_closing_that_was_cancelled_can_be_done_again() -> None:
    class Closing(Driver):
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    inner = Closing("10.0.0.1")
    session = session_of(inner)
    with session.call():
        closing = asyncio.get_running_loop().create_task(session.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert inner.closed == 0
    with pytest.raises(Unavailable, match="closed"), session.call():
        pass
    for _ in range(2):
        await session.close()
        assert inner.closed == 1
