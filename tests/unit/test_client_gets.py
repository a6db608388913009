"""Gets of one turn share a request: everybody gets its share, nobody another's time, and nothing gets lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from capellini.client import gets as shared
from capellini.client.gets import LONELY, Gets
from capellini.model.clock import RealClock
from capellini.model.errors import Unavailable


class Source:
    """Messages 0, 1, 2 ... as far as `stock` goes; a take waits for the first."""

    def __init__(self, stock: int) -> None:
        self.stock = stock
        self.next = 0
        self.asked: list[int] = []
        self.given_back: list[int] = []
        self.under_way = 0
        self.came = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None

    def add(self, count: int) -> None:
        self.stock += count
        self.came.set()

    async def take(self, count: int, wait_s: float) -> list[int]:
        self.asked.append(count)
        if self.error is not None:
            raise self.error
        self.under_way += 1
        try:
            if self.gate is not None:
                await self.gate.wait()
            if not self.stock and wait_s:
                self.came.clear()
                try:
                    async with asyncio.timeout(wait_s):
                        await self.came.wait()
                except TimeoutError:
                    return []
        finally:
            self.under_way -= 1
        found = min(count, self.stock)
        self.stock -= found
        self.next += found
        return list(range(self.next - found, self.next))

    async def give_back(self, messages: list[int]) -> None:
        self.given_back += messages


async def turn(times: int = 3) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def together(source: Source, counts: Sequence[int], wait_s: float = 0.0) -> list[list[int]]:
    gets: Gets[int] = Gets(RealClock())
    calls = (gets.get("q", count, wait_s, source.take, source.give_back) for count in counts)
    async with asyncio.timeout(20):
        return await asyncio.gather(*calls)


@pytest.mark.parametrize(
    ("stock", "counts", "sizes"),
    [
        (9, [1, 1, 1], [1, 1, 1]),
        (2, [1, 1, 1], [1, 1, 0]),
        (8, [10, 1], [7, 1]),
        (8, [3, 3, 3], [3, 3, 2]),
        (0, [1, 2], [0, 0]),
    ],
)
async def test_one_request_serves_all_of_a_turn(stock: int, counts: list[int], sizes: list[int]) -> None:
    source = Source(stock)
    found = await together(source, counts)
    assert [len(each) for each in found] == sizes
    assert sorted(message for each in found for message in each) == list(range(sum(sizes)))
    assert source.asked == [sum(counts)]


async def test_one_alone_asks_for_itself() -> None:
    source = Source(5)
    assert await together(source, [2]) == [[0, 1]]
    assert source.asked == [2]


async def test_who_got_nothing_waits_on() -> None:
    source = Source(1)
    waiting = asyncio.create_task(together(source, [1, 1, 1], wait_s=10.0))
    await turn(10)
    assert source.asked == [3, 2]
    source.add(2)
    assert sorted(map(tuple, await waiting)) == [(0,), (1,), (2,)]


async def test_a_wait_ends_for_all_when_its_time_is_up() -> None:
    assert await together(Source(1), [1, 1, 1], wait_s=0.05) == [[0], [], []]


async def test_what_came_for_one_that_left_goes_to_others_or_back() -> None:
    source = Source(0)
    source.gate = asyncio.Event()
    gets: Gets[int] = Gets(RealClock())
    calls = [asyncio.create_task(gets.get("q", 1, 9.0, source.take, source.give_back)) for _ in range(3)]
    await turn()
    assert source.under_way == 1
    calls[0].cancel()
    await turn()
    source.add(3)
    source.gate.set()
    assert await asyncio.gather(*calls[1:]) == [[0], [1]]
    assert source.given_back == [2]
    assert calls[0].cancelled()


async def test_a_first_caller_that_leaves_at_once_leaves_the_others_be() -> None:
    source = Source(5)
    gets: Gets[int] = Gets(RealClock())
    calls = [asyncio.create_task(gets.get("q", 1, 0.0, source.take, source.give_back)) for _ in range(3)]
    await asyncio.sleep(0)
    calls[0].cancel()
    assert await asyncio.gather(*calls[1:]) == [[0], [1]]
    assert source.given_back == [2]


async def test_the_request_is_given_up_when_all_have_left() -> None:
    source = Source(0)
    gets: Gets[int] = Gets(RealClock())
    calls = [asyncio.create_task(gets.get("q", 1, 9.0, source.take, source.give_back)) for _ in range(3)]
    await turn()
    assert source.under_way == 1
    for call in calls:
        call.cancel()
    await turn(6)
    assert source.under_way == 0


async def test_an_error_reaches_everybody_as_their_own() -> None:
    source = Source(0)
    source.error = Unavailable("away", retry_after_s=2.0)
    gets: Gets[int] = Gets(RealClock())
    calls = (gets.get("q", 1, 0.0, source.take, source.give_back) for _ in range(3))
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [(type(error), str(error)) for error in errors] == [(Unavailable, "away")] * 3
    assert len({id(error) for error in errors}) == 3


async def test_a_wrong_count_spoils_nobody_elses_get() -> None:
    source = Source(5)
    gets: Gets[int] = Gets(RealClock())
    await asyncio.gather(*(gets.get("q", count, 0.0, source.take, source.give_back) for count in (0, 1, 1, 1_000)))
    assert sorted(source.asked) == [0, 2, 1_000]


async def test_closing_ends_what_waits() -> None:
    source = Source(0)
    gets: Gets[int] = Gets(RealClock())
    calls = [asyncio.create_task(gets.get("q", 1, 9.0, source.take, source.give_back)) for _ in range(2)]
    await turn()
    await gets.close()
    assert source.under_way == 0
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(end) for end in ends] == ["this client is closed"] * 2


async def test_who_asked_alone_for_long_waits_for_no_turn_until_there_is_company() -> None:
    source = Source(100)
    gets: Gets[int] = Gets(RealClock())

    def get() -> Coroutine[Any, Any, list[int]]:
        return gets.get("q", 1, 0.0, source.take, source.give_back)

    for _ in range(LONELY):
        await get()
    with pytest.raises(StopIteration):  # over with its first step
        get().send(None)
    source.asked.clear()
    source.gate = asyncio.Event()
    first = asyncio.create_task(get())
    await turn()
    others = [asyncio.create_task(get()) for _ in range(3)]
    await turn()
    assert source.asked == [1, 3]  # company was noticed
    source.gate.set()
    assert len(await first) == 1 and all(len(found) == 1 for found in await asyncio.gather(*others))


async def test_what_was_dealt_to_who_leaves_in_the_same_moment_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(2)
    gets: Gets[int] = Gets(RealClock())
    really = shared.deal

    def deal(callers: Any, found: Any) -> Any:
        rest = really(callers, found)
        calls[1].cancel()  # its share is dealt, and it has not been woken yet
        return rest

    monkeypatch.setattr(shared, "deal", deal)
    calls = [asyncio.create_task(gets.get("q", 1, 0.0, source.take, source.give_back)) for _ in range(2)]
    kept, left = await asyncio.gather(*calls, return_exceptions=True)
    await gets.close()
    assert isinstance(left, asyncio.CancelledError)
    assert sorted([*source.given_back, *kept]) == [0, 1]  # type: ignore[misc]


async def test_what_comes_as_the_last_caller_leaves_goes_back() -> None:
    source = Source(2)
    source.gate = asyncio.Event()
    gets: Gets[int] = Gets(RealClock())

    async def give_back(messages: list[int]) -> None:
        await turn()  # a request takes a while
        source.given_back += messages

    calls = [asyncio.create_task(gets.get("q", 1, 0.0, source.take, give_back)) for _ in range(2)]
    await turn()
    source.gate.set()
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await gets.close()
    assert source.given_back == [0, 1]
