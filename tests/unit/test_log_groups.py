"""Groups that were deleted: what is left of them, and for how long."""

from __future__ import annotations

import pytest
from tests.unit.log_world import LogNode, bodies_in, drained, pull, put, simulated

from capellini.queues.log import groups
from capellini.store.interface import Slice
from capellini.store.schema import LOG_GROUPS
from capellini.store.simulation.loop import run


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "FORGET_S", 5.0)
    monkeypatch.setattr(groups, "EXPIRED_S", 10)


async def _rows(node: LogNode) -> list[str]:
    place = (await node.queue()).place
    page = await place.store.read(Slice(LOG_GROUPS, place.partition, limit=100))
    return [str(row.key[0]) for row in page.rows if row.values]


def test_rows_of_deleted_groups_go_with_the_extents_that_they_have_read() -> None:
    async def work() -> None:
        _, nodes = await simulated("a", retention_s=60.0, consumed_s=60.0)
        node = nodes["a"]
        queue = await node.queue()
        await put(node, [b"old"])
        for name in ("g", "gone"):
            await queue.create_group(name, "earliest", {})
            assert await drained(node, name) == [b"old"]
            await queue.groups.delete(name)
        await node.clock.sleep(30)
        assert sorted(await _rows(node)) == ["g", "gone"]  # what they have read is kept
        made = await queue.create_group("g", "earliest", {})
        assert made.version == 2 and bodies_in(await pull(node)) == [b"old"]  # and nothing of it is finished
        await node.clock.sleep(130)  # sealed for its age, and dropped
        assert await _rows(node) == ["g"]
        assert (await queue.create_group("gone", "earliest", {})).version == 1

    run(work(), 1)


def test_a_group_made_anew_while_its_row_expires_stays() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = nodes["a"]
        queue = await node.queue()
        await queue.create_group("g", "earliest", {})
        await queue.groups.delete("g")
        await node.clock.sleep(8)
        assert node.keeper.guards["deleted group forgotten"] == 1
        assert (await queue.create_group("g", "earliest", {})).version == 2
        await node.clock.sleep(15)
        assert [group.version for group in await queue.groups.all()] == [2]

    run(work(), 1)
