"""What the journal hears of log queues: a put once, and for each group what became of its messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.log_world import LogNode, bodies_in, pull, put, settle, settle_of, simulated, until

from capellini.model.errors import CapelliniError, Unavailable
from capellini.queues.events import Events, Happened, Kind, MemorySink, put_place
from capellini.queues.log.extents import SEALED, Extent
from capellini.queues.log.retention import crowding
from capellini.queues.log.telling import BEFORE
from capellini.store.simulation.loop import run

Told = tuple[str, tuple[tuple[int, int], ...]]  # kind, runs


def heard(story: Callable[[LogNode, MemorySink], Awaitable[None]], **options: Any) -> list[Happened]:
    """What one node tells while the story goes on."""
    sink = MemorySink()

    async def main() -> None:
        _, nodes = await simulated("a", **options)
        node = nodes["a"]
        events = node.keeper._events = Events(node.clock, "a", "i", sink)
        for queue in node.keeper.queues():
            queue.place._events = events
        await story(node, sink)

    run(main(), 1)
    return list(sink.events)


def of(events: list[Happened], group: str = "") -> list[Told]:
    """The events of a group, or of puts; all in one extent."""
    name = f"q@{group}" if group else "q"
    return [(each.kind.value, each.runs) for each in events if each.queue.partition("/")[0] == name]


def test_each_group_tells_by_itself_what_it_delivered_and_what_it_skipped() -> None:
    async def story(node: LogNode, sink: MemorySink) -> None:
        queue = await node.queue()
        await put(node, [b"0", b"1", b"2", b"3"], [{"a": "x"}, {"a": "y"}, {"a": "y"}, {"a": "x"}])
        await queue.create_group("all", "earliest", {})
        await queue.create_group("some", "earliest", {"filter": {"a": ["x"]}})
        await node.clock.sleep(5)
        await queue.create_group("new", "latest", {})
        for group in ("all", "some", "new"):
            while parcels := await pull(node, group, wait_s=3.0):
                await settle(node, parcels, group=group)

    events = heard(story)
    assert of(events) == [("put", ((0, 4),))]
    assert of(events, "all") == [("delivered", ((0, 4),)), ("acked", ((0, 4),))]
    assert of(events, "new") == [("skipped", ((0, 4),))]
    assert {each.detail for each in events if "@new" in each.queue} == {BEFORE}
    skipped = [run for kind, runs in of(events, "some") for run in runs if kind == "skipped"]
    acked = [number for kind, runs in of(events, "some") for number, _ in runs if kind == "acked"]
    assert (skipped, acked) == ([(1, 2)], [0, 3])
    assert {put_place(each.queue) for each in events} == {events[0].queue}


def test_what_a_group_had_not_finished_when_its_extent_was_dropped_is_expired() -> None:
    async def story(node: LogNode, sink: MemorySink) -> None:
        queue = await node.queue()
        for group in ("quick", "slow"):
            await queue.create_group(group, "earliest", {})
        await put(node, [b"0", b"1", b"2", b"3", b"4"])
        await settle(node, await pull(node, "quick"), group="quick")
        (parcel,) = await pull(node, "slow")
        await queue.settle("slow", [settle_of(parcel, "ack", [(0, 1), (2, 1)])])
        queue.writers._retire(queue.writers.accepting()[0])
        await until(node.clock, lambda: _told(sink, Kind.EXPIRED), 600.0)

    events = heard(story, retention_s=60.0)
    assert of(events, "slow")[-1] == ("expired", ((1, 1), (3, 2)))
    assert "expired" not in [kind for kind, _ in of(events, "quick")]


async def _told(sink: MemorySink, kind: Kind) -> bool:
    return any(each.kind is kind for each in sink.events)


def test_an_ack_that_was_not_made_durable_is_not_told() -> None:
    async def story(node: LogNode, sink: MemorySink) -> None:
        queue = await node.queue()
        await queue.create_group("g", "earliest", {})
        await put(node, [b"0", b"1"])
        parcels = await pull(node)
        assert bodies_in(parcels) == [b"0", b"1"]
        (owner,) = queue.readers.owners.values()

        async def failing() -> None:
            raise Unavailable("the store is away")

        owner._cursors.commit = failing  # type: ignore[method-assign]
        with pytest.raises(CapelliniError):
            await owner.settle([settle_of(parcels[0], "ack")])

    events = heard(story)
    assert of(events, "g") == [("delivered", ((0, 2),))]


def extent(name: str, size: int | None, state: str = SEALED) -> Extent:
    return Extent(name, "", "n", "i", state, 1, "quorum", 0, 0, size, "", None)


def test_of_a_queue_that_must_go_on_the_oldest_go_until_the_rest_has_room() -> None:
    known = [extent("1", 30), extent("2", None), extent("3", 30), extent("4", None, "open")]
    assert crowding(known, 100, 30) == {"1"}  # 90 are held, 80 may be
    assert crowding(known, 50, 30) == {"1", "2"}
    assert crowding(known, 200, 30) == set()
    assert crowding(known, 0, 30) == set()  # no limit
