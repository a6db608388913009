"""The journal of a node: what happens to messages of every kind comes out of it, complete and in order."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.log_world import LogNode, closed, embedded

from capellini.model.chunks import pack
from capellini.model.clock import Clock, RealClock
from capellini.model.errors import Invalid, NotFound, Unavailable, Unknown
from capellini.model.message import Delivery, NewEntry, NewMessage
from capellini.model.options import BODIES, JOURNAL, OFF
from capellini.model.service import ExtendItem, NackItem, Put
from capellini.model.timed import MoveItem
from capellini.node.journal import Journaling, JournalSink
from capellini.node.node import Node
from capellini.node.settings import Settings
from capellini.queues.catalog import QueueRecord
from capellini.queues.events import Account, Events, Happened, Kind, account, put_place, queue_in
from capellini.queues.journal import events_in
from capellini.queues.work.block import Packed
from capellini.queues.work.queue import WorkQueue

PATIENCE_S = 20.0


def opened(tmp_path: Path, events: str = "journal") -> Awaitable[Node]:
    return Node.open(Settings(store=f"rocks:{tmp_path}/data", listen="127.0.0.1:0", node="n1", events=events))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = await opened(tmp_path)
    yield made
    await made.close()


async def told(node: Node, flush: bool = True) -> list[Happened]:
    """All that the journal holds, in the order of the queue."""
    if flush:
        assert node.kinds.journal is not None
        assert await node.kinds.journal.flush()
    found: list[Happened] = []
    after = ""
    while page := await node.service.peek(JOURNAL, 100, after):
        found += [event for message in page for event in events_in(message.body)]
        after = page[-1].id
    return found


async def got(node: Node, queue: str, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += await node.service.get(queue, count - len(found), wait_s=2.0)
    return found


async def told_bodies(node: Node) -> list[tuple[bytes, dict[str, str]]]:
    return [(each.body, each.attributes) for each in await node.service.peek(BODIES, 100)]


@pytest.mark.parametrize("kind", ["work", "timed"])
async def test_a_queue_may_have_its_bodies_told_each_once(node: Node, kind: str) -> None:
    await node.service.create("kept", kind, {"journal": "bodies"})
    await node.service.create("not", kind)
    await node.service.put("not", [NewMessage(b"x")])
    with pytest.raises(NotFound):
        await told_bodies(node)
    too_large = NewMessage(b"x" * 300_000)
    plain, problem = await node.service.put("kept", [NewMessage(b"one", {"a": "b"}), too_large])
    assert isinstance(plain, Put) and not isinstance(problem, Put)
    for _ in range(2):
        (keyed,) = await node.service.put("kept", [NewMessage(b"two", key="k")])
    assert isinstance(keyed, Put) and keyed.duplicate
    who = {"capellini.queue": "kept", "capellini.generation": "1"}
    assert await told_bodies(node) == [
        (b"one", {"a": "b", **who, "capellini.id": plain.id}), (b"two", {**who, "capellini.id": keyed.id})
    ]  # fmt: skip
    if kind == "work":
        ((first, _),) = await node.service.put_block("kept", msgspec.msgpack.encode([NewEntry(b"3"), NewEntry(b"4")]))
        assert [body for body, _ in await told_bodies(node)][2:] == [b"3", b"4"]
        assert (await told_bodies(node))[2][1]["capellini.id"] == str(first)
    with pytest.raises(Invalid, match="on or off"):
        await node.service.create("logged", "log", {"journal": "bodies"})


async def test_a_put_whose_body_cannot_be_told_is_unknown(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.service.create("kept", "work", {"journal": "bodies"})

    async def away(*_: object) -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr("capellini.queues.log.queue.LogQueue.append", away)
    (result,) = await node.service.put("kept", [NewMessage(b"x")])
    assert not isinstance(result, Put) and result.error == "unknown" and "not in the journal" in result.says


async def test_a_catalog_that_goes_away_after_a_put_does_not_make_it_seem_undone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.service.create("q")
    catalog, put = node.service._work.catalog, WorkQueue.put  # type: ignore[attr-defined]
    here = catalog.live

    async def away(name: str) -> QueueRecord:
        raise Unavailable("the store is away")

    async def putting(queue: WorkQueue, packed: Packed) -> list[tuple[int, int]]:
        ids = await put(queue, packed)
        monkeypatch.setattr(catalog, "live", away)
        return ids

    monkeypatch.setattr(WorkQueue, "put", putting)
    assert await node.service.put_block("q", msgspec.msgpack.encode([NewEntry(b"x")])) == [(0, 1)]
    monkeypatch.setattr(catalog, "live", here)
    assert [each.body for each in await got(node, "q", 1)] == [b"x"]


async def lived(node: Node, queue: str) -> None:
    """Three messages; the first is extended, nacked, delivered again."""
    await node.service.put(queue, [NewMessage(b"x")] * 3)
    first, *others = await got(node, queue, 3)
    await node.service.extend(queue, [ExtendItem(first.receipt, 20.0)])
    await node.service.nack(queue, [NackItem(first.receipt, 0.0)])
    await node.service.ack(queue, [each.receipt for each in others])
    (again,) = await got(node, queue, 1)
    await node.service.ack(queue, [again.receipt])


STEPS = [
    ("put", 3, 0), ("delivered", 3, 1), ("extended", 1, 1), ("nacked", 1, 1), ("acked", 2, 1), ("delivered", 1, 2),
    ("acked", 1, 2),
]  # fmt: skip


def steps(events: list[Happened]) -> list[tuple[str, int, int]]:
    """Kind, how many messages, delivery."""
    return [(each.kind.value, sum(count for _, count in each.runs) + len(each.ids), each.version) for each in events]


@pytest.mark.parametrize("kind", ["work", "timed", "log"])
async def test_every_step_comes_out_complete_and_in_order(node: Node, kind: str) -> None:
    await node.service.create("q", kind)
    await lived(node, "q")
    events = await told(node)
    assert steps(events) == STEPS
    assert {queue_in(each.queue) for each in events} == {"q"}
    assert account(events) == {("n1", events[0].incarnation): Account(len(STEPS), (), False)}
    puts, others = events[0], events[1:]
    if kind == "timed":
        assert set(puts.ids) == set(events[1].ids) and not puts.runs
    else:
        assert puts.runs == events[1].runs
    assert {put_place(each.queue) for each in others} == {puts.queue}
    if kind == "log":
        extent = puts.queue.partition("/")[2]
        assert {each.queue for each in others} == {f"q@default/1/{extent}"}


async def test_dead_expired_cancelled_and_moved_are_told_too(node: Node) -> None:
    service = node.service
    await service.create("letters")
    await service.create("work", options={"delivery_limit": 1, "dead_letters": "letters"})
    await service.create("old", options={"ttl_s": 0.05})
    await service.create("later", "timed")
    await service.create("feed", "log", {"delivery_limit": 1})
    assert service.timed is not None
    due_s = time.time() + 3_600
    first, second = await service.put("later", [NewMessage(b"x", due=due_s)] * 2)
    assert isinstance(first, Put) and isinstance(second, Put)
    await service.timed.cancel("later", [first.id])
    await service.timed.move("later", [MoveItem(second.id, int(due_s + 60) * 1000)])
    await service.put("old", [NewMessage(b"x")])
    for queue in ("work", "feed"):
        await service.put(queue, [NewMessage(b"x")])
        (held,) = await got(node, queue, 1)
        await service.nack(queue, [NackItem(held.receipt, 0.0)])
    await asyncio.sleep(0.1)  # longer than `old` keeps a message

    async def happened() -> set[tuple[str, str]]:
        for queue in ("work", "old", "feed"):
            assert not await service.get(queue, 1)  # what is not for anybody is noticed when somebody asks
        return {(each.kind.value, queue_in(each.queue)) for each in await told(node)}

    wanted = {
        ("cancelled", "later"), ("moved", "later"), ("expired", "old"), ("dead", "work"), ("dead", "feed"),
        ("put", "letters"), ("put", "feed.default.dead"),
    }  # fmt: skip
    async with asyncio.timeout(PATIENCE_S):
        while not wanted <= await happened():
            await asyncio.sleep(0.05)
    assert await service.redrive("work") == 1
    assert ("replayed", "letters") in {(each.kind.value, each.queue) for each in await told(node)}


async def test_the_end_is_closed_and_the_next_incarnation_begins_at_one(tmp_path: Path) -> None:
    first = await opened(tmp_path)
    await first.service.create("q")
    await lived(first, "q")
    await first.close()
    second = await opened(tmp_path)
    await second.service.put("q", [NewMessage(b"x")])
    events = await told(second)
    ended, living = (each.incarnation for each in (events[0], events[-1]))
    assert account(events) == {
        ("n1", ended): Account(len(STEPS) + 1, (), True),
        ("n1", living): Account(1, (), False),
    }
    assert events[len(STEPS)].kind is Kind.CLOSED
    await second.close()
    reader = await opened(tmp_path, "none")
    assert all(each.complete for each in account(await told(reader, flush=False)).values())
    await reader.close()


async def test_a_node_in_which_nothing_happened_leaves_no_journal(tmp_path: Path) -> None:
    await (await opened(tmp_path)).close()
    reader = await opened(tmp_path, "none")
    with pytest.raises(NotFound):
        await reader.service.peek(JOURNAL, 1)
    await reader.close()


async def test_a_queue_can_be_left_out_and_taken_in_again(node: Node) -> None:
    await node.service.create("q", options={"journal": OFF})
    await node.service.create("other")
    await node.service.put("q", [NewMessage(b"x")])
    await node.service.put("other", [NewMessage(b"x")])
    assert [each.queue for each in await told(node)] == ["other"]
    await node.service.change("q", {"journal": "on"})
    await node.service.put("q", [NewMessage(b"x")] * 2)
    assert [(each.queue, each.number) for each in await told(node)] == [("other", 1), ("q", 2)]
    with pytest.raises(Invalid, match="journal is one of on, off"):
        await node.service.change("q", {"journal": "perhaps"})


async def test_the_journal_is_the_nodes_own_and_does_not_tell_of_itself(node: Node) -> None:
    service = node.service
    await service.create("q")
    await service.put("q", [NewMessage(b"x")])
    before = await told(node)
    assert [each.name for each in await service.queues()] == ["q"]
    assert [each.name for each in await service.queues("capellini.")] == [JOURNAL]
    for name in (JOURNAL, "capellini.mine"):
        with pytest.raises(Invalid, match="nodes' own"):
            await service.create(name, "log")
    with pytest.raises(Invalid, match="nodes' own"):
        await service.put(JOURNAL, [NewMessage(b"x")])
    with pytest.raises(Invalid, match="nodes' own"):
        await service.log.append(JOURNAL, pack([b"x"]))
    await service.log.create_group(JOURNAL, "mine")
    (sheet,) = await got(node, f"{JOURNAL}@mine", 1)
    assert list(events_in(sheet.body)) == before
    await service.ack(f"{JOURNAL}@mine", [sheet.receipt])
    assert await told(node) == before


async def test_after_a_purge_or_a_delete_the_journal_goes_on(node: Node) -> None:
    await node.service.create("q")
    for end in (node.service.purge, node.service.delete):
        await node.service.put("q", [NewMessage(b"x")])
        assert await told(node)
        await end(JOURNAL)
        await node.service.put("q", [NewMessage(b"x")])
        assert node.kinds.journal is not None
        async with asyncio.timeout(PATIENCE_S):
            while not await node.kinds.journal.flush():
                await asyncio.sleep(0.05)
        assert steps(await told(node)) == [("put", 1, 0)]
    assert node.kinds.journal.figures.dropped == 0


class Journalled:
    """A journal on a node whose store can be away, or lose its answers."""

    def __init__(self, node: LogNode, most_bytes: int = 1 << 20, clock: Clock | None = None) -> None:
        self.node, self.sink, clock = node, JournalSink(4, most_bytes), clock or RealClock()
        self.journal = Journaling(self.sink, node.catalog, node.keeper, clock, random.Random(1), stop_s=0.3)
        self.events = Events(RealClock(), "n1", "i1", self.sink)
        self.error: Exception | None = None
        self.error_after: Exception | None = None
        write: Callable[..., Awaitable[Any]] = node.store.write

        async def failing(batch: Any) -> Any:
            if self.error is not None:
                raise self.error
            done = await write(batch)
            if self.error_after is not None and batch.table.name == "log_blocks":
                raise self.error_after
            return done

        node.store.write = failing  # type: ignore[method-assign]

    async def told(self) -> list[Happened]:
        queue = await self.node.queue(JOURNAL)
        return [event for each in await queue.peek_all(1_000, None) for event in events_in(each.body)]


@pytest.fixture
async def embedded_node(tmp_path: Path) -> AsyncIterator[LogNode]:
    made = await embedded(tmp_path / "data")
    yield made
    await closed(made)


async def test_what_finds_no_room_while_the_store_is_away_is_a_gap_and_is_counted(embedded_node: LogNode) -> None:
    made = Journalled(embedded_node, most_bytes=300)
    for at in range(3):
        made.events.put("q", 1, [(at, 1)])
    assert await made.journal.flush()
    made.error = Unavailable("the store is away")
    for at in range(3, 60):
        made.events.put("q", 1, [(at, 1)])
        if at == 30:
            assert not await made.journal.flush()
    lost = made.journal.figures.dropped
    assert 0 < lost < 57 and made.journal.figures.waiting_bytes < 600
    made.error = None
    assert await made.journal.flush()
    made.events.put("q", 1, [(99, 1)])
    made.events.close()
    await made.journal.finish()
    seen = account(await made.told())["n1", "i1"]
    assert (seen.last, seen.closed, sum(count for _, count in seen.missing)) == (62, True, lost)
    assert made.journal.figures.events == 62 - lost


class Stepped(RealClock):
    """Time that passes only when told to."""

    passed_s = 0.0

    def elapsed_s(self) -> float:  # type: ignore[override]
        return self.passed_s


async def test_what_is_dropped_is_said_once_a_minute_while_it_grows(
    embedded_node: LogNode, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Stepped()
    made = Journalled(embedded_node, most_bytes=300, clock=clock)
    made.error = Unavailable("the store is away")
    said: list[int] = []
    for minute in range(4):
        for _ in range(3):
            for at in range(20 if minute < 3 else 0):  # in the last minute nothing happens
                made.events.put("q", 1, [(at, 1)])
            assert not await made.journal.flush()
            if caplog.text.count("were dropped since the start") > len(said):
                said.append(made.journal.figures.dropped)
                assert f"{said[-1]} events were dropped since the start" in caplog.text
        clock.passed_s += 60.0
    assert len(said) == 4 and 0 < said[0] < said[1] < said[2] < said[3] == made.journal.figures.dropped


async def test_a_sheet_whose_answer_was_lost_is_there_once(embedded_node: LogNode) -> None:
    made = Journalled(embedded_node)
    made.events.put("q", 1, [(0, 1)])
    assert await made.journal.flush()
    made.error_after = Unknown("the answer was lost")
    made.events.put("q", 1, [(1, 1)])
    assert not await made.journal.flush()
    made.error_after = None
    async with asyncio.timeout(PATIENCE_S):
        while not await made.journal.flush():
            await asyncio.sleep(0.05)
    assert [each.number for each in await made.told()] == [1, 2]


async def test_a_node_whose_store_stays_away_ends_without_its_closing_record(embedded_node: LogNode) -> None:
    made = Journalled(embedded_node)
    made.events.put("q", 1, [(0, 1)])
    assert await made.journal.flush()
    made.error = Unavailable("the store is away")
    made.events.put("q", 1, [(1, 1)])
    made.events.close()
    await made.journal.finish()
    made.error = None
    assert account(await made.told()) == {("n1", "i1"): Account(1, (), False)}
    assert made.journal.figures.dropped == 2


def test_events_that_cannot_be_told_are_dropped_and_counted() -> None:
    sink = JournalSink()
    events = Events(RealClock(), "n1", "i1", sink)
    events.put("t", 1, (), ids=["0" * 32])
    events.put("t", 1, (), ids=["no id"])
    events.put("t", 1, (), ids=["1" * 32])
    events.flush()
    found = [event for sheet, _ in sink.waiting for event in events_in(sheet)]
    assert ([each.number for each in found], sink.dropped) == ([1, 3], 1)
