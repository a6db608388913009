"""A group that is many extents behind: what its nodes ask the store does not grow with how many."""

from __future__ import annotations

import pytest
from tests.unit.log_world import LogNode, drained, pull, put, simulated, until

from capellini.queues.log import readers, retention
from capellini.queues.log.cursors import read_cursor
from capellini.store.interface import Page, Slice
from capellini.store.schema import LOG_CURSORS
from capellini.store.simulation.loop import run

EXTENTS = 8


async def _behind(nodes: dict[str, LogNode]) -> LogNode:
    """A queue with some extents that node `a` has written, and reads for group `g`; nobody consumes."""
    node = nodes["a"]
    queue = await node.queue()
    await queue.create_group("g", "earliest", {})
    while sum(extent.sealed for extent in queue.extents.known()) < EXTENTS:
        await put(node, [b"x" * 65_000])
        await node.clock.sleep(0.5)
    return node


def _counted(node: LogNode) -> list[Slice]:
    """Its reads of cursors from now on."""
    read, found = node.store.read, list[Slice]()

    async def counted(slice: Slice) -> Page:
        if slice.table is LOG_CURSORS:
            found.append(slice)
        return await read(slice)

    node.store.read = counted  # type: ignore[method-assign]
    return found


def test_of_what_others_read_a_few_cursors_are_looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LOOKS", 2)
    monkeypatch.setattr(retention, "LOOKS", 1)

    async def work() -> None:
        _, nodes = await simulated("ab", extent_bytes=65_536, consumed_s=60.0)
        node = await _behind(nodes)
        await node.clock.sleep(65)  # all could be dropped, if they were finished
        found = {name: _counted(one) for name, one in nodes.items()}
        await node.clock.sleep(10)  # some twenty looks, and as many turns of retention at one of them
        assert sum(map(len, found.values())) < 20 * (2 + 1) + EXTENTS
        assert len({slice.partition for slice in found["b"]}) >= EXTENTS  # each in its turn
        assert len(await drained(node)) >= EXTENTS
        queue = await nodes["b"].queue()

        async def dropped() -> bool:
            return not any(extent.sealed for extent in queue.extents.known())

        await until(node.clock, dropped)

    run(work(), 1)


def test_a_drop_that_ended_halfway_goes_on_though_a_group_has_begun_to_read() -> None:
    """It was set back in the moment of the drop: nobody can own what it would read any more."""

    async def work() -> None:
        _, nodes = await simulated("a", extent_bytes=65_536, consumed_s=60.0)
        node = await _behind(nodes)
        queue = await node.queue()
        assert await pull(node, count=1)
        name = next(extent.name for extent in queue.extents.known() if extent.sealed)
        assert await read_cursor(queue.place, name, "g/1") is not None
        await queue.readers.rows.drop(name)
        await node.clock.sleep(65)

        async def gone() -> bool:
            return queue.extents.get(name) is None

        await until(node.clock, gone)

    run(work(), 1)
