"""Batches by themselves: what waits goes together, and nobody's leaving ends what others share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import capellini
from capellini.client.aio import AsyncClient
from capellini.client.batch import LONELY, Batcher
from capellini.model.errors import Invalid
from capellini.model.message import NewMessage
from capellini.model.service import Done, Put


class Sink:
    """Answers each item with its double, when let."""

    def __init__(self, open: bool = True) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.failure: Exception | None = None
        if open:
            self.gate.set()

    async def send(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        await self.gate.wait()
        if self.failure:
            raise self.failure
        return [item * 2 for item in items]


async def settled() -> None:
    """All that can run without the gate has run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_lone_call_is_sent_at_once() -> None:
    sink = Sink()
    assert await Batcher(sink.send).submit([1]) == [2]
    assert sink.batches == [[1]]


async def test_calls_of_one_turn_go_together() -> None:
    sink = Sink()
    batcher = Batcher(sink.send)
    results = await asyncio.gather(*(batcher.submit([each]) for each in range(100)))
    assert results == [[each * 2] for each in range(100)]
    assert sink.batches == [list(range(100))]


async def test_what_comes_while_a_request_is_under_way_waits_and_goes_together() -> None:
    sink = Sink(open=False)
    batcher = Batcher(sink.send)
    first = asyncio.create_task(batcher.submit([1]))
    await settled()
    others = [asyncio.create_task(batcher.submit([each])) for each in (2, 3, 4)]
    await settled()
    assert sink.batches == [[1]]
    sink.gate.set()
    assert await first == [2] and await asyncio.gather(*others) == [[4], [6], [8]]
    assert sink.batches == [[1], [2, 3, 4]]


async def test_whole_batches_go_beside_each_other_up_to_a_limit() -> None:
    sink = Sink(open=False)
    batcher = Batcher(sink.send, most=10, most_under_way=3)
    call = asyncio.create_task(batcher.submit(list(range(45))))
    await settled()
    assert [len(batch) for batch in sink.batches] == [10, 10, 10]
    sink.gate.set()
    assert await call == [each * 2 for each in range(45)]
    assert [len(batch) for batch in sink.batches] == [10, 10, 10, 10, 5]


async def test_bytes_bound_a_batch_but_one_large_item_still_goes() -> None:
    sink = Sink()
    batcher = Batcher(sink.send, most_bytes=100)
    assert await batcher.submit([1, 2, 3, 4], [60, 50, 500, 10]) == [2, 4, 6, 8]
    assert sink.batches == [[1], [2], [3], [4]]


async def test_cancelling_one_caller_does_not_end_the_batch_it_shares() -> None:
    sink = Sink(open=False)
    batcher = Batcher(sink.send)
    leaving, staying = asyncio.create_task(batcher.submit([1])), asyncio.create_task(batcher.submit([2]))
    await settled()
    leaving.cancel()
    await settled()
    sink.gate.set()
    assert await staying == [4]
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert sink.batches == [[1, 2]]


async def test_what_a_caller_that_left_had_waiting_is_not_sent() -> None:
    sink = Sink(open=False)
    batcher = Batcher(sink.send)
    first = asyncio.create_task(batcher.submit([1]))
    await settled()
    leaving, staying = asyncio.create_task(batcher.submit([2], [5])), asyncio.create_task(batcher.submit([3], [5]))
    await settled()
    leaving.cancel()
    await settled()
    sink.gate.set()
    assert await first == [2] and await staying == [6]
    assert sink.batches == [[1], [3]]
    assert not batcher.busy


async def test_an_error_reaches_every_caller_of_its_batch_and_no_other() -> None:
    sink = Sink()
    batcher = Batcher(sink.send)
    sink.failure = ValueError("no")
    failed = await asyncio.gather(*(batcher.submit([each]) for each in range(3)), return_exceptions=True)
    assert [str(each) for each in failed] == ["no"] * 3
    sink.failure = None
    assert await batcher.submit([4]) == [8]


async def test_closing_waits_for_what_was_begun() -> None:
    sink = Sink(open=False)
    batcher = Batcher(sink.send, most=2, most_under_way=1)
    call = asyncio.create_task(batcher.submit([1, 2, 3]))
    await settled()
    closing = asyncio.create_task(batcher.close())
    await settled()
    assert not closing.done()
    sink.gate.set()
    await closing
    assert await call == [2, 4, 6]


async def alone(sink: Sink) -> Batcher[int, int]:
    """A batcher whose callers came one after the other for a while."""
    batcher = Batcher(sink.send)
    for each in range(LONELY):
        await batcher.submit([each])
        await settled()
    sink.batches.clear()
    return batcher


async def test_who_was_alone_for_long_is_sent_in_its_own_task() -> None:
    sink = Sink()
    batcher = await alone(sink)
    with pytest.raises(StopIteration) as over:  # over with its first step
        batcher.submit([1]).send(None)
    assert over.value.value == [2] and not batcher.busy


async def test_company_of_one_that_was_alone_waits_and_goes_together() -> None:
    sink = Sink()
    batcher = await alone(sink)
    sink.gate.clear()
    first = asyncio.create_task(batcher.submit([1]))
    await settled()
    others = [asyncio.create_task(batcher.submit([each])) for each in (2, 3)]
    await settled()
    assert sink.batches == [[1]]
    sink.gate.set()
    assert await asyncio.gather(first, *others) == [[2], [4], [6]]
    await settled()
    assert await asyncio.gather(*(batcher.submit([each]) for each in (4, 5))) == [[8], [10]]
    assert sink.batches == [[1], [2, 3], [4, 5]]  # and from then on those of one turn go together again


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_the_end_of_one_alone_lets_the_others_go_on(how: str) -> None:
    sink = Sink()
    batcher = await alone(sink)
    sink.gate.clear()
    first = asyncio.create_task(batcher.submit([1]))
    await settled()
    other = asyncio.create_task(batcher.submit([2]))
    await settled()
    if how == "cancelled":
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        sink.gate.set()
    else:
        sink.failure = ValueError("no")
        sink.gate.set()
        with pytest.raises(ValueError, match="no"):
            await first
    (answer,) = await asyncio.gather(other, return_exceptions=True)
    assert answer == [4] if how == "cancelled" else answer is sink.failure
    assert sink.batches == [[1], [2]] and not batcher.busy


async def test_closing_waits_for_one_alone() -> None:
    sink = Sink()
    batcher = await alone(sink)
    sink.gate.clear()
    first = asyncio.create_task(batcher.submit([1]))
    await settled()
    closing = asyncio.create_task(batcher.close())
    await settled()
    assert not closing.done()
    sink.gate.set()
    await closing
    assert await first == [2]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncClient[bytes]]:
    async with capellini.connect_async(f"rocks:{tmp_path}") as client:
        await client.create_queue("jobs")
        yield client


@pytest.mark.parametrize("wrong", [None, 5, b"receipt", "\ud800"])
async def test_a_wrong_ack_spoils_no_other_in_its_batch(client: AsyncClient[bytes], wrong: Any) -> None:
    await client.put("jobs", b"x")
    (message,) = await client.get("jobs", wait_s=5)
    good, bad = await asyncio.gather(
        client.ack("jobs", message.receipt), client.ack("jobs", wrong), return_exceptions=True
    )
    assert good is None and isinstance(bad, Invalid)
    for call in (client.nack("jobs", wrong), client.extend("jobs", wrong, 30)):
        with pytest.raises(Invalid, match="receipt"):
            await call


async def test_a_message_of_a_stream_that_is_acked_elsewhere_spoils_no_other(client: AsyncClient[bytes]) -> None:
    await client.create_queue("feed", "log")
    await client.put_many("feed", [b"a", b"b"])
    (first,) = await client.get("feed", wait_s=5)
    async with client.stream("feed") as consumer:
        (second,) = await consumer.batch()
        good, bad = await asyncio.gather(client.ack("feed", first), client.ack("feed", second), return_exceptions=True)
        assert good is None and isinstance(bad, Invalid) and "stream" in bad.says


@pytest.mark.parametrize(
    "wrong", [{"key": 5}, {"key": b"k"}, {"key": "\ud800"}, {"key": "k", "delay_s": "x"}, {"key": "k", "due": "x"}]
)
async def test_a_put_with_a_wrong_setting_spoils_no_other_in_its_batch(
    client: AsyncClient[bytes], wrong: dict[str, Any]
) -> None:
    good, bad = await asyncio.gather(
        client.put("jobs", b"good", key="good"), client.put("jobs", b"bad", **wrong), return_exceptions=True
    )
    assert isinstance(good, str) and isinstance(bad, Invalid)


async def test_a_list_that_its_caller_empties_meanwhile_spoils_nothing(client: AsyncClient[bytes]) -> None:
    await client.put_many("jobs", [b"x"] * 3)
    messages = await client.get("jobs", 2, wait_s=5)
    acks = asyncio.create_task(client.ack_many("jobs", messages))
    keyed = [NewMessage(b"a", key="a"), NewMessage(b"b")]
    puts = asyncio.create_task(client.put_many("jobs", keyed))
    await asyncio.sleep(0)  # they have begun
    messages.clear()
    keyed.clear()
    async with asyncio.timeout(10):
        assert [type(result) for result in await acks] == [Done, Done]
        assert [type(result) for result in await puts] == [Put, Put]
        (last,) = await client.get("jobs")
        await last.ack()
