"""Timed queues and schedules as people use them: the client on each kind of address, the command line, and a node that
dies with everything scheduled."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.acceptance.client_processes import DEADLINE_S, poll, running_node
from tests.acceptance.commands import run, said

import capellini
from capellini.cli.main import capellini as command
from capellini.model.message import NewMessage
from capellini.model.service import Problem, Put

pytestmark = pytest.mark.slow


@pytest.fixture(params=["http", "rocks"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "http":
        return str(request.getfixturevalue("node_address"))
    return f"rocks:{tmp_path / 'data'}"


def test_messages_come_when_they_are_due_and_not_before(address: str, queue: str) -> None:
    with capellini.connect(address) as client:
        client.create_queue(queue, "timed")
        soon_s = time.time() + 1.0
        client.put(queue, b"number", due=soon_s)
        client.put(queue, b"datetime", due=datetime.fromtimestamp(soon_s, UTC))
        client.put(queue, b"timedelta", due=timedelta(seconds=1))
        client.put(queue, b"delay", delay_s=1.0)
        client.put(queue, b"past", due=datetime(2001, 1, 1, tzinfo=UTC))
        client.put(queue, b"now")
        client.put(queue, b"far", due=timedelta(days=3_000))
        came: dict[bytes, float] = {}
        while len(came) < 6:
            for message in client.get(queue, 10, wait_s=DEADLINE_S):
                came[message.body] = time.time()
                message.ack()
        assert set(list(came)[:2]) == {b"past", b"now"}
        assert all(came[body] >= soon_s for body in (b"number", b"datetime"))
        assert [each.body for each in client.due_between(queue, time.time(), timedelta(days=3_001))] == [b"far"]


def test_messages_of_timed_queues_are_held_like_others(address: str, queue: str) -> None:
    with capellini.connect(address) as client:
        client.create_queue(queue, "timed", visibility_s=20)
        id = client.put(queue, b"one", attributes={"who": "me"})
        (message,) = client.get(queue, wait_s=DEADLINE_S)
        assert (message.id, message.body, message.attributes, message.deliveries) == (id, b"one", {"who": "me"}, 1)
        message.nack(0)
        (again,) = client.get(queue, wait_s=DEADLINE_S)
        assert (again.id, again.deliveries) == (id, 2)
        with pytest.raises(capellini.Stale):
            message.ack()
        until = again.extend(40)
        assert until is not None and until > again.visible_at
        client.ack(queue, again.receipt)
        with pytest.raises(capellini.Stale):
            again.ack()


def test_batches_keys_and_bad_ones_among_good_ones(address: str, queue: str) -> None:
    with capellini.connect(address) as client:
        client.create_queue(queue, "timed")
        assert all(isinstance(each, Put) for each in client.put_many(queue, [b"a", b"b"], due=time.time()))
        good, bad, keyed = client.put_many(
            queue, [NewMessage(b"c"), NewMessage(b"x", due=1e12), NewMessage(b"d", key="k", due=time.time())]
        )
        assert isinstance(good, Put) and isinstance(bad, Problem) and isinstance(keyed, Put)
        assert client.put(queue, b"d again", key="k") == keyed.id
        bodies: list[bytes] = []
        while len(bodies) < 4:
            found = client.get(queue, 10, wait_s=DEADLINE_S)
            bodies += [message.body for message in found]
            client.ack_many(queue, found)
        assert sorted(bodies) == [b"a", b"b", b"c", b"d"]
        with pytest.raises(capellini.Invalid, match="zone"):
            client.put(queue, b"x", due=datetime(2031, 1, 1))


def test_cancel_and_move(address: str, queue: str) -> None:
    with capellini.connect(address) as client:
        client.create_queue(queue, "timed")
        first, second = (client.put(queue, body, due=timedelta(days=400)) for body in (b"first", b"second"))
        client.cancel(queue, first)
        with pytest.raises(capellini.NotFound):
            client.cancel(queue, first)
        client.move(queue, second, timedelta(seconds=0.2))
        (message,) = client.get(queue, wait_s=DEADLINE_S)
        assert (message.id, message.body) == (second, b"second")
        with pytest.raises(capellini.Conflict):
            client.cancel(queue, second)
        message.ack()
        with pytest.raises(capellini.NotFound):
            client.move(queue, second, timedelta(days=1))
        with pytest.raises(capellini.Invalid):
            client.cancel(queue, "nonsense")


def test_a_queue_made_anew_as_another_kind_is_noticed(node_address: str, queue: str) -> None:
    """A client keeps to plain calls for a queue that it knows to be timed; both kinds take them."""
    with capellini.connect(node_address) as client, capellini.connect(node_address) as other:
        client.create_queue(queue, "timed")
        client.put(queue, b"timed")
        other.put(queue, b"timed, by one who did not know")
        client.delete_queue(queue)
        client.create_queue(queue)
        for each in (client, other):
            each.put(queue, b"work")
            (message,) = each.get(queue, wait_s=DEADLINE_S)
            assert message.body == b"work"
            message.ack()


async def test_the_async_client_has_the_same_calls_and_consumes(address: str, queue: str) -> None:
    async with capellini.connect_async(address, codec="json") as client:
        await client.create_queue(queue, "timed")
        for number in range(20):
            await client.put(queue, {"n": number}, due=timedelta(seconds=number / 20))
        seen: list[int] = []

        async def handle(message: capellini.AsyncMessage[Any]) -> None:
            seen.append(message.body["n"])
            await asyncio.sleep(0)

        assert await client.consume(queue, handle, concurrency=4, count=20) == 20
        assert sorted(seen) == list(range(20))
        assert [view.state for view in await client.shards(queue)] == ["started"] * 4


def test_schedules(address: str, queue: str) -> None:
    with capellini.connect(address, codec="json") as client:
        client.create_queue(queue, "timed")
        info = client.schedule(f"s-{queue}", queue, "* * * * * *", {"tick": True}, attributes={"a": "b"})
        assert (info.queue, info.zone, info.missed) == (queue, "UTC", "skip")
        (message,) = client.get(queue, wait_s=DEADLINE_S)
        assert (message.body, message.attributes["a"], message.attributes["schedule"]) == (
            {"tick": True}, "b", f"s-{queue}",
        )  # fmt: skip
        assert [each.name for each in client.schedules(f"s-{queue}")] == [f"s-{queue}"]
        client.unschedule(f"s-{queue}")
        assert client.schedules(f"s-{queue}") == []
        assert client.due_between(queue, time.time() + 1, timedelta(days=1)) == []
        with pytest.raises(capellini.NotFound):
            client.unschedule(f"s-{queue}")
        with pytest.raises(capellini.Invalid, match="cron"):
            client.schedule("x", queue, "often", {})


def test_what_is_scheduled_survives_a_kill(tmp_path: Path) -> None:
    with running_node(tmp_path / "data") as node, capellini.connect(node.address) as client:
        client.create_queue("later", "timed")
        client.schedule("hourly", "later", "0 * * * *", b"tick")
        due_s = time.time() + 3.0
        put = client.put_many("later", [b"%d" % number for number in range(500)], due=due_s)
        assert all(isinstance(each, Put) for each in put)
        cancelled = [each.id for each in put[:50] if isinstance(each, Put)]
        assert not any(isinstance(each, Problem) for each in client.cancel_many("later", cancelled))
        node.kill()
        node.start()
        bodies: list[int] = []
        while len(bodies) < 450:
            found = client.get("later", 100, wait_s=DEADLINE_S)
            assert time.time() >= due_s
            bodies += [int(message.body) for message in found]
            client.ack_many("later", found)
        assert sorted(bodies) == list(range(50, 500))
        assert [each.name for each in client.schedules()] == ["hourly"]


# ---- the command line


def test_the_command_line_puts_lists_moves_and_cancels(node_address: str, queue: str) -> None:
    at = node_address
    said(at, "queue", "create", queue, "--kind", "timed", "--set", "shards=2")
    id = said(at, "put", queue, "hello", "--due", "2031-01-31T08:00:00Z").strip()
    said(at, "put", queue, "soon", "--delay", "0.2")
    assert said(at, "get", queue, "--wait", "20") == "soon\n"
    (listed,) = [json.loads(line) for line in said(at, "timed", "due", queue, "--json").splitlines()]
    assert (listed["id"], listed["due_at"], listed["state"]) == (id, 1927612800.0, "scheduled")
    assert said(at, "timed", "move", queue, id, "2032-01-01T00:00:00Z") == "moved 1\n"
    assert "2032-01-01 00:00:00" in said(at, "timed", "due", queue, "--from", "2031-06-01T00:00:00Z")
    assert said(at, "timed", "cancel", queue, id) == "cancelled 1\n"
    gone = run(at, "timed", "cancel", queue, id)
    assert (gone.returncode, b"no such message" in gone.stderr) == (1, True)


def test_the_command_line_shows_stops_and_starts_shards(node_address: str, queue: str) -> None:
    at = node_address
    said(at, "queue", "create", queue, "--kind", "timed", "--set", "shards=2")
    poll(lambda: "nobody" not in said(at, "timed", "shards", queue), "the shards are worked")
    table = said(at, "timed", "shards", queue)
    assert all(word in table for word in ("holder", "cursor", "horizon", "lag", "state"))
    looks = said(at, "timed", "shards", queue, "--watch", "--looks", "2", "--json").splitlines()
    assert [len(json.loads(look)) for look in looks] == [2, 2]
    assert "started" in said(at, "timed", "shards", queue, "--watch", "--looks", "1")
    assert json.loads(said(at, "timed", "stop", queue, "1", "--json"))[0]["state"] == "stopped"
    assert json.loads(said(at, "timed", "start", queue, "1", "--json"))[0]["state"] == "started"


def test_the_command_line_adds_lists_and_removes_schedules(node_address: str, queue: str) -> None:
    at, name = node_address, f"s-{queue}"
    said(at, "queue", "create", queue, "--kind", "timed")
    assert "next at" in said(at, "schedule", "add", name, queue, "0 8 * * MON-FRI", "wake", "--zone", "Europe/Berlin")
    (listed,) = json.loads(said(at, "schedule", "list", name, "--json"))
    assert (listed["cron"], listed["zone"], listed["body"]) == ("0 8 * * MON-FRI", "Europe/Berlin", "wake")
    assert name in said(at, "schedule", "list")
    assert said(at, "schedule", "remove", name) == f"removed {name}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("queue", "create", "x", "--kind", "timed", "--set", "shards=0"), 2, "shards goes from 1 to 256"),
        (("queue", "create", "x", "--kind", "timed", "--set", "shards=10000"), 2, "shards goes from 1 to 256"),
        (("queue", "set", "QUEUE", "granularity=day"), 1, "cannot change"),
        (("put", "QUEUE", "x", "--due", "nonsense"), 2, "is no time"),
        (("put", "QUEUE", "x", "--due", "2031-01-01T00:00:00"), 2, "no time zone"),
        (("put", "QUEUE", "x", "--due", "2099-01-01T00:00:00Z"), 2, "10 years"),
        (("put", "QUEUE", "x", "--due", "1", "--delay", "5"), 2, "either due or delay_s"),
        (("schedule", "add", "s", "QUEUE", "61 * * * *", "x"), 2, "not a cron expression"),
        (("schedule", "add", "s", "QUEUE", "* * * * *", "x", "--zone", "Mars/Base"), 2, "not a time zone"),
        (("schedule", "add", "s", "nowhere", "* * * * *", "x"), 1, "no queue nowhere"),
        (("schedule", "remove", "nothing"), 1, "no schedule nothing"),
        (("timed", "cancel", "QUEUE", "nonsense"), 1, "not a message id"),
        (("timed", "move", "QUEUE", "nonsense", "noon"), 2, "is no time"),
        (("timed", "shards", "nowhere"), 1, "no queue nowhere"),
        (("timed", "stop", "QUEUE", "77"), 2, "no shard 77"),
        (("debug", "buckets", "QUEUE"), 2, "timed queue"),
    ],
)
def test_what_is_asked_wrongly_is_said_in_a_line(
    node_address: str, arguments: tuple[str, ...], code: int, says: str
) -> None:
    with capellini.connect(node_address) as client:
        client.create_queue("timed-asked-wrongly", "timed")
    words = ["timed-asked-wrongly" if each == "QUEUE" else each for each in arguments]
    done = CliRunner().invoke(command, words, env={"CAPELLINI_AT": node_address})
    assert (done.exit_code, says in done.stderr) == (code, True), done.stderr
