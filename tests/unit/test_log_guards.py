"""Guards of log queues that simulated runs do not reach, or hardly ever: each has to decide here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.delayed_world import delayed_world
from tests.unit.log_world import QUEUE, LogNode, Wires, bodies_in, pull, put, settle, simulated, until
from tests.unit.log_writers import node_in

from capellini.model import chunks
from capellini.model.errors import Paused, Unavailable, Unknown
from capellini.model.message import Delivery, NewMessage
from capellini.model.service import Problem, Put
from capellini.queues.events import Events
from capellini.queues.log import desk, lines, opening
from capellini.queues.log.delaying import waiting_name
from capellini.queues.log.keeper import LogKeeper
from capellini.queues.log.place import LogPlace
from capellini.queues.log.rows import Block
from capellini.store.schema import TABLES
from capellini.store.simulation.loop import run
from capellini.store.simulation.world import World


async def _grouped(node: LogNode, **options: Any) -> LogNode:
    await (await node.queue()).create_group("g", "earliest", options)
    return node


def test_a_block_that_is_missing_is_not_passed() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await _grouped(nodes["a"])
        await put(node, [b"1"])
        assert bodies_in(await pull(node)) == [b"1"]
        (owner,) = (await node.queue()).readers.owners.values()
        owner.reading.top = lambda: 5  # type: ignore[method-assign]
        assert await owner.take(10, 1 << 20, None) == []
        assert node.keeper.guards["block is not there"] > 0

    run(work(), 1)


def test_a_writer_that_hears_of_its_block_after_its_lease_confirms_nothing() -> None:
    async def work() -> None:
        _, nodes = await simulated("ab")
        node = nodes["a"]
        assert node.client is not None
        await put(node, [b"first"])
        (writer,) = (await node.queue()).writers.accepting()
        putting = node.client.spawn(put(node, [b"second"]))
        while not any(flight.items for flight in writer._flights):
            await nodes["b"].clock.sleep(0.000_1)
        node.client.pause(30.0)
        with pytest.raises(Unknown):
            await putting
        assert node.keeper.guards["not confirmed: the lease is over"] == 1

    run(work(), 1)


def test_an_extent_whose_listing_is_heard_of_late_gets_no_second_writer() -> None:
    """Another turn of the same node had found it on the list, written it and sealed it meanwhile."""

    async def work() -> None:
        node = await node_in(World(), mode="cp")
        await node.put(b"0")
        heard, listed = asyncio.Event(), node.extents._list

        async def late(*args: Any) -> Any:
            node.extents._list = listed  # type: ignore[method-assign]
            found = await listed(*args)
            await heard.wait()
            return found

        node.extents._list = late  # type: ignore[method-assign]
        node.writers._retire(node.writers.accepting()[0])
        await node.clock.sleep(1)
        await node.turn()
        answers = [await node.put(b"%d" % number) for number in (1, 2)]
        node.writers._retire(node.writers.accepting()[0])
        await node.clock.sleep(1)
        heard.set()
        await node.clock.sleep(1)
        assert [extent.state for extent in node.extents.known()] == ["sealed", "sealed", "open"]
        answers += [await node.put(b"%d" % number) for number in (3, 4)]
        assert len({(answer.extent, answer.first) for answer in answers}) == 4
        assert node.guards["listing heard of too late"] == 1

    run(work(), 1)


def test_a_chains_end_is_not_sealed_under_the_writer_that_it_gets_while_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its listing was not heard of yet, so that it seemed to be left by somebody before."""

    async def work() -> None:
        node = await node_in(World(), mode="cp")
        await node.put(b"0")
        heard, listed, last_block = asyncio.Event(), node.extents._list, opening.last_block

        async def late(*args: Any) -> Any:
            found = await listed(*args)
            await heard.wait()
            return found

        async def written_meanwhile(place: LogPlace, extent: str) -> Block | None:
            node.extents._list = listed  # type: ignore[method-assign]
            heard.set()
            await node.clock.sleep(0.1)
            await node.put(b"1")
            return await last_block(place, extent)

        node.extents._list = late  # type: ignore[method-assign]
        monkeypatch.setattr(opening, "last_block", written_meanwhile)
        node.writers._retire(node.writers.accepting()[0])
        await node.clock.sleep(1)
        await node.writers.once("open", node.writers._opened)
        answer = await node.put(b"2")
        assert [extent.state for extent in node.extents.known()] == ["sealed", "open"]
        assert (answer.extent, answer.first) == (node.extents.known()[1].name, 1)
        assert node.guards["chain's end got its writer meanwhile"] == 1

    run(work(), 1)


def test_what_a_broken_writer_handed_back_may_be_there_until_its_extent_is_sealed() -> None:
    async def work() -> None:
        chunk = chunks.pack([b"x"])
        line = lines.Line()
        for unsure in (True, False):
            item = lines.Item(chunk, chunks.head_of(chunk), asyncio.get_running_loop().create_future())
            item.unsure = unsure
            line.items.append(item)
        sent, waiting = line.items
        lines._fail(line, Unavailable("the lease is lost"))
        assert isinstance(sent.answer.exception(), Unknown)
        assert isinstance(waiting.answer.exception(), Unavailable)

    run(work(), 1)


def test_whoever_acks_nothing_gets_no_more_beyond_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "MOST_FLIGHTS", 2)

    async def work() -> None:
        _, nodes = await simulated("a", visibility_s=60.0)
        node = await _grouped(nodes["a"])
        await put(node, [b"1", b"2", b"3"])
        first, second = [await pull(node, count=1) for _ in range(2)]
        assert await pull(node, count=1, wait_s=0.0) == []
        assert node.keeper.guards["too many deliveries in flight"] > 0
        assert await settle(node, first) == 1
        assert bodies_in(await pull(node, count=1)) == [b"3"]
        assert await settle(node, second) == 1

    run(work(), 1)


def test_an_extent_past_its_retention_is_dropped_though_nobody_has_read_it() -> None:
    async def work() -> None:
        _, nodes = await simulated("a", retention_s=60.0)
        node = await _grouped(nodes["a"])
        await put(node, [b"old"])

        async def dropped() -> bool:
            return node.keeper.guards["extent dropped: too old"] > 0

        await until(node.clock, dropped, 300.0)
        assert await pull(node, wait_s=1.0) == []

    run(work(), 1)


def test_delayed_messages_that_cannot_be_given_back_come_back_by_themselves() -> None:
    async def work() -> None:
        _, nodes = await delayed_world("a")
        node = nodes["a"]
        await node.put_later([b"1"], 1.0)
        await node.catalog.pause(QUEUE, puts=True)  # so that nobody else moves it
        record = await node.catalog.show(QUEUE)
        waits = node.timed.queue(await node.catalog.live(waiting_name(QUEUE, record.generation)))
        taken: list[Delivery] = []

        async def due() -> bool:
            taken.extend(waits.serving.take(1, 60_000, int(node.clock.now_s() * 1000)))
            return bool(taken)

        await until(node.clock, due)
        node.timed.emergency_stop("the lease is lost")
        await node.own.spawn(node.delaying._given_back(waits, taken, 0.0))
        assert node.keeper.guards["delayed messages not given back"] > 0

    run(work(), 1)


def test_a_process_that_writes_nothing_sends_its_puts_to_a_node_that_takes_them() -> None:
    async def work() -> None:
        world, wires = World(), Wires()
        names = ("a", "b", "c")
        nodes: dict[str, LogNode] = {}
        for name in names:
            client = world.client(name)
            if not nodes:
                await client.store.prepare(TABLES)
            nodes[name] = node = LogNode(client.store, client.clock, client.random, name, wires)
            if name != "c":
                node.lease.address = f"at {name}"
                await client.spawn(node.lease.start())
                client.spawn(node.turns())
        sender = nodes["c"]
        keeper = LogKeeper(
            sender.store, sender.clock, world.random, sender.catalog, sender.lease, sender.watcher,
            Events(sender.clock), 0.5, wires, sender.put_moved, holds=False,
        )  # fmt: skip
        await nodes["a"].catalog.create(QUEUE, "log", {})
        await sender.watcher.look()
        del wires.nodes["a"]
        for number in range(8):
            done = await keeper.queue(await sender.catalog.live(QUEUE)).append(chunks.pack([b"%d" % number]))
            assert done.extent
        assert keeper.guards["put sent on to another node"] > 0

    run(work(), 1)


def test_one_queue_that_cannot_be_given_up_does_not_keep_a_node_from_stopping() -> None:
    async def work() -> None:
        _, nodes = await simulated("a")
        node = await _grouped(nodes["a"])
        await node.catalog.create("other", "log", {})
        for name in (QUEUE, "other"):
            await (await node.queue(name)).append(chunks.pack([b"1"]))

        async def away() -> None:
            raise Unavailable("the store is away")

        (await node.queue()).readers.give_up = away  # type: ignore[method-assign]
        await node.keeper.stop()
        assert node.keeper.guards["queue not given up"] == 1
        assert not (await node.queue("other")).writers.accepting()

    run(work(), 1)


def test_of_a_put_in_parts_only_those_that_met_the_pause_are_refused() -> None:
    """Keys make each message a part of its own; puts are paused when the first one is through the gate."""

    async def work() -> None:
        _, nodes = await simulated("a")
        node = await _grouped(nodes["a"])
        queue = await node.queue()
        current, calls = queue._current, 0

        async def paused_by_now(puts: bool) -> None:
            nonlocal calls
            calls += puts
            if calls > 1:
                raise Paused("its puts are paused")
            await current(puts)

        queue._current = paused_by_now
        first, second = await queue.put([NewMessage(b"1", key="1"), NewMessage(b"2", key="2")])
        queue._current = current
        assert isinstance(first, Put) and isinstance(second, Problem) and second.error == Paused.name
        assert bodies_in(await pull(node)) == [b"1"]

    run(work(), 1)
