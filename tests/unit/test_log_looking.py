"""What a node shows of the extents of a log queue that others write."""

from __future__ import annotations

import pytest
from tests.unit.log_world import LogNode, crash, pull, put, simulated

from capellini.cli.debug import _extent_rows
from capellini.model.log import ExtentView
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
