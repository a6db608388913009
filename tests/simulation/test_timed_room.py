"""What may not hold back the messages that are due now: others that are hidden, dead letters that nobody takes, changes
of messages that were read long ago. Told by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.simulation.timed_stage import Stage, told

from capellini.model.errors import Paused, Unavailable
from capellini.model.message import Entry, NewMessage
from capellini.model.service import NackItem
from capellini.queues.timed import holder, judging, serving
from capellini.queues.timed.desk import AROUND_BYTES
from capellini.queues.timed.positions import parse_id
from capellini.queues.timed.rows import Reach, TimedRow, read_between


async def nacked(stage: Stage, count: int, delay_s: float) -> None:
    node = await stage.held()
    for _ in range(count):
        await stage.put(node)
        (delivery,) = await stage.get(node)
        await stage.do(node, node.broker.nack("q", [NackItem(delivery.receipt, delay_s)]))


async def comes_soon(stage: Stage) -> None:
    node = await stage.held()
    await stage.put(node, b"due now")
    (found,) = await stage.get(node, 2.0)
    assert found.body == b"due now"


def test_what_is_hidden_for_an_hour_does_not_hold_back_what_is_due_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder, "ROOM_ROWS", 3)

    async def story(stage: Stage) -> None:
        await nacked(stage, 3, 3_600.0)
        await comes_soon(stage)

    told(story)


def test_what_an_earlier_holder_hid_does_not_hold_back_what_is_due_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder, "ROOM_ROWS", 3)

    async def story(stage: Stage) -> None:
        first = await stage.held()
        await nacked(stage, 3, 3_600.0)
        stage.nodes.crash(first)  # type: ignore[arg-type]
        await stage.held(but=first)
        await comes_soon(stage)

    told(story, nodes=2)


def test_dead_letters_that_nobody_takes_do_not_hold_back_what_is_due_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder, "ROOM_ROWS", 3)

    async def story(stage: Stage) -> None:
        node = await stage.held()

        async def refused(target: str, key: str, entry: Entry) -> None:
            raise Paused("dead takes no puts now")

        node.keeper._put_moved = refused
        await nacked(stage, 3, 0.0)
        await stage.until(lambda: stage.guard("dead letter not taken yet") > 3)
        await comes_soon(stage)

    told(story, dead_letters="dead", delivery_limit=1)


def test_a_change_of_what_was_read_long_ago_does_not_stop_the_reading() -> None:
    async def story(stage: Stage) -> None:
        node = await stage.held()
        old = parse_id(await stage.put(node))
        await stage.get(node)
        await asyncio.sleep(5.0)
        (held,) = [holders[0] for (name, _), holders in node.keeper._holders.items() if name == "q"]
        with held.barred(old):  # as somebody does who looks for a message that was moved from there
            await comes_soon(stage)

    told(story)


def test_what_is_put_first_and_due_in_a_year_does_not_hold_back_what_is_due_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holder, "ROOM_ROWS", 3)

    async def story(stage: Stage) -> None:
        node = await stage.held()
        await stage.do(node, node.broker.create("new", "timed", {"shards": 1}))
        later = [NewMessage(b"in a year", delay_s=365 * 86_400.0)] * 3
        await stage.do(node, node.broker.put("new", later))  # before anybody works its shard
        await asyncio.sleep(5.0)
        await stage.do(node, node.broker.put("new", [NewMessage(b"due now")]))
        (found,) = await stage.get(node, 2.0, "new")
        (shard,) = await stage.do(node, node.broker.shards("new"))
        assert (found.body, shard.waiting) == (b"due now", 0)

    told(story)


def test_what_is_read_early_since_a_clock_was_ahead_holds_back_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder, "ROOM_ROWS", 3)

    async def story(stage: Stage) -> None:
        node = await stage.held()
        node.client.clock.offset_s += 86_400.0
        await asyncio.sleep(20.0)
        node.client.clock.offset_s -= 86_400.0
        await stage.do(node, node.broker.put("q", [NewMessage(b"in an hour", delay_s=3_600.0)] * 5))
        await asyncio.sleep(3.0)
        await comes_soon(stage)
        await asyncio.sleep(3_600.0)
        assert [one.body for one in await stage.get(node)].count(b"in an hour") == 5

    told(story)


def test_lists_and_counts_read_large_bodies_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one = AROUND_BYTES + 1_000
    monkeypatch.setattr(holder, "FIRST_ROWS", 4)
    monkeypatch.setattr(holder, "PAGE_BYTES", 4 * one)
    pages: list[int] = []

    async def counted(*asked: Any) -> Reach:
        reach = await read_between(*asked)
        pages.append(len(reach.rows))
        return reach

    monkeypatch.setattr(serving, "read_between", counted)

    async def story(stage: Stage) -> None:
        node = await stage.held()
        later = [NewMessage(b"m" * 1_000, delay_s=600.0 + at) for at in range(40)]
        await stage.do(node, node.broker.put("q", later))
        queue = await stage.queue(node)
        assert len(await stage.do(node, queue.due_between(0, serving.FAR_MS, 100))) == 40
        counts = await stage.do(node, queue.statistics())
        assert (counts.scheduled, counts.exact) == (40, True) and max(pages) == 4
        assert counts.oldest_due_ms == int(
            1000 * (await stage.do(node, queue.due_between(0, serving.FAR_MS, 1)))[0].due_at
        )
        monkeypatch.setattr(serving, "COUNTED_BYTES", 10 * one)
        counts = await stage.do(node, queue.statistics())
        assert (counts.scheduled, counts.exact) == (12, False)

    told(story)


def test_keys_that_the_store_told_of_are_not_asked_for_again_because_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted, asked = judging.accepted, 0

    async def every_other(place: Any, key: str, row: TimedRow) -> bool:
        nonlocal asked
        asked += 1
        if asked % 2:
            raise Unavailable("not now")
        return await accepted(place, key, row)

    monkeypatch.setattr(judging, "accepted", every_other)

    async def story(stage: Stage) -> None:
        node = await stage.held()
        keyed = [NewMessage(b"m", key=f"k{at}", delay_s=20.0) for at in range(6)]
        await stage.do(node, node.broker.put("q", keyed))
        await asyncio.sleep(25.0)
        assert len(await stage.get(node)) == 6 and asked == 12

    told(story)


def test_a_node_counts_what_lies_in_the_shards_of_another() -> None:
    async def story(stage: Stage) -> None:
        holds = await stage.held()
        (asks,) = [node for node in stage.living if node is not holds]
        later = [NewMessage(b"m", delay_s=600.0 + at) for at in range(7)]
        await stage.do(asks, asks.broker.put("q", later))
        await asyncio.sleep(5.0)
        counts = [await stage.do(node, (await stage.queue(node)).statistics()) for node in (asks, holds)]
        assert counts[0] == counts[1] and (counts[0].scheduled, counts[0].exact) == (7, True)

    told(story, nodes=2)
