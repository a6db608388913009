"""Looking at work queues on a real folder: what became of a message, pages of bounded size, letters counted without
their bodies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx
import msgspec
import pytest

from capellini.api.server import Server
from capellini.model.errors import Invalid
from capellini.model.message import MAX_PAGE_BYTES, Entry, NewMessage
from capellini.model.options import WorkOptions
from capellini.model.service import NackItem, Problem, Put
from capellini.node.node import Node
from capellini.queues.work.looking import ended
from capellini.queues.work.queue import stretches
from capellini.store.interface import Page, Slice

PATIENCE_S = 20.0


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not await holds():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        await asyncio.sleep(0.02)


async def failed(node: Node, queue: str, count: int) -> None:
    """So many messages are got and given back at once."""
    found = await node.service.get(queue, count)
    await node.service.nack(queue, [NackItem(each.receipt, 0.0) for each in found])


async def letters(node: Node, queue: str, bodies: list[bytes], into: str = "letters") -> None:
    """A queue whose messages are dead after one failure, and so many that are."""
    await node.service.create(into)
    await node.service.create(queue, options={"delivery_limit": 1, "dead_letters": into})
    await node.service.put(queue, [NewMessage(body) for body in bodies])
    await failed(node, queue, len(bodies))

    async def arrived() -> bool:
        assert await node.service.get(queue, 1_000) == []  # which finds them dead, and has them carried
        on_their_way = (await node.service.statistics(queue)).delayed
        return len(await node.service.dead(queue, 1_000)) == len(bodies) and not on_their_way

    await until(arrived)


async def test_a_finished_message_was_acked_moved_or_expired(node: Node) -> None:
    service = node.service
    await letters(node, "jobs", [b"poison"])
    moved = await service.message("jobs", "0")
    (letter,) = await service.dead("jobs")
    assert (moved.state, moved.moved_to) == ("moved", f"letters/1/{letter.id}")
    assert moved.says == f"it was moved to letters, where it got id {letter.id}"

    assert await service.redrive("jobs") == 1
    back = await service.message("letters", letter.id)
    assert back.state == "moved"
    assert back.moved_to.startswith("jobs/1/")
    again = await service.message("jobs", back.moved_to.split("/")[2])
    assert again.state == "ready"
    assert (await service.message("jobs", "0")).moved_to == moved.moved_to  # it says where that one went, as before

    (got,) = await service.get("jobs")
    await service.ack("jobs", [got.receipt])
    acked = await service.message("jobs", got.id)
    assert (acked.state, acked.moved_to) == ("acked", "")

    await service.create("short", options={"ttl_s": 0.1})
    await service.put("short", [NewMessage(b"late")])

    (late,) = await service.peek("short")

    async def too_old() -> bool:
        return time.time() > late.put_at + 0.1

    await until(too_old)
    assert await service.get("short") == []
    expired = await service.message("short", "0")
    assert (expired.state, "expired before anybody got it" in expired.says) == ("expired", True)
    statistics = await service.statistics("short")
    assert (statistics.expired, statistics.puts, statistics.ready) == (1, 1, 0)
    assert "expired" in statistics.exact


@pytest.mark.parametrize(
    ("version", "ttl_s", "could_move", "moved_to", "state"),
    [
        (1, 0.0, False, "", "acked"),
        (3, 0.0, True, "letters/1/7", "moved"),
        (0, 5.0, False, "", "expired"),
        (1, 5.0, False, "", "finished"),  # acked, or expired after its delivery: nobody knows any more
        (1, 500.0, False, "", "acked"),
        (3, 0.0, True, "", "acked"),
    ],
)
def test_what_follows_from_what_is_written(
    version: int, ttl_s: float, could_move: bool, moved_to: str, state: str
) -> None:
    options = WorkOptions(ttl_s=ttl_s, delivery_limit=3 if could_move else 0, dead_letters="letters")
    assert ended(version, 1_000, options, could_move, moved_to, 1_000 + 60_000)[0] == state


async def test_letters_are_counted_beyond_a_page_and_without_their_bodies(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 1_500
    service = node.service
    await service.create("letters")
    await service.create("jobs", options={"delivery_limit": 1, "dead_letters": "letters"})
    packed = msgspec.msgpack.encode([Entry(b"x" * 1_000)] * 500)
    for _ in range(count // 500):
        await service.put_block("letters", packed)
    read = node.store.read
    seen_bytes = 0

    async def watched(slice: Slice) -> Page:
        nonlocal seen_bytes
        page = await read(slice)
        blocks = [row.values.get("block") for row in page.rows]
        seen_bytes += sum(len(block) for block in blocks if isinstance(block, bytes))
        return page

    before = await service.statistics("jobs")
    monkeypatch.setattr(node.store, "read", watched)
    after = await service.statistics("jobs")
    assert (before.dead, after.dead) == (count, count)
    assert "dead" in after.exact
    assert seen_bytes <= 2 * len(packed)  # the oldest message's block, for its age: not all of them


async def test_a_look_ends_after_so_many_bytes_and_says_that_there_is_more(node: Node) -> None:
    service = node.service
    body, count = 256 * 1024, 100
    await service.create("large")
    for _ in range(count // 10):
        await service.put("large", [NewMessage(b"x" * body)] * 10)
    first = await service.peek("large", 1_000)
    assert MAX_PAGE_BYTES <= sum(len(each.body) for each in first) < MAX_PAGE_BYTES + body
    rest = await service.peek("large", 1_000, first[-1].id)
    assert len(first) + len(rest) == count
    assert [int(each.id) for each in (*first, *rest)] == list(range(count))

    server = Server(service)
    await server.listen("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=server.addresses[0]) as http:
        page = (await http.get("/v1/queues/large/messages?count=1000")).json()
        assert (len(page["messages"]), page["more"]) == (len(first), True)
        page = (await http.get(f"/v1/queues/large/messages?count=1000&after={first[-1].id}")).json()
        assert (len(page["messages"]), page["more"]) == (len(rest), False)
    await server.close()


async def test_a_delay_beyond_the_time_to_live_is_refused_naming_both(node: Node) -> None:
    service = node.service
    await service.create("short", options={"ttl_s": 5})
    good, bad = await service.put("short", [NewMessage(b"a", delay_s=4.0), NewMessage(b"b", delay_s=6.0)])
    assert isinstance(good, Put)
    assert isinstance(bad, Problem)
    assert (bad.error, "delay_s 6" in bad.says, "ttl_s 5" in bad.says) == ("invalid", True, True)
    with pytest.raises(Invalid, match="delay_s 6 is not below the ttl_s 5"):
        await service.put_block("short", msgspec.msgpack.encode([Entry(b"a"), Entry(b"b", None, 6_000)]))
    assert len(await service.peek("short")) == 1


async def test_a_pile_of_letters_moves_side_by_side_there_and_back(node: Node) -> None:
    count = 400
    fsyncs = node.store.counts.fsyncs
    await letters(node, "jobs", [b"x"] * count)

    async def counted() -> bool:
        return (await node.service.statistics("letters")).puts >= count

    await until(counted)
    assert (await node.service.statistics("letters")).puts == count  # each once, though many gets found them dead
    there = node.store.counts.fsyncs - fsyncs
    fsyncs = node.store.counts.fsyncs
    assert await node.service.redrive("jobs") == count
    back = node.store.counts.fsyncs - fsyncs
    assert max(there, back) < count  # one after the other takes several each
    assert len(await node.service.peek("jobs", 1_000)) == count
    assert (await node.service.statistics("jobs")).dead == 0


async def test_chosen_letters_go_back_and_the_others_stay(node: Node) -> None:
    await letters(node, "jobs", [b"%d" % number for number in range(6)])
    found = {each.body: each.id for each in await node.service.dead("jobs")}
    held = (await node.service.get("letters", 1))[0]  # the first: whoever holds it has it
    wanted = [found[b"%d" % number] for number in range(4)]
    assert await node.service.redrive("jobs", ids=[*wanted, "999", wanted[1]]) == 3
    assert await node.service.redrive("jobs", ids=wanted) == 0
    assert {each.body for each in await node.service.peek("jobs", 10)} == {b"1", b"2", b"3"}
    left = {each.body: each for each in await node.service.dead("jobs")}
    assert set(left) == {b"0", b"4", b"5"} and left[b"4"].deliveries == 0
    await node.service.ack("letters", [held.receipt])
    with pytest.raises(Invalid, match="not a message id"):
        await node.service.redrive("jobs", ids=["first"])


async def test_letters_of_other_queues_are_not_touched_when_some_go_back(node: Node) -> None:
    service = node.service
    await service.create("last")
    await letters(node, "jobs", [b"a", b"b"])
    await letters(node, "others", [b"c", b"d"])
    await service.change("letters", {"delivery_limit": 1, "dead_letters": "last"})
    assert await service.redrive("jobs", 1) == 1
    assert await service.redrive("jobs") == 1
    assert await service.redrive("jobs") == 0
    assert [(each.body, each.deliveries) for each in await service.dead("others")] == [(b"c", 0), (b"d", 0)]
    assert await service.peek("last") == []
    assert await service.redrive("others") == 2


async def test_what_lies_behind_many_that_nobody_can_have_is_found_by_one_get(node: Node) -> None:
    """More buckets than one claim visits."""
    service = node.service
    await service.create("jobs", options={"bucket_size": 10})
    await service.put("jobs", [NewMessage(b"later", delay_s=3600.0)] * 500)
    await service.put("jobs", [NewMessage(b"now")])
    assert [each.body for each in await service.get("jobs")] == [b"now"]


async def test_buckets_that_only_wait_to_be_dropped_are_not_counted_as_ready(node: Node) -> None:
    service = node.service
    await service.create("jobs", options={"bucket_size": 10})
    await service.put("jobs", [NewMessage(b"x")] * 1_000)
    while found := await service.get("jobs", 200):
        await service.ack("jobs", [each.receipt for each in found])
    await service.put("jobs", [NewMessage(b"y")] * 3)
    counted = await service.statistics("jobs")
    assert (counted.ready, "ready" in counted.exact) == (3, True)


async def test_delayed_messages_are_counted_with_few_reads(node: Node) -> None:
    service, reads = node.service, 0
    await service.create("jobs")
    for number in range(120):
        await service.put("jobs", [NewMessage(b"later", delay_s=0.0 if number % 10 == 9 else 3600.0)])

    async def counted() -> tuple[int, int]:
        nonlocal reads
        before = node.store.counts.reads
        found = await service.statistics("jobs")
        reads = node.store.counts.reads - before
        return found.ready, found.delayed

    assert await counted() == (12, 108)
    assert reads < 60
    assert len(await service.get("jobs", 100)) == 12
    assert await counted() == (0, 108)  # the state of their bucket tells when they are due
    assert reads < 30


def test_neighbours_in_a_bucket_are_carried_together() -> None:
    assert stretches([3, 1, 2, 9, 10, 11, 25], 10) == [(1, 3), (9, 1), (10, 2), (25, 1)]
    assert stretches([], 10) == []


async def test_a_pile_of_dead_letters_shares_rows_and_nobody_looks_for_keys_first(node: Node) -> None:
    before = msgspec.structs.replace(node.store.counts)
    await letters(node, "jobs", [b"poison"] * 500)
    assert await node.service.redrive("jobs") == 500
    counts = node.store.counts
    moves = 2 * 500
    assert counts.rounds - before.rounds < 1.5 * moves  # one for each key, few for all else
    assert counts.requests - before.requests < 2 * moves  # rows of their own would be one more, looks for keys too
