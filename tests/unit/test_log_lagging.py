"""A group that is many extents behind: what its nodes ask the store does not grow with how many."""

from __future__ import annotations

import pytest
from tests.unit.log_world import LogNode, drained, put, simulated, until

from capellini.queues.log import readers, retention
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
