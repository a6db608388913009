"""Log queues of a node on a real folder: groups, positions, dead letters, looks, and what outlives a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from capellini.model import chunks
from capellini.model.errors import Conflict, Full, Invalid, NotFound, TooLarge, WrongKind
from capellini.model.log import LogParcel, LogService, Settle
from capellini.model.message import Delivery, Entry, NewMessage
from capellini.model.service import Done, NackItem, Problem, Put
from capellini.model.timed import Scheduled
from capellini.node.log import LogBroker
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.queues.catalog import QueueRecord
from capellini.queues.log.delaying import Delaying
from capellini.queues.log.turns import Turns
from capellini.queues.work.place import Gone
from capellini.store.interface import Batch
from capellini.store.schema import LOG_BLOCKS

WAIT_S = 10.0


@asynccontextmanager
async def node_in(folder: Path) -> AsyncIterator[Node]:
    node = await Node.open(Settings(store=f"rocks:{folder}/data", listen="127.0.0.1:0"))
    try:
        yield node
    finally:
        await node.close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with node_in(tmp_path) as made:
        yield made


def log_of(node: Node) -> LogService:
    assert node.service.log is not None
    return node.service.log


async def put(node: Node, queue: str, *bodies: bytes, **attributes: str) -> list[str]:
    results = await node.service.put(queue, [NewMessage(body, attributes=attributes) for body in bodies])
    assert all(isinstance(each, Put) for each in results)
    return [each.id for each in results if isinstance(each, Put)]


async def got(node: Node, name: str, count: int, wait_s: float = WAIT_S) -> list[Delivery]:
    """So many messages; an answer may have fewer than were asked for."""
    found: list[Delivery] = []
    while len(found) < count and (more := await node.service.get(name, count - len(found), wait_s)):
        found += more
    return found


async def acked(node: Node, name: str, messages: list[Delivery]) -> None:
    assert all(isinstance(each, Done) for each in await node.service.ack(name, [one.receipt for one in messages]))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.02)


def settle_of(parcel: LogParcel, verb: str, *ranges: tuple[int, int]) -> Settle:
    return Settle(
        parcel.extent, parcel.reader, parcel.epoch, parcel.delivery, parcel.first, parcel.count, parcel.code, verb,
        list(ranges) or [(parcel.first, parcel.count)],
    )  # fmt: skip


async def test_each_group_gets_every_message_once_and_keeps_its_own_place(node: Node) -> None:
    await node.service.create("feed", "log")
    log = log_of(node)
    for group in ("a", "b"):
        await log.create_group("feed", group)
    ids = await put(node, "feed", b"1", b"2", b"3", color="red")
    first = await got(node, "feed@a", 3)
    assert [(each.id, each.body, each.attributes) for each in first] == [
        (id, body, {"color": "red"}) for id, body in zip(ids, (b"1", b"2", b"3"), strict=True)
    ]
    await acked(node, "feed@a", first)
    assert await node.service.get("feed@a", 3) == []
    assert [each.body for each in await got(node, "feed@b", 3)] == [b"1", b"2", b"3"]
    _, lag = await log.show_group("feed", "a")
    assert (lag.ready, lag.in_flight, lag.oldest_age_s, lag.exact) == (0, 0, None, True)
    _, lag = await log.show_group("feed", "b")
    assert (lag.ready, lag.in_flight) == (0, 3)
    both = await node.service.statistics("feed")
    assert (both.ready, both.in_flight, both.puts, both.deliveries, both.acks) == (0, 3, 3, 6, 3)


async def test_acks_and_positions_outlive_a_restart(tmp_path: Path) -> None:
    async with node_in(tmp_path) as node:
        await node.service.create("feed", "log")
        await log_of(node).create_group("feed", "g")
        await put(node, "feed", *[b"%d" % number for number in range(6)])
        found = await got(node, "feed@g", 4)
        await acked(node, "feed@g", [found[0], found[2]])
    async with node_in(tmp_path) as node:
        again = await got(node, "feed@g", 4)
        assert sorted(each.body for each in again) == [b"1", b"3", b"4", b"5"]
        await put(node, "feed", b"new")
        assert [each.body for each in await got(node, "feed@g", 1)] == [b"new"]
        stale = await node.service.ack("feed@g", [found[1].receipt])
        assert [isinstance(each, Problem) and each.error for each in stale] == ["stale"]


async def test_a_group_starts_where_it_is_told_and_can_be_sought_back(node: Node) -> None:
    await node.service.create("feed", "log")
    log = log_of(node)
    await put(node, "feed", b"old")
    await asyncio.sleep(0.01)  # put times are whole milliseconds
    await log.create_group("feed", "late", "latest")
    await put(node, "feed", b"new")
    found = await got(node, "feed@late", 1)
    assert [each.body for each in found] == [b"new"]
    await acked(node, "feed@late", found)
    info = await log.seek_group("feed", "late", "earliest")
    assert info.version == 2
    assert sorted(each.body for each in await got(node, "feed@late", 2)) == [b"new", b"old"]
    says = (await log.seek_group("feed", "late", 1_000.0)).says
    assert "oldest" in says
    with pytest.raises(Invalid):
        await log.seek_group("feed", "late", "yesterday")
    with pytest.raises(NotFound):
        await node.service.get("feed@nobody")


async def test_filters_choose_and_what_is_not_wanted_is_finished(node: Node) -> None:
    await node.service.create("feed", "log")
    log = log_of(node)
    await log.create_group("feed", "reds", options={"filter": {"color": ["red"]}})
    await put(node, "feed", b"1", color="red")
    await put(node, "feed", b"2", color="blue")
    await put(node, "feed", b"3", color="red")
    found = await got(node, "feed@reds", 2)
    assert [each.body for each in found] == [b"1", b"3"]
    await acked(node, "feed@reds", found)
    assert await node.service.get("feed@reds", 5) == []
    _, lag = await log.show_group("feed", "reds")
    assert lag.ready == 0


async def test_dead_letters_of_a_group_come_back_to_it_alone_or_are_purged(node: Node) -> None:
    await node.service.create("feed", "log")
    log = log_of(node)
    info = await log.create_group("feed", "g", options={"delivery_limit": 1})
    await log.create_group("feed", "other")
    await put(node, "feed", b"poison", kind="bad")
    await acked(node, "feed@other", await got(node, "feed@other", 1))

    async def bury() -> None:
        (found,) = await got(node, "feed@g", 1)
        assert isinstance((await node.service.nack("feed@g", [NackItem(found.receipt, 0.0)]))[0], Done)
        async with asyncio.timeout(WAIT_S):
            while not await node.service.dead("feed@g", 10):
                await asyncio.sleep(0.02)

    await bury()
    (letter,) = await node.service.dead("feed@g", 10)
    assert (letter.body, letter.attributes) == (b"poison", {"kind": "bad"})
    assert (await node.service.statistics("feed@g")).dead == 1
    assert await log.merge_dead("feed", "g") == 1
    assert await node.service.dead("feed@g", 10) == []
    await bury()
    assert await node.service.get("feed@other", 1) == []
    await log.purge_dead("feed", "g")
    assert await node.service.dead("feed@g", 10) == []
    assert info.dead_letters == "feed.g.dead"
    with pytest.raises(NotFound):
        await log.purge_dead("feed", "other")


async def test_a_producer_is_recognised_when_it_sends_again_also_after_a_restart(tmp_path: Path) -> None:
    producer = b"p" * 16
    chunk = chunks.pack([b"a", b"b"], None, producer, 1)
    async with node_in(tmp_path) as node:
        await node.service.create("feed", "log")
        first = await log_of(node).append("feed", chunk)
        assert (await log_of(node).append("feed", chunk)).duplicate
        with pytest.raises(Invalid, match="2 is next"):
            await log_of(node).append("feed", chunks.pack([b"x"], None, producer, 3))
    async with node_in(tmp_path) as node:
        assert not first.duplicate
        assert (await log_of(node).append("feed", chunk)).duplicate
        assert not (await log_of(node).append("feed", chunks.pack([b"c"], None, producer, 2))).duplicate
        assert sorted(each.body for each in await got(node, "feed", 3)) == [b"a", b"b", b"c"]


async def test_parcels_are_settled_in_ranges_and_foreign_ones_refused(node: Node) -> None:
    await node.service.create("feed", "log")
    log = log_of(node)
    await log.append("feed", chunks.pack([b"%d" % number for number in range(10)]))
    (parcel,) = await log.pull("feed", "default", 10, 100_000, WAIT_S)
    first = parcel.first
    (part,) = await log.settle("feed", "default", [settle_of(parcel, "ack", (first, 2), (first + 5, 1))])
    assert part.ranges == [(first, 2), (first + 5, 1)]
    (again,) = await log.settle("feed", "default", [settle_of(parcel, "ack")])
    assert sum(count for _, count in again.ranges) == 7
    (stale,) = await log.settle("feed", "default", [settle_of(parcel, "ack")])
    assert stale.ranges == []
    forged = Settle(parcel.extent, parcel.reader, parcel.epoch, 99, first, 10, parcel.code, "ack", [(first, 10)])
    (refused,) = await log.settle("feed", "default", [forged])
    assert (refused.ranges, refused.error) == ([], "invalid")


async def test_bad_requests_change_nothing_and_good_ones_beside_them_work(node: Node) -> None:
    await node.service.create("feed", "log", {"body_limit": 10, "max_bytes": 100_000})
    await node.service.create("jobs")
    log = log_of(node)
    good, bad = await node.service.put("feed", [NewMessage(b"ok"), NewMessage(b"x" * 11)])
    assert isinstance(good, Put) and isinstance(bad, Problem) and bad.error == "too_large"
    with pytest.raises(TooLarge):
        await log.append("feed", chunks.pack([b"x" * 11]))
    with pytest.raises(Invalid):
        await log.append("feed", b"nonsense" * 10)
    with pytest.raises(WrongKind):
        await log.append("jobs", chunks.pack([b"x"]))
    with pytest.raises(WrongKind):
        await node.service.get("jobs@g")
    with pytest.raises(Invalid):
        await log.pull("feed", "default", 0, 1_000, 0)
    await log.create_group("feed", "g", options={"delay_s": 5})
    with pytest.raises(Conflict):
        await log.create_group("feed", "g")
    (stale,) = await node.service.ack("feed", ["nonsense"])
    assert isinstance(stale, Problem) and stale.error == "invalid"
    with pytest.raises(Invalid, match="order"):
        await node.service.create("wrong", "log", {"ordered": "total"})
    chunk = chunks.pack([b"0123456789"] * 500)
    for _ in range(100_000 // len(chunk)):
        await log.append("feed", chunk)
    with pytest.raises(Full):
        await log.append("feed", chunk)


async def test_what_is_not_finished_can_be_looked_at(node: Node) -> None:
    await node.service.create("feed", "log")
    ids = await put(node, "feed", b"1", b"2", b"3", color="red")
    (held,) = await got(node, "feed@default", 1)
    seen = await node.service.peek("feed", 10)
    assert [(each.id, each.state, each.body) for each in seen] == [
        (ids[0], "in_flight", b"1"), (ids[1], "ready", b"2"), (ids[2], "ready", b"3"),
    ]  # fmt: skip
    assert [each.id for each in await node.service.peek("feed", 10, after=ids[1])] == [ids[2]]
    await acked(node, "feed", [held])
    assert [each.id for each in await node.service.peek("feed", 1)] == [ids[1]]
    (extent,) = await log_of(node).extents("feed")
    assert (extent.state, extent.end) == ("open", 3) and f"-{extent.node}-" in held.id
    reader = extent.readers["default"]
    assert (reader["next"], reader["ready"], reader["owner"]) == (1, 2, extent.node)
    with pytest.raises(Invalid):
        await node.service.peek("feed", 1, after="nonsense")


async def test_full_extents_are_sealed_and_consumed_ones_dropped_whole(node: Node) -> None:
    await node.service.create("feed", "log", {"extent_bytes": 65_536, "consumed_s": 0})
    log = log_of(node)
    body = b"x" * 1_000
    for _ in range(8):
        await log.append("feed", chunks.pack([body] * 20))
    count = 0
    while count < 160:
        parcels = await log.pull("feed", "default", 100, 100_000, WAIT_S)
        assert parcels, "messages are missing"
        settled = await log.settle("feed", "default", [settle_of(parcel, "ack") for parcel in parcels])
        count += sum(size for one in settled for _, size in one.ranges)
    keeper = node.kinds.log.keeper
    await until(lambda: keeper.dropped >= 2)
    extents = keeper.queues()[0].extents
    await until(lambda: len([each for each in extents.known() if each.sealed]) == 0)


async def test_a_purged_or_deleted_queue_leaves_nothing_to_its_successor(node: Node) -> None:
    await node.service.create("feed", "log")
    log = log_of(node)
    await log.create_group("feed", "g")
    await put(node, "feed", b"old")
    (held,) = await got(node, "feed@g", 1)
    await node.service.purge("feed")
    await put(node, "feed", b"new")
    assert [each.body for each in await got(node, "feed@g", 1)] == [b"new"]
    (stale,) = await node.service.ack("feed@g", [held.receipt])
    assert isinstance(stale, Problem)
    await node.service.delete("feed")
    with pytest.raises(NotFound):
        await log.groups("feed")
    await node.service.create("feed", "log")
    assert await log.groups("feed") == []


async def test_groups_outlive_a_purge(node: Node) -> None:
    await node.service.create("feed", "log")
    log = log_of(node)
    made = await log.create_group("feed", "billing", options={"visibility_s": 77.0, "filter": {"to": ["us"]}})
    later = await log.create_group("feed", "later", "latest")
    await log.create_group("feed", "gone")
    await log.delete_group("feed", "gone")
    await put(node, "feed", b"old", to="us")
    await node.service.purge("feed")
    billing, kept = await log.groups("feed")
    assert (billing.name, billing.options) == ("billing", made.options)
    assert (kept.name, kept.start_at) == ("later", later.start_at)
    await put(node, "feed", b"not ours")
    await put(node, "feed", b"new", to="us")
    assert [each.body for each in await got(node, "feed@billing", 1)] == [b"new"]
    assert [each.body for each in await got(node, "feed@later", 2)] == [b"not ours", b"new"]


async def test_a_put_of_more_than_a_chunk_holds_is_put_in_several(node: Node) -> None:
    await node.service.create("feed", "log")
    bodies = [b"%04d" % number + bytes(150_000) for number in range(40)]  # 6 MB
    ids = await put(node, "feed", *bodies)
    assert len(set(ids)) == 40
    found = {each.id: each.body for each in await got(node, "feed", 40)}
    assert [found[id][:4] for id in ids] == [body[:4] for body in bodies]
    with pytest.raises(TooLarge, match="fewer messages"):
        await log_of(node).append("feed", chunks.pack(bodies))


async def test_what_nobody_has_seen_is_given_back_without_counting(node: Node) -> None:
    await node.service.create("feed", "log")
    log = log_of(node)
    await log.create_group("feed", "g", options={"delivery_limit": 1})
    await put(node, "feed", b"1", b"2")
    (parcel,) = await log.pull("feed", "g", 2, 100_000, WAIT_S)
    (given,) = await log.settle("feed", "g", [settle_of(parcel, "release")])
    assert sum(count for _, count in given.ranges) == 2
    again = await got(node, "feed@g", 2)
    assert [(each.body, each.deliveries) for each in again] == [(b"1", 1), (b"2", 1)]
    (stale,) = await log.settle("feed", "g", [settle_of(parcel, "ack")])
    assert stale.ranges == []


async def test_a_move_that_is_repeated_after_its_extent_was_dropped_arrives_again(node: Node) -> None:
    await node.service.create("feed", "log", {"extent_bytes": 65_536, "consumed_s": 0})
    entry = Entry(b"letter", None, 0)
    await node.kinds.log.broker.put_moved("feed", "k", entry)
    await node.kinds.log.broker.put_moved("feed", "k", entry)
    await acked(node, "feed", await got(node, "feed", 1))
    assert await node.service.get("feed", 1) == []
    (first,) = [each.name for each in node.kinds.log.keeper.queues()[0].extents.known()]
    for _ in range(8):
        await log_of(node).append("feed", chunks.pack([b"x" * 1_000] * 20))
    await acked(node, "feed", await got(node, "feed", 160))
    extents = node.kinds.log.keeper.queues()[0].extents
    await until(lambda: extents.get(first) is None)
    await node.kinds.log.broker.put_moved("feed", "k", entry)
    assert [each.body for each in await got(node, "feed", 1)] == [b"letter"]


async def test_chunks_of_a_producer_are_taken_in_the_order_in_which_they_came(node: Node) -> None:
    await node.service.create("feed", "log")
    log, producer = log_of(node), b"q" * 16
    for first in range(1, 2_001, 100):
        some = [chunks.pack([b"%d" % number], None, producer, number) for number in range(first, first + 100)]
        await asyncio.gather(*[log.append("feed", chunk) for chunk in some])
    assert [each.body for each in await got(node, "feed", 1_000)] == [b"%d" % number for number in range(1, 1_001)]


async def test_whoever_entered_first_has_the_first_turn() -> None:
    turns, done = Turns(), list[int]()

    async def go(number: int, pauses: int) -> None:
        turn = turns.enter("p")
        for _ in range(pauses):
            await asyncio.sleep(0)
        await turn.come()
        done.append(number)
        turn.leave()

    await asyncio.gather(*[go(number, 20 - number) for number in range(20)])
    assert done == list(range(20)) and not turns.last


async def test_what_was_put_before_the_queue_was_purged_is_not_put_again_with_the_rest(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one call with messages for now and for later, only the latter meet the purge."""
    await node.service.create("feed", "log")
    put_later, purged = Delaying.put, False

    async def purged_before(self: Delaying, record: QueueRecord, messages: Sequence[Scheduled]) -> list[Put | Problem]:
        nonlocal purged
        if not purged:
            purged = True
            while not await node.service.get("feed", 1, WAIT_S):
                pass
            await node.service.purge("feed")
            raise Gone("this queue was deleted or purged")
        return await put_later(self, record, messages)

    monkeypatch.setattr(Delaying, "put", purged_before)
    results = await node.service.put("feed", [NewMessage(b"now"), NewMessage(b"later", delay_s=0.05)])
    assert [type(each) for each in results] == [Put, Put]
    assert [one.body for one in await got(node, "feed", 1)] == [b"later"]
    assert not await node.service.get("feed", 1, 0.2)


async def test_a_put_that_meets_the_end_of_its_queue_hears_of_that_and_not_of_a_lease(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.service.create("feed", "log")
    await put(node, "feed", b"first")
    log = log_of(node)
    assert isinstance(log, LogBroker)
    (queue,) = [each for each in log.keeper.queues() if each.place.name == "feed"]
    write, begun, go = queue.place.store.write, asyncio.Event(), asyncio.Event()

    async def stuck(batch: Batch) -> None:
        if batch.table is LOG_BLOCKS:
            begun.set()
            await go.wait()
        await write(batch)

    monkeypatch.setattr(queue.place.store, "write", stuck)
    late = asyncio.create_task(node.service.put("feed", [NewMessage(b"late")]))
    await begun.wait()
    await node.service.delete("feed")
    await log.keeper.turn()
    go.set()
    (answer,) = await late
    assert answer == Problem("unknown", "it may be there: queue feed was deleted or purged")
