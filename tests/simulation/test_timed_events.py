"""What happens to messages of timed queues is told to the journal, each step once, in the order in which it was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.simulation.timed_stage import Stage, told

from capellini.model.message import Entry, NewMessage
from capellini.model.service import Done, ExtendItem, NackItem, Put
from capellini.model.timed import MoveItem, Scheduled
from capellini.pipeline.audit.job import due_of
from capellini.pipeline.audit.verdict import Rules, Told, judge
from capellini.queues.events import Events, Happened, Kind, MemorySink, account
from capellini.queues.timed import desk
from capellini.queues.timed.positions import ms_of_ticks, parse_id, ticks_of
from capellini.queues.timed.rows import partition_of
from capellini.store.schema import TIMED_ROWS

RULES = Rules(ended_s=float("inf"))
Story = Callable[[Stage, MemorySink], Awaitable[None]]


def heard(story: Story, nodes: int = 1, **options: Any) -> list[Happened]:
    """What the journals of all nodes hold after the story, in the order in which they were written."""
    sink = MemorySink()

    async def with_journals(stage: Stage) -> None:
        for node in stage.living:
            journal = Events(node.client.clock, node.name, node.lease.incarnation, sink)
            node.keeper._events = journal
            for queue in node.keeper._queues.values():
                queue.place._events = journal
        await story(stage, sink)

    told(with_journals, nodes, **options)
    assert all(seen.missing == () for seen in account(sink.events).values())
    return list(sink.events)


def steps(events: list[Happened], id: str, queue: str = "q") -> list[tuple[str, int]]:
    """The life of one message: what happened, at which delivery."""
    return [(event.kind.value, event.version) for event in events if event.queue == queue and id in event.ids]


def test_each_step_of_a_life_is_one_event() -> None:
    ids: list[str] = []

    async def story(stage: Stage, _: MemorySink) -> None:
        node = stage.living[0]
        broker = node.broker
        ids.append(await stage.put(node))
        (first,) = await stage.get(node)
        await stage.do(node, broker.extend("q", [ExtendItem(first.receipt, 60.0)]))
        await stage.do(node, broker.nack("q", [NackItem(first.receipt, 0.0)]))
        (second,) = await stage.get(node)
        await stage.do(node, broker.nack("q", [NackItem(second.receipt, 2.0)]))
        (third,) = await stage.get(node, 10.0)
        assert await stage.do(node, broker.ack("q", [third.receipt])) == [Done()]
        (stale,) = await stage.do(node, broker.ack("q", [third.receipt]))
        assert stale.error == "stale"

    events = heard(story)
    assert steps(events, ids[0]) == [
        ("put", 0), ("delivered", 1), ("extended", 1), ("nacked", 1), ("delivered", 2), ("nacked", 2),
        ("delivered", 3), ("acked", 3),
    ]  # fmt: skip
    assert all(not event.runs and event.generation == 1 for event in events)


def test_what_shares_a_delivery_count_is_one_event() -> None:
    async def story(stage: Stage, _: MemorySink) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        await stage.do(node, queue.put([Scheduled(Entry(b"%d" % at), 0) for at in range(5)]))
        deliveries = await stage.get(node)
        await stage.do(node, queue.ack([each.receipt for each in deliveries]))

    events = heard(story)
    assert [(event.kind, len(event.ids)) for event in events] == [(Kind.PUT, 5), (Kind.DELIVERED, 5), (Kind.ACKED, 5)]


def test_what_lies_behind_its_due_is_told_with_its_due_and_nobody_calls_it_early() -> None:
    async def story(stage: Stage, _: MemorySink) -> None:
        node = stage.living[0]
        for number in range(10):
            await asyncio.sleep(20.0 + number)  # while nothing comes a shard is read further and further ahead
            await stage.put(node)
            (delivery,) = await stage.get(node)
            await stage.do(node, node.broker.ack("q", [delivery.receipt]))

    events = heard(story)
    far = 0
    for put in [event for event in events if event.kind is Kind.PUT]:
        (id,) = put.ids
        mine = [event for event in events if id in event.ids]
        assert faults(mine) == []
        assert faults([event for event in mine if event is not put]) == []  # who took it was killed, perhaps
        if ms_of_ticks(ticks_of(parse_id(id))) / 1000 - put.at > RULES.skew_s + 0.5:
            far += 1
            assert -0.5 < int(put.detail) / 1000 - put.at <= 0.0
            mine[0] = msgspec.structs.replace(put, detail="")
            assert faults(mine) == ["early"]
    assert far


def faults(events: list[Happened]) -> list[str]:
    """What an audit finds in the one life they are about."""
    told = [
        Told(each.kind, each.version, each.at, each.node, each.incarnation, each.number, each.detail) for each in events
    ]
    return [each.fault for each in judge("q", told, RULES, due_s=due_of(events[0].ids[0]))]


def test_cancelled_and_moved_messages_are_told_with_their_new_due() -> None:
    ids: dict[str, str] = {}

    async def story(stage: Stage, _: MemorySink) -> None:
        node = stage.living[0]
        queue = await stage.queue(node)
        for name, delay_s in (("far", 600.0), ("soon", 1.0), ("moved", 600.0)):
            ids[name] = await stage.put(node, delay_s=delay_s)
        await asyncio.sleep(0.5)
        assert await stage.do(node, queue.cancel([ids["far"], ids["soon"]])) == [Done(), Done()]
        assert await stage.do(node, queue.move([MoveItem(ids["moved"], 0)])) == [Done(0.0)]
        (again,) = await stage.do(node, queue.cancel([ids["far"]]))
        assert again.error == "not_found"
        (delivery,) = await stage.get(node)
        assert delivery.id == ids["moved"]

    events = heard(story)
    assert steps(events, ids["far"]) == steps(events, ids["soon"]) == [("put", 0), ("cancelled", 0)]
    assert steps(events, ids["moved"]) == [("put", 0), ("moved", 0), ("delivered", 1)]
    assert [event.detail for event in events if event.kind is Kind.MOVED] == ["0"]


def test_a_dead_letter_is_told_where_it_was_and_where_it_came() -> None:
    ids: list[str] = []

    async def story(stage: Stage, _: MemorySink) -> None:
        node = stage.living[0]
        ids.append(await stage.put(node))
        (delivery,) = await stage.get(node)
        await stage.do(node, node.broker.nack("q", [NackItem(delivery.receipt, 0.0)]))
        (letter,) = await stage.get(node, 10.0, "dead")
        ids.append(letter.id)
        await stage.until(lambda: stage.guard("dead letter moved") == 1)

    events = heard(story, dead_letters="dead", delivery_limit=1)
    assert steps(events, ids[0]) == [("put", 0), ("delivered", 1), ("nacked", 1), ("dead", 0)]
    assert steps(events, ids[1], "dead") == [("put", 0), ("delivered", 1)]
    assert [event.detail for event in events if event.kind is Kind.DEAD] == ["dead"]


def test_a_put_under_a_key_is_told_once_and_a_copy_of_it_not() -> None:
    ids: list[str] = []

    async def story(stage: Stage, _: MemorySink) -> None:
        node = stage.living[0]
        for _ in range(3):
            (put,) = await stage.do(node, node.broker.put("q", [NewMessage(b"once", key="k")]))
            assert isinstance(put, Put)
            ids.append(put.id)
        assert len(await stage.get(node)) == 1

    events = heard(story)
    assert steps(events, ids[0]) == [("put", 0), ("delivered", 1)]
    assert [event.kind for event in events] == [Kind.PUT, Kind.DELIVERED]


def test_a_message_whose_row_is_gone_has_expired() -> None:
    ids: list[str] = []

    async def story(stage: Stage, _: MemorySink) -> None:
        first = await stage.held()
        queue = await stage.queue(first)
        ids.append(await stage.put(first))
        await stage.get(first)
        queue.place.snapshot_bytes = 1
        await stage.put(first, b"other")
        (other,) = await stage.get(first)
        await stage.do(first, first.broker.ack("q", [other.receipt]))  # and a snapshot, in which the first is open
        await asyncio.sleep(1.0)
        await stage.do(first, first.client.store.drop(TIMED_ROWS, partition_of(queue.place, parse_id(ids[0]))))
        stage.nodes.crash(first)  # type: ignore[arg-type]
        await stage.held()

    events = heard(story, nodes=2, granularity="day")
    assert steps(events, ids[0]) == [("put", 0), ("delivered", 1), ("expired", 0)]


def test_too_many_bytes_in_flight_pause_a_shard_until_they_are_acked(monkeypatch: pytest.MonkeyPatch) -> None:
    one = desk.AROUND_BYTES + 400
    monkeypatch.setattr(desk, "FLYING_BYTES", 2 * one + 1)

    async def story(stage: Stage) -> None:
        node = stage.living[0]
        for at in range(6):
            await stage.put(node, b"%d" % at * 400)
        await asyncio.sleep(2.0)
        taken = await stage.get(node)
        (view,) = await stage.do(node, node.broker.shards("q"))
        assert len(taken) == 3 and (view.in_flight, view.in_flight_bytes) == (3, 3 * one)
        assert "in flight" in view.suspicious
        assert await stage.get(node, 5.0) == []
        reading = asyncio.ensure_future(stage.get(node, 20.0))
        await asyncio.sleep(1.0)
        began_s = stage.world.loop.time()
        assert await stage.do(node, node.broker.ack("q", [taken[0].receipt])) == [Done()]
        rest = await reading
        assert len(rest) >= 1 and stage.world.loop.time() - began_s < 2.0
        (view,) = await stage.do(node, node.broker.shards("q"))
        assert view.in_flight == 2 + len(rest)

    told(story)
