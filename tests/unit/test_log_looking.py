"""What a node shows of the extents of a log queue that others write."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.log_world import LogNode, crash, pull, put, simulated

from capellini.cli.debug import _extent_rows
from capellini.model.log import ExtentView
from capellini.model.message import Peeked
from capellini.queues.log.groups import Group
from capellini.queues.log.looking import Looking, Place, place_of
from capellini.queues.log.reading import Reading
from capellini.store.simulation.loop import run


async def _only_extent(node: LogNode) -> ExtentView:
    queue = await node.queue()
    (found,) = await queue.looking.extents(queue.replicas)
    return found


def test_an_open_extent_is_as_far_as_the_node_that_writes_it_says() -> None:
    async def work() -> None:
        _, nodes = await simulated("ab")
        await put(nodes["a"], [b"1", b"2", b"3"])
        await nodes["b"].clock.sleep(5)  # until the writer knows its rate
        here, there = await _only_extent(nodes["a"]), await _only_extent(nodes["b"])
        assert (there.state, there.node, there.end) == ("open", "a", 3)
        assert there.bytes == here.bytes and there.bytes
        assert there.says == here.says and "a second" in there.says

    run(work(), 1)


def test_of_an_open_extent_whose_writer_does_not_answer_it_is_said_why_nothing_is_known() -> None:
    async def work() -> None:
        _, nodes = await simulated("ab")
        await put(nodes["a"], [b"1"])
        crash(nodes["a"], nodes)
        found = await _only_extent(nodes["b"])
        assert (found.state, found.end, found.bytes) == ("open", None, None)
        assert found.says == "node a does not say how far it is: it is away, or just sealing it"
        heads, (row,) = _extent_rows([found])
        shown = dict(zip(heads, row, strict=True))
        assert (shown["messages"], shown["bytes"], shown["remarks"]) == ("-", "-", found.says)

    run(work(), 1)


def test_it_is_said_of_which_group_nothing_new_is_handed_out_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capellini.queues.log.desk.MOST_FLIGHTS", 2)

    async def work() -> None:
        _, nodes = await simulated("ab")
        await (await nodes["a"].queue()).create_group("g", "earliest", {})
        await put(nodes["a"], [b"1", b"2", b"3"])
        for _ in range(2):
            assert await pull(nodes["a"], count=1)
        assert await pull(nodes["a"], count=1, wait_s=0.0) == []
        await nodes["b"].clock.sleep(1)  # until it has heard of the group
        for node in nodes.values():  # the one that reads it, and another
            said = (await _only_extent(node)).says
            assert said.endswith("g: too many deliveries are in flight: consumers must ack")

    run(work(), 1)


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_look_goes_no_further_than_it_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the node that reads the extents, and by another one."""
    looked: list[Peeked] = []
    shown = Looking._shown

    async def counted(self: Looking, group: Group, reading: Reading, *more: Any) -> list[Peeked]:
        found = await shown(self, group, reading, *more)
        looked.extend(found)
        return found

    monkeypatch.setattr(Looking, "_shown", counted)

    async def work() -> None:
        _, nodes = await simulated("ab")
        node, queue = nodes["a"], await nodes["a"].queue()
        await queue.create_group("g", "earliest", {})
        for number in range(6):
            await put(node, [b"%d" % (2 * number), b"%d" % (2 * number + 1)])
            for writer in queue.writers.accepting():
                queue.writers._retire(writer)
                await writer.over.wait()
        await node.clock.sleep(2)  # until both have heard of all of them
        peeking = await nodes[name].queue()
        group = await peeking.groups.live("g")
        found: list[bytes] = []
        after: Place | None = None
        while page := await peeking.looking.peek(group, 3, after):
            found += [one.body for one in page]
            after = place_of(page[-1].id)
            assert len(looked) <= 3 * len(nodes)  # each is asked for as many
            looked.clear()
        assert found == [b"%d" % number for number in range(12)]

    run(work(), 1)


def test_looking_on_at_extents_in_which_nothing_comes_keeps_nothing() -> None:
    async def work() -> None:
        _, nodes = await simulated("ab")
        await (await nodes["a"].queue()).create_group("g", "earliest", {})
        await put(nodes["a"], [b"1"])
        (writer,) = (await nodes["a"].queue()).writers.accepting()
        queue = await nodes["b"].queue()
        await nodes["b"].clock.sleep(2)
        reading = queue.readers.reading(writer.extent.name)
        await reading.look(1)  # behind the last message
        assert reading.top() == 1, "an empty block says what is confirmed"
        assert not nodes["b"].keeper.shelf._firsts

    run(work(), 1)
