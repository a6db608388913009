"""Guards of work queues that seeds hardly reach, each reached by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from capellini.model.message import NewMessage
from capellini.model.service import Put
from capellini.node.broker import Broker
from capellini.queues.work import pointers as pointing
from capellini.queues.work.getting import Getting
from capellini.queues.work.pointers import DONE, Listed, Pointers
from capellini.queues.work.queue import WorkQueue
from capellini.store.schema import TABLES
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World

Story = Callable[[Broker, WorkQueue], Awaitable[None]]


def with_a_queue_of_one_message(story: Story, **options: Any) -> None:
    async def main() -> None:
        client = World().client("node")
        await client.store.prepare(TABLES)
        await client.spawn(told(Broker(client.store, client.clock, client.random)))

    async def told(broker: Broker) -> None:
        await broker.create("q", "work", {"bucket_size": 10, **options})
        (answer,) = await broker.put("q", [NewMessage(b"m")])
        assert isinstance(answer, Put)
        await story(broker, broker.opened(await broker.catalog.live("q")))

    run(main())


def test_a_get_that_goes_away_in_the_instant_of_its_answer_gives_the_messages_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(broker: Broker, queue: WorkQueue) -> None:
        task = asyncio.ensure_future(broker.get("q", 1, 5.0, visibility_s=3_600.0))
        hand_out = Getting._hand_out

        def and_gone(self: Getting, *args: Any) -> None:
            hand_out(self, *args)
            task.cancel()

        with monkeypatch.context() as patch:
            patch.setattr(Getting, "_hand_out", and_gone)
            (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError)
        assert queue.place.guards["get went away with its messages"] == 1
        (again,) = await broker.get("q", 1, 5.0)
        assert (again.body, again.deliveries) == (b"m", 2)

    with_a_queue_of_one_message(story)


def test_a_bucket_that_was_wrongly_called_done_is_not_dropped() -> None:
    async def story(broker: Broker, queue: WorkQueue) -> None:
        def wrongly(now: Pointers) -> tuple[Pointers, None]:
            return pointing._with(now, 0, Listed(DONE, 0)), None

        await queue.place.pointers.change(wrongly)
        await queue.repair.step()
        assert queue.place.guards["bucket not finished after all"] == 1
        (delivery,) = await broker.get("q", 1, 5.0)
        assert delivery.body == b"m"

    with_a_queue_of_one_message(story)
