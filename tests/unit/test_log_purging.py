"""A purge takes the messages of a log queue and leaves its groups, whatever dies or comes between."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.unit.log_world import QUEUE, LogNode, bodies_in, drained, pull, put, simulated

from capellini.model.errors import NotFound, Unavailable, Unknown
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.queues.catalog import SETTLE_S, Catalog
from capellini.queues.log import groups
from capellini.queues.log.extents import ALL_HOMES
from capellini.store.interface import Slice
from capellini.store.schema import LOG_EXTENTS, LOG_GROUPS
from capellini.store.simulation.loop import run


async def _names(node: LogNode) -> list[str]:
    return sorted(group.name for group in await (await node.queue()).groups.all())


async def _group_rows(node: LogNode, generation: int) -> list[str]:
    page = await node.store.read(Slice(LOG_GROUPS, (QUEUE, generation), limit=100))
    return sorted(str(row.key[0]) for row in page.rows if row.values)


async def _cleared(node: LogNode) -> list[tuple[str, int]]:
    """As maintenance does; what was cleared."""
    await node.catalog.leftovers()
    await node.clock.sleep(SETTLE_S)
    found = [(name, generation) for name, generation, _ in await node.catalog.leftovers()]
    for name, generation in found:
        assert await node.keeper.clear(name, generation)
        await node.catalog.cleared(name, generation)
    return found


@pytest.mark.parametrize("seed", range(10))
def test_groups_outlive_a_purge_whose_node_dies_anywhere_in_it(seed: int) -> None:
    ends: Counter[int] = Counter()

    async def crashing(at: int) -> None:
        world, nodes = await simulated("ab")
        a, b = nodes["a"], nodes["b"]
        await (await a.queue()).create_group("g", "earliest", {"visibility_s": 7.0})
        await put(a, [b"old"])
        assert a.client is not None
        a.client.spawn(a.catalog.purge(QUEUE))
        await asyncio.sleep(world.random.uniform(at * 0.002, (at + 1) * 0.002))  # from at once to after all of it
        a.client.crash()
        await asyncio.sleep(5)
        generation = (await b.catalog.show(QUEUE)).generation
        ends[generation] += 1
        assert (await (await b.queue()).groups.live("g")).options.visibility_s == 7.0
        await put(b, [b"new"])
        assert sorted(await drained(b)) == ([b"new", b"old"] if generation == 1 else [b"new"])

    for at in range(8):
        run(crashing(at), seed * 8 + at)
    assert ends[1] and ends[2], ends


def test_a_purge_that_was_unknown_and_is_called_again_keeps_the_groups() -> None:
    async def work() -> None:
        _, nodes = await simulated("ab")
        a, b = nodes["a"], nodes["b"]
        await (await a.queue()).create_group("g", "earliest", {})
        await put(a, [b"old"])
        assert a.client is not None
        purge = a.client.spawn(a.catalog.purge(QUEUE))
        while (await b.catalog.show(QUEUE)).generation == 1:
            await asyncio.sleep(0.0005)
        purge.cancel()
        assert (await a.catalog.purge(QUEUE)).generation == 3
        await put(b, [b"new"])
        assert await drained(b) == [b"new"]

    run(work(), 1)


@pytest.mark.parametrize("seed", range(10))
def test_what_was_confirmed_of_groups_while_nodes_purge_at_once_holds(seed: int) -> None:
    """Also where the generation that a node knows is over."""

    async def work() -> None:
        world, nodes = await simulated("abc")
        a, b, c = nodes.values()
        made = [f"g{number}" for number in range(12)]
        for name in (*made[:6], "gone"):
            await (await c.queue()).create_group(name, "earliest", {})

        async def regroup() -> None:
            known = await c.queue()  # of the first generation, all the time
            await known.groups.delete("gone")
            await known.groups.change(made[0], {"visibility_s": 9.0})
            for name in made[6:]:
                await known.groups.create(name, 0, groups.GroupOptions())
                await c.clock.sleep(world.random.uniform(0.0, 0.3))

        async def purge(node: LogNode) -> None:
            for _ in range(2):
                await node.clock.sleep(world.random.uniform(0.0, 1.0))
                await node.catalog.purge(QUEUE)

        await asyncio.gather(regroup(), purge(a), purge(b))
        await c.clock.sleep(SETTLE_S)
        assert (await c.catalog.show(QUEUE)).generation == 5
        for node in (a, b, c):
            assert await _names(node) == sorted(made)
            assert (await (await node.queue()).groups.live(made[0])).options.visibility_s == 9.0

    run(work(), seed)


def test_the_readers_of_a_purged_queue_begin_anew() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = nodes["a"]
        await (await node.queue()).create_group("g", "earliest", {})
        await (await node.queue()).groups.seek("g", 0)
        await put(node, [b"1", b"2"])
        assert bodies_in(await pull(node)) == [b"1", b"2"]
        await node.catalog.purge(QUEUE)
        await put(node, [b"3"])
        (parcel,) = await pull(node)
        assert (parcel.reader, parcel.first, bodies_in([parcel])) == ("g/2", 0, [b"3"])

    run(work(), 1)


def test_groups_go_with_a_deleted_queue_however_often_it_was_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "EXPIRED_S", 10)

    async def work() -> None:
        _, nodes = await simulated("a")
        node = nodes["a"]
        for name in ("g", "gone"):
            await (await node.queue()).create_group(name, "earliest", {})
        await (await node.queue()).groups.delete("gone")
        await node.catalog.purge(QUEUE)
        await node.catalog.purge(QUEUE)
        assert await _cleared(node) == [(QUEUE, 1), (QUEUE, 2)]
        await node.clock.sleep(20)
        assert await _names(node) == ["g"]
        await node.catalog.delete(QUEUE)
        await node.catalog.create(QUEUE, "log")
        assert await _names(node) == []
        await (await node.queue()).create_group("g", "earliest", {})
        assert await _cleared(node) == [(QUEUE, 3), (f"{QUEUE}@", 1)]
        await node.clock.sleep(20)
        assert await _group_rows(node, 1) == []  # also of the one that was deleted before
        assert await _names(node) == ["g"] and await _cleared(node) == []

    run(work(), 1)


def test_groups_stay_when_a_deletion_was_begun_and_never_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "EXPIRED_S", 10)

    async def work() -> None:
        _, nodes = await simulated("a")
        node = nodes["a"]
        await (await node.queue()).create_group("g", "earliest", {})

        async def killed(*_: Any) -> bool:
            raise Unknown("it died here")

        with monkeypatch.context() as patch:
            patch.setattr(Catalog, "_write", killed)
            with pytest.raises(Unknown):
                await node.catalog.delete(QUEUE)
        await node.catalog.purge(QUEUE)
        assert await _cleared(node) == [(QUEUE, 1)]
        await node.clock.sleep(20)
        assert await _names(node) == ["g"]
        await node.catalog.delete(QUEUE)
        assert await _cleared(node) == [(QUEUE, 2), (f"{QUEUE}@", 1)]
        with pytest.raises(NotFound):
            await node.queue()

    run(work(), 1)


async def test_a_purge_that_is_killed_on_a_folder_loses_no_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(store=f"rocks:{tmp_path}/data", listen="127.0.0.1:0")
    write = Catalog._write

    async def killed(self: Catalog, *what: Any) -> bool:
        await write(self, *what)
        raise Unknown("it died here")

    node = await Node.open(settings)
    try:
        await node.service.create("feed", "log")
        assert node.service.log is not None
        await node.service.log.create_group("feed", "billing", options={"visibility_s": 77.0})
        with monkeypatch.context() as patch:
            patch.setattr(Catalog, "_write", killed)
            with pytest.raises(Unknown):
                await node.service.purge("feed")
    finally:
        await node.close()
    node = await Node.open(settings)
    try:
        assert node.service.log is not None
        for generation in (2, 3):
            assert (await node.service.show("feed")).generation == generation
            (billing,) = await node.service.log.groups("feed")
            assert (billing.name, billing.options.visibility_s) == ("billing", 77.0)
            await node.service.purge("feed")
    finally:
        await node.close()


@pytest.mark.parametrize("mode", ["ap", "cp"])
def test_a_node_that_has_not_heard_of_the_end_opens_nothing_in_a_generation_that_was_cleared(mode: str) -> None:
    """Nobody would clear it again."""

    async def work() -> None:
        _, nodes = await simulated("ab", mode=mode)
        a, b = nodes["a"], nodes["b"]
        late = await b.queue()
        await a.catalog.purge(QUEUE)
        assert await _cleared(a) == [(QUEUE, 1)]
        with pytest.raises(Unavailable, match="deleted or purged"):
            await late.writers.some_writer(True)
        assert [row for row in (await a.store.read(Slice(LOG_EXTENTS, (QUEUE, 1, ALL_HOMES)))).rows if row.values] == []

    run(work(), 1)
