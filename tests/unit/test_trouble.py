"""An error that stays shows, also where nobody waits for what it keeps from being done: in the log, once a minute."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.simulation.timed_stage import Stage, told
from tests.unit.delayed_world import delayed_world
from tests.unit.log_world import grouped, pull, put, settle, simulated

from capellini.model.errors import CapelliniError, Full
from capellini.model.message import NewMessage
from capellini.model.service import NackItem
from capellini.node.broker import Broker
from capellini.queues.log.lanes import Lane
from capellini.queues.trouble import SAY_AGAIN_S, Trouble
from capellini.queues.work.place import Gone
from capellini.queues.work.reading import Reading
from capellini.store.schema import TABLES
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

SAYS = "the disk is full: 3 bytes are free"
MINUTES = 3


async def full(*_: object) -> Any:
    raise Full(SAYS)


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in log.records if each.name == "capellini.queues"]


def said_once_a_minute(log: pytest.LogCaptureFixture, queue: str, what: str) -> None:
    found = warnings(log)
    assert MINUTES - 1 <= len(found) <= MINUTES + 1, found
    assert {f"queue {queue}: {what}; nothing is lost, and it is tried again: {SAYS}"} == set(found)


async def with_limit() -> Broker:
    """One that gives each message once, then to its dead letters."""
    client = World().client("a")
    await client.store.prepare(TABLES)
    broker = Broker(client.store, client.clock, client.random, "a")
    await broker.create("dead")
    await broker.create("q", options={"delivery_limit": 1, "dead_letters": "dead"})
    return broker


async def nacked(broker: Broker) -> None:
    await broker.put("q", [NewMessage(b"m")])
    (held,) = await broker.get("q")
    await broker.nack("q", [NackItem(held.receipt, 0.0)])


def test_dead_letters_of_a_work_queue(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "put_moved", full)

    async def work() -> None:
        broker = await with_limit()
        await nacked(broker)
        for _ in range(MINUTES * 60):
            assert await broker.get("q") == []
            await broker.clock.sleep(1.0)

    run(work(), 1)
    said_once_a_minute(caplog, "q", "work in the background failed")


def test_dead_letters_of_a_timed_queue(caplog: pytest.LogCaptureFixture) -> None:
    async def story(stage: Stage) -> None:
        node = await stage.held()
        node.keeper._put_moved = full
        await stage.put(node)
        (held,) = await stage.get(node)
        await stage.do(node, node.broker.nack("q", [NackItem(held.receipt, 0.0)]))
        await stage.do(node, node.client.clock.sleep(MINUTES * 60.0))

    told(story, dead_letters="dead", delivery_limit=1)
    said_once_a_minute(caplog, "q", "dead does not take dead letters")


def test_dead_letters_of_a_log_queue(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await grouped(nodes, delivery_limit=1)
        monkeypatch.setattr(node.broker, "put_moved", full)
        await put(node, [b"m"])
        await settle(node, await pull(node), "nack")
        await node.clock.sleep(MINUTES * 60.0)

    run(work(), 1)
    said_once_a_minute(caplog, "q", "dead letters of group g could not be moved")


@pytest.mark.parametrize(
    ("step", "what"),
    [
        ("know", "delayed messages that are due were not looked at"),
        ("carry", "delayed messages that are due could not be moved"),
    ],
)
def test_delayed_messages(
    step: str, what: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lane, step, full)

    async def work() -> None:
        _, nodes = await delayed_world()
        await nodes["a"].put_later([b"later"], 1.0)
        await nodes["a"].clock.sleep(MINUTES * 60.0)

    run(work(), 1)
    said_once_a_minute(caplog, "q", what)


def test_a_queue_that_is_gone_is_no_trouble(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(*_: object) -> Any:
        raise Gone("this queue was deleted or purged")

    async def work() -> None:
        broker = await with_limit()
        await nacked(broker)
        monkeypatch.setattr(Reading, "settled", gone)
        assert await broker.get("q") == []
        await broker.clock.sleep(1.0)
        (queue, *_) = [each for each in broker.open_queues.values() if each.place.name == "q"]
        assert queue.place.guards["background work failed"]

    run(work(), 1)
    assert warnings(caplog) == []


def test_each_kind_of_work_is_said_for_itself_and_a_bug_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        client = World().client("a")
        trouble = Trouble(client.clock, "q")
        for _ in range(2):
            for _ in range(3):
                trouble.say("one thing failed", CapelliniError("why"))
                trouble.say("another failed", ArithmeticError("nobody has thought of this"))
            await client.clock.sleep(SAY_AGAIN_S)

    run(work(), 1)
    levels = [(each.levelno, each.exc_info is not None) for each in caplog.records]
    assert levels == [(logging.WARNING, False), (logging.ERROR, True)] * 2
